"""Puts records with each client of the producer benchmark, and measures the CPU of its process.

Each client has its own process, in the environment that it needs, so this file imports only packages that all
environments have. Each line on standard input starts a round of that many records; the process answers with a line of
JSON. The records of a round come in slices, which are generated outside the measurement. One task (or thread) puts the
records of a slice in a loop, then awaits every delivery and checks that it succeeded. The figure is the CPU of the
whole process, user and system, inside the slices.

    python benchmarks/producer_clients.py --client aiokpl --url http://127.0.0.1:4567 --size 100 [--hot-keys 1000]
"""

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

REGION, ACCESS_KEY, SECRET_KEY = "us-east-1", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
STREAM = "bench"
ENTRIES = 500  # per call, for clients whose caller builds the batches
RECORDS_PER_SECOND, BYTES_PER_SECOND = 1e9, 1e12  # high enough to lift the limits
LIMIT = 120.0  # seconds for a delivery
THREADS = 4

Record = tuple[str, bytes]
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """The records to put, and the endpoint."""

    url: str
    size: int  # bytes of data
    hot_keys: int  # 0: each record has its own key
    slice_records: int

    def slices(self, count: int, rng: random.Random) -> Iterator[list[Record]]:
        hot = [f"user-{number:08}" for number in range(self.hot_keys)]
        for begin in range(0, count, self.slice_records):
            records = min(self.slice_records, count - begin)
            keys = rng.choices(hot, k=records) if hot else [new_uuid(rng) for _ in range(records)]
            whole = rng.randbytes(self.size * records)
            yield [(key, whole[at : at + self.size]) for at, key in zip(range(0, len(whole), self.size), keys)]  # noqa: B905 - both have the same length, and strict= would cost time


def new_uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


class Meter:
    """Sums the CPU and the time of its `with` blocks."""

    def __init__(self) -> None:
        self.cpu = self.seconds = 0.0

    def __enter__(self) -> None:
        self._seconds = time.perf_counter()
        self._cpu = cpu_seconds()

    def __exit__(self, *_: object) -> None:
        self.cpu += cpu_seconds() - self._cpu
        self.seconds += time.perf_counter() - self._seconds


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rounds() -> Iterator[int]:
    for line in sys.stdin:
        gc.collect()
        yield int(line)


def print_json(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def form_in_use() -> str | None:
    """Return which form of our package this process uses, if it uses the package."""
    return getattr(sys.modules.get("shardline"), "implementation", None)


def check(*, holds: bool) -> None:
    if not holds:
        raise RuntimeError("a record was not delivered")


async def run_async(job: Job, put_slice: Callable[[list[Record]], Awaitable[None]]) -> None:
    """Put rounds. Waiting for the next round blocks the loop, because a client has nothing to do between rounds."""
    rng = random.Random(job.size)
    loop = type(asyncio.get_running_loop()).__module__ if "trio" not in sys.modules else "trio"
    print_json(ready=loop, form=form_in_use())
    for count in rounds():
        meter = Meter()
        for records in job.slices(count, rng):
            with meter:
                await put_slice(records)
        print_json(records=count, cpu=meter.cpu, seconds=meter.seconds)


def run_sync(job: Job, put_slice: Callable[[list[Record]], None]) -> None:
    rng = random.Random(job.size)
    print_json(ready="threads", form=form_in_use())
    for count in rounds():
        meter = Meter()
        for records in job.slices(count, rng):
            with meter:
                put_slice(records)
        print_json(records=count, cpu=meter.cpu, seconds=meter.seconds)


# ---- shardline


def shardline_arguments(job: Job, **settings: object) -> dict[str, object]:
    from shardline import Credentials, ProducerConfig

    lifted = {"records_per_second": RECORDS_PER_SECOND, "bytes_per_second": BYTES_PER_SECOND}
    return {
        "endpoint_url": job.url,
        "region": REGION,
        "credentials": Credentials(ACCESS_KEY, SECRET_KEY),
        "config": ProducerConfig(**{**lifted, **settings}),
    }


async def shardline_put(job: Job, **settings: object) -> None:
    from shardline import Producer

    async with Producer(STREAM, **shardline_arguments(job, **settings)) as producer:
        put = producer.put

        async def put_slice(records: list[Record]) -> None:
            deliveries = [await put(data, key=key) for key, data in records]
            for delivery in deliveries:
                await delivery

        await run_async(job, put_slice)


async def shardline_put_many(job: Job, **settings: object) -> None:
    from shardline import Producer

    async with Producer(STREAM, **shardline_arguments(job, **settings)) as producer:

        async def put_slice(records: list[Record]) -> None:
            for delivery in await producer.put_many(records):
                await delivery

        await run_async(job, put_slice)


def shardline_sync(job: Job) -> None:
    from shardline.sync import Producer

    with Producer(STREAM, **shardline_arguments(job)) as producer:
        put = producer.put

        def put_slice(records: list[Record]) -> None:
            deliveries = [put(data, key=key) for key, data in records]
            for delivery in deliveries:
                delivery.result(timeout=LIMIT)

        run_sync(job, put_slice)


def shardline_threads(job: Job) -> None:
    """Put from four threads into one producer."""
    from shardline.sync import Delivery, Producer

    with Producer(STREAM, **shardline_arguments(job)) as producer, ThreadPoolExecutor(THREADS) as pool:

        def put_part(records: list[Record]) -> list[Delivery]:
            return [producer.put(data, key=key) for key, data in records]

        def put_slice(records: list[Record]) -> None:
            for deliveries in pool.map(put_part, [records[place::THREADS] for place in range(THREADS)]):
                for delivery in deliveries:
                    delivery.result(timeout=LIMIT)

        run_sync(job, put_slice)


async def shardline_sixteen(job: Job) -> None:
    """Put 16 records per entry, as many as share an entry on a stream of a thousand shards."""
    await shardline_put(job, aggregate_max_count=16)


async def shardline_unaggregated(job: Job) -> None:
    await shardline_put(job, aggregation=False)


async def shardline_unaggregated_put_many(job: Job) -> None:
    await shardline_put_many(job, aggregation=False)


def run_trio(main: Callable[[Job], Awaitable[None]], job: Job) -> None:
    import trio

    trio.run(main, job)


# ---- the peers


def aiokpl_config(job: Job, **settings: object) -> object:
    from aiokpl import Config

    return Config(
        region=REGION,
        endpoint_url=job.url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        **settings,
    )


async def aiokpl(job: Job) -> None:
    from aiokpl import Producer

    config = aiokpl_config(
        job,
        rate_limit_records_per_sec_per_shard=RECORDS_PER_SECOND,
        rate_limit_bytes_per_sec_per_shard=BYTES_PER_SECOND,
    )
    async with Producer(config) as producer:
        put_record = producer.put_record

        async def put_slice(records: list[Record]) -> None:
            outcomes = [await put_record(stream=STREAM, partition_key=key, data=data) for key, data in records]
            for outcome in outcomes:
                check(holds=(await outcome.wait()).success)

        await run_async(job, put_slice)


def boto3(job: Job) -> None:
    from boto3 import client as make_client

    client = make_client("kinesis", **botocore_arguments(job))

    def put_slice(records: list[Record]) -> None:
        for begin in range(0, len(records), ENTRIES):
            entries = [{"Data": data, "PartitionKey": key} for key, data in records[begin : begin + ENTRIES]]
            answer = client.put_records(StreamName=STREAM, Records=entries)
            check(holds=answer["FailedRecordCount"] == 0 and len(answer["Records"]) == len(entries))

    run_sync(job, put_slice)


async def aiobotocore(job: Job) -> None:
    from aiobotocore.session import get_session

    async with get_session().create_client("kinesis", **botocore_arguments(job)) as client:

        async def put_slice(records: list[Record]) -> None:
            for begin in range(0, len(records), ENTRIES):
                entries = [{"Data": data, "PartitionKey": key} for key, data in records[begin : begin + ENTRIES]]
                answer = await client.put_records(StreamName=STREAM, Records=entries)
                check(holds=answer["FailedRecordCount"] == 0 and len(answer["Records"]) == len(entries))

        await run_async(job, put_slice)


def botocore_arguments(job: Job) -> dict[str, str]:
    return {
        "region_name": REGION,
        "endpoint_url": job.url,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
    }


def run_uvloop(main: Callable[[Job], Coroutine[object, object, T]], job: Job) -> T:
    """Run on uvloop, with which aiokpl is faster, if the environment has it."""
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    return run(main(job))


def run_asyncio(main: Callable[[Job], Awaitable[None]], job: Job) -> None:
    asyncio.run(main(job))


CLIENTS: dict[str, Callable[[Job], None]] = {
    "shardline": lambda job: run_asyncio(shardline_put, job),
    "shardline put_many": lambda job: run_asyncio(shardline_put_many, job),
    "shardline trio": lambda job: run_trio(shardline_put, job),
    "shardline sync": shardline_sync,
    "shardline sync 4 threads": shardline_threads,
    "shardline 16 an entry": lambda job: run_asyncio(shardline_sixteen, job),
    "shardline unaggregated": lambda job: run_asyncio(shardline_unaggregated, job),
    "shardline unaggr. many": lambda job: run_asyncio(shardline_unaggregated_put_many, job),
    "aiokpl": lambda job: run_uvloop(aiokpl, job),
    "boto3": boto3,
    "aiobotocore": lambda job: run_asyncio(aiobotocore, job),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Put rounds of records, for bench_producer.py.")
    parser.add_argument("--client", choices=CLIENTS, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--hot-keys", type=int, default=0)
    parser.add_argument("--slice", type=int, default=50_000, dest="slice_records")
    options = vars(parser.parse_args())
    client = CLIENTS[options.pop("client")]
    client(Job(**options))
    os._exit(0)  # some peers hang or fail while they shut down


if __name__ == "__main__":
    main()
