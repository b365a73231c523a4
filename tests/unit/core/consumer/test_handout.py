"""Which records go to which taker, which are done, which come again, and when is a lease let go?"""

import pytest
from tests.harness.hand_out import Desk

from shardline.core.clock import NEVER
from shardline.core.consumer.events import HandlerRetried, HandlerStuck
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handout import CancelHandler, ReadingFailed, StopReading, WakeReader
from shardline.core.consumer.reader import ReaderState
from shardline.core.failures import Failure, FailureKind
from shardline.model.lease import Lease


@pytest.fixture
def desk():
    return Desk()


@pytest.fixture
def manual():
    return Desk(ack="manual", max_unacknowledged=3)


def numbers(records):
    return [int(record.sequence_number) for record in records]


# ---- taking


def test_shards_take_turns_page_by_page_over_all_streams(desk):
    desk.gain("a", "s")
    desk.gain("b", "t")
    pages = [desk.bring(2, "a"), desk.bring(2, "b"), desk.bring(2, "a")]
    taker = desk.iterate()
    assert [desk.take(taker) for _ in range(3)] == pages
    assert not desk.ask(taker), "there is no more, so far"


def test_asking_for_the_next_says_that_the_last_one_is_done(desk):
    desk.gain()
    desk.bring(3)
    taker = desk.iterate()
    desk.take(taker)
    desk.poll()
    assert desk.watermark() == 2, "C5: the third is in hand"
    desk.ask(taker)
    assert desk.watermark() == 3
    assert desk.hand_out.take_pump_due()


def test_a_taker_that_waits_is_answered_when_records_come(desk):
    desk.gain()
    taker = desk.iterate()
    assert not desk.ask(taker)
    assert desk.hand_out.take_answered() == []
    records = desk.bring(2)
    assert desk.hand_out.take_answered() == [taker]
    assert taker.cursor.records == records


def test_a_wait_that_was_interrupted_has_taken_nothing(desk):
    """The cursor stays for the one who asks next, and the question that was left behind is void."""
    desk.gain()
    taker = desk.iterate()
    desk.ask(taker)
    records = desk.bring(2)
    assert desk.take(taker) == records
    assert desk.watermark() == 0


def test_a_question_that_arrives_after_its_answer_does_not_say_that_the_answer_is_done(desk):
    desk.gain()
    taker = desk.iterate()
    desk.ask(taker)
    taker.asked = 2  # on its way
    desk.bring(2)
    assert taker.answered == 2
    taker.cursor.take(desk.now)
    taker.cursor.take(desk.now)
    desk.hand_out.ask(taker, 2, desk.now)
    assert (desk.watermark(), taker.cursor.place) == (0, 2)


def test_a_batch_waits_for_its_fill_and_no_longer(desk):
    desk.gain()
    taker = desk.iterate(limit=3, max_wait=0.5, whole=True)
    assert not desk.ask(taker)
    desk.bring(2)
    assert desk.hand_out.take_answered() == []
    assert desk.hand_out.next_deadline() == 100.5
    assert desk.hand_out.take_pump_due(), "the host has to wake up earlier"
    assert desk.poll(0.5) == [taker]
    assert len(taker.cursor.take_all()) == 2
    desk.bring(2)
    assert not desk.ask(taker)
    desk.bring(2)
    assert desk.hand_out.take_answered() == [taker]
    assert len(taker.cursor.records) == 3
    taker.cursor.take_all()
    desk.bring(0, last=True)
    assert desk.ask(taker), "there will be no more: it does not wait"


def test_the_end_of_a_shard_is_handed_to_nobody(desk):
    desk.gain()
    taker = desk.iterate()
    desk.ask(taker)
    desk.bring(0, last=True, children=("c",))
    assert desk.hand_out.take_answered() == []
    assert desk.groups["s"].ended == [("a", ("c",))]
    assert desk.hand_out.take_pump_due()


def test_with_manual_acknowledgements_a_shard_pauses_until_some_are_acknowledged(manual):
    manual.gain()
    records = manual.bring(5)
    taker = manual.iterate()
    assert len(manual.take(taker)) == 3
    assert not manual.ask(taker)
    manual.hand_out.ack(records[1], manual.now)
    assert manual.hand_out.take_answered() == [], "the first still holds up the others"
    manual.hand_out.ack(records[0], manual.now)
    assert manual.hand_out.take_answered() == [taker]
    assert numbers(taker.cursor.records) == [4, 5]


def test_a_record_may_be_acknowledged_before_the_host_has_seen_that_it_was_taken(manual):
    manual.gain()
    records = manual.bring(2)
    taker = manual.iterate()
    manual.take(taker, 2)
    manual.hand_out.ack(records[1], manual.now, through=True)
    assert manual.watermark() == 2


def test_without_manual_acknowledgements_an_acknowledgement_covers_all_before_it(desk):
    desk.gain()
    records = desk.bring(3)
    desk.take(desk.iterate())
    desk.hand_out.ack(records[2], desk.now)
    assert desk.watermark() == 3


def test_a_record_counts_only_under_the_grant_that_it_was_read_under(desk):
    desk.gain()
    (record,) = desk.bring(1)
    desk.take(desk.iterate())
    desk.lose()
    desk.hand_out.ack(record, desk.now)
    desk.gain()
    desk.bring(1)
    desk.hand_out.ack(record, desk.now)
    assert desk.watermark() == 0


# ---- giving back, and new iterations


@pytest.mark.parametrize(("done", "left"), [(True, [3, 4]), (False, [2, 3, 4])])
def test_what_is_not_done_waits_for_the_next_taker(desk, done, left):
    desk.gain()
    desk.bring(4)
    taker = desk.iterate()
    desk.take(taker, 2)
    desk.hand_out.settle(taker, desk.now, done=done)
    assert not taker.has_records
    assert numbers(desk.take(desk.iterate())) == left


def test_a_new_iteration_ends_the_older_and_says_that_its_records_are_done(desk):
    desk.gain()
    desk.bring(4)
    old = desk.iterate()
    desk.take(old, 2)
    new = desk.iterate()
    assert (old.is_over, old.cursor.is_open, desk.watermark()) == (True, False, 2)
    assert desk.ask(old)
    assert old.is_over, "a thread that has not noticed gets no more"
    assert numbers(desk.take(new)) == [3, 4]
    desk.hand_out.begin(new, desk.now)
    desk.hand_out.begin(old, desk.now)
    assert desk.hand_out.current is new


def test_settling_what_was_never_taken_gives_all_of_it_back(desk):
    desk.gain()
    desk.bring(2)
    taker = desk.iterate(whole=True)
    assert desk.ask(taker)
    desk.hand_out.settle(taker, desk.now, done=True)
    assert numbers(desk.take(desk.iterate())) == [1, 2]
    assert desk.watermark() == 0


def test_a_page_counts_against_the_budget_until_the_user_is_done_with_it():
    desk = Desk(prefetch_max_bytes=65_536)
    shard = desk.gain()
    desk.hand_out.budget.hold(shard.key, 65_536)
    desk.bring(2)
    assert not desk.hand_out.budget.admits(shard.key)
    desk.hand_out.budget.release(shard.key, 65_536)
    desk.hand_out.take_actions()
    taker = desk.iterate()
    desk.take(taker)
    assert desk.hand_out.budget.held_bytes(shard.key) == 200
    desk.ask(taker)
    assert desk.hand_out.budget.held_bytes(shard.key) == 0
    assert desk.hand_out.take_actions() == [WakeReader(shard)]


def test_a_reader_that_is_admitted_after_its_lease_is_gone_is_not_woken(desk):
    desk.gain()
    budget = desk.hand_out.budget
    budget.hold(("s", "gone"), desk.config.prefetch_max_bytes)
    assert not budget.admits(("s", "gone"))
    budget.release(("s", "gone"), desk.config.prefetch_max_bytes)
    desk.poll()
    assert desk.hand_out.take_actions() == []


# ---- leases that come and go


def test_a_lease_that_is_asked_for_is_let_go_when_the_user_is_done(desk):
    shard = desk.gain()
    desk.bring(4)
    taker = desk.iterate()
    desk.take(taker, 2)
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    assert (shard.reader.is_stopped, desk.hand_out.take_actions()) == (True, [StopReading(shard)])
    assert (taker.cursor.is_open, desk.phase()) == (False, "ACTIVE")
    assert not desk.ask(taker)
    assert (desk.phase(), desk.watermark()) == ("LEAVING", 2)
    assert desk.hand_out.take_pump_due()


def test_a_lease_that_is_asked_for_and_idle_is_let_go_at_once(desk):
    desk.gain()
    desk.bring(4)
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    assert desk.phase() == "LEAVING"
    assert not desk.ask(desk.iterate()), "what was read ahead is dropped"


def test_an_acknowledgement_may_be_the_last_thing_that_a_hand_over_waits_for(manual):
    manual.gain()
    records = manual.bring(2)
    taker = manual.iterate()
    manual.take(taker)
    manual.hand_out.handle_hand_over_asked("s", "a", manual.now)
    manual.ask(taker)
    assert manual.phase() == "ACTIVE"
    manual.hand_out.ack(records[1], manual.now, through=True)
    assert manual.phase() == "LEAVING"


def test_a_lost_lease_takes_its_records_with_it(desk):
    shard = desk.gain()
    desk.bring(4)
    taker = desk.iterate()
    desk.take(taker, 2)
    desk.lose()
    desk.hand_out.handle_gone("s", "a", desk.now)
    assert (shard.is_over, desk.hand_out.shards, taker.cursor.is_open) == (True, {}, False)
    assert desk.hand_out.budget.held_bytes(shard.key) == 0
    desk.poll()
    assert desk.hand_out.look(shard).records == 1, "user code still has the second"
    assert not desk.ask(taker)


def test_a_shard_that_is_lost_and_gained_again_is_another_one(desk):
    desk.gain()
    desk.bring(2)
    taker = desk.iterate()
    desk.take(taker, 1)
    desk.lose()
    desk.gain()
    again = desk.bring(2)
    assert desk.take(taker) == again
    assert desk.watermark() == 0


def test_a_shard_that_the_service_does_not_know_is_looked_after_when_it_is_through(desk):
    shard = desk.gain()
    desk.bring(1)
    shard.reader.state = ReaderState.GONE
    desk.hand_out.handle_reader_over(shard, desk.now)
    assert desk.groups["s"].unseen == []
    taker = desk.iterate()
    desk.take(taker)
    desk.ask(taker)
    assert desk.groups["s"].unseen == ["a"]


# ---- endings


def test_a_reader_that_fails_ends_the_hand_out(desk):
    shard = desk.gain()
    desk.gain("b")
    taker = desk.iterate()
    desk.ask(taker)
    failure = Failure(FailureKind.DENIED, "Denied", "no", 400)
    shard.reader.state, shard.reader.failure = ReaderState.FAILED, failure
    desk.hand_out.handle_reader_over(shard, desk.now)
    assert desk.hand_out.failure == ReadingFailed("a", failure)
    assert desk.hand_out.take_answered() == [taker]
    assert taker.is_over
    desk.hand_out.fail("something else", desk.now)
    assert desk.hand_out.failure == ReadingFailed("a", failure), "the first reason stays"
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    assert desk.phase() == "ACTIVE", "what failed is not handed over: the lease lapses, or is released on exit"


def test_closing_hands_out_no_more_and_lets_the_user_finish(desk):
    desk.gain()
    desk.bring(3)
    taker = desk.iterate()
    desk.take(taker, 2)
    desk.hand_out.close(desk.now)
    assert (taker.cursor.is_open, taker.has_records) == (False, True)
    assert desk.ask(taker)
    assert (taker.is_over, desk.watermark(), desk.phase()) == (True, 2, "LEAVING")
    late = desk.gain("b")
    assert late.is_stopping


def test_the_end_of_the_host_answers_everyone(desk):
    desk.gain()
    taker = desk.iterate()
    desk.ask(taker)
    desk.hand_out.end(desk.now)
    assert desk.hand_out.take_answered() == [taker]
    assert (taker.is_over, desk.hand_out.shards, desk.hand_out.is_over) == (True, {}, True)


def test_in_the_child_of_a_fork_nothing_is_handed_out_or_acknowledged(desk):
    shard = desk.gain()
    desk.gain("b")
    desk.bring(2)
    taker = desk.iterate()
    desk.take(taker, 1)
    desk.hand_out.disown("forked")
    assert (taker.cursor.is_open, shard.grant.in_force(desk.now), desk.hand_out.failure) == (False, False, "forked")


@pytest.mark.parametrize("bounds", [{"until_latest": True}, {"idle_timeout": 1.0}])
def test_a_bounded_run_ends_when_all_is_done(bounds):
    desk = Desk(**bounds)
    for stream, group in desk.groups.items():
        group.view.rows = {"a": Lease("a", 1, "me")}
        desk.gain("a", stream).reader.has_caught_up = True
    taker = desk.iterate()
    desk.ask(taker)
    desk.poll()
    assert desk.hand_out.bounds.is_ready
    desk.bring(1)
    assert desk.hand_out.take_answered() == [taker]
    taker.cursor.take(desk.now)
    assert desk.poll(5.0) == [], "a slow user is not idle"
    desk.ask(taker)
    desk.hand_out.take_pump_due()
    desk.hand_out.handle_read()
    assert desk.hand_out.take_pump_due() is ("until_latest" in bounds)
    if "idle_timeout" in bounds:
        assert desk.hand_out.next_deadline() == desk.now + 1.0
        assert desk.poll(0.9) == []
        desk.now += 0.1
    assert desk.poll() == [taker]
    assert taker.is_over


# ---- looking


def test_progress_is_reported_in_time(desk):
    desk.gain()
    desk.hand_out.report(desk.iterate(), desk.now)
    assert desk.hand_out.next_deadline() == NEVER
    desk.bring(3)
    desk.take(desk.iterate(), 1)
    desk.poll()
    assert desk.hand_out.next_deadline() == 101.0


def test_a_stuck_loop_body_is_reported_until_its_lease_is_gone():
    desk = Desk(stuck_after=10.0)
    shard = desk.gain()
    desk.bring(3)
    desk.take(desk.iterate(), 2)
    desk.poll(10.0)
    assert desk.hand_out.take_events() == [HandlerStuck("a", "2", 0, 1, 10.0)]
    assert (desk.hand_out.look(shard).records, desk.hand_out.look(shard).waiting) == (1, 1)
    desk.lose()
    desk.poll()
    assert [type(event).__name__ for event in desk.hand_out.take_events()] == ["HandlerRecovered"]
    assert desk.hand_out.look(desk.gain("b")).records == 0


def test_with_manual_acknowledgements_an_unacknowledged_record_is_stuck():
    desk = Desk(ack="manual", stuck_after=10.0)
    desk.gain()
    desk.gain("b")
    desk.bring(3)
    taker = desk.iterate()
    desk.take(taker)
    desk.poll()
    desk.ask(taker)
    desk.poll(10.0)
    assert desk.hand_out.take_events() == [HandlerStuck("a", "1", 0, 3, 10.0)]
    desk.groups["s"].held.lose("a", "test")
    desk.poll()
    assert len(desk.hand_out.take_events()) == 1


def test_failures_are_counted_and_reported(desk):
    event = HandlerRetried("a", "1", 0, 1, 1, "ValueError", "no", "", 101.0)
    desk.hand_out.handle_failures([event])
    assert (desk.hand_out.take_events(), desk.hand_out.counts.retries) == ([event], 1)
    assert desk.hand_out.take_events() == []


# ---- handlers: see test_handler_task


def test_a_handler_that_outlives_its_lease_keeps_its_shard_from_all_others(desk):
    """A thread, or a section that is shielded from cancellation, still has a record of the shard."""
    shard = desk.gain()
    desk.bring(2)
    run = desk.run(FailurePolicy())
    desk.ask(run)
    (task,) = run.new_tasks
    desk.take(task, 1)
    desk.lose()
    assert CancelHandler(task) in desk.hand_out.take_actions()
    desk.gain()
    again = desk.bring(1)
    desk.hand_out.leave(task, desk.now, is_at_work=True)
    desk.hand_out.leave(run, desk.now)
    assert desk.hand_out.is_busy(shard.key)
    taker = desk.iterate()
    assert not desk.ask(taker)
    desk.hand_out.handle_work_ended(task, desk.now)
    desk.hand_out.handle_work_ended(task, desk.now)
    assert desk.hand_out.take_answered() == [taker]
    assert taker.cursor.records == again
    assert not desk.hand_out.is_busy(shard.key)


def test_a_user_who_still_has_a_record_of_a_lost_lease_is_not_idle():
    desk = Desk(idle_timeout=1.0)
    desk.gain()
    desk.bring(1)
    desk.poll()
    taker = desk.iterate()
    desk.take(taker)
    desk.lose()
    desk.poll(5.0)
    assert not desk.hand_out.bounds.is_exhausted
    assert not desk.ask(taker)
    assert desk.poll(0.5) == []
    assert desk.poll(1.0) == [taker], "idleness counts from the moment when the user was done"
