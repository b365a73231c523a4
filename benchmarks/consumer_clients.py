"""Reads records with each client of the consumer benchmark, and measures the CPU of its process.

Each client has its own process, in the environment that it needs, so this file imports only packages that all
environments have. Each line on standard input starts a round: a new consumer reads that many records, from the oldest
on, and deserializes each with `json.loads`, with msgspec, or not at all. The process answers with a line of JSON. The
figure is the CPU of the whole process, user and system: for ours including the start of the consumer, for the peer's
from the open connection on. Rate limits are lifted as far as each client allows, so that the pages are full; all other
settings are the defaults.

    python benchmarks/consumer_clients.py --client "shardline batches" --url http://127.0.0.1:4567 --stream plain
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

REGION = "us-east-1"
LIMIT = 300.0  # seconds for a round


@dataclass(frozen=True)
class Job:
    """The stream to read, and the access to it."""

    url: str
    stream: str
    access_key: str
    secret_key: str


class Meter:
    """Measures CPU and time since its creation."""

    def __init__(self) -> None:
        self._began_at = time.perf_counter()
        self._cpu = cpu_seconds()

    def read(self) -> dict[str, float]:
        return {"cpu": cpu_seconds() - self._cpu, "seconds": time.perf_counter() - self._began_at}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def print_json(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def run_async(read: Callable[[Job, int], Awaitable[dict[str, float]]], job: Job) -> None:
    async def rounds() -> None:
        print_json(ready=type(asyncio.get_running_loop()).__module__)
        for line in sys.stdin:
            gc.collect()
            async with asyncio.timeout(LIMIT):
                figures = await read(job, int(line))
            form = getattr(sys.modules.get("shardline"), "implementation", None)
            print_json(records=int(line), form=form, **figures)

    asyncio.run(rounds())


# ---- shardline


def shardline_consumer(job: Job, deserializer: Callable[[bytes], object] | None = json.loads):
    from shardline import Consumer, ConsumerConfig, Credentials

    return Consumer(
        job.stream,
        config=ConsumerConfig(calls_per_second=1_000.0, bytes_per_second=1e12),
        deserializer=deserializer,
        endpoint_url=job.url,
        region=REGION,
        credentials=Credentials(job.access_key, job.secret_key),
    )


async def shardline_batches(job: Job, count: int) -> dict[str, float]:
    return await read_batches(job, count, json.loads)


async def shardline_msgspec(job: Job, count: int) -> dict[str, float]:
    from msgspec.json import Decoder

    return await read_batches(job, count, Decoder().decode)


async def shardline_bytes(job: Job, count: int) -> dict[str, float]:
    """Read batches without a deserializer."""
    return await read_batches(job, count, None)


async def read_batches(job: Job, count: int, deserializer: Callable[[bytes], object] | None) -> dict[str, float]:
    meter = Meter()
    async with shardline_consumer(job, deserializer) as consumer:
        async for batch in consumer.batches():
            count -= len(batch.values)
            if count <= 0:
                return check(count, meter)
    raise RuntimeError("the records ended")


async def shardline_records(job: Job, count: int) -> dict[str, float]:
    meter = Meter()
    async with shardline_consumer(job) as consumer:
        async for record in consumer:
            if record.value is not None:
                count -= 1
            if count <= 0:
                return check(count, meter)
    raise RuntimeError("the records ended")


async def shardline_bytes_records(job: Job, count: int) -> dict[str, float]:
    """Read single records without a deserializer."""
    meter = Meter()
    async with shardline_consumer(job, None) as consumer:
        async for record in consumer:
            if record.data is not None:
                count -= 1
            if count <= 0:
                return check(count, meter)
    raise RuntimeError("the records ended")


async def shardline_run(job: Job, count: int) -> dict[str, float]:
    """Read with a handler for each record."""
    meter = Meter()
    left = count
    all_done = asyncio.Event()

    async def handle(record) -> None:
        nonlocal left
        if record.value is not None:
            left -= 1
        if left <= 0:
            all_done.set()

    async with shardline_consumer(job) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await all_done.wait()
        figures = check(left, meter)
        running.cancel()
    return figures


def check(left: int, meter: Meter) -> dict[str, float]:
    figures = meter.read()
    if left:
        raise RuntimeError(f"{-left} records too many")
    return figures


# ---- the peer


async def read_peer(job: Job, count: int, processor) -> dict[str, float]:
    """Read with async-kinesis, whose API has only single records."""
    from kinesis import Consumer

    logging.getLogger("kinesis").setLevel(logging.CRITICAL)  # it logs errors about its own shutdown
    os.environ.update(AWS_ACCESS_KEY_ID=job.access_key, AWS_SECRET_ACCESS_KEY=job.secret_key)
    async with Consumer(
        job.stream,
        endpoint_url=job.url,
        region_name=REGION,
        processor=processor,
        shard_fetch_rate=5,
        sleep_time_no_records=0.001,
        idle_timeout=30.0,
    ) as consumer:
        meter = Meter()
        async for value in consumer:
            if value is not None:
                count -= 1
            if count <= 0:
                return check(count, meter)
    raise RuntimeError("the records ended")


async def async_kinesis(job: Job, count: int) -> dict[str, float]:
    from kinesis import JsonProcessor

    return await read_peer(job, count, JsonProcessor())


async def async_kinesis_kpl(job: Job, count: int) -> dict[str, float]:
    from kinesis.processors import KPLJsonProcessor

    return await read_peer(job, count, KPLJsonProcessor())


async def async_kinesis_text(job: Job, count: int) -> dict[str, float]:
    """Read without a deserializer. async-kinesis hands out text at least, never bytes."""
    from kinesis import StringProcessor

    return await read_peer(job, count, StringProcessor())


async def async_kinesis_text_kpl(job: Job, count: int) -> dict[str, float]:
    from kinesis.processors import KPLStringProcessor

    return await read_peer(job, count, KPLStringProcessor())


CLIENTS: dict[str, Callable[[Job, int], Awaitable[dict[str, float]]]] = {
    "shardline batches": shardline_batches,
    "shardline records": shardline_records,
    "shardline run": shardline_run,
    "shardline msgspec": shardline_msgspec,
    "shardline bytes": shardline_bytes,
    "shardline bytes, records": shardline_bytes_records,
    "async-kinesis": async_kinesis,
    "async-kinesis text": async_kinesis_text,
    "async-kinesis text KPL": async_kinesis_text_kpl,
    "async-kinesis KPL": async_kinesis_kpl,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Read rounds of records, for bench_consumer.py.")
    parser.add_argument("--client", choices=CLIENTS, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--access-key", default="AKIDEXAMPLE")
    parser.add_argument("--secret-key", default="secret")
    parser.add_argument("--also", help="a directory of packages to search after the environment's own")
    options = vars(parser.parse_args())
    client = CLIENTS[options.pop("client")]
    also = options.pop("also")
    if also:
        import aiobotocore.session  # noqa: F401 - loads the environment's own version before the path is extended

        sys.path.append(also)
    run_async(client, Job(**options))
    os._exit(0)  # some peers hang or fail while they shut down


if __name__ == "__main__":
    main()
