"""Tests of L1 to L6, the invariants of ``shardline.core.consumer.coordinator``. The stream is drawn in ``conftest``."""

import pytest
from tests.harness.coordinator import DOWN, Group, page_of, record

from shardline.core.clock import NEVER
from shardline.core.consumer import coordinator as module
from shardline.core.consumer.consumer_events import (
    ConsumerFailed,
    HandOverOverdue,
    LeaseGained,
    LeaseLost,
    LeaseReleased,
    LeaseSurplus,
    ListingFailed,
    ShardTrimmed,
    Stalled,
    StoreFailed,
    StoreRecovered,
)
from shardline.core.consumer.coordinator import ScanLeases
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import AskHandOver, CommitCheckpoint, CreateLease, DeleteLease, RenewLease, TakeLease
from shardline.core.requests import ListShards, ShardFilter
from shardline.model.hashing import HashRange
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_timestamp
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard

DENIED = Failure(FailureKind.DENIED, "Denied", "no", 400)


@pytest.fixture
def group(stream):
    return Group(*stream.all, now=100.0, latest_at=50.0, hand_over_timeout=30.0, list_interval=60.0)


def test_a_new_group_reads_its_first_shards_at_once(group, stream):
    worker = group.worker("me")
    group.run(0.0)
    assert worker.numbers == {0, 1, 2, 3, 4, 5}
    assert {event.start for event in worker.seen(LeaseGained)} == {TRIM_HORIZON}
    assert worker.machine.is_ready
    assert worker.machine.me == "me"
    assert all(row.owner == "me" for row in group.rows.values())


def test_l3_rows_that_are_older_than_the_listing_do_not_begin_a_group_at_latest(group, stream):
    """Two workers start. One begins the group, the shard is split, and the other lists the children: it has to read the
    rows again before it treats the children as the beginning.
    """
    worker = group.sleeper("me", start=LATEST)
    machine = worker.machine
    worker.settle(machine.poll_operation(100.0))
    group.rows = stream.rows(5, at=LATEST, latest_at=50.0)
    group.stream.open_then = [stream.shard(number) for number in (4, 5, 8)]
    group.now = 101.0
    worker.pump()
    assert not machine.is_ready
    (scan,) = worker.outbox
    assert isinstance(scan, ScanLeases)
    worker.settle(scan)
    assert not machine.is_ready
    group.run(0.0)
    assert group.rows.keys() == stream.names(4, 5, 8)  # the children of 5 wait for it
    assert machine.is_ready


def test_workers_whose_listings_differ_complete_a_group_at_latest_with_the_same_shards(group, stream):
    """The worker that began the group died after its first row. Then 6 and 7 were merged, 5 was split, and one of the
    others knows that.
    """
    group.rows = stream.rows(4, at=LATEST, latest_at=40.0)
    group.stream.open_then = [stream.shard(number, is_open=True) for number in (4, 5, 6, 7)]
    group.stream.shards = [stream.shard(number) for number in range(4)] + group.stream.open_then
    early = group.worker("early", start=LATEST)
    early.mute = True  # its scan hangs
    group.stream.shards = stream.all
    late = group.worker("late", start=LATEST)
    group.run(0.0)
    early.mute = False
    group.run(0.0)
    assert group.rows.keys() == stream.names(4, 5, 6, 7)
    assert {row.latest_at for row in group.rows.values()} == {40.0}
    assert early.numbers | late.numbers == {4, 5, 6, 7}
    asked = [one.shard_filter for one in late.requests(ListShards) if one.shard_filter]
    assert asked == [ShardFilter("AT_TIMESTAMP", timestamp=40.0)]


def test_a_start_time_is_asked_of_the_service(group):
    worker = group.worker("me", start=at_timestamp(60.0))
    group.run(0.0)
    first, second, *_ = [request.shard_filter for request in worker.requests(ListShards)]
    assert (first.timestamp, second) == (60.0, None)


def test_a_token_is_the_services_time(group):
    worker = group.sleeper("me")
    worker.machine.handle_service_time(1.7e9, group.now)
    worker.pump()
    group.run(0.0)
    assert {event.grant.token for event in worker.seen(LeaseGained)} == {1_700_000_000_000}


def test_on_a_kcls_table_owners_that_state_no_duration_are_judged_by_the_kcls_time(group, stream):
    group.rows = stream.rows(0, 1, 2, 3, 4, 5, owner="java-1")
    worker = group.worker("me", kcl_failover=10.0)
    group.run(29.9)
    assert worker.numbers == set()
    group.run(1.0)
    assert len(worker.numbers) == 6


def test_however_short_a_lease_is_it_is_looked_at_twice(group):
    """If scans were further apart than a lease duration, every lease would seem expired between two of them."""
    first, second = (group.worker(name, lease_duration=1.0, scan_interval=10.0) for name in "ab")
    group.run(30.0)
    assert {len(first.numbers), len(second.numbers)} == {3}
    assert first.seen(LeaseLost) == second.seen(LeaseLost) == []
    assert first.scans >= 60


def test_l3_a_reshard_is_followed_to_its_end(group, stream):
    worker = group.worker("me")
    group.run(0.0)
    for ended, children in ((5, (9, 10)), (0, (6,)), (1, (6,)), (2, (7,)), (3, (7,)), (6, (8,)), (7, (8,))):
        worker.machine.end(stream.name(ended), [stream.child(number) for number in children], group.now)
        group.run(0.0)
    assert worker.numbers == {4, 8, 9, 10}
    finished = {event.shard_id for event in worker.seen(LeaseReleased) if event.finished}
    assert finished == stream.names(0, 1, 2, 3, 5, 6, 7)
    order = [event.shard_id for event in worker.seen(LeaseGained)]
    assert order.index(stream.name(8)) > max(order.index(stream.name(6)), order.index(stream.name(7)))
    creates = [operation.shard_id for operation in worker.requests(CreateLease)]
    assert len(creates) == len(set(creates)) == 11


def test_a_shard_that_the_service_denies_to_know_is_finished_if_it_is_trimmed(group, stream):
    group.stream.shards = [stream.shard(4), stream.shard(5)]
    worker = group.worker("me")
    group.run(0.0)
    group.stream.shards = [stream.shard(4)]
    worker.machine.mark_missing(stream.name(5), group.now)
    group.run(5.0)
    assert worker.seen(ShardTrimmed) == [ShardTrimmed(stream.name(5))]
    assert worker.seen(LeaseReleased) == [LeaseReleased(stream.name(5), finished=True)]
    assert worker.numbers == {4}


def test_a_shard_that_the_service_denies_to_know_and_that_is_there_is_read_again(group, stream):
    worker = group.worker("me")
    group.run(0.0)
    worker.machine.mark_missing(stream.name(5), group.now)
    group.run(1.0)
    assert [event.shard_id for event in worker.seen(LeaseGained)].count(stream.name(5)) == 2
    assert worker.seen(LeaseReleased) == [LeaseReleased(stream.name(5), finished=False)]


def test_l5_who_leaves_calls_off_what_it_asked_for_though_the_store_fails_first(group):
    group.worker("first").drains = False
    group.run(1.0)
    leaver = group.worker("leaver")
    leaver.wait_for(AskHandOver)
    leaver.answer_all()
    leaver.close()
    leaver.failing = DOWN
    leaver.answer_all()
    assert not leaver.machine.is_closed
    leaver.failing = None
    group.run(2.0)
    assert leaver.machine.is_closed
    assert leaver.machine.next_deadline() == NEVER
    assert leaver.machine.poll_request(group.now) is None
    assert {(row.owner, row.checkpoint_owner) for row in group.rows.values()} == {("first", None)}


# ---- leaving


@pytest.mark.parametrize("kind", [TakeLease, RenewLease, ScanLeases])
def test_l5_whatever_is_under_way_when_a_worker_leaves_it_lets_go_of_everything(group, kind):
    worker = group.worker("me")
    if kind is RenewLease:
        group.run(1.0)
        worker.mute = True
        worker.wait_for(kind, 0.5)
        worker.mute = False
    worker.wait_for(kind)
    worker.close()
    group.run(2.0)
    assert worker.machine.is_closed
    assert {row.owner for row in group.rows.values()} <= {None}


# ---- failures


def test_l4_reading_goes_on_through_an_outage_then_stops_then_starts_again(group):
    worker = group.worker("me")
    group.run(5.0)
    worker.failing = DOWN
    group.run(6.0)
    assert len(worker.numbers) == 6
    assert worker.seen(StoreFailed)
    assert worker.machine.is_store_down
    group.run(5.0)
    assert worker.numbers == set()
    assert len(worker.seen(LeaseLost)) == 6
    worker.failing = None
    group.run(3.0)
    assert len(worker.numbers) == 6
    assert worker.seen(StoreRecovered)
    assert not worker.machine.is_store_down


def test_l2_after_a_suspension_nothing_is_held_and_nothing_is_written(group):
    worker = group.worker("me")
    group.run(5.0)
    grants = [event.grant for event in worker.seen(LeaseGained)]
    shard_id = worker.seen(LeaseGained)[0].shard_id
    worker.machine.held.deliver(shard_id, [record(1)])
    worker.machine.held.ack_through(shard_id, record(1))
    worker.machine.next_deadline()
    group.now += 60.0
    assert not any(grant.held for grant in grants)
    worker.sent.clear()
    operation = worker.machine.poll_operation(group.now)
    assert isinstance(operation, ScanLeases)
    events = worker.machine.take_events()
    assert sum(isinstance(event, LeaseLost) for event in events) == 6
    (stall,) = [event for event in events if isinstance(event, Stalled)]
    assert stall.seconds > 50.0
    worker.answer(operation)
    group.run(0.0)
    assert worker.requests((CommitCheckpoint, RenewLease)) == []
    assert len(worker.numbers) == 6


def test_a_blocked_loop_is_reported_before_the_leases_lapse(group):
    worker = group.worker("me")
    group.run(5.0)
    worker.machine.next_deadline()
    group.now += 4.0
    group.run(0.0)
    assert len(worker.seen(Stalled)) == 1
    assert worker.seen(LeaseLost) == []


def test_a_store_that_denies_from_the_first_is_an_error(group):
    worker = group.worker("me")
    worker.answer(ScanLeases(), DENIED)
    assert [event for _, event in worker.events] == [
        ConsumerFailed("ListLeases", DENIED),
        StoreFailed(DENIED, 1, 400.0),
    ]


def test_a_store_that_denies_for_too_long_is_given_up(group):
    worker = group.worker("me")
    group.run(5.0)
    worker.failing = DENIED
    group.run(299.0)
    assert worker.seen(ConsumerFailed) == []
    group.run(60.0)
    assert [event.failure for event in worker.seen(ConsumerFailed)] == [DENIED]


def test_a_take_that_fails_does_not_wait_for_the_next_scan(group):
    worker = group.worker("me", scan_interval=4.0)
    take = worker.wait_for(TakeLease)
    worker.answer(take, DOWN)
    group.run(2.0)
    assert [operation.shard_id for operation in worker.requests(TakeLease)].count(take.shard_id) == 2
    assert len(worker.numbers) == 6


def test_l1_no_more_than_a_bounded_number_of_operations_is_under_way(group, stream, monkeypatch):
    monkeypatch.setattr(module, "_MAX_IN_FLIGHT", 2)
    worker = group.sleeper("me")
    machine = worker.machine
    worker.settle(machine.poll_operation(100.0))
    worker.handle_answer(worker.begin_listing(), page_of(stream.all))
    assert machine.next_deadline() == -NEVER
    first = machine.poll_operation(100.0)
    assert machine.poll_operation(100.0) is not None
    assert machine.poll_operation(100.0) is None
    assert machine.next_deadline() > 100.0
    assert not machine.is_ready
    worker.settle(first)
    assert machine.poll_operation(100.0) is not None


def test_l1_what_an_older_plan_began_is_not_begun_again(group):
    worker = group.worker("me")
    machine = worker.machine
    group.run(0.0)
    for shard_id in [*machine.held.holdings]:
        machine.held.lose(shard_id, "for the test")
    worker.settle(machine.poll_operation(group.now))
    take = machine.poll_operation(group.now)
    group.now += 0.6
    while not isinstance(operation := machine.poll_operation(group.now), ScanLeases):
        worker.settle(operation)
    worker.settle(operation)  # a plan that has the same lease again
    worker.settle(take)
    worker.sent.clear()
    worker.pump()
    assert take.shard_id not in [operation.shard_id for operation in worker.requests(TakeLease)]
    group.run(0.0)
    assert len(worker.numbers) == 6


def test_l1_what_is_under_way_is_left_out_of_the_plan(group):
    worker = group.worker("me")
    machine = worker.machine
    group.run(0.0)
    for shard_id in [*machine.held.holdings]:
        machine.held.lose(shard_id, "for the test")
    worker.settle(machine.poll_operation(group.now))
    take = machine.poll_operation(group.now)
    worker.sent.clear()
    group.run(0.6)
    assert worker.scans
    assert take.shard_id not in {operation.shard_id for operation in worker.requests((RenewLease, TakeLease))}


@pytest.mark.internal_error
def test_a_response_without_a_request_is_a_bug(group, stream):
    machine = group.sleeper("me").machine
    with pytest.raises(AssertionError, match="L1"):
        machine.handle_rows([], 100.0)
    with pytest.raises(AssertionError, match="L1"):
        machine.handle_scan_failed(DOWN, 100.0)
    with pytest.raises(KeyError):
        machine.handle_applied(DeleteLease("x", 1), None, 100.0)


def test_or_gives_up_what_it_holds_of_the_old_one(group, stream):
    worker = group.worker("me", if_recreated="restart")
    group.run(0.0)
    group.rows[stream.name(4)] = stream.row(4, SHARD_END)
    group.run(130.0)
    assert LeaseLost(stream.name(4), "another worker took it") in worker.seen(LeaseLost)
    assert 4 in worker.numbers


@pytest.mark.parametrize("seen_by", ["a scan", "a refusal"])
def test_rows_that_others_gave_up_are_made_again_from_a_new_listing(group, stream, seen_by):
    """Another worker found out that the stream was re-created, and gave up its rows. Our listing has the ranges of the
    old shards: with those in the rows, records of the new shards would be dropped.
    """
    group.stream.shards = open_shards(2)
    worker = group.worker("me", if_recreated="restart", out_of_range="drop", list_interval=60.0)
    group.run(0.0)
    assert worker.numbers == {0, 1}
    group.stream.shards = [Shard(name, HashRange(7, 9), SequenceNumber(5), None, None, None) for name in group.rows]
    group.rows.clear()
    if seen_by == "a refusal":
        worker.machine.held.leave(group.stream.shards[0].shard_id)
        worker.sent.clear()
        worker.pump()
        assert not isinstance(worker.sent[0], ScanLeases)
    group.run(1.0)
    assert {row.hash_range for row in group.rows.values()} == {HashRange(7, 9)}
    assert {event.hash_range for event in worker.seen(LeaseGained)[2:]} == {HashRange(7, 9)}
    assert worker.numbers == {0, 1}
    listings = worker.listings
    group.run(10.0)
    assert worker.listings == listings  # once was enough


def test_what_we_deleted_ourselves_is_no_reason_for_doubt(group, stream):
    group.rows = stream.rows(4, 8, 9, 10, 11, owner="dead")  # the last one's shard was removed by retention
    worker = group.worker("me", lease_duration=2.0)
    while not group.done(DeleteLease):
        group.run(0.1)
    ((_, deletion),) = group.done(DeleteLease)
    group.run(1.0)
    after = worker.sent[worker.sent.index(deletion) :]
    assert not any(isinstance(one, ListShards) for one in after)
    assert worker.machine.is_ready


def test_a_listing_that_is_denied_is_the_end(group):
    group.stream.missing = DENIED
    worker = group.worker("me")
    assert len(worker.seen(ListingFailed)) == 1
    assert worker.seen(ConsumerFailed) == [ConsumerFailed("ListShards", DENIED)]


def test_before_the_first_scan_a_listing_is_only_kept(group):
    worker = group.worker("me")
    assert worker.listings == 1
    assert worker.outbox == [ScanLeases()]
    worker.answer_all()
    assert worker.waiting(CreateLease) == worker.outbox


# ---- hand-overs


def open_shards(count):
    return [
        Shard(f"shardId-{number:012d}", HashRange(number, number), SequenceNumber(0), None, None, None)
        for number in range(count)
    ]


def test_what_is_asked_for_is_not_asked_for_again_before_the_answer(group):
    """A plan is also made when a scan or a listing comes before the answer: it would ask for other leases instead."""
    group.stream.shards = open_shards(40)
    old = group.worker("old")
    group.run(0.0)
    new = group.worker("new")
    new.mute = True
    for _ in range(30):
        new.answer_but(AskHandOver)
        group.run(0.1)
    assert len(new.requests(AskHandOver)) == 1
    new.mute = False
    group.run(30.0)
    assert (len(old.numbers), len(new.numbers)) == (20, 20)
    assert len(old.seen(LeaseReleased)) == len(new.seen(LeaseGained)) == 20


def test_a_listing_that_fails_does_not_end_the_wait_for_a_summary(group):
    worker = group.worker("me")
    group.run(5.0)
    machine = worker.machine
    machine.trims.handle_page("a", 82_800.0, 108_000.0, group.now)
    machine.poll_request(group.now)
    machine.handle_request_failed(DOWN, group.now)
    assert machine.trims.take_events() == []


# ---- max_leases changes


def test_a_lower_limit_releases_the_leases_that_were_gained_last(group):
    worker = group.worker("me")
    group.run(0.0)
    gained = [event.shard_id for event in worker.seen(LeaseGained)]
    worker.machine.limit_leases(4, group.now)
    group.run(5.0)
    assert [event.shard_id for event in worker.seen(LeaseSurplus)] == gained[4:]
    assert [event.until for event in worker.seen(LeaseSurplus)] == [130.0, 130.0]
    assert sorted(worker.held) == sorted(gained[:4])
    assert {group.rows[shard_id].owner for shard_id in gained[4:]} == {None}
    assert worker.seen(LeaseLost) == []


def test_leases_that_a_worker_releases_go_to_another_one(group):
    first, second = group.worker("first"), group.worker("second")
    group.run(60.0)
    assert group.loads() == [3, 3]
    first.machine.limit_leases(1, group.now)
    group.run(30.0)
    assert (len(first.held), len(second.held)) == (1, 5)
    first.machine.limit_leases(None, group.now)
    group.run(60.0)
    assert group.loads() == [3, 3]


def test_a_higher_limit_applies_at_once(group):
    worker = group.worker("me", max_leases=2)
    group.run(0.0)
    assert len(worker.held) == 2
    worker.machine.limit_leases(3, group.now)
    group.run(0.1)
    assert len(worker.held) == 3


def test_a_lease_that_is_taken_while_the_limit_is_lowered_is_released_again(group):
    worker = group.sleeper("me")
    machine = worker.machine
    worker.pump()
    while worker.outbox and not any(isinstance(operation, TakeLease) for operation in worker.outbox):
        worker.settle(worker.outbox[0])
        worker.pump()
    machine.limit_leases(1, group.now)
    while worker.outbox:
        worker.settle(worker.outbox[0])
        worker.pump()
    assert len(worker.seen(LeaseSurplus)) == 5
    group.run(3.0)
    assert len(worker.held) == 1


def test_a_user_that_is_not_done_in_time_does_not_keep_a_surplus_lease(group):
    worker = group.worker("me")
    group.run(0.0)
    worker.drains = False
    worker.machine.limit_leases(5, group.now)
    group.run(29.0)
    assert len(worker.held) == 6
    group.run(3.0)
    assert len(worker.held) == 5
    assert len(worker.seen(HandOverOverdue)) == 1
