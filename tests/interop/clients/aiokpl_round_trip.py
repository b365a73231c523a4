"""Do records that aiokpl produces come back? It has no consumer: its own decoder unpacks what aiobotocore reads.

Run as ``aiokpl_round_trip.py ENDPOINT_URL STREAM COUNT``. Prints the records that were put and read, as JSON.
"""

import asyncio
import json
import sys

import aiobotocore.session
import aiokpl


async def produce(endpoint_url, stream, count):
    config = aiokpl.Config(region="us-east-1", endpoint_url=endpoint_url)
    results = []
    async with aiokpl.Producer(config) as producer:
        outcomes = [
            await producer.put_record(stream=stream, partition_key=f"key-{n}", data=b"value-%d" % n)
            for n in range(count)
        ]
        await producer.flush()
        # Before the block ends, because leaving it loses records in flight.
        for outcome in outcomes:
            results.append(await asyncio.wait_for(outcome.wait(), 30))
    return results


async def read(endpoint_url, stream):
    """Return every user record, by shard, and the number of Kinesis records that contained them."""
    shards, blobs = {}, 0
    session = aiobotocore.session.get_session()
    async with session.create_client("kinesis", region_name="us-east-1", endpoint_url=endpoint_url) as client:
        for shard in (await client.list_shards(StreamName=stream))["Shards"]:
            place = {"StreamName": stream, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
            iterator = (await client.get_shard_iterator(**place))["ShardIterator"]
            found = shards[shard["ShardId"]] = []
            while True:
                page = await client.get_records(ShardIterator=iterator)
                for record in page["Records"]:
                    blobs += 1
                    found += opened(record)
                if page["MillisBehindLatest"] == 0:
                    break
                iterator = page["NextShardIterator"]
    return shards, blobs


def opened(record):
    """Return the user records in a Kinesis record. A single record is not framed."""
    if not aiokpl.is_aggregated(record["Data"]):
        return [[record["PartitionKey"], record["Data"].decode()]]
    return [[one.partition_key, one.data.decode()] for one in aiokpl.decode_aggregated(record["Data"])]


async def main(endpoint_url, stream, count):
    results = await produce(endpoint_url, stream, int(count))
    shards, blobs = await read(endpoint_url, stream)
    put = [{"success": one.success, "shard": one.shard_id} for one in results]
    sys.stdout.write(json.dumps({"put": put, "read": shards, "blobs": blobs}))


asyncio.run(main(*sys.argv[1:]))
