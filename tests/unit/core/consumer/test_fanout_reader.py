"""Tests of ``shardline.core.consumer.fanout_reader``."""

import pytest
from tests.harness.fanout import ARN, CHILD, STREAM, FanOutShell

from shardline.codec.raw_records import aggregate
from shardline.codec.shapes import RawRecord, SubscribeToShardEvent
from shardline.core.clock import NEVER
from shardline.core.consumer import page_reader
from shardline.core.consumer.consumer_events import (
    PageRead,
    PositionLost,
    ReadFailed,
    RecordsTrimmed,
    Subscribed,
    SubscriptionEnded,
)
from shardline.core.consumer.consumer_totals import ReadCounts
from shardline.core.consumer.fanout_reader import SILENCE, NextEvent
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.prefetch import RECORD_BYTES, PrefetchBudget
from shardline.core.consumer.reader import ReaderState
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import SubscribeToShard
from shardline.model.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    after_sequence_number,
    at_sequence_number,
    at_timestamp,
)
from shardline.model.sequence import SequenceNumber

DAY = 24 * 3600.0


def failure(kind, **facts):
    return Failure(kind, "Code", "message", 400, **facts)


TRANSIENT = failure(FailureKind.TRANSIENT)
IN_USE = failure(FailureKind.IN_USE)


class Always:
    """Draws the same number each time."""

    def __init__(self, drawn):
        self.drawn = drawn

    def random(self):
        return self.drawn


# ---- 1, 2: positions


def test_the_first_subscription_begins_at_the_checkpoint_and_drops_the_records_that_are_done():
    number = SequenceNumber(50, 1)
    shell = FanOutShell(at_sequence_number(number), done=number)
    assert shell.ask() == SubscribeToShard(ARN, "a", at_sequence_number(number))
    shell.reader.handle_subscribed(shell.now)
    data = aggregate([("k", b"1"), ("k", b"2"), ("k", b"3")])
    shell.event(RawRecord(data, "50", "k", 99.0), 51)
    (page,) = shell.reader.take_pages()
    assert [(record.sequence_number, record.sub_sequence) for record in page.records] == [("50", 2), ("51", 0)]
    assert shell.reader.take_events() == [Subscribed("a", at_sequence_number(number))]


@pytest.mark.parametrize("continuation", [2, 3, 900])
def test_when_the_service_ends_a_subscription_the_next_one_continues_at_once_without_gap_or_repeat(continuation):
    shell = FanOutShell()
    assert shell.subscribe() == TRIM_HORIZON
    shell.event(1, 2, after=continuation, wait=300.0)
    ended_at = shell.now
    shell.end()
    assert shell.reader.take_events()[1:] == [SubscriptionEnded("a", None, ended_at)]
    assert shell.subscribe() == after_sequence_number(str(continuation))
    assert shell.now == ended_at
    shell.event(903, wait=1.0)
    assert shell.numbers() == [1, 2, 903]
    assert shell.numbers() == []


def test_a_continuation_number_before_the_last_record_is_not_used():
    shell = FanOutShell()
    shell.subscribe()
    shell.event(7, 8, after=7)
    assert shell.reader.position == after_sequence_number("8")


def test_records_that_an_endpoint_repeats_are_dropped():
    shell = FanOutShell()
    shell.subscribe()
    shell.event(1, 2)
    shell.end()
    shell.subscribe()
    shell.event(2, 3)
    shell.event(3)
    shell.event(4)
    assert shell.numbers() == [1, 2, 3, 4]


def test_an_event_that_was_not_taken_whole_is_not_requested_again(monkeypatch):
    """The position is after the event as soon as the reader has it, because the reader drops none of its records."""
    monkeypatch.setattr(page_reader, "SLICE_RECORDS", 2)
    shell = FanOutShell(budget=PrefetchBudget(1))
    shell.subscribe()
    data = aggregate([("k", b"1"), ("k", b"2")])
    shell.event(*(RawRecord(data, str(number), "k", 99.0) for number in (1, 2, 3)))
    assert shell.reader.has_unopened
    assert shell.ask() is None
    assert shell.numbers() == [1, 1]
    assert shell.numbers() == [], "there is no room"
    assert shell.reader.next_deadline() == NEVER
    for expected in ([2, 2], [3, 3]):
        shell.budget.forget(shell.reader.key)
        assert shell.numbers() == expected
    shell.budget.forget(shell.reader.key)
    assert shell.ask() == NextEvent(SILENCE)


# ---- 3, 4, 11: refusals, failures, silence


def test_after_another_subscription_the_reader_waits_at_least_five_seconds_with_jitter():
    for drawn, wait in ((0.0, 5.0), (1.0, 6.0)):
        shell = FanOutShell(rng=Always(drawn))
        shell.fail(IN_USE)
        assert shell.reader.next_deadline() == pytest.approx(shell.now + wait)
        assert shell.reader.take_events() == [SubscriptionEnded("a", IN_USE, shell.reader.next_deadline())]
        shell.fail(IN_USE)
        assert shell.reader.next_deadline() >= shell.now + wait
        (event,) = shell.reader.take_events()
        assert event == ReadFailed("a", "SubscribeToShard", IN_USE, shell.reader.next_deadline())


def test_a_subscription_that_another_one_replaces_waits_too():
    shell = FanOutShell()
    shell.subscribe()
    shell.event(1, wait=20.0)
    shell.fail(IN_USE)
    assert shell.reader.next_deadline() >= shell.now + 5.0
    assert shell.subscribe() == after_sequence_number("1")


@pytest.mark.parametrize(
    "kind", [FailureKind.THROTTLED, FailureKind.LIMIT_EXCEEDED, FailureKind.EXPIRED_CREDENTIALS, FailureKind.TRANSIENT]
)
def test_a_call_that_is_refused_is_repeated_later_and_not_within_a_second(kind):
    shell = FanOutShell()
    shell.fail(failure(kind))
    assert shell.reader.next_deadline() == shell.now + 1.0
    shell.fail(failure(kind, retry_after=7.0))
    assert shell.reader.next_deadline() == shell.now + 7.0
    quiet, loud = shell.reader.take_events()
    assert isinstance(quiet, SubscriptionEnded)
    assert loud == ReadFailed("a", "SubscribeToShard", failure(kind, retry_after=7.0), shell.reader.next_deadline())
    shell.subscribe()
    shell.event(1)
    assert shell.numbers() == [1]


def test_a_connection_that_breaks_is_quiet_and_the_backoff_starts_over_after_an_event():
    shell = FanOutShell()
    for number in range(1, 5):
        shell.subscribe()
        shell.event(number, wait=10.0)
        shell.fail(TRANSIENT)
        assert shell.reader.next_deadline() <= shell.now + 0.25
        subscribed, ended = shell.reader.take_events()
        assert isinstance(subscribed, Subscribed)
        assert ended == SubscriptionEnded("a", TRANSIENT, shell.reader.next_deadline())
    assert shell.numbers() == [1, 2, 3, 4]


def test_a_short_subscription_is_not_replaced_within_five_seconds_because_the_service_would_refuse():
    shell = FanOutShell()
    shell.subscribe()
    began_at = shell.now
    shell.event(1, wait=1.0)
    shell.end()
    assert shell.reader.next_deadline() == began_at + 5.0
    shell.subscribe()
    began_at = shell.now
    shell.event(2, wait=1.0)
    shell.fail(TRANSIENT)
    assert shell.reader.next_deadline() == began_at + 5.0


def test_silence_ends_a_subscription():
    shell = FanOutShell()
    shell.subscribe()
    assert shell.ask() == NextEvent(SILENCE)
    shell.now += SILENCE
    shell.reader.handle_silence(shell.now)
    (event,) = shell.reader.take_events()[1:]
    assert (event.failure.code, event.failure.kind) == ("Silence", FailureKind.TRANSIENT)
    assert not shell.reader.is_subscribed
    assert shell.subscribe() == TRIM_HORIZON


@pytest.mark.parametrize("kind", [FailureKind.DENIED, FailureKind.KMS])
def test_a_failure_that_retrying_does_not_cure_ends_the_reader(kind):
    shell = FanOutShell()
    shell.fail(failure(kind))
    assert shell.reader.state is ReaderState.FAILED
    assert shell.reader.failure == failure(kind)
    assert shell.reader.take_events() == [ReadFailed("a", "SubscribeToShard", failure(kind), NEVER)]
    assert shell.reader.next_deadline() == NEVER
    assert shell.reader.poll_request(shell.now + DAY) is None


def test_a_position_that_is_refused_is_replaced_by_the_trim_horizon_and_reported():
    start = at_sequence_number(SequenceNumber(50))
    refused = failure(FailureKind.INVALID)
    shell = FanOutShell(start, done=SequenceNumber(50))
    shell.subscribe()
    shell.event(51)
    shell.end()
    shell.reader.take_events()
    shell.fail(refused)
    assert shell.reader.take_events() == [PositionLost("a", after_sequence_number("51"), refused)]
    before = shell.now
    assert shell.subscribe() == TRIM_HORIZON
    assert shell.now == before + 1.0, "one call per second"
    shell.event(7)
    assert shell.numbers() == [51, 7]
    assert shell.reader.take_events() == [Subscribed("a", TRIM_HORIZON)]


def test_the_numbers_before_a_lost_position_drop_no_records():
    shell = FanOutShell()
    shell.subscribe()
    shell.event(51)
    shell.end()
    shell.fail(failure(FailureKind.INVALID))
    shell.subscribe()
    shell.event(7)
    shell.event(8)
    assert shell.numbers() == [51, 7, 8]


def test_a_trim_horizon_that_is_refused_and_an_invalid_event_end_the_reader():
    shell = FanOutShell()
    shell.fail(failure(FailureKind.INVALID))
    assert shell.reader.state is ReaderState.FAILED
    shell = FanOutShell(at_timestamp(5.0))
    shell.subscribe()
    shell.fail(failure(FailureKind.INVALID))
    assert shell.reader.state is ReaderState.FAILED


# ---- 5: backpressure


def test_without_room_no_event_is_requested_and_the_subscription_stays_open():
    shell = FanOutShell(budget=PrefetchBudget(1000))
    shell.subscribe()
    shell.event(1, data=bytes(2000))
    assert shell.ask() is None
    assert shell.reader.next_deadline() == NEVER
    (page,) = shell.reader.take_pages()
    assert page.held_bytes == 2000 + RECORD_BYTES
    shell.now += 10 * SILENCE
    assert shell.ask() is None
    assert shell.reader.is_subscribed
    shell.budget.release(shell.reader.key, page.held_bytes)
    assert shell.budget.take_admitted() == [shell.reader.key]
    assert shell.reader.poll_request(shell.now) == NextEvent(SILENCE)


def test_without_room_no_subscription_begins():
    shell = FanOutShell(budget=PrefetchBudget(1000))
    shell.subscribe()
    shell.event(1, data=bytes(2000), wait=20.0)
    (page,) = shell.reader.take_pages()
    shell.budget.release(shell.reader.key, page.held_bytes)
    shell.wait()
    shell.budget.hold(shell.reader.key, 2000)
    shell.reader.handle_end(shell.now)
    assert shell.reader.next_deadline() == shell.now
    assert shell.reader.poll_request(shell.now) is None
    assert shell.reader.next_deadline() == NEVER


# ---- 6, 9: stopped readers


def test_a_stopped_reader_ignores_every_answer_and_returns_nothing():
    for answer in (
        lambda reader, now: reader.handle_subscribed(now),
        lambda reader, now: reader.handle_event(SubscribeToShardEvent([], "1", 0), now),
        lambda reader, now: reader.handle_end(now),
        lambda reader, now: reader.handle_silence(now),
        lambda reader, now: reader.handle_deregistered(TRANSIENT),  # noqa: ARG005 - like the others
        lambda reader, now: reader.handle_failure(TRANSIENT, now),
    ):
        shell = FanOutShell()
        shell.subscribe()
        shell.event(1)
        shell.wait()
        shell.reader.stop()
        assert not shell.reader.is_subscribed
        shell.reader.take_events()
        answer(shell.reader, shell.now)
        assert shell.reader.state is ReaderState.STOPPED
        assert shell.reader.take_events() == []
        assert shell.reader.take_pages() == []
        assert shell.ask() is None
        assert shell.budget.total_bytes == 0


# ---- 7: the end


@pytest.mark.parametrize("numbers", [(), (1, 2)])
def test_an_event_without_a_continuation_number_that_names_children_ends_the_shard(numbers):
    shell = FanOutShell()
    shell.subscribe()
    shell.event(*numbers, after=None, children=(CHILD,))
    assert shell.reader.state is ReaderState.ENDED
    assert not shell.reader.is_subscribed
    (page,) = shell.reader.take_pages()
    assert page.is_last
    assert [child.shard_id for child in page.child_shards] == ["b"]
    assert [int(record.sequence_number) for record in page.records] == list(numbers)
    assert shell.ask() is None


def test_child_shards_with_a_continuation_number_do_not_end_the_shard():
    shell = FanOutShell()
    shell.subscribe()
    shell.event(1, after=5, children=(CHILD,))
    assert shell.reader.state is ReaderState.READY
    (page,) = shell.reader.take_pages()
    assert (page.is_last, page.child_shards) == (False, ())


def test_an_event_with_neither_is_an_error_and_keeps_its_records():
    shell = FanOutShell()
    shell.subscribe()
    shell.event(1, 2, after=None, wait=10.0)
    assert shell.reader.state is ReaderState.STARTING
    (event,) = shell.reader.take_events()[1:]
    assert event.failure.code == "NoContinuation"
    assert shell.subscribe() == after_sequence_number("2")
    shell.event(after=None, wait=10.0)
    assert isinstance(shell.reader.take_events()[1], ReadFailed), "the second failure in a row is not quiet"
    assert shell.subscribe() == after_sequence_number("2")
    assert shell.numbers() == [1, 2]


def test_a_shard_that_the_service_does_not_know_is_gone():
    shell = FanOutShell()
    shell.fail(failure(FailureKind.NOT_FOUND))
    assert shell.reader.state is ReaderState.GONE
    assert shell.reader.is_over


def test_a_consumer_that_was_deregistered_ends_the_reader_and_not_the_shard():
    shell = FanOutShell()
    shell.ask()
    shell.reader.handle_deregistered(failure(FailureKind.NOT_FOUND))
    assert shell.reader.state is ReaderState.FAILED
    assert shell.reader.failure == failure(FailureKind.NOT_FOUND)
    assert shell.reader.take_events() == [ReadFailed("a", "SubscribeToShard", failure(FailureKind.NOT_FOUND), NEVER)]


def test_a_reader_that_was_stopped_stays_stopped_when_its_consumer_is_registered_again():
    shell = FanOutShell()
    shell.reader.stop()
    shell.reader.handle_registered_again("another", failure(FailureKind.NOT_FOUND), shell.now)
    assert (shell.reader.state, shell.reader.take_events()) == (ReaderState.STOPPED, [])


def test_a_consumer_that_is_registered_again_is_used_from_then_on_at_the_same_position():
    shell = FanOutShell()
    shell.ask()
    before = shell.reader.position
    shell.reader.handle_registered_again("another", failure(FailureKind.NOT_FOUND), shell.now)
    (ended,) = shell.reader.take_events()
    assert isinstance(ended, SubscriptionEnded)
    shell.now = shell.reader.next_deadline()
    request = shell.reader.poll_request(shell.now)
    assert (request.consumer_arn, request.position) == ("another", before)


# ---- 8: idle shards


def test_an_event_without_records_moves_the_position_of_an_idle_shard():
    shell = FanOutShell(at_timestamp(5.0))
    assert shell.subscribe() == at_timestamp(5.0)
    shell.event(after=900)
    shell.event(after=905, wait=5.0)
    shell.end()
    assert shell.subscribe() == after_sequence_number("905")
    assert shell.reader.has_caught_up


def test_an_event_without_records_does_not_move_a_reader_past_the_record_of_its_checkpoint():
    """The record may be an aggregate of which only a part is done."""
    number = SequenceNumber(50, 1)
    shell = FanOutShell(at_sequence_number(number), done=number)
    shell.subscribe()
    shell.event(after=60)
    shell.end()
    assert shell.subscribe() == at_sequence_number(number)
    shell.event(50, after=60)
    shell.event(after=70)
    shell.end()
    assert shell.subscribe() == after_sequence_number("70")


@pytest.mark.parametrize("start", [LATEST, SHARD_END])
def test_some_positions_cannot_be_read(start):
    with pytest.raises(AssertionError):
        FanOutShell(start)


# ---- 13: lag, leases, trimmed records


def test_pages_have_their_lag_and_records_their_lease():
    grant = Grant("a", 7, 200.0)
    shell = FanOutShell(lease=grant)
    assert (shell.reader.lag, shell.reader.key, shell.reader.out_of_range) == (None, (STREAM.name, "a"), 0)
    shell.subscribe()
    shell.event(1, behind=1500)
    (page,) = shell.reader.take_pages()
    assert (page.shard_id, page.lag, page.is_last) == ("a", 1.5, False)
    assert page.records[0].lease == grant
    assert shell.reader.lag == 1.5
    assert not shell.reader.has_caught_up


@pytest.mark.parametrize(("numbers", "is_at_tip"), [((1,), False), ((), True)])
def test_an_emulator_without_a_lag_is_behind_while_it_has_records(numbers, is_at_tip):
    shell = FanOutShell()
    shell.subscribe()
    shell.event(*numbers, after=5, behind=None)
    assert shell.reader.lag is None
    assert shell.reader.has_caught_up is is_at_tip
    assert shell.reader.unread_age(shell.now) is None


def test_a_reader_stays_caught_up_and_knows_how_long_a_record_can_have_waited():
    shell = FanOutShell()
    shell.subscribe()
    shell.event(1, behind=0, wait=3.0)
    assert shell.reader.unread_age(shell.now) == 0.0
    shell.event(2, behind=2000, wait=1.0)
    assert shell.reader.has_caught_up
    assert shell.reader.unread_age(shell.now) == 3.0, "requested 1 s ago, and 2 s behind"
    shell.event(3, behind=0, wait=1.0)
    shell.fail(TRANSIENT)
    shell.now += 9.0
    assert shell.reader.unread_age(shell.now) == 10.0


def test_a_failure_of_any_kind_counts_the_time_since_the_last_event():
    for kind in (FailureKind.TRANSIENT, FailureKind.INVALID):
        shell = FanOutShell()
        shell.subscribe()
        shell.event(1, behind=0, wait=10.0)
        shell.end()
        shell.fail(failure(kind))
        assert shell.reader.unread_age(shell.now + 5.0) == 15.0


def test_an_event_that_waited_in_a_buffer_is_as_old_as_the_subscription():
    shell = FanOutShell()
    shell.subscribe()
    shell.now += 100.0
    shell.event(1, behind=1000)
    assert shell.reader.unread_age(shell.now) == 101.0
    shell.event(2, behind=5000)
    assert shell.reader.unread_age(shell.now) == 101.0, "a later event never makes the reader look further behind"


def test_a_record_of_the_checkpoint_that_retention_removed_is_reported():
    shell = FanOutShell(at_sequence_number(SequenceNumber(50)), done=SequenceNumber(50))
    shell.subscribe()
    shell.event(70)
    (event,) = shell.reader.take_events()[1:]
    assert isinstance(event, RecordsTrimmed)
    assert shell.reader.position == after_sequence_number("70")


def test_records_that_retention_removed_between_two_subscriptions_are_reported():
    shell = FanOutShell()
    shell.subscribe()
    shell.event(1, behind=0)
    shell.end()
    shell.now += 2 * DAY
    shell.subscribe()
    shell.event(2, behind=0, arrived_at=shell.now)
    shell.trims.handle_requested(shell.now)
    shell.trims.handle_summary(24, shell.now)
    (event,) = shell.trims.take_events()
    assert event.shard_id == "a"


def test_a_page_is_reported_with_how_long_the_reader_waited_for_it():
    counts = ReadCounts()
    counts.is_observed = True
    shell = FanOutShell(counts=counts)
    shell.subscribe()
    shell.reader.take_events()
    request = shell.reader.poll_request(shell.now)
    assert isinstance(request, NextEvent)
    shell.reader.handle_event(SubscribeToShardEvent([], "5", 1_000), shell.now + 0.5)
    [read] = shell.reader.take_events()
    assert read == PageRead("a", 0, 0, 0.5, 1.0, "fan-out", read.started_at)
