"""Decides which lease operations and Kinesis requests a worker sends, and which events it emits.

The coordinator is the central machine of a worker. It scans the lease store, follows the shards of the stream
(``Topology``), plans with the other workers (``Planner``), sends the operations of the held leases (``HeldLeases``),
and emits the events that start and stop readers.

The shell sends the operations that ``poll_operation`` returns to the lease store, and the requests that
``poll_request`` returns to Kinesis. It answers each of them with exactly one ``handle_*`` call, acts on the events that
``take_events`` returns, and polls again after every call and at ``next_deadline``. It reports delivered and
acknowledged records to ``held``.

Invariants (docs/guarantees.md):

- L1: each lease has at most one operation in flight, and there is at most one scan.
- L2: a lease that was not renewed in time is lost, whatever the store answers. This includes time during which the
  computer was suspended.
- L3: the worker takes only leases whose shards may be read. The rows of the children exist before SHARD_END is written.
- L4: the worker reports a lost lease and writes nothing more for it. During an outage of the store, reading continues
  until the leases expire, and starts again after the outage.
- L5: ``close`` commits the acknowledged records, releases every lease, and withdraws requests for leases
  (``ReleaseOnExit``). With ``keep_leases``, a clean close keeps the leases for the worker's restart.
- L6: a row at LATEST is pinned to a time, and its shard is read from that time. A worker that completes the rows of a
  group pins new rows to the time when the group began.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, final

from shardline.codec.shapes import ListShardsResponse, StreamSummary
from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.consumer_events import (
    ConsumerFailed,
    Event,
    ProgressLost,
    Stalled,
    StoreFailed,
    StoreRecovered,
)
from shardline.core.consumer.discovery import Discovery
from shardline.core.consumer.duplicate_workers import DuplicateWorkers
from shardline.core.consumer.group_rows import GroupStart
from shardline.core.consumer.hash_coverage import CoverageAudit
from shardline.core.consumer.held_leases import HeldLeases
from shardline.core.consumer.kcl_fleet import KclFleet, longest_silence
from shardline.core.consumer.lease_phases import Holding
from shardline.core.consumer.lease_view import LeaseView
from shardline.core.consumer.load_assignment import LoadBalancer
from shardline.core.consumer.planner import PlannedOperation, Planner
from shardline.core.consumer.release_on_exit import ExitOperation, ReleaseOnExit
from shardline.core.consumer.scan_pace import ScanPace
from shardline.core.consumer.store_outages import LIST, WRITE, StoreHealth
from shardline.core.consumer.stream_shares import KnownLeases, StreamShares
from shardline.core.consumer.token_floor import TokenFloor
from shardline.core.consumer.topology import Topology
from shardline.core.consumer.trim_watch import TrimWatch
from shardline.core.error_codes import Failure
from shardline.core.kcl_requests import KclRequest
from shardline.core.leases import AskHandOver, CreateLease, DeleteLease, LeaseOperation, Refused, TakeLease
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.model.lease import Incarnation, Lease
from shardline.model.position import Position
from shardline.model.shard import ChildShard
from shardline.model.stream import StreamRef

_MAX_IN_FLIGHT: Final = 64
_BACKOFF_FIRST: Final = 0.1
_BACKOFF_LONGEST: Final = 1.0
# A call that is late by more than this share of a lease duration is reported, before the lease expires.
_STALL_SHARE: Final = 0.25


@final
@dataclass(frozen=True, slots=True)
class ScanLeases:
    """List every row. The shell answers with ``handle_rows`` or ``handle_scan_failed``."""


StoreRequest: TypeAlias = ScanLeases | LeaseOperation


class _Flight(NamedTuple):
    operation: LeaseOperation
    sent_at: Instant
    holding: Holding | None


@final
class Coordinator:
    """One worker of a group.

    Args:
        stream: the stream to read.
        me: the worker's name, unique in its group.
        incarnation: an id that no other consumer has, not even an earlier consumer with the same name.
        read_by: how this worker reads. The group's rows show this to people.
        start: where a new group starts.
        config: the settings.
        scan_interval: the store's default, used if the config sets no interval.
        checkpoint_interval: the store's default, used if the config sets no interval.
        latest_at: the service's current time minus 1 s. LATEST is pinned to this time (L6), and fencing tokens start
            from it.
        kcl_failover: on a KCL table, the KCL's failover time. It determines when owners without a stated lease duration
            count as dead.
        follows_kcl: whether to look for a KCL fleet on the table, and to follow it.
        shares: the streams of the consumer, if it may have several. The coordinator joins them.
        rng: a ``random.Random``.
        now: the current time.
        clock: the shell's clock, for user code that asks a grant whether it is held.
    """

    def __init__(
        self,
        stream: StreamRef,
        me: str,
        start: Position,
        *,
        incarnation: str,
        read_by: str | None = None,
        config: ConsumerConfig,
        scan_interval: float,
        checkpoint_interval: float,
        latest_at: float,
        rng: Chance,
        now: Instant,
        clock: Callable[[], Instant] | None = None,
        kcl_failover: float | None = None,
        follows_kcl: bool = False,
        shares: StreamShares | None = None,
    ) -> None:
        self.stream: StreamRef = stream
        self._start: Position = start
        self._config: ConsumerConfig = config
        self._latest_at: float = latest_at
        self._scan_pace: ScanPace = _scan_pace_of(config, scan_interval)
        discovery = Discovery(stream, start, config.list_interval, rng, now)
        self.topology: Topology = Topology(discovery, config.if_recreated)
        self.trims: TrimWatch = TrimWatch()  # shared by the readers; finds records that expired unread
        self.view: LeaseView = LeaseView(_silence_of(config, kcl_failover))
        self._duplicates = DuplicateWorkers(Incarnation(me, incarnation, config.lease_duration, read_by))
        self._audit: CoverageAudit = CoverageAudit(config.list_interval)
        self._tokens: TokenFloor = TokenFloor(latest_at, now)
        self._max_leases: int | None = config.max_leases
        is_kcl = follows_kcl and kcl_failover is not None
        self.kcl: KclFleet | None = KclFleet(me, kcl_failover or 0.0, now) if is_kcl else None
        self._shares: StreamShares = StreamShares() if shares is None else shares
        self._shares.join(self)
        self._known: KnownLeases = KnownLeases()  # for the plans of the other streams
        self._is_known_old: bool = True
        self._asked: set[str] = set()  # the leases that were asked for since the last scan
        self._planner: Planner = self._make_planner(rng, now)
        self.held: HeldLeases = self._make_held(checkpoint_interval, clock)
        self._release_on_exit: ReleaseOnExit = ReleaseOnExit(self._duplicates.me)
        self._backoff: Backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LONGEST, rng)
        self._health: StoreHealth = StoreHealth(config.lease_duration, config.store_patience)
        self._emptied: int = 0  # the number of lost rows, reported once a listing shows that the stream is the same
        self._recreations: int = 0  # how many times the stream had been re-created at the last plan
        self._plan: dict[str, PlannedOperation | ExitOperation] = {}
        self._in_flight: dict[str, _Flight] = {}
        self._scan_sent_at: Instant | None = None
        self._scan_at: Instant = now
        self._has_scanned: bool = False
        self._rows_sent_at: Instant = -NEVER  # when the scan that returned the rows was sent
        self._waits_for_rows: bool = False  # whether the first rows of the group can be created only after a newer scan
        self._events: list[Event] = []
        self._alarm_at, self._is_closing = NEVER, False
        self.is_retiring: bool = False
        """Whether the worker gives up the stream, while it reads others."""

    def _make_held(self, checkpoint_interval: float, clock: Callable[[], Instant] | None) -> HeldLeases:
        return HeldLeases(
            self._duplicates,
            self.topology.graph,
            self._config,
            checkpoint_interval=checkpoint_interval,
            latest_at=self._latest_at,
            clock=clock,
            kcl=self.kcl,
        )

    def _make_planner(self, rng: Chance, now: Instant) -> Planner:
        is_by_load = self._config.assign_by == "load"
        return Planner(
            self.view,
            self.topology.graph,
            duplicates=self._duplicates,
            tokens=self._tokens,
            max_leases=self._config.max_leases,
            hand_over_timeout=self._config.hand_over_timeout,
            scan_pace=self._scan_pace,
            rng=rng,
            kcl=self.kcl,
            balancer=LoadBalancer(self.me, self._config.lease_duration, rng, now) if is_by_load else None,
            stream=self.stream.name,
        )

    # ---- queries

    @property
    def me(self) -> str:
        return self._duplicates.me.owner

    @property
    def is_ready(self) -> bool:
        """Whether the rows and the shards are known, and no operation of this worker is planned or in flight."""
        is_known = self._has_scanned and self.topology.is_settled and not self._waits_for_rows
        return is_known and not self._plan and not self._in_flight

    @property
    def is_store_down(self) -> bool:
        """Whether the last operation on the lease store failed."""
        return self._backoff.failures > 0

    @property
    def is_closed(self) -> bool:
        """Whether the worker has released every lease and nothing is in flight."""
        is_idle = not self._in_flight and self._scan_sent_at is None
        return self._is_closing and is_idle and not self.held.holdings and self._release_on_exit.is_over

    def known_leases(self, now: Instant) -> KnownLeases:
        """Return the leases of this stream, as they count in the plans of the worker's other streams."""
        if self._is_known_old and self._can_plan:
            self._is_known_old = False
            coming = {shard_id: flight.operation for shard_id, flight in self._in_flight.items()} | self._plan
            self._known = self._planner.known_leases(self.held.holdings, coming, self._asked, now)
        return self._known

    @property
    def kept_leases(self) -> int:
        """How many leases the worker holds and is not releasing."""
        return self.held.count_kept()

    # ---- commands

    def end(self, shard_id: str, children: Iterable[ChildShard], now: Instant) -> None:
        """End a shard, after all its records were delivered. ``children`` are its child shards."""
        graph = self.topology.graph
        graph.handle_children(children)
        self.held.end(shard_id, graph.listings)
        self._make_plan(now)

    def limit_leases(self, max_leases: int | None, now: Instant) -> None:
        """Change ``max_leases``. The worker releases the leases that exceed it, and takes leases up to it."""
        self._max_leases = max_leases
        self._planner.limit_leases(max_leases)
        self._shed(now)
        self._make_plan(now)

    def retire(self, now: Instant) -> None:
        """Give up the stream, while the worker goes on with other streams. The worker takes no more leases of it, and
        releases those that it holds: the user has as much time for the records in hand as with a hand-over. Then the
        coordinator closes.
        """
        self.is_retiring = True
        self._shares.leave(self)
        self._plan.clear()
        self._shed(now)

    def mark_missing(self, shard_id: str, now: Instant) -> None:
        """Called when the service does not know the shard of a held lease. A listing will show whether it is gone."""
        self.held.mark_missing(shard_id)
        self.topology.discovery.list_by(now)

    def close(self, *, is_clean: bool = True) -> None:
        """Release every lease (L5). Records that the user has not finished by now will be delivered again.

        If the close is clean and the config says ``keep_leases``, the leases are kept for the worker's restart.
        """
        self._is_closing = True
        self._shares.leave(self)
        self._release_on_exit.keeps_leases = is_clean and self._config.keep_leases
        if self.kcl is not None:
            self.kcl.close()
        self._plan.clear()
        for shard_id in self.held.holdings:
            self._leave(shard_id)
        self._give_back()
        self.trims.handle_no_summary()

    # ---- outputs, time

    def poll_operation(self, now: Instant) -> StoreRequest | None:
        """Return the next request for the lease store."""
        self._notice_stall(now)
        self.held.handle_time(now)
        self._follow_changes(now)
        if self.is_retiring and not self._is_closing and not self.held.holdings:
            self.close(is_clean=False)
        if now >= self._scan_at and self._scan_sent_at is None and not self._is_closing:
            self._scan_sent_at = now
            return ScanLeases()
        if len(self._in_flight) >= _MAX_IN_FLIGHT or self._waits_for_kcl:
            return None
        if (held := self.held.poll_operation(self._in_flight, now)) is not None:
            self._in_flight[held.operation.shard_id] = _Flight(held.operation, now, held.holding)
            return held.operation
        if (given_back := self._release_on_exit.poll_operation(self._in_flight, now)) is not None:
            self._plan[given_back.shard_id] = given_back
        while self._plan:
            planned = self._plan.pop(next(iter(self._plan)))
            # An operation of an older plan may have been answered after this plan was made, so we may hold the lease.
            if planned.shard_id not in self._in_flight and planned.shard_id not in self.held.holdings:
                self._in_flight[planned.shard_id] = _Flight(planned, now, None)
                if isinstance(planned, AskHandOver):
                    self._asked.add(planned.shard_id)
                return planned
        return None

    def poll_kcl_request(self, now: Instant) -> KclRequest | None:
        """Return the next request for the rows that a KCL fleet keeps beside its leases.

        The shell answers with one of the inputs of ``kcl``.
        """
        return None if self.kcl is None else self.kcl.poll_request(self._tokens.service_time(now), now)

    def poll_request(self, now: Instant) -> ListShards | DescribeStreamSummary | None:
        """Return the next discovery request for Kinesis. Readers request records themselves."""
        if self._is_closing:
            return None
        self.topology.discovery.describe_by(self.trims.summary_by)
        request = self.topology.poll_request(self.view.rows, now)
        if isinstance(request, DescribeStreamSummary):
            self.trims.handle_requested(now)
        return request

    def take_events(self) -> list[Event]:
        events = [*self._events, *self.held.take_events(), *self.topology.take_events(), *self.trims.take_events()]
        self._events = []
        return [*events, *self._duplicates.take_events(), *self._audit.take_events()]

    def next_deadline(self) -> Instant:
        """Return the latest time at which to poll again."""
        self._alarm_at = NEVER
        if not self._is_closing:
            scan_at = self._scan_at if self._scan_sent_at is None else NEVER
            self._alarm_at = min(scan_at, self.topology.next_deadline())
        if self.kcl is not None:
            self._alarm_at = min(self._alarm_at, self.kcl.next_deadline())
        self._alarm_at = min(self._alarm_at, self.held.next_lapse())
        if len(self._in_flight) < _MAX_IN_FLIGHT and not self._waits_for_kcl:
            self._alarm_at = min(self._alarm_at, self.held.next_work(), self._release_on_exit.next_deadline())
            if self._plan:
                return -NEVER
        return self._alarm_at

    # ---- inputs from the store

    def handle_rows(self, rows: Iterable[Lease], now: Instant) -> None:
        assert self._scan_sent_at is not None, "L1: a scan is in flight"
        self._handle_store_answer(LIST)
        self.view.handle_rows(rows, self._scan_sent_at, now)
        # The view may have kept a newer row that we wrote ourselves. So note the rows of the view instead of the rows
        # of the scan.
        for row in self.view.rows.values():
            self._note_row(row)
        if self.view.take_loss():
            self.topology.distrust(now)
        self._emptied += self.view.take_emptied()
        self._asked.clear()
        self._is_known_old = True
        self._rows_sent_at, self._scan_sent_at = self._scan_sent_at, None
        self._scan_at = now + self._scan_pace.interval(len(self.view.rows))
        self._has_scanned = True
        self.held.handle_rows(self.view.rows, self._in_flight, now)
        if self.kcl is not None:
            self.kcl.handle_leases(self.view.rows, now)
        self.held.has_changed = False  # this scan has shown which leases can be taken now
        if self.topology.is_settled:
            self._audit.handle_rows(self.view.rows, self.topology.graph, now)
        self._make_plan(now)
        if self._is_closing:
            self._give_back()

    def handle_scan_failed(self, failure: Failure, now: Instant) -> None:
        assert self._scan_sent_at is not None, "L1: a scan is in flight"
        self._scan_sent_at = None
        # A store that refuses the very first scan is probably misconfigured. Fail at once, so that the user sees the
        # error. Later, the store may recover, and ``StoreHealth`` decides.
        if not self._has_scanned and not failure.retryable:
            self._events.append(ConsumerFailed(LIST, failure))
        self._scan_at = self._handle_store_failure(LIST, failure, now)

    def handle_applied(self, operation: LeaseOperation, result: Lease | Refused | None, now: Instant) -> None:
        self._is_known_old = True
        flight = self._end_flight(operation)
        self._handle_store_answer(WRITE)
        row = result.current if isinstance(result, Refused) else result
        self.view.handle_written(operation.shard_id, row, now)
        if row is not None:
            self._note_row(row)
        # A response without a row shows that the row is gone. Unfinished rows disappear only if a process deleted them
        # because the stream was re-created, or if the store lost them.
        if self.view.take_loss() and not isinstance(operation, DeleteLease):
            self.topology.distrust(now)
            self._make_plan(now)
        if flight.holding is not None:
            self.held.handle_applied(flight.holding, result, now)
            self._follow_changes(now)
        elif isinstance(operation, TakeLease) and isinstance(result, Lease):
            self.held.handle_taken(result, flight.sent_at, now, self.view.rows)
            self._shed(now)  # the limit may have been lowered while the take was in flight
            if self._is_closing:
                self._leave(operation.shard_id)
        elif self._is_closing:
            self._release_on_exit.handle_applied(operation, result)
        elif isinstance(result, Refused) and self.kcl is not None and self.kcl.handle_refused(operation.shard_id):
            self._make_plan(now)
        elif isinstance(operation, CreateLease) and not self._is_creating_rows:
            self._make_plan(now)  # no new scan is needed to take the leases that were just created

    def handle_operation_failed(self, operation: LeaseOperation, failure: Failure, now: Instant) -> None:
        """Handle a failed operation, which may have been applied."""
        self._is_known_old = True
        flight = self._end_flight(operation)
        retry_at = self._handle_store_failure(WRITE, failure, now)
        if flight.holding is not None:
            self.held.handle_failure(flight.holding, retry_at, now, maybe_received=failure.maybe_received)
        elif self._is_closing:
            self._release_on_exit.handle_failure(operation, retry_at)
        else:
            self._scan_at = min(self._scan_at, retry_at)  # this scan plans the operation again

    # ---- inputs from Kinesis

    def handle_shards(self, response: ListShardsResponse, now: Instant) -> None:
        self.topology.handle_page(response, now)
        if self.topology.take_news():
            self.held.handle_listing()
            self._make_plan(now)
            # Deletions are planned only after a listing, because only a listing can show that a shard has left the
            # stream.
            if self._can_plan:
                for operation in self._planner.plan_deletions(self.held.holdings, now):
                    self._plan.setdefault(operation.shard_id, operation)

    def handle_service_time(self, service_time: float, now: Instant) -> None:
        """Correct the estimate of the service's time after a response. ``service_time`` is in seconds since 1970."""
        self._tokens.handle_service_time(service_time, now)

    def handle_summary(self, summary: StreamSummary, now: Instant) -> None:
        self.topology.handle_summary(summary, now)
        self.trims.handle_summary(summary.retention_hours, self.topology.discovery.described_at)

    def handle_request_failed(self, failure: Failure, now: Instant) -> None:
        self.topology.handle_failure(failure, now)
        if self.topology.discovery.has_no_summary:
            self.trims.handle_no_summary()

    # ---- internal

    @property
    def _can_plan(self) -> bool:
        return self._has_scanned and self.topology.is_settled and not self._is_closing and not self.is_retiring

    @property
    def _waits_for_kcl(self) -> bool:
        """Whether the leases are not released yet, because the leader would assign them to this worker again."""
        return self._is_closing and self.kcl is not None and not self.kcl.has_left

    @property
    def _is_creating_rows(self) -> bool:
        """Whether the creation of a row is planned or in flight."""
        waiting = [*self._plan.values(), *(flight.operation for flight in self._in_flight.values())]
        return any(isinstance(operation, CreateLease) for operation in waiting)

    def _make_plan(self, now: Instant) -> None:
        # If the stream was re-created, the rows of the old stream are deleted before anything else is planned. The
        # group begins again after a new listing and a scan that returns none of these rows.
        foreign = self.topology.take_foreign()
        for row in foreign:
            self.held.lose(row.shard_id, "the stream was re-created")
        self._plan = {row.shard_id: DeleteLease(row.shard_id, row.counter) for row in foreign}
        self._is_known_old = True
        if not self._can_plan:
            return
        self._report_emptied()
        start = GroupStart(self._start, self._latest_at, self.topology.matching, self.view.begun_at)
        held, ending = self.held.holdings, self.held.ending
        if self._shares.is_shared:
            operations = self._planner.plan(held, ending, start, now, self._shares.others(self, now))
        else:
            operations = self._planner.plan(held, ending, start, now)
        if any(isinstance(flight.operation, AskHandOver) for flight in self._in_flight.values()):
            # The rows do not show requests that are still in flight, so the plan asks for the same number of leases
            # again.
            operations = [operation for operation in operations if not isinstance(operation, AskHandOver)]
        self._plan = {operation.shard_id: operation for operation in self._postpone_rows_at_latest(operations, now)}
        # A row whose shard is unknown was created by a worker with a newer listing. List the shards again.
        unknown_at = NEVER if self.topology.graph.covers(self.view.rows) else now
        if (list_at := min(self.held.handle_children(self.view.rows), unknown_at)) < NEVER:
            self.topology.discovery.list_by(max(now, list_at))

    def _leave(self, shard_id: str) -> None:
        """Begin to release a lease on exit, or to keep it for the restart."""
        self.held.leave(shard_id, keep=self._release_on_exit.keeps_leases)

    def _shed(self, now: Instant) -> None:
        """Begin to release the leases that exceed ``max_leases``, or all leases of a stream that is given up."""
        self._is_known_old = True
        if self.is_retiring:
            self.held.shed(0, now)
        elif self._max_leases is not None:
            self.held.shed(max(0, self._max_leases - self._shares.kept_by_others(self)), now)

    def _report_emptied(self) -> None:
        """Report that the store has lost all rows, unless a worker deleted them because the stream was re-created."""
        if self._emptied and self._recreations == self.topology.recreations:
            self._events.append(ProgressLost(self._emptied))
        self._emptied, self._recreations = 0, self.topology.recreations

    def _postpone_rows_at_latest(self, operations: list[PlannedOperation], now: Instant) -> list[PlannedOperation]:
        """Postpone the creation of rows at LATEST while the known rows are older than the listing.

        Another worker may have begun the group in the meantime, with a shard that is closed by now. We would not see
        the row of this shard, and would create rows for its open children as for a new group. The children would then
        be read before their parent is finished (L3). Also, before the first commit, the rows show the time from which
        the group reads (L6), and therefore the shards with which the group begins.

        While rows at LATEST still have to be created, no operation other than the creation of rows is sent.
        """
        at_latest = [
            operation
            for operation in operations
            if isinstance(operation, CreateLease) and operation.lease.latest_at is not None
        ]
        if at_latest and self.view.rows:
            self.topology.match_at(self.view.begun_at, now)
        is_known = self._rows_sent_at >= self.topology.listed_at and self.topology.is_settled
        self._waits_for_rows = bool(at_latest) and not is_known
        if not at_latest:
            return operations
        if self._waits_for_rows:
            self._scan_at = min(self._scan_at, now)
            operations = [operation for operation in operations if operation not in at_latest]
        return [operation for operation in operations if isinstance(operation, CreateLease)]

    def _give_back(self) -> None:
        """Find the rows that name this worker although it does not hold their leases, to give them back on exit."""
        self._release_on_exit.handle_rows(self.view.rows.values(), {*self.held.holdings, *self._in_flight})

    def _note_row(self, row: Lease) -> None:
        self._tokens.handle_row(row)
        self._duplicates.handle_row(row)

    def _follow_changes(self, now: Instant) -> None:
        """Scan immediately after a lease was lost or released, because the shard's children may now be readable."""
        if self.held.has_changed:
            self.held.has_changed = False
            self._is_known_old = True
            self._scan_at = min(self._scan_at, now)

    def _end_flight(self, operation: LeaseOperation) -> _Flight:
        flight = self._in_flight.pop(operation.shard_id)
        assert flight.operation == operation, "L1: each operation is answered once"
        return flight

    def _handle_store_answer(self, operation: str) -> None:
        self._health.handle_answer(operation)
        if self._backoff.failures:
            self._events.append(StoreRecovered(self._backoff.failures))
            self._backoff.reset()

    def _handle_store_failure(self, operation: str, failure: Failure, now: Instant) -> Instant:
        """Return the time of the next attempt. A delay that the store requests is respected up to a third of the lease
        duration.
        """
        delay = self._backoff.next_delay()
        gives_up_at = self._health.handle_failure(operation, failure, now)
        self._events.append(StoreFailed(failure, self._backoff.failures, gives_up_at))
        if self._has_scanned and self._health.give_up(gives_up_at, now):
            self._events.append(ConsumerFailed(operation, failure))
        if self._health.is_given_up:
            return NEVER
        return now + max(delay, min(failure.retry_after or 0.0, self._config.lease_duration / 3))

    def _notice_stall(self, now: Instant) -> None:
        # ``next_deadline`` noted when the shell should have called. If the computer was suspended or the event loop was
        # blocked, the call is late.
        late = now - self._alarm_at
        if _STALL_SHARE * self._config.lease_duration < late < NEVER:
            self._events.append(Stalled(late))
        self._alarm_at = NEVER


def _silence_of(config: ConsumerConfig, kcl_failover: float | None) -> float:
    """Return how long a live owner that states no lease duration may be silent."""
    return config.lease_duration if kcl_failover is None else longest_silence(kcl_failover)


def _scan_pace_of(config: ConsumerConfig, scan_interval: float) -> ScanPace:
    """Return the pace of the scans. ``scan_interval`` is the store's default."""
    # With fewer than two scans per lease duration, a live owner would seem dead between two scans.
    longest = config.lease_duration / 2
    return ScanPace(
        min(config.scan_interval or scan_interval, longest), longest=longest if config.scan_interval is None else 0.0
    )
