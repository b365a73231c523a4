"""How fast are aggregates built and opened, next to aws_kinesis_agg?

    .venv/bin/python benchmarks/bench_aggregation.py [--rounds N] [--check]

Both sides get the same records, in alternating rounds (ours, peer, ours, peer, ...), timed in CPU seconds of this
process. ``--check`` uses the best rounds, which other jobs on the machine disturb least. The results are compared
before anything is timed: the aggregates must be byte-identical, and the opened records must be equal. The peer gets its
keys as bytes, its best case: with str keys it miscalculates sizes and seals early.

- build: size check, add and seal at 51,200 bytes. Ours is the producer's ``Aggregate``, with its own records; the
  peer's is ``RecordAggregator.add_user_record`` and ``get_contents``.
- open: one aggregate at a time, whose records are dropped before the next, as in a consumer.
  - Lambda: from a Lambda record, with a check of the MD5, to one object per user record. The peer leaves the payloads
    in base64.
  - bytes: from bytes, with a check of the MD5, to the key, the payload as bytes and the explicit hash key. The peer
    need not decode the input in its format for boto3, but returns the payloads in base64, so they are decoded.
"""

import argparse
import random
import statistics
import sys
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable
from time import process_time
from typing import NamedTuple, TypeVar

from aws_kinesis_agg.aggregator import RecordAggregator
from aws_kinesis_agg.deaggregator import deaggregate_records, iter_deaggregate_records
from results import Cost, add_json_option, note_ratio, note_verdict, write

from shardline import implementation
from shardline.codec.aggregation import split_columns
from shardline.codec.raw_records import deaggregate
from shardline.core.producer.aggregate import Aggregate, KeylessAddress
from shardline.core.producer.producer_record import BufferedRecord

T = TypeVar("T")

SEAL_BYTES = 51_200
RECORDS = 4_000  # a round lasts only milliseconds, so that some rounds are undisturbed
IS_NATIVE = implementation == "native"
BUILD_TARGET = 15.0 if IS_NATIVE else 4.5
OPEN_TARGET = 12.0 if IS_NATIVE else 3.3
NO_ADDRESS = KeylessAddress(None, None)  # every record has a key


class Result(NamedTuple):
    name: str
    ours_best: float
    """Records per CPU second."""
    ours_median: float
    peer_best: float
    peer_median: float
    target: float

    @property
    def best_ratio(self) -> float:
        return self.ours_best / self.peer_best

    @property
    def median_ratio(self) -> float:
        return self.ours_median / self.peer_median


def records_of(keys: list[str]) -> list[tuple[str, bytes]]:
    rng = random.Random(7)
    return [(key, rng.randbytes(100)) for key in keys]


def build_ours(rest: list[BufferedRecord]) -> list[bytes]:
    blobs = []
    while rest:
        aggregate = Aggregate(0.0, NO_ADDRESS)
        rest = rest[aggregate.add_all(rest, SEAL_BYTES) :]
        blobs.append(aggregate.entry().data)
    return blobs


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


def open_peer_lambda(record: dict[str, object]) -> list[dict[str, dict[str, object]]]:
    return deaggregate_records([record])


def open_peer_bytes(record: dict[str, object]) -> list[tuple[str, bytes, str | None]]:
    return [
        (opened["kinesis"]["partitionKey"], b64decode(opened["kinesis"]["data"]), opened["kinesis"]["explicitHashKey"])
        for opened in iter_deaggregate_records([record], "Boto3")
    ]


def each(call: Callable[[T], object], items: list[T]) -> Callable[[], None]:
    def run_once() -> None:
        for item in items:
            call(item)

    return run_once


def measure(
    name: str, ours: Callable[[], object], peer: Callable[[], object], *, rounds: int, count: int, target: float
) -> Result:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, run_once in zip(times, (ours, peer), strict=True):
            started_at = process_time()
            run_once()
            side.append(process_time() - started_at)
    best, median = [count / min(side) for side in times], [count / statistics.median(side) for side in times]
    return Result(name, best[0], median[0], best[1], median[1], target)


def run(rounds: int = 101) -> list[Result]:
    """Run all comparisons. Raises ``AssertionError`` if the two sides do not agree."""
    rng = random.Random(1)
    hot_keys = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(1_000)]
    workloads = {
        "uuid keys": records_of([str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(RECORDS)]),
        "1,000 keys": records_of([rng.choice(hot_keys) for _ in range(RECORDS)]),
        "30 keys": records_of([rng.choice(hot_keys[:30]) for _ in range(RECORDS)]),
    }
    results = []
    for name, records in workloads.items():
        theirs = [(key.encode(), data) for key, data in records]
        ours = [BufferedRecord(data, key, None, 0.0) for key, data in records]
        blobs = build_ours(ours)
        assert blobs == build_peer(theirs), "different aggregates"
        results.append(
            measure(
                f"build, {name}",
                lambda ours=ours: build_ours(ours),
                lambda theirs=theirs: build_peer(theirs),
                rounds=rounds,
                count=RECORDS,
                target=BUILD_TARGET,
            )
        )
        results += measure_opening(name, blobs, rounds, RECORDS)
    return sorted(results, key=lambda result: result.name)


def measure_opening(name: str, blobs: list[bytes], rounds: int, count: int) -> tuple[Result, Result]:
    from_lambda, from_boto3 = [lambda_record(blob) for blob in blobs], [boto3_record(blob) for blob in blobs]
    for blob, lambda_input, boto3_input in zip(blobs, from_lambda, from_boto3, strict=True):
        columns = split_columns(blob)
        assert columns is not None
        expected = list(zip(*columns[:3], strict=True))
        assert expected == open_peer_bytes(boto3_input), "different records"
        assert expected == [(record.key, record.data, record.explicit_hash_key) for record in deaggregate(lambda_input)]
        peer = [record["kinesis"] for record in open_peer_lambda(lambda_input)]
        assert expected == [
            (record["partitionKey"], b64decode(record["data"]), record["explicitHashKey"]) for record in peer
        ]
    common = {"rounds": rounds, "count": count, "target": OPEN_TARGET}
    return (
        measure(f"open, Lambda, {name}", each(deaggregate, from_lambda), each(open_peer_lambda, from_lambda), **common),
        measure(f"open, bytes, {name}", each(split_columns, blobs), each(open_peer_bytes, from_boto3), **common),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Aggregation, next to aws_kinesis_agg.")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a ratio of the best rounds is below its target"
    )
    add_json_option(parser)
    arguments = parser.parse_args()
    results = run(arguments.rounds)
    print(f"100-byte records, aggregates of {SEAL_BYTES:,} bytes; records per CPU second, {arguments.rounds} rounds")
    print(f"{'':28}{'ours':^21}{'aws_kinesis_agg':^21}{'ratio':^14}")
    print(f"{'':28}{'best':>10}{'median':>10} {'best':>10}{'median':>10} {'best':>7}{'median':>7}{'target':>8}")
    for result in results:
        print(
            f"{result.name:28}{result.ours_best:>10,.0f}{result.ours_median:>10,.0f} {result.peer_best:>10,.0f}"
            f"{result.peer_median:>10,.0f} {result.best_ratio:>6.1f}x{result.median_ratio:>6.1f}x{result.target:>7.1f}x"
        )
        what = (
            f"{result.name}: {result.best_ratio:.1f} times aws_kinesis_agg's speed (medians {result.median_ratio:.1f})"
        )
        note_verdict(what, f"at least {result.target:g}", met=result.best_ratio >= result.target)
        peer, ours = (
            Cost(1e6 / result.peer_best, 1e6 / result.peer_median),
            Cost(1e6 / result.ours_best, 1e6 / result.ours_median),
        )
        note_ratio(f"{result.name}: aws_kinesis_agg / shardline", peer, ours)
    write(arguments.json)
    missed = [result.name for result in results if result.best_ratio < result.target]
    if arguments.check and missed:
        print(f"below target: {'; '.join(missed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
