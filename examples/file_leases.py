"""A lease store in a folder, for the processes of one machine: one file for each lease.

It shows what a lease store has to do, and uses public names only. Pass it to a consumer::

    Consumer("orders", group="billing", store=FileLeases(Path("leases"), "billing", "orders"))
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import anyio.to_thread

from shardline.stores import (
    Failure,
    FailureKind,
    Lease,
    LeaseAnswer,
    LeaseOperation,
    RowError,
    apply,
    decode_row,
    encode_row,
)

T = TypeVar("T")


class FileLeases:
    scan_interval = 0.5  # seconds between two listings by a worker
    checkpoint_interval = 1.0  # seconds between two commits of a shard

    def __init__(self, folder: Path, group: str, stream: str) -> None:
        self.group = group
        self.stream = stream
        self._folder = folder / f"group {quote(group, safe='')}" / f"stream {quote(stream, safe='')}"

    async def open(self) -> Failure | None:
        return await in_thread(lambda: self._folder.mkdir(parents=True, exist_ok=True))

    async def list_leases(self) -> list[Lease] | Failure:
        return await in_thread(self._list)

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        return await in_thread(lambda: self._apply(operation))

    async def close(self) -> None:
        """Nothing stays open between two calls."""

    def _list(self) -> list[Lease]:
        with self._locked():
            rows = [path.read_bytes() for path in self._folder.glob("*.json")]
        return sorted(map(decode_row, rows), key=lambda lease: lease.shard_id)

    def _apply(self, operation: LeaseOperation) -> LeaseAnswer:
        path = self._folder / f"{quote(operation.shard_id, safe='')}.json"
        with self._locked():  # no other worker reads or writes between our read and our write
            row = path.read_bytes() if path.exists() else None
            answer = apply(None if row is None else decode_row(row), operation)
            if isinstance(answer, Lease):
                replace_file(path, encode_row(answer, previous=row))
            elif answer is None:
                path.unlink(missing_ok=True)
            return answer

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # closing the file releases the lock
            yield


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that it has the old or the new content, even if the process or the machine crashes."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


async def in_thread(work: Callable[[], T]) -> T | Failure:
    """Run blocking code in a thread. A store returns expected failures, and raises nothing."""
    try:
        return await anyio.to_thread.run_sync(work)
    except RowError as error:
        return Failure(FailureKind.INVALID, "UnreadableRow", str(error))
    except OSError as error:
        return Failure(FailureKind.TRANSIENT, type(error).__name__, str(error))
