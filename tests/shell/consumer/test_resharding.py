"""Is every record delivered across splits and merges: parents before children, none twice, none missed?"""

from collections import defaultdict
from datetime import UTC, datetime

import anyio
import pytest

from shardline.core.consumer.consumer_events import LeaseGained, LeaseReleased
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=2, limits=False, stream="s") as running:
        yield running


def middle(shard):
    return str(shard.hash_range.middle)


async def split(client, kinesis, place=0):
    shard = [one for one in kinesis.streams["s"].shards if one.is_open][place]
    params = {"StreamName": "s", "ShardToSplit": shard.shard_id, "NewStartingHashKey": middle(shard)}
    await client.call("SplitShard", params)


async def merge(client, kinesis):
    low, high = sorted(
        (one for one in kinesis.streams["s"].shards if one.is_open), key=lambda one: one.hash_range.start
    )[:2]
    params = {"StreamName": "s", "ShardToMerge": low.shard_id, "AdjacentShardToMerge": high.shard_id}
    await client.call("MergeShards", params)


async def resize(client, kinesis, count):
    params = {"StreamName": "s", "TargetShardCount": count, "ScalingType": "UNIFORM_SCALING"}
    await client.call("UpdateShardCount", params)


def check_parents_first(kinesis, records):
    """Check that no record of a child comes before the last one of its parents."""
    shards = {one.shard_id: one for one in kinesis.streams["s"].shards}
    places = defaultdict(list)
    for place, record in enumerate(records):
        places[record.shard_id].append(place)
    for shard_id, mine in places.items():
        for parent in shards[shard_id].parent_ids:
            assert not places[parent] or max(places[parent]) < min(mine), (parent, shard_id)


RESHARDS = {
    "split": lambda client, kinesis, _: split(client, kinesis),
    "merge": lambda client, kinesis, turn: merge(client, kinesis) if turn == 0 else split(client, kinesis),
    "resize": lambda client, kinesis, turn: resize(client, kinesis, [4, 2][turn]),
}


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST"])
@pytest.mark.parametrize("kind", RESHARDS)
async def test_resharding_under_load_skips_nothing_and_keeps_the_order(
    make_consumer, put, ledger, kinesis, client_of, kind, start, group, eventually
):
    async with client_of() as client, anyio.create_task_group() as tasks:
        consumer = make_consumer(group=group, store="memory:", start=start)
        await consumer.start()
        await consumer.wait_ready()

        async def handle(record):
            ledger(record)

        tasks.start_soon(consumer.run, handle)
        number = 0
        for turn in range(2):
            for _ in range(3):
                await put(range(number, number + 40), keys=10)
                number += 40
            await RESHARDS[kind](client, kinesis, turn)
            await put(range(number, number + 40), keys=10)
            number += 40
        await eventually(lambda: len(ledger.records) >= number)
        await consumer.close()
    assert sorted(ledger.numbers) == list(range(number)), "each once"
    ledger.check_order()
    check_parents_first(kinesis, ledger.records)


async def test_a_resharded_stream_is_read_from_its_oldest_shards_on(
    make_consumer, put, ledger, kinesis, client_of, group, store
):
    """This includes every generation and both parents of a merge. Finished parents are not read again after a restart."""
    number = 0
    async with client_of() as client:
        for change in (split, merge, merge, split):
            await put(range(number, number + 50), keys=10)
            number += 50
            await change(client, kinesis)
        await put(range(number, number + 50), keys=10)
        number += 50
    async with make_consumer(group=group, store=store, until="latest") as consumer:
        async for record in consumer:
            ledger(record)
        status = consumer.status()
    assert sorted(ledger.numbers) == list(range(number))
    ledger.check_order()
    check_parents_first(kinesis, ledger.records)
    assert not status.is_resharding
    open_shards = {one.shard_id for one in kinesis.streams["s"].shards if one.is_open}
    assert {one.shard_id for one in status.shards if one.state == "reading"} == open_shards
    assert any(one.parents for one in status.shards)
    assert any(one.children for one in status.shards)
    for _ in range(2):
        async with make_consumer(group=group, store=store, until="latest") as consumer:
            assert [record async for record in consumer] == [], "closed parents are not replayed"


async def test_a_restart_in_the_middle_of_a_reshard_repeats_and_skips_nothing(
    make_consumer, put, take, kinesis, client_of, group, store
):
    await put(range(100), keys=10)
    async with client_of() as client:
        await split(client, kinesis)
        await put(range(100, 200), keys=10)
        await merge(client, kinesis)
    await put(range(200, 300), keys=10)
    seen = []
    for size in (30, 50, 70, 90):
        async with make_consumer(group=group, store=store) as consumer:
            seen += await take(consumer, size)
    async with make_consumer(group=group, store=store, until="latest") as consumer:
        seen += [record async for record in consumer]
    assert sorted(int(one.data) for one in seen) == list(range(300))
    check_parents_first(kinesis, seen)


async def test_latest_skips_what_was_before_and_a_restart_before_the_first_commit_skips_nothing(
    make_consumer, put, kinesis, group, store
):
    """L6: LATEST is the time when the group was created."""
    await put(range(10))
    kinesis.clock.advance(5)
    async with make_consumer(group=group, store=store, start="LATEST") as consumer:
        await consumer.wait_ready()
    kinesis.clock.advance(5)
    await put(range(10, 20))
    kinesis.clock.advance(5)
    async with make_consumer(group=group, store=store, start="LATEST", until="latest") as consumer:
        assert sorted([int(record.data) async for record in consumer]) == list(range(10, 20))


async def test_a_start_at_a_time(make_consumer, put, kinesis):
    await put(range(10))
    kinesis.clock.advance(100)
    when = datetime.fromtimestamp(kinesis.clock.now() - 50, UTC)
    await put(range(10, 20))
    async with make_consumer(start=when, until="latest") as consumer:
        assert sorted([int(record.data) async for record in consumer]) == list(range(10, 20))


async def test_children_are_found_at_once(make_consumer, put, kinesis, client_of, group, eventually):
    """The parent names its children at its end, so that no listing is needed."""
    events = []
    async with client_of() as client, anyio.create_task_group() as tasks:
        consumer = make_consumer(group=group, store="memory:", list_interval=3600.0, sinks=[events.append])
        await consumer.start()
        await consumer.wait_ready()
        seen = []

        async def handle(record):
            seen.append(int(record.data))

        tasks.start_soon(consumer.run, handle)
        await split(client, kinesis)
        await put(range(50))
        await eventually(lambda: sorted(seen) == list(range(50)))
        await consumer.close()
    finished = [event.shard_id for event in events if isinstance(event, LeaseReleased) and event.finished]
    assert len(finished) == 1
    assert len({event.shard_id for event in events if isinstance(event, LeaseGained)}) == 4
