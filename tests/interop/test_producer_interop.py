"""Are our aggregates stored by a third-party server, and unpacked by a third-party reader?

The server is kinesis-local, the reader boto3 with ``aws_kinesis_agg``.
"""

import base64
import secrets

import boto3
import pytest
from aws_kinesis_agg.deaggregator import iter_deaggregate_records

import shardline.sync
from shardline import Credentials, Producer, ProducerConfig, hash_key_of

pytestmark = [pytest.mark.anyio, pytest.mark.interop]

KEYS = Credentials("AKIDEXAMPLE", "secret")
SHARDS = 4


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def client(kinesis_local):
    return boto3.client(
        "kinesis",
        endpoint_url=kinesis_local.http_url,
        region_name="us-east-1",
        aws_access_key_id=KEYS.access_key,
        aws_secret_access_key=KEYS.secret_key,
    )


@pytest.fixture
def stream(client):
    name = f"producer-{secrets.token_hex(4)}"
    client.create_stream(StreamName=name, ShardCount=SHARDS)
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 20})
    return name


@pytest.fixture
def arguments(kinesis_local):
    return {
        "endpoint_url": kinesis_local.http_url,
        "region": "us-east-1",
        "credentials": KEYS,
        "config": ProducerConfig(linger=0.02),
    }


def read(client, stream):
    """Return for every shard its id, its hash range, the number of stored records, and the contents that
    ``aws_kinesis_agg`` finds.

    The contents are (key, explicit hash key, data, whether it came from an aggregate). This reader gives a record
    without an explicit hash key the first one of its aggregate, so a hash key counts only if all members have one.
    """
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = client.get_records(ShardIterator=iterator)["Records"]
        bounds = shard["HashKeyRange"]
        first, last = int(bounds["StartingHashKey"]), int(bounds["EndingHashKey"])
        members = [
            (
                one["kinesis"]["partitionKey"],
                one["kinesis"].get("explicitHashKey"),
                base64.b64decode(one["kinesis"]["data"])
                if one["kinesis"].get("aggregated")
                else one["kinesis"]["data"],
                bool(one["kinesis"].get("aggregated")),
            )
            for one in iter_deaggregate_records(records, data_format="Boto3")
        ]
        yield shard["ShardId"], (first, last), len(records), members


def opened(client, stream):
    return {(key, data): shard_id for shard_id, _, _, members in read(client, stream) for key, _, data, _ in members}


async def test_records_of_many_keys_arrive_aggregated_each_in_its_shard(client, stream, arguments):
    wanted = {(f"user-\u00fc-{number % 37}", b"record %d" % number) for number in range(800)}
    async with Producer(stream, **arguments) as producer:
        deliveries = {pair: await producer.put(pair[1], key=pair[0]) for pair in wanted}
        receipts = {pair: await delivery for pair, delivery in deliveries.items()}
    found = opened(client, stream)
    assert set(found) == wanted
    assert all(found[pair] == receipt.shard_id for pair, receipt in receipts.items())
    stored = 0
    for _, (first, last), count, members in read(client, stream):
        stored += count
        assert all(first <= hash_key_of(key) <= last for key, _, _, _ in members), "a KCL reader keeps them"
    assert stored < 100


async def test_records_with_headers_are_read_as_those_without(client, stream, arguments):
    wanted = {(f"user-{number % 37}", b"record %d" % number) for number in range(400)}
    async with Producer(stream, **arguments) as producer:
        alone = await producer.put(b"alone", key="k", headers={"traceparent": "00-1"})
        await alone
        await producer.put_many([(key, data, {"a": key, "long": "x" * 300}) for key, data in wanted])
        assert await producer.flush() == []
    found = opened(client, stream)
    assert set(found) == wanted | {("k", b"alone")}
    assert found["k", b"alone"] == (await alone).shard_id
    assert all(aggregated for _, _, _, members in read(client, stream) for *_, aggregated in members)


async def test_explicit_hash_keys_lie_where_they_say(client, stream, arguments):
    wanted = [str((number << 122) + 5) for number in range(0, 64, 2)]
    async with Producer(stream, **arguments) as producer:
        await producer.put_many([("the same key", key.encode(), key) for key in wanted])
        assert await producer.flush() == []
    found = []
    for _, (first, last), count, members in read(client, stream):
        assert count < len(members), "they are aggregated"
        for _, hash_key, data, _ in members:
            assert hash_key == data.decode()
            assert first <= int(hash_key) <= last
            found.append(hash_key)
    assert sorted(found) == sorted(wanted)


async def test_keyless_records_lie_where_every_reader_accepts_them(client, stream, arguments):
    async with Producer(stream, **arguments) as producer:
        await producer.put_many([(None, b"%d" % number) for number in range(300)])
        assert await producer.flush() == []
        await (await producer.put(b"300"))  # alone
    found = []
    for _, (first, last), _, members in read(client, stream):
        for key, hash_key, data, aggregated in members:
            assert 1 <= len(key) <= 20
            assert not aggregated or first <= int(hash_key) <= last
            found.append(int(data))
    assert sorted(found) == list(range(301))


def test_the_blocking_producer_and_a_payload_that_is_itself_an_aggregate(client, stream, arguments):
    inner = shardline.aggregate([("a", b"1"), ("b", b"2")])
    with shardline.sync.Producer(stream, **arguments) as producer:
        producer.put(inner, key="k")
        assert producer.flush(10) == []
    assert set(opened(client, stream)) == {("k", inner)}, "P12: opened once, and no further"


async def test_a_split_under_load_loses_nothing(client, stream, arguments):
    async with Producer(stream, **arguments) as producer:
        deliveries = await producer.put_many([(f"k{number}", b"before %d" % number) for number in range(300)])
        assert await producer.flush() == []
        shard = client.list_shards(StreamName=stream)["Shards"][0]
        middle = (int(shard["HashKeyRange"]["StartingHashKey"]) + int(shard["HashKeyRange"]["EndingHashKey"])) // 2
        client.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
        client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 20})
        deliveries += await producer.put_many([(f"k{number}", b"after %d" % number) for number in range(300)])
        assert await producer.flush(20) == []
        assert len(producer.stats().lanes) == SHARDS + 1
    assert {data for _, data in opened(client, stream)} >= {b"after %d" % number for number in range(300)}
    assert all(delivery.delivered for delivery in deliveries)
