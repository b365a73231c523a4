"""Tests of ``shardline.core.consumer.failure_policy``."""

from random import Random

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import HandlerRetried, HandlingStopped
from shardline.core.consumer.failure_policy import BatchWork, FailurePolicy
from shardline.core.consumer.handler_errors import ErrorSummary
from shardline.errors import UsageError
from shardline.model.record import Record


def records(count):
    return [Record(b"x", "k", sequence_number=str(number)) for number in range(count)]


def drive(batch, policy, poison):
    """Run a batch to its end. Return the handled records, the times, and the dead letters."""
    work = BatchWork(batch, policy, Random(0), 0.0)
    now, calls, dead, done = 0.0, [], [], []
    while not (work.is_done or work.is_stopped):
        now = max(now, work.next_deadline())
        part = work.poll_attempt(now)
        if part is not None:
            calls.append((now, part))
            if poison & {int(one.sequence_number) for one in part}:
                work.handle_error("bad", now)
            else:
                work.handle_success(now)
        letter = work.poll_dead_letter(now)
        if letter is not None:
            dead.append(letter)
            work.handle_dead_letter_written(now)
        done += work.take_done()
    return work, calls, dead, done


def test_a_failing_batch_is_tried_again_with_growing_waits():
    batch = records(2)
    work = BatchWork(batch, FailurePolicy(attempts=4, backoff=1.0, backoff_max=3.0), Random(0), 0.0)
    now, waits = 0.0, []
    for _ in range(3):
        assert work.poll_attempt(now) == batch
        assert work.poll_attempt(now) is None
        assert work.next_deadline() == NEVER
        work.handle_error("bad", now)
        assert work.poll_attempt(now) is None
        waits.append(work.next_deadline() - now)
        now = work.next_deadline()
    assert [1, 2, 3] >= waits >= [0.5, 1, 1.5]
    assert work.poll_attempt(now) == batch
    work.handle_success(now)
    assert work.is_done
    assert work.error == "bad"


def test_finding_one_among_ten_thousand_is_quick():
    batch = records(10_000)
    policy = FailurePolicy(attempts=5, finally_="dead-letter")
    work, calls, dead, done = drive(batch, policy, {6_789})
    assert work.is_done
    assert len(dead) == 1
    assert len(done) == 10_000
    assert len(calls) < 5 + 2 * 14 + 5


def test_a_dead_letter_that_cannot_be_written_is_tried_again_and_then_stops():
    batch = records(1)
    work = BatchWork(batch, FailurePolicy(attempts=2, finally_="dead-letter"), Random(0), 0.0)
    for now in (0.0, 10.0):
        assert work.poll_attempt(now) == batch
        work.handle_error("bad", now)
    assert work.poll_attempt(99.0) is None
    assert work.poll_dead_letter(10.0) is not None
    assert work.poll_dead_letter(10.0) is None
    work.handle_dead_letter_failed("disk full", 10.0)
    assert work.poll_dead_letter(10.0) is None
    later = work.next_deadline()
    assert later > 10.0
    letter = work.poll_dead_letter(later)
    assert letter is not None
    assert letter.error == "bad", "the letter tells why the handler failed, not why it could not be written before"
    work.handle_dead_letter_failed("disk full", later)
    assert work.is_stopped
    assert work.error == "disk full"
    assert work.take_done() == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"attempts": 0}, "attempts must be a whole number, 1 or more, not 0"),
        ({"attempts": True}, "attempts must be a whole number, 1 or more, not True"),
        ({"attempts": 1.5}, "attempts must be a whole number, 1 or more, not 1.5"),
        ({"backoff": 0}, "backoff must be a number above 0, up to 3600, not 0"),
        ({"backoff": True}, "backoff must be a number above 0, up to 3600, not True"),
        ({"backoff_max": "x"}, "backoff_max must be a number above 0, up to 3600, not 'x'"),
        ({"backoff_max": 3601}, "backoff_max must be a number above 0, up to 3600, not 3601"),
        ({"backoff": 5, "backoff_max": 1}, "backoff must be at most backoff_max (1), not 5"),
        ({"finally_": "skip"}, "finally_ must be 'stop' or 'dead-letter', not 'skip'"),
    ],
)
def test_a_wrong_policy_is_refused(facts, words):
    with pytest.raises(UsageError) as caught:
        FailurePolicy(**facts)
    assert str(caught.value) == words


WHY = ErrorSummary("ValueError", "why", "handle (worker.py:1)")


def test_every_failure_of_a_handler_is_reported_once():
    batch = [Record(b"x", "k", sequence_number="7", sub_sequence=place, shard_id="shard") for place in (3, 4)]
    work = BatchWork(batch, FailurePolicy(attempts=1), Random(0), 0.0)
    work.poll_attempt(0.0)
    work.handle_error("bad", 0.0, WHY)
    assert work.take_events() == [HandlerRetried("shard", "7", 3, 2, 1, *WHY, 0.0)], "it is taken apart"
    work.poll_attempt(0.0)
    work.handle_success(0.0)
    assert work.take_events() == []
    work.poll_attempt(1.0)
    work.handle_error("bad", 1.0, WHY)
    assert work.take_events() == [HandlingStopped("shard", "7", 4, 1, 1, *WHY)]
    assert work.take_events() == []
