"""Does every failure of a handler leave a trace: a log line, an event, and a count in ``status()``?"""

import logging
import re
from collections import Counter
from dataclasses import replace

import pytest
from tests.shell.blocking import EVERY_API

from shardline import Consumer, FailurePolicy, HandlerFailed, LeaseNotHeld
from shardline.adapters.leases.memory import MemoryLeases
from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import (
    DeadLetterFailed,
    HandlerRetried,
    HandlingStopped,
    RecordsDeadLettered,
)

pytestmark = pytest.mark.anyio

HASTY = FailurePolicy(attempts=3, backoff=0.01, backoff_max=0.02)
OF_HANDLERS = (HandlerRetried, RecordsDeadLettered, DeadLetterFailed, HandlingStopped)


class Sink:
    def __init__(self):
        self.events = []

    def __call__(self, event):
        if isinstance(event, OF_HANDLERS):
            self.events.append(event)

    @property
    def kinds(self):
        return Counter(type(event).__name__ for event in self.events)


@pytest.fixture
def sink():
    return Sink()


def forget(letter):
    """A dead-letter target that always succeeds."""
    assert letter.records


def counts_of(consumer):
    status = consumer.status()
    return status.retries, status.dead_letters, status.failed_records


def fails_on(*poison):
    def handle(given):
        records = given if hasattr(given, "records") else [given]
        if any(record.data in poison for record in records):
            raise ValueError("who pays?")

    return handle


@pytest.mark.parametrize("kind", ["async", "lambda", "thread"])
@pytest.mark.parametrize("ack", ["auto", "manual"])
async def test_a_retry_is_a_warning_and_a_dead_letter_an_error(make_consumer, put, sink, kind, ack, caplog):
    """15 calls fail, and 5 dead letters are written. Before, they left no log line and no event."""
    await put(range(20), keys=1)
    poison = [b"%d" % number for number in range(3, 8)]
    work = fails_on(*poison)

    async def handle(record):
        work(record)
        consumer.ack(record)

    def handle_in_thread(record):
        work(record)
        consumer.ack(record)

    handlers = {"async": handle, "lambda": lambda record: handle(record), "thread": handle_in_thread}  # noqa: PLW0108 - a plain function that gives a coroutine
    letters = []
    with caplog.at_level(logging.INFO, logger="shardline"):
        async with make_consumer(until="latest", sinks=[sink], ack=ack) as consumer:
            await consumer.run(handlers[kind], policy=HASTY, dead_letter=letters.append)
            assert counts_of(consumer) == (10, 5, 0)
            assert consumer.status().health == "ok"
    assert sink.kinds == {"HandlerRetried": 10, "RecordsDeadLettered": 5}
    numbers = [letter.records[0].sequence_number for letter in letters]
    for event in sink.events:
        assert event.sequence_number in numbers
        assert event.shard_id == letters[0].records[0].shard_id
        assert (event.records, event.error_type, event.message) == (1, "ValueError", "who pays?")
        assert re.search(r"handle(_in_thread)? \(test_handler_failures.py:", event.place)
    assert [event.attempts for event in sink.events[:3]] == [1, 2, 3]
    lines = [(one.levelname, one.getMessage()) for one in caplog.records if "handler failed" in one.getMessage()]
    assert {level for level, _ in lines} == {"WARNING", "ERROR"}
    assert len(lines) <= 4, "those that are alike share a line"
    retried = [one for one in caplog.records if one.levelname == "WARNING" and "retrying" in one.getMessage()]
    assert sum(one.args[1] for one in retried) == 10
    buried = [one for one in caplog.records if one.levelname == "ERROR" and "dead letters" in one.getMessage()]
    assert sum(one.args[1] for one in buried) == 5
    assert "wrote 1 record as dead letters: ValueError: who pays? (at " in buried[0].getMessage()
    assert f"last: record {numbers[0]}/0 of shardId-" in buried[0].getMessage()
    assert "tried 3 times" in buried[0].getMessage()


@EVERY_API
async def test_each_part_of_a_bisected_batch_is_reported(make_consumer, put, sink):
    await put(range(8), keys=1)
    policy = FailurePolicy(attempts=1)
    async with make_consumer(until="latest", sinks=[sink]) as consumer:
        await consumer.run(fails_on(b"5"), batch=8, policy=policy, dead_letter=forget)
        assert counts_of(consumer) == (3, 1, 0)
    assert [(type(event).__name__, event.records) for event in sink.events] == [
        ("HandlerRetried", 8),
        ("HandlerRetried", 4),
        ("HandlerRetried", 2),
        ("RecordsDeadLettered", 1),
    ]


@EVERY_API
async def test_a_handler_that_stops_the_run_is_reported_and_counted(make_consumer, put, sink, complaints):
    await put(range(5), keys=1)
    async with make_consumer(sinks=[sink]) as consumer:
        with pytest.raises(HandlerFailed):
            await consumer.run(fails_on(b"2"), policy=HASTY)
        assert counts_of(consumer) == (2, 0, 1)
    assert [type(event) for event in sink.events] == [HandlerRetried, HandlerRetried, HandlingStopped]
    (line,) = [text for level, text in complaints() if level == "ERROR"]
    assert "the handler failed for good; stopping the run, 1 record will come again" in line


async def test_a_dead_letter_that_cannot_be_written_is_reported(make_consumer, put, sink, complaints):
    await put(range(5), keys=1)
    tries = []

    async def bury(letter):
        tries.append(letter)
        if len(tries) < 3:
            raise OSError("the disk is full")

    async with make_consumer(until="latest", sinks=[sink]) as consumer:
        await consumer.run(fails_on(b"2"), policy=HASTY, dead_letter=bury)
        assert counts_of(consumer) == (2, 1, 0)
    failed = [event for event in sink.events if isinstance(event, DeadLetterFailed)]
    assert [(event.attempts, event.error_type, event.message) for event in failed] == [
        (1, "OSError", "the disk is full"),
        (2, "OSError", "the disk is full"),
    ]
    assert all(event.retry_at < NEVER for event in failed)
    assert any(
        level == "WARNING" and "could not write 1 record as dead letters" in text for level, text in complaints()
    )


async def test_dead_letters_that_can_never_be_written_end_the_run_with_an_error(
    make_consumer, put, sink, complaints, tmp_path
):
    await put(range(5), keys=1)
    async with make_consumer(sinks=[sink]) as consumer:
        with pytest.raises(HandlerFailed):
            await consumer.run(fails_on(b"2"), policy=HASTY, dead_letter=tmp_path / "no" / "such" / "directory")
        assert counts_of(consumer) == (2, 0, 1)
    assert (type(sink.events[-1]), sink.events[-1].retry_at) == (DeadLetterFailed, NEVER)
    assert any(level == "ERROR" and "dead letters cannot be written" in text for level, text in complaints())


async def test_no_data_of_a_record_gets_into_logs_and_events(make_consumer, client_of, sink, caplog):
    async with client_of() as client:
        await client.put_record("s", b'{"card": "4111-secret"}', "customer-17")

    async def handle(record):
        raise ValueError(f"cannot charge {record.data!r} of {record.key}")

    with caplog.at_level(logging.DEBUG, logger="shardline"):
        async with make_consumer(until="latest", sinks=[sink]) as consumer:
            await consumer.run(handle, policy=HASTY, dead_letter=forget)
    shown = " ".join([*(one.getMessage() for one in caplog.records), repr(sink.events)])
    assert "cannot charge" in shown
    assert "4111" not in shown
    assert "customer-17" not in shown


async def test_what_was_counted_is_logged_while_nothing_else_happens(
    make_consumer, put, eventually, monkeypatch, caplog
):
    """A second dead letter of the same kind must not wait for a third one to be logged."""
    monkeypatch.setattr("shardline.aio.reporting._PERIOD", 0.3)
    await put(range(4), keys=1)
    async with make_consumer(until="latest") as consumer:
        await consumer.run(fails_on(b"1", b"2"), policy=FailurePolicy(attempts=1), dead_letter=forget)

        def buried():
            return sum(one.args[1] for one in caplog.records if "dead letters" in one.getMessage())

        assert buried() == 1
        await eventually(lambda: buried() == 2)


def test_a_consumer_that_was_not_started_has_counted_nothing(connection):
    assert counts_of(Consumer("s", **connection)) == (0, 0, 0)


# ---- handlers that were fenced


def fence(record):
    raise LeaseNotHeld("exactly_once", {record.shard_id: "a later owner has claimed it"})


async def fence_async(record):
    fence(record)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_fenced_record_is_not_dead_lettered_when_its_lease_is_lost(make_consumer, put, group, is_async, sink):
    """With a single attempt, the record used to be dead-lettered before the worker noticed the loss."""
    await put(range(5), keys=1)
    letters, fenced, handled = [], [], []

    def handle(record):
        if not fenced:
            fenced.append(record)
            rows = MemoryLeases.shared(group, "s")._rows
            row = rows[record.shard_id]  # another worker takes the lease, claims the shard in the database, and dies
            rows[record.shard_id] = replace(row, owner="other", counter=row.counter + 5)
            fence(record)
        assert record.lease.token > fenced[0].lease.token
        handled.append(int(record.data))

    async def handle_async(record):
        handle(record)

    async with make_consumer(group=group, store="memory:", sinks=[sink], idle_timeout=3.0) as consumer:
        handler = handle_async if is_async else handle
        await consumer.run(handler, policy=FailurePolicy(attempts=1), dead_letter=letters.append)
        assert counts_of(consumer) == (0, 0, 0)
    assert (letters, sink.events) == ([], [])
    assert handled == [0, 1, 2, 3, 4], "this worker got the lease back"


@pytest.mark.parametrize("handler", [fence, fence_async])
async def test_a_record_that_is_fenced_under_a_renewed_lease_stops_the_run(make_consumer, put, handler, sink):
    await put(range(5), keys=1)
    letters = []
    async with make_consumer(sinks=[sink]) as consumer:
        with pytest.raises(HandlerFailed) as stopped:
            await consumer.run(handler, policy=FailurePolicy(attempts=1), dead_letter=letters.append)
    assert isinstance(stopped.value.__cause__, LeaseNotHeld)
    assert (letters, sink.kinds) == ([], {"HandlingStopped": 1})
