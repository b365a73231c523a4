"""Compares the speed, the memory and the start of the local server with those of other emulators.

The figure is records per CPU second of the server's processes, user and system: wall-clock time says more about the
machine. The client is the same for all servers, eight plain sockets with requests that were built before, and its CPU
does not count. The servers take turns burst by burst, in several rounds with new processes, and the best burst of each
counts, because other jobs on the machine can only add CPU time. For PutRecords the best whole round counts, from an
empty stream to the same number of records for all, because some servers slow down as the stream fills.

The cost of many streams is measured with a mixture of requests, spread over 10 streams and over 3,000: two servers of
ours take turns, so that both run under the same conditions. `--check` fails if a target is missed.

    python benchmarks/bench_server.py [--quick] [--check]
"""

import argparse
import base64
import contextlib
import http.client
import json
import math
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from emulators import HERE, RunningServer, running
from results import add_json_option, note_verdict, write

CONNECTIONS = 8
ENTRIES, SIZE, SHARDS = 500, 200, 4
BODIES = 16  # different request bodies, sent in turn
PAGE = 10_000
GROWTH_BURSTS = 8
FEW_STREAMS, MANY_STREAMS = 10, 3_000
MANY_STREAMS_COST = 1.1  # times the CPU of a request with few streams
STREAM = "bench"
PEERS = ("ministack", "kinesalite")
CELL = "{:>14}"
# No server is set to check signatures, but kinesalite requires one.
SIGNED = {
    "Content-Type": "application/x-amz-json-1.1",
    "X-Amz-Date": "20130101T000000Z",
    "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20130101/us-east-1/kinesis/aws4_request, "
    "SignedHeaders=host;x-amz-date;x-amz-target, Signature=00",
}


@dataclass(frozen=True)
class Plan:
    rounds: int
    bursts: int  # in a round
    put_requests: int  # in a burst
    pages: dict[str, int]
    fill: list[int]  # records stored when flatness is measured
    starts: int
    stream_bursts: int
    stream_requests: int  # of each operation, in a burst


FULL = Plan(
    3,
    4,
    50,
    {"shardline": 40, "ministack": 4, "kinesalite": 2},
    [100_000, 500_000, 1_000_000],
    5,
    12,
    3_000,
)
QUICK = Plan(
    1,
    2,
    50,
    {"shardline": 20, "ministack": 2, "kinesalite": 1},
    [50_000, 100_000, 200_000],
    3,
    6,
    1_000,
)

# ---- the client


class Connection:
    """A keep-alive connection that sends bodies unchanged."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._http.connect()

    def exchange(self, operation: str, body: bytes) -> bytes:
        self._http.request("POST", "/", body, SIGNED | {"X-Amz-Target": f"Kinesis_20131202.{operation}"})
        answer = self._http.getresponse()
        content = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{operation} was answered with {answer.status}: {content[:200]!r}")
        return content

    def call(self, operation: str, **members: object) -> dict[str, object]:
        return json.loads(self.exchange(operation, json.dumps(members).encode()) or b"{}")

    def close(self) -> None:
        self._http.close()


def answers(port: int) -> bool:
    """Return whether a server listens on the port and answers Kinesis requests."""
    try:
        with contextlib.closing(Connection(port)) as connection:
            connection.call("ListStreams")
    except (OSError, http.client.HTTPException, RuntimeError):
        return False
    return True


def put_bodies() -> list[bytes]:
    rng = random.Random(7)

    def entry() -> dict[str, str]:
        data = base64.b64encode(rng.randbytes(SIZE)).decode()
        return {"Data": data, "PartitionKey": str(uuid.UUID(int=rng.getrandbits(128)))}

    bodies = [{"StreamName": STREAM, "Records": [entry() for _ in range(ENTRIES)]} for _ in range(BODIES)]
    return [json.dumps(body).encode() for body in bodies]


@dataclass(frozen=True)
class Burst:
    records: int
    cpu_seconds: float  # of the server
    seconds: float

    @property
    def cpu(self) -> float:
        """Records per server CPU second."""
        return self.records / self.cpu_seconds

    @property
    def clock(self) -> float:
        """Records per second."""
        return self.records / self.seconds


def total(bursts: list[Burst]) -> Burst:
    seconds = sum(burst.seconds for burst in bursts)
    return Burst(sum(burst.records for burst in bursts), sum(burst.cpu_seconds for burst in bursts), seconds)


def best(bursts: list[Burst]) -> Burst:
    return max(bursts, key=lambda burst: burst.cpu)


class Load:
    """Eight connections to one server, and its stream."""

    def __init__(self, server: RunningServer, pool: ThreadPoolExecutor, bodies: list[bytes]) -> None:
        self.server = server
        self._pool = pool
        self._bodies = bodies
        self._connections = [Connection(server.port) for _ in range(CONNECTIONS)]
        self._iterators: list[str] = []
        self.stored = 0

    def create_stream(self) -> None:
        first = self._connections[0]
        first.call("CreateStream", StreamName=STREAM, ShardCount=SHARDS)
        while b'"ACTIVE"' not in first.exchange("DescribeStreamSummary", json.dumps({"StreamName": STREAM}).encode()):
            time.sleep(0.02)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def put(self, requests: int) -> Burst:
        """Send this many PutRecords, over all connections at once."""

        def work(number: int) -> None:
            connection = self._connections[number]
            for turn in range(number, requests, CONNECTIONS):
                answer = connection.exchange("PutRecords", self._bodies[turn % BODIES])
                if b'"ErrorCode"' in answer or answer.count(b'"SequenceNumber"') != ENTRIES:
                    raise RuntimeError(f"not all records were stored: {answer[:200]!r}")

        self.stored += requests * ENTRIES
        return self._measure(work, requests * ENTRIES)

    def open_shards(self) -> None:
        first = self._connections[0]
        shards = [f"shardId-{number:012d}" for number in range(SHARDS)]
        where = {"StreamName": STREAM, "ShardIteratorType": "TRIM_HORIZON"}
        self._iterators = [
            first.call("GetShardIterator", ShardId=shard_id, **where)["ShardIterator"] for shard_id in shards
        ]

    def get(self, pages: int) -> Burst:
        """Read this many pages from the beginning of the shards, over all connections at once."""
        requests = [
            json.dumps({"ShardIterator": self._iterators[page % SHARDS], "Limit": PAGE}).encode()
            for page in range(pages)
        ]

        def work(number: int) -> None:
            for page in requests[number::CONNECTIONS]:
                answer = self._connections[number].exchange("GetRecords", page)
                if answer.count(b'"PartitionKey"') != PAGE:
                    raise RuntimeError(f"a page of {answer.count(b'PartitionKey')} records, not of {PAGE}")

        return self._measure(work, pages * PAGE)

    def _measure(self, work: Callable[[int], None], records: int) -> Burst:
        cpu, clock = self.server.cpu(), time.perf_counter()
        for done in [self._pool.submit(work, number) for number in range(CONNECTIONS)]:
            done.result()
        return Burst(records, self.server.cpu() - cpu, time.perf_counter() - clock)


# ---- the measurements


@dataclass
class Figures:
    put: dict[str, list[list[Burst]]]  # by round
    get: dict[str, list[Burst]]
    flat: list[tuple[int, float]]  # records stored, records per CPU second
    memory: float  # bytes per record
    started: dict[str, tuple[float, float]]  # wall-clock seconds and CPU seconds
    by_streams: dict[str, list[float]]  # microseconds of CPU per request, with few and with many streams


def measure_rates(plan: Plan, pool: ThreadPoolExecutor, bodies: list[bytes], found: Figures) -> None:
    """Send bursts of PutRecords, then of GetRecords, to all servers in turn."""
    with contextlib.ExitStack() as stack:
        loads = [Load(stack.enter_context(running(name, answers)), pool, bodies) for name in ("shardline", *PEERS)]
        for load in loads:
            load.create_stream()
            load.put(CONNECTIONS)  # warms up servers with a just-in-time compiler
            found.put.setdefault(load.server.name, []).append([])
        for _ in range(plan.bursts):
            for load in loads:
                found.put[load.server.name][-1].append(load.put(plan.put_requests))
        for load in loads:
            missing = SHARDS * PAGE * 11 // 10 - load.stored  # hashing does not spread the records quite evenly
            if missing > 0:
                load.put(-(-missing // ENTRIES))
            load.open_shards()
        for _ in range(plan.bursts):
            for load in loads:
                found.get.setdefault(load.server.name, []).append(load.get(plan.pages[load.server.name]))
        for load in loads:
            load.close()


def measure_growth(plan: Plan, pool: ThreadPoolExecutor, bodies: list[bytes], found: Figures) -> None:
    """Measure servers of ours with more and more records: the memory of the fullest, and the rates of all, in turn."""
    with contextlib.ExitStack() as stack:
        loads = [Load(stack.enter_context(running("shardline", answers)), pool, bodies) for _ in plan.fill]
        for load, mark in zip(loads, plan.fill, strict=True):
            load.create_stream()
            load.put(5 * CONNECTIONS)  # allocates the server's buffers, which stay
            before, warm = load.server.memory(), load.stored
            load.put((mark - load.stored) // ENTRIES)
            found.memory = (load.server.memory() - before) / (load.stored - warm)
        bursts: dict[int, list[Burst]] = {mark: [] for mark in plan.fill}
        for _ in range(GROWTH_BURSTS):
            for load, mark in zip(loads, plan.fill, strict=True):
                bursts[mark].append(load.put(5 * CONNECTIONS))
        found.flat = [(mark, best(taken).cpu) for mark, taken in bursts.items()]
        for load in loads:
            load.close()


class ManyStreams:
    """A server of ours with this many streams of one shard, and requests that are spread over all of them."""

    def __init__(self, server: RunningServer, pool: ThreadPoolExecutor, streams: int) -> None:
        self.server = server
        self._pool = pool
        self._connections = [Connection(server.port) for _ in range(CONNECTIONS)]
        first = self._connections[0]
        names = [f"stream-{number:05d}" for number in range(streams)]
        shard = {"ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
        data = base64.b64encode(bytes(SIZE)).decode()
        self.bodies: dict[str, list[bytes]] = {}
        for name in names:
            first.call("CreateStream", StreamName=name, ShardCount=1)
            first.call("PutRecord", StreamName=name, Data=data, PartitionKey=name)
            iterator = first.call("GetShardIterator", StreamName=name, **shard)["ShardIterator"]
            for operation, members in {
                "PutRecord": {"StreamName": name, "Data": data, "PartitionKey": name},
                "PutRecords": {"StreamName": name, "Records": [{"Data": data, "PartitionKey": name}] * 10},
                "GetShardIterator": {"StreamName": name, **shard},
                "GetRecords": {"ShardIterator": iterator, "Limit": 1},
                "ListShards": {"StreamName": name},
                "DescribeStreamSummary": {"StreamName": name},
                "EnableEnhancedMonitoring": {"StreamName": name, "ShardLevelMetrics": ["ALL"]},
            }.items():
                self.bodies.setdefault(operation, []).append(json.dumps(members).encode())

    def burst(self, operation: str, requests: int) -> float:
        """Send requests, and return the server's CPU per request, in microseconds."""
        bodies = self.bodies[operation]

        def work(number: int) -> None:
            for turn in range(number, requests, CONNECTIONS):
                self._connections[number].exchange(operation, bodies[turn * 7 % len(bodies)])

        before = self.server.cpu()
        for done in [self._pool.submit(work, number) for number in range(CONNECTIONS)]:
            done.result()
        return (self.server.cpu() - before) / requests * 1e6

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def measure_streams(plan: Plan, pool: ThreadPoolExecutor, found: Figures) -> None:
    """Measure servers with few and with many streams in turns, operation by operation; the lowest costs count."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                contextlib.closing(ManyStreams(stack.enter_context(running("shardline", answers)), pool, n))
            )
            for n in (FEW_STREAMS, MANY_STREAMS)
        ]
        for _ in range(plan.stream_bursts):
            for operation in servers[0].bodies:
                costs = [server.burst(operation, plan.stream_requests) for server in servers]
                least = found.by_streams.get(operation, costs)
                found.by_streams[operation] = [min(pair) for pair in zip(costs, least, strict=True)]


# The client is imported after our server, so that the server's own imports are all counted.
IN_PROCESS = """
import time
began = time.perf_counter()
from shardline.testing.local_kinesis import LocalKinesis
importing = time.perf_counter() - began
import sys
sys.path.insert(0, {path!r})
from bench_server import answers
began = time.perf_counter()
with LocalKinesis() as kinesis:
    while not answers(int(kinesis.endpoint_url.rpartition(":")[2])):
        pass
    took = time.perf_counter() - began
    print(took, importing + took)
"""


def measure_starts(plan: Plan, found: Figures) -> None:
    script = IN_PROCESS.format(path=str(HERE))
    for _ in range(plan.starts):
        printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
        after_imports, whole = map(float, printed.split())
        times = {"in process": (after_imports, math.nan), "in process, with imports": (whole, math.nan)}
        for name in ("shardline local", *PEERS):
            with running(name, answers) as server:
                times[name] = (server.took, server.cpu())
        for name, took in times.items():
            found.started[name] = min(took, found.started.get(name, took))


# ---- the report


def row(name: str, cells: list[str], target: str = "", *, met: bool | None = None) -> bool:
    verdict = "" if met is None else ("yes" if met else "NO")
    if met is not None:
        note_verdict(f"{name}: {', '.join(cells)}", target, met=met)
    print(f"{name:<34}" + "".join(CELL.format(cell) for cell in cells) + f"   {target:<34} {verdict}", flush=True)
    return met is not False


def report_rates(found: Figures) -> list[bool]:
    rounds = {name: max(rounds, key=lambda bursts: total(bursts).cpu) for name, rounds in found.put.items()}
    stored = total(rounds["shardline"]).records
    print("\nRecords per server CPU second")
    row("", ["shardline", *PEERS, *(f"x {peer}" for peer in PEERS)], "target")
    put = {name: total(bursts) for name, bursts in rounds.items()}
    get = {name: best(bursts) for name, bursts in found.get.items()}
    verdicts = [
        report_rate(f"PutRecords, 0 to {stored:,} stored", put, {"ministack": 8, "kinesalite": 15}),
        report_rate("GetRecords, pages of 10,000", get, {"ministack": 10, "kinesalite": 10}),
    ]
    for name, at in (("PutRecords, the first burst", 0), ("PutRecords, the last burst", -1)):
        report_rate(name, {server: bursts[at] for server, bursts in rounds.items()}, {})
    row("PutRecords by the clock", [f"{put[server].clock:,.0f}" for server in ("shardline", *PEERS)])
    row("GetRecords by the clock", [f"{get[server].clock:,.0f}" for server in ("shardline", *PEERS)])
    return verdicts


def report_rate(name: str, rates: dict[str, Burst], wanted: dict[str, int]) -> bool:
    ratios = {peer: rates["shardline"].cpu / rates[peer].cpu for peer in PEERS}
    cells = [f"{rates[server].cpu:,.0f}" for server in ("shardline", *PEERS)] + [
        f"{ratios[server]:.1f}" for server in PEERS
    ]
    met = all(ratios[peer] >= least for peer, least in wanted.items()) if wanted else None
    return row(name, cells, ", ".join(f"{least} x {peer}" for peer, least in wanted.items()), met=met)


def report_growth(found: Figures) -> list[bool]:
    print("\nAs the stream grows: PutRecords, records per server CPU second")
    rates = [rate for _, rate in found.flat]
    row("records stored", [f"{stored:,}" for stored, _ in found.flat])
    flat = row(
        "rate", [f"{rate:,.0f}" for rate in rates], "last within 20 % of the first", met=rates[-1] >= 0.8 * rates[0]
    )
    memory = row("memory per record of 200 B", [f"{found.memory:.0f} B"], "under 500 B", met=found.memory < 500)
    return [flat, memory]


def report_starts(found: Figures) -> list[bool]:
    print("\nStart to first answer in seconds, best: by the clock, and of CPU")
    limits = {"in process": 0.3, "shardline local": 0.35}
    verdicts = []
    for name, (took, cpu) in found.started.items():
        limit = limits.get(name)
        met = None if limit is None else took < limit
        cells = [f"{took:.3f}"] if math.isnan(cpu) else [f"{took:.3f}", f"{cpu:.3f} CPU"]
        verdicts.append(row(name, cells, "" if limit is None else f"under {limit} s", met=met))
    return verdicts


def report_streams(found: Figures) -> list[bool]:
    print("\nServer CPU of a request in microseconds, by the number of streams")
    row("", [f"{FEW_STREAMS} streams", f"{MANY_STREAMS:,} streams", "ratio"], "target")
    for operation, (few, many) in found.by_streams.items():
        row(operation, [f"{few:.1f}", f"{many:.1f}", f"{many / few:.3f}"])
    few, many = (sum(costs) / len(found.by_streams) for costs in zip(*found.by_streams.values(), strict=True))
    target = f"at most {MANY_STREAMS_COST} x"
    cells = [f"{few:.1f}", f"{many:.1f}", f"{many / few:.3f}"]
    return [
        row(
            f"us a request, {FEW_STREAMS} and {MANY_STREAMS:,} streams",
            cells,
            target,
            met=many / few <= MANY_STREAMS_COST,
        )
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the local server with other emulators.")
    parser.add_argument("--quick", action="store_true", help="shorter bursts, rougher figures")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    add_json_option(parser)
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    began = time.monotonic()
    found = Figures({}, {}, [], 0.0, {}, {})
    bodies = put_bodies()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        measure_starts(plan, found)
        measure_streams(plan, pool, found)
        measure_growth(plan, pool, bodies, found)
        for _ in range(plan.rounds):
            measure_rates(plan, pool, bodies, found)
        measure_starts(plan, found)  # again, because wall-clock times depend on other jobs
    verdicts = report_rates(found) + report_growth(found) + report_starts(found) + report_streams(found)
    write(options.json)
    print(f"\n{time.monotonic() - began:.0f} s; {'all targets met' if all(verdicts) else 'A TARGET IS MISSED'}")
    return 1 if options.check and not all(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
