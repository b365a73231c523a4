"""What does a consumer do when the service refuses, forgets, or sends an unexpected response?"""

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline import ServiceError, StreamRecreated, aggregate
from shardline.core.consumer import consumer_events as told
from shardline.core.consumer.consumer_events import PositionLost, ReadFailed, RecordsTrimmed
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio


@EVERY_API
async def test_a_missing_stream_is_reported(make_consumer):
    async with make_consumer("nosuch") as consumer:
        with pytest.raises(ServiceError) as failed:
            await anext(aiter(consumer))
        with pytest.raises(ServiceError):
            await consumer.wait_ready()
        with pytest.raises(ServiceError):
            await consumer.run(print)
        with pytest.raises(ServiceError):
            await anext(consumer.batches())
        assert consumer.status().health == "failed"
    assert failed.value.code == "ResourceNotFoundException"


@pytest.mark.parametrize("operation", ["ListShards", "GetShardIterator", "GetRecords"])
async def test_denied_access_is_reported(make_consumer, kinesis, put, operation):
    await put(range(5))
    kinesis.faults.error("AccessDeniedException", "not you", operation=operation, status=400)
    async with make_consumer() as consumer:
        with pytest.raises(ServiceError, match="not you"), anyio.fail_after(5):
            async for _ in consumer:
                pass


async def test_expired_iterators_are_replaced(make_consumer, kinesis, put, ledger):
    await put(range(200))
    fault = kinesis.faults.expired_iterator(chance=0.4)
    async with make_consumer(until="latest", page_max_records=10) as consumer:
        async for record in consumer:
            ledger(record)
    assert fault.hits > 3
    assert sorted(ledger.numbers) == list(range(200))
    ledger.check_order()


async def test_throttled_broken_and_unavailable_reads_are_tried_again(make_consumer, kinesis, put, ledger, complaints):
    await put(range(100))
    kinesis.faults.throttle(operation="GetShardIterator", count=2)
    kinesis.faults.throttle(operation="GetRecords", count=2)
    kinesis.faults.unavailable(operation="ListShards", count=1)
    kinesis.faults.reset("after", operation="GetRecords", after=3, count=1)
    events = []
    async with make_consumer(until="latest", page_max_records=20, sinks=[events.append]) as consumer:
        async for record in consumer:
            ledger(record)
    assert sorted(ledger.numbers) == list(range(100))
    ledger.check_order()
    assert any(isinstance(event, ReadFailed) for event in events)
    assert complaints()


async def test_a_failing_shard_delays_no_other(make_consumer, kinesis, put, eventually):
    await put(range(100))
    shards = [one.shard_id for one in kinesis.streams["s"].shards]
    kinesis.faults.throttle(operation="GetRecords", shard=shards[0])
    seen = []

    async def handle(record):
        seen.append(record.shard_id)

    healthy = sum(one.shard_id == shards[1] for one in kinesis.streams["s"].records)
    async with make_consumer() as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run, handle)
        await eventually(lambda: seen.count(shards[1]) == healthy)
        assert shards[0] not in seen
        kinesis.faults.clear()
        await eventually(lambda: len(seen) == 100)
        await consumer.close()


async def test_records_that_retention_removed_are_logged_as_errors(
    make_consumer, kinesis, put, take, group, complaints
):
    await put(range(20), keys=1)
    async with make_consumer(group=group, store="memory:") as consumer:
        await take(consumer, 5)
    kinesis.clock.advance(25 * 3600)
    await put(range(20, 30), keys=1)
    events = []
    async with make_consumer(group=group, store="memory:", until="latest", sinks=[events.append]) as consumer:
        assert [int(record.data) async for record in consumer] == list(range(20, 30))
    assert any(isinstance(event, (RecordsTrimmed, PositionLost)) for event in events)
    assert any(level == "ERROR" for level, _ in complaints())


@pytest.fixture
async def recreated(make_consumer, kinesis, put, group, client_of):
    """A group read the stream; then the stream was deleted and re-created with other records."""
    await put(range(20))
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert len([record async for record in consumer]) == 20
    async with client_of() as client:
        await client.delete_stream("s", wait=True)
        kinesis.clock.advance(10)
        await client.create_stream("s", shards=2, wait=True)
    await put(range(20, 30))


async def test_a_recreated_stream_stops_the_consumer(make_consumer, recreated, group, complaints):
    async with make_consumer(group=group, store="memory:") as consumer:
        with pytest.raises(StreamRecreated), anyio.fail_after(8):
            async for _ in consumer:
                pass
    assert any("re-created" in text for level, text in complaints() if level == "ERROR")


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_stream_that_is_missing_for_seconds_is_read_again_when_it_is_back(
    make_consumer, kinesis, put, group, client_of, complaints, ledger, eventually, shards
):
    """A live worker reads the stream. The stream is deleted, missing for 3 s, and re-created with other shards."""
    await put(range(20))
    events = []
    settings = {"group": group, "store": "memory:", "if_recreated": "restart", "sinks": [events.append]}
    async with (
        client_of() as client,
        make_consumer(**settings) as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def handle(record):
            ledger(record)

        tasks.start_soon(consumer.run, handle)
        await eventually(lambda: len(ledger.records) == 20)
        await client.delete_stream("s", wait=True)
        await eventually(lambda: any(isinstance(event, told.StreamMissing) for event in events))
        kinesis.clock.advance(10)
        await anyio.sleep(3)
        await client.create_stream("s", shards=shards, wait=True)
        await put(range(20, 40))
        await eventually(lambda: {*ledger.numbers} == {*range(40)}, 40)
        assert consumer.status().health == "ok"
        await consumer.close()
    assert any(isinstance(event, told.StreamReplaced) for event in events)
    assert any(level == "ERROR" and "the stream is missing" in text for level, text in complaints())


async def test_a_recreated_stream_is_read_from_the_start_if_configured(make_consumer, recreated, group, take):
    async with make_consumer(group=group, store="memory:", if_recreated="restart") as consumer:
        assert {int(record.data) for record in await take(consumer, 10)} == set(range(20, 30))


async def test_the_limits_of_a_shard_are_kept(put, group):
    """With AWS's limits: five calls per second and shard, and no throttling."""
    from shardline import Client, Consumer, ConsumerConfig

    with LocalKinesis(shards=1, limits=True, stream="s") as kinesis:
        where = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
        async with Client(**where) as client:
            await client.put_records("s", [(b"%d" % number, "k") for number in range(100)])
        events = []
        config = ConsumerConfig(page_max_records=20)
        async with Consumer("s", until="latest", sinks=[events.append], config=config, **where) as consumer:
            assert [int(record.data) async for record in consumer] == list(range(100))
        assert not [event for event in events if isinstance(event, ReadFailed)]


async def test_records_out_of_the_shards_range_are_counted_or_dropped(make_consumer, client_of, kinesis):
    packed = aggregate([(f"k{number}", b"%d" % number) for number in range(20)])
    async with client_of() as client:
        await client.put_record("s", packed, "k0")
    async with make_consumer(until="latest") as consumer:
        assert len([record async for record in consumer]) == 20
        outside = sum(one.out_of_range for one in consumer.status().shards)
    assert 0 < outside < 20
    async with make_consumer(until="latest", out_of_range="drop") as consumer:
        assert len([record async for record in consumer]) == 20 - outside


@pytest.mark.parametrize("data", [b"", b"\xf3\x89\x9a\xc2", b"\xf3\x89\x9a\xc2" + b"x" * 40, b'{"__CHECKPOINT__": 1}'])
async def test_user_data_may_look_like_anything(make_consumer, client_of, data):
    async with client_of() as client:
        await client.put_record("s", data or b"\0", "k")
    async with make_consumer(until="latest") as consumer:
        assert [record.data async for record in consumer] == [data or b"\0"]
