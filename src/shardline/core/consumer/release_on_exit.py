"""What does a worker give back on exit, besides the leases that it holds?

The worker may have asked others for leases. A lease that is handed over to a worker that has left stays unread until it
expires. So the worker withdraws its requests, and releases leases that were handed over to it meanwhile.

Invariants:

- A row that names us as its next owner, or as its holder although we do not hold the lease, is given back. A hand-over
  in progress is cancelled. If it has ended, the lease is released (L5), or handed on if another worker asked for it
  meanwhile. If the store refuses a write, its response shows the row, and so the next step. A lease that another
  process took under our worker_id is not ours to give back.
- Failed operations are retried for one lease duration. After that the leases have expired, so that no worker waits for
  them any more.
"""

from collections.abc import Collection, Iterable
from typing import TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.leases import (
    AskHandOver,
    CancelHandOver,
    FinishHandOver,
    LeaseOperation,
    Refused,
    ReleaseLease,
    TakeLease,
)
from shardline.model.lease import Incarnation, Lease

FarewellOperation: TypeAlias = CancelHandOver | FinishHandOver | ReleaseLease


@final
class Farewell:
    """Gives back, on exit, the leases that a worker asked for and does not hold."""

    def __init__(self, me: Incarnation) -> None:
        self._incarnation: Incarnation = me
        self._me: str = me.owner
        self._left: dict[str, FarewellOperation] = {}
        self._retry_at: Instant = -NEVER
        self._until: Instant = NEVER

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to give back."""
        return not self._left

    # ---- inputs

    def handle_rows(self, rows: Iterable[Lease], held: Collection[str]) -> None:
        """Find the rows to give back. The ``held`` leases are excluded: ``HeldLeases`` releases them."""
        for row in rows:
            if row.shard_id not in held:
                self._consider(row.shard_id, row)

    def handle_applied(self, operation: LeaseOperation, result: Lease | Refused | None) -> None:
        """Handle the store's response to an operation of this exit, or to one that was in flight before it."""
        row = result.current if isinstance(result, Refused) else result
        self._consider(operation.shard_id, row)

    def handle_failure(self, operation: LeaseOperation, retry_at: Instant) -> None:
        """Undo a failed operation, because it may have been applied, or retry it if it was part of the exit."""
        self._retry_at = max(self._retry_at, retry_at)
        match operation:
            case CancelHandOver() | FinishHandOver() | ReleaseLease():
                self._left[operation.shard_id] = operation
            case AskHandOver(shard_id, by, owner):
                self._left[shard_id] = CancelHandOver(shard_id, by, owner)
            case TakeLease(shard_id, by):
                self._left[shard_id] = ReleaseLease(shard_id, by, operation.token)
            case _:
                return

    # ---- outputs, time

    def poll_operation(self, busy: Collection[str], now: Instant) -> FarewellOperation | None:
        """Return the next operation for a row that is not ``busy`` with another one."""
        if self._left and self._until == NEVER:
            self._until = now + self._incarnation.lease_duration
        if now >= self._until:
            self._left.clear()
        if now < self._retry_at:
            return None
        shard_id = next((shard_id for shard_id in self._left if shard_id not in busy), None)
        return None if shard_id is None else self._left.pop(shard_id)

    def next_deadline(self) -> Instant:
        return min(self._retry_at, self._until) if self._left else NEVER

    # ---- internal

    def _consider(self, shard_id: str, row: Lease | None) -> None:
        self._left.pop(shard_id, None)
        if row is None or self._me not in {row.owner, row.checkpoint_owner} or row.checkpoint.is_finished:
            return
        if row.is_foreign_to(self._incarnation):
            return
        if row.owner != self._me:
            self._left[shard_id] = FinishHandOver(shard_id, self._me, row.counter)
        elif row.checkpoint_owner is None:
            self._left[shard_id] = ReleaseLease(shard_id, self._me, row.counter)
        else:
            self._left[shard_id] = CancelHandOver(shard_id, self._me, row.checkpoint_owner)
