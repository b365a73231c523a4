"""How much CPU does a sink add to the cost of a record, for a producer and for a consumer?

The figure is the CPU of the whole process, user and system, with the sink divided by the CPU without any, per record
and at the default batch sizes: 100 B records with uuid keys on 32 shards for the producer, 200 B of JSON in batches
from 4 shards for the consumer. Rate limits are lifted. The server is another process. All sinks take turns in one
process, round by round and in changing order, so that whatever else the machine does hits each of them. A round ends
when the sink has received its events, so their cost counts.

Two figures must meet the target, because the difference is small: the ratio of the best quarters of the rounds, and the
median of the ratios of each round to the one without a sink in the same turn.

    python benchmarks/bench_sinks.py [--quick] [--check] [--only producer] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from consumer_sink import running_consumer_sink
from producer_clients import ACCESS_KEY, REGION, SECRET_KEY, STREAM, Job, Meter, print_json, shardline_arguments
from producer_sink import running_producer_sink
from results import add_json_option, isolate_environment, verdict, write

TARGET = 1.02
SIDES = ("producer", "consumer")
CONSUMER_SHARDS = 4
ROUNDS = {"full": 40, "quick": 12}
RECORDS = {"producer": 50_000, "consumer": 40_000}  # per round
DRAIN = 0.15  # seconds in which a sink receives the events of a round: three times its interval

Round = Callable[[int], Awaitable[float]]
"""Handles that many records, and returns the CPU seconds."""


# ---- the sinks


def count_events() -> object:
    """The cheapest sink: it remembers the last events."""
    return deque(maxlen=100).append


def log_events() -> object:
    """A log sink whose lines are formatted and written, to a file that keeps nothing."""
    from shardline.sinks import LogSink

    logger = logging.getLogger("bench.sinks")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = logging.StreamHandler(Path(os.devnull).open("w"))  # noqa: SIM115 - open until the process ends
    logger.addHandler(handler)
    return LogSink(logger)


def prometheus() -> object:
    from prometheus_client import CollectorRegistry

    from shardline.sinks import PrometheusSink

    return PrometheusSink(CollectorRegistry())


def cloudwatch() -> object:
    from shardline.sinks import CloudWatchSink

    return CloudWatchSink(Path(os.devnull))


def opentelemetry() -> object:
    """Metrics and spans of the SDK, which nothing exports."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # without a reader, nothing is aggregated
    from opentelemetry.sdk.trace import TracerProvider

    from shardline.sinks import OpenTelemetrySink

    return OpenTelemetrySink(tracer_provider=TracerProvider(), meter_provider=MeterProvider([InMemoryMetricReader()]))


SINKS: dict[str, Callable[[], object] | None] = {
    "none": None,
    "callable": count_events,
    "LogSink": log_events,
    "PrometheusSink": prometheus,
    "CloudWatchSink": cloudwatch,
    "OpenTelemetrySink": opentelemetry,
}


def sinks_of(name: str) -> list[object]:
    make = SINKS[name]
    return [] if make is None else [make()]


# ---- the process that is measured


@contextlib.asynccontextmanager
async def producing(name: str, url: str) -> Iterator[Round]:
    from shardline import Producer

    job, rng = Job(url, 100, 0, RECORDS["producer"]), random.Random(1)
    async with Producer(STREAM, sinks=sinks_of(name), **shardline_arguments(job)) as producer:

        async def put(count: int) -> float:
            meter = Meter()
            for records in job.slices(count, rng):
                gc.collect()
                with meter:
                    deliveries = [await producer.put(data, key=key) for key, data in records]
                    for delivery in deliveries:
                        await delivery
                    await asyncio.sleep(DRAIN)
            return meter.cpu

        yield put


@contextlib.asynccontextmanager
async def consuming(name: str, url: str) -> Iterator[Round]:
    from shardline import Consumer, ConsumerConfig, Credentials

    sinks = sinks_of(name)

    async def read(count: int) -> float:
        gc.collect()
        meter = Meter()
        with meter:
            consumer = Consumer(
                STREAM,
                sinks=sinks,
                config=ConsumerConfig(calls_per_second=1_000.0, bytes_per_second=1e12),
                deserializer=json.loads,
                endpoint_url=url,
                region=REGION,
                credentials=Credentials(ACCESS_KEY, SECRET_KEY),
            )
            async with consumer:
                async for batch in consumer.batches():
                    count -= len(batch.values)
                    if count <= 0:
                        break
        return meter.cpu

    yield read


async def measure(side: str, url: str, rounds: int) -> None:
    """Print the CPU of each round, by sink."""
    records = RECORDS[side]
    costs: dict[str, list[float]] = {name: [] for name in SINKS}
    async with contextlib.AsyncExitStack() as stack:
        make = producing if side == "producer" else consuming
        sources = {name: await stack.enter_async_context(make(name, url)) for name in SINKS}
        for run in sources.values():
            await run(records)  # warm-up
        names = list(SINKS)
        for number in range(rounds):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                costs[name].append(await sources[name](records))
    print_json(**costs)


# ---- the report


def best_quarter(costs: list[float]) -> float:
    """Return the mean of the best quarter: other jobs on the machine can only add CPU time."""
    return statistics.mean(sorted(costs)[: max(1, len(costs) // 4)])


def report(side: str, rounds: int) -> list[bool]:
    records = RECORDS[side]
    server = (
        running_producer_sink()
        if side == "producer"
        else running_consumer_sink(CONSUMER_SHARDS, records // CONSUMER_SHARDS)
    )
    with server as running:
        url = running if isinstance(running, str) else running.url
        line = [sys.executable, __file__, "--measure", side, "--url", url, "--rounds", str(rounds)]
        costs = json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)
    bare = costs["none"]
    print(f"\n{side}: {best_quarter(bare) / records * 1e6:.2f} CPU seconds per million records without a sink")
    met = []
    for name in SINKS:
        if name != "none":
            best = best_quarter(costs[name]) / best_quarter(bare)
            median = statistics.median(cost / without for cost, without in zip(costs[name], bare, strict=True))
            fine = [ratio <= TARGET for ratio in (best, median)]
            what = f"{side} with {name} / without: {best:.3f} (median of the rounds {median:.3f})"
            met.append(verdict(what, f"at most {TARGET}", met=all(fine), partly=any(fine), of="sinks"))
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what each sink costs.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, rougher figures")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--only", choices=SIDES, help="only this side")
    parser.add_argument("--measure", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    add_json_option(parser)
    options = parser.parse_args()
    if options.measure:
        asyncio.run(measure(options.measure, options.url, options.rounds))
        return 0
    isolate_environment()
    rounds = options.rounds or ROUNDS["quick" if options.quick else "full"]
    print(f"{rounds} rounds in turn, Python {sys.version.split()[0]}")
    met = [each for side in SIDES if options.only in {None, side} for each in report(side, rounds)]
    write(options.json)
    return 1 if options.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
