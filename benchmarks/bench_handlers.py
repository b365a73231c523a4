"""How much do handlers side by side bring, and what do they cost?

- *Waiting*: an async handler awaits 50 ms, over 4 shards, with ``order="key"`` and different keys. The figure is the
  records per second of the whole worker, as a share of the ideal: ``concurrency`` / 50 ms. It is wall-clock time, so
  other jobs on the machine lower it. The best of several runs counts. The CPU per record shows how many records a core
  could handle.
- *Key lanes*: the CPU that ``core/consumer/key_lanes`` needs for a record, from the page to its release. The cost of
  the loop around it, measured with a plain queue, is subtracted.
- *Computing*: a handler that computes for 5 ms, in two processes. The yardstick is measured in the same run, in turns:
  one and two plain processes that call the same function. Both share the machine with other jobs, so the figure is the
  speed of two handlers' processes as a share of that of two plain processes, times two.

    python benchmarks/bench_handlers.py [--quick] [--json FILE]
"""

import argparse
import asyncio
import collections
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from results import add_json_option, isolate_environment, verdict, write

SHARDS = 4
PAUSE = 0.05
SECONDS = 4.0  # the ideal duration of one run
# The concurrency, and the share of the ideal that is the target.
WAITING = {1: 0.9, 64: 0.9, 512: 0.9}
LANES_MAX = 1.5e-6
LANE_RECORDS = 5_000  # in one short run: other jobs disturb a long one
LANE_RUNS = 200
CORES = 1.7
CALLS = 400  # of the handler that computes
DATA = b"x" * 100


def compute(data: bytes) -> bytes:
    """Compute for about 5 ms."""
    for _ in range(6_000):
        data = hashlib.md5(data, usedforsecurity=False).digest()
    return data


def handle_computing(record: object) -> None:
    """The handler that computes."""
    compute(record.data)  # type: ignore[attr-defined]


# ---- the server


async def _put(kinesis: object, records: int) -> None:
    from shardline import Producer

    where = {name: getattr(kinesis, name) for name in ("endpoint_url", "region", "credentials")}
    async with Producer("bench", **where) as producer:
        await producer.put_many([(f"key-{number}", DATA) for number in range(records)])
        await producer.flush()


def serve(records: int) -> None:
    """Serve a stream with these records, in a process of its own, until the standard input ends."""
    from shardline.testing import LocalKinesis

    with LocalKinesis(shards=SHARDS, limits=False, stream="bench") as kinesis:
        asyncio.run(_put(kinesis, records))
        print(kinesis.endpoint_url, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def running_server(records: int) -> Iterator[str]:
    line = [sys.executable, __file__, "--serve", str(records)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def make_consumer(url: str, **arguments: object):
    from shardline import Consumer, ConsumerConfig, Credentials

    return Consumer(
        "bench",
        config=ConsumerConfig(calls_per_second=1_000.0, bytes_per_second=1e12, lease_duration=60.0),
        endpoint_url=url,
        region="us-east-1",
        credentials=Credentials("AKIDEXAMPLE", "secret"),
        **arguments,
    )


# ---- waiting


async def wait_side_by_side(url: str, concurrency: int, records: int) -> tuple[float, float]:
    """Return the records per second, and the CPU seconds per record."""
    began_at = ended_at = 0.0
    left = records

    async with make_consumer(url) as consumer:

        async def handle(_: object) -> None:
            nonlocal began_at, ended_at, left
            began_at = began_at or time.perf_counter()
            await asyncio.sleep(PAUSE)
            left -= 1
            if not left:
                ended_at = time.perf_counter()
                await consumer.close()

        await consumer.wait_ready()
        cpu = time.process_time()
        await consumer.run(handle, concurrency=concurrency, order="key")
    return records / (ended_at - began_at), (time.process_time() - cpu) / records


def measure_waiting(runs: int) -> None:
    for concurrency, target in WAITING.items():
        ideal = concurrency / PAUSE
        records = max(concurrency * 2, int(ideal * SECONDS))
        with running_server(records) as url:
            found = [asyncio.run(wait_side_by_side(url, concurrency, records)) for _ in range(runs)]
        rate, cpu = max(rate for rate, _ in found), min(cpu for _, cpu in found)
        share = rate / ideal
        verdict(
            f"concurrency {concurrency}: {rate:,.0f} of {ideal:,.0f} records/s, {share:.2f}; "
            f"{cpu * 1e6:,.0f} us CPU a record",
            f"at least {target} of the ideal",
            met=share >= target,
        )


# ---- key lanes


class _Queue:
    """The same calls without keys: the cost of the loop around the lanes."""

    def __init__(self) -> None:
        self._records: collections.deque[tuple[int, object]] = collections.deque()

    def add(self, records: list[object], _: float) -> None:
        self._records.extend(enumerate(records))

    def has_waiting(self, _: int) -> bool:
        return bool(self._records)

    def take(self, _limit: int, _end: int) -> list[tuple[int, object]]:
        return [self._records.popleft()]

    def release(self, records: list[object]) -> None:
        """Do nothing."""


def loop_costs(lanes: Any, records: list[Any]) -> float:
    """Return the CPU seconds per record of a loop that takes records one by one, and releases them 64 at a time."""
    count = len(records)
    in_flight: list[list[object]] = []
    began = time.process_time()
    for start in range(0, count, 1_000):
        lanes.add(records[start : start + 1_000], 0.0)
        while lanes.has_waiting(count):
            taken = lanes.take(1, count)
            if taken:
                in_flight.append([taken[0][1]])
            if len(in_flight) >= 64 or not taken:
                for done in in_flight:
                    lanes.release(done)
                in_flight.clear()
    return (time.process_time() - began) / count


def lane_costs(keys: int, count: int, runs: int) -> float:
    """Return the CPU seconds per record of the lanes, without the loop around them."""
    from shardline.core.consumer.key_lanes import KeyLanes, ShardLanes
    from shardline.model.record import Record

    records = [Record(DATA, f"key-{number % keys}") for number in range(count)]
    with_lanes: list[float] = []
    without: list[float] = []
    for _ in range(runs):
        with_lanes.append(loop_costs(ShardLanes(KeyLanes(), ("s", "shard"), by_key=True, first=0), records))
        without.append(loop_costs(_Queue(), records))
    return min(with_lanes) - min(without)


def measure_lanes(runs: int, count: int) -> None:
    for what, keys in (("different keys", count), ("1,000 keys", 1_000)):
        cost = lane_costs(keys, count, runs)
        verdict(f"key lanes, {what}: {cost * 1e6:.2f} us CPU a record", "at most 1.5 us", met=cost <= LANES_MAX)


# ---- computing


def plain(calls: int) -> None:
    """Be a plain process: compute when a line comes, until the standard input ends."""
    print("ready", flush=True)
    for _ in sys.stdin:
        for _ in range(calls):
            compute(DATA)
        print("done", flush=True)


def time_plain(processes: int, calls: int) -> float:
    """Return how long this many plain processes take for the calls together."""
    line = [sys.executable, __file__, "--plain", str(calls // processes)]
    started = [
        subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for process in started:
        process.stdout.readline()
    began = time.perf_counter()
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        process.stdout.readline()
    took = time.perf_counter() - began
    for process in started:
        process.communicate()
    return took


def time_handlers(url: str, calls: int) -> float:
    """Return how long two handlers' processes take for the calls, without their start."""
    done = subprocess.run(
        [sys.executable, __file__, "--compute", url, "--calls", str(calls)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["took"])


async def compute_in_processes(url: str, calls: int) -> float:
    """Run two handlers' processes, and return how long the calls took after the first twentieth."""
    warm_up = calls // 20
    began_at = ended_at = 0.0
    async with make_consumer(url) as consumer:

        async def watch() -> None:
            nonlocal began_at, ended_at
            while consumer.status().totals.records_handled < warm_up:  # noqa: ASYNC110 - other processes handle them
                await asyncio.sleep(0.005)
            began_at = time.perf_counter()
            while consumer.status().totals.records_handled < calls:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)
            ended_at = time.perf_counter()
            await consumer.close()

        watching = asyncio.create_task(watch())
        await consumer.run(handle_computing, processes=2, order="key")
        await watching
    return (ended_at - began_at) * calls / (calls - warm_up)


def measure_computing(runs: int, calls: int) -> None:
    one: list[float] = []
    two: list[float] = []
    ours: list[float] = []
    with running_server(calls) as url:
        for _ in range(runs):
            one.append(time_plain(1, calls))
            two.append(time_plain(2, calls))
            ours.append(time_handlers(url, calls))
    cores = 2 * min(two) / min(ours)
    verdict(
        f"processes=2: {cores:.2f} of two plain processes' 2 cores (a plain one takes {min(one):.2f} s, two "
        f"{min(two):.2f} s, ours {min(ours):.2f} s)",
        f"at least {CORES} of 2",
        met=cores >= CORES,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure handlers side by side.")
    parser.add_argument("--quick", action="store_true", help="fewer runs, rougher figures")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--compute", help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, default=CALLS, help=argparse.SUPPRESS)
    add_json_option(parser)
    options = parser.parse_args()
    isolate_environment()
    if options.serve is not None:
        serve(options.serve)
    elif options.plain is not None:
        plain(options.plain)
    elif options.compute is not None:
        print(json.dumps({"took": asyncio.run(compute_in_processes(options.compute, options.calls))}))
    else:
        runs = 2 if options.quick else 5
        print(f"handlers side by side, load average {os.getloadavg()[0]:.1f}", flush=True)
        measure_lanes(LANE_RUNS, LANE_RECORDS)
        measure_waiting(runs)
        measure_computing(runs, options.calls)
        write(options.json)


if __name__ == "__main__":
    main()
