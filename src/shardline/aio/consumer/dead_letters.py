"""Writes the records that no handler could process.

Invariants:

- A dead letter is written when ``write`` returns: the callable returned, every record has its receipt, or the
  lines are on the disk. Until then it is not, and an exception says so.
- A record in a stream of dead letters has its own data and key: it can be put back as it is. A line in a file is a
  record in the format of ``codec.record_lines``, with the reason: ``shardline put --retry`` puts it back.
"""

import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast, final

import anyio.to_thread

from shardline.aio.client import Client
from shardline.aio.producer.async_producer import Producer
from shardline.codec.record_lines import PlainRecord, line_of, shown_time
from shardline.core.consumer.failure_policy import DeadLetter
from shardline.errors import UsageError
from shardline.model.stream import parse_stream

DeadLetterTarget: TypeAlias = Callable[[DeadLetter], object] | str | Path | Producer
"""What to do with them: call this, put them into the stream of this name or ARN, append them to this file."""


@final
class DeadLetterOffice(NamedTuple):
    """Writes dead letters."""

    write: Callable[[DeadLetter], Awaitable[None]]
    close: Callable[[], Awaitable[object]]


def dead_letter_office(target: object, client: Client) -> DeadLetterOffice:
    """What ``target`` means.

    Raises:
        UsageError: it is none of ``DeadLetterTarget``.
    """
    if isinstance(target, Producer):
        return DeadLetterOffice(partial(_put, target), _keep)
    if isinstance(target, Path):
        return DeadLetterOffice(partial(_append, target.absolute()), _keep)
    if isinstance(target, str):
        try:
            parse_stream(target)
        except UsageError as error:
            raise UsageError(f"dead_letter: {error}; for a file give a pathlib.Path") from None
        producer = Producer(target, client=client)
        return DeadLetterOffice(partial(_put, producer, is_owned=True), producer.close)
    if not callable(target):
        raise UsageError(
            "dead_letter must be a callable, a stream's name or ARN, a Producer, or a pathlib.Path, "
            f"not {type(target).__name__}"
        )
    return DeadLetterOffice(partial(_call, cast("Callable[[DeadLetter], object]", target)), _keep)


async def _keep() -> None:
    """The target is the user's, or a file, which is closed after every letter."""


async def _call(target: Callable[[DeadLetter], object], letter: DeadLetter) -> None:
    result = target(letter)
    if isawaitable(result):
        await cast("Awaitable[object]", result)


async def _put(producer: Producer, letter: DeadLetter, *, is_owned: bool = False) -> None:
    if is_owned:
        await producer.start()
    for delivery in await producer.put_many(records_of(letter)):
        await delivery


async def _append(path: Path, letter: DeadLetter) -> None:
    def append(lines: bytes) -> None:
        with path.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    await anyio.to_thread.run_sync(append, dead_letter_lines(letter, time.time()))


def records_of(letter: DeadLetter) -> list[PlainRecord]:
    """The records as they can be put again. Without a key there is no explicit hash key: no put takes one."""
    return [
        PlainRecord(record.key, record.data, record.explicit_hash_key if record.key else None)
        for record in letter.records
    ]


def dead_letter_lines(letter: DeadLetter, now: float) -> bytes:
    """A line for each record."""
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
    """Why. An exception is the user's: its text may fail to be made, or hold what UTF-8 has no bytes for."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the dead letter matters more than its reason
        text = "(its text cannot be shown)"
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {text}"
    return text.encode("utf-8", "backslashreplace").decode()
