"""Is a consumer refused in another event loop than its own, and closed when its loop is gone?"""

import asyncio
import threading

import anyio
import pytest
import uvloop

from shardline import Closed, UsageError
from shardline.sync import Consumer as BlockingConsumer

OWN = "this Consumer belongs to the event loop in which it was started"


def uvloop_run(use):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(use())


def trio_run(use):
    anyio.run(use, backend="trio")


def asyncio_run(use):
    asyncio.run(use())


RUNS = pytest.mark.parametrize("run", [asyncio_run, uvloop_run, trio_run])


@pytest.fixture
def at_home():
    """Run coroutines in an event loop in its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda call: asyncio.run_coroutine_threadsafe(call, loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def take(iterator, count):
    return [await anext(iterator) for _ in range(count)]


@RUNS
def test_another_event_loop_is_refused_and_harms_nothing(make_consumer, put, at_home, run):
    asyncio.run(put(range(10)))
    consumer = make_consumer()
    at_home(consumer.start())
    iterator = at_home(ready_iterator(consumer))
    (record,) = at_home(take(iterator, 1))

    async def use():
        for call in (
            lambda: anext(iterator),
            lambda: consumer.run(print),
            consumer.wait_ready,
            consumer.commit,
            consumer.pause,
            consumer.resume,
            lambda: consumer.seek("TRIM_HORIZON"),
            lambda: consumer.reconfigure(max_leases=1),
            consumer.close,
            lambda: consumer.__aexit__(None, None, None),
        ):
            with pytest.raises(UsageError, match=OWN), anyio.fail_after(3):
                await call()
        for begin in (consumer.__aiter__, consumer.batches):
            with pytest.raises(UsageError, match=OWN):
                begin()
        assert consumer.ack(record)
        assert consumer.status().shards
        assert consumer.is_ready

    at_home(asyncio.sleep(0.05))  # after the time slice in which no call is made
    run(use)
    assert len(at_home(take(iterator, 9))) == 9
    at_home(consumer.close())


async def ready_iterator(consumer):
    await consumer.wait_ready()
    return consumer.__aiter__()


@RUNS
@pytest.mark.parametrize("end", ["closed", "stopped"])
def test_one_whose_loop_is_gone_refuses_and_is_closed_from_another(make_consumer, put, end, run):
    asyncio.run(put(range(10)))
    consumer = make_consumer()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(consumer.start())
    iterator = loop.run_until_complete(ready_iterator(consumer))
    loop.run_until_complete(take(iterator, 1))
    loop.run_until_complete(asyncio.sleep(0.05))
    if end == "closed":
        loop.close()

    async def use():
        for call in (lambda: anext(iterator), lambda: consumer.run(print)):
            with pytest.raises(Closed, match=OWN), anyio.fail_after(3):
                await call()
        with anyio.fail_after(3):
            await consumer.close()
            await consumer.close()
        with pytest.raises(Closed, match="closed"):
            consumer.batches()

    run(use)
    assert consumer.status().health in {"closing", "closed"}
    if end == "stopped":
        loop.run_until_complete(asyncio.wait_for(consumer.close(), 5))
        loop.close()


def test_one_whose_trio_has_ended_is_closed_from_asyncio(make_consumer, put):
    asyncio.run(put(range(1)))
    consumer = make_consumer()
    anyio.run(consumer.start, backend="trio")

    async def use():
        with pytest.raises(UsageError, match=OWN):
            consumer.batches()
        with anyio.fail_after(3):
            await consumer.close()

    asyncio.run(use())
    assert consumer.status().health in {"closing", "closed"}


def test_a_blocking_consumer_is_used_in_a_thread_with_a_loop_of_its_own(connection, put):
    asyncio.run(put(range(5)))

    async def use():
        with BlockingConsumer("s", **connection, until="latest") as consumer:
            return [record.data for record in consumer]

    assert sorted(asyncio.run(use())) == [b"%d" % number for number in range(5)]
