"""When does a producer say that it can reach its stream, and what does it say if it cannot?"""

import threading
import time

import anyio
import pytest

from shardline import Closed, ServiceError, UsageError, WaitTimeout

pytestmark = pytest.mark.anyio


async def test_it_is_ready_when_it_has_seen_the_stream(make_producer, kinesis):
    async with make_producer() as producer:
        with anyio.fail_after(10):
            await producer.wait_ready()
            await producer.wait_ready(timeout=0.5)
        assert kinesis.requests.count("ListShards") == 1
        await (await producer.put(b"x", key="k"))


def test_a_blocking_one_is_ready_when_it_has_seen_the_stream(make_sync_producer):
    with make_sync_producer() as producer:
        producer.wait_ready()
        producer.wait_ready(timeout=0.5)
        producer.put(b"x", key="k").result(5)


async def test_a_misspelt_stream_is_told_at_once(make_producer):
    async with make_producer("misspelt") as producer:
        with anyio.fail_after(10), pytest.raises(ServiceError, match="misspelt") as caught:
            await producer.wait_ready()
        assert (caught.value.kind, caught.value.code) == ("not-found", "ResourceNotFoundException")


def test_a_misspelt_stream_is_told_at_once_by_a_blocking_one(make_sync_producer):
    with make_sync_producer("misspelt") as producer:
        began = time.monotonic()
        with pytest.raises(ServiceError, match="misspelt"):
            producer.wait_ready()
        assert time.monotonic() - began < 10


async def test_a_stream_that_is_created_meanwhile_makes_it_ready(make_producer, kinesis, eventually):
    async with make_producer("later") as producer:
        with pytest.raises(ServiceError):
            await producer.wait_ready()
        async with kinesis.client() as client:
            await client.create_stream("later", shards=1)
        await eventually(lambda: producer._machine.readiness.is_ready)
        await producer.wait_ready(timeout=0.5)


async def test_who_may_do_nothing_is_told(make_producer, kinesis):
    for operation in ("ListShards", "DescribeStreamSummary"):
        kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation=operation)
    async with make_producer() as producer:
        with anyio.fail_after(10), pytest.raises(ServiceError, match="not allowed") as caught:
            await producer.wait_ready()
        assert caught.value.kind == "denied"


async def test_who_may_not_list_the_shards_is_ready_all_the_same(make_producer, kinesis):
    kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation="ListShards")
    async with make_producer() as producer:
        with anyio.fail_after(10):
            await producer.wait_ready()
        assert (await (await producer.put(b"x", key="k"))).attempt_count == 1


async def test_an_outage_is_waited_out(make_producer, kinesis):
    kinesis.faults.error("InternalFailure", "a bad moment", status=500, count=4)
    async with make_producer() as producer:
        with anyio.fail_after(20):
            await producer.wait_ready()


async def test_a_time_that_is_over_is_told_with_the_last_failure(make_producer, kinesis):
    kinesis.faults.error("InternalFailure", "a bad hour", status=500, operation="ListShards")
    async with make_producer() as producer:
        with anyio.fail_after(10), pytest.raises(WaitTimeout, match=r"s is not ready after 0.3 s: .*a bad hour"):
            await producer.wait_ready(timeout=0.3)


def test_a_time_that_is_over_is_told_by_a_blocking_one(make_sync_producer, kinesis):
    kinesis.faults.latency(30, operation="ListShards")
    with make_sync_producer() as producer, pytest.raises(WaitTimeout, match=r"s is not ready after 0.3 s$"):
        producer.wait_ready(timeout=0.3)


@pytest.mark.parametrize("limit", [-1, "10", float("nan"), True])
async def test_a_wrong_time_is_refused(make_producer, make_sync_producer, limit):
    async with make_producer() as producer:
        with pytest.raises(UsageError, match="timeout"):
            await producer.wait_ready(limit)
    with make_sync_producer() as producer, pytest.raises(UsageError, match="timeout"):
        producer.wait_ready(limit)


async def test_what_is_not_started_or_closed_refuses(make_producer, make_sync_producer):
    producer, blocking = make_producer(), make_sync_producer()
    with pytest.raises(Closed, match="not started"):
        await producer.wait_ready()
    with pytest.raises(Closed, match="not started"):
        blocking.wait_ready()
    await producer.start()
    await producer.close()
    blocking.start()
    blocking.close()
    with pytest.raises(Closed):
        await producer.wait_ready()
    with pytest.raises(Closed):
        blocking.wait_ready()


async def test_a_close_ends_the_wait(make_producer, kinesis):
    kinesis.faults.latency(30, operation="ListShards")
    producer = make_producer()
    await producer.start()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:

            async def wait():
                with pytest.raises(Closed):
                    await producer.wait_ready(None)

            tasks.start_soon(wait)
            await anyio.sleep(0.1)
            await producer.close(0)


def test_a_close_ends_the_wait_of_a_thread(make_sync_producer, kinesis):
    kinesis.faults.latency(30, operation="ListShards")
    producer, ended = make_sync_producer(), []
    producer.start()

    def wait():
        with pytest.raises(Closed):
            producer.wait_ready(None)
        ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    producer.close(0)
    thread.join(10)
    assert ended == [True]
