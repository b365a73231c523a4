"""Tests of ``shardline.core.consumer.lease_phases``."""

from dataclasses import replace

import pytest
from tests.harness.coordinator import at, record

from shardline.codec.stamps import StampRun
from shardline.core.clock import NEVER
from shardline.core.consumer.checkpoint import CheckpointTracker
from shardline.core.consumer.dedup_window import DedupWindow, SeenStamps
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.lease_phases import OVER, TRANSITIONS, Holding, Phase
from shardline.core.leases import (
    AskHandOver,
    CommitCheckpoint,
    FinishHandOver,
    Refused,
    ReleaseLease,
    RenewLease,
    TakeLease,
    WriteChildren,
    apply,
)
from shardline.model.lease import KEPT, Checkpoint, Incarnation, Lease
from shardline.model.position import SHARD_END, TRIM_HORIZON


class World:
    """A holding, and its row. Everything is sent and answered at the time ``now``."""

    def __init__(self):
        self.now = 100.0
        self.row = Lease("s", counter=7, owner="me")
        self.grant = Grant("s", 7, 110.0)
        self.tracker = CheckpointTracker(self.row.checkpoint, interval=1.0, now=100.0)
        self.holding = Holding(self.row, self.grant, self.tracker, me=Incarnation("me", "this", 10.0), sent_at=100.0)

    def poll(self, now=None):
        self.now = self.now if now is None else now
        return self.holding.poll_operation(self.now)

    def apply(self, operation):
        result = apply(self.row, operation)
        if not isinstance(result, Refused):
            self.row = result
        return result

    def step(self, now=None):
        """Send the operation that is due, and answer it."""
        operation = self.poll(now)
        if operation is not None:
            self.holding.handle_applied(self.apply(operation))
        return operation

    def ask(self):
        self.row = apply(self.row, AskHandOver("s", "other", "me"))

    def lose_answer(self, now=None, *, applied=True):
        operation = self.poll(now)
        if applied:
            self.apply(operation)
        self.holding.handle_failure(self.now + 0.5, maybe_received=True)
        return operation

    def done(self, *numbers):
        self.tracker.deliver([record(number) for number in numbers])
        self.tracker.ack_through(record(numbers[-1]))


@pytest.fixture
def world():
    return World()


def test_it_renews_three_times_in_a_lease_duration(world):
    assert world.holding.next_work() == pytest.approx(103.333, abs=0.001)
    assert world.poll(103.0) is None
    assert world.step(103.5) == RenewLease("s", "me", 7)
    assert world.grant.held_until == 113.5
    assert world.holding.next_work() == pytest.approx(106.833, abs=0.001)
    assert world.holding.row.counter == 8


def test_l1_one_operation_at_a_time(world):
    assert world.poll(104.0) is not None
    assert world.poll(105.0) is None
    assert world.holding.next_work() == NEVER
    assert world.holding.next_lapse() == 110.0


def test_l2_without_a_confirmed_renewal_it_is_lost(world):
    world.holding.handle_time(109.9)
    assert not world.holding.is_over
    world.holding.handle_time(110.0)
    assert world.holding.phase is Phase.LOST
    assert world.holding.why == "no renewal was confirmed within the lease duration"
    assert not world.grant.held
    assert world.poll(111.0) is None
    assert (world.holding.next_work(), world.holding.next_lapse()) == (NEVER, NEVER)
    world.holding.handle_time(120.0)
    world.holding.leave()
    world.holding.lose("again")
    assert world.holding.why.startswith("no renewal")


def test_a_commit_is_a_renewal(world):
    world.done(1, 2)
    assert world.step(101.0) == CommitCheckpoint("s", "me", 7, at(2))
    assert world.row.checkpoint == at(2)
    assert world.grant.held_until == 111.0
    assert world.holding.next_work() == pytest.approx(104.333, abs=0.001)


def test_l4_what_was_deleted_is_lost(world):
    world.poll(104.0)
    world.holding.handle_applied(Refused(None))
    assert world.holding.why == "its row was deleted"


@pytest.mark.parametrize(("row", "lost"), [(None, True), (Lease("s", 9, "other"), True), (Lease("s", 7, "me"), False)])
def test_l4_a_scan_tells_too(world, row, lost):
    world.holding.handle_seen(row)
    assert (world.holding.phase is Phase.LOST) == lost
    assert lost or world.holding.row == row


def test_an_answer_after_the_end_changes_nothing(world):
    operation = world.poll(104.0)
    world.holding.lose("because")
    world.holding.handle_applied(world.apply(operation))
    assert not world.grant.in_force(104.0)
    again = World()
    again.poll(104.0)
    again.holding.lose("because")
    again.holding.handle_failure(105.0, maybe_received=True)
    assert again.poll(106.0) is None


# ---- failures


def test_an_operation_that_was_never_sent_is_decided_again(world):
    world.done(1)
    assert world.poll(101.0) == CommitCheckpoint("s", "me", 7, at(1))
    world.holding.handle_failure(101.5, maybe_received=False)
    world.done(2)
    assert world.poll(101.4) is None
    assert world.holding.next_work() == 101.5
    assert world.step(101.5) == CommitCheckpoint("s", "me", 7, at(2))


@pytest.mark.parametrize("applied", [True, False])
def test_an_answer_that_was_lost_is_asked_for_again(world, applied):
    world.done(1)
    first = world.lose_answer(101.0, applied=applied)
    world.done(2)
    assert world.holding.next_work() == 101.5
    assert world.poll(101.4) is None
    assert world.step(101.5) == first
    assert not world.holding.is_over
    assert world.row.checkpoint == at(1)
    assert world.grant.held_until == (111.0 if applied else 111.5)
    assert world.step(102.5) == CommitCheckpoint("s", "me", 8, at(2))


def test_a_refusal_that_leaves_it_ours_is_taken_over(world):
    world.done(1)
    operation = world.poll(101.0)
    world.row = replace(world.row, counter=5)  # of a store that was set back
    world.holding.handle_applied(world.apply(operation))
    assert not world.holding.is_over
    assert world.step(101.0) == CommitCheckpoint("s", "me", 5, at(1))


def test_what_a_store_that_was_set_back_has_lost_is_committed_again(world):
    world.done(1)
    assert world.step(101.0) == CommitCheckpoint("s", "me", 7, at(1))
    world.row = replace(world.row, counter=3, checkpoint=Checkpoint(TRIM_HORIZON))
    world.holding.handle_seen(world.row)
    assert world.step(103.0) == CommitCheckpoint("s", "me", 3, at(1))
    world.row = replace(world.row, counter=3, checkpoint=at(1))
    world.holding.handle_seen(world.row)
    assert world.poll(104.0) is None


# ---- another process under our name

OTHER = Incarnation("me", "another", 10.0)


@pytest.mark.parametrize("by_scan", [True, False])
def test_what_another_process_took_under_our_name_is_lost(world, by_scan):
    taken = replace(world.row, counter=9, incarnation=OTHER)
    if by_scan:
        world.holding.handle_seen(taken)
    else:
        world.poll(104.0)
        world.holding.handle_applied(Refused(taken))
    assert (world.holding.phase, world.holding.is_contested) == (Phase.LOST, False)
    assert world.holding.why == "another process with the worker_id 'me' took it"


@pytest.mark.parametrize("by_scan", [True, False])
def test_what_another_process_writes_in_our_name_is_lost(world, by_scan):
    """A process of an older version names no incarnation, and leaves ours in the row."""
    moved = replace(world.row, counter=8, incarnation=Incarnation("me", "this", 10.0))
    if by_scan:
        world.holding.handle_seen(moved)
    else:
        world.poll(104.0)
        world.holding.handle_applied(Refused(moved))
    assert (world.holding.phase, world.holding.is_contested) == (Phase.LOST, True)
    assert world.holding.why == "another process with the worker_id 'me' writes to it"


@pytest.mark.parametrize("incarnation", [None, Incarnation("me", "this", 10.0), Incarnation("x", "that", 1.0)])
def test_a_write_of_ours_whose_answer_was_lost_is_no_other_process(world, incarnation):
    world.poll(104.0)
    world.holding.handle_failure(104.5, maybe_received=True)
    world.holding.handle_seen(replace(world.row, counter=8, incarnation=incarnation))
    assert not world.holding.is_over
    assert world.poll(104.5) == RenewLease("s", "me", 7)
    world.holding.handle_applied(Refused(replace(world.row, counter=8, incarnation=incarnation)))
    assert not world.holding.is_over
    assert world.holding.row.counter == 8


def test_the_row_that_refuses_to_take_children_is_gone(world):
    world.done(1)
    world.tracker.end()
    world.holding.allow_end(frozenset({"child"}))
    assert world.poll(101.0) == WriteChildren("s", frozenset({"child"}))
    world.holding.handle_applied(Refused(None))
    assert world.holding.why == "its row was deleted"


# ---- releasing the lease


def test_a_hand_over_ends_when_the_user_is_done(world):
    assert world.holding.next_owner is None
    world.ask()
    world.step(104.0)
    assert world.holding.next_owner == "other"
    world.holding.drain(134.0)
    world.done(1)
    assert world.step(104.5) == CommitCheckpoint("s", "me", 8, at(1))
    world.holding.leave()
    world.holding.drain(200.0)
    assert world.step() == FinishHandOver("s", "me", 9)
    assert world.row == Lease("s", 10, "other", at(1), owner_switches=1)
    assert world.holding.phase is Phase.RELEASED


def test_a_release_that_is_refused_because_someone_asked_becomes_a_hand_over(world):
    world.holding.leave()
    operation = world.poll(101.0)
    assert isinstance(operation, ReleaseLease)
    world.ask()
    world.holding.handle_applied(world.apply(operation))
    assert world.step() == FinishHandOver("s", "me", 7)


# ---- the end of the shard


def test_c3_shard_end_waits_for_the_children_and_then_comes_last(world):
    world.done(1)
    world.tracker.end()
    assert world.step(101.0) == CommitCheckpoint("s", "me", 7, at(1))
    assert world.poll(102.5) is None
    world.holding.allow_end(frozenset({"c1", "c2"}))
    assert world.holding.next_work() == -NEVER
    assert world.step() == WriteChildren("s", frozenset({"c1", "c2"}))
    assert world.grant.held_until == 111.0
    assert world.step() == CommitCheckpoint("s", "me", 8, Checkpoint(SHARD_END))
    assert world.holding.phase is Phase.FINISHED
    assert world.row.child_ids == {"c1", "c2"}


def test_c3_an_end_that_waits_for_children_is_left_to_the_next_owner(world):
    world.done(1)
    world.tracker.end()
    world.holding.leave()
    assert world.step() == CommitCheckpoint("s", "me", 7, at(1))
    assert world.step() == ReleaseLease("s", "me", 8)


def test_every_phase_is_in_the_table_and_only_an_ended_lease_has_none_that_follow():
    assert set(TRANSITIONS) == set(Phase)
    assert {Phase.RELEASED, Phase.FINISHED, Phase.LOST} == OVER


def test_a_lease_may_be_left_twice(world):
    world.holding.leave()
    world.holding.leave()
    assert world.holding.phase is Phase.LEAVING


# ---- dedup


def test_the_stamps_are_stored_with_the_checkpoint_that_covers_them(world):
    world.holding.window = DedupWindow(SeenStamps())
    world.holding.window.admit_run(1, StampRun(0, b"abcdefghij", 0, 1), 5.0)
    world.holding.window.admit_run(3, StampRun(0, b"abcdefghij", 1, 1), 5.0)
    world.done(1, 2)
    world.step(101.0)
    assert world.row.window == "1 2.0 abcdefghij@5:0-1"
    world.done(3)
    world.step(103.0)
    assert world.row.window == "1 3.0 abcdefghij@5:0-2"


def test_a_seek_clears_the_stamps(world):
    world.holding.row = world.row = replace(world.row, window="1 2.0 abcdefghij@5:0-1")
    world.holding.window = DedupWindow(SeenStamps.decode("abcdefghij@5:0-1"))
    world.holding.seek(at(1))
    world.step(101.0)
    assert world.row.window == ""
    world.holding.reopen(world.grant, world.tracker)
    assert world.holding.window.admit(5, StampRun(0, b"abcdefghij", 0, 1), 5.0)
    plain = World()
    plain.holding.row = plain.row = replace(plain.row, window="1 2.0 abcdefghij@5:0-1")
    plain.done(1)
    plain.step(101.0)
    assert plain.row.window == "1 2.0 abcdefghij@5:0-1", "a consumer without dedup keeps the stamps"
    plain.holding.seek(at(1))
    plain.step(102.0)
    assert plain.row.window == ""
    plain.holding.reopen(plain.grant, plain.tracker)
    assert plain.holding.window is None


# ---- a lease that is kept for a restart


def test_a_lease_is_kept_after_the_last_commit(world):
    world.done(4)
    world.holding.leave(keep=True)
    assert isinstance(world.step(), CommitCheckpoint)
    keep = world.step()
    assert keep == TakeLease("s", "me", replace(world.row, counter=8).fence, Incarnation("me", KEPT, 10.0))
    assert world.holding.phase is Phase.RELEASED
    assert (world.row.counter, world.row.owner, world.row.is_kept_by("me")) == (9, "me", True)


def test_a_lease_that_was_kept_twice_is_kept(world):
    world.holding.leave(keep=True)
    world.holding.leave()
    world.step()
    assert world.row.is_kept_by("me")


def test_a_lease_that_is_being_released_is_not_kept(world):
    world.holding.drain(105.0)
    world.holding.leave(keep=True)
    assert isinstance(world.step(), ReleaseLease)


def test_a_lease_that_was_asked_for_meanwhile_is_handed_over(world):
    world.holding.leave(keep=True)
    world.ask()
    assert isinstance(world.step(), TakeLease)
    assert isinstance(world.step(), FinishHandOver)
    assert world.row.holder == "other"


def test_a_lost_answer_to_keeping_is_sent_again(world):
    world.holding.leave(keep=True)
    first = world.lose_answer()
    assert world.step(world.now + 1.0) == first
    assert world.holding.phase is Phase.RELEASED


def test_a_lease_that_another_process_took_meanwhile_is_not_kept(world):
    world.holding.leave(keep=True)
    world.row = apply(world.row, TakeLease("s", "me", world.row.fence, Incarnation("me", "twin", 10.0)))
    world.step()
    assert world.holding.phase is Phase.LOST
    assert not world.row.is_kept_by("me")


def test_a_holding_that_measures_its_load_writes_it_with_renewals_even_if_commits_come_more_often(world):
    world.holding.measure_load(100.0)
    world.holding.meter.add_bytes(8 * 1_024)
    world.holding.meter.add_handling(1.0)
    world.done(1)
    assert isinstance(world.step(102.0), CommitCheckpoint)
    assert world.step(104.0) == RenewLease("s", "me", 8, 2.0, 0.25)
