"""Measures the latency of a record at a steady rate: from when it was due to be put until its delivery is known.

This script runs as a separate process. Record i is due at i / rate, and its latency counts from then, so that a stall
of the client counts for every record that it delays. The records of the first second do not count. Every client has its
default settings. aiobotocore does not batch: the benchmark sends what has arrived every tenth of a second, which is how
long the others let a record linger. The script prints milliseconds and the used share of a core as JSON.

    python benchmarks/producer_latency.py --url http://127.0.0.1:4567 --kind asyncio|trio|sync|aiokpl|aiobotocore
"""

import argparse
import math
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from producer_clients import (
    ENTRIES,
    STREAM,
    Job,
    aiokpl_config,
    botocore_arguments,
    check,
    cpu_seconds,
    new_uuid,
    print_json,
    run_uvloop,
    shardline_arguments,
)

RATE = 1_000
SIZE = 100
LINGER = 0.1  # seconds, of all clients
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}

Record = tuple[str, bytes]
Wait = Callable[[], Awaitable[None]]


def make_records(count: int) -> list[Record]:
    rng = random.Random(RATE)
    return [(new_uuid(rng), rng.randbytes(SIZE)) for _ in range(count)]


async def pace(records: list[Record], put: Callable[[str, bytes], Awaitable[Wait]]) -> list[float]:
    """Put each record when it is due, and return the latencies. ``put`` returns a function that waits for delivery."""
    import anyio

    async def watch(wait: Wait, number: int) -> None:
        await wait()
        took[number] = time.monotonic() - due_at[number]

    async with anyio.create_task_group() as watchers:
        due_at, took = schedule(len(records))
        for number, (key, data) in enumerate(records):
            early = due_at[number] - time.monotonic()
            if early > 0:
                await anyio.sleep(early)
            watchers.start_soon(watch, await put(key, data), number)
    return took


async def measure_shardline(job: Job, records: list[Record]) -> list[float]:
    return await measure_producer(default_arguments(job), records)


async def measure_producer(arguments: dict[str, Any], records: list[Record]) -> list[float]:
    from shardline import Producer

    async with Producer(STREAM, **arguments) as producer:

        async def put(key: str, data: bytes) -> Wait:
            return (await producer.put(data, key=key)).outcome

        return await pace(records, put)


async def measure_aiokpl(job: Job, records: list[Record]) -> list[float]:
    from aiokpl import Producer

    async with Producer(aiokpl_config(job)) as producer:

        async def put(key: str, data: bytes) -> Wait:
            outcome = await producer.put_record(stream=STREAM, partition_key=key, data=data)

            async def wait() -> None:
                check(holds=(await outcome.wait()).success)

            return wait

        await (await put(*records[0]))()  # the first put opens task groups, which must not be inside ours
        return await pace(records, put)


async def measure_aiobotocore(job: Job, records: list[Record]) -> list[float]:
    import anyio
    from aiobotocore.session import get_session

    gathered: list[tuple[str, bytes, anyio.Event]] = []

    async def put(key: str, data: bytes) -> Wait:
        ended = anyio.Event()
        gathered.append((key, data, ended))
        return ended.wait

    async with get_session().create_client("kinesis", **botocore_arguments(job)) as client:

        async def send(batch: list[tuple[str, bytes, anyio.Event]]) -> None:
            entries = [{"Data": data, "PartitionKey": key} for key, data, _ in batch]
            answer = await client.put_records(StreamName=STREAM, Records=entries)
            check(holds=answer["FailedRecordCount"] == 0)
            for _, _, ended in batch:
                ended.set()

        async def send_periodically() -> None:
            while True:
                await anyio.sleep(LINGER)
                while gathered:
                    tasks.start_soon(send, gathered[:ENTRIES])
                    del gathered[:ENTRIES]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_periodically)
            took = await pace(records, put)
            tasks.cancel_scope.cancel()
    return took


def measure_sync(job: Job, records: list[Record]) -> list[float]:
    from shardline.sync import Producer

    ended = threading.Semaphore(0)

    def note(number: int) -> None:
        took[number] = time.monotonic() - due_at[number]
        ended.release()

    with Producer(STREAM, **default_arguments(job)) as producer:
        due_at, took = schedule(len(records))
        for number, (key, data) in enumerate(records):
            early = due_at[number] - time.monotonic()
            if early > 0:
                time.sleep(early)
            producer.put(data, key=key).add_done_callback(lambda _, number=number: note(number))
        for _ in records:
            ended.acquire()
    return took


def schedule(count: int) -> tuple[list[float], list[float]]:
    """Return when each record is due, and a list for the latencies."""
    begins_at = time.monotonic() + 0.1
    return [begins_at + number / RATE for number in range(count)], [math.inf] * count


def default_arguments(job: Job) -> dict[str, object]:
    from shardline import ProducerConfig

    config = ProducerConfig()
    check(holds=config.linger == LINGER)
    return shardline_arguments(job) | {"config": config}


def measure(kind: str, job: Job, records: list[Record]) -> list[float]:
    if kind == "sync":
        return measure_sync(job, records)
    if kind == "aiokpl":
        return run_uvloop(lambda job: measure_aiokpl(job, records), job)
    import anyio

    if kind == "aiobotocore":
        return anyio.run(measure_aiobotocore, job, records)
    return anyio.run(measure_shardline, job, records, backend=kind)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the latency of a producer, for bench_producer.py.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--kind", choices=("asyncio", "trio", "sync", "aiokpl", "aiobotocore"), required=True)
    parser.add_argument("--seconds", type=int, default=8)
    options = parser.parse_args()
    records = make_records((options.seconds + 1) * RATE)
    cpu, began_at = cpu_seconds(), time.monotonic()
    took = sorted(measure(options.kind, Job(options.url, SIZE, 0, 0), records)[RATE:])
    of_a_core = (cpu_seconds() - cpu) / (time.monotonic() - began_at)
    at = {name: took[min(len(took) - 1, int(len(took) * share))] for name, share in SHARES.items()}
    print_json(of_a_core=of_a_core, **{name: seconds * 1e3 for name, seconds in at.items()})
    os._exit(0)


if __name__ == "__main__":
    main()
