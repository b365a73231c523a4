"""Measures one question about a consumer that polls or reads by enhanced fan-out, for bench_fanout.py.

Each measurement is a separate process:

- `latency`: the time from a put to the handler, at a steady rate of records;
- `cpu`: the CPU seconds per million records when all records of a stream are read, by both readers in turn, and the CPU
  milliseconds of a consumer's start, which are not in the former;
- `count`: the same work by instructions, counted by callgrind (instructions.py): both readers in turn;
- `idle`: the CPU and the connections of a worker of an empty stream;
- `stuck`: the memory of a worker whose handler does not return.

    python benchmarks/fanout_client.py latency --reader fan-out --url http://127.0.0.1:4567 --stream steady
"""

import argparse
import asyncio
import gc
import json
import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import instructions
from consumer_clients import REGION, Meter
from consumer_server import BLANK, STEADY

READERS = ("polling", "fan-out")
TAKEOVER_WAIT = 5.5  # seconds between two subscriptions to a shard; the service refuses an earlier one
LONG = 3_600.0  # seconds: longer than any measurement, also under callgrind, which a timer would disturb
RATE = 20  # records per second, for `latency`
BUDGET = 8 * 1024 * 1024  # bytes of prefetch, for `stuck`


def connection(options: argparse.Namespace) -> dict[str, object]:
    from shardline import Credentials

    keys = Credentials(options.access_key, options.secret_key)
    return {"endpoint_url": options.url, "region": REGION, "credentials": keys}


def consumer_of(options: argparse.Namespace, stream: str | None = None, **arguments: object):
    from shardline import Consumer

    fan_out = "bench" if options.reader == "fan-out" else None
    return Consumer(stream or options.stream, fan_out=fan_out, **connection(options), **arguments)


async def latency(options: argparse.Namespace) -> dict[str, object]:
    """Put records with the time in them, spread evenly over the shards, and take the time in the handler."""
    from shardline import Client

    took: list[float] = []

    count = int(options.seconds * RATE)
    all_came = asyncio.Event()

    async def handle(record) -> None:
        took.append(time.perf_counter() - float(record.data))
        if len(took) == count:
            all_came.set()

    async with Client(**connection(options)) as client, consumer_of(options, start="LATEST") as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await consumer.wait_ready(60)
        hash_keys = [str(shard.hash_range.start) for shard in await client.list_shards(options.stream)]
        puts = []
        next_at = time.perf_counter()
        for number in range(count):
            await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
            next_at += 1 / RATE
            data, hash_key = f"{time.perf_counter():.6f}".encode(), hash_keys[number % len(hash_keys)]
            puts.append(asyncio.create_task(client.put_record(options.stream, data, "k", explicit_hash_key=hash_key)))
        await asyncio.gather(*puts)
        async with asyncio.timeout(30):
            await all_came.wait()
        running.cancel()
    return {"latencies": took}


async def cpu(options: argparse.Namespace) -> dict[str, object]:
    """Read all records of the stream with each reader in turn, in one process. The first round warms up.

    Both readers do the same work with the same records: they deserialize each with ``json.loads``, in batches. Both
    rounds include the start of a consumer, which is measured with an empty stream of as many shards, and subtracted.
    """
    costs: dict[str, list[float]] = {reader: [] for reader in READERS}
    starts: dict[str, list[float]] = {reader: [] for reader in READERS}
    for _ in range(options.rounds + 1):
        for reader in READERS:
            options.reader = reader
            starts[reader].append(await cpu_of_start(options))
            costs[reader].append(await cpu_of_reading(options))
    start = {reader: min(starts[reader][1:]) for reader in READERS}
    return {
        "costs": {
            reader: [(cost - start[reader]) / options.records * 1e6 for cost in costs[reader][1:]] for reader in READERS
        },
        "starts": {reader: start[reader] * 1e3 for reader in READERS},
    }


async def count(options: argparse.Namespace) -> dict[str, object]:
    """Do the work of ``cpu`` under callgrind. The first round warms up. The parent reads the counts."""
    counter = instructions.Counter()
    for number in range(options.rounds + 1):
        for reader in READERS:
            options.reader = reader
            for work, name in ((start_and_close, "start"), (read_everything, "reading")):
                await work(options, counter.counted(f"{number} {name} {reader}") if number else nullcontext())
    return {}


async def cpu_of_start(options: argparse.Namespace) -> float:
    """Return the CPU seconds of a consumer that starts, reads every shard once, and closes."""
    meter = CpuMeter()
    await start_and_close(options, meter)
    return meter.seconds


async def cpu_of_reading(options: argparse.Namespace) -> float:
    """Return the CPU seconds of a consumer that reads the whole stream."""
    meter = CpuMeter()
    await read_everything(options, meter)
    return meter.seconds


class CpuMeter:
    """Measures the CPU seconds of a block."""

    def __enter__(self) -> None:
        self._meter = Meter()

    def __exit__(self, *_: object) -> None:
        self.seconds = self._meter.read()["cpu"]


async def start_and_close(options: argparse.Namespace, measure: AbstractContextManager[None]) -> None:
    await asyncio.sleep(TAKEOVER_WAIT)
    gc.collect()
    with measure:
        await start_reading_nothing(options)


async def start_reading_nothing(options: argparse.Namespace) -> None:
    from shardline import ConsumerConfig

    async with consumer_of(options, *BLANK, config=ConsumerConfig(lease_duration=LONG)) as consumer:
        reading = asyncio.create_task(anext(aiter(consumer)))
        await consumer.wait_ready(60)
        while not all(shard.lag == 0 for shard in consumer.status().shards):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.5)
        reading.cancel()


async def read_everything(options: argparse.Namespace, measure: AbstractContextManager[None]) -> None:
    await asyncio.sleep(TAKEOVER_WAIT)
    gc.collect()
    with measure:
        await read_stream(options)


async def read_stream(options: argparse.Namespace) -> None:
    from shardline import ConsumerConfig

    left = options.records
    config = ConsumerConfig(
        calls_per_second=1_000.0, bytes_per_second=1e12, lease_duration=LONG, checkpoint_interval=LONG
    )
    async with consumer_of(options, config=config, deserializer=json.loads) as consumer:
        async for batch in consumer.batches():
            left -= sum(record.value is not None for record in batch)
            if left <= 0:
                break


async def idle(options: argparse.Namespace) -> dict[str, object]:
    async with consumer_of(options) as consumer:
        reading = asyncio.create_task(anext(aiter(consumer)))
        await consumer.wait_ready(120)
        await asyncio.sleep(8)  # until every shard has its subscription, or its longest pause between calls
        meter = Meter()
        await asyncio.sleep(options.seconds)
        figures = meter.read()
        connections = count_connections(urlsplit(options.url).port)
        reading.cancel()
    return {**figures, "connections": connections}


def count_connections(port: int) -> int:
    """Return the number of this process's TCP connections to a port of this machine."""
    own = {target_of(path) for path in Path("/proc/self/fd").iterdir()}
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[2].rpartition(":")[2], 16) == port and f"socket:[{row[9]}]" in own for row in rows)


def target_of(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:  # the file descriptor of the listing itself
        return ""


async def stuck(options: argparse.Namespace) -> dict[str, object]:
    """Let the handler hang with its first record, and see how much memory is taken meanwhile."""
    from shardline import ConsumerConfig

    async def handle(record) -> None:
        del record
        await asyncio.sleep(3600)

    config = ConsumerConfig(prefetch_max_bytes=BUDGET, calls_per_second=1_000.0, bytes_per_second=1e12)
    async with consumer_of(options, *STEADY) as consumer:  # loads what every consumer loads
        await consumer.wait_ready(60)
    gc.collect()
    before = resident()
    async with consumer_of(options, config=config) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await consumer.wait_ready(60)
        most = 0
        for _ in range(int(options.seconds * 10)):
            await asyncio.sleep(0.1)
            most = max(most, resident() - before)
        prefetched = sum(shard.prefetched for shard in consumer.status().shards)
        running.cancel()
        await consumer.close(timeout=0)
    return {"bytes": most, "prefetched": prefetched}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


QUESTIONS = {"latency": latency, "cpu": cpu, "count": count, "idle": idle, "stuck": stuck}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a consumer, for bench_fanout.py.")
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--reader", choices=READERS, default="polling", help="`cpu` measures both")
    parser.add_argument("--url", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--access-key", default="AKIDEXAMPLE")
    parser.add_argument("--secret-key", default="secret")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(QUESTIONS[options.question](options))), flush=True)


if __name__ == "__main__":
    main()
