"""Does a consumer have any of the defects of async-kinesis? One test for each that no other file here covers."""

import time
from dataclasses import replace

import anyio
import pytest

from shardline import Consumer, ConsumerConfig
from shardline.adapters.leases.memory import MemoryLeases
from shardline.core.leases import CommitCheckpoint, Refused, ReleaseLease, RenewLease
from shardline.model.lease import Checkpoint
from shardline.model.position import at_sequence_number
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio


# ---- loss


async def test_async_kinesis_c1_a_slow_handler_loses_no_records(make_consumer, put, group):
    """Readers wait for room: no record that was read is dropped, however slow the handler is."""
    await put(range(60), keys=1)
    seen = []
    async with make_consumer(group=group, store="memory:", until="latest", page_max_records=5) as consumer:
        async for record in consumer:
            if record.data == b"3":
                await anyio.sleep(1.2)  # longer than the lease; the prefetch fills meanwhile
            seen.append(int(record.data))
    assert seen == list(range(60))


async def test_async_kinesis_e3_more_than_a_hundred_shards_are_all_read(group):
    with LocalKinesis(shards=150, limits=False, stream="s") as kinesis:
        where = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
        from shardline import Client

        async with Client(**where) as client:
            for start in range(0, 1500, 500):
                await client.put_records("s", [(b"%d" % n, f"k{n}") for n in range(start, start + 500)])
        async with Consumer("s", until="latest", config=ConsumerConfig(calls_per_second=100.0), **where) as consumer:
            with anyio.fail_after(25):
                assert sorted([int(record.data) async for record in consumer]) == list(range(1500))


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


# ---- order, resharding


async def test_async_kinesis_e1_closed_parents_are_not_replayed_on_restart(
    make_consumer, put, kinesis, client_of, group, store
):
    await put(range(100))
    async with client_of() as client:
        await client.split_shard("s", kinesis.streams["s"].shards[0].shard_id, wait=True)
    await put(range(100, 150))
    runs = []
    for _ in range(3):
        async with make_consumer(group=group, store=store, until="latest") as consumer:
            runs.append(sorted([int(record.data) async for record in consumer]))
    assert runs == [list(range(150)), [], []]


async def test_async_kinesis_p13_netstrings_are_parsed_in_linear_time():
    from shardline.deserializers import netstrings

    def took(count):
        data = b"3:abc," * count
        best = 9.0
        for _ in range(5):
            began = time.thread_time()  # CPU seconds, because the machine may be busy
            assert len(netstrings(data)) == count
            best = min(best, time.thread_time() - began)
        return best / count

    assert took(80_000) < 8 * took(4_000)  # 20 times as much, if it were quadratic
