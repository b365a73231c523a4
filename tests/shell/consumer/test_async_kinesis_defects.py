"""Does a consumer have any of the defects that async-kinesis has? One test each, named after what went wrong there."""

import json
import time
from dataclasses import replace

import anyio
import pytest

from shardline import Consumer, ConsumerConfig, FailurePolicy, UsageError
from shardline.adapters.leases.memory import MemoryLeases
from shardline.core.consumer.events import LeaseLost
from shardline.core.failures import Failure, FailureKind
from shardline.core.leases import CommitCheckpoint, Refused, ReleaseLease, RenewLease
from shardline.model.lease import Checkpoint
from shardline.model.position import at_sequence_number
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio


# ---- loss


async def test_c1_a_slow_handler_loses_no_records(make_consumer, put, group):
    """Readers wait for room: nothing that was read is abandoned, however long the user takes."""
    await put(range(60), keys=1)
    seen = []
    async with make_consumer(group=group, store="memory:", until="latest", page_max_records=5) as consumer:
        async for record in consumer:
            if record.data == b"3":
                await anyio.sleep(1.2)  # longer than the lease; the prefetch fills meanwhile
            seen.append(int(record.data))
    assert seen == list(range(60))


async def test_c2_a_poison_record_stops_no_other_record_and_is_delivered_once(make_consumer, put, client_of):
    async with client_of() as client:
        await client.put_records("s", [(b"1", "k"), (b"no json", "k"), (b"3", "k")])
        await client.put_records("s", [(b"%d" % number, f"k{number}") for number in range(10, 40)])
    values, poison = [], []
    async with make_consumer(until="latest", deserializer=json.loads) as consumer:
        async for record in consumer:
            try:
                values.append(record.value)
            except ValueError:
                poison.append(record.data)
    assert poison == [b"no json"]
    assert sorted(values) == [1, 3, *range(10, 40)]


async def test_e2_latest_loses_nothing_between_a_split_and_its_discovery(
    make_consumer, put, kinesis, client_of, eventually
):
    seen = []

    async def handle(record):
        seen.append(int(record.data))

    async with make_consumer(start="LATEST", list_interval=3600.0) as consumer, anyio.create_task_group() as tasks:
        await consumer.wait_ready()
        async with client_of() as client:
            for shard in kinesis.streams["s"].shards:
                await client.split_shard("s", shard.shard_id, wait=True)
        await put(range(50))
        tasks.start_soon(consumer.run, handle)
        await eventually(lambda: sorted(seen) == list(range(50)))
        await consumer.close()


async def test_e3_more_than_a_hundred_shards_are_all_read(group):
    with LocalKinesis(shards=150, limits=False, stream="s") as kinesis:
        where = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
        from shardline import Client

        async with Client(**where) as client:
            for start in range(0, 1500, 500):
                await client.put_records("s", [(b"%d" % n, f"k{n}") for n in range(start, start + 500)])
        async with Consumer("s", until="latest", config=ConsumerConfig(calls_per_second=100.0), **where) as consumer:
            with anyio.fail_after(25):
                assert sorted([int(record.data) async for record in consumer]) == list(range(1500))


async def test_c6_a_one_shot_loop_reads_the_last_shard_too(put, kinesis, connection):
    """Idleness is counted once every shard was asked."""
    kinesis.create_stream("four", shards=4)
    from shardline import Client

    async with Client(**connection) as client:
        last = kinesis.streams["four"].shards[-1].hash_range.start
        await client.put_records("four", [(b"%d" % n, "k", str(last)) for n in range(10)])
    kinesis.faults.latency(0.15, operation="GetShardIterator")
    async with Consumer("four", idle_timeout=0.1, **connection) as consumer:
        assert [int(record.data) async for record in consumer] == list(range(10))


async def test_c7_user_data_is_never_taken_for_a_checkpoint(make_consumer, client_of, group):
    nasty = b'{"__CHECKPOINT__": {"ShardId": "shardId-000000000000", "SequenceNumber": "999999"}}'
    async with client_of() as client:
        await client.put_record("s", nasty, "k")
    for _ in range(2):
        async with make_consumer(group=f"{group}-{_}", store="memory:", until="latest") as consumer:
            assert [record.data async for record in consumer] == [nasty]
        rows = MemoryLeases.shared(f"{group}-{_}", "s")._rows.values()
        assert "999999" not in {str(row.checkpoint.sequence_number) for row in rows}


async def test_c8_there_is_no_option_that_reads_nothing():
    with pytest.raises(UsageError, match="skip_describe_stream"):
        Consumer("s", skip_describe_stream=True)


async def test_kpl_bytes_that_are_damaged_are_delivered_as_they_are(make_consumer, client_of):
    from shardline import aggregate

    packed = bytearray(aggregate([("k", b"x")]))
    packed[-1] ^= 1
    async with client_of() as client:
        await client.put_records("s", [(bytes(packed), "k"), (b'{"plain": 1}', "k")])
    async with make_consumer(until="latest") as consumer:
        assert [record.data async for record in consumer] == [bytes(packed), b'{"plain": 1}']


# ---- ownership


async def owned(group):
    """A store in which w2 holds a shard that w1 held before."""
    store = MemoryLeases.shared(group, "s")
    (row, *_) = await store.list_leases()
    zombie = row.counter
    taken = replace(row, owner="w2", counter=zombie + 5, checkpoint=Checkpoint(at_sequence_number("500")))
    store._rows[row.shard_id] = taken
    return store, taken, zombie


@pytest.mark.parametrize("write", ["r1-commit", "r2-heartbeat", "r3-close"])
async def test_a_zombie_changes_nothing(make_consumer, group, write):
    async with make_consumer(group=group, store="memory:", worker_id="w1") as consumer:
        await consumer.wait_ready()
    store, row, counter = await owned(group)
    operation = {
        "r1-commit": CommitCheckpoint(row.shard_id, "w1", counter, Checkpoint(at_sequence_number("110"))),
        "r2-heartbeat": RenewLease(row.shard_id, "w1", counter),
        "r3-close": ReleaseLease(row.shard_id, "w1", counter),
    }[write]
    answer = await store.apply(operation)
    assert isinstance(answer, Refused)
    assert row in await store.list_leases()


async def test_c11_a_lost_lease_ends_reading_and_raises_nothing(make_consumer, put, group, eventually):
    events, seen = [], []
    await put(range(20))
    async with make_consumer(group=group, store="memory:", sink=events.append) as consumer:

        async def handle(record):
            seen.append(record)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, handle)
            await eventually(lambda: len(seen) == 20)
            _, row, _ = await owned(group)
            await eventually(lambda: any(isinstance(event, LeaseLost) for event in events))
            assert ("s", row.shard_id) not in consumer._session.hand_out.shards
            await consumer.close()
    assert MemoryLeases.shared(group, "s")._rows[row.shard_id].owner == "w2", "close lets go of its own alone"


async def test_r5_one_failed_heartbeat_is_not_the_last(make_consumer, group, eventually):
    store = MemoryLeases(group, "s")
    apply_many, failures = store.apply_many, []

    async def flaky(operations):
        if isinstance(operations[0], RenewLease) and not failures:
            failures.extend(operations)
            return [Failure(FailureKind.TRANSIENT, "Hiccup", "once")] * len(operations)
        return await apply_many(operations)

    store.apply_many = flaky
    async with make_consumer(group=group, store=store) as consumer:
        await consumer.wait_ready()
        await eventually(lambda: bool(failures))
        await anyio.sleep(1.2)  # longer than the lease
        assert len(consumer._session.hand_out.shards) == 2


async def test_r7_worker_ids_are_no_pids(connection):
    import os

    ids = {Consumer("s", **connection).worker_id for _ in range(5)}
    assert len(ids) == 5
    assert str(os.getpid()) not in ids


async def test_two_streams_of_one_group_do_not_collide(make_consumer, put, kinesis, group, store):
    kinesis.create_stream("t", shards=2)
    await put(range(20), stream="s")
    await put(range(20, 40), stream="t")
    for name, numbers in (("s", range(20)), ("t", range(20, 40))):
        async with make_consumer(name, group=group, store=store, until="latest") as consumer:
            assert sorted([int(record.data) async for record in consumer]) == list(numbers)


# ---- order, resharding


async def test_e1_closed_parents_are_not_replayed_on_restart(make_consumer, put, kinesis, client_of, group, store):
    await put(range(100))
    async with client_of() as client:
        await client.split_shard("s", kinesis.streams["s"].shards[0].shard_id, wait=True)
    await put(range(100, 150))
    runs = []
    for _ in range(3):
        async with make_consumer(group=group, store=store, until="latest") as consumer:
            runs.append(sorted([int(record.data) async for record in consumer]))
    assert runs == [list(range(150)), [], []]


async def test_c9_the_child_of_a_merge_waits_for_both_parents(make_consumer, put, kinesis, client_of, eventually):
    await put(range(100))
    low, high = kinesis.streams["s"].shards
    async with client_of() as client:
        await client.merge_shards("s", low.shard_id, high.shard_id, wait=True)
    await put(range(100, 150))
    seen, gate = [], anyio.Event()

    async def handle(record):
        if record.shard_id == high.shard_id:
            await gate.wait()
        seen.append(record.shard_id)

    async with make_consumer() as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run, handle)
        await eventually(lambda: seen.count(low.shard_id) > 10)
        await anyio.sleep(0.3)
        assert set(seen) == {low.shard_id}, "the adjacent parent is not done"
        gate.set()
        await eventually(lambda: len(seen) == 150)
        await consumer.close()


# ---- liveness


@pytest.mark.parametrize("what", ["c3-first-iterator", "c4-expired-iterator"])
async def test_an_iterator_that_cannot_be_had_once_is_asked_for_again(make_consumer, kinesis, put, what):
    await put(range(40))
    if what == "c3-first-iterator":
        kinesis.faults.throttle(operation="GetShardIterator", count=2)
    else:
        kinesis.faults.expired_iterator(count=2, after=1)
        kinesis.faults.throttle(operation="GetShardIterator", after=2, count=2)
    async with make_consumer(until="latest", page_max_records=10) as consumer:
        with anyio.fail_after(10):
            assert sorted([int(record.data) async for record in consumer]) == list(range(40))


@pytest.mark.clock
async def test_c5_idle_shards_do_not_slow_a_hot_one(kinesis, connection):
    kinesis.create_stream("eight", shards=8)
    from shardline import Client

    hot = kinesis.streams["eight"].shards[0]
    async with Client(**connection) as client:
        rows = [(b"%d" % n, "k", str(hot.hash_range.start)) for n in range(400)]
        await client.put_records("eight", rows)
    config = ConsumerConfig(page_max_records=20, calls_per_second=50.0)
    began = time.monotonic()
    async with Consumer("eight", config=config, until="latest", **connection) as consumer:
        assert [int(record.data) async for record in consumer] == list(range(400))
    assert time.monotonic() - began < 4, "20 pages at 50 calls a second: idle shards wait by themselves"


@pytest.mark.clock
async def test_m1_leases_of_others_cost_nothing(make_consumer, put, kinesis, group, eventually):
    """A worker beside one that holds many leases reads its own at full speed."""
    kinesis.create_stream("ten", shards=10)
    seen = []

    async def handle(record):
        seen.append(record)

    async with make_consumer("ten", group=group, store="memory:") as other:
        await other.wait_ready()
        async with make_consumer("ten", group=group, store="memory:", max_leases=1) as consumer:
            await eventually(lambda: len(consumer._session.hand_out.shards) == 1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, handle)
                ((_, mine),) = consumer._session.hand_out.shards
                wanted = next(one for one in kinesis.streams["ten"].shards if one.shard_id == mine)
                from shardline import Client

                where = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region}
                async with Client(credentials=kinesis.credentials, **where) as client:
                    rows = [(b"%d" % n, "k", str(wanted.hash_range.start)) for n in range(50)]
                    await client.put_records("ten", rows)
                began = time.monotonic()
                await eventually(lambda: len(seen) == 50)
                assert time.monotonic() - began < 1.0
                await consumer.close()


async def test_r10_what_was_acknowledged_by_hand_is_committed_by_close(make_consumer, put, take, group):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:", ack="manual", checkpoint_interval=60.0) as consumer:
        for record in await take(consumer, 4):
            consumer.ack(record)
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(4, 10))


async def test_p13_netstrings_are_parsed_in_linear_time():
    from shardline.deserializers import netstrings

    def took(count):
        data = b"3:abc," * count
        best = 9.0
        for _ in range(5):
            began = time.thread_time()  # of the CPU: the machine may have other things to do
            assert len(netstrings(data)) == count
            best = min(best, time.thread_time() - began)
        return best / count

    assert took(80_000) < 8 * took(4_000)  # 20 times, if it grew with the square


async def test_a_missing_policy_never_skips(make_consumer, put, group):
    """By default a handler that fails for good stops the consumer, and the record comes again."""
    from shardline import HandlerFailed

    await put(range(3), keys=1)

    async def refuse(record):
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(HandlerFailed) as failed:
            async with make_consumer(group=group, store="memory:") as consumer:
                await consumer.run(refuse, policy=FailurePolicy(attempts=1))
        assert [one.data for one in failed.value.records] == [b"0"]
