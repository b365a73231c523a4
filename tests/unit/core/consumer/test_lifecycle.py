"""Tests of ``shardline.core.consumer.lifecycle``, through the hand-out that asks it."""

import pytest
from tests.harness.hand_out import Desk

from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handler_task import Outcome
from shardline.core.consumer.handout import CancelHandler
from shardline.core.consumer.lifecycle import AssignedShard, CallBack, CallbackKind, CancelCallBack, RevokedShard

ASSIGNED, SHARD_END, REVOKED = CallbackKind.ASSIGNED, CallbackKind.SHARD_END, CallbackKind.REVOKED


class Caller(Desk):
    """A desk whose user passed callbacks. A test says when each of them ends."""

    def __init__(self, *callbacks, **settings):
        super().__init__(callbacks=callbacks or (ASSIGNED, SHARD_END, REVOKED), **settings)

    def calls(self):
        """The callbacks that are to be called or cancelled now."""
        actions = self.hand_out.take_actions()
        return [action for action in actions if isinstance(action, CallBack | CancelCallBack)]

    def call(self):
        """The only callback that is to be called now."""
        (call,) = self.calls()
        assert isinstance(call, CallBack)
        return call

    def end_call(self, call, **outcome):
        self.hand_out.handle_called_back(call, self.now, **outcome)

    def assign(self, name="a"):
        """Gain a lease; its ``on_assigned`` has returned."""
        shard = self.gain(name)
        self.end_call(self.call())
        return shard

    def ask_for(self, name="a"):
        """Another worker asks for the lease."""
        self.hand_out.handle_hand_over_asked("s", name, self.now)


@pytest.fixture
def desk():
    return Caller()


# ---- on_assigned


def test_no_record_is_handed_out_before_on_assigned_has_returned(desk):
    shard = desk.gain()
    call = desk.call()
    assert call.kind is ASSIGNED
    assert call.argument == AssignedShard("s", "a", shard.grant.token)
    records = desk.bring(2)
    taker = desk.iterate()
    assert not desk.ask(taker)
    desk.end_call(call)
    assert desk.hand_out.take_answered() == [taker]
    assert list(taker.cursor.records) == records
    assert desk.calls() == []


def test_an_exception_of_on_assigned_ends_the_consumer_and_on_revoked_is_not_called(desk):
    desk.gain()
    desk.bring(1)
    taker = desk.iterate()
    assert not desk.ask(taker)
    desk.end_call(desk.call(), has_returned=False, error="broken")
    assert desk.hand_out.failure == "broken"
    assert desk.hand_out.take_answered() == [taker]
    assert taker.is_over
    desk.hand_out.close(desk.now)
    assert desk.calls() == []
    assert desk.hand_out.lifecycle.is_settled


def test_on_assigned_is_cancelled_when_the_lease_is_lost_and_on_revoked_is_not_called(desk):
    desk.gain()
    call = desk.call()
    desk.lose()
    assert desk.calls() == [CancelCallBack(call)]
    desk.end_call(call, has_returned=False)
    assert desk.calls() == []
    assert desk.hand_out.lifecycle.is_settled


def test_if_on_assigned_returns_in_spite_of_the_loss_on_revoked_follows(desk):
    desk.gain()
    call = desk.call()
    desk.lose()
    assert desk.calls() == [CancelCallBack(call)]
    desk.end_call(call)
    assert desk.call().argument.lost


def test_a_lease_that_comes_after_the_end_is_not_assigned(desk):
    desk.hand_out.close(desk.now)
    desk.gain()
    assert desk.calls() == []
    desk.lose()
    assert desk.calls() == []


def test_a_hand_over_waits_for_on_assigned_and_then_for_on_revoked(desk):
    desk.gain()
    call = desk.call()
    desk.ask_for()
    assert desk.calls() == []
    desk.end_call(call)
    revoked = desk.call()
    assert revoked.kind is REVOKED
    assert desk.phase() == "ACTIVE"
    desk.end_call(revoked)
    assert desk.phase() == "LEAVING"
    assert desk.hand_out.take_pump_due()


def test_a_hand_over_waits_for_on_assigned_if_it_is_the_only_callback():
    desk = Caller(ASSIGNED)
    desk.gain()
    desk.ask_for()
    assert desk.phase() == "ACTIVE"
    desk.end_call(desk.call())
    assert desk.phase() == "LEAVING"
    assert desk.hand_out.lifecycle.is_settled


# ---- on_revoked


def test_on_revoked_is_called_when_the_record_in_hand_is_done_and_before_the_release(desk):
    shard = desk.assign()
    desk.bring(2)
    taker = desk.iterate()
    desk.take(taker, 1)
    desk.ask_for()
    assert desk.calls() == []
    assert not desk.ask(taker)  # done with the record
    call = desk.call()
    assert call.argument == RevokedShard("s", "a", shard.grant.token, "hand-over", lost=False)
    assert desk.phase() == "ACTIVE"
    assert desk.watermark() == 1
    desk.end_call(call)
    assert desk.phase() == "LEAVING"


def test_an_exception_of_on_revoked_ends_the_consumer_and_does_not_keep_the_lease(desk):
    desk.assign()
    desk.ask_for()
    desk.end_call(desk.call(), has_returned=False, error="broken")
    assert desk.phase() == "LEAVING"
    assert desk.hand_out.failure == "broken"


def test_closing_calls_on_revoked_for_each_shard(desk):
    desk.assign("a")
    desk.assign("b")
    desk.bring(1, "b")
    taker = desk.iterate()
    desk.take(taker)
    desk.hand_out.close(desk.now)
    call = desk.call()
    assert (call.shard.shard_id, call.argument.reason, call.argument.lost) == ("a", "close", False)
    desk.end_call(call)
    assert not desk.hand_out.lifecycle.is_settled
    desk.hand_out.settle(taker, desk.now, done=True)
    desk.end_call(desk.call())
    assert desk.hand_out.lifecycle.is_settled
    assert (desk.phase("a"), desk.phase("b")) == ("ACTIVE", "ACTIVE")  # the coordinator releases all at once


def test_closing_after_a_failure_calls_on_revoked_and_leaves_the_release_to_the_coordinator(desk):
    desk.assign()
    desk.hand_out.fail("broken", desk.now)
    assert desk.calls() == []
    desk.hand_out.close(desk.now)
    desk.end_call(desk.call())
    assert desk.phase() == "ACTIVE"
    assert desk.hand_out.lifecycle.is_settled


def test_with_manual_acknowledgements_on_revoked_may_acknowledge_the_last_records():
    desk = Caller(REVOKED, ack="manual")
    desk.gain()
    (record,) = desk.bring(1)
    taker = desk.iterate()
    desk.take(taker)
    desk.ask_for()
    assert not desk.ask(taker)
    call = desk.call()
    desk.hand_out.ack(record, desk.now)
    assert desk.phase() == "ACTIVE"
    desk.end_call(call)
    assert desk.phase() == "LEAVING"


def test_after_on_revoked_the_release_waits_for_the_acknowledgements():
    desk = Caller(REVOKED, ack="manual")
    desk.gain()
    (record,) = desk.bring(1)
    taker = desk.iterate()
    desk.take(taker)
    desk.ask_for()
    assert not desk.ask(taker)
    desk.end_call(desk.call())
    assert desk.phase() == "ACTIVE"
    desk.hand_out.ack(record, desk.now)
    assert desk.phase() == "LEAVING"
    assert desk.calls() == []


# ---- lost leases


def test_on_revoked_follows_a_loss_when_user_code_has_no_record(desk):
    desk.assign()
    desk.lose()
    call = desk.call()
    assert (call.argument.reason, call.argument.lost) == ("lost", True)
    assert not desk.hand_out.lifecycle.is_settled
    desk.end_call(call)
    assert desk.calls() == []
    assert desk.hand_out.lifecycle.is_settled


def test_on_revoked_waits_until_user_code_asks_for_the_next_record(desk):
    desk.assign()
    desk.bring(1)
    taker = desk.iterate()
    desk.take(taker)
    desk.lose()
    assert desk.calls() == []
    assert not desk.ask(taker)
    assert desk.call().argument.lost


def test_on_revoked_waits_for_a_handler_that_outlives_its_task(desk):
    desk.assign()
    desk.bring(1)
    _, task = desk.start(FailurePolicy())
    task.cursor.take(desk.now)
    desk.lose()
    desk.hand_out.leave(task, desk.now, is_at_work=True)
    assert desk.calls() == []
    desk.hand_out.handle_work_ended(task, desk.now)
    assert desk.call().argument.lost


def test_a_hand_over_waits_for_a_handler_that_outlives_its_task(desk):
    desk.assign()
    desk.bring(1)
    _, task = desk.start(FailurePolicy())
    task.cursor.take(desk.now)
    desk.ask_for()
    desk.hand_out.leave(task, desk.now, is_at_work=True)
    assert desk.calls() == []
    desk.hand_out.handle_work_ended(task, desk.now)
    assert desk.call().argument == RevokedShard("s", "a", task.shard.grant.token, "hand-over", lost=False)


def test_an_overdue_hand_over_calls_on_revoked_after_the_loss(desk):
    desk.assign()
    desk.bring(1)
    taker = desk.iterate()
    desk.take(taker)
    desk.ask_for()
    desk.hand_out.handle_gone("s", "a", desk.now)
    assert desk.calls() == []
    assert not desk.ask(taker)
    call = desk.call()
    assert (call.argument.reason, call.argument.lost) == ("hand-over", True)


def test_if_the_release_has_begun_on_revoked_is_called_as_after_a_loss(desk):
    """A hand-over whose time is up at once: the coordinator gives the lease away before the host hears of it."""
    desk.assign()
    desk.groups["s"].held.leave("a")
    desk.ask_for()
    assert desk.calls() == []
    desk.hand_out.handle_gone("s", "a", desk.now)
    assert desk.call().argument.lost


def test_an_on_revoked_that_waits_for_an_older_lease_is_called_as_after_a_loss():
    desk = Caller(REVOKED)
    desk.gain()
    desk.lose()
    older = desk.call()
    second = desk.gain()
    desk.ask_for()
    assert desk.calls() == []
    desk.lose()
    third = desk.gain()
    desk.ask_for()
    desk.lose()
    desk.end_call(older)
    call = desk.call()
    assert call.argument == RevokedShard("s", "a", second.grant.token, "hand-over", lost=True)
    desk.end_call(call)
    call = desk.call()
    assert call.argument == RevokedShard("s", "a", third.grant.token, "hand-over", lost=True)
    desk.end_call(call)
    assert desk.hand_out.lifecycle.is_settled


def test_a_failure_while_a_lease_is_handed_over_leaves_its_release_to_the_coordinator(desk):
    desk.assign()
    desk.ask_for()
    call = desk.call()
    desk.hand_out.fail("broken", desk.now)
    desk.hand_out.close(desk.now)
    desk.end_call(call)
    assert desk.phase() == "ACTIVE"
    assert desk.hand_out.lifecycle.is_settled


def test_on_revoked_goes_on_if_the_lease_is_lost_meanwhile(desk):
    desk.assign()
    desk.ask_for()
    call = desk.call()
    desk.lose()
    assert desk.calls() == []
    desk.end_call(call)
    assert desk.calls() == []
    assert desk.hand_out.lifecycle.is_settled


def test_a_lease_that_comes_back_waits_for_the_callbacks_of_the_older_one(desk):
    desk.assign()
    desk.lose()
    revoked = desk.call()
    desk.gain()
    desk.bring(1)
    taker = desk.iterate()
    assert not desk.ask(taker)
    assert desk.calls() == []
    desk.end_call(revoked)
    assigned = desk.call()
    assert assigned.kind is ASSIGNED
    assert assigned.shard is not revoked.shard
    desk.end_call(assigned)
    assert desk.hand_out.take_answered() == [taker]


def test_a_lease_that_comes_back_and_goes_again_is_never_assigned(desk):
    desk.assign()
    desk.lose()
    revoked = desk.call()
    desk.gain()
    desk.lose()
    desk.end_call(revoked)
    assert desk.calls() == []
    assert desk.hand_out.lifecycle.is_settled


def test_without_on_assigned_a_lease_that_comes_back_waits_for_on_revoked_of_the_older_one():
    desk = Caller(REVOKED)
    desk.gain()
    desk.bring(1)
    _, task = desk.start(FailurePolicy())
    task.cursor.take(desk.now)
    desk.lose()
    desk.gain()
    desk.bring(1)
    taker = desk.iterate()
    assert not desk.ask(taker)
    assert CancelHandler(task) in desk.hand_out.take_actions()
    task.outcome = Outcome()
    desk.hand_out.leave(task, desk.now)
    assert desk.hand_out.take_answered() == []
    desk.end_call(desk.call())
    assert desk.hand_out.take_answered() == [taker]


def test_the_callbacks_of_other_shards_do_not_wait(desk):
    desk.assign("a")
    desk.gain("b")
    slow = desk.call()
    desk.bring(1, "a")
    assert len(desk.take(desk.iterate())) == 1
    desk.lose("a")
    desk.end_call(slow)


def test_nothing_is_called_after_the_end(desk):
    desk.assign()
    desk.hand_out.end(desk.now)
    assert desk.calls() == []


# ---- on_shard_end


def test_shard_end_is_committed_after_on_shard_end(desk):
    shard = desk.assign()
    desk.bring(1, last=True, children=("c",))
    taker = desk.iterate()
    desk.take(taker)
    assert desk.calls() == []
    assert not desk.ask(taker)
    call = desk.call()
    assert call.kind is SHARD_END
    assert call.argument == AssignedShard("s", "a", shard.grant.token)
    assert desk.groups["s"].ended == []
    desk.end_call(call)
    assert desk.groups["s"].ended == [("a", ("c",))]
    desk.hand_out.handle_gone("s", "a", desk.now, finished=True)
    assert desk.calls() == []
    assert desk.hand_out.lifecycle.is_settled


def test_a_finished_shard_is_not_revoked_if_only_on_revoked_is_wanted():
    desk = Caller(REVOKED)
    desk.gain()
    desk.bring(1, last=True)
    taker = desk.iterate()
    desk.take(taker)
    assert not desk.ask(taker)
    assert desk.groups["s"].ended == [("a", ())]
    desk.hand_out.handle_gone("s", "a", desk.now, finished=True)
    assert desk.calls() == []


def test_a_shard_that_retention_removed_is_revoked(desk):
    desk.assign()
    desk.hand_out.handle_gone("s", "a", desk.now, finished=True)
    assert desk.call().argument.lost


def test_an_exception_of_on_shard_end_keeps_shard_end_from_being_committed(desk):
    desk.assign()
    desk.bring(1, last=True)
    taker = desk.iterate()
    desk.take(taker)
    assert not desk.ask(taker)
    desk.end_call(desk.call(), has_returned=False, error="broken")
    assert desk.groups["s"].ended == []
    assert desk.hand_out.failure == "broken"
    desk.hand_out.close(desk.now)
    assert desk.call().kind is REVOKED


def test_on_shard_end_is_cancelled_when_the_lease_is_lost_and_on_revoked_follows(desk):
    desk.assign()
    desk.bring(1, last=True)
    taker = desk.iterate()
    desk.take(taker)
    assert not desk.ask(taker)
    call = desk.call()
    desk.lose()
    assert desk.calls() == [CancelCallBack(call)]
    desk.end_call(call, has_returned=False)
    assert desk.groups["s"].ended == []
    assert desk.call().argument.lost


def test_a_hand_over_waits_for_on_shard_end_and_then_for_on_revoked(desk):
    desk.assign()
    desk.bring(1, last=True)
    taker = desk.iterate()
    desk.take(taker)
    desk.ask_for()
    assert not desk.ask(taker)
    ended = desk.call()
    assert ended.kind is SHARD_END
    desk.end_call(ended)
    assert desk.groups["s"].ended == [("a", ())]
    revoked = desk.call()
    assert revoked.kind is REVOKED
    desk.end_call(revoked)
    assert desk.phase() == "LEAVING"


def test_without_on_revoked_a_lost_lease_is_forgotten():
    desk = Caller(SHARD_END)
    desk.gain()
    desk.bring(1, last=True)
    taker = desk.iterate()
    desk.take(taker)
    assert not desk.ask(taker)
    call = desk.call()
    desk.lose()
    assert desk.calls() == [CancelCallBack(call)]
    desk.end_call(call, has_returned=False)
    desk.gain()
    desk.lose()
    assert desk.calls() == []
    assert desk.hand_out.lifecycle.is_settled
