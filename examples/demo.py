"""See it work, with no AWS account: put, throttle, reshard and read back against the embedded Kinesis.

Starts the server with AWS's limits, puts orders in aggregates, splits a shard in the middle while the server also
throttles and fails on demand, and counts with a fresh reader what came back.
"""

import asyncio
import json
import sys
import time
from collections import Counter

from shardline import Client, RequestError, Shard, aggregate, deaggregate, hash_key_of
from shardline.testing import LocalKinesis

STREAM = "orders"
CUSTOMERS = [f"customer-{n}" for n in range(100)]
ROUNDS = 100
PAUSE = 0.05


def shard_of(key: str, shards: list[Shard]) -> Shard:
    return next(shard for shard in shards if hash_key_of(key) in shard.hash_range)


class Orders:
    """Puts orders, one aggregate per shard and round, and again whatever the service refused."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.entries = 0
        self.retries = 0

    async def put(self, first: int, count: int) -> None:
        shards = await self._client.list_shards(STREAM, "AT_LATEST")
        for number in range(first, first + count):
            by_shard: dict[str, list[tuple[str, bytes]]] = {}
            for customer in CUSTOMERS:
                order = json.dumps({"order": f"{customer}/{number}", "items": number % 7 + 1}).encode()
                by_shard.setdefault(shard_of(customer, shards).shard_id, []).append((customer, order))
            await self._deliver([(aggregate(records), records[0][0]) for records in by_shard.values()])

    async def _deliver(self, entries: list[tuple[bytes, str]]) -> None:
        while entries:
            try:
                answer = await self._client.put_records(STREAM, entries)
            except RequestError as error:
                if not error.retryable:
                    raise
                self.retries += len(entries)
            else:
                left = [entry for entry, one in zip(entries, answer.records, strict=True) if one.error_code]
                self.entries += len(entries) - len(left)
                self.retries += len(left)
                entries = left
            if entries:
                await asyncio.sleep(PAUSE)


async def read_all(client: Client) -> Counter[str]:
    """Every order in the stream, by a reader that knows nothing of what was put: parents before children."""
    seen: Counter[str] = Counter()
    for shard in sorted(await client.list_shards(STREAM), key=lambda shard: shard.shard_id):
        iterator: str | None = await client.get_shard_iterator(STREAM, shard.shard_id, "TRIM_HORIZON")
        found = 0
        while iterator is not None:
            page = await client.get_records(iterator)
            records = deaggregate(page)
            found += len(records)
            seen.update(json.loads(record.data)["order"] for record in records)
            iterator = page.next_iterator if page.millis_behind_latest else None
        state = "open  " if shard.is_open else "closed"
        print(f"  {shard.shard_id}  {state}  {shard.hash_range.share:4.0%} of the keys  {found:5} orders")
    return seen


async def demo() -> int:
    async with LocalKinesis(shards=2, stream=STREAM, limits=True) as kinesis, kinesis.client() as client:
        print(f"an embedded Kinesis on {kinesis.endpoint_url}, stream {STREAM!r} with 2 shards and AWS's limits")
        started_at = time.monotonic()
        orders = Orders(client)
        await orders.put(0, ROUNDS // 2)
        kinesis.faults.throttle(operation="PutRecords", count=5)
        kinesis.faults.error("InternalFailureException", "on demand", status=500, operation="PutRecords", count=2)
        parent = (await client.list_shards(STREAM))[0].shard_id
        await client.split_shard(STREAM, parent, wait=True)
        print(f"split {parent} in the middle; the next requests are throttled or fail")
        await orders.put(ROUNDS // 2, ROUNDS // 2)
        put = len(CUSTOMERS) * ROUNDS
        elapsed = time.monotonic() - started_at
        print(f"put {put} orders in {orders.entries} Kinesis records, {orders.retries} retries, {elapsed:.1f} s")
        print("read back, shard by shard:")
        seen = await read_all(client)
    wanted = {f"{customer}/{number}" for customer in CUSTOMERS for number in range(ROUNDS)}
    lost = len(wanted - seen.keys())
    duplicates = seen.total() - len(seen)
    print(f"put {put}   delivered {len(seen)}   lost {lost}   duplicates {duplicates}")
    return 0 if lost == 0 and duplicates == 0 else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(demo()))
