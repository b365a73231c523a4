"""Does another live process use our worker_id?

A name alone does not tell who holds a lease: two processes may have been given the same one, and a process that was
killed has left its name in rows. So every consumer draws an id of its own, its *incarnation*, and writes it into the
rows that it takes. Each of two twins keeps what it took and leaves the other's leases alone, so that no record is
handled by both. Both report the mistake.

Invariants:

- A row under our name is ours to take at once if it names our incarnation (the answer to our take was lost) or
  none (a hand-over to us has ended: nobody acts on a lease without having taken it).
- A row under our name with another incarnation is another worker's like any other: it is taken when its owner has
  been silent for longer than it may. This is how a worker that was killed and restarted gets its leases back.
- The other process is alive, a twin, if such a row moves twice. Once proves nothing: the last write of a process
  that was killed may arrive late, and no process has two writes to one lease under way (L1).
- A lease that we held, and whose counter another process moved without naming an incarnation (a KCL, or a version
  that knows none), is not ours to take at once, although the row still names us.
"""

from typing import Final, NamedTuple, final

from shardline.core.consumer.consumer_events import WorkerIdShared
from shardline.model.lease import Incarnation, Lease

_MOVES_OF_THE_LIVING: Final = 2


class _Sight(NamedTuple):
    incarnation: str
    counter: int
    moves: int


@final
class Twins:
    """What one worker has seen of others under its name."""

    def __init__(self, me: Incarnation) -> None:
        self.me: Incarnation = me
        self._sights: dict[str, _Sight] = {}  # by shard: rows under our name that another process took
        self._contested: set[str] = set()  # shards that another process writes to, without saying which
        self._reported: set[str] = set()  # incarnations: each is reported once
        self._events: list[WorkerIdShared] = []

    def is_ours(self, row: Lease) -> bool:
        """Whether a row that names us as its owner, and that we do not hold, is ours to take at once."""
        return row.owner == self.me.owner and not row.is_foreign_to(self.me) and row.shard_id not in self._contested

    def take_events(self) -> list[WorkerIdShared]:
        events, self._events = self._events, []
        return events

    # ---- inputs

    def handle_row(self, row: Lease) -> None:
        """This row was seen."""
        shard_id, other = row.shard_id, row.incarnation_of(self.me.owner)
        if row.holder != self.me.owner:
            self._contested.discard(shard_id)
        if row.holder != self.me.owner or other is None or other.id == self.me.id:
            self._sights.pop(shard_id, None)
            return
        known = self._sights.get(shard_id)
        if known is None or known.incarnation != other.id:
            self._sights[shard_id] = _Sight(other.id, row.counter, 0)
        elif known.counter != row.counter:
            self._sights[shard_id] = _Sight(other.id, row.counter, known.moves + 1)
            if known.moves + 1 >= _MOVES_OF_THE_LIVING and other.id not in self._reported:
                self._reported.add(other.id)
                self._events.append(WorkerIdShared(shard_id, self.me.owner))

    def handle_contested(self, shard_id: str) -> None:
        """Another process wrote to a lease of ours in our name."""
        self._contested.add(shard_id)
        self._events.append(WorkerIdShared(shard_id, self.me.owner))

    def handle_taken(self, shard_id: str) -> None:
        """We took it: whoever had it was silent for long enough."""
        self._contested.discard(shard_id)
