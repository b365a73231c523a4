"""Decides when a consumer is ready and when a bounded run is over.

Invariants:

- A consumer becomes ready once and stays ready. It is ready when the leases are listed, the worker has taken every
  lease that it should take, and every held shard has an iterator. From then on, every record that is put will be read,
  even with ``start="LATEST"``.
- With ``until="latest"``, a run ends when each shard, including the children of ended shards, has been read up to its
  newest record, and the user is done with all these records. The run does not wait for a shard whose lease another
  worker holds, if that worker is seen to be alive. A dead worker may have left its shard unread.
- ``idle_timeout`` counts only while the consumer is ready and the user has no records, so that neither a slow start nor
  a slow user counts as idle.
- While any shard is paused, no bound ends the run: the paused shard may have records that the user still wants.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.reader import ShardKey


@final
class ShardFacts(NamedTuple):
    """The state of a shard whose lease we hold."""

    has_iterator: bool
    """Whether a record that is put from now on will be read."""
    has_records: bool
    """Whether the user has records of the shard, or records of the shard are waiting for the user."""
    has_caught_up: bool
    """Whether the shard was once read up to its newest record."""
    has_ended: bool
    """Whether the user is done with the shard's last record. If so, the shard's children come next."""


@final
class OtherLease(NamedTuple):
    """A lease that we do not hold, for a shard that is not finished."""

    key: ShardKey
    has_other_holder: bool
    counter: int


@final
class GroupFacts(NamedTuple):
    """The state of the group of one stream."""

    is_ready: bool
    """Whether the rows and the shards are known, and this worker has no operation left to carry out."""
    is_listed: bool
    """Whether a listing is complete and contains the shard of every row."""
    others: Sequence[OtherLease]


@final
class RunBounds:
    """Tracks whether a consumer is ready and whether its run is over."""

    def __init__(self, *, until_latest: bool, idle_timeout: float | None, max_leases: int | None) -> None:
        self._until_latest: bool = until_latest
        self._idle_timeout: float | None = idle_timeout
        self._max_leases: int | None = max_leases
        self._counters: dict[ShardKey, int] = {}  # the counters of other workers' leases when first seen
        self._idle_since: Instant = NEVER
        self.is_ready: bool = False
        self.is_paused: bool = False
        """Whether the user has paused a shard. The hand-out writes this field."""
        self.is_exhausted: bool = False
        """Whether the run will end once the user is done with the records that were read."""

    @property
    def is_awaited(self) -> bool:
        """Whether the next page or the next finished record may make the consumer ready or end the run. If so, call
        ``handle_facts`` soon after it.
        """
        return not self.is_ready or self._until_latest

    @property
    def is_open_ended(self) -> bool:
        """Whether nothing is left to decide. If so, ``handle_facts`` need not be called."""
        return self.is_ready and (self.is_exhausted or not (self._until_latest or self._idle_timeout is not None))

    # ---- commands

    def restart(self, now: Instant) -> None:
        """Begin a new iteration or run. Idle time counts from now."""
        self._idle_since = now
        if not self._until_latest:
            self.is_exhausted = False

    def limit_leases(self, max_leases: int | None) -> None:
        """Change the maximum number of leases of this worker."""
        self._max_leases = max_leases

    # ---- inputs

    def handle_activity(self, now: Instant) -> None:
        """Called when records were handed to the user, or the user finished records."""
        self._idle_since = now

    def handle_facts(self, groups: Sequence[GroupFacts], shards: Sequence[ShardFacts], now: Instant) -> bool:
        """Evaluate the groups and the held shards. Return True if the consumer became ready or the run is over."""
        if not self.is_ready:
            if not all(group.is_ready for group in groups) or not all(shard.has_iterator for shard in shards):
                return False
            self.is_ready = True
            self._idle_since = now
            return True
        if self.is_exhausted:
            return False
        if self.is_paused or any(shard.has_records for shard in shards):
            self._idle_since = now  # moves the deadline, so that the host does not call again without a pause
            return False
        if self._until_latest and self._has_reached_latest(groups, shards):
            self.is_exhausted = True
        elif self._idle_timeout is not None:
            self.is_exhausted = now >= self.next_deadline()
        return self.is_exhausted

    # ---- time

    def next_deadline(self) -> Instant:
        """Return the latest time at which to call ``handle_facts`` again."""
        if self._idle_timeout is None or self.is_exhausted or not self.is_ready:
            return NEVER
        return self._idle_since + self._idle_timeout

    # ---- internal

    def _has_reached_latest(self, groups: Sequence[GroupFacts], shards: Sequence[ShardFacts]) -> bool:
        # The children of an ended shard come next, so the run is not over yet.
        if not all(shard.has_caught_up and not shard.has_ended for shard in shards):
            return False
        # This worker can take no more leases, so it does not wait for the shards of other leases.
        if self._max_leases is not None and len(shards) >= self._max_leases:
            return True
        if not all(group.is_listed for group in groups):
            return False
        others = [lease for group in groups for lease in group.others]
        # This is a list and not a generator, because _has_moved must note each counter, even after the first False.
        alive = [lease.has_other_holder and self._has_moved(lease) for lease in others]
        return all(alive)

    def _has_moved(self, lease: OtherLease) -> bool:
        """Return whether the lease's counter has changed since it was first seen. If so, its holder is alive."""
        return self._counters.setdefault(lease.key, lease.counter) != lease.counter


def group_facts(stream: str, coordinator: Coordinator, held: Collection[ShardKey]) -> GroupFacts:
    """Return the state of a stream's group, as its coordinator knows it. ``held`` contains the shards with readers."""
    rows, topology = coordinator.view.rows, coordinator.topology
    others = [
        OtherLease((stream, row.shard_id), row.holder not in (None, coordinator.me), row.counter)
        for row in rows.values()
        if (stream, row.shard_id) not in held and not row.checkpoint.is_finished
    ]
    is_listed = topology.is_settled and bool(rows) and topology.graph.covers(rows)
    # The shell may not have handled the latest LeaseGained events yet. A gained lease counts once its reader exists.
    is_started = all((stream, shard_id) in held for shard_id in coordinator.held.holdings)
    return GroupFacts(coordinator.is_ready and is_started, is_listed, others)
