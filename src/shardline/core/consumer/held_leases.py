"""Keeps the leases that this worker holds and finds those that need attention.

``HeldLeases`` contains the held leases of a worker (``Holding``), by shard. It receives the acknowledgements of user
code, and emits the events about each lease. Thousands of leases cost no CPU time while none of them is due
(``DeadlineHeap``).

Invariants (docs/guarantees.md):

- L2, L4: a lease that expired, or that another worker took, is reported as lost once, and its acknowledgements are
  refused.
- C3: a shard that was read to its end may be finished once each of its children has a row. The shard counts as
  childless only after two listings without children. The second listing must begin at least a second after the first
  arrived.
- A shard with too many unacknowledged records is full until the user acknowledges some. One event reports that the
  shard is full.
- If the worker holds more leases than ``max_leases`` allows, because the user has lowered the limit, it releases the
  leases that it gained last. The user has as much time to finish the records in hand as in a hand-over.
- Each gained lease causes one ``LeaseGained``, and later exactly one ``LeaseLost`` or ``LeaseReleased``.
"""

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.checkpoint import CheckpointTracker
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.consumer_events import (
    Committed,
    HandOverAsked,
    HandOverOverdue,
    LeaseGained,
    LeaseHandedOver,
    LeaseLost,
    LeaseReleased,
    LeaseSurplus,
    ShardSought,
    TooManyUnacknowledged,
)
from shardline.core.consumer.dedup_window import DedupWindow
from shardline.core.consumer.duplicate_workers import DuplicateWorkers
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.group_rows import unrowed_children
from shardline.core.consumer.kcl_fleet import KclFleet
from shardline.core.consumer.lease_phases import Holding, HoldingOperation, Phase
from shardline.core.consumer.read_throughput import ReadThroughput
from shardline.core.consumer.shard_graph import CONFIRM_AFTER, Rows, ShardGraph
from shardline.core.leases import Refused
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST, at_timestamp
from shardline.model.record import Record

_NO_ROWS: Final[Rows] = MappingProxyType({})

HeldEvent: TypeAlias = (
    LeaseGained
    | HandOverAsked
    | HandOverOverdue
    | LeaseLost
    | LeaseReleased
    | LeaseSurplus
    | ShardSought
    | TooManyUnacknowledged
    | Committed
    | LeaseHandedOver
)


@final
class HeldOperation(NamedTuple):
    """An operation, and the holding of the lease that it is for.

    The shard id alone would not identify the holding: the lease may be lost and gained again before the response
    arrives.
    """

    operation: HoldingOperation
    holding: Holding


@final
class DeadlineHeap:
    """Holds one deadline per shard: the one that was set last. Setting a deadline and finding a due shard take
    logarithmic time.
    """

    def __init__(self) -> None:
        self._at: dict[str, Instant] = {}
        self._heap: list[tuple[Instant, str]] = []

    def schedule(self, shard_id: str, at: Instant) -> None:
        """Set or move the shard's deadline. The time NEVER cancels it."""
        if at == NEVER:
            self._at.pop(shard_id, None)
        elif self._at.get(shard_id) != at:
            heappush(self._heap, (at, shard_id))  # pushed first, because an entry that is only in the heap is skipped
            self._at[shard_id] = at

    def pop_due(self, now: Instant) -> str | None:
        """Return a shard whose deadline has passed, and cancel the deadline."""
        if self.next_at() > now:
            return None
        _, shard_id = heappop(self._heap)
        del self._at[shard_id]
        return shard_id

    def next_at(self) -> Instant:
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:  # moved or cancelled
            heappop(heap)
        return heap[0][0] if heap else NEVER


@final
class HeldLeases:
    """All leases that one worker holds."""

    def __init__(
        self,
        duplicates: DuplicateWorkers,
        graph: ShardGraph,
        config: ConsumerConfig,
        *,
        checkpoint_interval: float,
        latest_at: float,
        clock: Callable[[], Instant] | None = None,
        kcl: KclFleet | None = None,
    ) -> None:
        self._duplicates: DuplicateWorkers = duplicates
        self._graph: ShardGraph = graph
        self._config: ConsumerConfig = config
        chosen = config.checkpoint_interval
        self._checkpoint_interval: float = checkpoint_interval if chosen is None else chosen
        self._latest_at: float = latest_at
        self._clock: Callable[[], Instant] | None = clock
        self._kcl: KclFleet | None = kcl
        self._lapses: DeadlineHeap = DeadlineHeap()
        self._work: DeadlineHeap = DeadlineHeap()
        self._events: list[HeldEvent] = []
        self._full: set[str] = set()  # shards with too many unacknowledged records
        self._missing: set[str] = set()  # shards that the service does not know
        self.holdings: dict[str, Holding] = {}
        self._childless_since: dict[str, Instant] = {}  # by ended shard: when the first listing without children came
        self.ending: dict[str, int] = {}
        """For each shard that was read to its end, the number of listings up to that time (C3)."""
        self.has_changed: bool = False
        """Whether a lease was lost or released. If so, other leases may be readable now. The coordinator resets this.
        """

    def count_kept(self) -> int:
        """Return how many leases are held and not being released."""
        return sum(holding.phase is Phase.ACTIVE for holding in self.holdings.values())

    # ---- commands

    def deliver(self, shard_id: str, records: Sequence[Record]) -> None:
        """Track records that were handed to the user."""
        holding = self.holdings.get(shard_id)
        if holding is not None:
            holding.tracker.deliver(records)
            if holding.throughput is not None or holding.meter is not None:
                _count_bytes(holding, sum([len(record.data) for record in records]))
            count = holding.tracker.remembered
            if count >= self._config.max_unacknowledged and shard_id not in self._full:
                self._full.add(shard_id)
                self._events.append(TooManyUnacknowledged(shard_id, count))

    def count_handling(self, grant: Grant, duration: float) -> None:
        """Add to the load of the shard the seconds for which user code had records of the shard."""
        holding = self.holdings.get(grant.shard_id)
        if holding is not None and holding.grant is grant and holding.meter is not None:
            holding.meter.add_handling(duration)

    def window_of(self, grant: Grant) -> DedupWindow | None:
        """Return the stamps with which the reader of this grant compares its records, or ``None`` without ``dedup``."""
        holding = self.holdings.get(grant.shard_id)
        return holding.window if holding is not None and holding.grant is grant else None

    def is_full(self, shard_id: str) -> bool:
        """Return whether the shard has too many unacknowledged records for more to be handed out.

        Records that the user gave back are handed out again in any case, because otherwise the user could not
        acknowledge them.
        """
        if shard_id not in self._full:
            return False
        holding = self.holdings.get(shard_id)
        if holding is None or holding.tracker.remembered < self._config.max_unacknowledged:
            self._full.discard(shard_id)
            return False
        return not holding.tracker.returned

    def ack(self, shard_id: str, record: Record) -> bool:
        """Acknowledge this record (manual). Return False if the record has already been acknowledged, or the lease is
        not held.
        """
        holding = self.holdings.get(shard_id)
        return holding is not None and holding.tracker.ack(record) and self._touch(holding)

    def ack_through(self, shard_id: str, record: Record) -> bool:
        """Acknowledge this record and all records before it. Return False in the same cases as ``ack``."""
        holding = self.holdings.get(shard_id)
        return holding is not None and holding.tracker.ack_through(record) and self._touch(holding)

    def end(self, shard_id: str, listings: int) -> None:
        """End a shard, after all its records were delivered. ``listings`` is the number of listings so far."""
        holding = self.holdings.get(shard_id)
        if holding is not None:
            holding.tracker.end()
            self.ending[shard_id] = listings
            self._arrange(holding)

    def leave(self, shard_id: str, *, keep: bool = False) -> None:
        """Commit and release the lease, because the user is done with the shard. With ``keep``, the lease is kept for
        the worker's next process.
        """
        holding = self.holdings.get(shard_id)
        if holding is not None:
            holding.leave(keep=keep)
            self._arrange(holding)

    def shed(self, most: int, now: Instant) -> None:
        """Begin to release the leases that exceed ``most``. Leases that are already being released do not count."""
        active = [holding for holding in self.holdings.values() if holding.phase is Phase.ACTIVE]
        until = self._config.hand_over_timeout + now
        for holding in active[most:]:
            holding.drain(until)
            self._events.append(LeaseSurplus(holding.shard_id, until))
            self._arrange(holding)

    def seek(self, shard_id: str, checkpoint: Checkpoint) -> None:
        """Move the checkpoint of the shard to any position. ``ShardSought`` reports that the store has written it."""
        holding = self.holdings[shard_id]
        holding.seek(checkpoint)
        self._full.discard(shard_id)
        self._arrange(holding)

    def flush(self, shard_id: str) -> None:
        """Commit the acknowledged records of the shard immediately."""
        holding = self.holdings[shard_id]
        holding.tracker.flush()
        self._arrange(holding)

    def mark_missing(self, shard_id: str) -> None:
        """Called when the service does not know the shard. After the next listing, the shard is ended or its lease is
        released.
        """
        self._missing.add(shard_id)

    def lose(self, shard_id: str, why: str) -> None:
        """Drop the lease without writing anything more for it."""
        holding = self.holdings.get(shard_id)
        if holding is not None:
            holding.lose(why)
            self._remove(holding)

    # ---- outputs, time

    def poll_operation(self, busy: Collection[str], now: Instant) -> HeldOperation | None:
        """Return the next operation for a lease that is not ``busy``. A busy lease is due again after the response."""
        while (shard_id := self._work.pop_due(now)) is not None:
            if shard_id not in busy:
                holding = self.holdings[shard_id]
                operation = holding.poll_operation(now)
                self._settle(holding, now)
                if operation is not None:
                    return HeldOperation(operation, holding)
        return None

    def take_events(self) -> list[HeldEvent]:
        events, self._events = self._events, []
        return events

    def next_lapse(self) -> Instant:
        """Return the time at which to call ``handle_time`` next."""
        return self._lapses.next_at()

    def next_work(self) -> Instant:
        """Return the time at which ``poll_operation`` will have an operation."""
        return self._work.next_at()

    # ---- inputs

    def handle_time(self, now: Instant) -> None:
        """End the leases that expired and the hand-overs that are overdue. This needs no response from the store."""
        while (shard_id := self._lapses.pop_due(now)) is not None:
            holding = self.holdings[shard_id]
            holding.handle_time(now)
            self._settle(holding, now)

    def handle_taken(self, row: Lease, sent_at: Instant, now: Instant, rows: Rows = _NO_ROWS) -> None:
        """Add a lease that this worker took with a write sent at ``sent_at``. ``rows`` are the rows of the group."""
        me = self._duplicates.me
        grant = Grant(row.shard_id, row.counter, sent_at + me.lease_duration, self._clock)
        tracker = self._make_tracker(row, now)
        parents = [rows[parent] for parent in sorted(row.parent_ids) if parent in rows]
        window = DedupWindow.inherited(row, parents) if self._config.dedup else None
        holding = Holding(row, grant, tracker, me=me, sent_at=sent_at, window=window)
        if self._kcl is not None:
            holding.follow_kcl(self._kcl, ReadThroughput(now, row.throughput))
        if self._config.assign_by == "load":
            holding.measure_load(now)
        self.holdings[row.shard_id] = holding
        self._duplicates.handle_taken(row.shard_id)
        # A KCL may have created the row, and a KCL writes LATEST without a time. In this case, the shard is read from
        # the time when this worker started, because LATEST would move with each new iterator.
        start = at_timestamp(self._latest_at) if row.resume_at == LATEST else row.resume_at
        self._events.append(LeaseGained(row.shard_id, grant, start, row.checkpoint, self._hash_range(row)))
        self._settle(holding, now)

    def handle_rows(self, rows: Rows, busy: Collection[str], now: Instant) -> None:
        """Compare the held leases with the rows of a scan."""
        # A row that is older than the operation in flight proves nothing, so busy leases are skipped. The response to
        # the operation decides.
        for shard_id, holding in [*self.holdings.items()]:
            row = rows.get(shard_id)
            # A row that has not changed tells nothing new. Nearly all rows of a large group are such rows.
            if shard_id not in busy and row is not holding.row and row != holding.row:
                holding.handle_seen(row)
                self._settle(holding, now)

    def handle_applied(self, holding: Holding, result: Lease | Refused | None, now: Instant) -> None:
        before = holding.row.checkpoint
        holding.handle_applied(result)
        if (written := holding.take_committed()) is not None:
            self._events.append(Committed(holding.shard_id, written.position, now - written.sent_at))
            if holding.tracker.is_sought:
                self._go_on_at_sought_position(holding, before, now)
        if holding.handed_to is not None:
            asked_at = now if holding.asked_at is None else holding.asked_at
            self._events.append(LeaseHandedOver(holding.shard_id, holding.handed_to, now - asked_at))
        self._settle_current(holding, now)

    def handle_failure(self, holding: Holding, retry_at: Instant, now: Instant, *, maybe_received: bool) -> None:
        holding.handle_failure(retry_at, maybe_received=maybe_received)
        self._settle_current(holding, now)

    def handle_listing(self) -> None:
        """Decide what to do with the shards that the service reported as unknown.

        A shard that is gone from the stream has ended. If a shard still exists, its lease is released.
        """
        graph = self._graph
        # Leases that were lost meanwhile are another worker's concern.
        self._missing &= self.holdings.keys()
        for shard_id in [*self._missing]:
            if graph.is_trimmed(shard_id):
                self._missing.discard(shard_id)
                self.end(shard_id, -graph.listings)  # if the shard had children, no listing will ever show them
            elif graph.is_present(shard_id):
                self._missing.discard(shard_id)
                self.leave(shard_id)  # the next owner reads the shard with a new iterator

    def handle_children(self, rows: Rows) -> Instant:
        """Allow SHARD_END for the shards whose children have rows (C3). Return the time at which to list the shards
        again.
        """
        list_at = NEVER
        for shard_id, listings in self.ending.items():
            holding, children = self.holdings[shard_id], self._graph.children(shard_id)
            look_at = NEVER if children else self._look_for_children_at(shard_id, listings)
            # The other parent of a merge may be younger than the last listing. While that parent is unknown, the child
            # can neither be placed nor get a row.
            if not all(map(self._graph.is_placed, children)):
                # The first listing is requested at once. If it is out of date, a listing right after it may be out of
                # date, too.
                look_at = -NEVER if self._graph.listings <= listings else self._graph.came_at + CONFIRM_AFTER
            list_at = min(list_at, look_at)
            if look_at == NEVER and not unrowed_children(self._graph, shard_id, rows):
                holding.allow_end(children)
                self._arrange(holding)
        return list_at

    def _look_for_children_at(self, shard_id: str, listings: int) -> Instant:
        """Return the time at which to list the shards again to find children of this shard, or NEVER if it has no
        children (C3).
        """
        graph = self._graph
        # ``handle_listing`` passes a negative number for a trimmed shard: no further listing can show its children.
        if listings < 0:
            return NEVER
        if graph.listings <= listings:
            return -NEVER
        # A listing may lag behind and omit children that exist. Only a second listing, begun later, proves that there
        # are no children.
        proven_at = self._childless_since.setdefault(shard_id, graph.came_at) + CONFIRM_AFTER
        return NEVER if graph.begun_at >= proven_at else proven_at

    # ---- internal

    def _make_tracker(self, row: Lease, now: Instant) -> CheckpointTracker:
        is_manual = self._config.ack == "manual"
        return CheckpointTracker(row.checkpoint, interval=self._checkpoint_interval, now=now, manual=is_manual)

    def _go_on_at_sought_position(self, holding: Holding, before: Checkpoint, now: Instant) -> None:
        """Report that the store has written the position that the user passed to ``seek``.

        Unless the lease is being released, records are read and acknowledged from this position on, under a new grant.
        """
        row, grant = holding.row, holding.grant
        if holding.phase is Phase.ACTIVE:
            grant = Grant(row.shard_id, grant.token, grant.held_until, self._clock)
            holding.reopen(grant, self._make_tracker(row, now))
        self._events.append(
            ShardSought(row.shard_id, grant, row.resume_at, row.checkpoint, self._hash_range(row), before.position)
        )

    def _hash_range(self, row: Lease) -> HashRange | None:
        """Return the shard's hash range, or ``None`` if the row and the listing contradict each other, because one of
        them belongs to a stream that was deleted.
        """
        listed = self._graph.hash_range(row.shard_id)
        written = row.hash_range or listed
        return written if listed in {None, written} else None

    def _settle_current(self, holding: Holding, now: Instant) -> None:
        """Update the shard after its operation was answered. In the meantime, the lease may have been lost and gained
        again.
        """
        self._settle(self.holdings.get(holding.shard_id, holding), now)

    def _settle(self, holding: Holding, now: Instant) -> None:
        """Emit the events of a holding and schedule its next deadlines."""
        shard_id = holding.shard_id
        if holding.is_over:
            self._remove(holding)
            return
        if holding.next_owner is not None and holding.asked_at is None:
            holding.asked_at = now
        if holding.next_owner is not None and holding.phase is Phase.ACTIVE:
            until = now + self._config.hand_over_timeout
            holding.drain(until)
            self._events.append(HandOverAsked(shard_id, holding.next_owner, until))
        if holding.take_overdue():
            self._events.append(HandOverOverdue(shard_id))
        # If everything is committed, no commit is scheduled. The next acknowledgement then has to schedule one
        # (``_touch``).
        holding.is_arranged = False
        self._arrange(holding)

    def _remove(self, holding: Holding) -> None:
        shard_id = holding.shard_id
        if self.holdings.pop(shard_id, None) is None:
            return  # the end of this lease has already been reported
        self.ending.pop(shard_id, None)
        # If the lease is gained again, its new reader finds out whether the service knows the shard.
        self._missing.discard(shard_id)
        self._childless_since.pop(shard_id, None)
        self._arrange(holding)
        self.has_changed = True
        if holding.is_contested:
            self._duplicates.handle_contested(shard_id)
        if holding.phase is Phase.LOST:
            self._events.append(LeaseLost(shard_id, holding.why))
        else:
            self._events.append(LeaseReleased(shard_id, holding.phase is Phase.FINISHED))

    def _touch(self, holding: Holding) -> bool:
        """Schedule the commit of an acknowledgement. Nearly always, a commit is already scheduled."""
        # This is the hot path: one call per record. Once a commit is scheduled, an acknowledgement does not change its
        # time, unless the shard has ended and this was the last record.
        if not holding.is_arranged or holding.tracker.has_ended:
            self._arrange(holding)
            holding.is_arranged = True
        return True

    def _arrange(self, holding: Holding) -> None:
        self._lapses.schedule(holding.shard_id, holding.next_lapse())
        self._work.schedule(holding.shard_id, holding.next_work())


def _count_bytes(holding: Holding, size_bytes: int) -> None:
    if holding.throughput is not None:
        holding.throughput.add(size_bytes)
    if holding.meter is not None:
        holding.meter.add_bytes(size_bytes)
