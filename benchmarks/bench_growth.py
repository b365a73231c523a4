"""Does a record cost the same on a large stream as on a small one, and after millions of records as at first?

The figure is the CPU seconds of our process, user and system, per million records: delivered by a producer (100 B, uuid
keys, limits lifted), or handed out by a consumer in batches (200 B of JSON, deserialized). Each point is a separate
process. The best of several runs counts, because other jobs on the machine can only add CPU time. The start of the
process is included, which is why the first points, with few records, are higher. A series is flat if its last point is
at most 1.5 times its minimum.

On a stream with many shards, fewer records share an entry, because the records that arrive within linger are spread
over all shards: 350 per entry with one shard, 16 with 1,024; and an entry costs as much as several records. Because two
things grow in this series, 1,024 shards may cost 1.7 times as much as one shard, by the best and by the median runs.
The second series of the producer has 16 records per entry throughout, so that only the shards grow, and must be flat.
The costs of the peers on the largest stream are shown for comparison. Every series is measured with and without the C
extension, in turn (forms.py).

    python benchmarks/bench_growth.py [--quick] [--check] [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forms
from consumer_sink import running_consumer_sink
from producer_clients import cpu_seconds, form_in_use, print_json
from producer_sink import running_producer_sink
from results import Cost, add_json_option, isolate_environment, note_series, verdict, write

HERE = Path(__file__).parent
PEER_PYTHON = HERE.parent / ".servers/clients/bin/python"  # aiokpl pins its own botocore
FLAT = 1.5
RECORDS = [10_000, 100_000, 1_000_000, 10_000_000]
SHARDS = [1, 4, 32, 256, 1_024]
PER_SHARD = 4_000  # the minimum for reading: opening a shard costs as much as reading hundreds of records
RUNS = {10_000: 5, 100_000: 4, 1_000_000: 3, 10_000_000: 2}
RUNS_OVER_SHARDS = {"producer": 5, "consumer": 3}
# Records per run, and the target ratio of each form on the largest stream.
PEERS = {"aiokpl": (10_000, forms.Limits(45, 45)), "boto3": (100_000, forms.Limits(2.7, 2.7))}
PEER_RUNS = 5


def produce(shards: int, records: int, client: str) -> float:
    """Return the CPU seconds of a producer per million records."""
    python = str(PEER_PYTHON) if client == "aiokpl" else sys.executable
    with running_producer_sink(shards=shards) as sink:
        name = client.removesuffix(forms.PURE)
        line = [python, str(HERE / "producer_clients.py"), "--client", name, "--url", sink.url]
        ready, found = run_child(line, client, f"{records}\n")
    if client not in PEERS:
        forms.check_form(client, ready["form"])
    return found["cpu"] / records * 1e6


def consume(shards: int, records: int, suffix: str) -> float:
    """Return the CPU seconds of a consumer per million records."""
    with running_consumer_sink(shards, records // shards) as url:
        line = [sys.executable, __file__, "--consume", url, "--records", str(records // shards * shards)]
        [found] = run_child(line, suffix)
    forms.check_form(suffix, found["form"])
    return found["cpu"] / records * 1e6


def run_child(line: list[str], name: str, input_: str = "") -> list[dict[str, Any]]:
    """Run a client with this name, and return what it printed."""
    environment = forms.environment_of(name)
    done = subprocess.run(line, input=input_, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return [json.loads(printed) for printed in done.stdout.splitlines()]


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
        print_json(cpu=cpu_seconds() - cpu, seconds=time.perf_counter() - began_at, too_many=-left, form=form_in_use())
        os._exit(0)  # closing a thousand shards is not measured


Measure = Callable[[int, str], float]
"""Returns the cost at a point of the axis, in the form whose names end like this."""


def grow(what: str, axis: str, points: list[int], measure: Measure, runs: Callable[[int], int]) -> bool:
    """Measure all points in both forms, in turns, several times; return whether the series keep their limits."""
    costs: dict[str, dict[int, list[float]]] = {suffix: {point: [] for point in points} for suffix in forms.suffixes()}
    for turn in range(max(map(runs, points))):
        for point in points:
            for suffix, found in costs.items():
                if turn < runs(point):
                    found[point].append(measure(point, suffix))
    return all([judge_series(what, axis, suffix, found) for suffix, found in costs.items()])  # noqa: C419 - print all


def judge_series(what: str, axis: str, suffix: str, costs: dict[int, list[float]]) -> bool:
    """Print and collect a series. By the best runs, it is flat if the last cost is hardly above the lowest."""
    best = {point: min(measured) for point, measured in costs.items()}
    name = what + suffix
    note_series(name, axis, "CPU s per million records", {f"{point:,}": round(cost, 3) for point, cost in best.items()})
    cells = f"{name} by {axis}: " + ", ".join(f"{point:,}: {cost:.2f}" for point, cost in best.items())
    first, *_, last = best
    if (what, axis, last) == ("producer", "shards", SHARDS[-1]):
        median = {point: statistics.median(measured) for point, measured in costs.items()}
        ratios = Cost(best[last] / best[first], median[last] / median[first])
        cells += f"; {last:,} / {first:,}: {ratios.best:.2f} (medians {ratios.median:.2f})"
        return forms.judge(forms.GROWTH, cells, suffix, ratios, width=100)
    flat = best[last] <= FLAT * min(best.values())
    return verdict(cells, f"last <= {FLAT:g} x least", met=flat, width=100)


def compare_with_peers(shards: int, records: int) -> list[bool]:
    """Measure how many times our CPU the peers need on the largest stream; return whether each target is met."""
    ours = ["shardline" + suffix for suffix in forms.suffixes()]
    costs: dict[str, list[float]] = {client: [] for client in (*ours, *PEERS)}
    for _ in range(PEER_RUNS):
        for client, measured in costs.items():
            measured.append(produce(shards, PEERS[client][0] if client in PEERS else records, client))
    all_costs = {client: Cost(min(measured), statistics.median(measured)) for client, measured in costs.items()}
    met = []
    for peer, (_, limits) in PEERS.items():
        for name in ours:
            ratios = Cost(*(theirs / own for theirs, own in zip(all_costs[peer], all_costs[name], strict=True)))
            medians = f"medians {ratios.median:.1f}"
            costs_of_both = f"{all_costs[peer].best:.1f} / {all_costs[name].best:.2f}"
            what = f"{peer} / {name} over {shards:,} shards: {ratios.best:.1f} ({medians}; {costs_of_both})"
            met.append(forms.judge(limits, what, name, ratios, width=100))
    return met


def run(records: list[int], shards: list[int], least: int) -> bool:
    def produce_by(client: str) -> Measure:
        return lambda count, suffix: produce(count, least, client + suffix)

    def produce_more(count: int, suffix: str) -> float:
        return produce(32, count, "shardline" + suffix)

    def consume_more(count: int, suffix: str) -> float:
        return consume(4, count, suffix)

    def consume_over(count: int, suffix: str) -> float:
        return consume(count, max(least, PER_SHARD * count), suffix)

    def runs(count: int) -> int:
        return RUNS[count]

    def over_shards(kind: str) -> Callable[[int], int]:
        return lambda _: RUNS_OVER_SHARDS[kind]

    print("CPU seconds per million records")
    return all(
        [
            grow("producer", "records", records, produce_more, runs),
            grow("producer", "shards", shards, produce_by("shardline"), over_shards("producer")),
            grow(
                "producer, 16 an entry",
                "shards",
                shards,
                produce_by("shardline 16 an entry"),
                over_shards("producer"),
            ),
            *compare_with_peers(shards[-1], least),
            grow("consumer", "records", records, consume_more, runs),
            grow("consumer", "shards", shards, consume_over, over_shards("consumer")),
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
