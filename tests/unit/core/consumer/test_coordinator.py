"""L1 to L6 are the invariants of ``shardline.core.consumer.coordinator``. The stream is drawn in ``conftest``."""

from random import Random

import pytest

from shardline.codec.shapes import (
    HashKeyRangeShape,
    ListShardsResponse,
    SequenceNumberRangeShape,
    ShardShape,
    StreamSummary,
)
from shardline.core.clock import NEVER
from shardline.core.consumer import coordinator as module
from shardline.core.consumer.config import ConsumerConfig
from shardline.core.consumer.coordinator import Coordinator, ScanLeases
from shardline.core.consumer.events import (
    ConsumerFailed,
    HandOverAsked,
    LeaseGained,
    LeaseLost,
    LeaseReleased,
    ListingFailed,
    ShardTrimmed,
    Stalled,
    StoreFailed,
    StoreRecovered,
    StreamRecreated,
    WorkerIdShared,
)
from shardline.core.failures import Failure, FailureKind
from shardline.core.leases import (
    AskHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    Refused,
    RenewLease,
    TakeLease,
    apply,
)
from shardline.core.requests import DescribeStreamSummary, ListShards, ShardFilter
from shardline.model.hashing import HashRange
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_timestamp
from shardline.model.record import Record
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard
from shardline.model.stream import StreamRef

DOWN = Failure(FailureKind.TRANSIENT, "Down", "the store is down", maybe_received=False)
DENIED = Failure(FailureKind.DENIED, "Denied", "no", 400)


def shape(shard):
    ending = shard.ending_sequence_number
    return ShardShape(
        shard.shard_id,
        HashKeyRangeShape(str(shard.hash_range.start), str(shard.hash_range.end)),
        SequenceNumberRangeShape(str(shard.starting_sequence_number), None if ending is None else str(ending)),
        shard.parent_id,
        shard.adjacent_parent_id,
    )


def record(number):
    return Record(b"x", "k", sequence_number=str(number))


class World:
    """A store, a stream, one clock, and workers on them."""

    def __init__(self, shards):
        self.now = 100.0
        self.rows = {}
        self.shards = list(shards)
        self.created_at = 1.0
        self.workers = []
        self.down = False
        self.open_then = None  # shards that were open at the time that is asked for: all, if nothing is said

    def worker(self, name="me", start=TRIM_HORIZON, kcl_failover=None, incarnation="first", **config):
        worker = Worker(self, name, start, ConsumerConfig(**config), kcl_failover, incarnation)
        self.workers.append(worker)
        return worker

    def run(self, seconds):
        """Everything is answered at once."""
        end = self.now + seconds
        while True:
            while sum(worker.pump() for worker in self.workers):
                pass
            following = min(worker.machine.next_deadline() for worker in self.workers)
            if following > end:
                break
            self.now = max(self.now + 0.001, following)
        self.now = end

    def apply(self, operation):
        result = apply(self.rows.get(operation.shard_id), operation)
        if result is None:
            self.rows.pop(operation.shard_id, None)
        elif not isinstance(result, Refused):
            self.rows[operation.shard_id] = result
        return result


class Worker:
    def __init__(self, world, name, start, config, kcl_failover, incarnation):
        self.world = world
        self.machine = Coordinator(
            StreamRef("s"),
            name,
            start,
            incarnation=incarnation,
            config=config,
            scan_interval=0.5,
            checkpoint_interval=1.0,
            latest_at=50.0,
            chance=Random(name),
            now=world.now,
            clock=lambda: world.now,
            kcl_failover=kcl_failover,
        )
        self.sent = []
        self.events = []

    def pump(self):
        """Send and answer everything that is due."""
        world, machine, busy = self.world, self.machine, False
        while (operation := machine.poll_operation(world.now)) is not None:
            busy = True
            self.sent.append(operation)
            self.answer(operation)
        while (request := machine.poll_request(world.now)) is not None:
            busy = True
            self.sent.append(request)
            if isinstance(request, DescribeStreamSummary):
                summary = StreamSummary(name="s", arn="a", status="ACTIVE", created_at=world.created_at)
                machine.handle_summary(summary, world.now)
            else:
                wanted = world.open_then if request.shard_filter else None
                found = [shard for shard in world.shards if wanted is None or shard.shard_id in wanted]
                machine.handle_shards(ListShardsResponse([shape(shard) for shard in found]), world.now)
        for event in machine.take_events():
            self.events.append(event)
            if isinstance(event, HandOverAsked):  # the user is done at once
                machine.held.leave(event.shard_id)
        return busy

    def answer(self, operation):
        world, machine = self.world, self.machine
        if isinstance(operation, ScanLeases):
            if world.down:
                machine.handle_scan_failed(DOWN, world.now)
            else:
                machine.handle_rows(list(world.rows.values()), world.now)
        elif world.down:
            machine.handle_operation_failed(operation, DOWN, world.now)
        else:
            machine.handle_applied(operation, world.apply(operation), world.now)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def shards(self):
        return {int(shard_id[-3:]) for shard_id in self.machine.held.holdings}


@pytest.fixture
def world(stream):
    return World(stream.all)


def test_a_new_group_reads_its_first_shards_at_once(world, stream):
    worker = world.worker()
    world.run(0.0)
    assert worker.shards == {0, 1, 2, 3, 4, 5}
    assert {event.start for event in worker.of(LeaseGained)} == {TRIM_HORIZON}
    assert worker.machine.is_ready
    assert all(row.owner == "me" for row in world.rows.values())


def test_l6_at_latest_the_open_shards_are_read_from_now(world):
    worker = world.worker(start=LATEST)
    world.run(0.0)
    assert worker.shards == {4, 8, 9, 10}
    assert {event.start for event in worker.of(LeaseGained)} == {at_timestamp(50.0)}


def test_l3_rows_that_are_older_than_the_listing_do_not_begin_a_group_at_latest(world, stream):
    """Two workers start; one begins the group, the shard is split, and the other lists the children: it has to look at
    the rows again before it takes them for the beginning.
    """
    worker = world.worker(start=LATEST)
    machine = worker.machine
    worker.answer(machine.poll_operation(100.0))
    world.rows = stream.rows(5, at=LATEST, latest_at=50.0)
    world.open_then = stream.names(4, 5, 8)
    machine.poll_request(101.0)
    machine.handle_summary(StreamSummary(name="s", arn="a", status="ACTIVE", created_at=1.0), 101.0)
    machine.poll_request(101.0)
    machine.handle_shards(ListShardsResponse([shape(shard) for shard in world.shards]), 101.0)
    assert not machine.is_ready
    scan = machine.poll_operation(101.0)
    assert isinstance(scan, ScanLeases)
    assert machine.poll_operation(101.0) is None
    world.now = 101.0
    worker.answer(scan)
    assert not machine.is_ready
    world.run(0.0)
    assert world.rows.keys() == stream.names(4, 5, 8)  # the children of 5 wait for it
    assert machine.is_ready


def test_gw6_workers_whose_listings_differ_complete_a_group_at_latest_with_the_same_shards(world, stream):
    """Who began it died with its first row. Then 6 and 7 were merged, 5 was split, and one of the others knows it."""
    world.rows = stream.rows(4, at=LATEST, latest_at=40.0)
    world.open_then = stream.names(4, 5, 6, 7)
    now_open = {5, 6, 7}
    world.shards = [stream.shard(number, is_open=True if number in now_open else None) for number in range(8)]
    early = world.worker("early", start=LATEST)
    early.machine.poll_operation(world.now)  # its scan hangs
    early.pump()
    world.shards = stream.all
    late = world.worker("late", start=LATEST)
    world.run(0.0)
    early.answer(ScanLeases())
    world.run(0.0)
    assert world.rows.keys() == stream.names(4, 5, 6, 7)
    assert {row.latest_at for row in world.rows.values()} == {40.0}
    assert early.shards | late.shards == {4, 5, 6, 7}
    asked = [one.shard_filter for one in late.sent if isinstance(one, ListShards) and one.shard_filter]
    assert asked == [ShardFilter("AT_TIMESTAMP", timestamp=40.0)]


def test_a_start_time_is_asked_of_the_service(world):
    worker = world.worker(start=at_timestamp(60.0))
    world.run(0.0)
    first, second, *_ = [request.shard_filter for request in worker.sent if isinstance(request, ListShards)]
    assert (first.timestamp, second) == (60.0, None)


def test_leases_are_kept_by_renewals(world):
    worker = world.worker()
    world.run(60.0)
    assert len(worker.shards) == 6
    assert worker.of(LeaseLost) == []
    tokens = {shard_id: holding.grant.token for shard_id, holding in worker.machine.held.holdings.items()}
    assert {world.rows[shard_id].counter - token for shard_id, token in tokens.items()} == {17}


def test_a_token_is_the_services_time(world):
    worker = world.worker()
    worker.machine.handle_service_time(1.7e9, world.now)
    world.run(0.0)
    assert {event.grant.token for event in worker.of(LeaseGained)} == {1_700_000_000_000}


def test_on_a_kcls_table_owners_that_state_no_duration_are_judged_by_the_kcls_time(world, stream):
    world.rows = stream.rows(0, 1, 2, 3, 4, 5, owner="java-1")
    worker = world.worker(kcl_failover=10.0)
    world.run(29.9)
    assert worker.shards == set()
    world.run(1.0)
    assert len(worker.shards) == 6


def test_a_twin_is_told(world):
    first, second = world.worker(), world.worker(incarnation="another")
    world.run(30.0)
    assert len(first.shards) + len(second.shards) == 6
    assert first.of(LeaseLost) == second.of(LeaseLost) == []
    assert [event.worker_id for event in second.of(WorkerIdShared)] == ["me"]


def test_however_short_a_lease_is_it_is_looked_at_twice(world):
    """With scans that are further apart than a lease lasts, every lease would seem to be expired between two of them."""
    first, second = (world.worker(name, lease_duration=1.0, scan_interval=10.0) for name in "ab")
    world.run(30.0)
    assert {len(first.shards), len(second.shards)} == {3}
    assert first.of(LeaseLost) == second.of(LeaseLost) == []
    scans = [request for request in first.sent if isinstance(request, ScanLeases)]
    assert len(scans) >= 60


def test_two_workers_share_and_the_death_of_one_is_noticed(world, stream):
    first, second = world.worker("a"), world.worker("b")
    world.run(10.0)
    assert {len(first.shards), len(second.shards)} == {3}
    world.workers.remove(first)
    world.run(9.0)
    assert len(second.shards) == 3
    world.run(4.0)
    assert len(second.shards) == 6


def test_one_who_joins_is_handed_over_to(world):
    first = world.worker("a")
    world.run(1.0)
    second = world.worker("b")
    world.run(10.0)
    assert (len(first.shards), len(second.shards)) == (3, 3)
    assert len(first.of(HandOverAsked)) == len(first.of(LeaseReleased)) == 3
    assert first.of(LeaseLost) == second.of(LeaseLost) == []


def test_l5_who_closes_lets_go_of_everything_at_once(world):
    first, second = world.worker("a"), world.worker("b")
    world.run(10.0)
    shard_id = min(first.machine.held.holdings)
    first.machine.held.deliver(shard_id, [record(1)])
    first.machine.held.ack_through(shard_id, record(1))
    first.machine.close()
    assert not first.machine.is_closed
    world.run(2.0)
    assert first.machine.is_closed
    assert first.machine.next_deadline() == NEVER
    assert len(second.shards) == 6
    assert world.rows[shard_id].checkpoint.sequence_number.number == 1


def test_l5_a_take_that_is_answered_after_closing_is_let_go_of_too(world):
    worker = world.worker()
    worker.pump()
    world.rows.clear()
    late = world.worker("late")
    machine = late.machine
    assert isinstance(machine.poll_operation(100.0), ScanLeases)
    machine.handle_rows([], 100.0)
    while (request := machine.poll_request(100.0)) is not None:
        if isinstance(request, ListShards):
            machine.handle_shards(ListShardsResponse([shape(world.shards[4])]), 100.0)
        else:
            machine.handle_summary(StreamSummary(name="s", arn="a", status="ACTIVE"), 100.0)
    create = machine.poll_operation(100.0)
    machine.handle_applied(create, world.apply(create), 100.0)
    take = machine.poll_operation(100.0)
    assert isinstance(take, TakeLease)
    machine.close()
    assert machine.poll_operation(100.0) is None
    assert machine.poll_request(100.0) is None
    machine.handle_applied(take, world.apply(take), 100.0)
    late.pump()
    assert machine.is_closed
    assert [row.owner for row in world.rows.values()] == [None]


def test_l5_a_worker_that_leaves_calls_off_what_it_asked_for_also_if_the_store_fails_first(world):
    world.worker("first")
    world.run(1.0)
    leaver = world.worker("leaver")
    machine = leaver.machine
    while leaver.pump():
        pass  # the other one does not get to see that it was asked
    asked = [shard_id for shard_id, row in world.rows.items() if row.checkpoint_owner is not None]
    assert asked
    world.now = machine.next_deadline()
    scan = machine.poll_operation(world.now)
    assert isinstance(scan, ScanLeases)
    machine.close()
    leaver.answer(scan)
    world.down = True
    leaver.pump()
    assert not machine.is_closed
    world.down = False
    world.now = machine.next_deadline()
    leaver.pump()
    assert machine.is_closed
    assert {(row.owner, row.checkpoint_owner) for row in world.rows.values()} == {("first", None)}


def test_l3_a_reshard_is_followed_to_its_end(world, stream):
    worker = world.worker()
    world.run(0.0)
    for ended, children in ((5, (9, 10)), (0, (6,)), (1, (6,)), (2, (7,)), (3, (7,)), (6, (8,)), (7, (8,))):
        worker.machine.end(stream.name(ended), [stream.child(number) for number in children], world.now)
        world.run(0.0)
    assert worker.shards == {4, 8, 9, 10}
    finished = {event.shard_id for event in worker.of(LeaseReleased) if event.finished}
    assert finished == stream.names(0, 1, 2, 3, 5, 6, 7)
    order = [event.shard_id for event in worker.of(LeaseGained)]
    assert order.index(stream.name(8)) > max(order.index(stream.name(6)), order.index(stream.name(7)))
    creates = [operation.shard_id for operation in worker.sent if isinstance(operation, CreateLease)]
    assert len(creates) == len(set(creates)) == 11


def test_finished_rows_are_deleted_in_the_end(world, stream):
    worker = world.worker(start=LATEST)
    world.rows = stream.rows(4, 8, finished=[5]) | {stream.name(number): stream.row(number, 250) for number in (9, 10)}
    world.run(500.0)
    assert stream.name(5) not in world.rows
    assert worker.shards == {4, 8, 9, 10}


def test_l3_children_that_nobody_names_are_listed(world, stream):
    world.shards = [stream.shard(4), stream.shard(5, is_open=True)]
    worker = world.worker()
    world.run(0.0)
    world.shards = list(stream.all)
    worker.machine.end(stream.name(5), [], world.now)
    world.run(0.0)
    assert worker.shards >= {4, 9, 10}


def test_a_shard_that_the_service_denies_to_know_is_finished_if_it_is_trimmed(world, stream):
    world.shards = [stream.shard(4), stream.shard(5)]
    worker = world.worker()
    world.run(0.0)
    world.shards = [stream.shard(4)]
    worker.machine.lose_sight(stream.name(5), world.now)
    world.run(5.0)
    assert worker.of(ShardTrimmed) == [ShardTrimmed(stream.name(5))]
    assert worker.of(LeaseReleased) == [LeaseReleased(stream.name(5), finished=True)]
    assert worker.shards == {4}


def test_a_shard_that_the_service_denies_to_know_and_that_is_there_is_read_anew(world, stream):
    worker = world.worker()
    world.run(0.0)
    worker.machine.lose_sight(stream.name(5), world.now)
    world.run(1.0)
    gained = [event.shard_id for event in worker.of(LeaseGained)]
    assert gained.count(stream.name(5)) == 2
    assert worker.of(LeaseReleased) == [LeaseReleased(stream.name(5), finished=False)]


# ---- when something is wrong


def test_l4_reading_goes_on_through_an_outage_then_stops_then_starts_again(world):
    worker = world.worker()
    world.run(5.0)
    world.down = True
    world.run(6.0)
    assert len(worker.shards) == 6
    assert worker.of(StoreFailed)
    assert worker.machine.is_store_down
    world.run(5.0)
    assert worker.shards == set()
    assert len(worker.of(LeaseLost)) == 6
    world.down = False
    world.run(3.0)
    assert len(worker.shards) == 6
    assert worker.of(StoreRecovered)
    assert not worker.machine.is_store_down


def test_l2_after_a_suspension_nothing_is_held_and_nothing_is_written(world):
    worker = world.worker()
    world.run(5.0)
    grants = [event.grant for event in worker.of(LeaseGained)]
    shard_id = worker.of(LeaseGained)[0].shard_id
    worker.machine.held.deliver(shard_id, [record(1)])
    worker.machine.held.ack_through(shard_id, record(1))
    worker.machine.next_deadline()
    world.now += 60.0
    assert not any(grant.held for grant in grants)
    worker.sent.clear()
    operation = worker.machine.poll_operation(world.now)
    assert isinstance(operation, ScanLeases)
    events = worker.machine.take_events()
    assert sum(isinstance(event, LeaseLost) for event in events) == 6
    (stall,) = [event for event in events if isinstance(event, Stalled)]
    assert stall.seconds > 50.0
    worker.answer(operation)
    world.run(0.0)
    assert not any(isinstance(one, (CommitCheckpoint, RenewLease)) for one in worker.sent)
    assert len(worker.shards) == 6


def test_a_blocked_loop_is_told_before_the_leases_lapse(world):
    worker = world.worker()
    world.run(5.0)
    worker.machine.next_deadline()
    world.now += 4.0
    world.run(0.0)
    assert len(worker.of(Stalled)) == 1
    assert worker.of(LeaseLost) == []


def test_a_store_that_denies_from_the_first_is_an_error(world):
    worker = world.worker()
    worker.machine.poll_operation(100.0)
    worker.machine.handle_scan_failed(DENIED, 100.0)
    assert worker.machine.take_events() == [ConsumerFailed("ListLeases", DENIED), StoreFailed(DENIED, 1, 400.0)]


@pytest.mark.parametrize(("asked", "pause"), [(2.0, 2.0), (3600.0, 3.0)])
def test_a_store_may_ask_to_be_left_alone_but_not_until_leases_are_over(world, asked, pause):
    worker = world.worker(lease_duration=9.0)
    worker.machine.poll_operation(100.0)
    worker.machine.handle_scan_failed(DOWN._replace(retry_after=asked), 100.0)
    assert worker.machine.poll_operation(99.9 + pause) is None
    assert isinstance(worker.machine.poll_operation(100.0 + pause), ScanLeases)


def test_a_take_that_fails_is_planned_anew(world):
    worker = world.worker()
    worker.pump()
    world.rows = {key: apply(row, TakeLease(key, "x", row.fence)) for key, row in world.rows.items()}
    late = world.worker("late")
    machine = late.machine
    world.run(0.5)
    world.now += 11.0
    (scan,) = [machine.poll_operation(world.now)]
    late.answer(scan)
    take = machine.poll_operation(world.now)
    assert isinstance(take, TakeLease)
    machine.handle_operation_failed(take, DOWN, world.now)
    world.workers = [late]
    world.run(2.0)
    assert len(late.shards) == 6


def test_a_take_that_fails_does_not_wait_for_the_next_scan(world):
    worker = world.worker(scan_interval=4.0)
    answer, failed = worker.answer, []

    def fail_once(operation):
        if isinstance(operation, TakeLease) and not failed:
            failed.append(operation)
            worker.machine.handle_operation_failed(operation, DOWN, world.now)
        else:
            answer(operation)

    worker.answer = fail_once
    world.run(2.0)
    assert len(failed) == 1
    assert len(worker.shards) == 6


def test_l1_no_more_than_a_bounded_number_of_operations_is_under_way(world, monkeypatch):
    monkeypatch.setattr(module, "_MAX_IN_FLIGHT", 2)
    worker = world.worker()
    machine = worker.machine
    machine.poll_operation(100.0)
    machine.handle_rows([], 100.0)
    machine.poll_request(100.0)
    machine.handle_summary(StreamSummary(name="s", arn="a", status="ACTIVE"), 100.0)
    machine.poll_request(100.0)
    machine.handle_shards(ListShardsResponse([shape(shard) for shard in world.shards]), 100.0)
    assert machine.next_deadline() == -NEVER
    first = machine.poll_operation(100.0)
    assert machine.poll_operation(100.0) is not None
    assert machine.poll_operation(100.0) is None
    assert machine.next_deadline() > 100.0
    assert not machine.is_ready
    machine.handle_applied(first, world.apply(first), 100.0)
    assert machine.poll_operation(100.0) is not None


def test_l1_what_an_older_plan_began_is_not_begun_again(world):
    worker = world.worker()
    machine = worker.machine
    world.run(0.0)
    for shard_id in [*machine.held.holdings]:
        machine.held.lose(shard_id, "for the test")
    scan = machine.poll_operation(world.now)
    worker.answer(scan)
    take = machine.poll_operation(world.now)
    world.now += 0.6
    scan = machine.poll_operation(world.now)
    while not isinstance(scan, ScanLeases):
        machine.handle_applied(scan, world.apply(scan), world.now)
        scan = machine.poll_operation(world.now)
    worker.answer(scan)  # a plan that has the same lease again
    others = []
    machine.handle_applied(take, world.apply(take), world.now)
    while (operation := machine.poll_operation(world.now)) is not None:
        others.append(operation)
        worker.answer(operation)
    assert take.shard_id not in [operation.shard_id for operation in others if isinstance(operation, TakeLease)]
    assert len(worker.shards) == 6


def test_l1_what_is_under_way_is_left_out_of_the_plan(world):
    worker = world.worker()
    machine = worker.machine
    world.run(0.0)
    for shard_id in [*machine.held.holdings]:
        machine.held.lose(shard_id, "for the test")
    worker.answer(machine.poll_operation(world.now))
    take = machine.poll_operation(world.now)
    world.now += 0.6
    seen = []
    while (operation := machine.poll_operation(world.now)) is not None:
        seen.append(operation)
        worker.answer(operation)
    assert take.shard_id not in {operation.shard_id for operation in seen if not isinstance(operation, ScanLeases)}


@pytest.mark.internal_error
def test_an_answer_that_nobody_waits_for_is_a_bug(world, stream):
    machine = world.worker().machine
    with pytest.raises(AssertionError, match="L1"):
        machine.handle_rows([], 100.0)
    with pytest.raises(AssertionError, match="L1"):
        machine.handle_scan_failed(DOWN, 100.0)
    with pytest.raises(KeyError):
        machine.handle_applied(DeleteLease("x", 1), None, 100.0)


def test_a_stream_that_was_made_anew_stops_the_consumer(world, stream):
    worker = world.worker()
    world.rows = {stream.name(8): stream.row(8, SHARD_END)}
    world.run(5.0)
    assert len(worker.of(StreamRecreated)) == 1
    assert worker.shards == set()


def test_or_starts_again_if_told_so(world, stream):
    worker = world.worker(start=LATEST, if_recreated="restart")
    world.run(0.0)
    assert worker.shards == {4, 8, 9, 10}
    world.shards = [stream.shard(0, is_open=True)]
    world.rows[stream.name(0)] = stream.row(0, SHARD_END)
    world.run(130.0)
    assert worker.of(StreamRecreated)
    assert 0 in worker.shards
    assert world.rows[stream.name(0)].checkpoint.position == LATEST


def test_or_gives_up_what_it_holds_of_the_old_one(world, stream):
    worker = world.worker(if_recreated="restart")
    world.run(0.0)
    world.rows[stream.name(4)] = stream.row(4, SHARD_END)
    world.run(130.0)
    assert LeaseLost(stream.name(4), "another worker took it") in worker.events
    assert 4 in worker.shards


@pytest.mark.parametrize("seen_by", ["a scan", "a refusal"])
def test_to4_rows_that_others_gave_up_are_made_again_from_a_new_listing(world, stream, seen_by):
    """Another worker saw that the stream is another one, and gave up its rows. Our listing has the old shards' ranges:
    with those in the rows, records of the new shards would be dropped.
    """
    worker = world.worker(if_recreated="restart", out_of_range="drop", list_interval=60.0)
    world.shards = open_shards(2)
    world.run(0.0)
    assert worker.shards == {0, 1}
    world.shards = [Shard(name, HashRange(7, 9), SequenceNumber(5), None, None, None) for name in world.rows]
    world.rows.clear()
    if seen_by == "a refusal":
        worker.machine.held.leave(world.shards[0].shard_id)
        worker.sent.clear()
        worker.pump()
        assert not any(isinstance(one, ScanLeases) for one in worker.sent[:1])
    world.run(1.0)
    assert {row.hash_range for row in world.rows.values()} == {HashRange(7, 9)}
    assert {event.hash_range for event in worker.of(LeaseGained)[2:]} == {HashRange(7, 9)}
    assert worker.shards == {0, 1}
    listings = [one for one in worker.sent if isinstance(one, ListShards)]
    world.run(10.0)
    assert [one for one in worker.sent if isinstance(one, ListShards)] == listings  # once was enough


def test_to4_what_we_deleted_ourselves_is_no_reason_for_doubt(world, stream):
    worker = world.worker(lease_duration=2.0)
    world.rows = stream.rows(4, 8, 9, 10, 11, owner="dead")  # the last one's shard went out of retention
    world.run(130.0)
    (deletion,) = [one for one in worker.sent if isinstance(one, DeleteLease)]
    assert deletion.shard_id not in world.rows
    after = worker.sent[worker.sent.index(deletion) :]
    assert not any(isinstance(one, ListShards) for one in after)
    assert worker.machine.is_ready


def test_a_listing_that_is_denied_is_the_end(world):
    worker = world.worker()
    machine = worker.machine
    machine.poll_request(100.0)
    machine.handle_request_failed(DENIED, 100.0)
    assert isinstance(machine.take_events()[0], ListingFailed)
    machine.poll_request(100.0)
    machine.handle_request_failed(DENIED, 100.0)
    assert machine.take_events() == [ConsumerFailed("ListShards", DENIED)]


def test_before_the_first_scan_a_listing_is_only_kept(world):
    worker = world.worker()
    machine = worker.machine
    while (request := machine.poll_request(100.0)) is not None:
        if isinstance(request, ListShards):
            machine.handle_shards(ListShardsResponse([shape(shard) for shard in world.shards], None), 100.0)
        else:
            machine.handle_summary(StreamSummary(name="s", arn="a", status="ACTIVE"), 100.0)
    assert isinstance(machine.poll_operation(100.0), ScanLeases)
    assert machine.poll_operation(100.0) is None
    machine.handle_rows([], 100.0)
    assert isinstance(machine.poll_operation(100.0), CreateLease)


def test_a_listing_of_many_pages_counts_when_it_is_complete(world):
    worker = world.worker()
    machine = worker.machine
    machine.poll_request(100.0)
    machine.handle_summary(StreamSummary(name="s", arn="a", status="ACTIVE"), 100.0)
    machine.poll_request(100.0)
    machine.handle_shards(ListShardsResponse([shape(world.shards[0])], "token"), 100.0)
    assert not machine.topology.is_settled


# ---- hand-overs


def open_shards(count):
    return [
        Shard(f"shardId-{number:012d}", HashRange(number, number), SequenceNumber(0), None, None, None)
        for number in range(count)
    ]


def test_as3_what_is_asked_for_is_not_asked_for_again_before_the_answer(world):
    """A plan is also made when a scan or a listing comes before the answer: it would ask for others instead."""
    old = world.worker("old")
    world.shards = open_shards(40)
    world.run(0.0)
    new = world.worker("new")
    answer, asks = new.answer, []
    new.answer = lambda operation: asks.append(operation) if isinstance(operation, AskHandOver) else answer(operation)
    world.run(3.0)
    assert len(asks) == 1
    new.answer = answer
    answer(asks[0])
    world.run(30.0)
    assert (len(old.shards), len(new.shards)) == (20, 20)
    assert len(old.of(LeaseReleased)) == len(new.of(LeaseGained)) == 20


def test_a_large_imbalance_is_over_in_a_few_scans(world):
    old = world.worker("old")
    world.shards = open_shards(150)
    world.run(0.0)
    new = world.worker("new")
    world.run(6.0)
    assert (len(old.shards), len(new.shards)) == (75, 75)
    world.run(60.0)
    assert (len(old.of(LeaseGained)), len(new.of(LeaseGained))) == (150, 75)


def test_a_store_that_denies_for_too_long_is_given_up(world):
    worker = world.worker()
    world.run(5.0)
    machine, now = worker.machine, world.now + 1.0
    for passed in (0.0, 300.0, 301.0):
        while not isinstance(machine.poll_operation(now + passed), ScanLeases):
            assert passed == 0.0
        machine.handle_scan_failed(DENIED, now + passed)
        machine._scan_at = now + passed  # it would be left alone from now on
        failed = [event for event in machine.take_events() if isinstance(event, ConsumerFailed)]
        assert failed == ([ConsumerFailed("ListLeases", DENIED)] if passed == 300.0 else [])


def test_a_listing_that_fails_does_not_end_the_wait_for_a_summary(world):
    worker = world.worker()
    world.run(5.0)
    machine = worker.machine
    machine.trims.handle_page("a", 82_800.0, 108_000.0, world.now)
    machine.poll_request(world.now)
    machine.handle_request_failed(Failure(FailureKind.TRANSIENT, "Down", "why"), world.now)
    assert machine.trims.take_events() == []
