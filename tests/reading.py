"""What the tests of consumers on foreign servers and stores do with a consumer."""

from collections import defaultdict

import anyio

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
