"""Measures two settings of the producer, for the plots of ``docs/guides/producer/throughput.md``.

- ``linger``: at a steady 1,000 records of 100 B per second, answered in 2 ms by a sink of 32 shards, what is a record's
  latency, and how many requests are sent?
- ``aggregate_max_bytes``: at full speed, with four keys and without limits, how much CPU does a record cost, and how
  many records share a Kinesis record?

Every point is a separate process, as in ``bench_producer.py``. The best of its rounds counts, because other jobs on the
machine can only add CPU time. The script writes ``docs/pictures/tuning.json``, and ``docs/pictures/draw.py`` draws the
plots.

    python benchmarks/tuning.py [--quick] [--only linger|aggregate_max_bytes]
"""

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from producer_clients import Job, print_json, shardline_arguments, shardline_put
from producer_latency import RATE, SIZE, make_records, measure_producer
from producer_sink import ProducerSink, running_producer_sink

HERE = Path(__file__)
FIGURES = HERE.parents[1] / "docs" / "pictures" / "tuning.json"
DELAY = 0.002
LINGERS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
AGGREGATES = (0, 1_024, 4_096, 16_384, 51_200, 102_400, 262_144, 1_000_000)  # 0: not aggregated
HOT_KEYS, SLICE, ROUND = 4, 50_000, 100_000
PARTS = ("linger", "aggregate_max_bytes")


# ---- one point, in a separate process


def steady(url: str, linger: float, seconds: int) -> None:
    """Put at a steady rate, and print the latency of the records in milliseconds."""
    import anyio

    arguments = shardline_arguments(Job(url, SIZE, 0, 0), linger=linger)
    records = make_records((seconds + 1) * RATE)
    took = sorted(anyio.run(measure_producer, arguments, records)[RATE:])  # the first second does not count
    print_json(p50=took[len(took) // 2] * 1e3, p99=took[len(took) * 99 // 100] * 1e3)
    os._exit(0)


def flat_out(url: str, aggregate_max_bytes: int) -> None:
    """Put a round of records for each line of standard input, as ``producer_clients.py`` does."""
    import anyio

    settings = {"aggregate_max_bytes": aggregate_max_bytes} if aggregate_max_bytes else {"aggregation": False}
    job = Job(url, SIZE, HOT_KEYS, SLICE)
    anyio.run(lambda: shardline_put(job, **settings))


# ---- all points


def measure_linger(linger: float, seconds: int, rounds: int) -> dict[str, float]:
    with running_producer_sink(DELAY) as sink:
        line = [sys.executable, str(HERE), "--url", sink.url, "--linger", str(linger), "--seconds", str(seconds)]
        runs = [subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True) for _ in range(rounds)]
        counts = sink.counts()
    found = [json.loads(run.stdout) for run in runs]
    records = (seconds + 1) * RATE * rounds
    return {
        "linger_ms": linger * 1e3,
        **{name: round(min(figures[name] for figures in found), 1) for name in ("p50", "p99")},
        "requests_per_second": round(counts.requests / records * RATE, 1),
    }


@contextlib.contextmanager
def running_client(size: int, sink: ProducerSink) -> Iterator[Callable[[int], dict[str, float]]]:
    """Run a producer with aggregates of that size in a separate process; yield a function that puts records."""
    line = [sys.executable, str(HERE), "--url", sink.url, "--aggregate", str(size)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(records: int) -> dict[str, float]:
            before = sink.counts()
            process.stdin.write(f"{records}\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            entries = sink.counts().since(before).entries
            return {"cpu_us": found["cpu"] / records * 1e6, "records_per_entry": records / entries}

        process.stdout.readline()  # ready
        try:
            yield run
        finally:
            process.kill()


def measure_aggregates(rounds: int) -> list[dict[str, float]]:
    """Measure all sizes in turns, so that a slow minute affects all of them."""
    with running_producer_sink() as sink, contextlib.ExitStack() as stack:
        clients = {size: stack.enter_context(running_client(size, sink)) for size in AGGREGATES}
        for run in clients.values():
            run(ROUND // 4)  # a warm-up, which does not count
        found = [{size: run(ROUND) for size, run in clients.items()} for _ in range(rounds)]
    return [
        {
            "aggregate_max_bytes": size,
            "cpu_us": round(min(costs[size]["cpu_us"] for costs in found), 2),
            "records_per_entry": round(max(costs[size]["records_per_entry"] for costs in found), 1),
        }
        for size in AGGREGATES
    ]


def measure(parts: Sequence[str], seconds: int, rounds: int) -> dict[str, object]:
    """Measure the parts, and return the previous figures updated with them."""
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    figures |= {"command": "python benchmarks/tuning.py", "python": platform.python_version()}
    if "linger" in parts:
        figures["linger"] = [measure_linger(linger, seconds, rounds) for linger in LINGERS]
    if "aggregate_max_bytes" in parts:
        figures["aggregate_max_bytes"] = measure_aggregates(2 * rounds)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure two settings of the producer, for docs/guides/producer/throughput.md."
    )
    parser.add_argument(
        "--quick", action="store_true", help="shorter and rougher; prints the figures, but writes no file"
    )
    parser.add_argument("--only", choices=PARTS, help="measure only this setting, and keep the other figures")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--linger", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--aggregate", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.linger is not None:
        steady(options.url, options.linger, options.seconds)
    elif options.aggregate is not None:
        flat_out(options.url, options.aggregate)
    else:
        parts = PARTS if options.only is None else (options.only,)
        figures = measure(parts, 2, 1) if options.quick else measure(parts, 6, 4)
        text = json.dumps(figures, indent=1) + "\n"
        print(text, end="")
        if not options.quick:
            FIGURES.write_text(text)


if __name__ == "__main__":
    main()
