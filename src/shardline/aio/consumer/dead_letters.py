"""Writes the records that no handler could process.

Invariants:

- ``write`` returns only when the dead letter is safe: the callable has returned, every record has its receipt, or the
  lines are on the disk. If the dead letter cannot be made safe, ``write`` raises.
- A record in a stream of dead letters keeps its data, its key and its headers, so that it can be put back unchanged.
  The record loses its headers only if that stream cannot accept them, because losing the record would be worse. A line
  in a file is a record in the format of ``codec.record_lines``, with the reason. ``shardline put --retry`` puts the
  record back.
"""

import logging
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, cast, final

import anyio.to_thread

from shardline.aio.client import Client
from shardline.aio.producer.async_producer import Producer
from shardline.aio.producer.delivery import SettledRecord
from shardline.codec.record_lines import PlainRecord, line_of, shown_time
from shardline.core.consumer.failure_policy import DeadLetter
from shardline.core.producer.producer_record import Receipt, Undelivered
from shardline.core.producer.retries import HEADERS_REFUSED
from shardline.errors import UsageError
from shardline.model.stream import parse_stream

_log: Final = logging.getLogger("shardline.consumer")

DeadLetterTarget: TypeAlias = Callable[[DeadLetter], object] | str | Path | Producer[bytes]
"""Where dead letters go: to a callable, to a stream (its name, its ARN or a ``Producer``), or to the end of a file."""


@final
class DeadLetterWriter(NamedTuple):
    """The two functions that write dead letters to a target and close the target."""

    write: Callable[[DeadLetter], Awaitable[None]]
    close: Callable[[], Awaitable[object]]


def dead_letter_writer(target: object, client: Client | None) -> DeadLetterWriter:
    """Return the writer for a ``DeadLetterTarget``. A stream is written with ``client``, or with a new client.

    Raises:
        UsageError: ``target`` is not a ``DeadLetterTarget``.
    """
    if isinstance(target, Producer):
        return DeadLetterWriter(partial(_put, target), _leave_open)
    if isinstance(target, Path):
        return DeadLetterWriter(partial(_append, target.absolute()), _leave_open)
    if isinstance(target, str):
        try:
            parse_stream(target)
        except UsageError as error:
            raise UsageError(f"dead_letter: {error}; to write to a file, pass a pathlib.Path") from None
        producer = Producer(target, client=client)
        return DeadLetterWriter(partial(_put, producer, is_owned=True), producer.close)
    if not callable(target):
        raise UsageError(
            "dead_letter must be a callable, a stream's name or ARN, a Producer, or a pathlib.Path, "
            f"not {type(target).__name__}"
        )
    return DeadLetterWriter(partial(_call, cast("Callable[[DeadLetter], object]", target)), _leave_open)


async def _leave_open() -> None:
    """Close nothing: the target belongs to the user, or is a file, which is closed after every dead letter."""


async def _call(target: Callable[[DeadLetter], object], letter: DeadLetter) -> None:
    result = target(letter)
    if isawaitable(result):
        await cast("Awaitable[object]", result)


async def _put(producer: Producer, letter: DeadLetter, *, is_owned: bool = False) -> None:
    if is_owned:
        await producer.start()
    records = without_refused_headers(records_of(letter), producer.headers_refusal)
    deliveries = await producer.put_many(records)
    refused = [
        record
        for record, delivery in zip(records, deliveries, strict=True)
        if lost_its_headers(await delivery.outcome(), delivery)
    ]
    for delivery in await producer.put_many(without_refused_headers(refused, producer.headers_refusal)):
        await delivery


async def _append(path: Path, letter: DeadLetter) -> None:
    def append(lines: bytes) -> None:
        with path.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    await anyio.to_thread.run_sync(append, dead_letter_lines(letter, time.time()))


def records_of(letter: DeadLetter) -> list[PlainRecord]:
    """Return the records of a dead letter in a form that can be put again.

    A record without a key loses its explicit hash key, because ``put`` refuses an explicit hash key without a key.
    """
    return [
        PlainRecord(record.key, record.data, record.explicit_hash_key if record.key else None, record.headers)
        for record in letter.records
    ]


def without_refused_headers(records: list[PlainRecord], refusal: str | None) -> list[PlainRecord]:
    """Return the records without headers if the producer of the dead letters cannot send headers. This is logged."""
    if refusal is None or not any(record.headers for record in records):
        return records
    _log.warning("dead letters are written without their headers: %s", refusal)
    return [record._replace(headers=None) for record in records]


def lost_its_headers(outcome: Receipt | Undelivered, delivery: SettledRecord) -> bool:
    """Return whether a dead letter has to be put again without headers, because its stream turned out to refuse
    headers.

    Raises:
        DeliveryFailed: the dead letter was not delivered, for another reason.
    """
    if isinstance(outcome, Undelivered) and outcome.code == HEADERS_REFUSED:
        return True
    delivery.receipt()
    return False


def dead_letter_lines(letter: DeadLetter, now: float) -> bytes:
    """Return one line per record, in the format of ``codec.record_lines``."""
    message = _message(letter.error)
    return b"".join(
        line_of(
            plain,
            error="HandlerFailed",
            message=message,
            attempts=letter.attempts,
            failed_at=shown_time(now),
            stream=record.stream,
            shard_id=record.shard_id,
            sequence_number=record.sequence_number,
            sub_sequence=record.sub_sequence,
            arrived_at=None if record.arrived_at is None else shown_time(record.arrived_at),
        )
        for record, plain in zip(letter.records, records_of(letter), strict=True)
    )


def _message(error: object) -> str:
    """Return the error's text. An exception's ``__str__`` may raise, or return characters that UTF-8 cannot encode."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the dead letter matters more than its reason
        text = "(its text cannot be shown)"
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {text}"
    return text.encode("utf-8", "backslashreplace").decode()
