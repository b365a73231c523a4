"""How fast are aggregates built and opened, next to aws_kinesis_agg?

    .venv/bin/python benchmarks/bench_aggregation.py [--rounds N] [--check]

Both sides get the same records, in alternating rounds (ours, peer, ours, peer, ...), timed in CPU seconds. The rounds
run in two processes, with and without the C extension (forms.py), which take turns of some rounds each. Other jobs on
the machine disturb the best rounds least; a ratio meets its target only if the ratio of the medians does, too. The
results are compared before anything is timed: the aggregates must be byte-identical, and the opened records must be
equal. The peer gets its keys as bytes, its best case: with str keys it miscalculates sizes and seals early.

- build: size check, add and seal at 51,200 bytes. Ours is the producer's ``Aggregate``, with its own records, and
  ``entries_of``, which encodes the aggregates of a request together, as in the producer. The peer's is
  ``RecordAggregator.add_user_record`` and ``get_contents``.
- open: all aggregates of a page or of an event, in one call of each side.
  - Lambda: from Lambda records, with a check of the MD5, to one object per user record. The peer leaves the payloads
    in base64.
  - bytes: from bytes, with a check of the MD5, to the key, the payload as bytes and the explicit hash key. Ours is what
    the consumer calls. The peer need not decode the input in its format for boto3, but returns the payloads in base64,
    so they are decoded.
"""

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any, NamedTuple

import forms
from aws_kinesis_agg.aggregator import RecordAggregator
from aws_kinesis_agg.deaggregator import deaggregate_records, iter_deaggregate_records
from forms import Limits, judge
from results import Cost, add_json_option, note_ratio, write

from shardline import implementation
from shardline.codec.aggregation import Columns, find_frames, split_frame
from shardline.codec.raw_records import deaggregate
from shardline.core.producer.aggregate import Aggregate, KeylessAddress, entries_of
from shardline.core.producer.producer_record import BufferedRecord

SEAL_BYTES = 51_200
RECORDS = 4_000  # a round lasts only milliseconds, so that some rounds are undisturbed
TURN = 10  # rounds of one process before the other process takes its turn
NO_ADDRESS = KeylessAddress(None, None)  # every record has a key


class Task(NamedTuple):
    """The same work of both sides, ready to be timed."""

    ours: Callable[[], object]
    peer: Callable[[], object]


class Times(NamedTuple):
    """The CPU seconds of the rounds of both sides."""

    ours: list[float]
    peer: list[float]


def records_of(keys: list[str]) -> list[tuple[str, bytes]]:
    rng = random.Random(7)
    return [(key, rng.randbytes(100)) for key in keys]


def build_ours(rest: list[BufferedRecord]) -> list[bytes]:
    aggregates = []
    while rest:
        aggregate = Aggregate(0.0, NO_ADDRESS)
        rest = rest[aggregate.add_all(rest, SEAL_BYTES) :]
        aggregates.append(aggregate)
    return [entry.data for entry in entries_of(aggregates)]


def build_peer(records: list[tuple[bytes, bytes]]) -> list[bytes]:
    blobs = []
    aggregator = RecordAggregator(SEAL_BYTES)
    for key, data in records:
        full = aggregator.add_user_record(key, data)
        if full is not None:
            blobs.append(full.get_contents()[2])
    blobs.append(aggregator.clear_and_get().get_contents()[2])
    return blobs


def lambda_record(blob: bytes) -> dict[str, object]:
    number = "49590338271490256608559692538361571095921575989136588898"
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": "a",
            "sequenceNumber": number,
            "data": b64encode(blob).decode(),
            "approximateArrivalTimestamp": 1545084650.987,
        },
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": f"shardId-000000000006:{number}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": "arn:aws:iam::123456789012:role/lambda-role",
        "awsRegion": "us-east-2",
        "eventSourceARN": "arn:aws:kinesis:us-east-2:123456789012:stream/orders",
    }


def boto3_record(blob: bytes) -> dict[str, object]:
    return {"SequenceNumber": "1", "ApproximateArrivalTimestamp": 1.0, "Data": blob, "PartitionKey": "a"}


def open_peer_lambda(records: list[dict[str, object]]) -> list[dict[str, dict[str, object]]]:
    return deaggregate_records(records)


def open_peer_bytes(records: list[dict[str, object]]) -> list[tuple[str, bytes, str | None]]:
    return [
        (opened["kinesis"]["partitionKey"], b64decode(opened["kinesis"]["data"]), opened["kinesis"]["explicitHashKey"])
        for opened in iter_deaggregate_records(records, "Boto3")
    ]


def open_bytes(blobs: list[bytes]) -> list[Columns]:
    """Open the aggregates of a page, as the consumer does."""
    assert all(find_frames(blobs)), "an aggregate is not recognized"
    return [columns for columns in map(split_frame, blobs) if columns is not None]


def take_turn(task: Task, rounds: int) -> Times:
    times = Times([], [])
    for _ in range(rounds):
        for side, run_once in zip(times, task, strict=True):
            started_at = process_time()
            run_once()
            side.append(process_time() - started_at)
    return times


def prepare() -> dict[str, Task]:
    """Return all tasks, by name. Raises ``AssertionError`` if the two sides do not agree."""
    rng = random.Random(1)
    hot_keys = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(1_000)]
    workloads = {
        "uuid keys": records_of([str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(RECORDS)]),
        "1,000 keys": records_of([rng.choice(hot_keys) for _ in range(RECORDS)]),
        "30 keys": records_of([rng.choice(hot_keys[:30]) for _ in range(RECORDS)]),
    }
    tasks = {}
    for name, records in workloads.items():
        theirs = [(key.encode(), data) for key, data in records]
        ours = [BufferedRecord(data, key, None, 0.0) for key, data in records]
        blobs = build_ours(ours)
        assert blobs == build_peer(theirs), "different aggregates"
        tasks[f"build, {name}"] = Task(lambda ours=ours: build_ours(ours), lambda theirs=theirs: build_peer(theirs))
        tasks |= opening(name, blobs)
    return dict(sorted(tasks.items()))


def opening(name: str, blobs: list[bytes]) -> dict[str, Task]:
    from_lambda, from_boto3 = [lambda_record(blob) for blob in blobs], [boto3_record(blob) for blob in blobs]
    expected = [member for columns in open_bytes(blobs) for member in zip(*columns[:3], strict=True)]
    assert expected == open_peer_bytes(from_boto3), "different records"
    assert expected == [(record.key, record.data, record.explicit_hash_key) for record in deaggregate(from_lambda)]
    peer = [record["kinesis"] for record in open_peer_lambda(from_lambda)]
    assert expected == [
        (record["partitionKey"], b64decode(record["data"]), record["explicitHashKey"]) for record in peer
    ]
    return {
        f"open, Lambda, {name}": Task(lambda: deaggregate(from_lambda), lambda: open_peer_lambda(from_lambda)),
        f"open, bytes, {name}": Task(lambda: open_bytes(blobs), lambda: open_peer_bytes(from_boto3)),
    }


def serve_turns() -> None:
    """Take a turn for each line on standard input, in the form that this process uses."""
    tasks = prepare()
    print(json.dumps({"form": implementation, "tasks": list(tasks)}), flush=True)
    for line in sys.stdin:
        name, rounds = json.loads(line)
        print(json.dumps(take_turn(tasks[name], rounds)), flush=True)


class Worker:
    """A process that takes turns in one of the forms."""

    def __init__(self, suffix: str, process: subprocess.Popen[str]) -> None:
        self._suffix, self._process = suffix, process
        ready = self._read()
        forms.check_form(suffix, ready["form"])
        self.tasks: list[str] = ready["tasks"]

    def _read(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of the {forms.form_of(self._suffix)} form ended: {self._process.wait()}")
        return json.loads(line)

    def take_turn(self, task: str, rounds: int) -> Times:
        self._process.stdin.write(json.dumps([task, rounds]) + "\n")
        self._process.stdin.flush()
        return Times(*self._read())


@contextlib.contextmanager
def running_worker(suffix: str) -> Iterator[Worker]:
    line, environment = [sys.executable, __file__, "--serve-turns"], forms.environment_of(suffix)
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield Worker(suffix, process)
        finally:
            process.kill()


def measure(rounds: int) -> dict[str, dict[str, Times]]:
    """Return the times by task and by the form's end of a name. The peer's times come from both processes."""
    with contextlib.ExitStack() as stack:
        workers = {suffix: stack.enter_context(running_worker(suffix)) for suffix in forms.suffixes()}
        tasks = next(iter(workers.values())).tasks
        found = {}
        for task in tasks:
            peer: list[float] = []
            found[task] = {suffix: Times([], peer) for suffix in workers}
            for begin in range(0, rounds, TURN):
                for suffix, worker in workers.items():
                    turn = worker.take_turn(task, min(TURN, rounds - begin))
                    found[task][suffix].ours.extend(turn.ours)
                    peer.extend(turn.peer)
        return found


def cost_of(times: list[float]) -> Cost:
    """Return the CPU seconds per million records."""
    return Cost(*(seconds / RECORDS * 1e6 for seconds in (min(times), statistics.median(times))))


def report(task: str, suffix: str, times: Times) -> bool:
    limits: Limits = forms.BUILD if task.startswith("build") else forms.OPEN
    peer = cost_of(times.peer)
    ours = cost_of(times.ours)
    ratios = note_ratio(f"{task}: aws_kinesis_agg / shardline{suffix}", peer, ours)
    print(f"{task + suffix:34}{ours.best:9.3f}{ours.median:9.3f}{peer.best:9.3f}{peer.median:9.3f}", end="")
    what = f"aws_kinesis_agg / shardline{suffix}: {ratios.best:.1f} (medians {ratios.median:.1f})"
    return judge(limits, what, suffix, ratios, of=task, width=62)


def main() -> int:
    parser = argparse.ArgumentParser(description="Aggregation, next to aws_kinesis_agg.")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--serve-turns", action="store_true", help=argparse.SUPPRESS)
    add_json_option(parser)
    arguments = parser.parse_args()
    if arguments.serve_turns:
        serve_turns()
        return 0
    print(f"100-byte records, aggregates of {SEAL_BYTES:,} bytes; CPU s/M records, {arguments.rounds} rounds")
    print(f"{'':34}{'ours':^18}{'aws_kinesis_agg':^18}")
    print(f"{'':34}{'best':>9}{'median':>9}{'best':>9}{'median':>9}")
    found = measure(arguments.rounds)
    met = [report(task, suffix, times) for task, both in found.items() for suffix, times in both.items()]
    write(arguments.json)
    return 1 if arguments.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
