"""Does a producer start and end properly in every way, and does every delivery end with it (P1, P10)?"""

import asyncio
import gc
import threading

import anyio
import pytest
from tests.shell.blocking import EVERY_API

import shardline.aio.producer.producer_driver as driver_module
from shardline import Closed, Producer, Undelivered
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio


async def everyone_ended(deliveries):
    with anyio.fail_after(10):
        return [await delivery.outcome() for delivery in deliveries]


# ---- start and close


@EVERY_API
async def test_nothing_works_before_the_start(make_producer):
    producer = make_producer()
    assert "not started" in repr(producer)
    for use in (lambda: producer.put(b"x", key="k"), lambda: producer.put_many([("k", b"x")]), producer.flush):
        with pytest.raises(Closed, match="not started"):
            await use()
    with pytest.raises(Closed, match="not started"):
        producer.put_nowait(b"x", key="k")
    assert (producer.outstanding, producer.stats().requests) == (0, 0)


@EVERY_API
async def test_nothing_works_after_the_close(make_producer):
    async with make_producer() as producer:
        assert "open" in repr(producer)
    for use in (
        lambda: producer.put(b"x", key="k"),
        lambda: producer.put_many([("k", b"x")]),
        producer.flush,
        producer.start,
    ):
        with pytest.raises(Closed, match="is closed"):
            await use()
    with pytest.raises(Closed, match="is closed"):
        producer.put_nowait(b"x", key="k")
    assert await producer.close() == []


@EVERY_API
async def test_what_was_closed_before_the_start_does_not_start(make_producer, kinesis):
    producer = make_producer()
    assert await producer.close() == []
    with pytest.raises(Closed, match="is closed"):
        await producer.start()
    with pytest.raises(Closed, match="is closed"):
        producer.put_nowait(b"x", key="k")
    assert len(kinesis.requests) == 0


async def test_a_close_while_it_starts_wins(make_producer, monkeypatch):
    import shardline.aio.connection as connection_module

    go_on = threading.Event()
    find = connection_module.find_service
    monkeypatch.setattr(connection_module, "find_service", lambda *asked: go_on.wait(5) and find(*asked))
    producer = make_producer()
    refused = []

    async def start():
        try:
            await producer.start()
        except Closed as error:
            refused.append(str(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        await anyio.sleep(0.01)
        assert await producer.close() == []
        go_on.set()
    assert refused == ["this Producer is closed"]
    with pytest.raises(Closed):
        producer.put_nowait(b"x", key="k")


@EVERY_API
async def test_start_and_close_come_from_different_tasks(make_producer, stored):
    """The hooks of web frameworks do this (aiokpl_b6)."""
    producer = make_producer()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.start)
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(lambda number=number: producer.put(b"%d" % number, key=f"k{number}"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.close)
    assert len(stored()) == 20


async def test_it_outlives_the_cancelled_task_that_started_it(make_producer, stored):
    producer = make_producer()
    with anyio.CancelScope() as scope:
        await producer.start()
        await producer.put(b"x", key="k")
        scope.cancel()
        await anyio.sleep(1)
    await (await producer.put(b"y", key="k"))
    await producer.close()
    assert [data for _, data in stored()] == [b"x", b"y"]


@EVERY_API
async def test_starting_twice_and_at_once_is_harmless(make_producer, kinesis):
    producer = make_producer()
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(producer.start)
    await producer.start()
    await (await producer.put(b"x", key="k"))
    await producer.close()
    assert kinesis.requests.count("ListShards") == 1


@EVERY_API
async def test_closing_twice_and_at_once_gives_the_same(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    producer = make_producer()
    await producer.start()
    delivery = await producer.put(b"x", key="k")
    left = []

    async def close():
        left.append(await producer.close(0.1))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(close)
    left.append(await producer.close())
    assert left == [[delivery]] * 6
    assert delivery.done


@EVERY_API
async def test_close_hands_back_what_was_not_delivered_in_time(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    producer = make_producer()
    await producer.start()
    deliveries = await producer.put_many([("k", b"%d" % number) for number in range(10)])
    left = await producer.close(timeout=0.1)
    assert left == deliveries
    for outcome in await everyone_ended(deliveries):
        assert isinstance(outcome, Undelivered)
        assert outcome.code == "Closed"
        assert outcome.attempts[0].code == "ProvisionedThroughputExceededException"
        assert not outcome.attempts[0].maybe_stored
        assert outcome.maybe_stored == (outcome.attempts[-1].code == "Cancelled")  # a request that was in flight
    assert deliveries[3].data == b"3"


async def test_close_without_time_ends_at_once_and_says_what_may_be_stored(make_producer, kinesis):
    kinesis.faults.latency(30.0, operation="PutRecords")
    producer = make_producer(linger=0.02)
    await producer.start()
    flying = await producer.put(b"x", key="k")
    while not producer.stats().requests_in_flight:  # noqa: ASYNC110 - nothing tells
        await anyio.sleep(0.001)
    waiting = await producer.put(b"y", key="k")
    with anyio.fail_after(10):
        assert set(await producer.close(timeout=0)) == {flying, waiting}
    maybe = {(await one.outcome()).maybe_stored for one in (flying,)}
    assert maybe == {True}
    assert (await waiting.outcome()).maybe_stored is False


async def test_close_drains_through_retries(make_producer, kinesis, stored):
    kinesis.faults.throttle(operation="PutRecords", count=3)
    kinesis.faults.reset("before", operation="PutRecords", count=2)
    async with make_producer() as producer:
        deliveries = await producer.put_many([("k", b"%d" % number) for number in range(100)])
    assert all(delivery.delivered for delivery in deliveries)
    assert len(stored()) == 100


async def test_puts_that_wait_for_room_learn_of_the_close(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    producer = make_producer(buffer_max_records=1)
    await producer.start()
    held = await producer.put(b"x", key="k")
    refused = []

    async def put(many):
        try:
            await (producer.put_many([("k", b"y")]) if many else producer.put(b"y", key="k"))
        except Closed as error:
            refused.append(str(error))

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(put, number % 2)
        await anyio.sleep(0.01)
        with anyio.fail_after(5):
            assert await producer.close(timeout=0) == [held]
    assert refused == ["this Producer is closed"] * 6
    assert producer.outstanding == 0


async def test_put_many_that_meets_the_close_loses_nothing_silently(make_producer, stored):
    """Records that it accepted before are delivered or handed back; the rest is not accepted."""
    producer = make_producer()
    await producer.start()
    refused = []

    async def put():
        try:
            await producer.put_many([("k", b"%d" % number) for number in range(2000)])
        except Closed:
            refused.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(put)
        for _ in range(4):
            await anyio.lowlevel.checkpoint()
        await producer.close()
    assert refused == [True]
    assert producer.outstanding == 0
    assert 0 < len(stored()) < 2000
    assert producer.stats().delivered_records == len(stored())


async def test_a_flush_that_meets_the_close_ends(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    producer = make_producer()
    await producer.start()
    delivery = await producer.put(b"x", key="k")
    left = []

    async def flush():
        left.append(await producer.flush())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(flush)
        await anyio.sleep(0.02)
        with anyio.fail_after(5):
            await producer.close(timeout=0.05)
    assert left == [[delivery]]


# ---- leaving the block


@EVERY_API
async def test_an_exception_in_the_block_is_passed_on_after_everything_is_delivered(make_producer, stored):
    """A defect of aiokpl (aiokpl_b5)."""
    with pytest.raises(KeyError, match="mine") as caught:  # noqa: PT012 - the block is what is tested
        async with make_producer() as producer:
            deliveries = await producer.put_many([("k", b"%d" % number) for number in range(300)])
            raise KeyError("mine")
    assert type(caught.value) is KeyError, "as it is, in no group"
    assert all(delivery.delivered for delivery in deliveries)
    assert len(stored()) == 300


@pytest.mark.parametrize("drain", [True, False])
async def test_a_cancelled_block_drains_or_hands_back_as_asked(make_producer, stored, drain):
    with anyio.CancelScope() as scope:
        async with make_producer(linger=30.0, record_ttl=60.0, drain_on_cancel=drain) as producer:
            deliveries = await producer.put_many([("k", b"%d" % number) for number in range(50)])
            scope.cancel()
            await anyio.sleep(5)
    assert scope.cancelled_caught
    outcomes = await everyone_ended(deliveries)
    assert [outcome.delivered for outcome in outcomes] == [drain] * 50
    assert len(stored()) == (50 if drain else 0)
    if not drain:
        assert {outcome.code for outcome in outcomes} == {"Closed"}


async def test_a_task_that_is_cancelled_by_asyncio_drains_too_and_a_second_time_ends_at_once(
    make_producer, kinesis, eventually
):
    kinesis.faults.throttle(operation="PutRecords")
    deliveries = []

    async def main():
        async with make_producer(close_timeout=5) as producer:
            deliveries.append(await producer.put(b"x", key="k"))
            await asyncio.sleep(10)

    try:
        asyncio.get_running_loop()
    except RuntimeError:  # trio has no second cancellation: a timeout inside the shield ends it
        with anyio.fail_after(8), anyio.CancelScope() as scope:
            async with make_producer(close_timeout=0.1) as producer:
                deliveries.append(await producer.put(b"x", key="k"))
                scope.cancel()
                await anyio.sleep(10)
    else:
        task = asyncio.create_task(main())
        await eventually(lambda: deliveries)
        task.cancel()
        await asyncio.sleep(0.1)
        assert not task.done(), "it drains"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    [outcome] = await everyone_ended(deliveries)
    assert outcome.code == "Closed"


async def test_many_cancellations_end_every_delivery(make_producer):
    deliveries = []

    async def work(patience):
        with anyio.move_on_after(patience):
            async with make_producer(close_timeout=1) as producer:
                while True:
                    deliveries.append(await producer.put(b"x", key="k"))
                    await anyio.sleep(0.001)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(work, 0.003 * number)
    outcomes = await everyone_ended(deliveries)
    assert all(outcome.delivered for outcome in outcomes)


# ---- failures of the host


async def test_a_machine_that_breaks_ends_everything_and_refuses_more(make_producer, complaints, monkeypatch):
    async with make_producer(buffer_max_records=20, linger=0.05) as producer:
        deliveries = await producer.put_many([("k", b"%d" % number) for number in range(20)])
        refused = []

        async def wait_for_room():
            try:
                await producer.put(b"x", key="k")
            except Closed as error:
                refused.append(str(error))

        def broken(*_):
            raise AssertionError("a bug")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_room)
            await anyio.sleep(0.01)
            monkeypatch.setattr(producer._machine._responses, "settle", broken)
        outcomes = await everyone_ended(deliveries)
        assert {outcome.delivered for outcome in outcomes} == {False}
        assert all("bug" in outcome.message for outcome in outcomes)
        with pytest.raises(Closed, match="a bug"):
            producer.put_nowait(b"x", key="k")
        with pytest.raises(Closed, match="a bug"):
            await producer.put(b"x", key="k")
        assert len(refused) == 1
        assert "a bug" in refused[0]
    assert ("CRITICAL", "the producer stopped because of an internal error; undelivered records fail") in complaints()


async def test_an_api_that_raises_is_a_failed_attempt(make_producer, complaints, kinesis):
    async with kinesis.client() as client, make_producer(client=client) as producer:
        put_records = client.api.put_records
        tries = []

        async def broken(request):
            tries.append(request)
            if len(tries) < 3:
                raise RuntimeError("an adapter's bug")
            return await put_records(request)

        client.api.put_records = broken
        receipt = await (await producer.put(b"x", key="k"))
        del client.api.put_records
    assert receipt.attempt_count == 3
    assert receipt.attempts[0].code == "Internal"
    assert ("ERROR", "internal error while sending a request") in complaints()


# ---- producers that are not closed


async def test_a_producer_that_is_dropped_says_so_and_delivers(make_producer, stored, complaints, eventually):
    producer = make_producer(linger=0.05)
    await producer.start()
    deliveries = await producer.put_many([("k", b"x"), ("k", b"y")])
    with pytest.warns(ResourceWarning, match="<Producer s, open, 2 outstanding> was never"):  # noqa: PT031 - at either
        del producer
        gc.collect()
    outcomes = await everyone_ended(deliveries)
    assert all(outcome.delivered for outcome in outcomes)
    [(level, text)] = complaints()
    assert level == "ERROR"
    assert "2 outstanding> was garbage-collected without close()" in text


async def test_a_producer_that_is_dropped_with_nothing_to_do_leaves_no_task(make_producer, eventually, monkeypatch):
    ended = []
    end = driver_module.Driver._end
    monkeypatch.setattr(driver_module.Driver, "_end", lambda driver: ended.append(driver) or end(driver))
    producer = make_producer()
    await producer.start()
    await (await producer.put(b"x", key="k"))
    with pytest.warns(ResourceWarning, match="was never closed"):  # noqa: PT031 - at either
        del producer
        gc.collect()
    await eventually(lambda: ended)


def run_on(backend, main):
    name, options = backend
    return anyio.run(main, backend=name, backend_options=options)


def test_an_event_loop_that_ends_before_the_close_ends_the_deliveries(make_producer, complaints, anyio_backend):
    """P1: the outcome of the deliveries is known, and later puts are refused."""
    producer = make_producer(linger=1.0)

    async def main():
        await producer.start()
        return await producer.put_many([("k", b"x"), ("k", b"y")])

    deliveries = run_on(anyio_backend, main)
    assert [delivery.done for delivery in deliveries] == [True, True]
    assert deliveries[0].ending.message == "the event loop ended before the producer was closed"
    with pytest.raises(Closed, match="the event loop ended"):
        producer.put_nowait(b"z", key="k")
    with pytest.raises(Closed, match="the event loop ended"):
        run_on(anyio_backend, lambda: producer.put(b"z", key="k"))
    assert run_on(anyio_backend, producer.close) == []
    assert (
        "ERROR",
        "s: 2 records given up: Closed: the event loop ended before the producer was closed",
    ) in complaints()


def test_one_event_loop_after_the_other(kinesis, make_producer, stored, anyio_backend):
    async def main():
        async with make_producer() as producer:
            await producer.put(b"x", key="k")

    for _ in range(3):
        run_on(anyio_backend, main)
    assert len(stored()) == 3


async def test_nothing_is_left_behind(make_producer, anyio_backend_name):
    """There are no tasks, threads or connections left."""
    threads = {thread.name for thread in threading.enumerate()}
    async with make_producer() as producer:
        await (await producer.put(b"x", key="k"))
    if anyio_backend_name == "asyncio":
        assert asyncio.all_tasks() == {asyncio.current_task()} | {
            task for task in asyncio.all_tasks() if "shardline" not in task.get_name()
        }
    with LocalKinesis(stream="s") as other:
        async with Producer(
            "s", endpoint_url=other.endpoint_url, region="us-east-1", credentials=other.credentials
        ) as two:
            await two.put(b"x", key="k")
    left = {thread.name for thread in threading.enumerate()} - threads
    loops = ("AnyIO worker", "asyncio_", "Trio thread")  # the test's own event loop may start these at any time
    assert not [name for name in left if not name.startswith(loops)]
