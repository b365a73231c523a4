"""Tests the hand-out with its cursors, bounds and handler tasks: who gets which records, which are done, which come
again, and when a lease is released. ``HandingOut`` draws random events and compares the hand-out with a naive model;
the other tests check the outcome of one small scene each. The mutants that ``tests/mutants/generated.py`` makes meet
this file first.
"""

from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.harness.hand_out import Desk

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import HandlerRecovered, HandlerStuck
from shardline.core.consumer.cursor import SLICE
from shardline.core.consumer.failure_policy import FailurePolicy, WriteDeadLetter
from shardline.core.consumer.handler_task import NOT_CALLED, Attempt, Handle, Outcome, Stop
from shardline.core.consumer.handling_lag import HandlingState
from shardline.core.consumer.handout import CancelHandler, HandOut, Iteration, ReadingFailed, StopReading, WakeReader
from shardline.core.consumer.reader import ReaderState
from shardline.core.consumer.run_bounds import GroupFacts, OtherLease, RunBounds, ShardFacts, group_facts
from shardline.core.error_codes import Failure, FailureKind
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END
from shardline.model.record import Record

NAMES = ("a", "b", "c")
BROKEN = Failure(FailureKind.DENIED, "AccessDeniedException", "why", 400)

# ---- single scenes


def opened(count=3, **settings):
    """Return a desk, and an iteration that has this many records in hand, none of them taken."""
    desk = Desk(**settings)
    desk.gain()
    records = desk.bring(count)
    taker = desk.iterate()
    assert desk.ask(taker)
    return desk, taker, records


def test_a_lease_that_has_lapsed_closes_the_cursor_and_nothing_more_is_acknowledged():
    desk, taker, _ = opened(lease_duration=10.0)
    taker.cursor.take(desk.now)
    desk.now += 10.0
    assert not taker.cursor.is_open
    assert not taker.cursor.is_current(desk.now)
    assert not desk.ask(taker) or taker.cursor.place == 0
    desk.poll()
    assert desk.watermark() == 0


@pytest.mark.parametrize("whole", [False, True])
def test_a_cursor_says_since_when_user_code_is_at_work_and_what_it_has(whole):
    desk = Desk(stuck_after=4.0)
    shard = desk.gain()
    records = desk.bring(3)
    taker = desk.iterate(limit=3, whole=whole)
    assert desk.hand_out.handling_state(shard) == HandlingState()
    assert desk.ask(taker)
    cursor = taker.cursor
    assert desk.hand_out.handling_state(shard) == HandlingState(records[0], 0, 3, None)
    assert (cursor.is_open, cursor.slice_end < desk.now, taker.has_records) == (True, True, False)
    desk.poll()
    desk.poll(5.0)
    assert desk.hand_out.take_events() == [], "nothing was taken"
    if whole:
        cursor.begin_slice(desk.now)
        assert cursor.take_all() == records
    else:
        assert cursor.take(desk.now) is records[0]
    since = desk.now
    assert (cursor.is_open, cursor.slice_end, taker.has_records) == (not whole, since + SLICE, True)
    assert desk.hand_out.handling_state(shard) == HandlingState(records[0], 3 if whole else 1, 0 if whole else 2, since)
    desk.poll(3.9)
    assert desk.hand_out.take_events() == []
    assert desk.hand_out.next_deadline() <= since + 4.0
    desk.poll(0.1)
    (stuck,) = desk.hand_out.take_events()
    assert (type(stuck), stuck.shard_id, stuck.sequence_number, stuck.records) == (
        HandlerStuck,
        "a",
        "1",
        3 if whole else 1,
    )
    desk.hand_out.settle(taker, desk.now, done=True)
    assert not taker.has_records
    desk.poll()
    (recovered,) = desk.hand_out.take_events()
    assert isinstance(recovered, HandlerRecovered)


def test_with_manual_acknowledgements_the_oldest_record_that_is_not_acknowledged_is_watched():
    desk, taker, records = opened(ack="manual", stuck_after=4.0)
    shard = desk.shards["a"]
    taker.cursor.take(desk.now)
    assert desk.hand_out.handling_state(shard) == HandlingState(records[0], 1, 2, desk.now)
    taker.cursor.take(desk.now)
    desk.poll()
    assert desk.hand_out.handling_state(shard) == HandlingState(records[2], 1, 1, desk.now), (
        "the tracker has the others"
    )
    taker.cursor.take(desk.now)
    desk.poll()
    assert desk.hand_out.handling_state(shard) == HandlingState(None, 1, 0, desk.now)
    desk.poll(4.0)
    (stuck,) = desk.hand_out.take_events()
    assert (stuck.sequence_number, stuck.records) == (records[0].sequence_number, 3)
    desk.hand_out.ack(records[0], desk.now)
    desk.poll()
    (recovered,) = desk.hand_out.take_events()
    assert isinstance(recovered, HandlerRecovered)


def test_shards_of_two_streams_that_have_one_name_are_two_shards():
    desk = Desk()
    first = desk.gain("a", "s")
    desk.bring(1)
    second = desk.gain("a", "t")
    desk.bring(1)
    taker = desk.iterate()
    seen = [desk.take(taker)[0].stream, desk.take(taker)[0].stream]
    assert seen == ["s", "t"]
    desk.lose("a", "t")
    assert (first.is_over, second.is_over) == (False, True)
    assert [*desk.hand_out.shards] == [("s", "a")]


def test_no_more_is_handed_out_than_may_be_unacknowledged():
    desk, taker, records = opened(4, ack="manual", max_unacknowledged=3)
    assert taker.cursor.records == records[:3]
    taker.cursor.take(desk.now)
    desk.hand_out.settle(taker, desk.now, done=True)
    assert desk.ask(taker)
    assert taker.cursor.records == records[1:3]
    batches = desk.iterate(limit=3, whole=True)
    assert desk.ask(batches)
    assert batches.cursor.records == records[1:4], "a batch may exceed it"


@pytest.mark.parametrize("whole", [False, True])
def test_records_that_were_given_back_are_handed_out_again_whatever_is_unacknowledged(whole):
    desk = Desk(ack="manual", max_unacknowledged=1)
    desk.gain()
    given = desk.bring(4)[: 3 if whole else 1]
    for _ in range(3):  # a handler fails, its run ends, and the application begins another
        taker = desk.iterate(limit=3, whole=whole)
        assert desk.ask(taker)
        assert taker.cursor.take_all() == given
        desk.poll()
        desk.hand_out.settle(taker, desk.now, done=False)
    tracker = desk.groups["s"].held.holdings["a"].tracker
    assert (tracker.unacknowledged, tracker.returned, tracker.oldest_unacknowledged) == (0, len(given), None)
    assert len(desk.groups["s"].held.take_events()) == 1, "it was reported once"


def test_a_lease_does_not_wait_for_acknowledgements_of_records_that_were_given_back():
    desk, taker, records = opened(3, ack="manual")
    taker.cursor.take(desk.now)
    taker.cursor.take(desk.now)
    desk.hand_out.settle(taker, desk.now, done=False)
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    assert desk.phase() == "ACTIVE", "the user has the first record"
    desk.hand_out.ack(records[0], desk.now)
    assert desk.phase() == "LEAVING", "the second record was given back"


def test_l2_a_batch_whose_handler_was_not_called_under_a_lapsed_lease_has_all_its_attempts_left():
    desk = Desk()
    shard = desk.gain()
    records = desk.bring(2)
    _, task = desk.start(FailurePolicy(attempts=2), batch=2)
    for _ in range(3):  # the process is suspended again and again
        assert task.step == Attempt(records)
        desk.now = shard.grant.held_until
        task.outcome = NOT_CALLED
        assert not desk.ask(task)
        shard.grant.extend(desk.now + 10.0)
        assert desk.poll(0.1) == [task]
    task.outcome = Outcome("broken")
    assert not desk.ask(task)
    (retried,) = desk.hand_out.take_events()
    assert (retried.attempts, desk.hand_out.counts.failed_records) == (1, 0), "the first call was the first attempt"


def test_a_lease_that_only_the_coordinator_knows_to_be_lost_breaks_nothing():
    desk = Desk(ack="manual")
    desk.gain()
    desk.bring(1)
    desk.groups["s"].held.lose("a", "test")
    taker = desk.iterate()
    assert desk.ask(taker)
    assert not taker.cursor.is_open


def facts(*, has_records=False, has_caught_up=False):
    return ShardFacts(has_iterator=True, has_records=has_records, has_caught_up=has_caught_up, has_ended=False)


def test_the_next_record_and_what_bounds_a_run_are_known_of_every_shard():
    desk = Desk()
    shard = desk.gain()
    assert (shard.next_record, shard.facts) == (None, facts())
    first, second = desk.bring(2)
    assert (shard.next_record, shard.facts.has_records) == (first, True)
    taker = desk.iterate()
    desk.take(taker, 1)
    desk.hand_out.settle(taker, desk.now, done=True)
    assert shard.next_record is second
    (third,) = desk.bring(1)
    assert desk.take(taker) == [second]
    assert shard.next_record is third
    desk.ask(taker)
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    shard.reader.state = ReaderState.STARTING
    assert (shard.next_record, shard.facts) == (None, facts(has_records=True)), "it is in hand"
    desk.hand_out.settle(taker, desk.now, done=False)
    shard.reader.has_unopened = shard.reader.has_caught_up = True
    assert shard.facts == facts(has_records=True, has_caught_up=True)


def test_a_new_task_does_not_wait_for_the_idle_task_of_a_lease_that_was_lost():
    desk = Desk()
    desk.gain()
    run = desk.run(FailurePolicy())
    assert desk.ask(run)
    (old,) = run.new_tasks
    assert not desk.ask(old)
    desk.lose()
    desk.gain()
    assert desk.ask(run)
    (new,) = run.new_tasks
    desk.bring(1)
    assert desk.ask(new)
    assert isinstance(new.step, Handle)


@pytest.mark.parametrize("state", [ReaderState.FAILED, ReaderState.GONE, ReaderState.ENDED])
def test_a_reader_that_cannot_go_on_fails_the_consumer_or_has_its_shard_looked_up_once_its_records_are_through(state):
    desk, taker, _ = opened(1)
    shard = desk.shards["a"]
    taker.cursor.take(desk.now)
    shard.reader.state, shard.reader.failure = state, BROKEN
    desk.hand_out.handle_reader_over(shard, desk.now)
    if state is ReaderState.FAILED:
        assert desk.hand_out.failure == ReadingFailed("a", BROKEN)
        assert desk.ask(taker)
        assert taker.is_over
        return
    assert desk.groups["s"].unseen == []
    desk.hand_out.take_pump_due()
    assert not desk.ask(taker)
    assert desk.groups["s"].unseen == (["a"] if state is ReaderState.GONE else [])
    assert desk.hand_out.take_pump_due()


def test_a_lost_shard_that_the_service_does_not_know_is_not_looked_up():
    desk = Desk()
    shard = desk.gain()
    desk.lose()
    shard.reader.state = ReaderState.GONE
    desk.hand_out.handle_reader_over(shard, desk.now)
    assert desk.groups["s"].unseen == []


def test_a_reader_that_waited_for_room_is_woken_when_the_user_is_done_with_a_page():
    desk = Desk(prefetch_max_bytes=64 * 1024)
    shard = desk.gain()
    desk.bring(700)
    desk.bring(1)
    desk.hand_out.budget.admits(("s", "gone"))
    assert not desk.hand_out.budget.admits(shard.key)
    taker = desk.iterate()
    desk.take(taker)
    desk.poll()
    assert desk.hand_out.take_actions() == [], "the page is in hand"
    desk.ask(taker)
    assert desk.hand_out.take_actions() == [WakeReader(shard)]
    desk.poll()
    assert desk.hand_out.take_actions() == []


def test_a_copy_in_a_forked_child_hands_out_and_acknowledges_nothing():
    desk, taker, _ = opened()
    taker.cursor.take(desk.now)
    grant = desk.shards["a"].grant
    desk.gain("b")
    desk.hand_out.disown("forked")
    assert not taker.cursor.is_open
    assert taker.cursor.end == 1
    assert not grant.held
    assert desk.ask(taker)
    assert (taker.is_over, desk.watermark()) == (True, 0)


def test_the_coordinator_is_polled_soon_when_it_has_something_to_write():
    desk, taker, _ = opened()
    out = desk.hand_out
    desk.poll()
    out.take_pump_due()
    taker.cursor.take(desk.now)
    desk.poll()
    assert not out.take_pump_due(), "nothing is done"
    taker.cursor.take(desk.now)
    desk.poll()
    assert out.take_pump_due(), "the first record that is done: the commit is to be arranged"
    assert not out.take_pump_due()
    taker.cursor.take(desk.now)
    desk.poll()
    assert not out.take_pump_due(), "it is arranged"
    out.handle_read()
    assert not out.take_pump_due()
    out.handle_hand_over_asked("s", "a", desk.now)
    assert not out.take_pump_due()
    out.settle(taker, desk.now, done=True)
    assert out.take_pump_due(), "the lease is let go"
    assert desk.phase() == "LEAVING"


def test_until_the_consumer_is_ready_whatever_is_read_matters():
    desk = Desk(until_latest=True)
    desk.hand_out.handle_read()
    assert desk.hand_out.take_pump_due()
    desk.gain()
    desk.hand_out.take_pump_due()
    desk.lose()
    assert desk.hand_out.take_pump_due()


def test_a_wait_that_ends_sooner_than_others_is_a_reason_to_look_at_the_clock():
    desk = Desk()
    desk.gain()
    taker = desk.iterate(limit=5, max_wait=2.0)
    desk.poll()
    assert not desk.ask(taker)
    desk.hand_out.take_pump_due()
    desk.bring(1)
    assert desk.hand_out.take_pump_due()
    assert desk.hand_out.next_deadline() == desk.now + 2.0
    desk.bring(1)
    assert not desk.hand_out.take_pump_due()


def test_how_far_user_code_has_come_is_looked_at_as_often_as_is_committed():
    desk, _, _ = opened()
    desk.poll()
    assert desk.hand_out.next_deadline() == desk.now + 1.0
    quick = HandOut(desk.groups, desk.config, desk.hand_out.bounds, report_interval=0.0)
    assert quick._report_interval == 0.05
    desk.poll()
    assert Desk().hand_out.next_deadline() == NEVER


def test_an_acknowledgement_counts_for_one_record_or_for_all_before_it():
    desk, taker, records = opened(4)
    taker.cursor.take(desk.now)
    taker.cursor.take(desk.now)
    desk.hand_out.ack(records[1], desk.now)
    assert desk.watermark() == 2, "without manual acknowledgements for all before it"
    desk, taker, records = opened(4, ack="manual")
    for _ in range(4):
        taker.cursor.take(desk.now)
    desk.hand_out.take_pump_due()
    desk.hand_out.ack(
        Record(b"", "k", sequence_number="9", shard_id="a", stream="s", origin=records[0].origin), desk.now
    )
    assert not desk.hand_out.take_pump_due(), "it was never handed out"
    desk.hand_out.ack(records[1], desk.now)
    assert desk.watermark() == 0
    desk.hand_out.ack(records[0], desk.now)
    assert desk.watermark() == 2
    desk.hand_out.take_pump_due()
    desk.hand_out.ack(records[3], desk.now, through=True)
    assert desk.watermark() == 4
    assert not desk.hand_out.take_pump_due(), "the commit was arranged"


def test_a_record_that_is_acknowledged_under_a_lease_that_was_lost_is_not_done():
    desk, taker, records = opened(1, ack="manual")
    taker.cursor.take(desk.now)
    desk.lose()
    desk.gain()
    desk.poll()
    assert desk.groups["s"].held.holdings["a"].tracker.remembered == 0, "it was delivered under the older lease"
    desk.sequence = 0  # the record comes again
    (again,) = desk.bring(1)
    desk.take(taker)
    desk.poll()
    desk.hand_out.ack(records[0], desk.now)
    assert desk.watermark() == 0
    desk.hand_out.ack(again, desk.now)
    assert desk.watermark() == 1


def test_an_acknowledgement_makes_room_for_the_next_record_and_lets_a_lease_go():
    desk, taker, records = opened(2, ack="manual", max_unacknowledged=1)
    taker.cursor.take(desk.now)
    assert not desk.ask(taker)
    desk.hand_out.ack(records[0], desk.now)
    assert desk.hand_out.take_answered() == [taker]
    assert taker.cursor.take(desk.now) is records[1]
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    assert desk.ask(taker) is False
    assert desk.phase() == "ACTIVE"
    desk.hand_out.take_pump_due()
    desk.hand_out.ack(records[1], desk.now)
    assert desk.phase() == "LEAVING"
    assert desk.hand_out.take_pump_due()


def test_the_end_of_a_shard_is_a_reason_to_poll_the_coordinator():
    desk, taker, _ = opened(2)
    for _ in range(2):
        taker.cursor.take(desk.now)
    desk.poll()
    assert not desk.ask(taker)
    desk.hand_out.take_pump_due()
    desk.bring(0, last=True)
    assert desk.groups["s"].ended == [("a", ())]
    assert desk.hand_out.take_pump_due()
    desk, taker, records = opened(2, ack="manual")
    desk.bring(0, last=True)
    for _ in range(2):
        taker.cursor.take(desk.now)
    assert not desk.ask(taker)
    desk.hand_out.ack(records[0], desk.now)
    desk.hand_out.take_pump_due()
    desk.hand_out.ack(records[1], desk.now)
    assert desk.hand_out.take_pump_due(), "and so is the acknowledgement of its last record"


@pytest.mark.parametrize(("count", "last", "taken"), [(2, True, 2), (2, True, 1), (2, False, 2), (3, True, 2)])
def test_a_shard_that_another_worker_asked_for_has_ended_only_if_its_last_record_is_done(count, last, taken):
    desk = Desk()
    desk.gain()
    desk.bring(count, last=last)
    taker = desk.iterate(limit=2)
    desk.take(taker, taken)
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    desk.hand_out.settle(taker, desk.now, done=True)
    assert desk.groups["s"].ended == ([("a", ())] if last and taken == count else [])


def test_what_is_done_matters_to_a_run_until_latest():
    desk, taker, _ = opened(3, until_latest=True)
    desk.poll()
    for _ in range(3):
        taker.cursor.take(desk.now)
    desk.poll()
    desk.hand_out.take_pump_due()
    desk.hand_out.settle(taker, desk.now, done=False)
    assert desk.hand_out.take_pump_due()


def test_a_task_of_a_lease_that_was_gained_again_waits_for_the_handler_of_the_older_one():
    desk = Desk(stuck_after=4.0)
    desk.gain()
    desk.bring(1)
    run, old = desk.start(FailurePolicy())
    old.cursor.take(desk.now)
    desk.lose()
    assert desk.hand_out.take_actions()[-1] == CancelHandler(old)
    shard = desk.gain()
    assert desk.ask(run)
    (new,) = run.new_tasks
    desk.bring(1)
    assert not desk.ask(new)
    desk.hand_out.leave(old, desk.now, is_at_work=True)
    assert desk.poll(4.0) == []
    (stuck,) = desk.hand_out.take_events()
    assert isinstance(stuck, HandlerStuck), "a thread that was left behind is watched too"
    assert desk.hand_out.is_busy(shard.key)
    desk.hand_out.handle_work_ended(old, desk.now)
    assert desk.hand_out.take_answered() == [new]
    desk.hand_out.leave(new, desk.now)
    desk.hand_out.handle_work_ended(new, desk.now)
    assert desk.hand_out._tasks == {}


def test_a_task_that_leaves_lets_the_next_one_of_its_shard_begin():
    desk = Desk()
    desk.gain()
    desk.bring(2)
    run = desk.run(FailurePolicy())
    desk.ask(run)
    (old,) = run.new_tasks
    desk.ask(old)
    done, again = (old.cursor.take(desk.now) for _ in range(2))
    newer = desk.run(FailurePolicy())
    assert desk.ask(newer)
    (new,) = newer.new_tasks
    assert not desk.ask(new)
    desk.hand_out.leave(old, desk.now)
    assert desk.hand_out.take_answered() == [new]
    assert not desk.hand_out.is_busy(("s", "a"), new)
    assert (new.cursor.records, desk.watermark()) == ([again], int(done.sequence_number))


@pytest.mark.parametrize("how", ["close", "fail", "end"])
def test_a_consumer_that_ends_answers_whoever_waits_and_hands_out_no_more(how):
    desk, taker, _ = opened(3)
    taker.cursor.take(desk.now)
    run, task = desk.start(FailurePolicy())
    task.cursor.take(desk.now)
    waiting = desk.gain("b")
    assert desk.ask(run)
    (idle,) = run.new_tasks
    assert not desk.ask(run)
    assert not desk.ask(idle)
    desk.hand_out.take_actions()
    getattr(desk.hand_out, how)(*(["why"] if how == "fail" else []), desk.now)
    assert {*desk.hand_out.take_answered()} == {run, idle}
    assert (run.is_over, idle.is_over, desk.hand_out.is_over) == (True, True, True)
    assert waiting.reader.is_stopped
    assert StopReading(waiting) in desk.hand_out.take_actions()
    assert task.cursor.end == 1, "what is in hand may be finished"
    assert (desk.hand_out.shards == {}) == (how == "end")
    assert desk.gain("c").reader.is_stopped
    desk.ask(task)
    assert task.is_over
    assert desk.watermark() == 2


@pytest.mark.parametrize("how", ["close", "end"])
def test_a_consumer_that_ends_without_any_lease_answers_whoever_waits(how):
    desk = Desk(ack="manual")
    taker = desk.iterate()
    assert not desk.ask(taker)
    getattr(desk.hand_out, how)(desk.now)
    assert desk.hand_out.take_answered() == [taker]


def test_what_comes_and_goes_is_answered_in_the_same_moment():
    desk = Desk()
    out = desk.hand_out
    run = desk.run(FailurePolicy())
    assert not desk.ask(run)
    desk.gain("a")
    assert out.take_answered() == [run]
    (first,) = run.new_tasks
    assert not desk.ask(run)
    desk.gain("b")
    assert out.take_answered() == [run]
    (second,) = run.new_tasks
    assert not desk.ask(first)
    assert not desk.ask(second)
    desk.lose("a")
    assert out.take_answered() == [first]
    out.handle_hand_over_asked("s", "b", desk.now)
    assert out.take_answered() == [second]
    assert desk.phase("b") == "LEAVING"
    assert (first.step, second.step) == (None, None)


def test_a_run_that_is_idle_ends_and_what_the_user_does_is_no_idleness():
    desk = Desk(idle_timeout=3.0)
    desk.gain()
    taker = desk.iterate(limit=2, max_wait=2.0)
    desk.poll()
    assert not desk.ask(taker)
    assert desk.poll(2.0) == []
    desk.bring(2)
    assert desk.hand_out.take_answered() == [taker]
    taker.cursor.take(desk.now)
    taker.cursor.take(desk.now)
    assert desk.poll(2.0) == []
    desk.now += 1.0
    assert not desk.ask(taker), "giving records back is no idleness either"
    assert desk.poll(2.9) == []
    assert desk.poll(0.1) == [taker]
    assert taker.is_over
    later = desk.iterate(limit=5, max_wait=2.0)
    assert not desk.ask(later)
    desk.bring(1)
    assert desk.poll(2.0) == [later]
    assert (later.is_over, len(later.cursor.records)) == (False, 1)


def test_records_that_come_after_a_run_was_over_are_waited_for_as_ever():
    desk = Desk(idle_timeout=3.0)
    desk.gain()
    taker = desk.iterate(limit=5, max_wait=2.0)
    desk.poll()
    desk.poll(3.0)
    assert desk.hand_out.bounds.is_exhausted
    desk.bring(1)
    assert not desk.ask(taker)
    assert desk.poll(2.0) == [taker]
    assert not taker.is_over


def test_a_shard_enters_the_queue_when_it_has_pages_that_were_not_handed_out():
    desk = Desk()
    first = desk.gain("a")
    desk.gain("b")
    desk.hand_out.handle_pages(first, [], desk.now)
    desk.bring(1, "b")
    taker = desk.iterate()
    assert [record.shard_id for record in desk.take(taker)] == ["b"]
    desk.bring(1, "b")
    desk.bring(1, "a")
    assert [record.shard_id for record in desk.take(taker)] == ["a"]
    desk.bring(1, "a")
    assert [record.shard_id for record in desk.take(taker)] == ["b"]


def test_an_iteration_continues_with_the_shards_that_no_other_worker_asked_for():
    desk = Desk(ack="manual")
    desk.gain("a")
    desk.poll()
    desk.gain("b")
    desk.bring(1, "a")
    desk.bring(1, "b")
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    taker = desk.iterate()
    assert [record.shard_id for record in desk.take(taker)] == ["b"]


def test_the_last_records_of_a_shard_are_not_kept_waiting_for_more():
    desk = Desk()
    desk.gain()
    taker = desk.iterate(limit=5, max_wait=60.0)
    assert not desk.ask(taker)
    desk.bring(1)
    assert desk.poll(1.0) == []
    desk.bring(1, last=True)
    assert desk.hand_out.take_answered() == [taker]
    desk, taker, _ = opened(1)
    batches = desk.iterate(limit=2, max_wait=60.0)
    desk.bring(2)
    desk.take(batches)
    assert not desk.ask(batches), "one record is left, and may get company"


def test_a_wait_that_became_shorter_is_not_forgotten_when_another_did_not():
    desk = Desk()
    first, second = desk.gain("a"), desk.gain("b")
    run = desk.run(FailurePolicy(), batch=5, max_wait=2.0)
    assert desk.ask(run)
    assert [desk.ask(task) for task in run.new_tasks] == [False, False]
    desk.hand_out.take_pump_due()
    desk.bring(1, "a")
    desk.hand_out.handle_pages(second, [], desk.now)
    assert first.records == 1
    assert desk.hand_out.take_pump_due()


def test_a_shard_that_the_service_does_not_know_and_that_has_no_records_is_looked_up_at_once():
    desk = Desk()
    shard = desk.gain()
    desk.hand_out.take_pump_due()
    shard.reader.state = ReaderState.GONE
    desk.hand_out.handle_reader_over(shard, desk.now)
    assert desk.groups["s"].unseen == ["a"]
    assert desk.hand_out.take_pump_due()
    full = desk.gain("b")
    desk.bring(1, "b")
    full.reader.state = ReaderState.GONE
    desk.hand_out.handle_reader_over(full, desk.now)
    assert desk.groups["s"].unseen == ["a"], "it has records"


@pytest.mark.parametrize("how", ["lost", "handed over"])
def test_a_reader_that_waited_for_room_is_woken_when_another_shard_is_stopped(how):
    desk = Desk(prefetch_max_bytes=64 * 1024)
    desk.gain("b")
    desk.bring(700, "b")
    shard = desk.gain("a")
    desk.bring(1)
    assert not desk.hand_out.budget.admits(shard.key)
    if how == "lost":
        desk.lose("b")
    else:
        desk.hand_out.handle_hand_over_asked("s", "b", desk.now)
    assert WakeReader(shard) in desk.hand_out.take_actions()
    desk.poll()
    assert desk.hand_out.take_actions() == []


def test_a_reader_that_waited_for_room_is_woken_when_another_reader_has_dropped_its_entries():
    desk = Desk(prefetch_max_bytes=64 * 1024)
    other = desk.gain("b")
    desk.hand_out.budget.keep(other.key, 64 * 1024)
    shard = desk.gain("a")
    desk.bring(1)
    assert not desk.hand_out.budget.admits(shard.key)
    desk.hand_out.budget.keep(other.key, 0)
    desk.poll()
    assert desk.hand_out.take_actions() == [WakeReader(shard)]


def test_whoever_has_left_is_answered_no_more():
    desk = Desk()
    desk.gain()
    older = desk.iterate(limit=5, max_wait=2.0)
    desk.bring(1)
    assert not desk.ask(older)
    run = desk.run(FailurePolicy(attempts=3))
    assert older.is_over
    assert desk.poll(2.0) == []
    assert desk.ask(run)
    (task,) = run.new_tasks
    assert desk.ask(task)
    task.cursor.take(desk.now)
    task.outcome = Outcome("broken")
    assert not desk.ask(task), "it waits for its retry"
    (event,) = desk.hand_out.take_events()
    assert (event.shard_id, desk.hand_out.counts.retries) == ("a", 1)
    desk.hand_out.leave(task, desk.now)
    assert desk.poll(60.0) == []


def test_of_two_iterations_the_later_one_stays():
    desk = Desk()
    older = Iteration(desk.hand_out, 1)
    newer = desk.iterate()
    newer.number = 2
    desk.hand_out.begin(older, desk.now)
    assert desk.hand_out.current is newer
    desk.hand_out.begin(newer, desk.now)
    assert not newer.is_over


def test_a_question_that_arrives_after_its_answer_is_void():
    desk, taker, records = opened()
    taker.cursor.take(desk.now)
    desk.hand_out.ask(taker, taker.asked, desk.now)
    assert desk.hand_out.take_answered() == []
    desk.poll()
    assert desk.watermark() == 0
    assert taker.cursor.take(desk.now) is records[1]


def test_an_acknowledgement_of_a_record_of_another_lease_counts_for_nothing():
    desk, taker, records = opened(ack="manual")
    taker.cursor.take(desk.now)
    desk.lose()
    desk.gain()
    desk.hand_out.ack(records[0], desk.now)
    desk.hand_out.ack(Record(b"", "k"), desk.now)
    assert desk.watermark() == 0


class Caller:
    def __init__(self, caller):
        self.caller = caller
        self.woken = 0

    def wake(self):
        self.woken += 1


def test_one_caller_at_a_time_asks_and_an_ended_caller_blocks_no_other():
    taker = Desk().iterate()
    first, second, again = Caller("first"), Caller("second"), Caller("first")
    alive = lambda _: False  # noqa: E731 - nobody has ended
    assert taker.enter(first, alive)
    assert (taker.asked, taker.caller) == (1, "first")
    assert not taker.enter(second, alive)
    assert (taker.asked, taker.caller, [*taker.waiting]) == (1, "first", [first])
    assert taker.is_awaited("second", alive)
    assert not taker.is_awaited("first", alive)
    assert not taker.is_awaited("second", lambda _: True)
    taker.wake()
    assert (first.woken, second.woken) == (1, 0)
    assert taker.enter(again, alive), "an interrupt kept it from leaving"
    assert (taker.asked, [*taker.waiting]) == (2, [again])
    assert taker.enter(second, lambda caller: caller == "first"), "its task has ended"
    assert (taker.caller, [*taker.waiting]) == ("second", [second])
    taker.leave(second)
    taker.leave(second)
    assert not taker.waiting


def naive_end(until_latest, max_leases, groups, shards, first):
    """Whether each shard was read up to its newest record, and all other leases have live owners."""
    if not until_latest or not all(shard.has_caught_up and not shard.has_ended for shard in shards):
        return False
    if max_leases is not None and len(shards) >= max_leases:
        return True
    if not all(group.is_listed for group in groups):
        return False
    for group in groups:
        for lease in group.others:
            if lease.has_other_holder:
                first.setdefault(lease.key, lease.counter)
    leases = [lease for group in groups for lease in group.others]
    return all(lease.has_other_holder and first[lease.key] != lease.counter for lease in leases)


MOSTLY, RARELY = st.sampled_from([True, True, True, False]), st.sampled_from([False, False, False, True])
SHARDS = st.lists(st.builds(ShardFacts, MOSTLY, RARELY, MOSTLY, RARELY), max_size=2)
LEASES = st.builds(OtherLease, st.sampled_from([("s", "a"), ("s", "b")]), MOSTLY, st.integers(1, 2))
GROUPS = st.lists(st.builds(GroupFacts, MOSTLY, MOSTLY, st.lists(LEASES, max_size=2)), max_size=2)
LOOKS = st.lists(
    st.tuples(st.sampled_from([0.5, 2.0]), GROUPS, SHARDS, st.sampled_from(["", "", "active", "restart"])), max_size=8
)


@given(st.booleans(), st.sampled_from([None, 2.0]), st.sampled_from([None, 1]), LOOKS)
@settings(max_examples=150, deadline=None)
def test_a_run_is_over_when_the_naive_bounds_say_so(until_latest, idle_timeout, max_leases, looks):
    bounds = RunBounds(until_latest=until_latest, idle_timeout=idle_timeout, max_leases=max_leases)
    is_ready = is_over = False
    now, active_at, first = 100.0, None, {}
    for seconds, groups, shards, also in looks:
        now += seconds
        if also == "active":
            bounds.handle_activity(now)
            active_at = now
        elif also == "restart":
            bounds.restart(now)
            active_at, is_over = now, is_over and until_latest
        before = (is_ready, is_over)
        if not is_ready:
            is_ready = all(group.is_ready for group in groups) and all(shard.has_iterator for shard in shards)
            active_at = now if is_ready else active_at
        elif not is_over and any(shard.has_records for shard in shards):
            active_at = now
        elif not is_over:
            is_idle = idle_timeout is not None and now >= active_at + idle_timeout
            is_over = naive_end(until_latest, max_leases, groups, shards, first) or is_idle
        assert bounds.handle_facts(groups, shards, now) == ((is_ready, is_over) != before)
        assert (bounds.is_ready, bounds.is_exhausted) == (is_ready, is_over)
        assert bounds.is_awaited == (not is_ready or until_latest)
        never_ends = not until_latest and idle_timeout is None
        assert bounds.is_open_ended == (is_ready and (is_over or never_ends))
        is_timed = idle_timeout is not None and is_ready and not is_over
        assert bounds.next_deadline() == (active_at + idle_timeout if is_timed else NEVER)


def test_until_latest_ends_a_run_when_every_shard_is_read_and_every_other_lease_is_in_living_hands():
    read, listed = facts(has_caught_up=True), GroupFacts(is_ready=True, is_listed=True, others=[])
    free = listed._replace(others=[OtherLease(("s", "a"), has_other_holder=False, counter=1)])

    def is_over(shard, group, max_leases=None):
        bounds = RunBounds(until_latest=True, idle_timeout=None, max_leases=max_leases)
        assert bounds.handle_facts([group], [shard], 1.0), "it is ready"
        return bounds.handle_facts([group], [shard], 2.0)

    assert is_over(read, listed)
    assert not is_over(read._replace(has_caught_up=False), listed)
    assert not is_over(read._replace(has_ended=True), listed)
    assert not is_over(read, listed._replace(is_listed=False))
    assert [is_over(read, free, most) for most in (None, 2, 1)] == [False, False, True]
    bounds, looks = RunBounds(until_latest=True, idle_timeout=None, max_leases=None), []
    for counter in (1, 1, 1, 2):  # the owner counts as alive when its counter changes
        lease = OtherLease(("s", "a"), has_other_holder=True, counter=counter)
        looks.append(bounds.handle_facts([listed._replace(others=[lease])], [read], 1.0))
    assert looks == [True, False, False, True]


def test_an_unowned_lease_keeps_a_run_until_latest_going_though_its_counter_moves():
    bounds = RunBounds(until_latest=True, idle_timeout=None, max_leases=None)
    for counter in range(1, 4):
        free = OtherLease(("s", "a"), has_other_holder=False, counter=counter)
        bounds.handle_facts([GroupFacts(is_ready=True, is_listed=True, others=[free])], [], float(counter))
    assert not bounds.is_exhausted
    bounds.handle_facts([GroupFacts(is_ready=True, is_listed=True, others=[])], [], 9.0)
    assert bounds.is_exhausted


def test_the_leases_of_others_are_those_that_are_not_held_and_not_finished():
    desk = Desk()
    group = desk.groups["s"]
    rows = [
        Lease("held", owner="me"),
        Lease("free"),
        Lease("left", owner="me", counter=3),
        Lease("other", owner="you", counter=4),
        Lease("over", checkpoint=Checkpoint(SHARD_END)),
    ]
    group.view.rows.update({row.shard_id: row for row in rows})
    facts = group_facts("s", group, {("s", "held"): None, ("t", "other"): None})
    expected = [("free", False, 0), ("left", False, 3), ("other", True, 4)]
    assert facts.others == [OtherLease(("s", name), *rest) for name, *rest in expected]
    assert (facts.is_ready, facts.is_listed) == (True, True)
    desk.gain("held")
    assert group_facts("s", group, {("s", "held"): None}).is_ready
    assert not group_facts("s", group, {}).is_ready, "its reader is not started"
    group.is_ready = False
    assert not group_facts("s", group, {("s", "held"): None}).is_ready
    group.topology.is_settled = False
    assert not group_facts("s", group, {}).is_listed
    group.topology.is_settled = True
    group.topology.graph.covers = lambda _: False
    assert not group_facts("s", group, {}).is_listed
    group.view.rows.clear()
    group.topology.graph.covers = lambda _: True
    assert not group_facts("s", group, {}).is_listed


# ---- handlers


def handle(desk, task, error=None):
    """Let the handler return or fail, and the task ask again. Return the records of its next step, if it comes at once."""
    task.outcome = Outcome(error)
    task.asked += 1
    desk.hand_out.ask(task, task.asked, desk.now)
    answered = desk.hand_out.take_answered()
    assert answered in ([], [task]), "a question is answered once"
    return [*getattr(task.step, "letter", task.step).records] if answered else None


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_a_batch_that_fails_is_tried_again_in_halves_and_a_record_that_always_fails_is_buried(ack):
    desk = Desk(ack=ack, stuck_after=4.0)
    shard = desk.gain()
    first, second, third = desk.bring(3)
    _, task = desk.start(FailurePolicy(attempts=2, backoff=1.0, backoff_max=1.0, finally_="dead-letter"), batch=2)
    assert (task.step, task.cursor.is_open) == (Attempt([first, second]), False)
    task.cursor.taken_at = desk.now
    assert handle(desk, task, "broken") is None, "it waits for its retry"
    assert (task.is_at_work, task.cursor.taken_at) == (False, None)
    assert desk.poll(1.0) == [task]
    assert (task.step, task.is_at_work) == (Attempt([first, second]), True)
    assert handle(desk, task, "broken") == [first]
    task.cursor.taken_at = desk.now
    assert desk.hand_out.handling_state(shard).records == 1
    if ack == "manual":
        desk.hand_out.ack(first, desk.now)
    assert handle(desk, task) == [second]
    assert desk.watermark() == 1
    assert handle(desk, task, "broken") is None
    desk.poll(1.0)
    assert handle(desk, task, "broken") == [second]
    assert isinstance(task.step, WriteDeadLetter)
    assert handle(desk, task, "no room") is None
    desk.poll(1.0)
    assert (type(task.step), desk.watermark()) == (WriteDeadLetter, 1)
    assert handle(desk, task) == [third]
    assert (task.step, desk.watermark()) == (Attempt([third]), 2)
    counts = desk.hand_out.counts
    assert (counts.retries, counts.dead_letters, len(desk.hand_out.take_events())) == (3, 1, 5)


@pytest.mark.parametrize(("ack", "is_acked", "is_lost"), [("auto", 0, 0), ("manual", 1, 0), ("manual", 0, 1)])
def test_a_thread_that_outlives_its_run_or_its_lease_is_watched_but_not_an_acknowledged_record(ack, is_acked, is_lost):
    desk = Desk(ack=ack, stuck_after=4.0)
    desk.gain()
    desk.bring(1)
    _, task = desk.start(FailurePolicy())
    record = task.cursor.take(desk.now)
    desk.poll()
    if is_acked:
        desk.hand_out.ack(record, desk.now)
    else:
        desk.lose() if is_lost else None
        desk.hand_out.leave(task, desk.now, is_at_work=True)
    desk.poll()
    desk.poll(5.0)
    assert len(desk.hand_out.take_events()) == (not is_acked)


@pytest.mark.parametrize("batch", [None, 2])
def test_a_handler_that_waits_for_its_retry_gives_its_records_back_when_the_lease_is_asked_for(batch):
    desk = Desk()
    desk.gain()
    desk.bring(2)
    _, task = desk.start(FailurePolicy(attempts=2), batch=batch)
    if batch is None:
        task.cursor.take(desk.now)
    task.outcome = Outcome("broken")
    assert not desk.ask(task)
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    assert desk.hand_out.take_answered() == [task]
    assert (task.step, task.is_over, desk.watermark(), desk.phase()) == (None, True, 0, "LEAVING")


def test_a_handler_at_work_is_not_disturbed_and_one_that_failed_too_often_stops_the_run():
    desk = Desk(idle_timeout=3.0)
    desk.gain()
    (record,) = desk.bring(1)
    run, task = desk.start(FailurePolicy(attempts=1), batch=2)
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    assert (desk.hand_out.take_answered(), desk.phase()) == ([], "ACTIVE")
    assert handle(desk, task, "broken") == [record]
    assert task.step == Stop("a", [record], "broken")
    desk.hand_out.leave(task, desk.now)
    assert desk.watermark() == 0
    assert not desk.ask(run)
    desk.poll()
    assert desk.poll(3.0) == [run]
    assert run.is_over, "nothing came for too long"


# ---- everything together


class NaiveShard:
    """The records of a shard under one grant. The user gets them in order, starting with the first that is not done."""

    def __init__(self, held):
        self.held = held
        self.pages, self.records = [], []
        self.done = self.delivered = 0
        self.acked = set()
        self.is_stopping = self.has_last = False

    @property
    def unread_bytes(self):
        """The bytes that count against the budget: those of pages whose last record is not done."""
        ends = accumulate(len(page) for page in self.pages)
        return 100 * sum(len(page) for page, end in zip(self.pages, ends, strict=True) if end > self.done)

    def _unacknowledged(self, records):
        return [record for record in records if int(record.sequence_number) not in self.acked]

    @property
    def kept(self):
        """The unacknowledged records that the user has kept, while it has no cursor."""
        return self._unacknowledged(self.records[: min(self.done, self.delivered)])

    @property
    def returned(self):
        """How many unacknowledged records the user gave back, while it has no cursor."""
        return len(self._unacknowledged(self.records[self.done : self.delivered]))

    @property
    def remembered(self):
        """The number of delivered records from the first unacknowledged one on."""
        delivered = self.records[: self.delivered]
        first = self._unacknowledged(delivered)[:1]
        return len(delivered) - delivered.index(first[0]) if first else 0


class HandingOut(RuleBasedStateMachine):
    @initialize(
        manual=st.booleans(),
        limit=st.sampled_from([None, 1, 2, 3]),
        whole=st.booleans(),
        most=st.sampled_from([2, 100]),
    )
    def begin(self, manual, limit, whole, most):
        ack = "manual" if manual else "auto"
        self.desk = Desk(ack=ack, max_unacknowledged=most, lease_duration=300.0)
        self.manual, self.whole, self.limit = manual, whole, 2 if whole and limit is None else limit
        self.shards, self.hand, self.taken, self.is_asking = {}, None, 0, False
        self.taker = self.desk.iterate(limit=self.limit, whole=whole)
        self.grants = []
        for name in NAMES[:2]:
            self.gain(name)
            self.bring(name, 3, last=False)

    # ---- the user

    @precondition(lambda self: not self.is_asking)
    @rule()
    def ask(self):
        """Ask for records. The records that were taken are done; the rest of an open cursor comes again."""
        cursor = self.taker.cursor
        was_open = self.hand is not None and cursor.is_open
        self.is_asking = True
        answered = self.desk.ask(self.taker)
        if was_open:
            self.is_asking = False
            assert answered
            assert self.taker.cursor is cursor
        else:
            self.give_back(self.taken)
            self.check_answer(answered)

    def give_back(self, done):
        if self.hand is not None:
            shard, self.hand = self.hand, None
            shard.done += done

    def is_held(self, shard):
        return self.shards.get(shard.held.shard_id) is shard

    def check_answer(self, answered):
        """Check that a taker gets the next records of a shard that has some, and waits only if there are none."""
        if not self.is_asking:
            return
        ready = [shard for shard in self.shards.values() if self.has_more(shard)]
        assert answered == bool(ready)
        if answered:
            records = self.taker.cursor.records
            self.hand, self.taken, self.is_asking = self.shards[records[0].shard_id], 0, False
            assert self.hand in ready
            assert [*records] == self.hand.records[self.hand.done : self.hand.done + len(records)]
            assert len(records) == self.expected_count(self.hand)

    def expected_count(self, shard):
        """Return the expected number: the rest of one page, or as many as the limit allows; except in a batch, no more
        than may be unacknowledged.
        """
        ends = accumulate(len(page) for page in shard.pages)
        rest = next(end for end in ends if end > shard.done) - shard.done
        count = rest if self.limit is None else min(self.limit, len(shard.records) - shard.done)
        room = max(self.desk.config.max_unacknowledged - shard.remembered, shard.returned)
        return min(count, room) if self.manual and not self.whole else count

    def has_more(self, shard):
        has_room = shard.remembered < self.desk.config.max_unacknowledged or shard.returned
        return not shard.is_stopping and shard.done < len(shard.records) and (has_room or not self.manual)

    @precondition(lambda self: self.hand is not None)
    @rule(times=st.integers(1, 4))
    def take(self, times):
        cursor = self.taker.cursor
        for _ in range(times):
            is_open = self.taken < cursor.end and self.is_held(self.hand)
            assert cursor.is_open == cursor.is_current(self.desk.now) == is_open
            if is_open:
                self.taken = len(cursor.records) if self.whole else self.taken + 1
                expected = self.hand.records[self.hand.done : self.hand.done + self.taken]
                got = [*cursor.take_all()] if self.whole else [cursor.take(self.desk.now)]
                assert got == (expected if self.whole else expected[-1:])
                self.hand.delivered = max(self.hand.delivered, self.hand.done + self.taken)

    @precondition(lambda self: self.hand is not None)
    @rule(done=st.booleans())
    def settle(self, done):
        """End the iteration, normally or by an error. After an error, the last record or batch comes again."""
        self.desk.hand_out.settle(self.taker, self.desk.now, done=done)
        self.give_back(self.taken if done else max(0, self.taken - self.taker.cursor.step))
        assert not self.taker.cursor.is_open

    @precondition(lambda self: self.manual)
    @rule(name=st.sampled_from(NAMES), place=st.integers(0, 5), through=st.booleans())
    def ack(self, name, place, through):
        shard = self.shards.get(name)
        if shard is not None and place < shard.delivered:
            self.desk.hand_out.ack(shard.records[place], self.desk.now, through=through)
            acked = shard.records[: place + 1] if through else [shard.records[place]]
            shard.acked |= {int(record.sequence_number) for record in acked}
            self.check_answer(self.taker in self.desk.hand_out.take_answered())

    # ---- the stream

    @rule(name=st.sampled_from(NAMES))
    def gain(self, name):
        if name not in self.shards:
            self.desk.groups["s"].held.take_events()
            self.shards[name] = NaiveShard(self.desk.gain(name))
            self.grants.append(self.shards[name])

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 4), last=st.sampled_from([False, False, True]))
    def bring(self, name, count, last):
        shard = self.shards.get(name)
        if shard is not None and not shard.is_stopping and not shard.has_last and count + last:
            shard.pages.append(self.desk.bring(count, name, last=last, children=(f"child of {name}",) * last))
            shard.records += shard.pages[-1]
            shard.has_last = last
            self.check_answer(self.taker in self.desk.hand_out.take_answered())

    @rule(name=st.sampled_from(NAMES), is_lost=st.booleans())
    def lose(self, name, is_lost):
        """Lose the lease, or let another worker ask for it."""
        shard = self.shards.get(name)
        if shard is None or (shard.is_stopping and not is_lost):
            return
        if is_lost:
            del self.shards[name]
            self.desk.lose(name)
        else:
            self.desk.hand_out.handle_hand_over_asked("s", name, self.desk.now)
        shard.is_stopping = True
        assert shard.held.reader.is_stopped
        assert StopReading(shard.held) in self.desk.hand_out.take_actions()
        self.check_answer(self.taker in self.desk.hand_out.take_answered())

    @rule(seconds=st.sampled_from([0.0, 1.0]))
    def wait(self, seconds):
        self.check_answer(self.taker in self.desk.poll(seconds))

    # ---- invariants

    @invariant()
    def the_coordinator_knows_what_is_done(self):
        for name, shard in getattr(self, "shards", {}).items():
            watermark = self.desk.watermark(name)
            numbers = [int(record.sequence_number) for record in shard.records]
            done = shard.acked if self.manual else numbers[: shard.done + (self.taken if self.hand is shard else 0)]
            assert {number for number in numbers if number <= watermark} <= {*done}
            if not self.manual and self.hand is not shard and shard.done:
                assert watermark == done[-1]
            is_settled = not self.manual or not shard.kept
            is_left = shard.is_stopping and self.hand is not shard and is_settled
            assert (self.desk.phase(name) != "ACTIVE") == is_left

    @invariant()
    def a_page_counts_until_it_is_done_and_the_end_is_reported_once(self):
        shards, grants = getattr(self, "shards", {}), getattr(self, "grants", [])
        for shard in shards.values():
            is_through = shard.has_last and shard.done == len(shard.records) and self.hand is not shard
            assert is_through if shard.held.has_ended else not (is_through and shard.pages[-1])
        if grants:
            ended = [
                (shard.held.shard_id, (f"child of {shard.held.shard_id}",)) for shard in grants if shard.held.has_ended
            ]
            assert sorted(self.desk.groups["s"].ended) == sorted(ended)
            unread_bytes = sum(shard.unread_bytes for shard in shards.values() if not shard.is_stopping)
            assert self.desk.hand_out.budget.total_bytes == unread_bytes

    def teardown(self):
        """Check that every record of each held shard is handed out in the end."""
        for _ in range(200 if hasattr(self, "desk") else 0):
            for name, shard in self.shards.items():
                if self.manual and shard.delivered:
                    self.ack(name, shard.delivered - 1, through=True)
            if self.hand is not None:
                self.take(9)
            elif self.is_asking:
                break
            self.ask()
        for shard in getattr(self, "shards", {}).values():
            assert shard.is_stopping or shard.done == len(shard.records)
        self.the_coordinator_knows_what_is_done()
        self.a_page_counts_until_it_is_done_and_the_end_is_reported_once()


TestHandingOut = HandingOut.TestCase
TestHandingOut.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
