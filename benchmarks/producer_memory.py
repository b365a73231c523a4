"""How much memory does a record take while it waits in a producer, its data and its key included?

A process of its own. Every record is made as it is put and its delivery dropped, so that whatever is left is the
producer's. Nothing is sent meanwhile: the records linger for an hour, in aggregates that do not get full. Prints bytes
per record as JSON: by tracemalloc, or with --resident by the growth of the process.

    python benchmarks/producer_memory.py --url http://127.0.0.1:4567 [--resident]
"""

import argparse
import asyncio
import gc
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from producer_clients import STREAM, Job, new_uuid, say, shardline_arguments

RECORDS = 100_000
WARM_UP = 2_000
SIZE = 100
HOUR = 3600.0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure(arguments: dict[str, object], memory: Callable[[], int]) -> float:
    from shardline import Producer

    chance = random.Random(SIZE)
    async with Producer(STREAM, **arguments) as producer:
        for _ in range(WARM_UP):
            await producer.put(chance.randbytes(SIZE), key=new_uuid(chance))
        gc.collect()
        before = memory()
        for _ in range(RECORDS):
            await producer.put(chance.randbytes(SIZE), key=new_uuid(chance))
        gc.collect()
        used = memory() - before
        if producer.outstanding != WARM_UP + RECORDS or producer.stats().requests:
            raise RuntimeError("not all records wait any more")
        say(bytes_per_record=used / RECORDS)
        os._exit(0)  # an hour is long


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the memory of buffered records, for bench_producer.py.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--resident", action="store_true")
    options = parser.parse_args()
    arguments = shardline_arguments(
        Job(options.url, SIZE, 0, 0),
        linger=HOUR,
        record_ttl=2 * HOUR,
        aggregate_max_bytes=1_000_000,
        buffer_max_records=10 * RECORDS,
    )
    if not options.resident:
        tracemalloc.start()
    asyncio.run(measure(arguments, resident_bytes if options.resident else lambda: tracemalloc.get_traced_memory()[0]))


if __name__ == "__main__":
    main()
