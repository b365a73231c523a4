"""Tests of ``shardline.core.consumer.lambda_invocation``."""

from itertools import groupby
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import (
    DeadLetterFailed,
    HandlerRetried,
    HandlingStopped,
    RecordsDeadLettered,
)
from shardline.core.consumer.failure_policy import FailurePolicy, WriteDeadLetter
from shardline.core.consumer.handler_errors import ErrorSummary
from shardline.core.consumer.lambda_invocation import (
    CallHandler,
    Ending,
    HandleEach,
    LambdaInvocation,
)
from shardline.model.record import Record

BAD = ErrorSummary("ValueError", "bad", "")
STOP = FailurePolicy(attempts=2, backoff=1, backoff_max=1)
BURY = FailurePolicy(attempts=2, backoff=1, backoff_max=1, finally_="dead-letter")


def records(*sizes):
    """Return Kinesis records with this many user records each."""
    return [
        Record(b"x", f"{number}/{place}", sequence_number=str(number), sub_sequence=place)
        for number, size in enumerate(sizes)
        for place in range(size)
    ]


def start(found, policy=STOP, **arguments):
    return LambdaInvocation(found, policy, Random(0), **arguments)


def drive(machine, poison=(), *, now=0.0, pause=0.0):
    """Carry out the steps of an invocation. Return the keys that each call got, those of the dead letters, and the
    time.

    With a window, the state counts the records of each Kinesis record. ``pause`` is the duration of a call.
    """
    calls, dead = [], []
    while machine.ending is None:
        step = machine.poll_step(now)
        if isinstance(step, HandleEach):
            while machine.done < len(step.records) and now < step.give_up_at:
                record = step.records[machine.done]
                calls.append([record.key])
                now += pause
                if record.key in poison:
                    machine.handle_error("bad", now, BAD)
                    break
                machine.done += 1
            else:
                machine.handle_success(now)
        elif isinstance(step, CallHandler):
            keys = [record.key for record in step.records]
            calls.append(keys)
            now += pause
            if set(keys) & set(poison):
                machine.handle_error("bad", now, BAD)
            elif machine.state is None:
                machine.handle_success(now)
            else:
                numbers = [record.sequence_number for record in step.records]
                counts = {number: len(list(group)) for number, group in groupby(numbers)}
                state = {
                    number: machine.state.get(number, 0) + counts.get(number, 0) for number in {*machine.state, *counts}
                }
                machine.handle_success(now, state)
        elif isinstance(step, WriteDeadLetter):
            dead += [record.key for record in step.letter.records]
            machine.handle_success(now)
        elif machine.ending is None:
            now = machine.next_deadline()
    return calls, dead, now


def test_all_records_are_handled_in_one_step():
    found = records(1, 2)
    machine = start(found)
    assert machine.poll_step(0.0) == HandleEach(found, NEVER)
    machine.done = 3
    machine.handle_success(0.0)
    assert machine.poll_step(0.0) is None
    assert (machine.ending, machine.retry_from, machine.next_deadline()) == (Ending.DONE, None, NEVER)
    assert machine.take_events() == []


def test_an_event_without_records_is_done():
    machine = start([])
    assert drive(machine) == ([], [], 0.0)
    assert (machine.ending, machine.retry_from, machine.state_to_return) == (Ending.DONE, None, None)


def test_a_failing_record_is_retried_after_a_wait_and_then_stops():
    machine = start(records(1, 1, 1))
    calls, _, now = drive(machine, {"1/0"})
    assert calls == [["0/0"], ["1/0"], ["1/0"]]
    assert 0.5 <= now <= 1
    assert (machine.ending, machine.retry_from, machine.error) == (Ending.STOPPED, 1, "bad")
    assert [record.key for record in machine.part] == ["1/0"]
    retried, stopped = machine.take_events()
    assert (type(retried), retried.sequence_number, type(stopped)) == (HandlerRetried, "1", HandlingStopped)
    assert machine.take_events() == []


def test_a_record_that_succeeds_at_the_second_attempt_lets_the_next_ones_follow():
    machine = start(records(1, 1))
    machine.poll_step(0.0)
    machine.handle_error("bad", 0.0, BAD)
    assert machine.poll_step(0.0) is None
    assert machine.ending is None
    step = machine.poll_step(machine.next_deadline())
    assert step == CallHandler(machine.records[:1])
    machine.handle_success(1.0)
    assert (machine.done, machine.error) == (1, None)
    assert isinstance(machine.poll_step(1.0), HandleEach)


def test_inside_of_an_aggregate_the_whole_kinesis_record_is_reported():
    machine = start(records(1, 3, 1))
    calls, _, _ = drive(machine, {"1/2"})
    assert calls == [["0/0"], ["1/0"], ["1/1"], ["1/2"], ["1/2"]]
    assert machine.retry_from == 1
    assert machine.records[machine.retry_from].key == "1/0"


def test_a_failure_in_the_first_aggregate_reports_the_first_record():
    machine = start(records(2, 1))
    drive(machine, {"0/1"})
    assert machine.retry_from == 0


def test_a_dead_letter_lets_the_next_records_follow():
    machine = start(records(1, 2, 1), BURY)
    calls, dead, _ = drive(machine, {"1/0"})
    assert (calls[-2:], dead) == ([["1/1"], ["2/0"]], ["1/0"])
    assert (machine.ending, machine.retry_from) == (Ending.DONE, None)
    assert [type(event) for event in machine.take_events()] == [HandlerRetried, RecordsDeadLettered]


def test_a_dead_letter_that_cannot_be_written_stops():
    machine = start(records(1, 1), BURY)
    machine.poll_step(0.0)
    machine.handle_error("bad", 0.0, BAD)
    machine.poll_step(1.0)
    machine.handle_error("bad", 1.0, BAD)
    for now in (1.0, 2.0):
        assert isinstance(machine.poll_step(now), WriteDeadLetter)
        machine.handle_error("full", now, BAD)
    assert machine.poll_step(3.0) is None
    assert (machine.ending, machine.retry_from, machine.error) == (Ending.STOPPED, 0, "full")
    assert [type(event) for event in machine.take_events()] == [HandlerRetried, DeadLetterFailed, DeadLetterFailed]


def test_batches_are_bisected_until_the_failing_record_is_alone():
    machine = start(records(1, 1, 1, 1, 1), BURY, batch=4)
    calls, dead, _ = drive(machine, {"2/0"})
    assert dead == ["2/0"]
    assert [len(call) for call in calls] == [4, 4, 2, 2, 1, 1, 1, 1]
    assert machine.ending is Ending.DONE


def test_the_records_before_the_failing_one_of_a_batch_are_done():
    machine = start(records(1, 1, 1, 1), batch=4)
    drive(machine, {"2/0"})
    assert (machine.done, machine.retry_from) == (2, 2)


# ---- time


def test_no_call_begins_when_the_time_is_up():
    machine = start(records(1, 2, 1), give_up_at=2.0)
    calls, _, _ = drive(machine, pause=1.0)
    assert calls == [["0/0"], ["1/0"]]
    assert (machine.ending, machine.done, machine.retry_from) == (Ending.OUT_OF_TIME, 2, 1)
    assert [record.key for record in machine.part] == ["1/1"]
    assert machine.error is None


def test_no_batch_begins_when_the_time_is_up():
    machine = start(records(1, 1, 1), batch=2, give_up_at=1.0)
    calls, _, _ = drive(machine, pause=1.0)
    assert calls == [["0/0", "1/0"]]
    assert (machine.ending, machine.retry_from) == (Ending.OUT_OF_TIME, 2)


def test_no_retry_is_waited_for_that_would_come_too_late():
    machine = start(records(1), FailurePolicy(attempts=2, backoff=10, backoff_max=10), give_up_at=4.0)
    calls, _, now = drive(machine, {"0/0"})
    assert (len(calls), now) == (1, 0.0)
    assert (machine.ending, machine.retry_from, machine.error) == (Ending.OUT_OF_TIME, 0, "bad")


def test_a_dead_letter_that_is_due_is_written_when_the_time_is_up():
    machine = start(records(1, 1), FailurePolicy(attempts=1, finally_="dead-letter"), give_up_at=5.0)
    calls, dead, _ = drive(machine, {"0/0"}, pause=9.0)
    assert (calls, dead) == ([["0/0"]], ["0/0"])
    assert (machine.ending, machine.retry_from) == (Ending.OUT_OF_TIME, 1)


def test_a_call_that_was_cancelled_is_not_done():
    machine = start(records(2, 1))
    machine.poll_step(0.0)
    machine.done = 1
    machine.handle_cancelled()
    assert machine.poll_step(1.0) is None
    assert (machine.ending, machine.retry_from) == (Ending.OUT_OF_TIME, 0)


# ---- windows


def test_the_state_holds_all_records_that_are_done():
    machine = start(records(1, 2), batch=2, state={"0": 5})
    drive(machine)
    assert machine.state_to_return == {"0": 6, "1": 2}
    assert machine.retry_from is None


def test_a_handler_that_returns_no_state_keeps_it():
    machine = start(records(1), batch=1, state={"n": 1})
    machine.poll_step(0.0)
    machine.handle_success(0.0)
    assert (machine.state, machine.state_to_return) == ({"n": 1}, {"n": 1})


def test_the_state_goes_back_to_the_start_of_the_aggregate_that_comes_again():
    machine = start(records(1, 3), batch=1, state={})
    drive(machine, {"1/2"})
    assert (machine.done, machine.retry_from) == (3, 1)
    assert machine.state == {"0": 1, "1": 2}
    assert machine.state_to_return == {"0": 1}


def test_a_batch_that_ends_inside_of_an_aggregate_comes_again_as_a_whole():
    """The state after the batch includes records that come again, and the state before it lacks the first one."""
    machine = start(records(1, 3), batch=3, state={})
    drive(machine, {"1/2"})
    assert machine.done == 3
    assert (machine.retry_from, machine.state_to_return) == (0, {})


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    batch=st.integers(1, 6) | st.none(),
    bad=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=3),
    buries=st.booleans(),
    bisect=st.booleans(),
    limit=st.integers(1, 30) | st.just(NEVER),
)
def test_no_record_is_lost_or_counted_twice_over_the_invocations(sizes, batch, bad, buries, bisect, limit):
    """Lambda retries from the reported record, with the returned state, until no record fails."""
    policy = FailurePolicy(attempts=1, bisect=bisect, finally_="dead-letter" if buries else "stop")
    found, state, written = records(*sizes), {}, []
    poison = {f"{number}/{place}" for number, place in bad}
    for _ in range(100):
        is_windowed = batch is not None
        machine = start(found, policy, batch=batch, state=state if is_windowed else None, give_up_at=limit)
        calls, dead, _ = drive(machine, poison, pause=1.0)
        written += dead
        handled = [key for call in calls for key in call]
        place = machine.retry_from
        state = machine.state_to_return
        assert {record.key for record in found[: place or 0]} <= {*handled, *written}
        if place is None:
            break
        assert not place or found[place].sequence_number != found[place - 1].sequence_number
        assert machine.done >= place
        if machine.ending is Ending.STOPPED:
            poison -= {record.key for record in machine.part}
        else:
            limit += 5
        found = found[place:]
    assert machine.ending is Ending.DONE
    if batch is not None and not buries:
        assert state == {str(number): size for number, size in enumerate(sizes)}


@pytest.mark.internal_error
def test_a_step_must_be_answered():
    machine = start(records(1))
    machine.poll_step(0.0)
    with pytest.raises(AssertionError, match="answered"):
        machine.poll_step(0.0)
