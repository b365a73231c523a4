"""Which records go to which taker, which are done, which come again, and when is a lease released?"""

import pytest
from tests.harness.hand_out import Desk, FakeGroup

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import RecordsHandedOut, RecordsHandled
from shardline.core.consumer.control_requests import Request
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handout import EVERY_STREAM, CancelHandler, ReadingFailed
from shardline.core.consumer.reader import ReaderState
from shardline.core.error_codes import Failure, FailureKind
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


def test_a_wait_that_was_interrupted_has_taken_nothing(desk):
    """The cursor stays for the next taker that asks, and the abandoned question is void."""
    desk.gain()
    taker = desk.iterate()
    desk.ask(taker)
    records = desk.bring(2)
    assert desk.take(taker) == records
    assert desk.watermark() == 0


def test_the_end_of_a_shard_is_handed_to_no_taker(desk):
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


def test_a_reader_that_is_admitted_after_its_lease_is_gone_is_not_woken(desk):
    desk.gain()
    budget = desk.hand_out.budget
    budget.hold(("s", "gone"), desk.config.prefetch_max_bytes)
    assert not budget.admits(("s", "gone"))
    budget.release(("s", "gone"), desk.config.prefetch_max_bytes)
    desk.poll()
    assert desk.hand_out.take_actions() == []


# ---- leases that come and go


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
    assert desk.hand_out.handling_state(shard).records == 1, "user code still has the second"
    assert not desk.ask(taker)


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


# ---- queries


def test_progress_is_reported_in_time(desk):
    desk.gain()
    desk.hand_out.report(desk.iterate(), desk.now)
    assert desk.hand_out.next_deadline() == NEVER
    desk.bring(3)
    desk.take(desk.iterate(), 1)
    desk.poll()
    assert desk.hand_out.next_deadline() == 101.0


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


@pytest.mark.parametrize("bounds", [{"until_latest": True}, {"idle_timeout": 1.0}])
def test_a_user_whose_handler_has_outlived_its_task_is_not_idle(bounds):
    """The next run waits for a thread of the one before, although the records that it has were given back."""
    desk = Desk(**bounds)
    for stream, group in desk.groups.items():
        group.view.rows = {"a": Lease("a", 1, "me")}
        desk.gain("a", stream).reader.has_caught_up = True
    desk.poll()
    desk.bring(1)
    run = desk.run(FailurePolicy())
    desk.ask(run)
    task = next(task for task in run.new_tasks if task.shard is desk.shards["a"])
    desk.take(task)
    desk.hand_out.leave(task, desk.now, is_at_work=True)
    desk.hand_out.leave(run, desk.now)
    desk.hand_out.handle_hand_over_asked("t", "a", desk.now)  # the records that wait are dropped
    again = desk.iterate()
    desk.ask(again)
    assert desk.poll(0.8) == []
    assert desk.poll(5.0) == []
    desk.now += 0.9
    desk.hand_out.take_pump_due()
    desk.hand_out.handle_work_ended(task, desk.now)
    assert desk.hand_out.take_pump_due() is ("until_latest" in bounds)
    if "idle_timeout" in bounds:
        assert desk.poll(0.9) == [], "idleness counts from the moment when the handler has returned"
        desk.now += 0.1
    assert desk.poll() == [again]
    assert again.is_over


# ---- events and totals


def emitted(desk):
    return [event for event in desk.hand_out.take_events() if isinstance(event, RecordsHandedOut | RecordsHandled)]


def test_a_page_that_was_handed_out_is_handled_when_the_user_asks_for_more():
    desk = Desk()
    desk.hand_out.work.observe(desk.now)
    desk.gain()
    desk.bring(3)
    taker = desk.iterate()
    desk.take(taker)
    assert emitted(desk) == [RecordsHandedOut("a", 3)]
    desk.now += 2.0
    assert not desk.ask(taker)
    assert emitted(desk) == [RecordsHandled("a", 3, 2.0)]
    totals = desk.hand_out.work.totals()
    assert (totals.records_handed_out, totals.records_handled, totals.handling_time) == (3, 3, 2.0)


def test_a_page_that_takes_long_is_reported_in_parts():
    desk = Desk()
    desk.hand_out.work.observe(desk.now)
    desk.gain()
    desk.bring(4)
    taker = desk.iterate()
    desk.take(taker, 2)
    emitted(desk)
    desk.poll(0.9)
    assert emitted(desk) == []
    desk.poll(0.1)
    assert emitted(desk) == [RecordsHandled("a", 1, 1.0)]
    desk.poll(1.0)
    assert emitted(desk) == []  # the second record is not done
    desk.hand_out.settle(taker, desk.now, done=True)
    assert emitted(desk) == [RecordsHandled("a", 1, 1.0)]


def test_records_that_were_given_back_are_not_handled():
    desk = Desk()
    desk.hand_out.work.observe(desk.now)
    desk.gain()
    desk.bring(1)
    taker = desk.iterate()
    desk.take(taker)
    desk.hand_out.settle(taker, desk.now, done=False)
    assert emitted(desk) == [RecordsHandedOut("a", 1)]


def test_without_sinks_the_work_is_counted_and_no_event_is_made():
    desk = Desk()
    desk.gain()
    desk.bring(2)
    taker = desk.iterate()
    desk.take(taker)
    assert not desk.ask(taker)
    assert emitted(desk) == []
    totals = desk.hand_out.work.totals()
    assert (totals.records_handed_out, totals.records_handled) == (2, 2)


def test_losing_a_later_lease_does_not_cancel_a_handler_of_the_earlier_one_again(desk):
    desk.gain()
    desk.bring(1)
    run, old = desk.start(FailurePolicy())
    old.cursor.take(desk.now)
    desk.lose()
    assert desk.hand_out.take_actions()[-1] == CancelHandler(old)
    desk.gain(counter=7)
    assert desk.ask(run)
    (new,) = run.new_tasks
    desk.lose()
    assert [action.taker for action in desk.hand_out.take_actions() if isinstance(action, CancelHandler)] == [new]


def test_the_time_for_which_user_code_has_records_is_their_shards_load():
    desk = Desk(assign_by="load")
    shard = desk.gain()
    desk.bring(1)
    taker = desk.iterate()
    desk.take(taker)
    desk.now += 1.5
    desk.hand_out.handle_time(desk.now)  # the record is still in hand
    desk.now += 0.5
    assert not desk.ask(taker)
    desk.now += 2.0  # idle
    desk.hand_out.handle_time(desk.now)
    assert shard.holding.meter.measure(104.0)[1] == 0.5


def test_streams_come_and_go_while_the_consumer_runs(desk):
    hand_out = desk.hand_out
    assert hand_out.name_of(("s", "a")) == "a"
    other = FakeGroup("u", desk.config, lambda: desk.now)
    hand_out.limit_leases(Request(), 3, desk.now)
    hand_out.take_pump_due()
    hand_out.add_stream("u", other, desk.now)
    assert (other.limits, hand_out.take_pump_due()) == ([3], True)
    assert hand_out.name_of(("s", "a")) == "s/a"
    hand_out.remove_stream("u", desk.now)
    assert (other.is_retiring, hand_out.take_pump_due()) == (True, True)
    hand_out.forget_stream("u", desk.now)
    assert "u" not in hand_out.coordinators
    hand_out.end(desk.now)
    hand_out.remove_stream("s", desk.now)
    assert not desk.groups["s"].is_retiring, "the host has ended"


def test_events_are_about_a_stream_or_about_the_whole_consumer(desk):
    desk.hand_out.work.observe(desk.now)
    desk.gain("b", "t")
    desk.bring(2, "b", passed=[True, False])
    desk.hand_out.pause(Request(), desk.now)
    found = desk.hand_out.take_stream_events()
    assert {(stream, type(event).__name__) for stream, event in found} == {
        ("t", "RecordsFiltered"),
        (EVERY_STREAM, "ShardsPaused"),
    }
