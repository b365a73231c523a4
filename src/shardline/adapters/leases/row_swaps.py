"""Writes lease rows by compare-and-swap, for Redis and PostgreSQL.

``core.leases.apply`` decides an operation on a cached row. The server then replaces the row only if the row still has
the bytes on which the decision was based. A store provides the function that sends swaps to its server.

Invariants:

- A decision about one version of a row never overwrites another version. If the row has changed, the operation is
  decided again on the version that the server found.
- A write takes one round trip. A second round trip is needed only if another worker has changed the row since the row
  was cached. No operation is refused because of a cached row: the server's row decides.
- Operations that arrive while a write is in flight are sent together with the next write, so that no operation waits
  long on a slow network. The server swaps each row separately.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar, final

import anyio

from shardline.adapters.leases.lease_rows import RowError, decode_row, decode_rows, encode_row
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import LeaseOperation, Refused, TakeLease, apply
from shardline.model.lease import Lease
from shardline.ports import LeaseAnswer

_SWAPS_MAX: Final = 20

T = TypeVar("T")


class Swap(NamedTuple):
    """A request to replace a row if it is still as expected, or only to read it."""

    shard_id: str
    expected: bytes
    """The row on which the decision was based, or empty if there was no row."""
    row: bytes | None
    """The new row. If it is empty, the row is removed. If it is ``None``, the row is only read."""
    floor: int
    """If this is not 0, the server writes a counter that is at least this number and at least its own time."""


class SwapReply(NamedTuple):
    """The server's answer to a swap."""

    row: bytes
    """The row that is stored now, or empty if there is no row."""
    is_swapped: bool


class InThread(Protocol):
    """Calls a function in a worker thread, and converts exceptions from the store's client to a ``Failure``."""

    def __call__(self, work: Callable[[], T | Failure]) -> Awaitable[T | Failure]: ...


class _CachedRow(NamedTuple):
    row: bytes
    writes: int
    """The value of ``_writes`` when the row was cached. A listing that began when ``_writes`` was lower is older than
    the row.
    """


class _Attempt(NamedTuple):
    """The row on which the decision about an operation is based."""

    previous: bytes
    is_current: bool = False
    """Whether the server returned the row during this call. If not, the row is from the cache."""


class _PendingWrite:
    """The operations of one ``apply_many`` and their answers."""

    def __init__(self, operations: Sequence[LeaseOperation]) -> None:
        self.operations = operations
        self.answers: list[LeaseAnswer] | None = None
        self.settled = anyio.Event()
        """Set by the task that wrote these operations together with its own, or that failed to write them."""
        self.is_abandoned = False
        """Whether the caller has stopped waiting for the answers."""


@final
class RowSwaps:
    """The cached rows of one group on one stream, and the writes that wait for a connection.

    Args:
        place: where the rows are, for messages.
        send: a function that sends swaps to the server, in one round trip. It is called in a worker thread.
        in_thread: a function that calls another function in a worker thread.
        writers: how many writes may be in flight at a time.
    """

    def __init__(
        self,
        place: str,
        send: Callable[[Sequence[Swap]], Sequence[SwapReply | Failure]],
        in_thread: InThread,
        *,
        writers: int,
    ) -> None:
        self._place = place
        self._send = send
        self._in_thread = in_thread
        self._known: dict[bytes, Lease] = {}  # the leases of the last listing, by row
        self._cached: dict[str, _CachedRow] = {}  # the last row of each shard that was read or written
        self._writes = 0
        self._writers = anyio.CapacityLimiter(writers)
        self._waiting: list[_PendingWrite] = []  # in the order of their calls

    async def apply_many(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        pending = _PendingWrite(operations)
        self._waiting.append(pending)
        try:
            while pending.answers is None:
                if pending in self._waiting:
                    await self._write_waiting(pending)
                else:
                    await pending.settled.wait()  # another task writes these operations together with its own
        finally:
            pending.is_abandoned = True
            if pending in self._waiting:  # the caller was cancelled: no other task may write its operations
                self._waiting.remove(pending)
        return pending.answers

    async def _write_waiting(self, mine: _PendingWrite) -> None:
        """Write all pending operations, unless another task has written ``mine`` in the meantime."""
        async with self._writers:
            if mine not in self._waiting:
                return
            batch, self._waiting = self._waiting, []
            operations = [operation for pending in batch for operation in pending.operations]
            for pending in batch:
                pending.settled = anyio.Event()
            try:
                answers = await self._in_thread(lambda: self.apply_all(operations))
                remaining = iter([answers] * len(operations) if isinstance(answers, Failure) else answers)
                for pending in batch:
                    pending.answers = [next(remaining) for _ in pending.operations]
            finally:
                # If this task was cancelled before the write began, there are no answers, and another task writes the
                # operations.
                self._waiting[:0] = [
                    pending for pending in batch if pending.answers is None and not pending.is_abandoned
                ]
                for pending in batch:
                    pending.settled.set()

    # ---- called in a worker thread

    def list_leases(self, read: Callable[[], Iterable[bytes]]) -> list[Lease] | Failure:
        """Return the leases in the rows that ``read`` returns, sorted by shard id, and cache the rows."""
        writes = self._writes
        try:
            self._known = decode_rows(read(), self._known)
        except RowError as error:
            return self._unreadable(error)
        for row, lease in self._known.items():
            cached = self._cached.get(lease.shard_id)
            if cached is None or cached.writes <= writes:  # if not, this store wrote the row after the listing began
                self._cached[lease.shard_id] = _CachedRow(row, writes)
        return sorted(self._known.values(), key=lambda lease: lease.shard_id)

    def apply_all(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        """Decide and write operations on different leases, until each has an answer."""
        answers: dict[int, LeaseAnswer] = {}
        left = {place: _Attempt(self._cached_row(operation.shard_id)) for place, operation in enumerate(operations)}
        for _ in range(_SWAPS_MAX):
            left = self._swap(operations, left, answers)
            if not left:
                break
        for place in left:
            shard_id = operations[place].shard_id
            message = f"{self._place}: other workers changed the lease {shard_id} {_SWAPS_MAX} times during one write"
            answers[place] = Failure(FailureKind.TRANSIENT, "Contended", message, maybe_received=False)
        return [answers[place] for place in range(len(operations))]

    def _swap(
        self, operations: Sequence[LeaseOperation], left: dict[int, _Attempt], answers: dict[int, LeaseAnswer]
    ) -> dict[int, _Attempt]:
        """Decide each operation on the row in its attempt and write the result.

        Add the final answers to ``answers``. Return new attempts for the operations whose row has changed.
        """
        sent: dict[int, tuple[LeaseAnswer, Swap]] = {}  # the answer if the row is unchanged
        for place, (previous, is_current) in left.items():
            operation = operations[place]
            answer = self._decide(operation, previous)
            if not isinstance(answer, Refused | Failure):
                row = b"" if answer is None else encode_row(answer, previous or None)
                floor = operation.token if isinstance(operation, TakeLease) and operation.floor else 0
                sent[place] = answer, Swap(operation.shard_id, previous, row, floor)
            elif is_current:
                answers[place] = answer
            else:
                sent[place] = answer, Swap(operation.shard_id, previous, None, 0)
        again: dict[int, _Attempt] = {}
        if not sent:
            return again
        replies = self._send([swap for _, swap in sent.values()])
        for (place, (answer, swap)), reply in zip(sent.items(), replies, strict=True):
            if isinstance(reply, Failure):
                answers[place] = reply
                continue
            self._cache(swap.shard_id, reply.row)
            if not reply.is_swapped:
                again[place] = _Attempt(reply.row, is_current=True)
            elif swap.floor:
                answers[place] = decode_row(reply.row)
            else:
                answers[place] = answer
        return again

    def _decide(self, operation: LeaseOperation, row: bytes) -> LeaseAnswer:
        try:
            return apply(decode_row(row) if row else None, operation)
        except RowError as error:
            return self._unreadable(error)

    def _cached_row(self, shard_id: str) -> bytes:
        cached = self._cached.get(shard_id)
        return b"" if cached is None else cached.row

    def _cache(self, shard_id: str, row: bytes) -> None:
        self._writes += 1
        self._cached[shard_id] = _CachedRow(row, self._writes)

    def _unreadable(self, error: RowError) -> Failure:
        message = f"a row of {self._place} cannot be read: {error}"
        return Failure(FailureKind.INVALID, "UnreadableRow", message, maybe_received=False)
