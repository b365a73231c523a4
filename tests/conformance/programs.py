"""Programs that use our client, producer and consumer. Each is an async function of a ``Player``.

They return facts as a tree, which the table compares. All of them end by themselves, on any endpoint.
"""

import collections

import anyio
import anyio.to_thread

from shardline import Consumer, Entry, Producer, ProducerConfig, ServiceError, deaggregate

HALF = 1 << 127
LIMIT = 300.0
RECORDS = 300


async def waited(player, stream, state="ACTIVE", consumer=""):
    """Wait as the player does, by the server's clock if it has one."""
    return await anyio.to_thread.run_sync(player.wait, stream, state, consumer)


async def reshard(player, client, stream, *, split):
    """Split the only open shard, or merge the only two."""
    shards = await client.list_shards(stream, "AT_LATEST")
    if split:
        await client.split_shard(stream, shards[0].shard_id)
    else:
        await client.merge_shards(stream, shards[0].shard_id, shards[1].shard_id)
    await waited(player, stream)


async def all_records(player, client, stream):
    """Return every stored record, shard by shard, with aggregates unpacked."""
    records = []
    for shard in await client.list_shards(stream):
        iterator = await client.get_shard_iterator(stream, shard.shard_id, "TRIM_HORIZON")
        quiet = 0
        while iterator is not None and quiet < 3:
            try:
                page = await client.get_records(iterator)
            except ServiceError as error:
                if error.code != "ProvisionedThroughputExceededException":
                    raise
                await anyio.to_thread.run_sync(player.pause, 1.0)
                continue
            records += page.records
            iterator = page.next_iterator
            quiet = quiet + 1 if not page.records and page.millis_behind_latest == 0 else 0
            await anyio.to_thread.run_sync(player.pause, 0.25)
    return list(deaggregate(records)), len(records)


async def client_round_trip(player, **settings):
    stream = player.names["a"]
    async with player.site.client(**settings) as client:
        with anyio.fail_after(LIMIT):
            put = await client.put_records(stream, [Entry(b"one", "a"), Entry(b"two", "a")])
            summary = await client.describe_stream_summary(stream)
            records, _ = await all_records(player, client, stream)
            try:
                await client.describe_stream_summary(player.names["nothing"])
                missing = "found"
            except ServiceError as error:
                missing = error.code
    return {
        "failed": put.failed_count,
        "status": summary.status,
        "open_shards": summary.open_shard_count,
        "records": [record.data.decode() for record in records],
        "missing": missing,
    }


async def client_json(player):
    return await client_round_trip(player)


async def client_cbor(player):
    return await client_round_trip(player, protocol="cbor")


async def client_http2(player):
    return await client_round_trip(player, http2=True)


async def client_by_arn(player):
    """With an ARN, the rules of the SDKs select another host on AWS, which belongs to the account."""
    stream = player.names["a_arn"]
    async with player.site.client() as client:
        with anyio.fail_after(LIMIT):
            put = await client.put_record(stream, b"x", "k")
            summary = await client.describe_stream_summary(stream)
    return {"shard": put.shard_id, "name": summary.name}


async def fan_out_http2(player):
    """A subscription over HTTP/2, the protocol of the SDKs."""
    stream = player.names["a"]
    async with player.site.client(http2=True) as client:
        with anyio.fail_after(LIMIT):
            consumer = await client.register_stream_consumer(stream, "two")
            await waited(player, stream, "ACTIVE", "two")
            await client.put_record(stream, b"pushed", "k")
            [shard] = await client.list_shards(stream)
            seen = []
            async with client.subscribe_to_shard(consumer.arn, shard.shard_id, "TRIM_HORIZON") as subscription:
                async for event in subscription:
                    seen += [record.data.decode() for record in event.records]
                    if seen:
                        break
    return {"records": seen}


async def producer_aggregates(player):
    stream = player.names["a"]
    async with player.site.client() as client:
        with anyio.fail_after(LIMIT):
            async with Producer(stream, client=client) as producer:
                await producer.wait_ready()
                deliveries = await producer.put_many([(f"key-{at % 7}", str(at).encode()) for at in range(RECORDS)])
                left = await producer.flush(timeout=60)
            records, stored = await all_records(player, client, stream)
    return {
        "undelivered": len(left),
        "delivered": sum(delivery.delivered for delivery in deliveries),
        "aggregated": stored < RECORDS,
        "records": sorted(int(record.data) for record in records) == list(range(RECORDS)),
    }


async def producer_ordered(player):
    stream = player.names["a"]
    keys = ("a", "b", "c")
    async with player.site.client() as client:
        with anyio.fail_after(LIMIT):
            async with Producer(stream, client=client, config=ProducerConfig(ordered=True, linger=0.05)) as producer:
                for at in range(RECORDS):
                    await producer.put(str(at).encode(), key=keys[at % 3])
                left = await producer.flush(timeout=60)
            records, _ = await all_records(player, client, stream)
    orders = {key: [int(record.data) for record in records if record.key == key] for key in keys}
    return {
        "undelivered": len(left),
        "in_order": all(list(range(at, RECORDS, 3)) == orders[key] for at, key in enumerate(keys)),
    }


async def producer_under_reshard(player):
    """Puts before, during and after a split: nothing is lost, and every record is stored in the shard of its key."""
    stream = player.names["a"]
    async with player.site.client() as client:
        with anyio.fail_after(LIMIT):
            async with Producer(stream, client=client) as producer:
                await producer.wait_ready()
                deliveries = list(await producer.put_many([(str(at), str(at).encode()) for at in range(100)]))
                await producer.flush(timeout=60)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lambda: reshard(player, client, stream, split=True))
                    deliveries += await producer.put_many([(str(at), str(at).encode()) for at in range(100, 200)])
                deliveries += await producer.put_many([(str(at), str(at).encode()) for at in range(200, 300)])
                left = await producer.flush(timeout=60)
            records, _ = await all_records(player, client, stream)
            shards = {shard.shard_id: shard for shard in await client.list_shards(stream)}
    counted = collections.Counter(int(record.data) for record in records)
    return {
        "undelivered": len(left),
        "failed": sum(not delivery.delivered for delivery in deliveries),
        "lost": len(set(range(300)) - set(counted)),
        "shards": len(shards),
    }


async def consumer_group_across_reshards(player):
    """Two workers of one group read across a split: every record once, children after their parent."""
    stream = player.names["a"]
    seen = []
    async with player.site.client() as client:
        with anyio.fail_after(LIMIT):
            await put_numbers(client, stream, range(50))
            await reshard(player, client, stream, split=True)
            await put_numbers(client, stream, range(50, 100))

            async def work():
                async with Consumer(
                    stream, group="conformance", store="memory:", client=client, until="latest"
                ) as consumer:
                    async for record in consumer:
                        seen.append((record.shard_id, int(record.data)))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                tasks.start_soon(work)
    numbers = [number for _, number in seen]
    first_child = next((at for at, number in enumerate(numbers) if number >= 50), len(numbers))
    return {
        "lost": len(set(range(100)) - set(numbers)),
        "twice": len(numbers) - len(set(numbers)),
        "parent_first": all(number < 50 for number in numbers[:first_child]) and first_child == 50,
        "shards": len({shard for shard, _ in seen}),
    }


async def put_numbers(client, stream, numbers):
    """Put numbers that are spread over all hash keys, so that each child of a split gets some."""
    entries = [Entry(str(number).encode(), "k", str(number % 2 * HALF)) for number in numbers]
    await client.put_records(stream, entries)
