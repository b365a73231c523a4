"""Writes the records that no handler could process.

Invariants:

- DQ1: a dead letter is written when ``write`` returns: the callable returned, every record has its receipt, or the
  lines are on the disk. Until then it is not, and an exception says so.
- DQ2: a record in a stream of dead letters has its own data and key: it can be put back as it is. A line in a file is a
  record in the format of ``codec.record_lines``, with the reason: ``shardline put --retry`` puts it back.
"""

import os
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from pathlib import Path
from typing import Protocol, TypeAlias, cast, final

import anyio.to_thread

from shardline.aio.client import Client
from shardline.aio.producer import Producer
from shardline.codec.record_lines import PlainRecord, line_of, shown_time
from shardline.core.consumer.failure_policy import DeadLetter
from shardline.errors import UsageError
from shardline.model.stream import parse_stream

DeadLetterTarget: TypeAlias = Callable[[DeadLetter], object] | str | Path | Producer
"""What to do with them: call this, put them into the stream of this name or ARN, append them to this file."""


class DeadLetterOffice(Protocol):
    """Writes dead letters."""

    async def write(self, letter: DeadLetter) -> None: ...
    async def close(self) -> None: ...


def dead_letter_office(target: object, client: Client) -> DeadLetterOffice:
    """What ``target`` means.

    Raises:
        UsageError: it is none of ``DeadLetterTarget``.
    """
    if isinstance(target, Producer):
        return _Stream(target, owned=False)
    if isinstance(target, Path):
        return _File(target)
    if isinstance(target, str):
        try:
            parse_stream(target)
        except UsageError as error:
            raise UsageError(f"dead_letter: {error}; for a file give a pathlib.Path") from None
        return _Stream(Producer(target, client=client), owned=True)
    if not callable(target):
        raise UsageError(
            "dead_letter must be a callable, a stream's name or ARN, a Producer, or a pathlib.Path, "
            f"not {type(target).__name__}"
        )
    return _Call(cast("Callable[[DeadLetter], object]", target))


@final
class _Call:
    def __init__(self, target: Callable[[DeadLetter], object]) -> None:
        self._target = target

    async def write(self, letter: DeadLetter) -> None:
        result = self._target(letter)
        if isawaitable(result):
            await cast("Awaitable[object]", result)

    async def close(self) -> None:
        """The callable is the user's."""


@final
class _Stream:
    def __init__(self, producer: Producer, *, owned: bool) -> None:
        self._producer = producer
        self._owned = owned

    async def write(self, letter: DeadLetter) -> None:
        if self._owned:
            await self._producer.start()
        for delivery in await self._producer.put_many(records_of(letter)):
            await delivery

    async def close(self) -> None:
        if self._owned:
            await self._producer.close()


@final
class _File:
    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    async def write(self, letter: DeadLetter) -> None:
        await anyio.to_thread.run_sync(self._append, dead_letter_lines(letter, time.time()))

    def _append(self, lines: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    async def close(self) -> None:
        """It is closed after every letter."""


def records_of(letter: DeadLetter) -> list[PlainRecord]:
    """The records as they can be put again. Without a key there is no explicit hash key: no put takes one."""
    return [
        PlainRecord(record.key, record.data, record.explicit_hash_key if record.key else None)
        for record in letter.records
    ]


def dead_letter_lines(letter: DeadLetter, now: float) -> bytes:
    """A line for each record (DQ2)."""
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
