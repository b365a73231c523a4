"""A lease store in memory, for tests, for a single process, and for consumers without a group.

Invariants:

- Stores from ``shared`` with the same group and stream share their rows, on every event loop and in every thread. A
store that is created directly has its own rows.
"""

import threading
from collections.abc import Sequence
from typing import Final, final

import anyio.lowlevel

from shardline.core.error_codes import Failure
from shardline.core.leases import LeaseOperation, apply_to
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream, LeaseAnswer

_shared_rows: Final[dict[tuple[str, str], dict[str, Lease]]] = {}
_lock: Final = threading.Lock()


@final
class MemoryLeases:
    """``LeaseStore`` in memory."""

    scan_interval: float = 0.5
    checkpoint_interval: float = 1.0

    def __init__(self, group: str, stream: str, rows: dict[str, Lease] | None = None) -> None:
        self.group: Final = group
        self.stream: Final = stream
        self._rows = {} if rows is None else rows

    @classmethod
    def shared(cls, group: str, stream: str) -> "MemoryLeases":
        """Return a store that shares its rows with all other stores of this group and stream in this process."""
        with _lock:
            return cls(group, stream, _shared_rows.setdefault((group, stream), {}))

    def for_stream(self, stream: str) -> "MemoryLeases":
        """Return the store of the same group for another stream. It shares its rows with others of this process."""
        return self if stream == self.stream else MemoryLeases.shared(self.group, stream)

    async def open(self) -> Failure | None:
        await anyio.lowlevel.checkpoint()
        return None

    async def list_leases(self) -> list[Lease] | Failure:
        await anyio.lowlevel.checkpoint()
        with _lock:
            return [self._rows[shard_id] for shard_id in sorted(self._rows)]

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        await anyio.lowlevel.checkpoint()
        with _lock:
            return apply_to(self._rows, operation)

    async def apply_many(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        await anyio.lowlevel.checkpoint()
        with _lock:
            return [apply_to(self._rows, operation) for operation in operations]

    async def list_groups(self) -> list[GroupOnStream] | Failure:
        """Return every group and stream with leases in this process."""
        await anyio.lowlevel.checkpoint()
        with _lock:
            return [GroupOnStream(*key) for key, rows in sorted(_shared_rows.items()) if rows]

    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()

    def __repr__(self) -> str:
        return f"<MemoryLeases of group {self.group!r} on {self.stream!r}>"
