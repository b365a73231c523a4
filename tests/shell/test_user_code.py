"""Does an exception of the user's code end only that code?"""

import asyncio
import signal

import anyio
import pytest

from shardline import Producer
from shardline.aio.loop.callbacks import Contained, is_cancelled
from shardline.testing import LocalKinesis


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=1, limits=False, stream="s") as running:
        yield running


@pytest.fixture
def make_producer(kinesis):
    connection = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
    return lambda: Producer("s", **connection)


def interrupt(_):
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_callback_comes_out_of_asyncios_loop_and_the_producer_goes_on(make_producer):
    """The test uses its own loop: ``asyncio.run`` would cancel the main task instead."""
    loop = asyncio.new_event_loop()
    producer = make_producer()

    async def begin():
        await producer.start()
        first = await producer.put(b"1", key="k")
        first.add_done_callback(interrupt)
        await asyncio.sleep(30)

    async def go_on():
        assert (await (await producer.put(b"2", key="k"))).attempt_count == 1
        return await producer.close()

    main = loop.create_task(begin())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main)
    main.cancel()
    assert loop.run_until_complete(go_on()) == []
    loop.close()


def test_an_interrupt_that_a_callback_raises_is_trios_main_tasks(make_producer):
    def raises(_):
        raise KeyboardInterrupt

    async def main():
        async with make_producer() as producer:
            delivery = await producer.put(b"1", key="k")
            delivery.add_done_callback(raises)
            await delivery.outcome()
            await anyio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        anyio.run(main, backend="trio")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancellation_goes_through_and_one_of_something_else_does_not(backend):
    told = []

    async def main():
        with Contained(told.append, awaits=True):
            raise asyncio.CancelledError
        with anyio.CancelScope() as scope:
            scope.cancel()
            with Contained(told.append, awaits=True):
                await anyio.sleep(1)
            told.append("not reached")
        assert scope.cancelled_caught

    anyio.run(main, backend=backend)
    assert [type(one) for one in told] == [asyncio.CancelledError]


def test_what_is_no_cancelled_error_is_no_cancellation():
    assert not is_cancelled(ValueError())
    assert not is_cancelled(None)
