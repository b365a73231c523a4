"""Does ``put_many`` accept lists as a whole and generators record by record, and what happens to invalid records (P6,
P7)?
"""

import anyio
import pytest
from tests.shell.blocking import EVERY_API

import shardline.sync
from shardline import BufferFull, Closed, DeliveryFailed, UsageError
from shardline.aio.producer.async_producer import YIELD_EVERY
from shardline.core.producer_events import RecordsFailed

pytestmark = pytest.mark.anyio


class Source:
    """A generator that counts the records taken from it, and notes that it was closed."""

    def __init__(self, records):
        self.records = records
        self.taken = 0
        self.closed = False

    def plain(self):
        try:
            for record in self.records:
                self.taken += 1
                yield record
        finally:
            self.closed = True

    async def asynchronous(self):
        try:
            for record in self.records:
                self.taken += 1
                yield record
        finally:
            self.closed = True
            await anyio.lowlevel.checkpoint()


def numbered(count):
    return [(f"k{number}", b"%d" % number) for number in range(count)]


@pytest.fixture(params=["plain", "asynchronous"])
def begin(request):
    """Start a source as a generator, or as an async generator."""
    return lambda source: getattr(source, request.param)()


# ---- generators


async def test_a_generator_is_put_in_order_and_closed(make_producer, stored, begin):
    source = Source(numbered(300))
    async with make_producer() as producer:
        deliveries = await producer.put_many(begin(source))
        assert [delivery.key for delivery in deliveries] == [key for key, _ in numbered(300)]
    assert all(delivery.delivered for delivery in deliveries)
    assert sorted(stored()) == sorted(numbered(300))
    assert source.closed


async def test_no_more_is_taken_than_there_is_room_for(make_producer, begin):
    """P7: at most one record ahead, however long the generator is."""
    source = Source(numbered(1000))
    async with make_producer(buffer_max_records=10, linger=30.0, record_ttl=60.0, close_timeout=0) as producer:
        with anyio.move_on_after(0.1) as scope:
            await producer.put_many(begin(source))
        assert scope.cancelled_caught
        assert (producer.outstanding, source.taken) == (10, 11)


async def test_a_generator_lets_other_tasks_run(make_producer, begin):
    ticks, is_done = 0, False

    async def tick():
        nonlocal ticks
        while not is_done:
            ticks += 1
            await anyio.lowlevel.checkpoint()

    async with make_producer() as producer, anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await producer.put_many(begin(Source(numbered(10 * YIELD_EVERY))))
        is_done = True
    assert ticks >= 9


async def test_each_record_of_a_slow_generator_is_sent_before_the_next_one_is_made(make_producer, stored):
    async def slow():
        for number in range(3):
            yield "k", b"%d" % number
            with anyio.fail_after(10):
                while len(stored()) <= number:  # noqa: ASYNC110 - the server does not notify
                    await anyio.sleep(0.01)

    async with make_producer() as producer:
        assert len(await producer.put_many(slow())) == 3


async def test_cancellation_keeps_accepted_records_and_closes_the_generator(make_producer, stored, begin):
    source = Source(numbered(100))
    async with make_producer(buffer_max_records=20, linger=30.0, record_ttl=60.0) as producer:
        with anyio.move_on_after(0.1):
            await producer.put_many(begin(source))
        assert producer.outstanding == 20
        assert source.closed
    assert sorted(stored()) == sorted(numbered(20))


async def test_an_invalid_record_of_a_generator_raises_with_its_index(make_producer, stored, begin):
    source = Source([*numbered(5), ("k", "text"), ("k", b"later")])
    async with make_producer() as producer:
        with pytest.raises(UsageError, match=r"^record 5: ") as caught:
            await producer.put_many(begin(source))
        assert (caught.value.index, source.taken, source.closed) == (5, 6, True)
        for delivery in caught.value.deliveries:
            await delivery
    assert sorted(stored()) == sorted(numbered(5))
    assert [delivery.key for delivery in caught.value.deliveries] == [key for key, _ in numbered(5)]


async def test_an_error_of_the_generator_is_the_callers(make_producer, stored, begin):
    def broken():
        yield from numbered(3)
        raise ZeroDivisionError

    source = Source(broken())
    async with make_producer() as producer:
        with pytest.raises(ZeroDivisionError):
            await producer.put_many(begin(source))
        assert source.closed
    assert sorted(stored()) == sorted(numbered(3))


async def test_an_error_that_already_has_deliveries_keeps_them(make_producer, begin):
    async with make_producer() as producer:

        def nested():
            yield "k", b"x"
            error = UsageError("of another producer")
            error.deliveries = ("theirs",)
            raise error

        with pytest.raises(UsageError) as caught:
            await producer.put_many(begin(Source(nested())))
    assert caught.value.deliveries == ("theirs",)


async def test_a_full_buffer_ends_a_generator_with_what_was_accepted(make_producer, begin):
    source = Source(numbered(50))
    async with make_producer(buffer_max_records=7, linger=30.0, record_ttl=60.0) as producer:
        with pytest.raises(BufferFull) as caught:
            await producer.put_many(begin(source), timeout=0.02)
        assert (len(caught.value.deliveries), source.closed) == (7, True)


async def test_a_close_during_a_generator_keeps_what_was_accepted(make_producer, begin):
    async with make_producer() as producer:

        def closing():
            yield from numbered(4)
            producer._intake.refuse("this Producer is closed")
            yield "k", b"too late"

        with pytest.raises(Closed) as caught:
            await producer.put_many(begin(Source(closing())))
        assert len(caught.value.deliveries) == 4


def test_the_blocking_producer_takes_a_generator_record_by_record(make_sync_producer, stored):
    source = Source(numbered(300))
    with make_sync_producer(buffer_max_records=50) as producer:
        deliveries = producer.put_many(source.plain())
        assert all(delivery.result(10).sequence_number for delivery in deliveries)
    assert sorted(stored()) == sorted(numbered(300))
    assert source.closed


def test_the_blocking_producer_waits_for_room_and_gives_up_after_its_timeout(make_sync_producer):
    source = Source(numbered(50))
    with make_sync_producer(buffer_max_records=7, linger=30.0, record_ttl=60.0, close_timeout=0) as producer:
        with pytest.raises(BufferFull) as caught:
            producer.put_many(source.plain(), timeout=0.02)
        assert (len(caught.value.deliveries), source.taken, source.closed) == (7, 8, True)
        assert not producer._intake.waiters


def test_the_blocking_producer_refuses_an_async_generator(make_sync_producer):
    source = Source(numbered(1))
    with make_sync_producer() as producer:
        with pytest.raises(UsageError, match="not async_generator: only the async Producer takes an async iterable"):
            producer.put_many(source.asynchronous())
        with pytest.raises(UsageError, match=r"^record 1: ") as caught:
            producer.put_many(iter([("k", b"x"), 5]))
        assert (caught.value.index, len(caught.value.deliveries)) == (1, 1)


# ---- collections


@EVERY_API
@pytest.mark.parametrize("collection", [list, tuple, lambda records: dict.fromkeys(records).keys()])
async def test_a_collection_is_checked_before_the_first_record_is_accepted(make_producer, collection):
    async with make_producer() as producer:
        with pytest.raises(UsageError, match="record 2: ") as caught:
            await producer.put_many(collection([*numbered(2), ("", b"x")]))
        assert (caught.value.index, caught.value.deliveries, producer.outstanding) == (2, (), 0)


@EVERY_API
async def test_a_list_that_does_not_fit_in_time_says_what_was_accepted(make_producer):
    async with make_producer(buffer_max_records=7, linger=30.0, record_ttl=60.0) as producer:
        with pytest.raises(BufferFull) as caught:
            await producer.put_many(numbered(50), timeout=0.02)
        assert [delivery.key for delivery in caught.value.deliveries] == [key for key, _ in numbered(7)]
        assert producer.outstanding == 7


# ---- on_invalid="fail"


@EVERY_API
@pytest.mark.parametrize("make", [list, iter], ids=["list", "generator"])
async def test_invalid_records_fail_and_the_others_are_accepted(make_producer, stored, make):
    handed, events = [], []
    records = [("a", b"1"), ("b", "text"), ("a", b"2"), 17, ("", b"3"), (None, b"4"), ("a", b"5", "-1")]
    async with make_producer(on_failure=handed.append, sinks=[events.append]) as producer:
        deliveries = await producer.put_many(make(records), on_invalid="fail")
        assert [delivery.done and not delivery.delivered for delivery in deliveries] == [0, 1, 0, 1, 1, 0, 1]
        assert [delivery.data for delivery in deliveries][3] == 17
        for delivery in deliveries:
            outcome = await delivery.outcome()
            assert outcome.delivered or (outcome.code, outcome.attempt_count) == ("InvalidRecord", 0)
        with pytest.raises(DeliveryFailed, match="not delivered: InvalidRecord: ") as caught:
            await deliveries[1]
        assert (caught.value.delivery.key, caught.value.delivery.data) == ("b", "text")
        await producer.flush()
        stats = producer.stats()
    assert sorted(data for _, data in stored()) == [b"1", b"2", b"4"]
    assert (stats.delivered_records, stats.failed_records, stats.outstanding) == (3, 4, 0)
    assert [delivery.data for delivery in handed] == ["text", 17, b"3", b"5"]
    failed = [event for event in events if type(event) is RecordsFailed]
    assert sum(event.records for event in failed) == 4
    assert {(event.code, event.message) for event in failed} == {
        ("InvalidRecord", "put_many was passed an invalid record")
    }


@EVERY_API
async def test_a_value_that_the_serializer_refuses_is_invalid(make_producer, stored):
    def serializer(value):
        return {1: b"one", 2: "no bytes"}[value]

    async with make_producer(serializer=serializer) as producer:
        deliveries = await producer.put_many([("k", 1), ("k", 2), ("k", 3)], on_invalid="fail")
        assert [(await delivery.outcome()).delivered for delivery in deliveries] == [True, False, False]
        assert (await deliveries[2].outcome()).message == "the serializer raised KeyError"
        with pytest.raises(KeyError):
            await producer.put_many(iter([("k", 3)]))
    assert stored() == [("k", b"one")]


@EVERY_API
async def test_only_invalid_records_are_reported_without_a_request(make_producer, kinesis):
    handed = []
    async with make_producer(on_failure=handed.append) as producer:
        await producer.put_many([("", b"x"), ("", b"y")], on_invalid="fail")
    assert len(handed) == 2
    assert kinesis.streams["s"].record_count == 0


@EVERY_API
async def test_wrong_options_are_named(make_producer):
    async with make_producer() as producer:
        with pytest.raises(UsageError, match="on_invalid must be 'raise' or 'fail', not 'skip'"):
            await producer.put_many([], on_invalid="skip")
        with pytest.raises(UsageError, match=r"ttl must be a number from 0\.001 to 31,536,000, not '5'"):
            await producer.put_many([], ttl="5")
        with pytest.raises(UsageError, match="timeout must be"):
            await producer.put_many([], timeout=-1)


def test_both_producers_put_many_from_the_same_signature():
    import inspect

    from shardline import Producer

    names = [[*inspect.signature(kind.put_many).parameters] for kind in (Producer, shardline.sync.Producer)]
    assert names[0] == names[1] == ["self", "records", "ttl", "timeout", "on_invalid", "stream"]
    names = [[*inspect.signature(kind.put).parameters] for kind in (Producer, shardline.sync.Producer)]
    options = ["key", "explicit_hash_key", "headers", "ttl", "on_delivery", "timeout", "stream"]
    assert names[0] == names[1] == ["self", "data", *options]
