"""Is a producer refused in another event loop than its own, and closed when its loop is gone?"""

import asyncio
import threading

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline import Closed, Producer, UsageError


@pytest.fixture
def limited():
    """Fail if a call waits for something that cannot happen."""

    async def limit(call):
        with anyio.fail_after(3):
            return await call

    return limit


@pytest.mark.parametrize("end", ["closed", "stopped"])
def test_one_whose_loop_is_gone_refuses_and_is_closed_from_another(make_producer, limited, end):
    producer = make_producer(linger=5.0)
    loop = asyncio.new_event_loop()
    outcomes = []

    async def begin():
        await producer.start()
        delivery = await producer.put(b"1", key="k")
        delivery.add_done_callback(lambda one: outcomes.append(one.ending.code))
        outcomes_of.append(asyncio.ensure_future(delivery.outcome()))
        await asyncio.sleep(0.05)
        return delivery

    outcomes_of = []
    delivery = loop.run_until_complete(begin())
    if end == "closed":
        loop.close()

    async def use():
        for call in (producer.flush, lambda: producer.put_many([("k", b"2")]), lambda: producer.put("2", key="k")):
            with pytest.raises(Closed, match="event loop in which it was started"):
                await limited(call())
        with pytest.raises(Closed, match="event loop in which it was started"):
            producer.put_nowait(b"2", key="k")
        assert await limited(producer.close(timeout=1)) == [delivery]
        assert await limited(producer.close(timeout=1)) == [delivery]

    asyncio.run(use())
    assert outcomes == ["Closed"]
    assert "the event loop ended before the producer was closed" in delivery.ending.message
    if end == "stopped":
        loop.run_until_complete(outcomes_of[0])
        loop.run_until_complete(producer.close())
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()


def test_another_thread_with_a_loop_of_its_own_is_refused_and_harms_nothing(make_producer, limited):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def at_home(call):
        return asyncio.run_coroutine_threadsafe(call, loop).result(10)

    producer = make_producer(linger=0.5)
    at_home(producer.start())
    for _ in range(3):  # from now on a put only appends
        at_home(producer.put(b"0", key="k"))
        at_home(asyncio.sleep(0.02))

    async def use():
        for call in (
            producer.put(b"x", key="k"),
            producer.put_many([("k", b"x")]),
            producer.flush(),
            producer.wait_ready(),
        ):
            with pytest.raises(UsageError, match="event loop in which it was started"):
                await limited(call)
        with pytest.raises(UsageError, match="event loop in which it was started"):
            producer.put_nowait(b"x", key="k")
        with pytest.raises(UsageError, match="event loop in which it was started"):
            await limited(producer.close())

    asyncio.run(use())
    anyio.run(use, backend="trio")
    assert at_home(at_home(producer.put(b"1", key="k")).outcome()).delivered
    assert at_home(producer.close()) == []
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_one_whose_trio_has_ended_is_closed_from_asyncio(make_producer, limited):
    producer = make_producer(linger=5.0)

    async def begin():
        await producer.start()
        await producer.put(b"1", key="k")
        await anyio.sleep(0.05)

    anyio.run(begin, backend="trio")

    async def use():
        with pytest.raises(Closed, match="does not run any more"):
            await limited(producer.put(b"x", key="k"))
        await limited(producer.close())

    asyncio.run(use())
    assert producer.outstanding == 0


# ---- half made, and closed twice


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_one_that_could_not_be_made_has_a_repr(kind):
    import shardline.sync

    made = (Producer if kind == "async" else shardline.sync.Producer).__new__(
        Producer if kind == "async" else shardline.sync.Producer
    )
    with pytest.raises(UsageError):
        made.__init__("")
    assert repr(made) == "<Producer, not initialized>"


@EVERY_API
@pytest.mark.anyio
async def test_a_second_close_without_time_cuts_the_first_short(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    producer = make_producer()
    await producer.start()
    delivery = await producer.put(b"x", key="k")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.close, 30.0)
        await anyio.sleep(0.05)
        with anyio.fail_after(5):
            assert await producer.close(timeout=0) == [delivery]
