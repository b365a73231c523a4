"""How much CPU does a record cost a consumer, with Shardline and with async-kinesis, and how much an idle consumer?

The figure is the CPU seconds of the client's process, user and system, per million records of 200 bytes: wall-clock
time says more about the machine and the server. The records are deserialized with `json.loads`, with msgspec, or not at
all, because `json.loads` alone takes longer than everything else that our consumer does. Every client is a separate
process (consumer_clients.py) and reads the same 4 shards of the embedded server (consumer_server.py, another process,
without rate limits). The clients take turns round by round, after one warm-up round each.

Other jobs on the machine can only add CPU time, which is a reason to compare the best rounds. But the rounds of a slow
client are longer, and a long round is hardly ever undisturbed, which is a reason to compare the medians. So a ratio
meets its target only if both do; the table says if only one does. async-kinesis hands out only single records. Its KPL
support needs aws_kinesis_agg, which comes from our environment. Each of our clients runs twice, with and without the C
extension (forms.py). `--check` fails if a target is missed.

    python benchmarks/bench_consumer.py [--quick] [--check] [--only plain] [--ours-only] [--peer-python PYTHON]
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import forms
from consumer_server import AGGREGATED, EMPTY, PLAIN, SHARDS, Server, running_consumer_server
from forms import Limits, judge
from results import Cost, add_json_option, isolate_environment, note_ratio, verdict, write

HERE = Path(__file__).parent
PEER_PYTHON = HERE.parent / ".servers/clients/bin/python"  # async-kinesis needs its own aiobotocore
PACKAGES = sysconfig.get_path("purelib")
IDLE_TARGET = 0.05 / 100  # of a core, per shard
FIRST_TARGET = 1.0
COLUMNS = "  {:<32} {:>9} {:>9} {:>13}"


@dataclass(frozen=True)
class Plan:
    records: int  # in each stream
    rounds: int
    seconds: float  # the duration of the `idle`, `wire` and `commits` measurements
    starts: int
    peer_rounds: int | None = None  # if the peer has fewer rounds; its warm-up is then a tenth of a round
    compared_only: bool = False  # leave out our clients that are not compared with a peer


FULL = Plan(records=100_000, rounds=4, seconds=20.0, starts=5)
QUICK = Plan(records=60_000, rounds=2, seconds=6.0, starts=3)
# The rounds are as long as the full ones, because a round includes the start of the consumer. The peer has only one
# round, which takes ten times as long as ours.
GUARD = Plan(records=100_000, rounds=4, seconds=6.0, starts=3, peer_rounds=1, compared_only=True)


@dataclass(frozen=True)
class Target:
    """Limits for the ratio of two clients' CPU."""

    upper: str
    lower: str
    limits: Limits


@dataclass(frozen=True)
class Case:
    name: str
    stream: str
    clients: list[str]
    targets: list[Target]


OURS = ["shardline batches", "shardline records", "shardline run"]
CASES = [
    Case(
        "Plain records",
        PLAIN,
        [*OURS, "async-kinesis"],
        [
            Target("async-kinesis", "shardline batches", Limits(6, 6)),
            Target("async-kinesis", "shardline records", Limits(4, 4)),
        ],
    ),
    Case(
        "Aggregated records",
        AGGREGATED,
        [*OURS, "async-kinesis KPL"],
        [Target("async-kinesis KPL", "shardline batches", Limits(None, 5))],
    ),
    Case(
        "Plain, no deserializer",
        PLAIN,
        ["shardline bytes", "shardline bytes, records", "async-kinesis text"],
        [Target("async-kinesis text", "shardline bytes", forms.READ_PLAIN)],
    ),
    Case(
        "Aggregated, no deserializer",
        AGGREGATED,
        ["shardline bytes", "shardline bytes, records", "async-kinesis text KPL"],
        [Target("async-kinesis text KPL", "shardline bytes", forms.READ_AGGREGATED)],
    ),
    Case(
        "Plain, JSON decoded by msgspec",
        PLAIN,
        ["shardline msgspec", "async-kinesis"],
        [Target("async-kinesis", "shardline msgspec", Limits(12, 12))],
    ),
]


@dataclass
class Client:
    """A client's process, and the figures of its rounds so far."""

    name: str
    process: subprocess.Popen[str]
    costs: list[float] = field(default_factory=list)  # CPU seconds per million records
    speeds: list[float] = field(default_factory=list)

    def read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()} (are the peers installed? make setup)")
        return json.loads(line)

    def run(self, records: int) -> dict[str, Any]:
        self.process.stdin.write(f"{records}\n")
        self.process.stdin.flush()
        return self.read()

    def take_round(self, records: int) -> None:
        figures = self.run(records)
        if is_ours(self.name):
            forms.check_form(self.name, figures["form"])
        self.costs.append(figures["cpu"] / figures["records"] * 1e6)
        self.speeds.append(figures["records"] / figures["seconds"])


def addressed(script: str, server: Server, stream: str, *arguments: str) -> list[str]:
    facts = server.facts
    keys = ["--access-key", facts["access_key"], "--secret-key", facts["secret_key"]]
    return [str(HERE / script), *arguments, "--url", facts["url"], "--stream", stream, *keys]


def is_ours(name: str) -> bool:
    return name.startswith("shardline")


@contextlib.contextmanager
def running_client(name: str, case: Case, server: Server, peer_python: str) -> Iterator[Client]:
    line = [sys.executable if is_ours(name) else peer_python]
    line += addressed("consumer_clients.py", server, case.stream, "--client", name.removesuffix(forms.PURE))
    line += ["--also", PACKAGES] if name.endswith("KPL") else []
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=forms.environment_of(name)
    ) as process:
        try:
            client = Client(name, process)
            client.read()
            yield client
        finally:
            process.kill()


def in_each_form(case: Case) -> Case:
    """Return the case with each of our clients, and each target, in every form that can run here."""
    clients = [name + suffix for name in case.clients for suffix in (forms.suffixes() if is_ours(name) else ("",))]
    wanted = [replace(target, lower=target.lower + suffix) for target in case.targets for suffix in forms.suffixes()]
    return replace(case, clients=clients, targets=wanted)


def measure_case(case: Case, plan: Plan, server: Server, peer_python: str, *, ours_only: bool) -> dict[str, Client]:
    compared = {name for target in case.targets for name in (target.upper, target.lower)}
    names = [
        name
        for name in case.clients
        if (is_ours(name) or not ours_only) and (name in compared or not plan.compared_only)
    ]
    with contextlib.ExitStack() as stack:
        clients = {name: stack.enter_context(running_client(name, case, server, peer_python)) for name in names}
        for client in clients.values():
            client.run(plan.records if plan.peer_rounds is None or is_ours(client.name) else plan.records // 10)
        for number in range(plan.rounds):
            for client in clients.values():
                if plan.peer_rounds is None or number < plan.peer_rounds or is_ours(client.name):
                    client.take_round(plan.records)
    return clients


# ---- the report


def report_case(case: Case, clients: dict[str, Client]) -> list[bool]:
    print(f"\n{case.name}, 200 B each, over {SHARDS} shards")
    print(COLUMNS.format("", "best", "median", "by the clock"))
    print(COLUMNS.format("", "CPU s/M", "CPU s/M", "records/s"))
    for client in clients.values():
        cells = [f"{min(client.costs):.2f}", f"{statistics.median(client.costs):.2f}", f"{max(client.speeds):,.0f}"]
        print(COLUMNS.format(client.name, *cells))
    met = []
    for target in case.targets:
        if target.upper in clients and target.lower in clients:
            upper, lower = clients[target.upper].costs, clients[target.lower].costs
            costs = [Cost(min(rounds), statistics.median(rounds)) for rounds in (upper, lower)]
            ratios = note_ratio(f"{case.name}: {target.upper} / {target.lower}", *costs)
            what = f"{target.upper} / {target.lower}: {ratios.best:.2f} (medians {ratios.median:.2f})"
            met.append(judge(target.limits, what, target.lower, ratios, of=case.name))
    return met


def ask(question: str, stream: str, server: Server, seconds: float) -> dict[str, float]:
    line = [sys.executable, *addressed("consumer_idle.py", server, stream, question), "--seconds", str(seconds)]
    return json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)


def report_idle(plan: Plan, server: Server) -> list[bool]:
    print("\nA consumer of shards that have nothing, on SQLite: CPU seconds over a fixed time")
    met = []
    for stream, shards in EMPTY.items():
        line = [sys.executable, *addressed("consumer_idle.py", server, stream, "idle"), "--seconds", str(plan.seconds)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            server.requests()
            process.stdout.readline()
            calls = server.requests().get("GetRecords", 0)
            figures = json.loads(process.stdout.readline())
        share = figures["cpu"] / figures["seconds"]
        rate = calls / figures["seconds"] / shards
        spent = f"{figures['cpu']:.2f} s in {figures['seconds']:.0f} s"
        what = f"{shards:,} shards: {share:.2%} of a core ({spent}), {rate:.2f} calls/s a shard"
        target = IDLE_TARGET * shards
        met.append(verdict(what, f"under {target:.0%}", met=share < target, of="idle"))
    wire = ask("wire", "empty", server, plan.seconds)
    share = wire["cpu"] / wire["seconds"]
    print(f"  A bare client that calls {EMPTY['empty']} shards once a second, evenly spread: {share:.2%} of a core")
    return met


def report_first(plan: Plan, server: Server) -> list[bool]:
    print("\nFrom the start of a consumer to its first record, on SQLite")
    took = [ask("first", PLAIN, server, 0)["seconds"] for _ in range(plan.starts)]
    what = f"median {statistics.median(took):.2f} s, slowest {max(took):.2f} s of {len(took)}"
    return [verdict(what, f"under {FIRST_TARGET:g} s", met=max(took) < FIRST_TARGET, of="first record after")]


def report_commits(plan: Plan, server: Server) -> list[bool]:
    print(f"\nWrites to the lease store while records keep coming from {SHARDS} shards")
    found = ask("commits", PLAIN, server, plan.seconds)
    seconds, interval = found.pop("seconds"), found.pop("interval")
    per_interval = sum(found.values()) / SHARDS / (seconds / interval)
    each = ", ".join(f"{name} {int(count)}" for name, count in found.items())
    what = f"{per_interval:.2f} an interval ({interval:g} s) and shard: {each} in {seconds:.0f} s"
    return [verdict(what, "at most 1", met=0 < per_interval <= 1 + 1 / (seconds / interval), of="commits")]


OTHERS = {"idle": report_idle, "first": report_first, "commits": report_commits}


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the consumer with async-kinesis.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, rougher figures")
    parser.add_argument(
        "--guard", action="store_true", help="the form that guard.py runs: only clients that are compared"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="only the parts whose names contain this: plain, aggregated, idle, ...",
    )
    parser.add_argument("--ours-only", action="store_true", help="leave the peer out")
    parser.add_argument("--peer-python", default=str(PEER_PYTHON), help="the interpreter that has async-kinesis")
    add_json_option(parser)
    options = parser.parse_args()
    only = options.only.lower()
    cases = [in_each_form(case) for case in CASES if only in case.name.lower()]
    others = [report for name, report in OTHERS.items() if only in name]
    if not cases and not others:
        parser.error(f"no name contains {only!r}: {', '.join([*(case.name for case in CASES), *OTHERS])}")
    isolate_environment()
    plan = GUARD if options.guard else QUICK if options.quick else FULL
    met = []
    print(f"{plan.rounds} rounds of {plan.records:,} records, Python {sys.version.split()[0]}")
    with running_consumer_server(plan.records) as server:
        for case in cases:
            clients = measure_case(case, plan, server, options.peer_python, ours_only=options.ours_only)
            met += report_case(case, clients)
        for report in others:
            met += report(plan, server)
    write(options.json)
    return 1 if options.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
