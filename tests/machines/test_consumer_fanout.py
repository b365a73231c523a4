"""Does a fan-out reader return each record once and in order, whatever happens to its subscriptions?

``Model`` is a naive reader. Every state, position, time and event of the real one is compared with it.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.fanout import ARN, CHILD, FanOutShell

from shardline.codec.raw_records import aggregate
from shardline.codec.shapes import RawRecord, SubscribeToShardEvent
from shardline.core.clock import NEVER
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
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.consumer.reader import ReaderState
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import SubscribeToShard
from shardline.model.position import (
    TRIM_HORIZON,
    PositionKind,
    after_sequence_number,
    at_sequence_number,
    at_timestamp,
)
from shardline.model.sequence import SequenceNumber

RETRYABLE = [FailureKind.TRANSIENT, FailureKind.IN_USE, FailureKind.THROTTLED, FailureKind.LIMIT_EXCEEDED]


def failure(kind):
    return Failure(kind, "Code", "message", 400)


class Service(FanOutShell):
    """A shard with the records 10, 20, ... It pushes them from the position at which a subscription begins."""

    def __init__(self, count, **settings):
        super().__init__(**settings)
        self.numbers_there = [10 * (place + 1) for place in range(count)]
        self.cursor = 0
        self.called_at = []

    def connect(self, kind):
        request = self.ask()
        assert isinstance(request, SubscribeToShard)
        self.called_at.append(self.now)
        if kind is not None:
            self.reader.handle_failure(failure(kind), self.now)
            return
        number = 0 if request.position == TRIM_HORIZON else request.position.sequence_number.number
        is_after = request.position.kind is PositionKind.AFTER_SEQUENCE_NUMBER
        self.cursor = sum(there <= number if is_after else there < number for there in self.numbers_there)
        self.reader.handle_subscribed(self.now)

    def push(self, count, beyond):
        """Push some records, perhaps none. The continuation number is that of the last record, or a little later."""
        raws = self.numbers_there[self.cursor : self.cursor + count]
        self.cursor += len(raws)
        if self.cursor == len(self.numbers_there):
            self.event(*raws, after=None, children=(CHILD,))
        else:
            last = self.numbers_there[self.cursor - 1] if self.cursor else 0
            self.event(*raws, after=last + beyond)


@given(
    st.integers(0, 12),
    st.lists(
        st.one_of(
            st.sampled_from(["end", "silence", "nothing", *RETRYABLE]),
            st.tuples(st.integers(0, 3), st.integers(0, 9)),
        ),
        max_size=30,
    ),
)
def test_each_record_comes_once_and_in_order(count, steps):
    service = Service(count)
    reader = service.reader
    for step in [*steps, *[(3, 5)] * (2 * count + 2)]:
        if reader.is_over:
            break
        if not reader.is_subscribed:
            service.connect(step if isinstance(step, FailureKind) else None)
        elif step == "end":
            service.end()
        elif step == "silence":
            service.wait(30.0)
            reader.handle_silence(service.now)
        elif step == "nothing":  # a broken endpoint
            service.event(after=None)
        elif isinstance(step, FailureKind):
            service.fail(failure(step))
        else:
            service.push(*step)
    assert reader.state is ReaderState.ENDED
    assert service.numbers() == service.numbers_there
    assert all(later - earlier >= 1.0 for earlier, later in zip(service.called_at, service.called_at[1:], strict=False))


def test_an_aggregate_that_is_done_in_part_is_read_to_its_end():
    """An event without records must not move a reader past the record of its checkpoint."""
    number = SequenceNumber(10, 0)
    shell = FanOutShell(at_sequence_number(number), done=number)
    shell.subscribe()
    shell.event(after=15)
    shell.end()
    assert shell.subscribe() == at_sequence_number(number)
    data = aggregate([("k", b"1"), ("k", b"2")])
    shell.event(RawRecord(data, "10", "k", 99.0))
    (page,) = shell.reader.take_pages()
    assert [record.data for record in page.records] == [b"2"]


def test_an_idle_shard_does_not_stay_at_its_beginning():
    shell = FanOutShell(at_timestamp(5.0))
    shell.subscribe()
    shell.event(after=15)
    shell.end()
    assert shell.subscribe().kind is PositionKind.AFTER_SEQUENCE_NUMBER


@pytest.mark.parametrize("is_live", [False, True])
def test_a_reader_that_meets_another_subscription_waits_for_five_seconds(is_live):
    shell = FanOutShell()
    if is_live:
        shell.subscribe()
        shell.event(10, wait=60.0)
    shell.fail(failure(FailureKind.IN_USE))
    assert shell.reader.next_deadline() >= shell.now + 5.0


# ---- the reader beside a naive model

DRAWN = 0.25  # what the random number generator draws each time
OTHER_ARN = ARN.replace("1700000000", "1700000009")
BROKEN = "NoContinuation"


class Always:
    def random(self):
        return DRAWN


class Model:
    """What a fan-out reader should do, as plainly as possible."""

    def __init__(self, start, now):
        self.state, self.position, self.arn = ReaderState.STARTING, start, ARN
        self.expected = None if start.sequence_number is None else start.sequence_number.number
        self.may_call_at, self.failures, self.failure = now, 0, None
        self.asked_at = self.waits_since = -math.inf
        self.last = self.lag = self.unread_since = None
        self.is_failing = self.has_reached_tip = False
        self.events, self.numbers = [], []

    def ask(self, now):
        if self.state is ReaderState.READY:
            self.state, self.waits_since = ReaderState.READING, now
            return NextEvent(30.0)
        self.state, self.asked_at, self.may_call_at = ReaderState.ASKING, now, now + 1
        return SubscribeToShard(self.arn, "a", self.position)

    def subscribed(self, now):
        self.state, self.may_call_at = ReaderState.READY, now + 5
        self.events.append(Subscribed("a", self.position))

    def event(self, numbers, after, behind, children, now):
        numbers = [number for number in numbers if self.last is None or number > self.last]
        self.is_failing, self.lag = False, None if behind is None else behind / 1000
        if now - self.waits_since >= 0.25:
            self.asked_at = self.waits_since
        if numbers and self.expected is not None and numbers[0] > self.expected:
            self.events.append(RecordsTrimmed)
        if numbers:
            self.expected, self.last = None, numbers[-1]
        ends = [number for number in (after, numbers[-1] if numbers else None) if number is not None]
        if ends and self.expected is None:
            self.position = after_sequence_number(str(max(ends)))
        if self.lag is not None:
            since = self.asked_at - self.lag
            self.unread_since = since if self.unread_since is None else max(since, self.unread_since)
        if (not numbers) if self.lag is None else self.lag == 0:
            self.has_reached_tip = True
        self.numbers += numbers
        if after is None and not children:
            self.retry(FailureKind.TRANSIENT, None, now)
        else:
            self.failures = 0
            self.state = ReaderState.READY if after is not None else ReaderState.ENDED
        duration = now - self.waits_since
        self.events.append(
            PageRead("a", len(numbers), len(numbers), duration, self.lag, "fan-out", started_at=self.waits_since)
        )

    def end(self, now):
        self.state, self.may_call_at = ReaderState.STARTING, max(now, self.may_call_at)
        self.events.append((SubscriptionEnded, self.may_call_at))

    def retry(self, kind, asked, now):
        self.is_failing, self.state = True, ReaderState.STARTING
        delay = min(10, 0.25 * 2**self.failures) * (0.5 + 0.5 * DRAWN)
        delay = max(delay, min(asked or 0, 10))
        if kind is FailureKind.IN_USE:
            delay = max(delay, 5 * (1 + 0.2 * DRAWN))
        self.failures += 1
        self.may_call_at = max(now + delay, self.may_call_at)
        self.events.append((SubscriptionEnded if self.failures == 1 else ReadFailed, self.may_call_at))

    def fail(self, kind, asked, now):
        if kind in RETRYABLE:
            self.retry(kind, asked, now)
        elif kind is FailureKind.INVALID and self.state is ReaderState.ASKING and self.position != TRIM_HORIZON:
            self.is_failing, self.state = True, ReaderState.STARTING
            self.events.append(PositionLost)
            self.position, self.expected, self.last = TRIM_HORIZON, None, None
        else:
            self.give_up(ReaderState.GONE if kind is FailureKind.NOT_FOUND else ReaderState.FAILED)

    def give_up(self, state):
        self.state, self.failure = state, True
        self.events.append((ReadFailed, NEVER))

    def unread_age(self, now):
        if self.lag is None or self.unread_since is None:
            return None
        return 0.0 if self.lag == 0 and not self.is_failing else now - self.unread_since


def kind_and_time(event):
    """The part of an event that the model knows."""
    if isinstance(event, SubscriptionEnded | ReadFailed):
        return type(event), event.retry_at
    return type(event) if isinstance(event, RecordsTrimmed | PositionLost) else event


KINDS = [*RETRYABLE, FailureKind.NOT_FOUND, FailureKind.INVALID, FailureKind.DENIED]
WAITS = [0.0, 0.24, 0.25, 1.0, 6.0, 300.0]
OPENED = [("subscribed",)] * 4
FAILED = [("fail", kind, asked) for kind in KINDS for asked in (None, 0.5, 3.0, 60.0)]
EVENTS = st.tuples(
    st.just("event"),
    st.lists(st.integers(1, 6), max_size=3),
    st.sampled_from([0, 0, 1, 50, None]),  # how far the continuation number is after the last record; None: no number
    st.sampled_from([0, 0, 1, 7_000, None]),
    st.booleans(),
)
ANSWERS = st.tuples(
    st.sampled_from([*OPENED * 6, *FAILED, ("deregistered",), ("registered",), ("stop",)]),
    st.one_of(EVENTS, EVENTS, EVENTS, st.sampled_from([("end",)] * 8 + [("silence",)] * 8 + FAILED + [("stop",)])),
    st.sampled_from(WAITS),
)


class Beside:
    """A reader and its model, which get the same answers."""

    def __init__(self, start):
        counts = ReadCounts()
        counts.is_observed = True
        self.shell = FanOutShell(start, rng=Always(), counts=counts)
        self.reader, self.model = self.shell.reader, Model(start, self.shell.now)
        self.next_number = 100
        self.numbers = []

    def step(self, opening, answer, wait):
        reader, model, shell = self.reader, self.model, self.shell
        if model.state is ReaderState.STARTING:
            assert reader.next_deadline() == model.may_call_at
            if model.may_call_at > shell.now:
                assert reader.poll_request(math.nextafter(model.may_call_at, 0)) is None
            shell.now = max(shell.now, model.may_call_at)
            chosen = opening
        else:
            assert reader.next_deadline() <= shell.now
            chosen = answer
        assert reader.poll_request(shell.now) == model.ask(shell.now)
        assert reader.state is model.state
        assert (reader.next_deadline(), reader.poll_request(shell.now)) == (NEVER, None)
        assert reader.is_subscribed == (model.state is ReaderState.READING)
        shell.now += wait
        getattr(self, chosen[0])(*chosen[1:])
        self.compare()

    def compare(self):
        reader, model, now = self.reader, self.model, self.shell.now
        assert reader.state is model.state
        assert reader.position == model.position
        assert (reader.lag, reader.unread_age(now + 1)) == (model.lag, model.unread_age(now + 1))
        assert (reader.failure is not None) == (model.failure is not None)
        assert [kind_and_time(event) for event in reader.take_events()] == model.events
        model.events = []
        self.numbers += self.shell.numbers()
        assert self.numbers == model.numbers
        assert reader.has_caught_up == model.has_reached_tip
        assert reader.is_subscribed == (model.state is ReaderState.READY)

    def subscribed(self):
        self.reader.handle_subscribed(self.shell.now)
        self.model.subscribed(self.shell.now)

    def event(self, steps, beyond, behind, is_end):
        """Push an event. Its first record may be one that came before."""
        now, numbers = self.shell.now, []
        for place, step in enumerate(steps):
            if place or step > 1:
                self.next_number += step
            numbers.append(self.next_number)
        numbers = sorted(set(numbers))
        after = None if beyond is None or is_end else self.next_number + beyond
        self.next_number = self.next_number if after is None else after
        raws = [RawRecord(b"x", str(number), "k", 99.0) for number in numbers]
        children = (CHILD,) if is_end and beyond is not None else None
        text = None if after is None else str(after)
        self.reader.handle_event(SubscribeToShardEvent(raws, text, behind, children), now)
        self.model.event(numbers, after, behind, children, now)

    def end(self):
        self.reader.handle_end(self.shell.now)
        self.model.end(self.shell.now)

    def silence(self):
        self.reader.handle_silence(self.shell.now)
        self.model.fail(FailureKind.TRANSIENT, None, self.shell.now)

    def fail(self, kind, asked):
        self.reader.handle_failure(Failure(kind, "Code", "message", 400, retry_after=asked), self.shell.now)
        self.model.fail(kind, asked, self.shell.now)

    def deregistered(self):
        self.reader.handle_deregistered(failure(FailureKind.NOT_FOUND))
        self.model.give_up(ReaderState.FAILED)

    def registered(self):
        self.reader.handle_registered_again(OTHER_ARN, failure(FailureKind.NOT_FOUND), self.shell.now)
        self.model.arn = OTHER_ARN
        self.model.retry(FailureKind.NOT_FOUND, None, self.shell.now)

    def stop(self):
        """Stop the reader. Nothing that arrives later has an effect."""
        reader, now = self.reader, self.shell.now
        reader.stop()
        self.model.state = ReaderState.STOPPED
        reader.handle_subscribed(now)
        reader.handle_event(SubscribeToShardEvent([RawRecord(b"x", "999999", "k", 99.0)], "999999", 0, None), now)
        reader.handle_end(now)
        reader.handle_silence(now)
        reader.handle_failure(failure(FailureKind.NOT_FOUND), now)
        reader.handle_deregistered(failure(FailureKind.NOT_FOUND))
        reader.handle_registered_again(OTHER_ARN, failure(FailureKind.NOT_FOUND), now)


@given(
    st.sampled_from([TRIM_HORIZON, at_timestamp(5.0), at_sequence_number(SequenceNumber(100))]),
    st.lists(ANSWERS, min_size=4, max_size=25),
)
def test_the_reader_does_what_the_model_does(start, steps):
    beside = Beside(start)
    for step in steps:
        if beside.reader.is_over:
            break
        beside.step(*step)


def test_the_reader_does_what_the_model_does_in_the_usual_life_of_a_shard():
    beside = Beside(TRIM_HORIZON)
    quiet = ("event", [], 1, 0, False)
    steps = [("event", [2, 3], 0, 7_000, False), ("event", [1, 2], 50, 0, False), quiet, ("end",), ("silence",)]
    steps += [("fail", FailureKind.IN_USE, None), ("fail", FailureKind.TRANSIENT, 3.0)]
    for answer in [*steps, ("event", [2], None, 0, False), ("event", [2, 2], 0, 0, True)]:
        for wait in (0.0, 6.0):
            while beside.model.state is ReaderState.STARTING:
                beside.step(("subscribed",), answer, 0.0)
            if not beside.reader.is_over:
                beside.step(("subscribed",), answer, wait)
    assert beside.reader.state is ReaderState.ENDED


@pytest.mark.parametrize(
    "opening",
    [
        ("fail", FailureKind.INVALID, None),
        ("fail", FailureKind.NOT_FOUND, None),
        ("fail", FailureKind.DENIED, None),
        ("fail", FailureKind.IN_USE, None),
        ("fail", FailureKind.THROTTLED, 3.0),
        ("deregistered",),
        ("registered",),
        ("stop",),
    ],
)
@pytest.mark.parametrize("start", [TRIM_HORIZON, at_sequence_number(SequenceNumber(100))])
@pytest.mark.parametrize("is_later", [False, True])
def test_each_answer_to_a_call_has_the_effect_of_the_model(opening, start, is_later):
    beside = Beside(start)
    if is_later:
        for answer in (("event", [1, 2], 0, 0, False), ("end",)):
            while beside.model.state is ReaderState.STARTING:
                beside.step(("subscribed",), answer, 0.0)
            beside.step(("subscribed",), answer, 6.0)
    beside.step(opening, ("end",), 1.0)
    for answer in (("event", [1, 2], 0, 7_000, False), ("event", [], 1, 0, False)):
        if not beside.reader.is_over:
            beside.step(("subscribed",), answer, 1.0)
            if beside.model.state is ReaderState.READY:
                beside.step(("subscribed",), answer, 1.0)


def test_after_a_lost_position_records_with_smaller_numbers_are_read():
    beside = Beside(TRIM_HORIZON)
    for opening, answer in [(("subscribed",), ("event", [9], 0, 0, False))] * 2 + [(("subscribed",), ("end",))]:
        beside.step(opening, answer, 6.0)
    beside.step(("fail", FailureKind.INVALID, None), ("end",), 1.0)
    assert beside.reader.position == TRIM_HORIZON
    beside.next_number = 10
    for _ in range(2):
        beside.step(("subscribed",), ("event", [2], 0, 0, False), 1.0)
    assert beside.numbers == [109, 12]


def test_a_continuation_number_before_the_last_record_is_not_used():
    shell = FanOutShell()
    shell.subscribe()
    shell.event(10, after=5)
    assert shell.reader.position == after_sequence_number("10")


# ---- without room


@pytest.mark.parametrize("is_ended", [False, True])
def test_without_room_nothing_is_requested_and_the_subscription_stays(is_ended):
    shell = FanOutShell(budget=PrefetchBudget(1000))
    reader = shell.reader
    shell.subscribe()
    shell.event(1, data=bytes(2000), wait=20.0)
    (page,) = reader.take_pages()
    if is_ended:
        shell.budget.release(reader.key, page.held_bytes)
        shell.wait()
        shell.budget.hold(reader.key, page.held_bytes)
        reader.handle_end(shell.now)
    assert reader.poll_request(shell.now) is None
    assert (reader.next_deadline(), reader.is_subscribed) == (NEVER, not is_ended)
    shell.now += 10 * SILENCE
    assert reader.poll_request(shell.now) is None
    shell.budget.release(reader.key, page.held_bytes)
    assert shell.budget.take_admitted() == [reader.key]
    assert isinstance(reader.poll_request(shell.now), SubscribeToShard if is_ended else NextEvent)


def test_records_that_were_not_opened_are_opened_before_anything_is_requested():
    shell = FanOutShell(budget=PrefetchBudget(1000))
    reader = shell.reader
    shell.subscribe()
    many = RawRecord(aggregate([("k", b"x")] * 10_000), "10", "k", 99.0)
    shell.event(many, RawRecord(b"y", "11", "k", 99.0))
    (page,) = reader.take_pages()
    assert (len(page.records), reader.has_unopened) == (10_000, True)
    assert (reader.poll_request(shell.now), reader.next_deadline()) == (None, NEVER)
    shell.budget.release(reader.key, page.held_bytes)
    assert (reader.poll_request(shell.now), reader.next_deadline()) == (None, NEVER)
    assert shell.numbers() == [11]


# ---- what retention removed


@pytest.mark.parametrize("wait", [0.0, 1.0])
def test_records_that_retention_removed_between_two_subscriptions_are_reported(wait):
    shell = FanOutShell()
    shell.subscribe()
    shell.event(1, behind=0, wait=wait)
    shell.end()
    shell.now += 2 * 24 * 3600.0
    shell.subscribe()
    shell.event(2, behind=0, arrived_at=shell.now)
    shell.trims.handle_requested(shell.now)
    shell.trims.handle_summary(24, shell.now)
    assert [event.shard_id for event in shell.trims.take_events()] == ["a"]


def test_an_old_record_that_follows_the_last_one_shows_that_nothing_was_removed():
    """At the end of the shard, the lag is 0 even if the records are old. Their arrival times show their age."""
    shell = FanOutShell()
    shell.subscribe()
    shell.event(1, behind=0)
    arrived_at = shell.now
    shell.end()
    shell.now += 2 * 24 * 3600.0
    shell.subscribe()
    shell.event(2, behind=0, arrived_at=arrived_at + 10.0)
    shell.trims.handle_requested(shell.now)
    shell.trims.handle_summary(24, shell.now)
    assert shell.trims.take_events() == []


def test_pages_records_and_bytes_are_counted_when_their_records_are_open():
    """The counts are of all readers of a consumer, so a page adds to them."""
    counts = ReadCounts()
    counts.pages, counts.records, counts.size_bytes = 5, 50, 500
    shell = FanOutShell(counts=counts)
    shell.subscribe()
    shell.event(10, 20, data=b"four")
    assert (counts.pages, counts.records, counts.size_bytes) == (6, 52, 508)
    shell.numbers()
    shell.event(after=25)
    assert (counts.pages, counts.records, counts.size_bytes) == (7, 52, 508)
    shell.event(30, data=b"x")
    assert (counts.pages, counts.records, counts.size_bytes) == (8, 53, 509)
    assert not [event for event in shell.reader.take_events() if isinstance(event, PageRead)]


def test_a_page_is_reported_with_its_own_figures():
    counts = ReadCounts()
    counts.is_observed, counts.wall_offset = True, 1_000.0
    shell = FanOutShell(counts=counts)
    shell.subscribe()
    began_at = shell.now
    shell.event(10, 20, data=b"four", behind=3_000, wait=2.0)
    shell.numbers()
    shell.event(30, data=b"x", wait=0.5)
    reports = [event for event in shell.reader.take_events() if isinstance(event, PageRead)]
    assert reports == [
        PageRead("a", 2, 8, 2.0, 3.0, "fan-out", began_at + 1_000.0),
        PageRead("a", 1, 1, 0.5, 0.0, "fan-out", began_at + 1_002.0),
    ]
