"""Detects other live processes that use this worker's worker_id.

A worker_id alone does not identify the process that holds a lease: two processes may have been given the same id, and a
process that was killed leaves its id in rows. So every consumer draws its own random id, its *incarnation*, and
writes it into the rows that it takes. Two live processes with the same worker_id are duplicates. Each duplicate keeps
the leases that it took and does not take the leases of the other, so that no record is handled by both. Both processes
report that they share a worker_id.

Invariants:

- We may take a row under our worker_id immediately if the row names our incarnation (we took the row, but the response
  was lost) or no incarnation (a hand-over to us has ended, and no process acts on a lease before it has taken the
  lease). The same is true of a row that our previous process has kept for the restart (``KEPT``).
- A row under our worker_id with another incarnation belongs to another worker. We take it only after its owner has been
  silent for its lease duration. This is how a worker that was killed and restarted gets its leases back.
- If the counter of such a row moves twice, the other process is alive and thus a duplicate. One move proves nothing:
  the last write of a process that was killed may arrive late. Two late writes are impossible, because no process has
  two writes to one lease in flight (L1).
- If we held a lease, and another process that writes no incarnation (a KCL, or a version without incarnations) moved
  its counter, we must not take the lease immediately, even though the row still names us.
"""

from typing import Final, NamedTuple, final

from shardline.core.consumer.consumer_events import WorkerIdShared
from shardline.model.lease import Incarnation, Lease

_MOVES_OF_A_LIVE_PROCESS: Final = 2


class _SeenRow(NamedTuple):
    incarnation: str
    counter: int
    moves: int


@final
class DuplicateWorkers:
    """The other processes that one worker has seen under its worker_id."""

    def __init__(self, me: Incarnation) -> None:
        self.me: Incarnation = me
        self._seen_rows: dict[str, _SeenRow] = {}  # rows under our worker_id that another process took, by shard
        self._contested: set[str] = set()  # shards that a process without an incarnation writes to
        self._reported: set[str] = set()  # the incarnations that were reported; each is reported once
        self._events: list[WorkerIdShared] = []

    def is_ours(self, row: Lease) -> bool:
        """Return whether we may take this row immediately: it names us as its owner, and no other process holds it."""
        return row.owner == self.me.owner and not row.is_foreign_to(self.me) and row.shard_id not in self._contested

    def take_events(self) -> list[WorkerIdShared]:
        events, self._events = self._events, []
        return events

    # ---- inputs

    def handle_row(self, row: Lease) -> None:
        """Check a row that was read or written for signs of another process with our worker_id."""
        shard_id, other = row.shard_id, row.incarnation_of(self.me.owner)
        if row.holder != self.me.owner:
            self._contested.discard(shard_id)
        # No other process holds the lease under our worker_id any more. Forget the moves of the counter: for a later
        # holder, the count starts from zero.
        if row.holder != self.me.owner or other is None or not row.is_foreign_to(self.me):
            self._seen_rows.pop(shard_id, None)
            return
        known = self._seen_rows.get(shard_id)
        if known is None or known.incarnation != other.id:
            self._seen_rows[shard_id] = _SeenRow(other.id, row.counter, 0)
        elif known.counter != row.counter:
            self._seen_rows[shard_id] = _SeenRow(other.id, row.counter, known.moves + 1)
            if known.moves + 1 >= _MOVES_OF_A_LIVE_PROCESS and other.id not in self._reported:
                self._reported.add(other.id)
                self._events.append(WorkerIdShared(shard_id, self.me.owner))

    def handle_contested(self, shard_id: str) -> None:
        """Called when another process wrote to one of our leases under our worker_id."""
        self._contested.add(shard_id)
        self._events.append(WorkerIdShared(shard_id, self.me.owner))

    def handle_taken(self, shard_id: str) -> None:
        """Called when we took the lease after its earlier holder had been silent for long enough."""
        self._contested.discard(shard_id)
