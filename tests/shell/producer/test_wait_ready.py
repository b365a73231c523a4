"""When does a producer report that it can reach its stream, and what does it report if it cannot?"""

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline import Closed, ServiceError, UsageError, WaitTimeout

pytestmark = pytest.mark.anyio


@EVERY_API
async def test_it_is_ready_when_it_has_seen_the_stream(make_producer, kinesis):
    async with make_producer() as producer:
        with anyio.fail_after(10):
            await producer.wait_ready()
            await producer.wait_ready(timeout=0.5)
        assert kinesis.requests.count("ListShards") == 1
        await (await producer.put(b"x", key="k"))


@EVERY_API
async def test_a_misspelt_stream_is_reported_at_once(make_producer):
    async with make_producer("misspelt") as producer:
        with anyio.fail_after(10), pytest.raises(ServiceError, match="misspelt") as caught:
            await producer.wait_ready()
        assert (caught.value.kind, caught.value.code) == ("not-found", "ResourceNotFoundException")


async def test_missing_permissions_are_reported(make_producer, kinesis):
    for operation in ("ListShards", "DescribeStreamSummary"):
        kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation=operation)
    async with make_producer() as producer:
        with anyio.fail_after(10), pytest.raises(ServiceError, match="not allowed") as caught:
            await producer.wait_ready()
        assert caught.value.kind == "denied"


@EVERY_API
async def test_a_timeout_is_reported_with_the_last_failure(make_producer, kinesis):
    kinesis.faults.error("InternalFailure", "a bad hour", status=500, operation="ListShards")
    async with make_producer() as producer:
        with anyio.fail_after(10), pytest.raises(WaitTimeout, match=r"s is not ready after 0.3 s: .*a bad hour"):
            await producer.wait_ready(timeout=0.3)


def test_a_timeout_of_a_blocking_producer_is_reported(make_sync_producer, kinesis):
    kinesis.faults.latency(30, operation="ListShards")
    with make_sync_producer() as producer, pytest.raises(WaitTimeout, match=r"s is not ready after 0.3 s$"):
        producer.wait_ready(timeout=0.3)


@EVERY_API
@pytest.mark.parametrize("limit", [-1, "10", float("nan"), True])
async def test_a_wrong_time_is_refused(make_producer, limit):
    async with make_producer() as producer:
        with pytest.raises(UsageError, match="timeout"):
            await producer.wait_ready(limit)


@EVERY_API
async def test_what_is_not_started_or_closed_refuses(make_producer):
    producer = make_producer()
    with pytest.raises(Closed, match="not started"):
        await producer.wait_ready()
    await producer.start()
    await producer.close()
    with pytest.raises(Closed):
        await producer.wait_ready()


@EVERY_API
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
