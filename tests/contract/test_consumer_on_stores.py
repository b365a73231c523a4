"""Does a real consumer work on every store: resume, share, follow a split, and continue after a crash?

The stores are real: a SQLite file, Valkey, and DynamoDB twice (dynalite and ministack). Kinesis is the embedded server.
"""

import time
from collections import defaultdict
from dataclasses import replace

import anyio
import pytest
from tests.reading import LIMIT, check_dedup_window, check_order, numbers_of, take, wait_until

import shardline.sync
from shardline import Client, Consumer, ConsumerConfig, StoreError, UsageError
from shardline.core.consumer.consumer_events import LeaseLost, WorkerIdShared
from shardline.testing import LocalKinesis

pytestmark = [pytest.mark.anyio, pytest.mark.interop]

QUICK = ConsumerConfig(
    lease_duration=3.0,
    checkpoint_interval=0.1,
    scan_interval=0.1,
    list_interval=1.0,
    idle_poll_interval=0.1,
    calls_per_second=100.0,
)
EVERY_STORE = ["sqlite", "redis", "dynalite", "ministack"]


@pytest.fixture(params=EVERY_STORE)
def store(request, tmp_path, unique):
    """The URL of an empty store."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases.db"
    if request.param == "redis":
        return f"redis://127.0.0.1:{request.getfixturevalue('valkey_port')}/0"
    endpoint = request.getfixturevalue(f"{request.param}_url")
    return f"dynamodb://{unique}?region=us-east-1&endpoint_url={endpoint}"


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=2, limits=False, stream="orders") as running:
        yield running


@pytest.fixture
def connection(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}


@pytest.fixture
def make(connection, store, unique):
    """Make a worker of this test's group."""

    def make(name, **settings):
        return Consumer(
            "orders", group=unique, store=store, worker_id=name, **({"config": QUICK} | connection | settings)
        )

    return make


@pytest.fixture
def put(connection):
    async def put(numbers):
        async with Client(**connection) as client:
            answer = await client.put_records("orders", [(b"%d" % number, f"key-{number % 10}") for number in numbers])
            assert not answer.failed_count

    return put


async def test_a_group_goes_on_where_it_was(make, put):
    await put(range(100))
    seen = []
    for turn, size in enumerate((30, 30, 40)):
        async with make(f"worker-{turn}") as consumer:
            seen += await take(consumer, size)
    assert sorted(numbers_of(seen)) == list(range(100)), "each once"
    check_order(seen)


@pytest.mark.parametrize("store", ["memory", *EVERY_STORE], indirect=True)
async def test_the_dedup_window_passes_to_the_next_owner_and_to_children(make, connection):
    await check_dedup_window(make, connection, "shardId-000000000001")


async def test_a_second_worker_shares_and_takes_over_through_a_split(make, put, connection):
    seen, by_worker = [], defaultdict(list)

    def handler(name):
        async def handle(record):
            seen.append(record)
            by_worker[name].append(record)

        return handle

    async with Client(**connection) as client, anyio.create_task_group() as tasks:
        first, second = make("first"), make("second")
        await first.start()
        tasks.start_soon(first.run, handler("first"))
        await put(range(60))
        await wait_until(lambda: len(seen) >= 60)
        await second.start()
        tasks.start_soon(second.run, handler("second"))
        await wait_until(lambda: [shard.state for shard in second.status().shards].count("reading") == 1)
        await put(range(60, 120))
        await wait_until(lambda: len(seen) >= 120)
        assert by_worker["second"], "they share"
        await client.split_shard("orders", "shardId-000000000000", wait=30)
        await put(range(120, 180))
        await wait_until(lambda: len(seen) >= 180)
        await first.close()
        await put(range(180, 240))
        await wait_until(lambda: len(seen) >= 240)
        await second.close()
    assert sorted(numbers_of(seen)) == list(range(240)), "each once"
    check_order(seen)


async def test_what_a_worker_had_not_asked_past_comes_again_after_a_crash(make, put):
    await put(range(40))
    seen, rest = [], []

    async def crash():
        async with make("crashing") as consumer:
            seen.extend(numbers_of(await take(consumer, 15)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await crash()
    async with make("next") as consumer:
        while {*seen[:-1], *rest} != set(range(40)):
            rest += numbers_of(await take(consumer, 1))
    assert seen[-1] in rest, "it was in hand"


def test_the_blocking_consumer(kinesis, connection, store, unique):
    with shardline.sync.Producer("orders", **connection) as producer:
        producer.put_many([("one key", b"%d" % number) for number in range(50)])
        assert producer.flush(LIMIT) == []
    settings = {"group": unique, "store": store, "config": QUICK, "until": "latest", **connection}
    seen = []
    with shardline.sync.Consumer("orders", **settings) as consumer:
        for record in consumer:
            seen.append(int(record.data))
            if len(seen) == 20:
                break
    with shardline.sync.Consumer("orders", **settings) as consumer:
        seen += [int(record.data) for record in consumer]
    assert seen == list(range(50)), "inside an aggregate, too"


@pytest.mark.parametrize("store", ["dynalite", "ministack"], indirect=True)
async def test_a_table_serves_one_group(make, connection, store, put):
    await put(range(5))
    async with make("first") as consumer:
        await take(consumer, 5)
    other = Consumer("orders", group="another", store=store, config=QUICK, **connection)
    with pytest.raises(StoreError, match="another"):
        async with other:
            await take(other, 1)


# ---- who holds a lease

SHORT, LONG = replace(QUICK, lease_duration=1.0), replace(QUICK, lease_duration=6.0)


async def test_two_live_processes_under_one_name_leave_each_others_shards_alone_and_say_so(make, put, caplog):
    handled, events = defaultdict(list), []

    def handler(name):
        async def handle(record):
            handled[name].append(int(record.data))

        return handle

    async with anyio.create_task_group() as tasks:
        first, second = make("twin", config=SHORT), make("twin", config=SHORT, sinks=[events.append])
        await first.start()
        tasks.start_soon(first.run, handler("first"))
        await first.wait_ready(timeout=LIMIT)
        await second.start()
        tasks.start_soon(second.run, handler("second"))
        for number in range(10):
            await put([number])
            await anyio.sleep(0.05)
        await wait_until(lambda: any(isinstance(event, WorkerIdShared) for event in events))
        await wait_until(lambda: len(handled["first"]) >= 10)
        await second.close()
        await put([10])
        await wait_until(lambda: len(handled["first"]) >= 11)
        await first.close()
    assert sorted(handled["first"]) == list(range(11)), "each once"
    assert handled["second"] == []
    (line,) = [line for line in caplog.records if "another live process uses the worker_id 'twin'" in line.message]
    assert line.levelname == "ERROR"
    assert "give each process its own worker_id" in line.message


async def test_a_token_grows_through_every_change_of_hands_and_is_a_time(make, put):
    began = time.time() * 1000
    tokens = []
    for turn in range(3):
        await put(range(2 * turn, 2 * turn + 2))
        async with make("restarted") as consumer:
            tokens.append(min(record.lease.token for record in await take(consumer, 1)))
    assert tokens == sorted(set(tokens))
    assert all(began - 2_000 <= token <= time.time() * 1000 + 2_000 for token in tokens)


async def test_a_worker_of_another_lease_duration_keeps_its_leases(make):
    events = []
    async with make("slow", config=LONG, sinks=[events.append]) as slow:
        await slow.wait_ready(timeout=LIMIT)
        async with make("quick", config=SHORT) as quick:
            await wait_until(lambda: [shard.state for shard in quick.status().shards].count("reading") == 1)
            await anyio.sleep(2.5 * SHORT.lease_duration)
    assert [event for event in events if isinstance(event, LeaseLost)] == []


async def test_several_streams_on_every_store(connection, store, kinesis, unique):
    kinesis.create_stream("payments", 1)
    kinesis.create_stream("audit", 1)
    streams = ["orders", "payments", "audit"]
    arguments = {"group": unique, "store": store, "config": QUICK, **connection}
    async with Client(**connection) as client:
        for stream in streams:
            await client.put_records(stream, [(b"%d" % number, f"k{number}") for number in range(20)])
    seen = []
    async with Consumer(streams[:2], **arguments) as consumer:
        with anyio.fail_after(LIMIT):
            async for record in consumer:
                seen.append((record.stream, record.data))
                if len(seen) == 20:
                    await consumer.add_stream("audit")
                if len(seen) == 60:
                    break
    assert len({*seen}) == 60
    async with Consumer(streams, **arguments, until="latest") as consumer:
        with anyio.fail_after(LIMIT):
            assert [record async for record in consumer] == [], "the positions of all streams are kept"
        assert {shard.stream for shard in consumer.status().shards} == {*streams}


async def test_the_rows_of_one_stream_and_of_several_do_not_mix_on_dynamodb(connection, store, kinesis, unique):
    kinesis.create_stream("payments", 1)
    if not store.startswith("dynamodb:"):
        async with Consumer("orders", group=unique, store=store, config=QUICK, **connection) as consumer:
            await consumer.add_stream("payments")
            assert consumer.status().streams == ("orders", "payments")
        return
    async with Consumer("orders", group=unique, store=store, config=QUICK, **connection) as consumer:
        await consumer.wait_ready(LIMIT)
        with pytest.raises(UsageError, match="has the rows of one stream"):
            await consumer.add_stream("payments")
    several = Consumer(["orders"], group=unique, store=store, config=QUICK, **connection)
    with pytest.raises(StoreError, match="an application of one stream"):
        await several.start()
    config = replace(QUICK, if_recreated="restart")
    with pytest.raises(UsageError, match="if_recreated"):
        Consumer(["orders"], group=unique, store=store, config=config, **connection)
