"""See it work, with no AWS account: put, throttle, reshard and read back against the embedded Kinesis.

Starts the server with AWS's limits and puts orders with a ``Producer``. While they flow, the server throttles, fails,
loses an answer, splits a shard and merges two. Then a reader that knows nothing of what was put reads the stream. It
drops what the Kinesis Client Library would drop: every aggregate with a record outside its shard's range.
"""

import asyncio
import json
import logging
import sys
import time
from collections import Counter

from shardline import Client, Delivery, Producer, Shard, deaggregate, hash_key_of
from shardline.testing import LocalKinesis

STREAM = "orders"
CUSTOMERS = [f"customer-{n}" for n in range(200)]
ROUNDS = 150
PAUSE = 0.02


async def put_orders(producer: Producer) -> list[tuple[str, Delivery]]:
    deliveries: list[tuple[str, Delivery]] = []
    for number in range(ROUNDS):
        orders = [f"{customer}/{number}" for customer in CUSTOMERS]
        records = [(order.partition("/")[0], json.dumps({"order": order}).encode()) for order in orders]
        deliveries += zip(orders, await producer.put_many(records), strict=True)
        await asyncio.sleep(PAUSE)
    return deliveries


async def disturb(kinesis: LocalKinesis, client: Client) -> None:
    """What production does to a producer, in a few seconds."""
    faults = kinesis.faults
    await asyncio.sleep(0.5)
    print("throttled: the next 5 requests")
    faults.throttle(operation="PutRecords", count=5)
    await asyncio.sleep(0.5)
    first, *_, last_but_one, last = await client.list_shards(STREAM, "AT_LATEST")
    print(f"split {first.shard_id} in the middle")
    await client.split_shard(STREAM, first.shard_id, wait=True)
    await asyncio.sleep(0.5)
    print(f"merge {last_but_one.shard_id} and {last.shard_id}")
    await client.merge_shards(STREAM, last_but_one.shard_id, last.shard_id, wait=True)
    await asyncio.sleep(0.5)
    print("2 requests fail inside the service; 1 is carried out, but its answer is lost")
    faults.error("InternalFailureException", "on demand", status=500, operation="PutRecords", count=2)
    faults.reset("after", operation="PutRecords", after=2, count=1)


def accepted(shard: Shard, raw: object) -> list[str]:
    """The orders in one Kinesis record; none if the Kinesis Client Library would drop it."""
    records = deaggregate([raw])
    for record in records:
        explicit = record.explicit_hash_key
        hash_key = hash_key_of(record.key or "") if explicit is None else int(explicit)
        if record.aggregated and hash_key not in shard.hash_range:
            return []
    return [json.loads(record.data)["order"] for record in records]


async def read_all(client: Client) -> tuple[Counter[str], int]:
    """Every order that a reader gets, and in how many Kinesis records: parents before children."""
    seen: Counter[str] = Counter()
    entries = 0
    for shard in sorted(await client.list_shards(STREAM), key=lambda shard: shard.shard_id):
        iterator: str | None = await client.get_shard_iterator(STREAM, shard.shard_id, "TRIM_HORIZON")
        found = dropped = 0
        while iterator is not None:
            page = await client.get_records(iterator)
            for raw in page.records:
                orders = accepted(shard, raw)
                seen.update(orders)
                found += len(orders)
                dropped += not orders
            entries += len(page.records)
            iterator = page.next_iterator if page.millis_behind_latest else None
        state = "open  " if shard.is_open else "closed"
        told = f", {dropped} aggregates dropped as out of range" if dropped else ""
        print(f"  {shard.shard_id}  {state}  {shard.hash_range.share:4.0%} of the keys  {found:5} orders{told}")
    return seen, entries


async def demo() -> int:
    async with LocalKinesis(shards=3, stream=STREAM, limits=True) as kinesis, kinesis.client() as client:
        print(f"an embedded Kinesis on {kinesis.endpoint_url}, stream {STREAM!r} with 3 shards and AWS's limits")
        started_at = time.monotonic()
        async with Producer(STREAM, client=client) as producer:
            disturbing = asyncio.create_task(disturb(kinesis, client))
            deliveries = await put_orders(producer)
            await disturbing
            await producer.flush()
            stats = producer.stats()
        elapsed = time.monotonic() - started_at
        print(f"put {len(deliveries)} orders in {elapsed:.1f} s")
        print(f"{stats.requests} requests, {stats.retried_records} records sent again, {stats.map_requests} ListShards")
        print("read back, shard by shard:")
        seen, entries = await read_all(client)
    delivered = [order for order, delivery in deliveries if delivery.delivered]
    lost = len(set(delivered) - seen.keys()) + len(deliveries) - len(delivered) - stats.failed_records
    duplicates = seen.total() - len(seen)
    print(f"{len(seen)} orders in {entries} Kinesis records")
    print(f"put {len(deliveries)}   delivered {len(delivered)}   lost {lost}   duplicates {duplicates}")
    return 0 if lost == 0 and len(delivered) == len(deliveries) else 1


if __name__ == "__main__":
    logging.getLogger("shardline").setLevel(logging.ERROR)  # what is sent again is told at the end
    sys.exit(asyncio.run(demo()))
