"""FP1 to FP4 are the invariants of ``shardline.core.consumer.failure_policy``."""

from random import Random

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer.events import DeadLetterFailed, HandlerRetried, HandlingStopped, RecordsDeadLettered
from shardline.core.consumer.failure_policy import BatchWork, DeadLetter, FailurePolicy
from shardline.core.consumer.handler_errors import ErrorSummary
from shardline.errors import UsageError
from shardline.model.record import Record


def records(count):
    return [Record(b"x", "k", sequence_number=str(number)) for number in range(count)]


def drive(batch, policy, poison):
    """Run a batch to its end: what was handled, when, and what went to the dead letters."""
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
            work.handle_buried(now)
        done += work.take_done()
    return work, calls, dead, done


def test_a_batch_that_works_is_done_in_one_call():
    batch = records(3)
    work, calls, dead, done = drive(batch, FailurePolicy(), set())
    assert work.is_done
    assert [part for _, part in calls] == [batch]
    assert (dead, done) == ([], batch)
    assert work.next_deadline() == NEVER


def test_fp3_a_failing_batch_is_tried_again_with_growing_waits():
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


def test_fp2_the_poisonous_record_stops_the_consumer_and_what_was_before_it_is_done():
    batch = records(8)
    work, _, dead, done = drive(batch, FailurePolicy(attempts=2), {5})
    assert work.is_stopped
    assert not work.is_done
    assert done == batch[:5]
    assert work.part == batch[5:6]
    assert dead == []
    assert work.error == "bad"


def test_fp2_or_goes_to_the_dead_letters_and_all_others_are_done_in_order():
    batch = records(8)
    work, _, dead, done = drive(batch, FailurePolicy(attempts=2, finally_="dead-letter"), {5, 6})
    assert work.is_done
    assert dead == [DeadLetter([batch[5]], 2, "bad"), DeadLetter([batch[6]], 2, "bad")]
    assert done == batch


def test_fp3_finding_one_among_ten_thousand_is_quick():
    batch = records(10_000)
    policy = FailurePolicy(attempts=5, finally_="dead-letter")
    work, calls, dead, done = drive(batch, policy, {6_789})
    assert work.is_done
    assert len(dead) == 1
    assert len(done) == 10_000
    assert len(calls) < 5 + 2 * 14 + 5


def test_without_bisecting_the_whole_batch_goes():
    batch = records(4)
    _, calls, dead, done = drive(batch, FailurePolicy(attempts=3, bisect=False, finally_="dead-letter"), {2})
    assert len(calls) == 3
    assert dead == [DeadLetter(batch, 3, "bad")]
    assert done == batch


def test_fp2_a_dead_letter_that_cannot_be_written_is_tried_again_and_then_stops():
    batch = records(1)
    work = BatchWork(batch, FailurePolicy(attempts=2, finally_="dead-letter"), Random(0), 0.0)
    for now in (0.0, 10.0):
        assert work.poll_attempt(now) == batch
        work.handle_error("bad", now)
    assert work.poll_attempt(99.0) is None
    assert work.poll_dead_letter(10.0) is not None
    assert work.poll_dead_letter(10.0) is None
    work.handle_burial_failed("disk full", 10.0)
    assert work.poll_dead_letter(10.0) is None
    later = work.next_deadline()
    assert later > 10.0
    letter = work.poll_dead_letter(later)
    assert letter is not None
    assert letter.error == "bad", "the letter tells why the handler failed, not why it could not be written before"
    work.handle_burial_failed("disk full", later)
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


def test_what_stopped_it_is_known():
    work, *_ = drive(records(4), FailurePolicy(attempts=1), {2})
    assert work.is_stopped
    assert [one.sequence_number for one in work.part] == ["2"]


WHY = ErrorSummary("ValueError", "why", "handle (worker.py:1)")


def test_fp4_every_failure_of_a_handler_is_told_once():
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


def test_fp4_a_retry_says_how_often_it_was_tried_and_when_it_comes():
    work = BatchWork(records(1), FailurePolicy(attempts=3), Random(0), 0.0)
    for attempt in (1, 2):
        now = work.next_deadline()
        work.poll_attempt(now)
        work.handle_error("bad", now, WHY)
        (event,) = work.take_events()
        assert (event.attempts, event.retry_at) == (attempt, work.next_deadline())


def test_fp4_a_dead_letter_is_told_with_the_handlers_error_and_its_own_failures_apart():
    full = ErrorSummary("OSError", "the disk is full", "")
    work = BatchWork(records(1), FailurePolicy(attempts=2, finally_="dead-letter"), Random(0), 0.0)
    for _ in range(2):
        now = work.next_deadline()
        work.poll_attempt(now)
        work.handle_error("bad", now, WHY)
    assert [type(event) for event in work.take_events()] == [HandlerRetried], "the second waits for its dead letter"
    assert work.poll_dead_letter(now) is not None
    work.handle_burial_failed("full", now, full)
    assert work.take_events() == [DeadLetterFailed("", "0", 0, 1, 1, *full, work.next_deadline())]
    now = work.next_deadline()
    assert work.poll_dead_letter(now) is not None
    work.handle_buried(now)
    assert work.take_events() == [RecordsDeadLettered("", "0", 0, 1, 2, *WHY)]


def test_fp4_a_dead_letter_that_can_never_be_written_is_told():
    work = BatchWork(records(1), FailurePolicy(attempts=1, finally_="dead-letter"), Random(0), 0.0)
    work.poll_attempt(0.0)
    work.handle_error("bad", 0.0, WHY)
    assert work.poll_dead_letter(0.0) is not None
    work.handle_burial_failed("full", 0.0)
    (event,) = work.take_events()
    assert (type(event), event.attempts, event.retry_at) == (DeadLetterFailed, 1, NEVER)
    assert work.is_stopped
