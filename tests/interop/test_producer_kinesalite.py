"""Does the producer survive reshards under load on kinesalite, whose ListShards also lists closed shards?

Delivered records must be readable by the KCL's rule, which drops an aggregate if one of its records is out of range.
"""

import asyncio
import secrets
from collections import Counter

import boto3
import pytest
from tests.aggregates import split_aggregate

from shardline import Credentials, Producer, ProducerConfig, hash_key_of

pytestmark = pytest.mark.interop

KEYS = Credentials("AKIDEXAMPLE", "secret")
RECORDS = 1_500


@pytest.fixture
def client(kinesalite):
    return boto3.client(
        "kinesis",
        endpoint_url=kinesalite.http_url,
        region_name="us-east-1",
        aws_access_key_id=KEYS.access_key,
        aws_secret_access_key=KEYS.secret_key,
    )


def wait_until_active(client, stream):
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 20})


def create(client, stream, shards):
    client.create_stream(StreamName=stream, ShardCount=shards)
    wait_until_active(client, stream)


@pytest.fixture
def stream(client):
    name = f"reshards-{secrets.token_hex(4)}"
    create(client, name, 2)
    return name


def open_shards(client, stream):
    shards = client.list_shards(StreamName=stream)["Shards"]
    found = [shard for shard in shards if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]
    return sorted(found, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))


def split(client, stream):
    bounds = open_shards(client, stream)[0]["HashKeyRange"]
    middle = (int(bounds["StartingHashKey"]) + int(bounds["EndingHashKey"])) // 2
    shard_id = open_shards(client, stream)[0]["ShardId"]
    client.split_shard(StreamName=stream, ShardToSplit=shard_id, NewStartingHashKey=str(middle))


def merge(client, stream):
    first, second, *_ = open_shards(client, stream)
    client.merge_shards(StreamName=stream, ShardToMerge=first["ShardId"], AdjacentShardToMerge=second["ShardId"])


def read(client, stream):
    """Return how often each payload was stored, where, and which copies a KCL reader accepts."""
    stored, readable = Counter(), []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        bounds = shard["HashKeyRange"]
        held = range(int(bounds["StartingHashKey"]), int(bounds["EndingHashKey"]) + 1)
        for record in client.get_records(ShardIterator=iterator, Limit=10_000)["Records"]:
            inner = split_aggregate(record["Data"])
            found = [(None, record["Data"])] if inner is None else [(one.key, one.data) for one in inner]
            stored.update(data for _, data in found)
            if all(key is None or hash_key_of(key) in held for key, _ in found):
                readable += [(int(record["SequenceNumber"]), place, data) for place, (_, data) in enumerate(found)]
    return stored, sorted(readable)


@pytest.mark.parametrize("ordered", [False, True])
def test_reshards_under_load_lose_nothing_and_store_no_record_more_than_three_times(
    kinesalite, client, stream, ordered
):
    async def put_and_reshard():
        config = ProducerConfig(linger=0.02, ordered=ordered, record_ttl=20.0)
        arguments = {"endpoint_url": kinesalite.http_url, "region": "us-east-1", "credentials": KEYS, "config": config}
        deliveries = []
        async with Producer(stream, **arguments) as producer:

            async def put():
                for number in range(RECORDS):
                    deliveries.append(await producer.put(b"%d" % number, key=f"key {number % 31}"))
                    if number % 5 == 0:
                        await asyncio.sleep(0.02)

            async def reshard():
                for change in (split, merge, split):
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(change, client, stream)
                    await asyncio.to_thread(wait_until_active, client, stream)

            await asyncio.gather(put(), reshard())
            return [await delivery.outcome() for delivery in deliveries]

    outcomes = asyncio.run(put_and_reshard())
    assert all(outcome.delivered for outcome in outcomes)
    assert len({outcome.shard_id for outcome in outcomes}) >= 4  # the reshards happened under load
    stored, readable = read(client, stream)
    firsts = {data: (number, place) for number, place, data in reversed(readable)}
    assert {b"%d" % number for number in range(RECORDS)} <= firsts.keys()
    assert max(stored.values()) <= 3
    if ordered:
        for key in range(31):
            places = [firsts[b"%d" % number] for number in range(key, RECORDS, 31)]
            assert places == sorted(places), "P9"
