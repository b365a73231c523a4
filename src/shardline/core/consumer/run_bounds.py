"""Decides when a consumer is ready, and when a bounded run is over.

Invariants:

- Ready is reported once, and holds: the leases are listed, every lease that is ours to take is taken, and every shard
  that we hold has an iterator. A record that is put from then on is read, even with ``start="LATEST"``.
- ``until="latest"`` ends a run when each shard was read up to its newest record, its children too if it ended, and the
  user is done with all of that. A lease of another worker does not keep the run going if that worker is seen to live;
  a dead worker may have left it unread.
- ``idle_timeout`` counts only while the consumer is ready and the user has no records: neither a slow start nor a slow
  user is idleness.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.reader import ShardKey


@final
class ShardFacts(NamedTuple):
    """A shard that we hold."""

    has_iterator: bool
    """Whether a record that is put from now on will be read."""
    has_records: bool
    """Whether the user has records of it, or could be handed some."""
    has_caught_up: bool
    """Whether it was read up to its newest record once."""
    has_ended: bool
    """Whether the user is done with its last record, so that its children follow."""


@final
class OtherLease(NamedTuple):
    """An unfinished lease that we do not hold."""

    key: ShardKey
    has_other_holder: bool
    counter: int


@final
class GroupFacts(NamedTuple):
    """The group of one stream."""

    is_ready: bool
    """Whether the rows and the shards are known, and nothing that is ours to do is left undone."""
    is_listed: bool
    """Whether every shard that is known has a row."""
    others: Sequence[OtherLease]


@final
class RunBounds:
    """How far a consumer has come."""

    def __init__(self, *, until_latest: bool, idle_timeout: float | None, max_leases: int | None) -> None:
        self._until_latest: bool = until_latest
        self._idle_timeout: float | None = idle_timeout
        self._max_leases: int | None = max_leases
        self._counters: dict[ShardKey, int] = {}  # of the leases of others, when they were first seen
        self._idle_since: Instant = NEVER
        self.is_ready: bool = False
        self.is_exhausted: bool = False
        """Whether no more records are to be handed out once those at hand are through."""

    @property
    def is_awaited(self) -> bool:
        """Whether anything that is read or done may matter here: look soon."""
        return not self.is_ready or self._until_latest

    @property
    def is_open_ended(self) -> bool:
        """Whether there is nothing left to find out: ``handle_facts`` need not be called."""
        return self.is_ready and (self.is_exhausted or not (self._until_latest or self._idle_timeout is not None))

    # ---- commands

    def restart(self, now: Instant) -> None:
        """A new iteration or run begins: idleness counts from now."""
        self._idle_since = now
        if not self._until_latest:
            self.is_exhausted = False

    # ---- inputs

    def handle_activity(self, now: Instant) -> None:
        """The user was handed records, or is done with some."""
        self._idle_since = now

    def handle_facts(self, groups: Sequence[GroupFacts], shards: Sequence[ShardFacts], now: Instant) -> bool:
        """Look at the groups that we belong to and at the shards that we hold. True: something new was reached."""
        if not self.is_ready:
            if not all(group.is_ready for group in groups) or not all(shard.has_iterator for shard in shards):
                return False
            self.is_ready = True
            self._idle_since = now
            return True
        if self.is_exhausted:
            return False
        if any(shard.has_records for shard in shards):
            self._idle_since = now  # and the deadline moves, for the host must not look without a pause
            return False
        if self._until_latest and self._has_reached_latest(groups, shards):
            self.is_exhausted = True
        elif self._idle_timeout is not None:
            self.is_exhausted = now >= self.next_deadline()
        return self.is_exhausted

    # ---- time

    def next_deadline(self) -> Instant:
        """When to look again if nothing happens before."""
        if self._idle_timeout is None or self.is_exhausted or not self.is_ready:
            return NEVER
        return self._idle_since + self._idle_timeout

    # ---- within

    def _has_reached_latest(self, groups: Sequence[GroupFacts], shards: Sequence[ShardFacts]) -> bool:
        if not all(shard.has_caught_up and not shard.has_ended for shard in shards):
            return False
        if self._max_leases is not None and len(shards) >= self._max_leases:
            return True
        if not all(group.is_listed for group in groups):
            return False
        others = [lease for group in groups for lease in group.others]
        alive = [lease.has_other_holder and self._has_moved(lease) for lease in others]  # all: note each counter
        return all(alive)

    def _has_moved(self, lease: OtherLease) -> bool:
        """Whether its holder is seen to live: the counter is not the one that was seen first."""
        return self._counters.setdefault(lease.key, lease.counter) != lease.counter


def group_facts(stream: str, coordinator: Coordinator, held: Collection[ShardKey]) -> GroupFacts:
    """The group of a stream, as its coordinator knows it. ``held``: the shards that we hold."""
    rows, topology = coordinator.view.rows, coordinator.topology
    others = [
        OtherLease((stream, row.shard_id), row.holder not in (None, coordinator.me), row.counter)
        for row in rows.values()
        if (stream, row.shard_id) not in held and not row.checkpoint.is_finished
    ]
    is_listed = topology.is_settled and bool(rows) and topology.graph.covers(rows)
    # A lease that was gained counts from when its reader was started: its event may not have been followed yet.
    is_started = all((stream, shard_id) in held for shard_id in coordinator.held.holdings)
    return GroupFacts(coordinator.is_ready and is_started, is_listed, others)
