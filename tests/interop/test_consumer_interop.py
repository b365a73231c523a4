"""Does our consumer read from third-party servers, and the records of third-party writers?

kinesis-local and kinesalite serve; boto3, ``aws_kinesis_agg`` and the KPL's recorded aggregates write. LATEST is tested
only on kinesis-local: it is stored as AT_TIMESTAMP, which kinesalite does not answer while no later record has arrived.
"""

import itertools
import runpy
import secrets
import threading
from collections import defaultdict
from pathlib import Path

import anyio
import boto3
import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from tests.reading import LIMIT, check_order, numbers_of, take, wait_until

import shardline.sync
from shardline import Client, Consumer, ConsumerConfig, Credentials, Producer, ProducerConfig, hash_key_of

pytestmark = [pytest.mark.anyio, pytest.mark.interop]

KEYS = Credentials("AKIDEXAMPLE", "secret")
GOLDEN = runpy.run_path(str(Path(__file__).parents[1] / "wire" / "kpl_golden.py"))
QUICK = ConsumerConfig(
    lease_duration=3.0,
    checkpoint_interval=0.05,
    scan_interval=0.1,
    list_interval=1.0,
    idle_poll_interval=0.1,
    calls_per_second=50.0,
)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(params=["kinesis_local", "kinesalite"])
def server(request):
    return request.getfixturevalue(request.param)


only_kinesis_local = pytest.mark.parametrize("server", ["kinesis_local"], indirect=True)


@pytest.fixture
def connection(server):
    return {"endpoint_url": server.http_url, "region": "us-east-1", "credentials": KEYS}


@pytest.fixture
def boto(server):
    return boto3.client(
        "kinesis",
        endpoint_url=server.http_url,
        region_name="us-east-1",
        aws_access_key_id=KEYS.access_key,
        aws_secret_access_key=KEYS.secret_key,
    )


@pytest.fixture
async def stream(connection):
    """A stream of two shards."""
    name = f"consumer-{secrets.token_hex(4)}"
    async with Client(**connection) as client:
        await client.create_stream(name, shards=2, wait=30)
    return name


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path}/leases.db"


@pytest.fixture
def put(connection, stream):
    """Put numbered records of ten keys."""

    async def put(numbers):
        async with Client(**connection) as client:
            answer = await client.put_records(stream, [(b"%d" % number, f"key-{number % 10}") for number in numbers])
            assert not answer.failed_count

    return put


async def test_a_stream_is_read_from_its_oldest_record_to_its_newest(connection, stream, put):
    await put(range(400))
    async with Consumer(stream, config=QUICK, until="latest", **connection) as consumer:
        with anyio.fail_after(LIMIT):
            records = [record async for record in consumer]
    assert sorted(numbers_of(records)) == list(range(400))
    assert len({record.shard_id for record in records}) == 2
    check_order(records)


@only_kinesis_local
async def test_latest_is_what_is_put_from_then_on(connection, stream, put):
    await put(range(50))
    await anyio.sleep(2.5)  # LATEST is the service's time minus a second, which is known in whole seconds
    async with Consumer(stream, config=QUICK, start="LATEST", **connection) as consumer:
        await consumer.wait_ready(LIMIT)
        await put(range(100, 150))
        records = await take(consumer, 50)
    assert sorted(numbers_of(records)) == list(range(100, 150))


async def test_a_group_goes_on_where_it_was(connection, stream, put, store):
    await put(range(120))
    seen = []
    for size in (30, 50, 40):
        async with Consumer(stream, group="g", store=store, config=QUICK, **connection) as consumer:
            seen += await take(consumer, size)
    assert sorted(numbers_of(seen)) == list(range(120)), "each once"
    check_order(seen)


async def test_a_second_worker_joins_and_takes_over(connection, stream, put, store):
    seen, by_worker = [], defaultdict(list)

    def reader(name):
        async def handle(record):
            seen.append(record)
            by_worker[name].append(record)

        consumer = Consumer(stream, group="g", store=store, config=QUICK, worker_id=name, **connection)
        return consumer, handle

    async with anyio.create_task_group() as tasks:
        first, handle = reader("first")
        await first.start()
        tasks.start_soon(first.run, handle)
        await put(range(100))
        await wait_until(lambda: len(seen) >= 100)
        second, handle = reader("second")
        await second.start()
        tasks.start_soon(second.run, handle)
        await wait_until(lambda: [shard.state for shard in second.status().shards].count("reading") == 1)
        await put(range(100, 200))
        await wait_until(lambda: len(seen) >= 200)
        assert by_worker["second"], "they share"
        await first.close()
        await put(range(200, 300))
        await wait_until(lambda: len(seen) >= 300)
        await second.close()
    assert sorted(numbers_of(seen)) == list(range(300)), "each once: it was handed over"
    check_order(seen)


async def test_a_worker_that_vanished_is_replaced_and_nothing_is_skipped(connection, stream, put, store):
    """The worker leaves by an exception in the middle of its work: the records that it had not finished come again."""
    await put(range(60))
    seen, rest = [], []

    async def crash():
        async with Consumer(stream, group="g", store=store, config=QUICK, **connection) as consumer:
            seen.extend(numbers_of(await take(consumer, 20)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await crash()
    async with Consumer(stream, group="g", store=store, config=QUICK, **connection) as consumer:
        while {*seen[:-1], *rest} != set(range(60)):
            rest += numbers_of(await take(consumer, 1))
    assert seen[-1] in rest, "it was in hand"


@pytest.mark.parametrize(
    ("server", "start"),
    [("kinesis_local", "TRIM_HORIZON"), ("kinesis_local", "LATEST"), ("kinesalite", "TRIM_HORIZON")],
    indirect=["server"],
)
async def test_a_split_and_a_merge_in_the_middle(connection, stream, put, store, start):
    seen = []

    async def handle(record):
        seen.append(record)

    async def open_shards():
        shards = [shard for shard in await client.list_shards(stream) if shard.is_open]
        return [shard.shard_id for shard in sorted(shards, key=lambda shard: shard.hash_range.start)]

    consumer = Consumer(stream, group="g", store=store, start=start, config=QUICK, **connection)
    async with Client(**connection) as client, consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run, handle)
        await consumer.wait_ready(LIMIT)
        await put(range(100))
        await client.split_shard(stream, (await open_shards())[0], wait=30)
        await put(range(100, 200))
        await client.merge_shards(stream, *(await open_shards())[1:], wait=30)
        await put(range(200, 300))
        await wait_until(lambda: len(seen) >= 300)
        await consumer.close()
        parents = {shard.shard_id: shard.parent_ids for shard in await client.list_shards(stream)}
    assert sorted(numbers_of(seen)) == list(range(300)), "each once"
    check_order(seen)
    places = defaultdict(list)
    for place, record in enumerate(seen):
        places[record.shard_id].append(place)
    assert len(places) == 5, "of all generations"
    for shard_id, mine in places.items():
        assert all(max(places[parent]) < min(mine) for parent in parents[shard_id]), "parents first"


async def test_aggregates_of_our_producer(connection, stream):
    wanted = [(f"user-{number % 7}", b"%d" % number) for number in range(500)]
    async with Producer(stream, config=ProducerConfig(linger=0.02), **connection) as producer:
        await producer.put_many(wanted)
        assert await producer.flush(LIMIT) == []
    async with Consumer(stream, config=QUICK, **connection) as consumer:
        records = await take(consumer, 500)
    assert sorted((record.key, record.data) for record in records) == sorted(wanted)
    assert len({record.sequence_number for record in records}) < 100, "they were aggregated"
    check_order(records)


async def test_a_group_stops_and_goes_on_inside_an_aggregate(connection, stream, store):
    async with Producer(stream, config=ProducerConfig(linger=0.5), **connection) as producer:
        await producer.put_many([("one key", b"%d" % number) for number in range(90)])
        assert await producer.flush(LIMIT) == []
    seen = []
    for size in (7, 13, 70):
        async with Consumer(stream, group="g", store=store, config=QUICK, **connection) as consumer:
            seen += await take(consumer, size)
    assert numbers_of(seen) == list(range(90))
    assert len({record.sequence_number for record in seen}) < 10, "most of them share one entry"


async def test_aggregates_of_aws_kinesis_agg(boto, connection, stream):
    """``aws_kinesis_agg`` ignores shards: its aggregates mix keys of all of them, and every record is still delivered."""
    wanted = [(f"user-{number}", b"record %d" % number) for number in range(60)]
    aggregator = RecordAggregator(4_000)
    for key, data in wanted:
        if full := aggregator.add_user_record(key, data):
            send(boto, stream, full)
    send(boto, stream, aggregator.clear_and_get())
    async with Consumer(stream, config=QUICK, **connection) as consumer:
        records = await take(consumer, 60)
        misplaced = sum(shard.out_of_range for shard in consumer.status().shards)
    assert sorted((record.key, record.data) for record in records) == sorted(wanted)
    assert all(record.aggregated for record in records)
    assert misplaced > 0, "they are counted"


def send(boto, stream, full):
    key, _, data = full.get_contents()
    boto.put_record(StreamName=stream, PartitionKey=key, Data=data)


@pytest.mark.parametrize("name", ["WITH_EXPLICIT_HASH_KEYS", "WITHOUT_EXPLICIT_HASH_KEYS", "SHARED_KEYS"])
async def test_aggregates_of_the_kpl(boto, connection, stream, name):
    blob, members = GOLDEN[name]
    boto.put_record(StreamName=stream, PartitionKey="a", Data=blob)
    async with Consumer(stream, config=QUICK, **connection) as consumer:
        records = await take(consumer, len(members))
    assert [(record.key, record.data, record.explicit_hash_key) for record in records] == members
    assert [record.sub_sequence for record in records] == list(range(len(members)))


async def test_misplaced_records_are_dropped_one_by_one_if_one_wants_that(boto, connection, stream):
    blob, members = GOLDEN["WITH_EXPLICIT_HASH_KEYS"]
    boto.put_record(StreamName=stream, PartitionKey="a", ExplicitHashKey="0", Data=blob)
    boto.put_record(StreamName=stream, PartitionKey="a", ExplicitHashKey="0", Data=b"the last")
    lower = [data for _, data, hash_key in members if int(hash_key) < 2**127]
    assert 0 < len(lower) < len(members)
    config = ConsumerConfig(out_of_range="drop", idle_poll_interval=0.1)
    async with Consumer(stream, config=config, **connection) as consumer:
        records = await take(consumer, len(lower) + 1)
    assert [record.data for record in records] == [*lower, b"the last"]


def put_with_boto(boto, stream, numbers):
    entries = [{"Data": b"%d" % number, "PartitionKey": f"key-{number % 10}"} for number in numbers]
    assert boto.put_records(StreamName=stream, Records=entries)["FailedRecordCount"] == 0


def make_stream(boto):
    name = f"blocking-{secrets.token_hex(4)}"
    boto.create_stream(StreamName=name, ShardCount=2)
    boto.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    return name


def test_the_blocking_consumer(boto, connection, store):
    stream = make_stream(boto)
    put_with_boto(boto, stream, range(100))
    settings = {"group": "g", "store": store, "config": QUICK, **connection}
    with shardline.sync.Consumer(stream, **settings) as consumer:
        seen = list(itertools.islice(consumer, 40))
    with shardline.sync.Consumer(stream, **settings) as consumer:
        for batch in consumer.batches(max_records=25):
            seen += batch
            if len(seen) >= 100:
                break
    assert sorted(numbers_of(seen)) == list(range(100)), "each once"
    check_order(seen)


def test_the_blocking_consumer_runs_handlers_through_a_split(boto, connection, store):
    stream = make_stream(boto)
    seen, done = [], threading.Event()

    def handle(record):
        seen.append(record)
        if len(seen) == 120:
            done.set()

    consumer = shardline.sync.Consumer(stream, group="g", store=store, config=QUICK, **connection)
    with consumer:
        runner = threading.Thread(target=consumer.run, args=(handle,))
        runner.start()
        try:
            put_with_boto(boto, stream, range(60))
            boto.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126 + 1))
            boto.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
            put_with_boto(boto, stream, range(60, 120))
            assert done.wait(LIMIT)
        finally:
            consumer.close()
            runner.join(LIMIT)
    assert sorted(numbers_of(seen)) == list(range(120)), "each once"
    assert any(hash_key_of(record.key) < 2**127 and record.shard_id > "shardId-000000000001" for record in seen)
    check_order(seen)


@only_kinesis_local
async def test_fan_out_reads_every_record_once_and_in_order(connection):
    """Its subscriptions come over cleartext HTTP/2, without initial-response, and with ``"ChildShards": null``.

    It finds no registered consumer of a stream whose name has "consumer" in it. And it never ends the subscription to a
    closed shard, so no reader of it can follow a reshard.
    """
    stream = f"pushed-{secrets.token_hex(4)}"
    records = []
    async with Client(**connection) as client:
        await client.create_stream(stream, shards=2, wait=30)
        await client.put_records(stream, [(b"%d" % number, f"key-{number % 7}") for number in range(60)])
        async with Consumer(stream, fan_out="reader", config=QUICK, **connection) as consumer:
            records += await take(consumer, 60)
            await client.put_records(stream, [(b"%d" % number, f"key-{number % 7}") for number in range(60, 120)])
            records += await take(consumer, 60)
            assert {shard.read_by for shard in consumer.status().shards} == {"fan-out"}
    assert sorted(numbers_of(records)) == list(range(120))
    check_order(records)
