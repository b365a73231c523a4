"""How much CPU, time and memory does a record cost with the Kinesis Producer Library (KPL) and with Shardline?

The KPL is a library for the JVM with a native daemon. Its figure is the CPU of both processes, user and system, per
million records whose results were awaited (tests/interop/java/KplClient.java). Shardline is measured by
producer_clients.py in the same run, with the same kind of records, against the same sink with TLS, because the KPL
always uses TLS. The clients take turns round by round. Before that, each client warms up, which gives the JVM time to
compile; the cost of the warm-up is reported by itself. The rate limits are lifted. All other settings are the defaults,
except that the row "KPL" has its tracker of the oldest record switched off, which makes the KPL faster.

Then the KPL writes to the embedded server, and our consumer reads the records back and checks each of them.

    python benchmarks/bench_java.py [--quick] [--write] [--render]      # needs tests/interop/java/install-maven.sh
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from producer_clients import ACCESS_KEY, SECRET_KEY, STREAM
from producer_latency import SHARES
from producer_sink import SHARDS, Counts, ProducerSink, running_producer_sink
from results import isolate_environment

HERE = Path(__file__).parent
JAVA = HERE.parent / ".servers/java/kpl"
DOCS = HERE.parent / "docs"
FIGURES = DOCS / "benchmarks-java.json"
PAGE = DOCS / "tested" / "benchmark-java.md"
CLIENTS = (
    "KPL",
    "KPL, oldest record tracked",
    "shardline",
    "shardline put_many",
    "shardline sync",
    "shardline, pure form",
)
PURE_FORM = ", pure form"
SIZES = {"100 B": 100, "1 KiB": 1024}
SLICE = 50_000
DELAY = 0.002  # of the sink's answers when latency is measured
TARGET = 3.0  # the KPL's CPU over ours, with the native core
NUMBERED_BYTES = 40  # the part of a record's data in which KplClient.java describes the record
READ_LIMIT = 120.0  # seconds


@dataclass(frozen=True)
class Plan:
    warm_up: int
    rounds: int
    records: int
    latency_seconds: int
    read_back: int


FULL = Plan(warm_up=200_000, rounds=4, records=100_000, latency_seconds=8, read_back=50_000)
QUICK = Plan(warm_up=50_000, rounds=2, records=50_000, latency_seconds=3, read_back=20_000)


@dataclass(frozen=True)
class Round:
    records: int
    cpu: float
    seconds: float
    seen: Counts
    jvm: float = 0.0  # the part of the CPU that the JVM used

    @property
    def cost(self) -> float:
        """CPU seconds per million records."""
        return self.cpu / self.records * 1e6


@dataclass
class Client:
    """A client's processes, and its rounds so far."""

    name: str
    process: subprocess.Popen[str]
    started_at: float
    pids: list[int] = field(default_factory=list)
    start_seconds: float = 0.0
    start_cpu: float = 0.0
    warm_up: Round | None = None
    rounds: list[Round] = field(default_factory=list)

    def read(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()} (is the KPL installed? make bench-java)")
        return json.loads(line)

    def wait_ready(self) -> None:
        ready = self.read()
        self.start_seconds = time.monotonic() - self.started_at
        self.pids = [self.process.pid, *([ready["daemon"]] if "daemon" in ready else [])]
        self.start_cpu = sum(map(cpu_of, self.pids))

    def run(self, records: int, sink: ProducerSink) -> Round:
        before = sink.counts()
        self.process.stdin.write(f"{records}\n")
        self.process.stdin.flush()
        return Round(**self.read(), seen=sink.counts().since(before))

    def figures(self) -> dict[str, float]:
        costs = [round_.cost for round_ in self.rounds]
        records = sum(round_.records for round_ in self.rounds)
        requests = sum(round_.seen.requests for round_ in self.rounds)
        entries = sum(round_.seen.entries for round_ in self.rounds)
        cpu = sum(round_.cpu for round_ in self.rounds)
        return {
            "best": round(min(costs), 2),
            "median": round(statistics.median(costs), 2),
            "jvm_share": round(sum(round_.jvm for round_ in self.rounds) / cpu, 2),
            "warm_up": round(self.warm_up.cost, 2),
            "start_seconds": round(self.start_seconds, 1),
            "start_cpu": round(self.start_cpu, 1),
            "requests_per_million": round(requests / records * 1e6),
            "entries_per_request": round(entries / requests, 1),
            "bytes_per_record": round(sum(round_.seen.body_bytes for round_ in self.rounds) / records),
            "records_per_second": round(max(round_.records / round_.seconds for round_ in self.rounds)),
            "peak_mib": round(sum(map(peak_bytes_of, self.pids)) / 2**20),
        }


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes_of(pid: int) -> int:
    """Return the highest resident size that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def java_command(mode: str, url: str, *arguments: object) -> list[str]:
    if not (JAVA / ".stamp").exists():
        raise SystemExit("the KPL is not installed: run tests/interop/java/install-maven.sh")
    place = ["-cp", f"{JAVA}/classes:{JAVA}/jars/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return ["java", *place, "KplClient", mode, str(urlsplit(url).port), *map(str, arguments)]


def environment_of(sink: ProducerSink) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    return os.environ | keys | {"AWS_CA_BUNDLE": str(sink.ca_path)}


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.stdin.close()  # the JVM ends its daemon before it exits
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def running_client(name: str, size: int, sink: ProducerSink) -> Iterator[Client]:
    if name.startswith("KPL"):
        tracked = str(name != "KPL").lower()
        command = java_command("rounds", sink.url, size, SLICE, tracked, "false")
    else:
        script = str(HERE / "producer_clients.py")
        client_name = name.removesuffix(PURE_FORM)
        command = [sys.executable, script, "--client", client_name, "--url", sink.url, "--size", str(size)]
    environment = environment_of(sink) | ({"SHARDLINE_PURE": "1"} if name.endswith(PURE_FORM) else {})
    started_at = time.monotonic()
    with running(command, environment) as process:
        client = Client(name, process, started_at)
        client.wait_ready()
        yield client


def measure_size(size: int, plan: Plan) -> dict[str, dict[str, float]]:
    with running_producer_sink(tls=True) as sink, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(running_client(name, size, sink)) for name in CLIENTS]
        for client in clients:
            client.warm_up = client.run(plan.warm_up if client.name.startswith("KPL") else plan.records, sink)
        for _ in range(plan.rounds):
            for client in clients:
                client.rounds.append(client.run(plan.records, sink))
        return {client.name: client.figures() for client in clients}


def measure_latency(plan: Plan) -> dict[str, dict[str, float]]:
    found = {}
    with running_producer_sink(DELAY, tls=True) as sink:
        for name, kind in (("KPL", ""), ("shardline", "asyncio"), ("shardline sync", "sync")):
            script = [sys.executable, str(HERE / "producer_latency.py"), "--url", sink.url, "--kind", kind]
            line = [*script, "--seconds", str(plan.latency_seconds)]
            if not kind:
                line = java_command("latency", sink.url, 100, plan.latency_seconds)
            done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env=environment_of(sink))
            figures = json.loads(done.stdout)
            found[name] = {share: round(figures[share], 1) for share in SHARES}
    return found


async def read_back(count: int) -> dict[str, int]:
    """Let the KPL put records into the embedded server, and check each of them with our consumer.

    Raises:
        SystemExit: a record is missing, occurs twice, or differs from what was put.
    """
    from shardline import Consumer
    from shardline.testing import LocalKinesis

    async with LocalKinesis(shards=SHARDS, limits=False, tls=True, stream=STREAM) as kinesis:
        command = java_command("rounds", kinesis.endpoint_url, 100, SLICE, "false", "true")
        with running(command, os.environ | kinesis.environment) as process:
            process.stdout.readline()
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
            done = await asyncio.to_thread(process.stdout.readline)
            if not done:
                raise SystemExit("the KPL did not deliver its records to the embedded server")
        seen: dict[int, int] = {}
        aggregated = 0
        async with kinesis.client() as client, Consumer(STREAM, client=client) as consumer, asyncio.timeout(READ_LIMIT):
            async for record in consumer:
                number, wrong = check_record(record)
                if wrong or number in seen:
                    raise SystemExit(f"record {number} of the KPL was read {wrong or 'twice'}")
                seen[number] = 1
                aggregated += record.aggregated
                if len(seen) == count:
                    break
        if sorted(seen) != list(range(count)):
            raise SystemExit("the numbers of the records have gaps")
        return {"put": count, "read": len(seen), "aggregated": aggregated, "entries": kinesis.traffic.records}


def check_record(record: object) -> tuple[int, str]:
    """Return the number of a record that KplClient.java put, and what is wrong with the record."""
    data = record.data[:NUMBERED_BYTES]
    number, key = int.from_bytes(data[:8]), str(uuid.UUID(bytes=data[8:24]))
    hash_key = int.from_bytes(data[24:40])
    if record.key != key:
        return number, f"with the key {record.key} instead of {key}"
    # The KPL sends the hash key of every entry, but only aggregates keep it for the reader.
    if record.aggregated and int(record.explicit_hash_key or 0) != hash_key:
        return number, f"with the explicit hash key {record.explicit_hash_key} instead of {hash_key}"
    return number, ""


# ---- the report


def implementation() -> str:
    import shardline

    return getattr(shardline, "implementation", "pure")


def measure(plan: Plan) -> dict[str, object]:
    before = os.getloadavg()[0]
    sizes = {}
    for label, size in SIZES.items():
        print(f"measuring records of {label}", flush=True)
        sizes[label] = measure_size(size, plan)
        print("\n".join(costs_table(label, sizes[label])), flush=True)
    print("measuring latency", flush=True)
    latency = measure_latency(plan)
    print("reading back", flush=True)
    found = asyncio.run(read_back(plan.read_back))
    java = subprocess.run(["java", "-version"], check=True, stderr=subprocess.PIPE, text=True).stderr.splitlines()[0]
    [jar] = (JAVA / "jars").glob("amazon-kinesis-producer-*.jar")
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "python": platform.python_version(),
        "implementation": implementation(),
        "machine": f"{platform.system()} on {os.cpu_count()} cores ({platform.machine()})",
        "load": f"{before:.1f} and {os.getloadavg()[0]:.1f}",
        "kpl": jar.stem.removeprefix("amazon-kinesis-producer-"),
        "java": java.split('"')[1],
        "warm_up": plan.warm_up,
        "rounds": plan.rounds,
        "records": plan.records,
        "latency_seconds": plan.latency_seconds,
        "sizes": sizes,
        "latency": latency,
        "read_back": found,
    }


HEAD = """\
# Beside the KPL

`make bench-java` runs the Kinesis Producer Library (KPL) {kpl} and our producer side by side and writes this page. It
needs a JDK (17 or newer) and Maven, which fetches the KPL. The KPL is a library for the JVM with a native daemon.

This report is from {date}: Java {java}, Python {python}, Shardline's {implementation} form, {machine}, load average
{load} before and after.

## How it is measured

- The figure is CPU time, user and system, per million records whose results were awaited. For the KPL, it is the CPU
  time of the JVM and of the daemon together.
- All clients use the same sink on loopback, with 32 shards and TLS 1.3, because the KPL always uses TLS. Every record
  has a UUID as its key. The rate limits per shard are lifted. CloudWatch metrics of the KPL are off.
- The KPL first puts {warm_up:,} records, so that the JVM has compiled its code by the time of the first round. The
  table shows this warm-up in a separate column. Then the clients take turns, in {rounds} rounds of {records:,} records.
- The KPL tracks its oldest record, unless this tracking is switched off. The table has a row for each of the two
  settings. All other settings are the defaults: both libraries hold a record for up to 100 ms and build aggregates of
  up to 50 KiB.
- Other jobs on the machine only add CPU time, so the best round counts; the table also has the median. If the load
  average above is larger than the number of cores, all figures are too large, and the rates and latencies say more
  about the machine than about the clients. Only the ratios of CPU time are then meaningful.
- The threads of the KPL poll even if they have nothing to do. A round that takes longer, because other jobs disturb it,
  therefore costs the KPL more CPU time, so a busy machine makes the ratio larger.

"""


def costs_table(label: str, clients: dict[str, dict[str, float]]) -> Iterator[str]:
    yield f"## Records of {label}\n"
    yield "| client | CPU s per million: best | median | of the JVM | warm-up | KPL / this client: best | median |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    kpl = clients["KPL"]
    for name, found in clients.items():
        ratios = (
            [""] * 2 if name.startswith("KPL") else [f"{kpl[which] / found[which]:.1f}" for which in ("best", "median")]
        )
        jvm = f"{found['jvm_share']:.0%}" if found["jvm_share"] else ""
        cells = [f"{found['best']:.2f}", f"{found['median']:.2f}", jvm, f"{found['warm_up']:.2f}", *ratios]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    titles = ["requests per million", "entries per request", "body bytes per record", "records per second"]
    yield f"| client | {' | '.join(titles)} | peak memory | start |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for name, found in clients.items():
        start = f"{found['start_seconds']:.1f} s, {found['start_cpu']:.1f} s of CPU"
        cells = [f"{found['requests_per_million']:,}", f"{found['entries_per_request']:.1f}"]
        cells += [f"{found['bytes_per_record']:,}", f"{found['records_per_second']:,}", f"{found['peak_mib']:,} MiB"]
        yield f"| {name} | {' | '.join(cells)} | {start} |"
    yield ""


def latency_table(figures: dict[str, object]) -> Iterator[str]:
    yield "## Latency\n"
    yield f"The clients put 1,000 records of 100 B per second for {figures['latency_seconds']} seconds, and the sink"
    yield f"answers in {DELAY * 1e3:.0f} ms. Latencies are in milliseconds, from the time when a record was due until"
    yield "its result arrived:\n"
    yield f"| client | {' | '.join(SHARES)} |"
    yield f"|---|{'--:|' * len(SHARES)}"
    for name, found in figures["latency"].items():
        yield f"| {name} | {' | '.join(f'{found[share]:.1f}' for share in SHARES)} |"


WITHDRAWN = """\
The costs and latencies of this run are withdrawn: the sink did not answer `Expect: 100-continue`, so every request of
the KPL waited for a second. The sink answers it now; `make bench-java` measures again.
"""


def rendered(figures: dict[str, object]) -> str:
    lines = [HEAD.format(**figures).rstrip("\n"), ""]
    if not figures["sizes"]:
        lines += [WITHDRAWN]
    for label, clients in figures["sizes"].items():
        lines += costs_table(label, clients)
    if figures["latency"]:
        lines += [*latency_table(figures), ""]
    found = figures["read_back"]
    lines += ["## What the KPL writes, our consumer reads\n"]
    lines += [
        f"The KPL put {found['put']:,} records into the embedded server, every tenth with an explicit hash key. Our",
        f"consumer read {found['read']:,} records back: each of them once, with its own key and data.",
        f"{found['aggregated']:,} of them came out of aggregates, and the stream had {found['entries']:,} entries.",
        "",
        "A [drill](drill-results-java.md) covers the other direction: the newest KCL reads the records that we write.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the producer with the Kinesis Producer Library.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, rougher figures")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(HERE.parent)}")
    parser.add_argument("--render", action="store_true", help="write the page from the figures of the last run")
    options = parser.parse_args()
    isolate_environment()
    figures = json.loads(FIGURES.read_text()) if options.render else measure(QUICK if options.quick else FULL)
    text = rendered(figures)
    print(text)
    if options.write or options.render:
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
        PAGE.write_text(text)
    if not figures["sizes"]:
        return 0  # they were withdrawn
    ours = figures["sizes"]["100 B"]
    ratios = [ours["KPL"][which] / ours["shardline"][which] for which in ("best", "median")]
    print(f"KPL / ours: {ratios[0]:.2f} (medians {ratios[1]:.2f}); the native form should reach {TARGET:g}")
    return 1 if figures["implementation"] == "native" and min(ratios) < TARGET else 0


if __name__ == "__main__":
    sys.exit(main())
