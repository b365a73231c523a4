"""How much memory does a record take while it waits in a producer, including its data and key?

This script runs as a separate process. Every record is created when it is put, and its delivery is dropped, so that the
remaining memory belongs to the producer. Nothing is sent meanwhile: the records linger for an hour, in aggregates that
do not fill up. The script prints bytes per record as JSON: by tracemalloc, or with --resident by the growth of the
process.

    python benchmarks/producer_memory.py --url http://127.0.0.1:4567 [--client aiokpl] [--resident]
"""

import argparse
import asyncio
import gc
import os
import random
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

from producer_clients import STREAM, Job, aiokpl_config, form_in_use, new_uuid, print_json, shardline_arguments

RECORDS = {"shardline": 100_000, "aiokpl": 20_000}  # aiokpl takes fifty times as long per record
WARM_UP = 2_000
SIZE = 100
HOUR = 3600.0
LARGE = 1_000_000  # the size of an aggregate that is not full before all records are put

Put = Callable[[bytes, str], Awaitable[object]]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure(put: Put, outstanding: Callable[[], int], records: int, memory: Callable[[], int]) -> None:
    rng = random.Random(SIZE)
    for _ in range(WARM_UP):
        await put(rng.randbytes(SIZE), new_uuid(rng))
    gc.collect()
    before = memory()
    for _ in range(records):
        await put(rng.randbytes(SIZE), new_uuid(rng))
    gc.collect()
    used = memory() - before
    if outstanding() != WARM_UP + records:
        raise RuntimeError("some records are no longer waiting")
    print_json(bytes_per_record=used / records, form=form_in_use())
    os._exit(0)  # a normal exit would wait until the records have lingered for an hour


async def fill_shardline(job: Job, memory: Callable[[], int]) -> None:
    from shardline import Producer

    records = RECORDS["shardline"]
    room = {"aggregate_max_bytes": LARGE, "buffer_max_records": 10 * records}
    arguments = shardline_arguments(job, linger=HOUR, record_ttl=2 * HOUR, **room)
    async with Producer(STREAM, **arguments) as producer:
        await producer.wait_ready()  # without the shard map, the first records would be sent alone, at once
        await measure(lambda data, key: producer.put(data, key=key), lambda: producer.outstanding, records, memory)


async def fill_aiokpl(job: Job, memory: Callable[[], int]) -> None:
    from aiokpl import Producer

    records = RECORDS["aiokpl"]
    lingering = {"record_max_buffered_time_ms": HOUR * 1e3, "record_ttl_ms": 2 * HOUR * 1e3}
    room = {"aggregation_max_size": LARGE, "max_outstanding_records": 10 * records}
    async with Producer(aiokpl_config(job, **lingering, **room)) as producer:

        def put(data: bytes, key: str) -> Awaitable[object]:
            return producer.put_record(stream=STREAM, partition_key=key, data=data)

        await measure(put, lambda: producer.outstanding_records, records, memory)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the memory of buffered records, for bench_producer.py.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--client", choices=RECORDS, default="shardline")
    parser.add_argument("--resident", action="store_true")
    options = parser.parse_args()
    if not options.resident:
        tracemalloc.start()
    memory = resident_bytes if options.resident else lambda: tracemalloc.get_traced_memory()[0]
    fill = fill_shardline if options.client == "shardline" else fill_aiokpl
    asyncio.run(fill(Job(options.url, SIZE, 0, 0), memory))


if __name__ == "__main__":
    main()
