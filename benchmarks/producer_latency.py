"""How long is a record under way at a steady pace, from when it was to be put until its delivery is known?

A process of its own. Record i is due at i / rate, and its time runs from there, put or not: a stall of the client
counts for every record that it delays. The records of the first second do not count. Prints milliseconds as JSON.

    python benchmarks/producer_latency.py --url http://127.0.0.1:4567 --kind asyncio|trio|sync [--seconds 8]
"""

import argparse
import math
import os
import random
import threading
import time

from producer_clients import STREAM, Job, new_uuid, say, shardline_arguments

RATE = 1_000
SIZE = 100


def make_records(count: int) -> list[tuple[str, bytes]]:
    chance = random.Random(RATE)
    return [(new_uuid(chance), chance.randbytes(SIZE)) for _ in range(count)]


async def measure_async(arguments: dict[str, object], records: list[tuple[str, bytes]]) -> list[float]:
    import anyio

    from shardline import Producer

    async def watch(delivery: object, number: int) -> None:
        await delivery
        took[number] = time.monotonic() - due_at[number]

    async with Producer(STREAM, **arguments) as producer, anyio.create_task_group() as watchers:
        due_at, took = schedule(len(records))
        for number, (key, data) in enumerate(records):
            early = due_at[number] - time.monotonic()
            if early > 0:
                await anyio.sleep(early)
            watchers.start_soon(watch, await producer.put(data, key=key), number)
    return took


def measure_sync(arguments: dict[str, object], records: list[tuple[str, bytes]]) -> list[float]:
    from shardline.sync import Producer

    ended = threading.Semaphore(0)

    def note(number: int) -> None:
        took[number] = time.monotonic() - due_at[number]
        ended.release()

    with Producer(STREAM, **arguments) as producer:
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
    """When each record is due, and a place for how long it took."""
    begins_at = time.monotonic() + 0.1
    return [begins_at + number / RATE for number in range(count)], [math.inf] * count


def run(kind: str, arguments: dict[str, object], records: list[tuple[str, bytes]]) -> list[float]:
    if kind == "sync":
        return measure_sync(arguments, records)
    import anyio

    return anyio.run(measure_async, arguments, records, backend=kind)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the latency of a producer, for bench_producer.py.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--kind", choices=("asyncio", "trio", "sync"), required=True)
    parser.add_argument("--seconds", type=int, default=8)
    options = parser.parse_args()
    from shardline import ProducerConfig

    config = ProducerConfig()
    arguments = shardline_arguments(Job(options.url, SIZE, 0, 0)) | {"config": config}
    took = sorted(run(options.kind, arguments, make_records((options.seconds + 1) * RATE))[RATE:])
    at = {name: took[min(len(took) - 1, int(len(took) * share))] for name, share in SHARES.items()}
    say(linger=config.linger * 1e3, **{name: seconds * 1e3 for name, seconds in at.items()})
    os._exit(0)


SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}

if __name__ == "__main__":
    main()
