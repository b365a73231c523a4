"""Does a fan-out reader return each record once and in order, whatever happens to its subscriptions?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.fanout import CHILD, FanOutShell

from shardline.codec.raw_records import aggregate
from shardline.codec.shapes import RawRecord
from shardline.core.consumer.reader import ReaderState
from shardline.core.failures import Failure, FailureKind
from shardline.core.requests import SubscribeToShard
from shardline.model.position import TRIM_HORIZON, PositionKind, at_sequence_number, at_timestamp
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
