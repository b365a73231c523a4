"""How much CPU and time does it take to deliver a record, with Shardline and with other clients?

The figure is the CPU seconds of the client's process, user and system, per million records whose deliveries were
awaited: wall-clock time says more about the machine. Every client is a separate process (producer_clients.py) and uses
the same sink (producer_sink.py: 32 shards). The clients take turns round by round, after one warm-up round each. The
limits per shard are lifted for all clients that have them; all other settings are the defaults.

Other jobs on the machine can only add CPU time, which is a reason to compare the best rounds. But the rounds of a slow
client are longer, and a long round is hardly ever undisturbed, which is a reason to compare the medians. So a ratio
meets its target only if both do; the table says if only one does. aiokpl runs on uvloop if its environment has it; the
table says if it does not, because it then needs more CPU. `--check` fails if a target is missed.

Each of our clients runs twice, with and without the C extension (forms.py), in turn with the others.

    python benchmarks/bench_producer.py [--quick] [--check] [--only uuid] [--ours-only] [--peer-python PYTHON]
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import forms
from forms import Limits, judge
from producer_latency import LINGER, SHARES
from producer_sink import Counts, ProducerSink, running_producer_sink
from results import Cost, add_json_option, isolate_environment, note_ratio, note_series, peer_row, verdict, write

HERE = Path(__file__).parent
PEER_PYTHON = HERE.parent / ".servers/clients/bin/python"  # aiokpl pins its own botocore
DELAY = 0.002  # of the sink's answers when latency is measured
ENTRIES_TARGET, MEMORY_RUNS = 20, 5
COLUMNS = "  {:<32} {:>9} {:>9} {:>13} {:>10} {:>9}"


@dataclass(frozen=True)
class Plan:
    rounds: int
    share: float  # the fraction of each client's records that a round has
    latency_seconds: int
    steady_only: bool = False  # leave out clients that are not compared with a steady peer


FULL = Plan(rounds=4, share=1.0, latency_seconds=8)
QUICK = Plan(rounds=2, share=0.5, latency_seconds=3)
GUARD = Plan(rounds=2, share=1.0, latency_seconds=3, steady_only=True)
# aiokpl's CPU varies by half from run to run, because the size of its batches depends on timing; and one of its rounds
# takes longer than all others together.
STEADY_PEERS = ("boto3", "aiobotocore")


@dataclass(frozen=True)
class Target:
    """Limits for the ratio of two clients' CPU."""

    upper: str
    lower: str
    limits: Limits


@dataclass(frozen=True)
class Case:
    name: str
    size: int
    hot_keys: int
    clients: dict[str, int]  # the number of records in a round, by client
    targets: list[Target]


OURS = {"shardline": 150_000, "shardline put_many": 150_000, "shardline trio": 150_000, "shardline sync": 150_000}
PEERS = {"boto3": 100_000, "aiokpl": 15_000}


def targets(aiokpl: Limits, boto3: Limits) -> list[Target]:
    return [
        Target("aiokpl", "shardline", aiokpl),
        Target("boto3", "shardline", boto3),
        Target("shardline sync", "shardline", Limits(1.3, 1.3, at_most=True)),
    ]


OTHER_PUTS = [
    # For the guard: 30 % more CPU than the asynchronous `put` may use in the pure form.
    Target("boto3", "shardline sync", Limits(2.1, 2.1)),
    Target("boto3", "shardline put_many", forms.PUT_MANY),
    Target("shardline sync 4 threads", "shardline sync", forms.THREADS),
]
CASES = [
    Case(
        "100 B records, uuid keys",
        100,
        0,
        {**OURS, "shardline sync 4 threads": 150_000, **PEERS},
        [*targets(forms.PUT_AIOKPL, forms.PUT), *OTHER_PUTS],
    ),
    Case("100 B records, 1,000 hot keys", 100, 1_000, OURS | PEERS, targets(Limits(None, 60), Limits(None, 3.7))),
    Case("1 KiB records, uuid keys", 1024, 0, OURS | PEERS, targets(Limits(None, 30), forms.PUT_1_KIB)),
    Case(
        "100 B records, uuid keys, not aggregated",
        100,
        0,
        {"shardline unaggregated": 100_000, "shardline unaggr. many": 100_000, "aiobotocore": 100_000},
        [Target("aiobotocore", "shardline unaggregated", forms.NOT_AGGREGATED)],
    ),
]


@dataclass(frozen=True)
class Round:
    records: int
    cpu: float
    seconds: float
    seen: Counts  # of the requests that the sink received

    @property
    def cost(self) -> float:
        """CPU seconds per million records."""
        return self.cpu / self.records * 1e6


@dataclass
class Client:
    """A client's process, and its rounds so far."""

    name: str
    process: subprocess.Popen[str]
    records: int  # in a round
    rounds: list[Round] = field(default_factory=list)

    def read(self) -> dict[str, float | str]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()} (are the peers installed? make setup)")
        return json.loads(line)

    def run(self, records: int, sink: ProducerSink) -> Round:
        before = sink.counts()
        self.process.stdin.write(f"{records}\n")
        self.process.stdin.flush()
        figures = self.read()
        return Round(**figures, seen=sink.counts().since(before))

    @property
    def best(self) -> float:
        return min(round_.cost for round_ in self.rounds)

    @property
    def median(self) -> float:
        return statistics.median(round_.cost for round_ in self.rounds)

    @property
    def cost(self) -> Cost:
        return Cost(self.best, self.median)

    @property
    def entries_per_request(self) -> float:
        return sum(round_.seen.entries for round_ in self.rounds) / sum(round_.seen.requests for round_ in self.rounds)


def command(script: str, sink: ProducerSink, *arguments: str, python: str = sys.executable) -> list[str]:
    return [python, str(HERE / script), "--url", sink.url, *arguments]


@contextlib.contextmanager
def running_client(name: str, case: Case, records: int, sink: ProducerSink, peer_python: str) -> Iterator[Client]:
    python = peer_python if name == "aiokpl" else sys.executable
    job = ["--client", name.removesuffix(forms.PURE), "--size", str(case.size), "--hot-keys", str(case.hot_keys)]
    line = command("producer_clients.py", sink, *job, python=python)
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=forms.environment_of(name)
    ) as process:
        try:
            client = Client(name, process, records)
            ready = client.read()
            if is_ours(name):
                forms.check_form(name, ready["form"])
            if name == "aiokpl":
                client.name = "aiokpl (uvloop)" if ready["ready"] == "uvloop" else "aiokpl (no uvloop)"
            yield client
        finally:
            process.kill()


def is_ours(name: str) -> bool:
    return name.startswith("shardline")


def in_each_form(case: Case) -> Case:
    """Return the case with each of our clients, and each target, in every form that can run here."""
    clients = {
        name + suffix: records
        for name, records in case.clients.items()
        for suffix in (forms.suffixes() if is_ours(name) else ("",))
    }
    wanted = [
        replace(target, upper=target.upper + (suffix if is_ours(target.upper) else ""), lower=target.lower + suffix)
        for target in case.targets
        for suffix in forms.suffixes()
    ]
    return replace(case, clients=clients, targets=wanted)


def measure_case(case: Case, plan: Plan, sink: ProducerSink, peer_python: str, *, ours_only: bool) -> dict[str, Client]:
    steady = {name for target in case.targets if target.upper in STEADY_PEERS for name in (target.upper, target.lower)}
    names = [
        name for name in case.clients if (is_ours(name) or not ours_only) and (name in steady or not plan.steady_only)
    ]
    with contextlib.ExitStack() as stack:
        clients = {
            name: stack.enter_context(
                running_client(name, case, int(case.clients[name] * plan.share), sink, peer_python)
            )
            for name in names
        }
        for client in clients.values():
            client.run(client.records // 4, sink)
        for _ in range(plan.rounds):
            for client in clients.values():
                client.rounds.append(client.run(client.records, sink))
    return clients


# ---- the report


def report_case(case: Case, clients: dict[str, Client]) -> list[bool]:
    print(f"\n{case.name}")
    print(COLUMNS.format("", "best", "median", "by the clock", "entries", "sink's"))
    print(COLUMNS.format("", "CPU s/M", "CPU s/M", "records/s", "/request", "CPU"))
    for client in clients.values():
        fastest = max(round_.records / round_.seconds for round_ in client.rounds)
        sink_share = sum(round_.seen.cpu for round_ in client.rounds) / sum(round_.seconds for round_ in client.rounds)
        cells = [f"{client.best:.2f}", f"{client.median:.2f}", f"{fastest:,.0f}", f"{client.entries_per_request:.1f}"]
        print(COLUMNS.format(client.name, *cells, f"{sink_share:.0%}"))
    met = []
    for target in case.targets:
        if target.upper in clients and target.lower in clients:
            upper, lower = clients[target.upper], clients[target.lower]
            ratios = Cost(upper.best / lower.best, upper.median / lower.median)
            if not is_ours(target.upper):
                note_ratio(f"{case.name}: {target.upper} / {target.lower}", upper.cost, lower.cost)
            what = f"{target.upper} / {target.lower}: {ratios.best:.2f} (medians {ratios.median:.2f})"
            met.append(judge(target.limits, what, target.lower, ratios, of=case.name))
    if "shardline" in clients and case.name == CASES[0].name:
        entries = clients["shardline"].entries_per_request
        what = f"Kinesis records per PutRecords: {entries:.1f}"
        met.append(verdict(what, f"at least {ENTRIES_TARGET}", met=entries >= ENTRIES_TARGET, of=case.name))
    return met


def run_script(line: list[str], name: str = "") -> dict[str, float]:
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env=forms.environment_of(name))
    return json.loads(done.stdout)


def report_latency(plan: Plan, peer_python: str, *, ours_only: bool) -> list[bool]:
    print(f"\nLatency in milliseconds: 1,000 records of 100 B a second, answered in {DELAY * 1e3:.0f} ms")
    p50, p99 = (0.6 * LINGER + 0.005) * 1e3, (LINGER + 0.025) * 1e3
    met = []
    with running_producer_sink(DELAY) as sink:
        for kind in ("asyncio", "trio", "sync", *(() if ours_only else ("aiokpl", "aiobotocore"))):
            python = peer_python if kind == "aiokpl" else sys.executable
            job = ["--kind", kind, "--seconds", str(plan.latency_seconds)]
            found = run_script(command("producer_latency.py", sink, *job, python=python))
            name = kind if kind.startswith("aio") else f"shardline {kind}"
            note_series(name, "latency", "ms", {share: round(found[share], 1) for share in SHARES})
            what = f"{name}: " + ", ".join(f"{share} {found[share]:.1f}" for share in SHARES)
            if name == kind:
                peer_row(what, of="latency in ms")
            else:
                fine = found["p50"] <= p50 and found["p99"] <= p99
                met.append(verdict(what, f"p50 {p50:.0f}, p99 {p99:.0f}", met=fine, of="latency in ms"))
    return met


def report_memory(peer_python: str, *, ours_only: bool) -> list[bool]:
    print(
        f"\nMemory per buffered record of 100 B, with its data and key; resident: the median of {MEMORY_RUNS} processes"
    )
    of = "memory of a waiting record of 100 B"

    def weigh(client: str, runs: int, python: str = sys.executable) -> tuple[Cost, str]:
        line = command("producer_memory.py", sink, "--client", client.removesuffix(forms.PURE), python=python)
        found = run_script(line, client)
        if is_ours(client):
            forms.check_form(client, found["form"])
        traced = found["bytes_per_record"]
        grown = [run_script([*line, "--resident"], client)["bytes_per_record"] for _ in range(runs)]
        resident = statistics.median(grown)
        spread = f" ({min(grown):.0f} to {max(grown):.0f})" if runs > 1 else ""
        what = f"{client}: {traced:.0f} B by tracemalloc, {resident:.0f} B resident{spread}"
        return Cost(max(traced, min(grown)), max(traced, resident)), what

    met = []
    with running_producer_sink() as sink:
        for suffix in forms.suffixes():
            found, what = weigh("shardline" + suffix, MEMORY_RUNS)
            met.append(judge(forms.MEMORY, what, suffix, found, of=of))
        if not ours_only:
            peer_row(weigh("aiokpl", 1, peer_python)[1], of=of)
    return met


def run(cases: list[Case], plan: Plan, options: argparse.Namespace) -> bool:
    began = time.monotonic()
    met = []
    print(f"CPU seconds of the client per million confirmed records, {plan.rounds} rounds in turn, 32 shards")
    for case in cases:
        with running_producer_sink() as sink:
            clients = measure_case(case, plan, sink, options.peer_python, ours_only=options.ours_only)
        met += report_case(case, clients)
    if options.only in "latency":
        met += report_latency(plan, options.peer_python, ours_only=options.ours_only)
    if options.only in "memory":
        met += report_memory(options.peer_python, ours_only=options.ours_only)
    print(f"\n{time.monotonic() - began:.0f} s; {sum(met)} of {len(met)} targets met{'' if all(met) else ': MISSED'}")
    return all(met)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the producer with the other ways to put records.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, rougher figures")
    parser.add_argument(
        "--guard", action="store_true", help="the form that guard.py runs: only clients that it compares"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cases whose names contain this")
    parser.add_argument("--ours-only", action="store_true", help="leave the peers out")
    parser.add_argument("--peer-python", default=str(PEER_PYTHON), help="the interpreter that has aiokpl")
    add_json_option(parser)
    options = parser.parse_args()
    options.only = options.only.lower()
    cases = [in_each_form(case) for case in CASES if options.only in case.name.lower()]
    if not cases and options.only not in "latency" and options.only not in "memory":
        parser.error(f"no case's name contains {options.only!r}: {', '.join(case.name for case in CASES)}")
    isolate_environment()
    met = run(cases, GUARD if options.guard else QUICK if options.quick else FULL, options)
    write(options.json)
    return 1 if options.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
