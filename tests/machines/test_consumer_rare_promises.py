"""Tests what a group guarantees when two rare events coincide: a scan that is slower than a take, a store that asks for
a pause of a minute, a lease that is lost and regained at the end of its shard. The tests use the group of
``tests/harness``.
"""

from dataclasses import replace
from random import Random

from tests.harness.coordinator import DOWN, LATE, A, Group, at, hold_one, names, shard
from tests.harness.reader import ReaderShell

from shardline.codec.shapes import ListShardsResponse, RawRecord
from shardline.core.clock import NEVER
from shardline.core.consumer.assignment import ReadableLease, assign
from shardline.core.consumer.checkpoint import CheckpointTracker
from shardline.core.consumer.consumer_events import (
    LeaseLost,
    LeaseReleased,
    RecordsTrimmed,
    ShardTrimmed,
    StreamReplaced,
)
from shardline.core.consumer.coordinator import ScanLeases
from shardline.core.consumer.failure_policy import BatchWork, FailurePolicy
from shardline.core.consumer.lease_view import LeaseView
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import CommitCheckpoint, CreateLease, Refused, RenewLease, TakeLease
from shardline.model.lease import Checkpoint, Lease
from shardline.model.limits import MIB
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_sequence_number
from shardline.model.record import Record
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import ChildShard


def test_l4_a_store_that_asks_for_a_long_pause_costs_no_lease():
    group, worker = hold_one()
    worker.failing = Failure(FailureKind.THROTTLED, "Throttled", "why", retry_after=60.0, maybe_received=False)
    group.run(4.0)  # a renewal happens during the pause, and is refused
    worker.failing = None
    group.run(30.0)
    assert worker.seen(LeaseLost) == []
    assert A in worker.held


def test_to_ask_for_the_lease_of_a_dead_worker_is_no_sign_of_its_life():
    group = Group()
    dead, onlooker = group.worker("w0"), group.worker("w1")
    group.run(30.0)
    left = list(dead.held)
    assert len(left) == 2
    dead.mute, died_at = True, group.now
    group.workers.remove(dead)
    group.run(6.0)
    asking = group.worker("w2")
    group.run(0.6)
    assert [group.rows[one].owner for one in left].count("w2") == 1
    asking.mute = True
    group.run(died_at + 11.5 - group.now)
    assert set(left) <= onlooker.held.keys()


def test_a_scan_that_is_older_than_a_row_of_ours_does_not_make_it_look_deleted():
    """A slow scan starts before a shard is found. The shard's row is created and taken, and then the scan is answered."""
    group, worker = hold_one()
    worker.mute = True
    worker.wait_for(ScanLeases, 0.1)
    before = list(group.rows.values())
    group.stream.shards += [shard(7, begin=90)]
    worker.machine.topology.discovery.list_by(group.now)
    group.run(0.1)
    while worker.answer_but(ScanLeases):
        pass
    (new,) = names(7)
    assert new in worker.held
    listings = worker.listings
    worker.outbox.clear()
    worker.machine.handle_rows(before, group.now)
    worker.mute = False
    worker.pump()
    group.run(5.0)
    assert worker.seen(LeaseLost) == []
    assert new in worker.held
    assert worker.listings == listings, "and the stream is not looked at as if it were another one"


def test_l5_who_leaves_begins_nothing_that_was_planned():
    """The rows arrive at the moment when the worker is closed."""
    group = Group()
    worker = group.worker("me")
    worker.outbox.clear()
    worker.machine.handle_rows([], group.now)
    worker.machine.close()
    assert worker.machine.poll_operation(group.now) is None
    assert worker.machine.is_closed
    assert worker.machine.next_deadline() == NEVER


def test_a_row_whose_shard_is_unknown_is_looked_up_at_once():
    """Another worker created the row from a newer listing, and died."""
    group, worker = hold_one(list_interval=600.0)
    gone, new = names(5, 7)
    group.stream.shards += [shard(7, 5, begin=90)]
    group.rows[new] = Lease(new, checkpoint=Checkpoint(TRIM_HORIZON), parent_ids=frozenset({gone}))
    group.run(5.0)
    assert new in worker.held


def test_l4_a_commit_that_is_refused_though_the_lease_is_ours_is_made_again():
    """The store lost one write, and still has us as the holder."""
    group, worker = hold_one()
    row = group.rows[A]
    worker.read(A, 5)
    group.rows[A] = replace(row, counter=row.counter - 1)
    group.run(20.0)
    assert any(isinstance(result, Refused) for *_, operation, result in group.log if operation.shard_id == A)
    assert group.rows[A].checkpoint == at(5)
    assert worker.seen(LeaseLost) == []


def test_a_record_that_was_delivered_twice_counts_once():
    """With manual acknowledgements."""
    tracker = CheckpointTracker(Checkpoint(TRIM_HORIZON), interval=1.0, now=0.0, manual=True)
    one, two, three = (Record(b"", "k", sequence_number=str(number), shard_id=A) for number in (1, 2, 3))
    tracker.deliver([one, two])
    tracker.deliver([one, two])
    assert [tracker.ack(two), tracker.ack(one)] == [True, True]
    assert tracker.is_settled
    tracker.deliver([two, three])
    assert not tracker.ack(two)
    assert tracker.ack(three)
    assert tracker.poll_commit(2.0) == at(3)


def test_c3_a_worker_that_regains_a_shard_checks_again_that_it_has_no_children():
    group, worker = hold_one()
    worker.end(A)
    group.run(0.1)  # one listing without children has arrived; it is not believed yet
    row = group.rows[A]
    assert not row.checkpoint.is_finished
    group.rows[A] = replace(row, counter=row.counter + 1, owner=None)
    group.stream.listing_fails = lambda _: Failure(FailureKind.TRANSIENT, "InternalFailure", "why")
    group.run(5.0)
    assert len(worker.seen(LeaseLost)) == 1
    assert A in worker.held
    group.run(40.0)
    listed_at = []
    group.stream.listing_fails = lambda _: listed_at.append(group.now)  # no worker does any more
    worker.end(A)
    group.run(60.0)
    finished_at = [when for when, _, operation, _ in group.log if isinstance(operation, CommitCheckpoint)]
    assert len(finished_at) == 1
    assert len([when for when in listed_at if when <= finished_at[0]]) >= 2


def test_records_removed_by_retention_are_reported_even_after_empty_pages():
    one = ReaderShell(at_sequence_number("500"), done=SequenceNumber(500)).start()
    one.page(behind=1_000)
    assert one.reader.take_events() == []
    one.page(501)
    assert [type(event) for event in one.reader.take_events()] == [RecordsTrimmed]


def test_a_dead_letter_gets_as_many_attempts_as_the_handler_had():
    record = Record(b"", "k", sequence_number="1", shard_id=A)
    work = BatchWork([record], FailurePolicy(attempts=3, finally_="dead-letter"), Random(0), 0.0)
    for now in (0.0, 100.0, 200.0):
        assert work.poll_attempt(now) is not None
        work.handle_error("why", now)
    for now in (300.0, 400.0):
        assert work.poll_dead_letter(now) is not None
        work.handle_dead_letter_failed("the table is down", now)
        assert not work.is_stopped
    assert work.poll_dead_letter(500.0) is not None
    work.handle_dead_letter_written(500.0)
    assert work.take_done() == [record]
    assert work.is_done


def test_who_has_more_than_it_wants_takes_nothing():
    """A worker came back under its name, with a smaller ``max_leases``."""
    leases = [ReadableLease(f"mine {n}", "me") for n in range(3)] + [
        ReadableLease(f"free {n}", None, 99.0) for n in range(4)
    ]
    assert assign(leases, "me", 2, Random(0), spill_after=1.0) == ([], [])


def test_l4_a_write_that_the_store_puts_off_puts_off_no_scan():
    """A write that the store asks to repeat much later does not delay the next scan of the rows."""
    group = Group(shard(0))
    worker = group.worker()
    take = worker.wait_for(TakeLease)
    worker.answer(take, Failure(FailureKind.THROTTLED, "Slow", "later", retry_after=60.0, maybe_received=False))
    scans = worker.scans
    group.run(0.6)
    assert worker.scans > scans


def test_what_is_planned_is_dropped_when_a_row_is_found_to_be_gone():
    """If there are more rows than are written at once, the rest is not created from a listing that is no longer
    believed.
    """
    group = Group(shard(0))
    worker = group.worker()
    group.run(1.0)
    group.stream.shards = [shard(number) for number in range(71)]
    worker.machine.topology.discovery.list_by(group.now)
    worker.pump()
    worker.pump()
    creates = worker.waiting(CreateLease)
    assert len(creates) == 64
    group.stream.listing_fails = lambda _: DOWN
    group.now += 4.0
    group.rows.clear()
    worker.answer(creates[0])
    (renewal,) = worker.waiting(RenewLease)
    worker.answer(renewal)
    worker.answer(creates[1])
    assert worker.waiting(CreateLease) == creates[2:]


def scan_before_listing():
    """A scan that was started before the first listing, and is answered after it."""
    group = Group(shard(0, end=99), shard(1, 0, part=(0, 2)), shard(2, 0, part=(2, 4)))
    group.stream.listing_fails = lambda _: DOWN
    worker = group.worker("late", start=LATEST)
    (scan,) = worker.outbox
    group.stream.listing_fails = None
    group.now += 3.0
    worker.pump()
    worker.answer(scan)  # with the rows of three seconds ago: there were none
    group.rows[A] = Lease(A, checkpoint=Checkpoint(LATEST), latest_at=LATE)
    return group, worker


def test_l6_rows_are_as_old_as_the_scan_that_asked_for_them():
    """A scan that was started before a listing, and answered after it, does not show how the group began."""
    group, worker = scan_before_listing()
    group.run(1.0)
    assert set(worker.held) == {A}


def test_l2_a_lease_lasts_from_when_it_was_asked_for_and_not_from_the_scan_before():
    """A lease that was planned from a slow scan lasts as long as any other."""
    group = Group(shard(0))
    group.rows[A] = Lease(A)
    worker = group.worker()
    (scan,) = worker.outbox
    group.now += 5.0
    worker.answer(scan)
    while A not in worker.held:
        worker.answer_all()
    assert worker.held[A].grant.held_until == group.now + 10.0


def list_slowly(group, worker, seconds, *shards):
    """A listing that starts now, and is answered much later."""
    worker.begin_listing()
    group.now += seconds
    worker.machine.handle_shards(ListShardsResponse(list(shards)), group.now)
    worker.pump()


def test_a_shard_that_was_denied_once_and_is_there_is_let_go_of_once():
    """If the service denied once that a shard exists, the shard is not released again and again."""
    group, worker = hold_one()
    worker.machine.mark_missing(A, group.now)
    worker.pump()
    group.run(100.0)
    assert len(worker.seen(LeaseReleased)) == 1
    assert set(worker.held) == {A}


def test_c3_a_slow_listing_that_was_begun_too_early_proves_no_shard_childless():
    """A listing that was requested less than a second after the first may be just as outdated."""
    group, worker = hold_one()
    worker.end(A)
    group.run(0.2)
    list_slowly(group, worker, 1.5, shard(0))
    worker.answer_all()
    assert not group.rows[A].checkpoint.is_finished


def test_c3_the_end_is_written_at_once_when_the_last_record_is_done():
    """After the last two records are done one after the other, the end does not wait for the next scan or commit."""
    group, worker = hold_one(checkpoint_interval=60.0)
    first, last = worker.read(A, 1, 2, ack=False)
    worker.end(A)
    group.run(5.0)
    assert worker.machine.held.ack_through(A, first)
    assert worker.machine.held.ack_through(A, last)
    worker.pump()
    (commit,) = worker.waiting(CommitCheckpoint)
    assert commit.checkpoint.is_finished


def test_how_long_a_lease_is_free_counts_from_the_last_time_that_it_became_so():
    """A lease that was free once, long ago, is not open to every worker at the moment when it is free again."""
    view = LeaseView(10.0)
    view.handle_rows([Lease(A)], 0.0, 0.0)
    view.handle_rows([Lease(A, counter=1, owner="w")], 1.0, 1.0)
    view.handle_rows([Lease(A, counter=2)], 100.0, 100.0)
    assert view.available_for(A, 100.5) == 0.5


def test_what_was_written_while_the_shards_were_listed_contradicts_no_listing():
    """A shard that was finished while a listing was on its way is no reason to doubt the stream."""
    group, worker = hold_one()
    worker.begin_listing()
    worker.machine.view.handle_written(A, Lease(A, counter=99, checkpoint=Checkpoint(SHARD_END)), group.now)
    worker.machine.handle_shards(ListShardsResponse([shard(0)]), group.now)
    assert worker.machine.topology.is_settled


def test_a_listing_that_was_under_way_when_rows_were_found_gone_is_not_believed():
    """Only a listing that was started after the doubt arose counts."""
    group, worker = hold_one()
    topology = worker.machine.topology
    worker.begin_listing()
    topology.distrust(group.now)
    worker.machine.handle_shards(ListShardsResponse([shard(0)]), group.now)
    assert not topology.is_settled


def test_two_listings_that_are_late_together_stop_nothing_though_the_first_was_slow():
    """A doubt is as old as the answer that raised it, not as the request."""
    group, worker = hold_one()
    worker.read(A, 500)
    group.run(2.0)
    assert group.rows[A].checkpoint.sequence_number is not None
    list_slowly(group, worker, 2.0, shard(0, begin=1_000))
    list_slowly(group, worker, 0.0, shard(0, begin=1_000))
    assert worker.seen(StreamReplaced) == []
    group.run(5.0)
    assert set(worker.held) == {A}


def begun_listing():
    """A listing whose first page has arrived, and whose second was not requested yet."""
    group, worker = hold_one()
    worker.begin_listing()
    discovery = worker.machine.topology.discovery
    discovery.handle_page(ListShardsResponse([shard(0)], "more"), group.now)
    return discovery, group.now


def test_who_asks_for_a_time_between_two_pages_of_a_listing_gets_no_answer_to_another_question():
    """The second page of a listing does not say which shards were open at a time."""
    discovery, now = begun_listing()
    assert discovery.match_at(5.0)
    assert discovery.poll_request(now).next_token == "more"
    discovery.handle_page(ListShardsResponse([shard(1)]), now)
    assert discovery.matching is None
    assert len(discovery.take_listing().shards) == 2


def test_who_asks_between_two_pages_of_a_listing_gets_one_that_is_begun_later():
    """A listing of which a page has already arrived may be too old for this request."""
    discovery, now = begun_listing()
    discovery.list_by(now)
    assert discovery.poll_request(now).next_token == "more"
    discovery.handle_page(ListShardsResponse([]), now)
    assert discovery.next_deadline() <= now


def test_who_asks_for_a_later_listing_puts_off_none():
    """A listing that is due at once is not delayed by a request for one in a second."""
    group, worker = hold_one()
    topology = worker.machine.topology
    topology.discovery.list_by(group.now)
    topology.discovery.list_by(group.now + 1.0)
    assert topology.next_deadline() <= group.now


TRANSIENT = Failure(FailureKind.TRANSIENT, "InternalFailure", "why", 500)


def test_after_listings_that_worked_a_failure_is_the_first_again():
    """A listing that fails long after an outage is repeated in a second, not in half a minute."""
    group, worker = hold_one()
    group.stream.listing_fails = lambda _: DOWN
    group.run(200.0)
    group.stream.listing_fails = None
    group.run(60.0)
    group.stream.listing_fails = lambda _: DOWN
    worker.machine.topology.discovery.list_by(group.now)
    worker.pump()
    listings = worker.listings
    group.run(1.1)
    assert worker.listings > listings


def test_a_large_page_that_came_slowly_is_paid_for_from_when_it_came():
    """The time that a page took on its way earns no read capacity."""
    one = ReaderShell(budget=PrefetchBudget(64 * MIB)).start()
    one.page(RawRecord(bytes(6 * MIB), "1", "k", 1.0), behind=5_000, latency=2.9)
    assert one.page(2, behind=5_000) > 2.9


def test_a_read_that_fails_after_a_long_time_is_not_repeated_at_once():
    """The pause after a failure starts at the failure, not at the call."""
    one = ReaderShell().start()
    one.ask()
    one.now += 30.0
    one.reader.handle_failure(TRANSIENT, one.now)
    assert one.reader.next_deadline() >= one.now + 0.1


def test_after_a_page_a_failure_is_the_first_again():
    """A read that fails long after earlier failures is repeated soon."""
    one = ReaderShell().start()
    for _ in range(10):
        one.fail(TRANSIENT)
    one.page(1, behind=5_000)
    one.fail(TRANSIENT)
    assert one.reader.next_deadline() <= one.now + 0.25


def tracked():
    """Two records were handed out, the first is done, and its commit is in flight."""
    tracker = CheckpointTracker(Checkpoint(LATEST), interval=60.0, now=0.0)
    first, last = (Record(b"", "k", sequence_number=number, shard_id=A) for number in ("1", "2"))
    tracker.deliver([first, last])
    tracker.ack_through(first)
    assert tracker.poll_commit(60.0) is not None
    return tracker, last


def test_c4_what_is_done_while_a_commit_is_under_way_is_flushed_too():
    """A worker that leaves while a commit is in flight does not wait an interval for the next one."""
    tracker, last = tracked()
    tracker.ack_through(last)
    tracker.seal()
    tracker.handle_committed()
    assert tracker.poll_commit(60.1) is not None


def test_c4_a_commit_that_failed_is_written_without_waiting_for_the_interval():
    """A checkpoint that was not written stays due at the same time."""
    tracker, _ = tracked()
    tracker.handle_commit_failed()
    assert tracker.poll_commit(60.1) is not None


def test_a_shard_that_came_back_and_goes_again_is_reported_again():
    """A shard that retention removes unread is reported, even if one with the same id was reported before."""
    group = Group(shard(0, part=(0, 2)), shard(1, part=(2, 4)))
    worker = group.worker()
    both = group.stream.shards
    for shards in (both, both[1:], both, both[1:]):
        group.stream.shards = shards
        group.run(60.0)
    assert len(worker.seen(ShardTrimmed)) == 2


def test_a_child_that_an_earlier_stream_named_is_not_waited_for():
    """A shard of the earlier stream merged with one whose id the new stream has, too: no listing will show the child."""
    new = shard(0).to_shard()
    gone, child = shard(1).to_shard(), shard(2, 0, 1).to_shard()
    rows = {gone.shard_id: Lease(gone.shard_id)}
    graph = ShardGraph()
    graph.handle_listing([new], rows, 0.0, 0.0)
    graph.handle_children([ChildShard(child.shard_id, child.parent_ids, child.hash_range)])
    graph.handle_listing([new], rows, 0.9, 0.9)
    assert graph.is_present(child.shard_id)
    for begun_at in (1.0, 1.1):
        graph.handle_listing([new], rows, begun_at, begun_at)
    assert not graph.is_present(child.shard_id)


def test_a_child_that_was_named_and_went_with_its_parent_is_not_waited_for():
    """If retention removes a parent, and a child that was never listed, the group does not stop."""
    old, child, young = (one.to_shard() for one in (shard(0, end=9), shard(1, 0), shard(5)))
    graph = ShardGraph()
    graph.handle_listing([old], {}, 0.0, 0.0)
    graph.handle_children([ChildShard(child.shard_id, child.parent_ids, child.hash_range)])
    graph.handle_listing([old], {}, 1.0, 1.0)
    assert graph.is_present(child.shard_id)
    graph.handle_listing([young], {}, 100.0, 100.0)
    assert not graph.is_present(child.shard_id)
