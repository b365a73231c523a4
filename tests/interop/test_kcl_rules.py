"""Does a reader that follows the Java KCL's rules get every record that our producer delivered?

The rules are implemented here again, from the KCL and not from our code: an aggregate has its magic bytes and a
matching MD5 digest, or it is a plain record. If one of its records belongs outside the shard that it was read from, by
its explicit hash key or the MD5 of its partition key, the KCL drops all of them (P4 of the architecture).
"""

import hashlib

import boto3
import pytest
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from aws_kinesis_agg.messages_pb2 import AggregatedRecord
from google.protobuf.message import DecodeError

import shardline
from shardline import Client, Credentials, Producer, ProducerConfig
from shardline.testing import LocalKinesis

pytestmark = [pytest.mark.anyio, pytest.mark.interop]

MAGIC = b"\xf3\x89\x9a\xc2"
DIGEST_SIZE = 16


@pytest.fixture
def anyio_backend():
    return "asyncio"


def hash_of(key):
    return int.from_bytes(hashlib.md5(key.encode()).digest())


def opened_by_the_kcl(data, key, first, last):
    """Return the user records (key, data) that the KCL hands to its application for one record of a shard [first,
    last].
    """
    plain = [(key, data)]
    body, digest = data[len(MAGIC) : -DIGEST_SIZE], data[-DIGEST_SIZE:]
    if not data.startswith(MAGIC) or len(data) <= len(MAGIC) + DIGEST_SIZE or hashlib.md5(body).digest() != digest:
        return plain
    try:
        message = AggregatedRecord.FromString(body)
    except DecodeError:
        return plain
    found = []
    for one in message.records:
        key = message.partition_key_table[one.partition_key_index]
        explicit = one.HasField("explicit_hash_key_index")
        place = int(message.explicit_hash_key_table[one.explicit_hash_key_index]) if explicit else hash_of(key)
        if not first <= place <= last:
            return []
        found.append((key, one.data))
    return found


def read_all(client, stream):
    """Return the records that a KCL application would get, and the number of entries in the stream, over all shards."""
    handed, entries, other = [], 0, []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        bounds = shard["HashKeyRange"]
        first, last = int(bounds["StartingHashKey"]), int(bounds["EndingHashKey"])
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            page = client.get_records(ShardIterator=iterator)
            for record in page["Records"]:
                handed += opened_by_the_kcl(record["Data"], record["PartitionKey"], first, last)
            entries += len(page["Records"])
            other += iter_deaggregate_records(page["Records"], data_format="Boto3")
            iterator = page.get("NextShardIterator") if page["Records"] or page["MillisBehindLatest"] else None
    return handed, entries, other


@pytest.fixture
def local():
    with LocalKinesis(shards=2, limits=False, stream="orders") as kinesis:
        yield kinesis


@pytest.fixture(params=["embedded", "kinesis_local"])
def server(request, stream_name):
    """Our connection, the third-party client, and a stream of two shards."""
    if request.param == "embedded":
        local = request.getfixturevalue("local")
        local.create_stream(stream_name, shards=2)
        url, keys = local.endpoint_url, local.credentials
    else:
        url, keys = request.getfixturevalue("kinesis_local").http_url, Credentials("AKIDEXAMPLE", "secret")
    client = boto3.client(
        "kinesis",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
    )
    if request.param != "embedded":
        client.create_stream(StreamName=stream_name, ShardCount=2)
        client.get_waiter("stream_exists").wait(StreamName=stream_name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    return {"endpoint_url": url, "region": "us-east-1", "credentials": keys}, client


def test_the_reader_drops_an_aggregate_that_mixes_shards():
    """The control: a reader that drops nothing would prove nothing."""
    low, high = ("low", b"1", "5"), ("high", b"2", str(2**127))
    data = shardline.aggregate([low, high])
    assert opened_by_the_kcl(data, "low", 0, 2**127 - 1) == []
    assert opened_by_the_kcl(data, "low", 0, 2**128 - 1) == [("low", b"1"), ("high", b"2")]
    assert opened_by_the_kcl(shardline.aggregate([low]), "low", 0, 2**127 - 1) == [("low", b"1")]
    by_key = shardline.aggregate([("a", b"1"), ("b", b"2")])
    assert opened_by_the_kcl(by_key, "a", hash_of("a"), hash_of("a")) == []
    assert opened_by_the_kcl(by_key, "a", 0, 2**128 - 1) == [("a", b"1"), ("b", b"2")]


def test_the_reader_takes_what_is_no_aggregate_as_it_is():
    broken = bytearray(shardline.aggregate([("a", b"1")]))
    broken[-1] ^= 1
    for data in (b"plain", MAGIC, MAGIC + bytes(16), bytes(broken)):
        assert opened_by_the_kcl(data, "k", 0, 0) == [("k", data)]


async def test_every_delivered_record_is_handed_out(server, stream_name):
    connection, client = server
    wanted = [(f"user-{number % 41}", b"%d" % number) for number in range(1_000)]
    wanted += [("spread", b"%d" % number, str((number << 118) + 3)) for number in range(1_000)]
    async with Producer(stream_name, config=ProducerConfig(linger=0.05), **connection) as producer:
        await producer.put_many(wanted)
        assert await producer.flush(30) == []
    handed, entries, other = read_all(client, stream_name)
    assert sorted(handed) == sorted((key, data) for key, data, *_ in wanted)
    assert entries < 200, "they were aggregated"
    assert len(other) == len(wanted), "aws_kinesis_agg finds them all, too"


async def test_every_delivered_record_is_handed_out_though_the_stream_was_resharded(server, stream_name):
    """Splits and merges that the producer does not know of: its aggregates land in shards where they do not belong."""
    connection, client = server
    delivered = set()
    async with (
        Client(**connection) as control,
        Producer(stream_name, config=ProducerConfig(linger=0.02), **connection) as producer,
    ):
        for turn in range(6):
            rows = [(f"user-{number % 97}", b"%d/%d" % (turn, number)) for number in range(300)]
            deliveries = await producer.put_many(rows)
            shards = [shard for shard in await control.list_shards(stream_name) if shard.is_open]
            shards.sort(key=lambda shard: shard.hash_range.start)
            if turn % 2 == 0:
                await control.split_shard(stream_name, shards[turn % 4 // 2].shard_id, wait=30)
            else:
                await control.merge_shards(stream_name, shards[0].shard_id, shards[1].shard_id, wait=30)
            for row, delivery in zip(rows, deliveries, strict=True):
                await delivery
                delivered.add(row)
    handed, entries, _ = read_all(client, stream_name)
    assert len(delivered) == 1_800
    assert delivered - set(handed) == set(), "nothing that was confirmed is lost to the KCL"
    assert entries < 400, "they were aggregated"
