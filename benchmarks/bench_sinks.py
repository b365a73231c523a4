"""How much CPU does a sink add to the cost of a record, for a producer and for a consumer?

The work is the same with and without a sink, request by request and page by page:

- The producer puts 3,520 records of 100 B with uuid keys on 32 shards, flushes, and repeats this. Each flush is one
  request of 32 aggregates. With its default settings, a producer at full speed sends 3,100 to 4,200 such records per
  request.
- The consumer runs an async handler with the records of each page: 1,000 records of 200 B of JSON. The buffer is so
  small that it holds one page, so that exactly as many pages are read as handled.

The server is another process, on loopback. A sink's thread has time to take all events before a measurement ends. The
garbage collector is off during a measurement, because a collection of the whole heap falls on one or the other by
chance. There are two figures, both as a ratio of the work with the sink to the work without any:

- Instructions, counted by callgrind, including the sink's threads. The machine's load does not change them. This figure
  decides whether the target is met.
- CPU seconds, user and system, as the median ratio of pairs of rounds that follow each other; and the CPU seconds of
  the sink's own threads as a share of the CPU without the sink. On a busy machine, the ratio scatters by several
  percent, and the share hardly.

``traced puts`` is the cost of trace propagation: every record is put under a recording span and carries its headers.
It has no target.

    python benchmarks/bench_sinks.py [--quick] [--check] [--only producer] [--sink LogSink] [--json FILE]
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
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import instructions
from consumer_sink import PAGE, running_consumer_sink
from producer_clients import ACCESS_KEY, REGION, SECRET_KEY, STREAM, Job, cpu_seconds, print_json, shardline_arguments
from producer_sink import running_producer_sink
from results import add_json_option, isolate_environment, verdict, write

TARGET = 1.02
SIDES = ("producer", "consumer")
PAGE_BYTES = 450_000  # a little less than a page takes in the buffer, so that the buffer holds one page
REQUEST = 3_520  # records that the producer puts before it flushes
SLOWNESS = 60  # how many times longer the work takes under callgrind
WARM_UP = 20  # requests or pages before a measurement: Python specializes code that has run about this often
LONG = 3_600.0  # seconds: longer than any measurement
TRACED = "traced puts"
PAGES_MAX = 1_000_000_000


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
    TRACED: opentelemetry,
}


def sinks_of(name: str) -> list[object]:
    make = SINKS[name]
    return [] if make is None else [make()]


# ---- the process that is measured


class Work:
    """How much is measured at once, and for how long the work stops so that a sink's thread takes its events."""

    def __init__(self, *, is_counted: bool, units: int) -> None:
        self.units = units  # requests of the producer, or pages of the consumer
        self.pause = 3.0 if is_counted else 0.2  # three times a sink's interval, and the time that callgrind takes
        self.calls_per_second = (
            5.0 if is_counted else 1_000.0
        )  # callgrind needs longer for a page than the default allows


async def produce(name: str, url: str, work: Work, measure: AbstractContextManager[None]) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    from shardline import Producer

    job, rng = Job(url, 100, 0, REQUEST), random.Random(1)
    arguments = shardline_arguments(job, linger=LONG, record_ttl=2 * LONG)
    span = TracerProvider().get_tracer("bench").start_as_current_span("checkout") if name == TRACED else None
    async with Producer(STREAM, sinks=sinks_of(name), **arguments) as producer:
        with span or contextlib.nullcontext():

            async def put(records: list[tuple[str, bytes]]) -> None:
                deliveries = [await producer.put(data, key=key) for key, data in records]
                await producer.flush()
                for delivery in deliveries:
                    await delivery

            for records in job.slices(WARM_UP * REQUEST, rng):
                await put(records)
            requests = list(job.slices(work.units * REQUEST, rng))
            await asyncio.sleep(work.pause)
            with uncollected(), measure:
                for records in requests:
                    await put(records)
                await asyncio.sleep(work.pause)


async def consume(name: str, url: str, work: Work, measure: AbstractContextManager[None]) -> None:
    from shardline import Consumer, ConsumerConfig, Credentials

    allowed, done = asyncio.Semaphore(0), asyncio.Semaphore(0)

    handled = 0

    async def handle(batch: object) -> None:
        nonlocal handled
        await allowed.acquire()
        handled += len(batch.values) == PAGE
        done.release()

    async def handle_pages(count: int) -> None:
        """Let the handlers have this many pages."""
        for _ in range(count):
            allowed.release()
        for _ in range(count):
            await done.acquire()

    async def read_pages(until: int) -> None:
        while reads.pages < until:  # noqa: ASYNC110 - the reader sets no event
            await asyncio.sleep(work.pause / 10)
        await asyncio.sleep(work.pause)

    config = ConsumerConfig(
        calls_per_second=work.calls_per_second,
        bytes_per_second=1e12,
        lease_duration=LONG,
        checkpoint_interval=float(SLOWNESS) if work.calls_per_second == 5.0 else 1.0,
        prefetch_max_bytes=PAGE_BYTES,
    )
    consumer = Consumer(
        STREAM,
        sinks=sinks_of(name),
        config=config,
        deserializer=json.loads,
        endpoint_url=url,
        region=REGION,
        credentials=Credentials(ACCESS_KEY, SECRET_KEY),
    )
    async with consumer:
        running = asyncio.create_task(consumer.run(handle, batch=PAGE))
        reads = consumer._opened._hand_out.work._reads  # noqa: SLF001 - status() costs more than the work of a sink
        await handle_pages(WARM_UP)
        await read_pages(WARM_UP + 1)
        with uncollected(), measure:
            await handle_pages(work.units)
            await read_pages(WARM_UP + 1 + work.units)
        if (reads.pages, handled) != (WARM_UP + 1 + work.units, WARM_UP + work.units):
            raise RuntimeError(f"{reads.pages} pages were read, and {handled} handled")
        for _ in range(100):  # more than there are handlers that wait
            allowed.release()
        await consumer.close()
        await running


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect the garbage before the block, and not in it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def count(side: str, url: str, names: list[str], units: int, times: int) -> None:
    """Count the instructions of the work with each sink, under callgrind."""
    from shardline.adapters.sinks import otel_spans
    from shardline.core.consumer import consumer_totals
    from shardline.core.producer import machine

    # Under callgrind, a measurement takes much longer. It must not contain more of the events that come every 5 s.
    consumer_totals.MEASURE_INTERVAL = machine.MEASURE_INTERVAL = LONG
    sys.setswitchinterval(SLOWNESS * sys.getswitchinterval())  # otherwise, threads switch far more often per record
    otel_spans.SLOW_START = LONG  # callgrind is so slow that the sink would stop tracing handlers
    counter, work = instructions.Counter(), Work(is_counted=True, units=units)
    for number in range(times):
        for name in names:
            await do_work(side)(name, url, work, counter.counted(f"{number} {name}"))


def do_work(side: str) -> Callable:
    return produce if side == "producer" else consume


class CpuMeter:
    """Measures the CPU seconds of a block: of the process, and of the sinks' threads."""

    def __enter__(self) -> None:
        self._threads, self._process = sink_threads_seconds(), cpu_seconds()

    def __exit__(self, *_: object) -> None:
        self.process = cpu_seconds() - self._process
        self.threads = sink_threads_seconds() - self._threads


def sink_threads_seconds() -> float:
    """Return the CPU seconds of the threads that sinks have, from Linux's accounts."""
    threads = [each for each in threading.enumerate() if each.name.startswith(("shardline sink", "shardline spans"))]
    return sum(
        int(Path(f"/proc/self/task/{each.native_id}/schedstat").read_text().split()[0]) / 1e9 for each in threads
    )


async def take_turns(side: str, url: str, names: list[str], units: int, times: int) -> None:
    """Print the CPU seconds of each round, by sink. Each round of a sink follows a round without any."""
    work = Work(is_counted=False, units=units)
    costs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names if name != "none"}
    for number in range(times):
        for name, found in costs.items():
            bare, with_sink = CpuMeter(), CpuMeter()
            pair = [("none", bare), (name, with_sink)]
            for each, meter in pair if number % 2 else reversed(pair):
                await do_work(side)(each, url, work, meter)
            found.append((bare.process, with_sink.process, with_sink.threads))
    print_json(**costs)


# ---- the report


def server_of(side: str) -> AbstractContextManager[object]:
    return running_producer_sink() if side == "producer" else running_consumer_sink(1, PAGES_MAX)


def child(mode: str, side: str, url: str, names: list[str], *, units: int, times: int) -> list[str]:
    numbers = [f"--units={units}", f"--times={times}"]
    return [__file__, f"--{mode}={side}", f"--url={url}", *numbers, *(f"--sink={name}" for name in names)]


def counted_ratios(side: str, url: str, names: list[str], units: int, times: int) -> dict[str, list[float]]:
    """Return the ratios of instructions, by sink, of each measurement."""
    found: dict[str, int] = {}
    for name in names:  # in separate processes, because Python specializes code for the first producer that runs it
        found |= instructions.run_counted(child("count", side, url, [name], units=units, times=times))
    records = units * (REQUEST if side == "producer" else PAGE)
    bare = [found[f"{number} none"] for number in range(times)]
    print(f"\n{side}: {statistics.median(bare) / records:,.0f} instructions per record without a sink")
    return {name: [found[f"{number} {name}"] / bare[number] for number in range(times)] for name in names}


def report(side: str, names: list[str], sizes: "Sizes", *, with_cpu: bool) -> list[bool]:
    with server_of(side) as running:
        url = running if isinstance(running, str) else running.url
        ratios = counted_ratios(side, url, names, sizes.counted_units, sizes.counted_times)
        costs: dict[str, list[list[float]]] = {}
        if with_cpu:
            line = child("cpu", side, url, names, units=sizes.cpu_units, times=sizes.cpu_times)
            run = subprocess.run([sys.executable, *line], check=True, stdout=subprocess.PIPE, text=True)
            costs = json.loads(run.stdout)
    met = []
    for name in names:
        if name == "none":
            continue
        ratio = statistics.median(ratios[name])
        what = f"{side} with {name} / without: {ratio:.4f} of the instructions"
        if name in costs:
            pairs = statistics.median(with_sink / bare for bare, with_sink, _ in costs[name])
            share = statistics.median(threads / bare for bare, _, threads in costs[name])
            what += f" (CPU time {pairs:.3f}, threads of the sink {share:.4f})"
        target = "" if name == TRACED else f"at most {TARGET}"
        is_met = name == TRACED or ratio <= TARGET
        met.append(verdict(what, target, met=is_met, of="sinks", width=110))
    return met


class Sizes:
    """How much is measured."""

    def __init__(self, *, is_quick: bool) -> None:
        self.counted_units, self.counted_times = (2, 1) if is_quick else (4, 3)
        self.cpu_units, self.cpu_times = (20, 5) if is_quick else (40, 15)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what each sink costs.")
    parser.add_argument("--quick", action="store_true", help="fewer measurements, rougher figures")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--only", choices=SIDES, help="only this side")
    parser.add_argument("--sink", action="append", choices=list(SINKS), help="only this sink; may be repeated")
    parser.add_argument("--no-cpu", action="store_true", help="only count instructions")
    for mode in ("count", "cpu"):
        parser.add_argument(f"--{mode}", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    for number in ("units", "times"):
        parser.add_argument(f"--{number}", type=int, help=argparse.SUPPRESS)
    add_json_option(parser)
    options = parser.parse_args()
    names = ["none", *(name for name in options.sink or SINKS if name != "none")]
    for side, run in ((options.count, count), (options.cpu, take_turns)):
        if side:
            asyncio.run(run(side, options.url, options.sink, options.units, options.times))
            return 0
    if needed := instructions.missing():
        sys.exit(f"bench_sinks.py needs {needed}")
    isolate_environment()
    sizes = Sizes(is_quick=options.quick)
    print(f"{sizes.counted_times} counts and {sizes.cpu_times} pairs of rounds, Python {sys.version.split()[0]}")
    met = []
    for side in SIDES:
        if options.only in {None, side}:
            of_side = [name for name in names if side == "producer" or name != TRACED]
            met += report(side, of_side, sizes, with_cpu=not options.no_cpu)
    write(options.json)
    return 1 if options.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
