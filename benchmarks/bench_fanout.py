"""What does enhanced fan-out gain and cost, compared with polling?

Both readers are measured in one run, on the embedded server (consumer_server.py, a separate process without rate
limits), in processes of their own (fanout_client.py):

- the time from a put to the handler, at 20 records per second over 8 shards;
- CPU seconds per million records at full rate, plain and aggregated, in turns, best and median round;
- the same by instructions, counted by callgrind, which other programs on the machine do not change (if valgrind is
  installed); of memory that is copied, callgrind counts each byte;
- the CPU and the connections of a worker with 1,000 idle shards;
- the memory of a worker whose handler hangs.

The latencies are those of this server, which pushes a record at once. On AWS, the service and the network add theirs.
`--check` fails if a target is missed.

    python benchmarks/bench_fanout.py [--quick] [--check] [--only latency]
"""

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import instructions
from consumer_server import (
    AGGREGATED,
    EMPTY,
    PER_AGGREGATE,
    PLAIN,
    SHARDS,
    SIZE,
    STEADY,
    Server,
    running_consumer_server,
)
from fanout_client import BUDGET, RATE, READERS
from results import add_json_option, isolate_environment, peer_row, verdict, write

from shardline.core.consumer.prefetch import RECORD_BYTES

HERE = Path(__file__).parent
P50_TARGET, P99_TARGET = 0.030, 0.100
IDLE_TARGET = 0.05  # of a core
CONNECTIONS_TARGET = 40
# Beside the budget, each shard may hold a page and an opened slice of 10,000 records (core/consumer/prefetch.py).
SLACK_PER_SHARD = 10_000 * (SIZE + RECORD_BYTES) + 10_000 * SIZE
MIB = 1024 * 1024
COUNTED = 12_000  # records: a page and an event of each shard have the same 3,000, about 1 MB
COUNTED_ROUNDS = 2


@dataclass(frozen=True)
class Plan:
    records: int
    rounds: int
    seconds: float


FULL = Plan(records=100_000, rounds=6, seconds=20.0)
QUICK = Plan(records=60_000, rounds=3, seconds=8.0)


def ask(question: str, reader: str, stream: str, server: Server, plan: Plan, *, rounds: int = 1) -> dict:
    line = [sys.executable, *client_line(question, reader, stream, server, plan, rounds=rounds)]
    return json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)


def client_line(question: str, reader: str, stream: str, server: Server, plan: Plan, *, rounds: int) -> list[str]:
    facts = server.facts
    line = [str(HERE / "fanout_client.py"), question, "--reader", reader, "--stream", stream]
    line += ["--url", facts["url"], "--access-key", facts["access_key"], "--secret-key", facts["secret_key"]]
    return [*line, "--seconds", str(plan.seconds), "--records", str(plan.records), "--rounds", str(rounds)]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report_latency(plan: Plan, server: Server) -> list[bool]:
    (shards,) = STEADY.values()
    print(f"\nFrom put to handler, {RATE} records/s over {shards} shards")
    met = []
    for reader in READERS:
        took = ask("latency", reader, *STEADY, server, plan)["latencies"]
        p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
        what = f"{reader}: p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, of {len(took)} records"
        if reader == "polling":
            peer_row(what, of="put to handler")
        else:
            fine = p50 <= P50_TARGET and p99 <= P99_TARGET
            target = f"{P50_TARGET * 1000:.0f} and {P99_TARGET * 1000:.0f} ms"
            met.append(verdict(what, target, met=fine, of="put to handler"))
    return met


def report_cpu(plan: Plan, server: Server) -> list[bool]:
    met = []
    for stream, kind in ((PLAIN, "plain"), (AGGREGATED, f"{PER_AGGREGATE} per aggregate")):
        print(
            f"\n{plan.records:,} records of {SIZE} B ({kind}) over {SHARDS} shards, json.loads of each, in one process:"
            " CPU seconds per million records"
        )
        print("  a page of polling has at most 10,000 entries, an event at most 1 MiB")
        found = ask("cpu", READERS[0], stream, server, plan, rounds=plan.rounds)
        costs = found["costs"]
        best, median = ({reader: find(costs[reader]) for reader in READERS} for find in (min, statistics.median))
        figures = ", ".join(f"{reader} {best[reader]:.2f} (median {median[reader]:.2f})" for reader in READERS)
        ratios = [found["fan-out"] / found["polling"] for found in (best, median)]
        what = f"{figures}: ratio {ratios[0]:.2f} (medians {ratios[1]:.2f})"
        fine = [ratio <= 1.0 for ratio in ratios]
        of = f"CPU s per million records, {kind}"
        met.append(verdict(what, "at most polling's", met=all(fine), partly=any(fine), of=of))
        starts = ", ".join(f"{reader} {milliseconds:.0f} ms" for reader, milliseconds in found["starts"].items())
        print(f"  the start of a consumer, not in these figures: {starts}")
    return met


def report_count(plan: Plan, _: Server) -> list[bool]:
    if needed := instructions.missing():
        print(f"\nInstructions per record: not counted, because {needed} is missing")
        return []
    met = []
    for stream, kind in ((PLAIN, "plain"), (AGGREGATED, f"{PER_AGGREGATE} per aggregate")):
        print(
            f"\n{COUNTED:,} records of {SIZE} B ({kind}), {SHARDS} shards: instructions per record, without the start"
        )
        cost = count_instructions(stream, Plan(COUNTED, plan.rounds, plan.seconds))
        ratio = cost["fan-out"] / cost["polling"]
        what = f"{', '.join(f'{reader} {cost[reader]:,.0f}' for reader in READERS)}: ratio {ratio:.3f}"
        met.append(verdict(what, "at most polling's", met=ratio <= 1.0, of=f"instructions per record, {kind}"))
    return met


def count_instructions(stream: str, plan: Plan) -> dict[str, float]:
    """Return the instructions per record of each reader, in its best round.

    A round that takes longer, because the machine is busy, has more timers and empty pages. This only adds.
    """
    with running_consumer_server(plan.records) as server:
        line = client_line("count", READERS[0], stream, server, plan, rounds=COUNTED_ROUNDS)
        found = instructions.run_counted(line)
    best = {
        (work, reader): min(found[f"{number} {work} {reader}"] for number in range(1, COUNTED_ROUNDS + 1))
        for work in ("start", "reading")
        for reader in READERS
    }
    return {reader: (best["reading", reader] - best["start", reader]) / plan.records for reader in READERS}


def report_idle(plan: Plan, server: Server) -> list[bool]:
    stream, shards = max(EMPTY.items(), key=lambda item: item[1])
    print(f"\nA worker of {shards:,} shards that have nothing")
    met = []
    for reader in READERS:
        found = ask("idle", reader, stream, server, plan)
        share = found["cpu"] / found["seconds"]
        what = f"{reader}: {share:.1%} of a core, {found['connections']} connections"
        if reader == "polling":
            peer_row(what, of=f"{shards:,} idle shards")
        else:
            fine = share < IDLE_TARGET and found["connections"] < CONNECTIONS_TARGET
            target = f"under {IDLE_TARGET:.0%}, {CONNECTIONS_TARGET}"
            met.append(verdict(what, target, met=fine, of=f"{shards:,} idle shards"))
    return met


def report_stuck(plan: Plan, server: Server) -> list[bool]:
    print(f"\nA handler that hangs, with a prefetch budget of {BUDGET // MIB} MiB")
    met = []
    for reader in READERS:
        found = ask("stuck", reader, PLAIN, server, plan)
        what = f"{reader}: {found['bytes'] / MIB:.0f} MiB more, {found['prefetched']:,} records prefetched"
        if reader == "polling":
            peer_row(what, of="stuck handler")
        else:
            limit = BUDGET + SHARDS * SLACK_PER_SHARD
            met.append(verdict(what, f"under {limit // MIB} MiB", met=found["bytes"] < limit, of="stuck handler"))
    return met


REPORTS = {
    "latency": report_latency,
    "cpu": report_cpu,
    "count": report_count,
    "idle": report_idle,
    "stuck": report_stuck,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare enhanced fan-out with polling.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, rougher figures")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--only", choices=REPORTS, help="only this part")
    add_json_option(parser)
    options = parser.parse_args()
    isolate_environment()
    plan = QUICK if options.quick else FULL
    met = []
    print(f"Python {sys.version.split()[0]}")
    with running_consumer_server(plan.records) as server:
        for name, report in REPORTS.items():
            if options.only in (None, name):
                met += report(plan, server)
    write(options.json)
    return 1 if options.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
