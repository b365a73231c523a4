"""Measures the CPU of an idle consumer, the time to the first record, and the writes to the lease store.

Each question needs its own process:

- `idle`: the CPU of a worker of an empty stream;
- `wire`: the CPU of a bare client that makes as many calls, evenly spread, to show how much of `idle` is for the calls;
- `first`: the time from the start to the first record, on SQLite;
- `commits`: the writes to the store while records keep arriving.

    python benchmarks/consumer_idle.py first --url http://127.0.0.1:4567 --stream plain [--seconds 10]
"""

import argparse
import asyncio
import collections
import json
import tempfile
import time
from pathlib import Path

from consumer_clients import REGION, Meter

LEASE = 10.0
LOAD = 400  # records per second, for `commits`


def connection(options: argparse.Namespace) -> dict[str, object]:
    from shardline import Credentials

    keys = Credentials(options.access_key, options.secret_key)
    return {"endpoint_url": options.url, "region": REGION, "credentials": keys}


def consumer_of(options: argparse.Namespace, store: object, **arguments: object):
    from shardline import Consumer

    return Consumer(options.stream, group="bench", store=store, **connection(options), **arguments)


async def idle(options: argparse.Namespace, directory: Path) -> dict[str, float]:
    async with consumer_of(options, f"sqlite:///{directory}/leases.db") as consumer:
        reading = asyncio.create_task(anext(aiter(consumer)))
        await consumer.wait_ready(120)
        await asyncio.sleep(5)  # until the pauses between calls have reached their maximum
        meter = Meter()
        print(json.dumps({"settled": True}), flush=True)
        await asyncio.sleep(options.seconds)
        figures = meter.read()
        print(json.dumps({"settled": False}), flush=True)
        reading.cancel()
    return figures


async def wire(options: argparse.Namespace, directory: Path) -> dict[str, float]:
    del directory
    from shardline import Client

    async with Client(**connection(options)) as client:

        async def poll(shard_id: str, offset: float) -> None:
            iterator = await client.get_shard_iterator(options.stream, shard_id, "LATEST")
            next_at = time.monotonic() + 1 + offset
            while True:
                await asyncio.sleep(next_at - time.monotonic())
                next_at += 1
                iterator = (await client.get_records(iterator)).next_iterator

        shards = await client.list_shards(options.stream)
        polls = [asyncio.create_task(poll(shard.shard_id, number / len(shards))) for number, shard in enumerate(shards)]
        await asyncio.sleep(3)
        meter = Meter()
        await asyncio.sleep(options.seconds)
        figures = meter.read()
        for task in polls:
            task.cancel()
    return figures


async def first(options: argparse.Namespace, directory: Path) -> dict[str, float]:
    began_at = time.perf_counter()
    async with consumer_of(options, f"sqlite:///{directory}/leases.db") as consumer:
        async for _ in consumer:
            return {"seconds": time.perf_counter() - began_at}
    raise RuntimeError("there was no record")


class CountedStore:
    """A lease store that counts the writes."""

    def __init__(self, store) -> None:
        self._store = store
        self.writes: collections.Counter[str] = collections.Counter()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def apply_many(self, operations):
        self.writes.update(type(operation).__name__ for operation in operations)
        return await self._store.apply_many(operations)


async def commits(options: argparse.Namespace, directory: Path) -> dict[str, float]:
    from shardline import Producer
    from shardline.adapters.leases.sqlite import SqliteLeases

    store = CountedStore(SqliteLeases(directory / "leases.db", "bench", options.stream))

    async def load() -> None:
        async with Producer(options.stream, **connection(options)) as producer:
            while True:
                await producer.put_many([(f"key-{number}", b"x" * 200) for number in range(LOAD // 20)])
                await asyncio.sleep(0.05)

    loading = asyncio.create_task(load())
    await store.open()
    async with consumer_of(options, store, start="LATEST") as consumer:

        async def read() -> None:
            async for _ in consumer:
                pass

        reading = asyncio.create_task(read())
        await consumer.wait_ready()
        await asyncio.sleep(2)
        before, since = store.writes.copy(), time.perf_counter()
        await asyncio.sleep(options.seconds)
        found, seconds = store.writes - before, time.perf_counter() - since
        for task in (loading, reading):
            task.cancel()
    await store.close()
    return {**found, "seconds": seconds, "interval": store.checkpoint_interval}


QUESTIONS = {"idle": idle, "wire": wire, "first": first, "commits": commits}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a consumer that is alone, for bench_consumer.py.")
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--url", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--access-key", default="AKIDEXAMPLE")
    parser.add_argument("--secret-key", default="secret")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(asyncio.run(QUESTIONS[options.question](options, Path(directory)))), flush=True)


if __name__ == "__main__":
    main()
