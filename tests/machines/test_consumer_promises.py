"""Tests what the users of a group rely on, one guarantee per test, with the group of ``tests/harness``: shards are
shared evenly and then stay where they are, finished records are committed before a lease is released, the store and the
service are not called too often, and a single observation is not believed.

The machine of the fleet draws random events and checks what must never happen. These tests check what must happen, and
when.
"""

import pytest
from tests.harness.coordinator import (
    DOWN,
    FOUR,
    HALVES,
    LATE,
    LOST,
    A,
    B,
    C,
    Group,
    at,
    hold_one,
    names,
    shard,
)

from shardline.codec.shapes import ListShardsResponse
from shardline.core.consumer.consumer_events import (
    HandOverAsked,
    HandOverOverdue,
    LeaseGained,
    LeaseLost,
    LeaseReleased,
    ShardTrimmed,
    StreamReplaced,
)
from shardline.core.consumer.coordinator import ScanLeases
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import (
    AskHandOver,
    CancelHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    FinishHandOver,
    Refused,
    ReleaseLease,
    RenewLease,
    TakeLease,
    WriteChildren,
)
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_sequence_number, at_timestamp
from shardline.model.sequence import SequenceNumber

# ---- sharing


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_leases_are_shared_evenly_and_then_left_in_peace(workers):
    group = Group()
    for _ in range(workers):
        group.worker()
        group.run(3.0)
    group.run(60.0)
    loads = group.loads()
    assert (sum(loads), loads[-1] - loads[0] <= 1) == (4, True)
    quiet_since = group.now
    group.run(120.0)
    assert group.done(TakeLease, quiet_since) + group.done(AskHandOver, quiet_since) == []


def test_workers_that_see_the_same_take_different_leases():
    """Each has a lease, and two more are free: both workers see them at the same time."""
    group = Group()
    for place, owner in enumerate(["a", "b", None, None]):
        group.rows[names(place)[0]] = Lease(names(place)[0], owner=owner)
    for name in "ab":
        group.worker(name)
    group.run(5.0)
    takes = [result for _, _, operation, result in group.log if isinstance(operation, TakeLease)]
    assert (len(takes), any(isinstance(result, Refused) for result in takes)) == (4, False)
    assert group.loads() == [2, 2]


def test_what_a_full_worker_leaves_lying_is_taken_by_another():
    group = Group()
    group.worker("a", max_leases=1)
    group.run(3.0)
    group.worker("b")
    group.run(60.0)
    assert group.loads() == [1, 3]


def test_a_worker_that_died_is_replaced_when_its_leases_have_lapsed():
    group = Group()
    for name in "ab":
        group.worker(name)
    group.run(60.0)
    group.workers.pop(0)
    group.run(9.0)
    assert group.loads() == [2]
    group.run(4.0)
    assert group.loads() == [4]


def test_a_worker_asks_for_one_lease_first_and_for_its_share_at_most():
    group = Group()
    old = group.worker("old")
    group.run(30.0)
    old.drains = False
    group.worker("new")
    group.run(0.1)
    assert len(group.done(AskHandOver)) == 1
    group.run(4.0)
    assert len(group.done(AskHandOver)) <= 2


def test_no_worker_has_more_leases_than_max_leases():
    group = Group(max_leases=1)
    group.worker()
    group.run(60.0)
    assert group.loads() == [1]
    group.worker()
    group.run(60.0)
    assert group.loads() == [1, 1]


def test_a_hand_over_takes_a_moment_if_the_user_is_done():
    group, old = hold_one(shards=HALVES)
    new = group.worker("new")
    group.run(6.0)
    assert (len(old.held), len(new.held)) == (1, 1)
    assert old.seen(HandOverOverdue) == old.seen(LeaseLost) == []


def test_a_user_that_is_not_done_in_time_loses_its_grant_and_the_lease_goes():
    group, old = hold_one(shards=HALVES)
    old.drains = False
    new = group.worker("new")
    group.run(4.0)
    (asked,) = old.seen(HandOverAsked)
    grant = old.held[asked.shard_id].grant
    assert grant.held
    group.run(3.0)
    assert [event.shard_id for event in old.seen(HandOverOverdue)] == [asked.shard_id]
    assert not grant.held
    group.run(2.0)
    assert asked.shard_id in new.held


def test_a_hand_over_to_which_the_old_owner_never_agrees_ends_by_taking():
    group = Group(shard(0))
    group.rows[A] = Lease(A, counter=5, owner="new", checkpoint_owner="old", checkpoint=at(7), hash_range=None)
    new = group.worker("new")
    for _ in range(40):  # a foreign worker that only renews
        group.run(1.0)
        row = group.rows[A]
        if row.checkpoint_owner == "old":
            group.apply("old", RenewLease(A, "old", row.counter))
    assert A in new.held


# ---- releasing leases


def test_l5_a_worker_that_leaves_has_committed_everything_and_others_take_over_at_once():
    group = Group(shard(0))
    old = group.worker("old")
    group.run(30.0)
    grant = old.held[A].grant
    old.read(A, 5)
    group.run(0.1)
    assert group.rows[A].checkpoint == at(5)
    old.read(A, 6)  # the next commit is due in a second
    began = group.now
    old.machine.close()
    assert not grant.held, "soon another may hold it, before we hear that it was let go of"
    old.pump()
    group.run(0.2)
    assert old.machine.is_closed
    assert (group.rows[A].checkpoint, group.rows[A].holder) == (at(6), None)
    kinds = [type(operation).__name__ for when, _, operation, _ in group.log if when >= began]
    assert kinds == ["CommitCheckpoint", "ReleaseLease"]


def test_a_release_whose_answer_was_lost_is_a_release():
    group = Group(shard(0))
    old = group.worker("old")
    group.run(30.0)
    old.close()
    (request,) = old.outbox
    old.answer(request, LOST)
    group.run(5.0)
    assert old.machine.is_closed
    assert (old.seen(LeaseLost), len(old.seen(LeaseReleased))) == ([], 1)


# ---- ownership and time


def test_l2_a_lease_that_lapses_while_the_store_hangs_is_reported_at_once():
    group, worker = hold_one()
    worker.mute = True
    grant = worker.held[A].grant
    end = grant.held_until
    group.run(30.0)
    lost = [when for when, event in worker.events if isinstance(event, LeaseLost)]
    assert lost == [pytest.approx(end, abs=0.01)]
    worker.mute = False
    group.run(0.4)
    assert not grant.held, "never again"


def test_l2_a_lease_that_was_taken_lasts_from_when_it_was_asked_for():
    group = Group(shard(0))
    worker = group.worker()
    take = worker.wait_for(TakeLease)
    sent_at, group.now = group.now, group.now + 3.0
    worker.answer(take)
    assert worker.held[A].grant.held_until == pytest.approx(sent_at + 10.0)


def test_l2_a_thread_that_asks_after_the_lapse_but_before_the_loop_runs_is_refused():
    group, worker = hold_one()
    grant = worker.held[A].grant
    group.now = grant.held_until + 0.001
    assert not grant.held


def test_a_take_whose_answer_was_lost_is_made_good():
    group = Group(shard(0))
    worker = group.worker()
    take = worker.wait_for(TakeLease)
    worker.answer(take, LOST)
    assert group.rows[A].owner == worker.name
    group.run(3.0)
    assert A in worker.held


def test_a_commit_whose_answer_was_lost_is_written_once():
    group, worker = hold_one()
    worker.mute = True
    worker.read(A, 5)
    while not worker.waiting(CommitCheckpoint):
        group.run(0.1)
        worker.answer_but(CommitCheckpoint)
    (commit,) = worker.waiting(CommitCheckpoint)
    worker.answer(commit, LOST)
    worker.mute = False
    group.run(5.0)
    assert [operation for _, operation in group.done(CommitCheckpoint)] == [commit]
    assert A in worker.held


def test_l5_a_lease_that_arrives_while_a_worker_leaves_is_let_go_too():
    group = Group(shard(0))
    worker = group.worker()
    worker.wait_for(TakeLease)
    worker.machine.close()
    group.run(2.0)
    assert worker.machine.is_closed
    assert group.rows[A].holder is None


def ask_and_leave(*, drains):
    """One worker has four leases; another asks for some of them, and leaves before it has any."""
    group = Group()
    first = group.worker("first")
    group.run(1.0)
    first.drains = False
    second = group.worker("second")
    while not group.done(AskHandOver):
        group.run(0.1)
    group.run(1.0)  # the first worker knows of the request
    first.drains = drains
    second.close()
    return group, first, second


def test_l5_a_worker_that_leaves_calls_off_what_it_asked_for():
    group, first, second = ask_and_leave(drains=False)
    group.run(0.1)
    assert second.machine.is_closed
    assert len(group.done(CancelHandOver)) == len(group.done(AskHandOver))
    assert all("second" not in {row.owner, row.checkpoint_owner} for row in group.rows.values())
    group.run(6.0)  # the users had their time, and the leases are free at once
    assert group.done(FinishHandOver) == []
    assert len(first.held) == 4


def test_l5_what_was_handed_over_to_one_that_leaves_is_let_go_of_unread():
    group, first, second = ask_and_leave(drains=True)
    cancel, *_ = second.waiting(CancelHandOver)
    first.machine.held.leave(cancel.shard_id)
    first.pump()
    first.answer_all()
    assert group.rows[cancel.shard_id].holder == "second"
    group.run(2.0)
    assert second.machine.is_closed
    assert second.seen(LeaseGained) == []
    assert ("second", ReleaseLease) in [(who, type(one)) for who, one in group.done(ReleaseLease)]
    assert len(first.held) == 4, "and nobody waited for it to lapse"


def test_l5_an_ask_that_is_answered_after_closing_is_called_off_too():
    group = Group()
    group.worker("first")
    group.run(1.0)
    second = group.worker("second")
    ask = second.wait_for(AskHandOver)
    second.machine.close()
    second.answer(ask, LOST)
    group.run(2.0)
    assert second.machine.is_closed
    assert len(group.done(CancelHandOver)) == 1


def test_l5_an_unreachable_store_delays_an_exit_by_one_lease_at_most():
    group, _, second = ask_and_leave(drains=False)
    second.failing = DOWN
    group.run(9.0)
    assert not second.machine.is_closed
    group.run(2.0)
    assert second.machine.is_closed


def test_l5_a_scan_that_is_answered_after_closing_shows_what_to_give_back():
    group, _, second = ask_and_leave(drains=False)
    late = group.worker("late")
    (scan,) = late.outbox
    late.machine.close()
    group.rows[A] = Lease(A, counter=9, owner="late")
    late.answer(scan)
    group.run(1.0)
    assert late.machine.is_closed
    assert second.machine.is_closed
    assert group.rows[A].owner != "late"


def test_l2_a_lapsed_grant_does_not_come_back_with_a_late_answer():
    group, worker = hold_one()
    grant = worker.held[A].grant
    worker.mute = True
    group.run(30.0)
    worker.mute = False
    group.run(10.0)
    assert not grant.held
    assert worker.held[A].grant is not grant
    assert worker.held[A].grant.held


def test_l2_a_renewal_that_was_repeated_counts_from_its_first_attempt():
    group, worker = hold_one()
    worker.mute = True
    renewal = worker.wait_for(RenewLease, 0.1)
    sent_at = worker.machine._in_flight[A].sent_at
    group.now = sent_at + 2.0
    worker.answer(renewal, LOST)  # the operation was applied, but its answer was lost
    group.now = worker.machine.held.next_work()
    worker.pump()
    worker.answer(renewal)  # it was sent again unchanged
    assert group.rows[A].counter == renewal.counter + 1
    assert worker.held[A].grant.held_until == pytest.approx(sent_at + 10.0)


def test_l2_what_carries_no_fence_is_no_renewal():
    """Rows of children are written without a counter, so such a write proves nothing about the holder."""
    group, worker = hold_one()
    children = [shard(1, 0, part=(0, 2), begin=50), shard(2, 0, part=(2, 4), begin=50)]
    group.stream.shards = [shard(0, end=40), *children]
    before = worker.held[A].grant.held_until
    worker.mute = True
    worker.end(A, *children)
    for _ in range(40):
        worker.answer_some(worker.waiting(CreateLease, WriteChildren, ScanLeases))
        if any(isinstance(operation, WriteChildren) for _, _, operation, _ in group.log):
            break
        group.now += 0.05
        worker.pump()
    assert group.done(WriteChildren)
    assert worker.machine.held.holdings[A].grant.held_until == before


def test_renewals_do_not_wait_for_a_scan_that_hangs():
    group, worker = hold_one()
    worker.mute = True
    worker.wait_for(ScanLeases, 0.1)
    worker.answer_but(ScanLeases)
    renewed_at = worker.machine.held.holdings[A].next_work()
    assert worker.machine.next_deadline() == renewed_at
    group.run(renewed_at - group.now + 0.01)
    assert worker.waiting(RenewLease)


def test_l4_nothing_is_written_for_a_lease_that_was_lost():
    group, worker = hold_one()
    records, grant = worker.read(A, 5, ack=False), worker.held[A].grant
    group.apply("thief", TakeLease(A, "thief", group.rows[A].fence))
    began = group.now
    group.run(1.0)
    assert [event.shard_id for event in worker.seen(LeaseLost)] == [A]
    assert not grant.held
    assert not worker.machine.held.ack_through(A, records[-1])
    group.run(5.0)
    assert [who for who, _ in group.done(CommitCheckpoint, began) if who == "me"] == []


def test_l4_a_renewal_that_is_refused_tells_who_took_the_lease():
    group, worker = hold_one()
    worker.mute = True
    worker.wait_for(RenewLease, 0.1)
    group.apply("thief", TakeLease(A, "thief", group.rows[A].fence))
    (renewal,) = worker.waiting(RenewLease)
    worker.answer(renewal)
    assert [event.shard_id for event in worker.seen(LeaseLost)] == [A]


def test_a_scan_that_is_older_than_our_own_write_does_not_undo_it():
    group, worker = hold_one()
    worker.mute = True
    worker.wait_for(ScanLeases, 0.1)
    before = list(group.rows.values())  # the result of the scan
    worker.read(A, 5)
    group.now += 1.5  # later than the interval between two commits
    worker.pump()
    while worker.answer_but(ScanLeases):
        group.now += 0.01
    assert group.rows[A].checkpoint == at(5)
    worker.outbox.clear()
    worker.machine.handle_rows(before, group.now)  # and the records that are reported now
    worker.pump()
    assert worker.machine.view.rows[A] == group.rows[A]
    assert worker.machine.held.holdings[A].row == group.rows[A]


# ---- an outage


def test_a_store_that_is_down_is_asked_now_and_then():
    group, worker = hold_one()
    worker.failing = DOWN
    before = worker.scans
    group.run(60.0)
    assert 30 < worker.scans - before < 150
    worker.failing = None
    group.run(3.0)
    assert A in worker.held


def test_listings_that_fail_are_repeated_with_growing_pauses():
    group = Group(shard(0))
    group.stream.listing_fails = lambda _: Failure(FailureKind.LIMIT_EXCEEDED, "LimitExceededException", "why")
    worker = group.worker()
    group.run(300.0)
    assert 8 < worker.listings < 30
    group.stream.listing_fails = None
    group.run(40.0)
    assert A in worker.held


def test_a_listing_that_failed_half_way_is_begun_again():
    group = Group()
    failures = [Failure(FailureKind.TRANSIENT, "InternalFailure", "why")]
    asked = []

    def fails(request):
        asked.append(request.next_token)
        return failures.pop() if request.next_token and failures else None

    group.stream.listing_fails = fails
    group.stream.pages = [FOUR[:2], FOUR[2:]]
    worker = group.worker("me")
    group.run(30.0)
    assert asked[:4] == [None, "more", None, "more"]
    assert len(worker.held) == 4


def test_an_unannounced_shard_is_found_by_the_next_listing():
    group, worker = hold_one()
    group.stream.shards += [shard(7, begin=90)]
    group.run(45.0)
    assert worker.listings > 1
    assert names(7)[0] in group.rows


# ---- resharding


SPLIT = [shard(1, 0, part=(0, 2), begin=50), shard(2, 0, part=(2, 4), begin=50)]


def test_l3_children_are_read_a_moment_after_their_parent_is_done():
    group, worker = hold_one(scan_interval=60.0, lease_duration=300.0)
    group.run(70.0)
    group.stream.shards = [shard(0, end=40), *SPLIT]
    worker.end(A, *SPLIT)
    group.run(1.0)
    assert {B, C} == set(worker.held)
    assert group.rows[A].checkpoint.is_finished


def test_c3_the_end_is_not_written_while_the_rows_of_the_children_are_on_their_way():
    group, worker = hold_one()
    group.stream.shards = [shard(0, end=40), *SPLIT]
    worker.mute = True
    worker.end(A, *SPLIT)
    for _ in range(40):
        worker.answer_but(CreateLease)
        group.now += 0.05
        worker.pump()
    assert not group.rows[A].checkpoint.is_finished
    worker.mute = False
    group.run(1.0)
    assert group.rows[A].checkpoint.is_finished
    assert {B, C} == set(worker.held)


def test_c3_that_a_shard_has_no_children_is_believed_after_two_listings():
    """The service reports the end of the shard before its listing has the children."""
    group, worker = hold_one()
    before = worker.listings
    worker.end(A)
    group.run(5.0)
    assert worker.listings >= before + 2
    group.stream.shards = [shard(0, end=40), *SPLIT]
    group.run(60.0)
    assert {B, C} == set(worker.held)


def test_children_that_were_named_are_known_though_the_listing_is_late():
    """The rows of the children cannot be written at first. Meanwhile a listing arrives that is older than the split."""
    group, worker = hold_one()
    worker.failing = DOWN
    worker.end(A, *SPLIT)
    worker.machine.topology.discovery.list_by(group.now)
    before = worker.listings
    group.run(2.0)
    assert worker.listings > before
    worker.failing = None
    group.run(3.0)
    assert {B, C} == set(worker.held)


def test_l3_the_child_of_a_merge_waits_for_both_parents():
    merged = shard(2, 0, 1, begin=50)
    group, worker = hold_one(shards=HALVES)
    group.stream.shards = [shard(0, part=(0, 2), end=40), shard(1, part=(2, 4), end=40), merged]
    worker.end(A, merged)
    group.run(30.0)
    assert set(worker.held) == {B}
    worker.end(B, merged)
    group.run(30.0)
    assert set(worker.held) == {C}


@pytest.mark.parametrize("grandchild", [Lease(C), Lease(C, checkpoint=at(75))], ids=["unread", "begun"])
def test_l3_a_grandchild_waits_for_a_grandparent_though_the_parent_has_no_row(grandchild):
    group = Group(shard(0, end=40), shard(1, 0, begin=50, end=60), shard(2, 1, begin=70))
    group.rows[A] = Lease(A, checkpoint=at(7))
    group.rows[C] = grandchild
    worker = group.worker()
    group.run(30.0)
    assert set(worker.held) == {A}


LINE = [shard(0, end=40), shard(1, 0, begin=50, end=60), shard(2, 1, begin=70)]


def test_a_shard_that_two_beginnings_of_a_group_left_out_between_them_is_read_in_its_turn():
    group = Group(*LINE)
    group.rows |= {one: Lease(one, checkpoint=Checkpoint(LATEST), latest_at=LATE) for one in (A, C)}
    worker = group.worker(start=LATEST)
    group.run(30.0)
    assert set(worker.held) == {A}
    worker.end(A, LINE[1])
    group.run(30.0)
    assert {shard_id: event.start for shard_id, event in worker.held.items()} == {B: TRIM_HORIZON}
    worker.end(B, LINE[2])
    group.run(30.0)
    assert set(worker.held) == {C}


def test_below_a_finished_shard_nothing_was_left_out():
    """A group that was reset to LATEST has rows of its past and of its new beginning. The shards in between are not
    read.
    """
    group = Group(*LINE)
    group.rows[A] = Lease(A, checkpoint=Checkpoint(SHARD_END))
    group.rows[C] = Lease(C, checkpoint=Checkpoint(LATEST), latest_at=LATE)
    worker = group.worker(start=LATEST)
    group.run(30.0)
    assert set(worker.held) == {C}
    assert B not in group.rows


def test_the_other_side_of_a_merge_is_read_though_no_row_was_ever_made_for_it():
    """A KCL group knows only one parent: the row of the child must not make the other parent count as finished."""
    merged = shard(2, 0, 1, begin=50)
    group = Group(shard(0, part=(0, 2), end=40), shard(1, part=(2, 4), end=40), merged)
    group.rows[A] = Lease(A, checkpoint=at(7))
    worker = group.worker()
    group.run(1.0)
    if A in worker.held:
        worker.end(A, merged)
    group.run(40.0)
    assert B in group.rows
    assert C not in worker.held


def test_the_child_of_a_merge_gets_no_row_before_its_other_parent_has_one():
    """After a crash in between, the child's row alone would make the other parent count as finished."""
    merged = shard(2, 0, 1, begin=50)
    group = Group(shard(0, part=(0, 2)))  # the other one is younger than the listing
    worker = group.worker()
    group.run(30.0)
    group.stream.shards = [shard(0, part=(0, 2), end=40), shard(1, part=(2, 4), end=40), merged]
    worker.mute = True
    worker.end(A, merged)
    asked = []
    for _ in range(20):
        worker.answer_but(CreateLease)
        asked += [one.shard_id for one in worker.waiting(CreateLease)]
        group.now += 0.1
        worker.pump()
    assert set(asked) == {B}
    worker.mute = False
    group.run(2.0)
    assert {B, C} <= group.rows.keys()


def test_who_asks_for_a_listing_gets_one_that_is_begun_later():
    group, worker = hold_one()
    assert worker.begin_listing() is not None
    discovery = worker.machine.topology.discovery
    discovery.list_by(group.now)  # while that operation is in flight
    discovery.handle_page(ListShardsResponse([shard(0)]), group.now)
    assert discovery.next_deadline() <= group.now
    assert discovery.poll_request(group.now) is not None


def test_one_late_listing_makes_no_shard_look_gone():
    group, worker = hold_one()
    group.stream.shards = []
    worker.machine.mark_missing(A, group.now)
    worker.pump()
    group.stream.shards = [shard(0)]
    group.run(3.0)
    assert not group.rows[A].checkpoint.is_finished


def test_two_late_listings_that_come_at_once_make_no_shard_look_gone():
    group, worker = hold_one()
    group.stream.shards = []
    for _ in range(2):
        worker.machine.mark_missing(A, group.now)
        worker.pump()
        group.run(0.1)
    group.stream.shards = [shard(0)]
    group.run(3.0)
    assert not group.rows[A].checkpoint.is_finished
    assert worker.seen(ShardTrimmed) == []


def test_a_shard_that_went_out_of_retention_while_it_was_read_gives_way_to_its_children():
    group, worker = hold_one()
    group.stream.shards = [*SPLIT]
    worker.machine.mark_missing(A, group.now)
    group.run(30.0)
    assert {B, C} == set(worker.held)


# ---- where to start


def test_l6_latest_is_the_moment_when_the_row_was_made_also_after_a_restart():
    group = Group(shard(0))
    first = group.worker("first", start=LATEST, latest_at=LATE)
    group.run(30.0)
    assert first.held[A].start == at_timestamp(LATE)
    first.close()
    group.run(1.0)
    group.workers.remove(first)
    second = group.worker("second", start=LATEST, latest_at=LATE + 500)
    group.run(30.0)
    assert second.held[A].start == at_timestamp(LATE)


def test_l6_latest_that_another_library_wrote_is_pinned_when_it_is_taken():
    group = Group(shard(0))
    group.rows[A] = Lease(A, checkpoint=Checkpoint(LATEST))
    worker = group.worker("me", start=LATEST, latest_at=LATE)
    group.run(30.0)
    assert worker.held[A].start == at_timestamp(LATE)


def test_l6_a_partly_created_group_is_completed_from_its_first_position():
    """The worker that began the group died after its first row. The records that arrived in the other shards since then
    belong to the group, too.
    """
    group = Group()
    group.rows[A] = Lease(A, checkpoint=Checkpoint(LATEST), latest_at=LATE)
    worker = group.worker("late", start=LATEST, latest_at=LATE + 50.0)
    group.run(1.0)
    assert len(worker.held) == 4
    assert {event.start for event in worker.held.values()} == {at_timestamp(LATE)}


def test_a_group_that_was_begun_in_part_is_completed_with_the_shards_that_were_open_then():
    """With only the open shards, the records that arrived in a shard between the beginning and its split would be
    skipped.
    """
    children = [shard(2, 1, part=(2, 3), begin=50), shard(3, 1, part=(3, 4), begin=50)]
    group = Group(shard(0, part=(0, 2)), shard(1, part=(2, 4), end=40), *children)
    group.stream.open_then = [shard(0, part=(0, 2)), shard(1, part=(2, 4))]
    group.rows[A] = Lease(A, checkpoint=Checkpoint(LATEST), latest_at=LATE)
    worker = group.worker("late", start=LATEST, latest_at=LATE + 50.0)
    group.run(30.0)
    assert {event.start for event in worker.held.values()} == {at_timestamp(LATE)}
    assert set(worker.held) == group.rows.keys() == {A, B}
    worker.end(B, *children)
    group.run(30.0)
    assert {worker.held[shard_id].start for shard_id in names(2, 3)} == {TRIM_HORIZON}


def test_an_unread_lineage_is_read_from_its_oldest_remaining_shard():
    """An outage longer than the retention, with two reshards: A's children came and went, and their children are
    closed.
    """
    closed = [shard(3, 1, part=(0, 1), begin=50, end=60), shard(4, 2, part=(3, 4), begin=50, end=60)]
    young = [shard(5, 3, 4, begin=70)]
    group = Group(*closed, *young)
    group.rows[A] = Lease(A, checkpoint=Checkpoint(at_sequence_number(SequenceNumber(7))))
    worker = group.worker(start=LATEST, latest_at=LATE + 50.0)
    group.run(30.0)
    assert set(worker.held) - {A} == group.rows.keys() - {A} == set(names(3, 4))
    assert {worker.held[shard_id].start for shard_id in names(3, 4)} == {TRIM_HORIZON}
    for ended in names(3, 4):
        worker.end(ended, *young)
        group.run(30.0)
    assert [worker.held[shard_id].start for shard_id in names(5)] == [TRIM_HORIZON]


def test_l6_nothing_is_read_before_every_row_of_the_beginning_is_there():
    """A commit replaces the time since which the group reads."""
    group = Group()
    group.rows[A] = Lease(A, checkpoint=Checkpoint(LATEST), latest_at=LATE)
    worker = group.worker("late", start=LATEST, latest_at=LATE + 50.0)
    worker.wait_for(CreateLease)
    creates = worker.waiting(CreateLease)
    assert creates == worker.outbox
    assert group.done(TakeLease) == []  # nor while it requests the shards that were open at the beginning
    worker.answer_some(creates[1:])
    worker.answer(creates[0], DOWN)
    assert worker.waiting(TakeLease) == []
    group.run(1.0)
    assert len(worker.held) == 4


def test_l6_a_group_begins_once_though_who_would_complete_it_cannot_and_dies():
    """The records that it reads and commits meanwhile would remove the only time that shows since when the group reads."""
    group = Group()
    group.rows[A] = Lease(A, checkpoint=Checkpoint(LATEST), latest_at=LATE)
    second = group.worker("second", start=LATEST, latest_at=LATE + 50.0)
    for _ in range(50):  # the store accepts no new row
        for request in [*second.outbox]:
            second.answer(request, DOWN if isinstance(request, CreateLease) else None)
        group.now += 0.1
        second.pump()
        for shard_id in second.held:
            second.read(shard_id, int(group.now * 10))
    group.workers.remove(second)
    third = group.worker("third", start=LATEST, latest_at=LATE + 100.0)
    group.run(30.0)
    assert len(third.held) == 4
    assert {event.start for event in third.held.values()} == {at_timestamp(LATE)}


def test_shards_that_are_found_later_are_read_from_their_beginning_whatever_the_start():
    group = Group(shard(0))
    worker = group.worker(start=LATEST)
    group.run(30.0)
    worker.end(A)  # its children are not listed yet, and it is finished without them
    group.run(5.0)
    assert group.rows[A].checkpoint.is_finished
    group.stream.shards = [shard(0, end=40), *SPLIT]
    group.run(60.0)
    assert {shard_id: event.start for shard_id, event in worker.held.items()} == {B: TRIM_HORIZON, C: TRIM_HORIZON}


def test_a_new_group_at_the_horizon_begins_with_the_oldest_and_at_latest_with_the_open_ones():
    group = Group(shard(0, end=40), *SPLIT)
    worker = group.worker()
    group.run(30.0)
    assert set(worker.held) == {A}
    other = Group(shard(0, end=40), *SPLIT)
    late = other.worker(start=LATEST)
    other.run(30.0)
    assert set(late.held) == {B, C}
    assert {event.start for event in late.held.values()} == {at_timestamp(LATE)}


# ---- deleted rows


def test_a_finished_row_stays_until_its_children_have_begun_and_it_was_quiet_for_long():
    group, worker = hold_one(list_interval=5.0)
    group.stream.shards = [shard(0, end=40), *SPLIT]
    worker.end(A, *SPLIT)
    group.run(400.0)
    assert A in group.rows, "the children have not begun"
    began = group.now
    worker.read(B, 60)
    worker.read(C, 61)
    group.run(10.0)
    group.run(400.0)
    assert A not in group.rows
    assert [operation.shard_id for _, operation in group.done(DeleteLease, began)] == [A]


def test_a_row_that_was_just_written_is_not_deleted():
    group, worker = hold_one(list_interval=5.0)
    worker.read(A, 10)
    group.stream.shards = [shard(0, end=40), *SPLIT]
    worker.end(A, *SPLIT)
    group.run(2.0)
    worker.read(B, 60)
    worker.read(C, 61)
    group.run(100.0)
    assert A in group.rows
    group.run(300.0)
    assert A not in group.rows


# ---- another stream


def test_rows_that_contradict_the_stream_stop_the_consumer_when_seen_twice():
    group = Group(shard(0, begin=500))
    group.rows[A] = Lease(A, checkpoint=at(7))
    worker = group.worker()
    assert worker.seen(StreamReplaced) == []
    group.run(45.0)
    assert len(worker.seen(StreamReplaced)) == 1
    assert worker.machine.topology.is_halted


def test_rows_that_seem_to_contradict_the_stream_once_stop_nothing():
    group = Group(shard(0, begin=500))
    group.rows[A] = Lease(A, checkpoint=at(7))
    worker = group.worker()
    while worker.listings < 2:  # the first listing was started before the rows were known
        group.run(0.1)
    group.stream.shards = [shard(0, begin=1)]
    group.run(60.0)
    assert worker.seen(StreamReplaced) == []
    assert A in worker.held


def test_two_late_listings_that_come_at_once_stop_nothing():
    group = Group(shard(0, begin=500))
    group.rows[A] = Lease(A, checkpoint=at(7))
    worker = group.worker()
    worker.answer_all()
    for _ in range(2):
        worker.machine.mark_missing(B, group.now)  # a listing is requested
        worker.pump()
        group.now += 0.1
    assert worker.listings >= 3  # the first listing was started before the rows were known
    group.stream.shards = [shard(0, begin=1)]
    group.run(60.0)
    assert worker.seen(StreamReplaced) == []
    assert A in worker.held


def test_a_stream_that_was_recreated_meanwhile_is_noticed():
    group, worker = hold_one()
    group.stream.created_at = 2.0
    group.run(30.0)
    assert len(worker.seen(StreamReplaced)) == 1


def test_rows_that_another_gave_up_are_made_again_from_a_newer_listing():
    """With rows that have the ranges of the old stream's shards, records of the new shards would be dropped."""
    group = Group(shard(0, part=(0, 2)), shard(1, part=(2, 4)), if_recreated="restart", out_of_range="drop")
    worker = group.worker()
    group.run(1.0)
    assert set(worker.held) == {A, B}
    group.stream.shards = [shard(0, part=(0, 1), begin=500), shard(1, part=(1, 4), begin=500)]
    group.rows.clear()
    group.run(1.0)
    ranges = {one.shard_id: one.to_shard().hash_range for one in group.stream.shards}
    assert {shard_id: row.hash_range for shard_id, row in group.rows.items()} == ranges
    assert {shard_id: event.hash_range for shard_id, event in worker.held.items()} == ranges
    listings = worker.listings
    group.run(10.0)
    assert worker.listings == listings, "once is enough"


def test_nothing_is_planned_on_the_listing_of_a_stream_that_is_gone():
    group, worker = hold_one(if_recreated="restart")
    group.stream.listing_fails = lambda _: DOWN
    group.stream.created_at = 2.0
    while not worker.seen(StreamReplaced):
        group.run(1.0)
    group.rows.clear()
    group.run(1.0)
    assert group.rows == {}
    group.stream.listing_fails = None
    group.run(40.0)
    assert set(group.rows) == {A}


def test_by_a_range_that_row_and_listing_do_not_agree_on_nothing_is_dropped():
    group = Group(shard(0))
    group.rows[A] = Lease(A, hash_range=shard(0, part=(0, 1)).to_shard().hash_range)
    worker = group.worker()
    worker.answer_all()
    worker.answer_all()
    assert worker.held[A].hash_range is None
