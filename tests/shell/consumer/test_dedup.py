"""Does a record that a retry stored twice reach the user once, on every API, through hand-overs, crashes and reshards?"""

import pytest
from tests.shell.blocking import EVERY_API, BlockingProducer, kind_for
from tests.shell.consumer.test_resharding import split

from shardline import Client, ConsumerConfig, Producer, ProducerConfig, UsageError
from shardline.codec.aggregation import split_columns
from shardline.events import RepeatsDropped

pytestmark = pytest.mark.anyio

COUNT = 40


@pytest.fixture
def make_producer(connection, request):
    kind = kind_for(request, Producer, BlockingProducer)

    def make(**settings):
        config = ProducerConfig(linger=0.01, retry_backoff=0.05, **settings)
        return kind("s", config=config, dedup=True, **connection)

    return make


async def put_twice(kinesis, producer, numbers, **options):
    """Put records whose first copies are stored although their responses are lost."""
    kinesis.faults.reset("after", operation="PutRecords", count=2)
    deliveries = await producer.put_many([(f"k{number % 7}", b"%d" % number, *options.values()) for number in numbers])
    for delivery in deliveries:
        await delivery


def stored(kinesis):
    """The payloads in the stream, with their copies."""
    blobs = [record.data for record in kinesis.streams["s"].records]
    return [data for blob in blobs for data in split_columns(blob).payloads]


async def read(consumer):
    return [(record.data, dict(record.headers)) async for record in consumer]


@EVERY_API
async def test_a_record_that_was_stored_twice_is_handed_out_once(
    kinesis, make_producer, make_consumer, group, eventually
):
    events = []
    async with make_producer() as producer:
        await put_twice(kinesis, producer, range(COUNT), headers={"a": "b"})
    copies = len(stored(kinesis)) - COUNT
    assert copies > 0
    settings = {"group": group, "store": "memory:", "until": "latest"}
    async with make_consumer(dedup=True, sinks=[events.append], **settings) as consumer:
        found = await read(consumer)
        assert consumer.status().totals.records_repeated == copies
    assert sorted(found) == sorted((b"%d" % number, {"a": "b"}) for number in range(COUNT))
    async with make_consumer(group=f"{group}-2", store="memory:", until="latest") as plain:
        assert len(await read(plain)) == COUNT + copies
    await eventually(lambda: sum(event.records for event in events if isinstance(event, RepeatsDropped)) == copies)


async def test_the_next_owner_knows_what_was_handled(kinesis, make_producer, make_consumer, group, store):
    """The first copies are handled and committed by one worker, and the second ones read by another."""
    kinesis.faults.reset("after", operation="PutRecords", count=1)
    settings = {"group": group, "store": store, "until": "latest", "dedup": True}
    async with make_producer(retry_backoff_max=5.0) as producer:
        deliveries = [producer.put_nowait(b"%d" % number, key="k") for number in range(COUNT)]
        for delivery in deliveries:
            await delivery
    copies = kinesis.streams["s"].records
    assert len(copies) == 2
    seen = []
    async with make_consumer(**settings) as first:
        async for record in first:
            seen.append(record.data)
            if len(seen) == COUNT // 2:
                break
    async with make_consumer(**settings) as second:
        seen += [data for data, _ in await read(second)]
    assert sorted(seen) == sorted(b"%d" % number for number in range(COUNT))
    async with make_consumer(**settings) as third:
        assert await read(third) == []


async def test_a_child_shard_knows_what_was_handled_in_its_parent(
    kinesis, connection, make_producer, make_consumer, group
):
    settings = {"group": group, "store": "memory:", "until": "latest", "dedup": True}
    async with make_producer() as producer:
        await put_twice(kinesis, producer, range(COUNT))
    blobs = [(record.shard_id, record.data, record.key) for record in kinesis.streams["s"].records]
    async with Client(**connection) as client:
        await split(client, kinesis)
        await split(client, kinesis, 2)
        # Late copies of all aggregates arrive in the children.
        for _, data, key in blobs:
            await client.put_records("s", [(data, key)])
    async with make_consumer(**settings) as consumer:
        found = [data for data, _ in await read(consumer)]
    assert sorted(found) == sorted(b"%d" % number for number in range(COUNT))


@EVERY_API
async def test_a_stream_that_gets_no_headers_ends_a_producer_with_dedup(kinesis, connection, make_producer):
    async with Client(**connection) as client:
        members = {"StreamName": "auto", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
        await client.call("CreateStream", members | {"RecordDistributionStrategy": "AUTO"})
    kind = type(make_producer())
    async with kind("auto", dedup=True, **connection) as producer:
        delivery = await producer.put(b"x", key="k")
        outcome = await delivery.outcome()
    assert not outcome.delivered
    assert kinesis.streams["auto"].records == []


async def test_the_argument_overrides_the_setting(connection):
    with pytest.raises(UsageError, match=r"dedup=True stamps each record in a header, and .*aggregation=False"):
        Producer("s", config=ProducerConfig(aggregation=False), dedup=True, **connection)
    with pytest.raises(UsageError, match="dedup must be True or False, not 'yes'"):
        Producer("s", dedup="yes", **connection)
    assert ConsumerConfig().dedup is ProducerConfig().dedup is False


async def test_a_record_too_large_for_its_stamp_is_refused(make_producer, kinesis):
    limit = 1024 * 1024
    async with make_producer(record_max_bytes=limit) as producer:
        with pytest.raises(UsageError, match=r"more, for its stamp \(dedup=True\)"):
            await producer.put(bytes(limit - 1), key="k")
        with pytest.raises(UsageError, match=r"record 0: .* for its headers"):
            await producer.put_many([("k", bytes(limit - 1), {"a": "b"})])
        # Exactly as large as the limit: the key, and an aggregate of one record.
        overhead = limit - max(size for size in range(limit - 200, limit) if _fits(producer, bytes(size)))
        await (await producer.put(bytes(limit - overhead), key="k"))
    (record,) = kinesis.streams["s"].records
    assert len(record.data) + len(record.key) == limit


def _fits(producer, data):
    try:
        producer._make_delivery(data, "k", None, None)
    except UsageError:
        return False
    return True
