"""Put orders into a stream and check the outcome of each: ``python examples/produce.py STREAM``."""

import asyncio
import json
import sys

from shardline import Producer


async def main(stream: str) -> int:
    async with Producer(stream, serializer=lambda order: json.dumps(order).encode()) as producer:
        deliveries = await producer.put_many((f"customer-{n % 10}", {"order": n}) for n in range(1000))
        deliveries.append(await producer.put({"order": 1000}))  # without a key: goes to the least busy shard
    failed = [delivery for delivery in deliveries if not delivery.delivered]  # leaving the block waited for all
    for delivery in failed:
        print(delivery.key, await delivery.outcome(), file=sys.stderr)
    receipts = [await delivery for delivery in deliveries if delivery.delivered]
    print(f"{len(receipts)} orders in {len({receipt.sequence_number for receipt in receipts})} Kinesis records")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
