"""Is the consumer ready, and has a bounded run come to its end?

Invariants:

- MS1: ready is said once, and means it: the leases are listed, what was ours to take is taken, and every shard that we
  hold has an iterator. A record that is put from then on is read, also with ``start="LATEST"``.
- MS2: ``until="latest"`` ends when each shard was read up to its newest record, its children too if it ended, and all
  of it is done. A lease of another worker counts as its business only if that worker is seen to live: one that died may
  have left it unread.
- MS3: ``idle_timeout`` runs only while the consumer is ready and the user has nothing: a slow start, and a slow user,
  are no idleness.
"""

from collections.abc import Mapping
from typing import final

from shardline.aio.shard_worker import ShardWorker
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.coordinator import Coordinator


@final
class Milestones:
    """How far a consumer has come."""

    def __init__(self, *, me: str, until_latest: bool, idle_timeout: float | None, max_leases: int | None) -> None:
        self.me = me
        self._until_latest = until_latest
        self._idle_timeout = idle_timeout
        self._max_leases = max_leases
        self._counters: dict[str, int] = {}  # of leases of others, as they were first seen
        self._idle_since: Instant = NEVER
        self.is_ready = False
        self.is_exhausted = False
        """Whether nothing more is to be handed out."""

    @property
    def is_awaited(self) -> bool:
        """Whether anything that is read or done may matter here."""
        return not self.is_ready or self._until_latest

    def handle_activity(self, now: Instant) -> None:
        """The user was handed records, or is done with some."""
        self._idle_since = now

    def look(self, coordinator: Coordinator, workers: Mapping[str, ShardWorker], now: Instant) -> bool:
        """See what has been reached. True: something new."""
        if not self.is_ready:
            if not coordinator.is_ready or not all(worker.has_iterator for worker in workers.values()):
                return False
            self.is_ready = True
            self._idle_since = now
            return True
        if self.is_exhausted or any(map(_has_records, workers.values())):
            return False
        if self._until_latest and self._has_reached_latest(coordinator, workers):
            self.is_exhausted = True
        elif self._idle_timeout is not None:
            self.is_exhausted = now - self._idle_since >= self._idle_timeout
        return self.is_exhausted

    def next_deadline(self) -> Instant:
        """When to look again, if nothing happens before."""
        if self._idle_timeout is None or self.is_exhausted or not self.is_ready:
            return NEVER
        return self._idle_since + self._idle_timeout

    def begin_anew(self, now: Instant) -> None:
        """A new iteration: idleness is counted from now."""
        self._idle_since = now
        if not self._until_latest:
            self.is_exhausted = False

    def _has_reached_latest(self, coordinator: Coordinator, workers: Mapping[str, ShardWorker]) -> bool:
        """MS2."""
        if not all(worker.is_caught_up and not worker.has_ended for worker in workers.values()):
            return False
        if self._max_leases is not None and len(workers) >= self._max_leases:
            return True
        rows = coordinator.view.rows
        if not coordinator.topology.is_settled or not rows or not coordinator.topology.graph.covers(rows):
            return False
        others = [row for shard_id, row in rows.items() if shard_id not in workers and not row.checkpoint.is_finished]
        return all(row.holder not in (None, self.me) and self._is_alive(row.shard_id, row.counter) for row in others)

    def _is_alive(self, shard_id: str, counter: int) -> bool:
        return self._counters.setdefault(shard_id, counter) != counter


def _has_records(worker: ShardWorker) -> bool:
    """Whether the user has some of the shard, or could be handed some."""
    return bool(worker.in_hand) or worker.has_pages or worker.reader.has_unopened
