"""Does a record cost the same on a large stream as on a small one, and after millions of records as at first?

The figure is the CPU seconds of our process, user and system, per million records: delivered by a producer (100 B, uuid
keys, limits lifted), or handed out by a consumer in batches (200 B of JSON, deserialized). Each point is a separate
process. The best of several runs counts, because other jobs on the machine can only add CPU time. The start of the
process is included, which is why the first points, with few records, are higher. A series is flat if its last point is
at most 1.5 times its minimum.

On a stream with many shards, fewer records share an entry, because the records that arrive within linger are spread
over all shards: 350 per entry with one shard, 16 with 1,024; and an entry costs as much as several records. Because two
things grow in this series, its last point may be twice the minimum. The second series of the producer has 16 records
per entry throughout, so that only the shards grow, and must be flat. The costs of the peers on the largest stream are
shown for comparison.

    python benchmarks/bench_growth.py [--quick] [--check] [--json FILE]
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from consumer_sink import running_consumer_sink
from producer_clients import cpu_seconds, print_json
from producer_sink import running_producer_sink
from results import add_json_option, isolate_environment, note_series, verdict, write

HERE = Path(__file__).parent
PEER_PYTHON = HERE.parent / ".servers/clients/bin/python"  # aiokpl pins its own botocore
FLAT = 1.5
TWO_THINGS_GROW = 2.0  # the shards, and the entries that the same records need
RECORDS = [10_000, 100_000, 1_000_000, 10_000_000]
SHARDS = [1, 4, 32, 256, 1_024]
PER_SHARD = 4_000  # the minimum for reading: opening a shard costs as much as reading hundreds of records
RUNS = {10_000: 5, 100_000: 4, 1_000_000: 3, 10_000_000: 2}
RUNS_OVER_SHARDS = {"producer": 5, "consumer": 3}
# Records per run, and the target ratio on the largest stream: the same ratio as in bench_producer.py with 32 shards.
PEERS = {"aiokpl": (10_000, 45.0), "boto3": (100_000, 2.7)}
PEER_RUNS = 5


def produce(shards: int, records: int, client: str = "shardline") -> float:
    """Return the CPU seconds of a producer per million records."""
    python = str(PEER_PYTHON) if client == "aiokpl" else sys.executable
    with running_producer_sink(shards=shards) as sink:
        line = [python, str(HERE / "producer_clients.py"), "--client", client, "--url", sink.url]
        done = subprocess.run(line, input=f"{records}\n", check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])["cpu"] / records * 1e6


def consume(shards: int, records: int) -> float:
    """Return the CPU seconds of a consumer per million records."""
    with running_consumer_sink(shards, records // shards) as url:
        line = [sys.executable, __file__, "--consume", url, "--records", str(records // shards * shards)]
        done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)["cpu"] / records * 1e6


async def read_all(url: str, records: int) -> None:
    from shardline import Consumer, ConsumerConfig, Credentials

    consumer = Consumer(
        "bench",
        config=ConsumerConfig(calls_per_second=1_000.0, bytes_per_second=1e12),
        deserializer=json.loads,
        endpoint_url=url,
        region="us-east-1",
        credentials=Credentials("AKIDEXAMPLE", "secret"),
    )
    began_at, cpu = time.perf_counter(), cpu_seconds()
    left = records
    async with consumer:
        async for batch in consumer.batches():
            left -= len(batch.values)
            if left <= 0:
                break
        print_json(cpu=cpu_seconds() - cpu, seconds=time.perf_counter() - began_at, too_many=-left)
        os._exit(0)  # closing a thousand shards is not measured


def grow(
    what: str,
    axis: str,
    points: list[int],
    measure: Callable[[int], float],
    runs: Callable[[int], int],
    *,
    most: float = FLAT,
) -> bool:
    """Measure all points in turns, several times; return whether the last cost is at most ``most`` times the lowest."""
    costs: dict[int, float] = {}
    for turn in range(max(map(runs, points))):
        for point in points:
            if turn < runs(point):
                costs[point] = min(costs.get(point, math.inf), measure(point))
    cells = ", ".join(f"{point:,}: {cost:.2f}" for point, cost in costs.items())
    note_series(
        what, axis, "CPU s per million records", {f"{point:,}": round(cost, 3) for point, cost in costs.items()}
    )
    flat = costs[points[-1]] <= most * min(costs.values())
    return verdict(f"{what} by {axis}: {cells}", f"last <= {most:g} x least", met=flat, width=100)


def compare_with_peers(shards: int, records: int) -> list[bool]:
    """Measure how many times our CPU the peers need on the largest stream; return whether each target is met."""
    costs: dict[str, list[float]] = {client: [] for client in ("shardline", *PEERS)}
    for _ in range(PEER_RUNS):
        for client, measured in costs.items():
            measured.append(produce(shards, PEERS[client][0] if client in PEERS else records, client))
    best = {client: min(measured) for client, measured in costs.items()}
    met = []
    for client, (_, at_least) in PEERS.items():
        ratio = best[client] / best["shardline"]
        what = (
            f"{client} / shardline over {shards:,} shards: {ratio:.1f} ({best[client]:.1f} / {best['shardline']:.2f})"
        )
        met.append(verdict(what, f"at least {at_least:g}", met=ratio >= at_least, width=100))
    return met


def run(records: list[int], shards: list[int], least: int) -> bool:
    def produce_by(client: str) -> Callable[[int], float]:
        return lambda count: produce(count, least, client)

    def consume_over(count: int) -> float:
        return consume(count, max(least, PER_SHARD * count))

    print("CPU seconds per million records")
    return all(
        [
            grow("producer", "records", records, lambda count: produce(32, count), lambda count: RUNS[count]),
            grow(
                "producer",
                "shards",
                shards,
                produce_by("shardline"),
                lambda _: RUNS_OVER_SHARDS["producer"],
                most=TWO_THINGS_GROW,
            ),
            grow(
                "producer, 16 an entry",
                "shards",
                shards,
                produce_by("shardline 16 an entry"),
                lambda _: RUNS_OVER_SHARDS["producer"],
            ),
            *compare_with_peers(shards[-1], least),
            grow("consumer", "records", records, lambda count: consume(4, count), lambda count: RUNS[count]),
            grow("consumer", "shards", shards, consume_over, lambda _: RUNS_OVER_SHARDS["consumer"]),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the cost of a record as streams grow.")
    parser.add_argument("--quick", action="store_true", help="up to 100,000 records and 32 shards")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the cost does not stay flat")
    parser.add_argument("--consume", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, help=argparse.SUPPRESS)
    add_json_option(parser)
    options = parser.parse_args()
    isolate_environment()
    if options.consume:
        import asyncio

        asyncio.run(read_all(options.consume, options.records))
    began_at = time.monotonic()
    met = run(RECORDS[:2], SHARDS[:3], 100_000) if options.quick else run(RECORDS, SHARDS, 1_000_000)
    write(options.json)
    print(f"{time.monotonic() - began_at:.0f} s{'' if met else '; MISSED'}")
    return 1 if options.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
