"""How much CPU does a Kinesis call cost with shardline, and with aiobotocore?

Both clients talk TLS to a sink with canned answers, four calls in flight on one asyncio loop, all on one CPU.
measure.py describes the method. The ratios are aiobotocore's CPU divided by ours. `--check` fails if a ratio of the
best bursts is under its target.

    python benchmarks/bench_wire.py [--quick] [--check] [--only put] [--peer-only]
"""

import argparse
import asyncio
import contextlib
import random
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from measure import Calibration, Contender, Figures, Plan, compare, pin_to_quietest_cpu
from results import Cost, add_json_option, isolate_environment, note_ratio, note_verdict, write
from sink import PAGES, Sink, running_sink

REGION = "us-east-1"
ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLE", "secret"
STREAM = "bench"
FULL = Plan(wanted=12, budget=20.0)  # per case: the seven cases end within three minutes
QUICK = Plan(wanted=4, budget=5.0)
COLUMNS = "{:<28} {:>19} {:>19} {:>9} {:>7} {:>7}  {}"

Call = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    name: str
    target: float
    entries: int = 0  # PutRecords
    size: int = 0
    protocol: str = "json"  # of our client; aiobotocore supports only JSON
    iterator: str = ""  # GetRecords


CASES = [
    Case("PutRecords 10 x 1 KiB", 4.0, entries=10, size=1024),
    Case("PutRecords 500 x 1 KiB", 3.5, entries=500, size=1024),
    Case("PutRecords 100 x 48 KiB", 1.8, entries=100, size=48 * 1024),
    Case("PutRecords 100 x 48 KiB cbor", 2.5, entries=100, size=48 * 1024, protocol="cbor"),
    Case("GetRecords 10,000 x 200 B", 8.0, iterator="small"),
    Case("GetRecords 100 x 50 KB", 1.8, iterator="agg"),
    Case("GetRecords empty", 3.5, iterator="empty"),
]


def payloads(case: Case) -> list[tuple[bytes, str]]:
    rng = random.Random(case.size)
    return [(rng.randbytes(case.size), str(uuid.UUID(int=rng.getrandbits(128)))) for _ in range(case.entries)]


def expect(*, holds: bool) -> None:
    if not holds:
        raise RuntimeError("the answer is incomplete")


def page_bytes(case: Case) -> int:
    count, size = PAGES[case.iterator]
    return count * size


@contextlib.asynccontextmanager
async def aiobotocore_call(case: Case, sink: Sink) -> AsyncIterator[Call]:
    from aiobotocore.session import get_session

    entries = [{"Data": data, "PartitionKey": key} for data, key in payloads(case)]

    async def put() -> None:
        answer = await client.put_records(StreamName=STREAM, Records=entries)
        expect(holds=answer["FailedRecordCount"] == 0 and len(answer["Records"]) == case.entries)

    async def get() -> None:
        answer = await client.get_records(ShardIterator=case.iterator)
        expect(holds=sum([len(record["Data"]) for record in answer["Records"]]) == page_bytes(case))

    async with get_session().create_client(
        "kinesis",
        region_name=REGION,
        endpoint_url=sink.url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        verify=sink.ca_path,
    ) as client:
        yield get if case.iterator else put


@contextlib.asynccontextmanager
async def shardline_call(case: Case, sink: Sink) -> AsyncIterator[Call]:
    from shardline import Client, Credentials, Entry

    entries = [Entry(data, key) for data, key in payloads(case)]

    async def put() -> None:
        answer = await client.put_records(STREAM, entries)
        expect(holds=answer.failed_count == 0 and len(answer.records) == case.entries)

    async def get() -> None:
        page = await client.get_records(case.iterator)
        expect(holds=sum([len(record.data) for record in page.records]) == page_bytes(case))

    async with Client(
        region=REGION,
        endpoint_url=sink.url,
        credentials=Credentials(ACCESS_KEY, SECRET_KEY),
        verify=sink.ca_path,
        protocol=case.protocol,
    ) as client:
        yield get if case.iterator else put


async def run_case(case: Case, calibration: Calibration, plan: Plan, *, peer_only: bool) -> list[Figures]:
    """Return the figures of aiobotocore and, unless `peer_only`, ours."""
    async with contextlib.AsyncExitStack() as stack:
        sink = stack.enter_context(running_sink(case.entries))
        contenders = [Contender("aiobotocore", await stack.enter_async_context(aiobotocore_call(case, sink)))]
        if not peer_only:
            # first in every round
            contenders.insert(0, Contender("shardline", await stack.enter_async_context(shardline_call(case, sink))))
        return (await compare(contenders, calibration, plan))[::-1]


def microseconds(figures: Figures) -> str:
    return f"{figures.best * 1e6:,.0f} / {figures.median * 1e6:,.0f}"


def report(case: Case, results: list[Figures]) -> bool:
    """Print the row of a case, and return whether its target was met."""
    peer = results[0]
    noise = "".join(
        f"  noisy: {figures.quiet} of {figures.taken} {figures.name} bursts were quiet"
        for figures in results
        if figures.noisy
    )
    if len(results) == 1:
        print(COLUMNS.format(case.name, microseconds(peer), "-", "-", "-", case.target, noise), flush=True)
        return False
    ours = results[1]
    name = f"{case.name}: aiobotocore / shardline"
    best, median = note_ratio(name, Cost(peer.best, peer.median), Cost(ours.best, ours.median))
    met = best >= case.target
    ratios = f"{median:.2f}", f"{best:.2f}"
    verdict = ("yes" if met else "NO") + noise
    note_verdict(f"{name} {ratios[1]} (medians {ratios[0]})", f"{case.target}", met=met)
    print(COLUMNS.format(case.name, microseconds(peer), microseconds(ours), *ratios, case.target, verdict), flush=True)
    return met


def run(cases: list[Case], plan: Plan, *, peer_only: bool) -> bool:
    cpu = pin_to_quietest_cpu()
    calibration = Calibration()
    place = "not pinned" if cpu is None else f"client and sink on CPU {cpu}"
    print(f"Client CPU per call in microseconds, best / median; TLS, 4 in flight, {place}")
    print(COLUMNS.format("case", "aiobotocore", "shardline", "medians", "bests", "target", "ok"))
    started_at = time.monotonic()
    met = [report(case, asyncio.run(run_case(case, calibration, plan, peer_only=peer_only))) for case in cases]
    summary = "" if peer_only else f"; {sum(met)} of {len(met)} targets met"
    print(f"{time.monotonic() - started_at:.0f} s{summary}")
    return all(met)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the CPU of shardline's calls with aiobotocore's.")
    parser.add_argument("--quick", action="store_true", help="fewer bursts: half a minute, rougher figures")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a ratio of the best bursts is under its target"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cases whose names contain this")
    parser.add_argument("--peer-only", action="store_true", help="measure only aiobotocore")
    add_json_option(parser)
    options = parser.parse_args()
    cases = [case for case in CASES if options.only.lower() in case.name.lower()]
    if not cases:
        parser.error(f"no case's name contains {options.only!r}: {', '.join(case.name for case in CASES)}")
    if options.check and options.peer_only:
        parser.error("--check needs both clients: omit --peer-only")
    isolate_environment()
    met = run(cases, QUICK if options.quick else FULL, peer_only=options.peer_only)
    write(options.json)
    return 1 if options.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
