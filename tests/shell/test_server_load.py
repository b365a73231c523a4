"""Does the local server keep every acknowledged record under load: once, in order, under its number?

Sixteen connections write while shards split and the number of shards changes. Each writer remembers the acknowledged
shard, sequence number and record. Then all shards are read from their beginning.
"""

import itertools
from collections import defaultdict

import anyio
import pytest

from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio

WRITERS = 16
STREAM = "load"


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Ledger:
    """The responses that the writers got."""

    def __init__(self):
        self.acknowledged = []  # (shard, sequence number, data)
        self.throttled = 0

    async def write(self, client, writer, total, per_request):
        """Put `total` records, and put refused ones again, as a producer does."""
        numbers = itertools.count()
        waiting = []
        left = total
        while left or waiting:
            fresh = min(per_request - len(waiting), left)
            left -= fresh
            waiting += [(b"%d-%d-" % (writer, next(numbers))).ljust(200, b"x") for _ in range(fresh)]
            answer = await client.put_records(STREAM, [(data, data[:16].decode()) for data in waiting])
            refused = []
            for data, one in zip(waiting, answer.records, strict=True):
                if one.sequence_number is None:
                    refused.append(data)
                else:
                    self.acknowledged.append((one.shard_id, int(one.sequence_number), data))
            self.throttled += len(refused)
            waiting = refused
            if refused:
                await anyio.sleep(0.1)

    async def write_all(self, client, total, per_request):
        async with anyio.create_task_group() as tasks:
            for writer in range(WRITERS):
                tasks.start_soon(self.write, client, writer, total // WRITERS, per_request)

    def check(self, stored):
        """Check that the records that were read, shard by shard, are the acknowledged ones: once, in order, with their
        numbers.
        """
        expected = defaultdict(list)
        for shard, number, data in self.acknowledged:
            expected[shard].append((number, data))
        assert stored == {shard: sorted(records) for shard, records in expected.items()}
        numbers = [number for _, number, _ in self.acknowledged]
        assert len(set(numbers)) == len(numbers)


async def read_all(client):
    """Return the number and the data of all records, by shard, in order."""
    found = {}
    for shard in (await client.call("ListShards", {"StreamName": STREAM}))["Shards"]:
        position = {"StreamName": STREAM, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = (await client.call("GetShardIterator", position))["ShardIterator"]
        records = []
        while iterator is not None:
            page = await client.get_records(iterator)
            records += [(int(one.sequence_number), one.data) for one in page.records]
            if page.millis_behind_latest == 0 and not page.records:
                break
            iterator = page.next_iterator
        if records:
            found[shard["ShardId"]] = records
    return found


async def reshard(client, ledger, total):
    """Split a shard when a third is written, and change the number of shards at two thirds."""

    async def until(share):
        with anyio.fail_after(30):
            while len(ledger.acknowledged) < total * share:  # noqa: ASYNC110 - the writers tell nobody
                await anyio.sleep(0.002)

    await until(1 / 3)
    split = {"StreamName": STREAM, "ShardToSplit": "shardId-000000000001", "NewStartingHashKey": str(3 << 125)}
    await client.call("SplitShard", split)
    await until(2 / 3)
    count = {"StreamName": STREAM, "TargetShardCount": 8, "ScalingType": "UNIFORM_SCALING"}
    await client.call("UpdateShardCount", count)
    return len(ledger.acknowledged)


async def test_a_hundred_thousand_records_over_sixteen_connections_and_two_reshards():
    total, ledger = 100_000, Ledger()
    async with LocalKinesis(limits=False) as kinesis, kinesis.client() as client:
        kinesis.create_stream(STREAM, shards=4)
        reshard_at = []

        async def reshard_meanwhile():
            reshard_at.append(await reshard(client, ledger, total))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reshard_meanwhile)
            tasks.start_soon(ledger.write_all, client, total, 250)
        assert total * 2 / 3 <= reshard_at[0] < total
        assert len(ledger.acknowledged) == total
        assert ledger.throttled == 0
        stored = await read_all(client)
        assert len(stored) > 8  # parents, and their children
        ledger.check(stored)
        assert len(kinesis.streams[STREAM].shards) >= 11


async def test_with_limits_what_is_refused_is_not_stored_and_what_is_tried_again_is_stored_once():
    total, ledger = 8_000, Ledger()
    async with LocalKinesis(limits=True) as kinesis, kinesis.client() as client:
        kinesis.create_stream(STREAM, shards=4)
        await ledger.write_all(client, total, 250)
        assert ledger.throttled > 0
        assert len(ledger.acknowledged) == total
        kinesis.clock.advance(10)  # so that the read limits do not interfere
        stored = {}
        for record in kinesis.streams[STREAM].records:
            stored.setdefault(record.shard_id, []).append((int(record.sequence_number), record.data))
        ledger.check(stored)
