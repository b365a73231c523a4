"""What does this worker write, ask and tell, so that the group shares the stream?

The machine in the middle. It scans the lease store, keeps the topology (``Topology``), plans with the others
(``Planner``), carries the operations of the held leases (``HeldLeases``), and tells the shell what to read.

The shell sends what ``poll_operation`` (to the lease store) and ``poll_request`` (to Kinesis) give, answers each by
exactly one ``handle_*``, follows ``take_events``, and calls again whenever something happened or ``next_deadline`` has
come. What the user was handed, and is done with, goes to ``held``.

Invariants (docs/guarantees.md):

- L1: one operation per lease in flight, and one scan.
- L2: what was not renewed in time is lost, whatever the store would say, also after a suspension (the clock counts it).
- L3: only what may be read is taken; the rows of children are there before SHARD_END is written.
- L4: a lost lease is told, and nothing more is written for it. Reading goes on through an outage of the store until the
  leases lapse, and starts again after it.
- L5: ``close`` commits what is acknowledged, lets go of every lease, and asks for none any more (``Farewell``).
- L6: a row at LATEST is read from the time that it was pinned to. Who completes a group begins when it was begun.
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
from shardline.core.consumer.duplicate_workers import Twins
from shardline.core.consumer.group_rows import GroupStart
from shardline.core.consumer.held_leases import HeldLeases
from shardline.core.consumer.lease_phases import Holding
from shardline.core.consumer.lease_view import LeaseView
from shardline.core.consumer.planner import PlannedOperation, Planner
from shardline.core.consumer.release_on_exit import Farewell, FarewellOperation
from shardline.core.consumer.store_outages import LIST, WRITE, StoreHealth
from shardline.core.consumer.token_floor import TokenFloor
from shardline.core.consumer.topology import Topology
from shardline.core.consumer.trim_watch import TrimWatch
from shardline.core.failures import Failure
from shardline.core.leases import AskHandOver, CreateLease, DeleteLease, LeaseOperation, Refused, TakeLease
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.model.lease import Incarnation, Lease
from shardline.model.position import Position
from shardline.model.shard import ChildShard
from shardline.model.stream import StreamRef

_MAX_IN_FLIGHT: Final = 64
_BACKOFF_FIRST: Final = 0.1
_BACKOFF_LONGEST: Final = 1.0
_STALL_SHARE: Final = 0.25  # of a lease duration: late, and still in time to say so
_KCL_DISCOVERY: Final = 10.0  # within so many seconds a KCL finds out that a lease was assigned to it


@final
@dataclass(frozen=True, slots=True)
class ScanLeases:
    """List every row; answered by ``handle_rows`` or ``handle_scan_failed``."""


StoreRequest: TypeAlias = ScanLeases | LeaseOperation


class _Flight(NamedTuple):
    operation: LeaseOperation
    sent_at: Instant
    holding: Holding | None


@final
class Coordinator:
    """One worker of a group.

    Args:
        stream: what to read.
        me: the worker's name, unique in its group.
        incarnation: an id that no other consumer has, nor an earlier one of this name.
        start: where a new group starts.
        config: the settings.
        scan_interval: the store's, unless the config says otherwise.
        checkpoint_interval: the same.
        latest_at: the service's time now, less 1 s: what LATEST means (L6), and the first floor of tokens.
        kcl_failover: on a KCL's table, the KCL's failover time: it judges the owners that state no lease duration.
        chance: a ``random.Random``.
        now: the time.
        clock: the shell's, for the grants that the user's code may ask.
    """

    def __init__(
        self,
        stream: StreamRef,
        me: str,
        start: Position,
        *,
        incarnation: str,
        config: ConsumerConfig,
        scan_interval: float,
        checkpoint_interval: float,
        latest_at: float,
        chance: Chance,
        now: Instant,
        clock: Callable[[], Instant] | None = None,
        kcl_failover: float | None = None,
    ) -> None:
        self._start: Position = start
        self._config: ConsumerConfig = config
        self._latest_at: float = latest_at
        # Whose counter is looked at less than twice in a lease duration would seem to be dead between two looks.
        self._scan_interval: float = min(config.scan_interval or scan_interval, config.lease_duration / 2)
        discovery = Discovery(stream, start, config.list_interval, chance, now)
        self.topology: Topology = Topology(discovery, config.if_recreated)
        self.trims: TrimWatch = TrimWatch()  # shared by the readers: what retention may have removed unread
        self.view: LeaseView = LeaseView(config.lease_duration if kcl_failover is None else _silence_of(kcl_failover))
        self._twins: Twins = Twins(Incarnation(me, incarnation, config.lease_duration))
        self._tokens: TokenFloor = TokenFloor(latest_at, now)
        self._planner: Planner = Planner(
            self.view,
            self.topology.graph,
            twins=self._twins,
            tokens=self._tokens,
            max_leases=config.max_leases,
            hand_over_timeout=config.hand_over_timeout,
            scan_interval=self._scan_interval,
            chance=chance,
        )
        self.held: HeldLeases = HeldLeases(
            self._twins,
            self.topology.graph,
            config,
            checkpoint_interval=checkpoint_interval,
            latest_at=latest_at,
            clock=clock,
        )
        self._farewell: Farewell = Farewell(self._twins.me)
        self._backoff: Backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LONGEST, chance)
        self._health: StoreHealth = StoreHealth(config.lease_duration, config.store_patience)
        self._emptied: int = 0  # how many rows the store has lost, until it is known that the stream is the same
        self._recreations: int = 0  # how often the stream was re-created, by the last plan
        self._plan: dict[str, PlannedOperation | FarewellOperation] = {}
        self._in_flight: dict[str, _Flight] = {}
        self._scan_sent_at: Instant | None = None
        self._scan_at: Instant = now
        self._has_scanned: bool = False
        self._rows_sent_at: Instant = -NEVER  # when the scan that the rows are from was begun
        self._waits_for_rows: bool = False  # whether newer ones have to come before the group can begin
        self._events: list[Event] = []
        self._alarm_at: Instant = NEVER
        self._is_closing: bool = False

    # ---- what is so

    @property
    def me(self) -> str:
        """The worker's name."""
        return self._twins.me.owner

    @property
    def is_ready(self) -> bool:
        """Whether the rows and the shards are known, and nothing that is ours to do is left undone."""
        is_known = self._has_scanned and self.topology.is_settled and not self._waits_for_rows
        return is_known and not self._plan and not self._in_flight

    @property
    def is_store_down(self) -> bool:
        """Whether the lease store failed when it was last asked."""
        return self._backoff.failures > 0

    @property
    def is_closed(self) -> bool:
        """Whether every lease is let go of, and nothing is under way."""
        is_idle = not self._in_flight and self._scan_sent_at is None
        return self._is_closing and is_idle and not self.held.holdings and self._farewell.is_over

    # ---- commands

    def end(self, shard_id: str, children: Iterable[ChildShard], now: Instant) -> None:
        """All records of the shard were handed to the user; these shards follow it."""
        graph = self.topology.graph
        graph.handle_children(children)
        self.held.end(shard_id, graph.listings)
        self._make_plan(now)

    def lose_sight(self, shard_id: str, now: Instant) -> None:
        """The service denies to know the shard of a held lease: look whether it is gone."""
        self.held.lose_sight(shard_id)
        self.topology.discovery.list_by(now)

    def close(self) -> None:
        """Let go of everything (L5). What the user has is done by now, or will come again."""
        self._is_closing = True
        self._plan.clear()
        for shard_id in self.held.holdings:
            self.held.leave(shard_id)
        self._give_back()
        self.trims.handle_no_summary()

    # ---- outputs, time

    def poll_operation(self, now: Instant) -> StoreRequest | None:
        """What to send to the lease store now."""
        self._notice_stall(now)
        self.held.handle_time(now)
        self._follow_changes(now)
        if now >= self._scan_at and self._scan_sent_at is None and not self._is_closing:
            self._scan_sent_at = now
            return ScanLeases()
        if len(self._in_flight) >= _MAX_IN_FLIGHT:
            return None
        if (held := self.held.poll_operation(self._in_flight, now)) is not None:
            self._in_flight[held.operation.shard_id] = _Flight(held.operation, now, held.holding)
            return held.operation
        if (given_back := self._farewell.poll_operation(self._in_flight, now)) is not None:
            self._plan[given_back.shard_id] = given_back
        while self._plan:
            planned = self._plan.pop(next(iter(self._plan)))
            # What an older plan began may have come in between: the lease may be ours by now.
            if planned.shard_id not in self._in_flight and planned.shard_id not in self.held.holdings:
                self._in_flight[planned.shard_id] = _Flight(planned, now, None)
                return planned
        return None

    def poll_request(self, now: Instant) -> ListShards | DescribeStreamSummary | None:
        """What to send to Kinesis now: discovery only, for the readers ask for records themselves."""
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
        return [*events, *self._twins.take_events()]

    def next_deadline(self) -> Instant:
        """When to call again, if nothing happens before."""
        self._alarm_at = NEVER
        if not self._is_closing:
            scan_at = self._scan_at if self._scan_sent_at is None else NEVER
            self._alarm_at = min(scan_at, self.topology.next_deadline())
        self._alarm_at = min(self._alarm_at, self.held.next_lapse())
        if len(self._in_flight) < _MAX_IN_FLIGHT:
            self._alarm_at = min(self._alarm_at, self.held.next_work(), self._farewell.next_deadline())
            if self._plan:
                return -NEVER
        return self._alarm_at

    # ---- inputs: the store

    def handle_rows(self, rows: Iterable[Lease], now: Instant) -> None:
        """The scan was answered."""
        assert self._scan_sent_at is not None, "L1: there was one"
        self._handle_store_answer(LIST)
        self.view.handle_rows(rows, self._scan_sent_at, now)
        for row in self.view.rows.values():
            self._see(row)
        if self.view.take_loss():
            self.topology.distrust(now)
        self._emptied += self.view.take_emptied()
        self._rows_sent_at, self._scan_sent_at = self._scan_sent_at, None
        self._scan_at = now + self._scan_interval
        self._has_scanned = True
        self.held.handle_rows(self.view.rows, self._in_flight, now)
        self.held.has_changed = False  # this scan has shown what follows
        self._make_plan(now)
        if self._is_closing:
            self._give_back()

    def handle_scan_failed(self, failure: Failure, now: Instant) -> None:
        assert self._scan_sent_at is not None, "L1: there was one"
        self._scan_sent_at = None
        if not self._has_scanned and not failure.retryable:
            self._events.append(ConsumerFailed(LIST, failure))
        self._scan_at = self._handle_store_failure(LIST, failure, now)

    def handle_applied(self, operation: LeaseOperation, result: Lease | Refused | None, now: Instant) -> None:
        """The store's answer to an operation."""
        flight = self._land(operation)
        self._handle_store_answer(WRITE)
        row = result.current if isinstance(result, Refused) else result
        self.view.handle_written(operation.shard_id, row, now)
        if row is not None:
            self._see(row)
        if self.view.take_loss() and not isinstance(operation, DeleteLease):
            self.topology.distrust(now)
            self._make_plan(now)
        if flight.holding is not None:
            self.held.handle_applied(flight.holding, result, now)
            self._follow_changes(now)
        elif isinstance(operation, TakeLease) and isinstance(result, Lease):
            self.held.handle_taken(result, flight.sent_at, now)
            if self._is_closing:
                self.held.leave(operation.shard_id)
        elif self._is_closing:
            self._farewell.handle_applied(operation, result)
        elif isinstance(operation, CreateLease) and not self._creates:
            self._make_plan(now)  # no need to wait for a scan: what was created can be taken

    def handle_operation_failed(self, operation: LeaseOperation, failure: Failure, now: Instant) -> None:
        """It failed, and may or may not have been applied."""
        flight = self._land(operation)
        retry_at = self._handle_store_failure(WRITE, failure, now)
        if flight.holding is not None:
            self.held.handle_failure(flight.holding, retry_at, now, maybe_received=failure.maybe_received)
        elif self._is_closing:
            self._farewell.handle_failure(operation, retry_at)
        else:
            self._scan_at = min(self._scan_at, retry_at)  # it is planned anew then, and not a whole interval later

    # ---- inputs: Kinesis

    def handle_shards(self, response: ListShardsResponse, now: Instant) -> None:
        """A page of a listing."""
        self.topology.handle_page(response, now)
        if self.topology.take_news():
            self.held.handle_listing()
            self._make_plan(now)
            if self._can_plan:
                for operation in self._planner.plan_deletions(self.held.holdings, now):
                    self._plan.setdefault(operation.shard_id, operation)

    def handle_service_time(self, service_time: float, now: Instant) -> None:
        """The service said what time it is, in seconds since 1970."""
        self._tokens.handle_service_time(service_time, now)

    def handle_summary(self, summary: StreamSummary, now: Instant) -> None:
        self.topology.handle_summary(summary, now)
        self.trims.handle_summary(summary.retention_hours, self.topology.discovery.described_at)

    def handle_request_failed(self, failure: Failure, now: Instant) -> None:
        self.topology.handle_failure(failure, now)
        if self.topology.discovery.has_no_summary:
            self.trims.handle_no_summary()

    # ---- within

    @property
    def _can_plan(self) -> bool:
        return self._has_scanned and self.topology.is_settled and not self._is_closing

    @property
    def _creates(self) -> bool:
        """Whether rows are still to be created."""
        waiting = [*self._plan.values(), *(flight.operation for flight in self._in_flight.values())]
        return any(isinstance(operation, CreateLease) for operation in waiting)

    def _make_plan(self, now: Instant) -> None:
        foreign = self.topology.take_foreign()
        for row in foreign:
            self.held.lose(row.shard_id, "the stream was made anew")
        self._plan = {row.shard_id: DeleteLease(row.shard_id, row.counter) for row in foreign}
        if not self._can_plan:
            return
        self._tell_emptied()
        start = GroupStart(self._start, self._latest_at, self.topology.matching, self.view.begun_at)
        operations = self._planner.plan(self.held.holdings, self.held.ending, start, now)
        if any(isinstance(flight.operation, AskHandOver) for flight in self._in_flight.values()):
            # What is asked for and not answered yet is in no row: the plan would ask for as many again.
            operations = [operation for operation in operations if not isinstance(operation, AskHandOver)]
        self._plan = {operation.shard_id: operation for operation in self._without_guesses(operations, now)}
        unknown_at = NEVER if self.topology.graph.covers(self.view.rows) else now
        if (list_at := min(self.held.handle_children(self.view.rows), unknown_at)) < NEVER:
            self.topology.discovery.list_by(max(now, list_at))

    def _tell_emptied(self) -> None:
        """The store has lost all rows. If the stream was re-created, some worker has deleted them, as it should."""
        if self._emptied and self._recreations == self.topology.recreations:
            self._events.append(ProgressLost(self._emptied))
        self._emptied, self._recreations = 0, self.topology.recreations

    def _without_guesses(self, operations: list[PlannedOperation], now: Instant) -> list[PlannedOperation]:
        """Without the rows at LATEST, if the rows that we know are older than the listing; nothing comes before them.

        The group may have begun meanwhile with a shard that is closed by now: we would not know of its row, and would
        take its open children for the beginning of a new group, to be read before it is finished (L3). And as long as
        nobody commits, the rows tell since when the group reads (L6), and so which shards it begins with.
        """
        guesses = [one for one in operations if isinstance(one, CreateLease) and one.lease.latest_at is not None]
        if guesses and self.view.rows:
            self.topology.match_at(self.view.begun_at, now)
        is_known = self._rows_sent_at >= self.topology.listed_at and self.topology.is_settled
        self._waits_for_rows = bool(guesses) and not is_known
        if not guesses:
            return operations
        if self._waits_for_rows:
            self._scan_at = min(self._scan_at, now)
            operations = [operation for operation in operations if operation not in guesses]
        return [operation for operation in operations if isinstance(operation, CreateLease)]

    def _give_back(self) -> None:
        """See which rows name us, and should not: we leave."""
        self._farewell.handle_rows(self.view.rows.values(), {*self.held.holdings, *self._in_flight})

    def _see(self, row: Lease) -> None:
        self._tokens.handle_row(row)
        self._twins.handle_row(row)

    def _follow_changes(self, now: Instant) -> None:
        """A lease went: look at once what follows, children that can be read, say."""
        if self.held.has_changed:
            self.held.has_changed = False
            self._scan_at = min(self._scan_at, now)

    def _land(self, operation: LeaseOperation) -> _Flight:
        flight = self._in_flight.pop(operation.shard_id)
        assert flight.operation == operation, "L1: one answer to each operation"
        return flight

    def _handle_store_answer(self, operation: str) -> None:
        self._health.handle_answer(operation)
        if self._backoff.failures:
            self._events.append(StoreRecovered(self._backoff.failures))
            self._backoff.reset()

    def _handle_store_failure(self, operation: str, failure: Failure, now: Instant) -> Instant:
        """When to try again: what the store asks for is kept, but not until our leases are over."""
        delay = self._backoff.next_delay()
        gives_up_at = self._health.handle_failure(operation, failure, now)
        self._events.append(StoreFailed(failure, self._backoff.failures, gives_up_at))
        if self._has_scanned and self._health.give_up(gives_up_at, now):
            self._events.append(ConsumerFailed(operation, failure))
        if self._health.is_given_up:
            return NEVER
        return now + max(delay, min(failure.retry_after or 0.0, self._config.lease_duration / 3))

    def _notice_stall(self, now: Instant) -> None:
        late = now - self._alarm_at
        if _STALL_SHARE * self._config.lease_duration < late < NEVER:
            self._events.append(Stalled(late))
        self._alarm_at = NEVER


def _silence_of(kcl_failover: float) -> float:
    """For how long a KCL may be silent: it assigns leases every two failover times, and then has to discover that."""
    return 2 * kcl_failover + _KCL_DISCOVERY
