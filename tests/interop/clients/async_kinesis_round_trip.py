"""Do records that async-kinesis produces come back through its own consumer?

Run as ``async_kinesis_round_trip.py ENDPOINT_URL STREAM COUNT``. Prints the records that were read, as JSON.
"""

import asyncio
import json
import sys

import kinesis


async def produce(endpoint_url, stream, count):
    async with kinesis.Producer(
        stream, endpoint_url=endpoint_url, region_name="us-east-1", buffer_time=0.05
    ) as producer:
        for n in range(count):
            await producer.put({"n": n}, partition_key=f"key-{n % 5}")


async def consume(endpoint_url, stream, count):
    read = []
    async with kinesis.Consumer(
        stream,
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        sleep_time_no_records=0.1,
        shard_fetch_rate=5,
        idle_timeout=10.0,
    ) as consumer:
        async for item in consumer:
            read.append(item)
            if len(read) == count:
                break
    return read


async def main(endpoint_url, stream, count):
    await produce(endpoint_url, stream, int(count))
    sys.stdout.write(json.dumps({"read": await consume(endpoint_url, stream, int(count))}))


asyncio.run(main(*sys.argv[1:]))
