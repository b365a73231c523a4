"""Where do records go that no handler can handle?

Invariants:

- DQ1: a dead letter is written when ``write`` returns: the callable returned, every record has its receipt, or the
  lines are on the disk. Until then it is not, and an exception says so.
- DQ2: a record in a stream of dead letters has its own data and key: it can be put back as it is. A line in a file says
  all of it, data in base64, and why it is there.
"""

import json
import os
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast, final

import anyio.to_thread

from shardline.aio.client import Client
from shardline.aio.producer import Producer
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
        rows = [(one.key, one.data, one.explicit_hash_key if one.key else None) for one in letter.records]
        for delivery in await self._producer.put_many(rows):
            await delivery

    async def close(self) -> None:
        if self._owned:
            await self._producer.close()


@final
class _File:
    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    async def write(self, letter: DeadLetter) -> None:
        lines = [json.dumps(line) + "\n" for line in _described(letter, time.time())]
        await anyio.to_thread.run_sync(self._append, "".join(lines))

    def _append(self, text: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    async def close(self) -> None:
        """It is closed after every letter."""


def _described(letter: DeadLetter, now: float) -> list[dict[str, Any]]:
    error = letter.error
    why = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    return [
        {
            "stream": record.stream,
            "shard_id": record.shard_id,
            "sequence_number": record.sequence_number,
            "sub_sequence": record.sub_sequence,
            "key": record.key,
            "explicit_hash_key": record.explicit_hash_key,
            "arrived_at": record.arrived_at,
            "data": b64encode(record.data).decode(),
            "attempts": letter.attempts,
            "error": why,
            "buried_at": now,
        }
        for record in letter.records
    ]
