"""What the tests of consumers on foreign servers and stores do with a consumer."""

from collections import defaultdict

import anyio

from shardline import Client
from shardline.codec.aggregation import encode_aggregate
from shardline.codec.stamps import encode_stamp, shorten

LIMIT = 40.0


async def take(consumer, count, limit=LIMIT):
    """The next ``count`` records, and no asking for more than these."""
    records = []
    with anyio.fail_after(limit):
        async for record in consumer:
            records.append(record)
            if len(records) == count:
                break
    return records


async def wait_until(is_so):
    with anyio.fail_after(LIMIT):
        while not is_so():  # noqa: ASYNC110 - what is waited for rings no bell
            await anyio.sleep(0.02)


def numbers_of(records):
    return [int(record.data) for record in records]


def check_order(records):
    """Records of a shard are in its order, those of a key in the order of putting."""
    by_shard, by_key = defaultdict(list), defaultdict(list)
    for record in records:
        by_shard[record.shard_id].append(record.order)
        by_key[record.key].append(int(record.data))
    for order in [*by_shard.values(), *by_key.values()]:
        assert order == sorted(order)


def stamped(first, count, producer=b"abcdefghij"):
    """An aggregate with the records ``first``, ``first + 1``, ..., which are stamped with these numbers."""
    stamps = [encode_stamp(producer, number) for number in range(first, first + count)]
    tags = dict(enumerate([stamps[0], *map(shorten, stamps[1:])]))
    return encode_aggregate(["k"] * count, [b"%d" % number for number in range(first, first + count)], {}, tags)


async def check_dedup_window(make, connection, shard_id):
    """Does the window pass through the store: to the next owner, to the children of a split, and to the shard into which
    these are merged?

    ``make`` makes a worker with the name and the settings that it gets. ``shard_id`` is the shard of the key "k".
    """

    async def read(name, count, **settings):
        async with make(name, dedup=True, **settings) as consumer:
            return [numbers_of(await take(consumer, count)), consumer.status().totals.records_repeated]

    async with Client(**connection) as client:

        async def put(*aggregates):
            answer = await client.put_records("orders", [(each, "k") for each in aggregates])
            assert not answer.failed_count

        await put(stamped(0, 3), stamped(3, 2))
        assert await read("a", 5) == [[0, 1, 2, 3, 4], 0]
        await put(stamped(0, 3), stamped(3, 4))  # all of the first are copies, and two of the second
        assert await read("b", 2) == [[5, 6], 5]
        await client.split_shard("orders", shard_id, wait=30)
        await put(stamped(5, 3), stamped(0, 7), stamped(8, 1))
        assert await read("c", 2) == [[7, 8], 9]
        # The children are merged with different windows, and one of them has records that were not read yet.
        await put(stamped(9, 2))
        children = sorted(each.shard_id for each in await client.list_shards("orders") if each.parent_id == shard_id)
        await client.merge_shards("orders", *children, wait=30)
        await put(stamped(0, 8), stamped(8, 4))
        assert await read("d", 3) == [[9, 10, 11], 11]
        await put(stamped(0, 12), stamped(12, 1))
        assert await read("e", 1) == [[12], 12]
