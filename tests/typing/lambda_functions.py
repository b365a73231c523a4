"""Checks how a Lambda function looks to a type checker. Read by mypy --strict, never run."""

# ruff: noqa: T201 - handlers that print

import json
from pathlib import Path
from typing import Any, assert_type

from shardline import Batch, DeadLetter, FailurePolicy, Producer, Record
from shardline.awslambda import BatchItemFailure, Clock, KinesisEventSource, Response, Window
from shardline.sync import Producer as BlockingProducer


class NoWaits:
    """A clock for tests."""

    def now(self) -> float:
        return 0.0

    async def sleep(self, seconds: float, /) -> None:
        """Return at once."""


def keep(letter: DeadLetter) -> None:
    print(letter.records, letter.attempts, letter.error)


clock: Clock = NoWaits()
source = KinesisEventSource(
    deserializer=json.loads,
    policy=FailurePolicy(attempts=3),
    dead_letter=keep,
    producer=Producer("results"),
    report_failures=True,
    margin=2.5,
    sinks=[print],
    clock=clock,
)
KinesisEventSource(dead_letter="orders-failed", producer=BlockingProducer("results"))
KinesisEventSource(dead_letter=Path("/tmp/dead.jsonl"))
KinesisEventSource(dead_letter=BlockingProducer("orders-failed"))


@source.each_record
def plain(record: Record) -> None:
    print(record.value, record.shard_id)


@source.each_record
async def waiting(record: Record) -> None:
    print(record.value)


@source.each_batch(100)
async def batches(batch: Batch) -> None:
    print(batch.values)


@source.each_batch()
def whole(batch: Batch) -> int:
    return len(batch)


def end(window: Window) -> None:
    assert_type(window.ends_at, float)
    print(dict(window.state))


@source.each_window(on_end=end, max_records=10)
def windows(batch: Batch, window: Window) -> dict[str, Any]:
    return {"n": window.state.get("n", 0) + len(batch)}


def call(event: dict[str, Any], context: object) -> None:
    response = plain(event, context)
    assert_type(response, Response)
    assert_type(response["batchItemFailures"], list[BatchItemFailure])
    assert_type(response["batchItemFailures"][0]["itemIdentifier"], str)
    assert_type(windows(event, context).get("state"), dict[str, Any] | None)
    assert_type(waiting(event, context), Response)


def mistakes() -> None:
    """Each of these is an error to mypy: an ignore that is not needed fails the run."""

    @source.each_record  # type: ignore[arg-type]
    def takes_a_batch(batch: Batch) -> None:
        print(batch)

    @source.each_batch()  # type: ignore[arg-type]
    def takes_a_record(record: Record) -> None:
        print(record)

    @source.each_window()  # type: ignore[arg-type]
    def takes_no_window(batch: Batch) -> None:
        print(batch)

    KinesisEventSource(deserialiser=json.loads)  # type: ignore[call-arg]
    KinesisEventSource(producer="results")  # type: ignore[arg-type]
    KinesisEventSource(policy="stop")  # type: ignore[arg-type]
