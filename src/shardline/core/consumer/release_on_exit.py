"""Gives back the leases that a worker requested but does not hold when it exits.

The worker may have asked other workers for leases. If a lease is handed over to a worker that has left, its shard is
not read until the lease expires. So the worker withdraws its requests, and releases leases that were handed over to it
meanwhile.

Invariants:

- If a row names us as its next owner, or as its holder although we do not hold the lease, the lease is given back. A
  hand-over in progress is cancelled. If the hand-over has ended, the lease is released (L5), or handed over to another
  worker that asked for it in the meantime. If the store refuses a write, the store's response contains the row, which
  determines the next step. A lease that another process took under our worker_id is not given back, nor is a lease that
  an earlier process kept if this worker keeps its leases.
- Failed operations are retried for one lease duration. After that time, the leases have expired, so that other workers
  can take them anyway.
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

ExitOperation: TypeAlias = CancelHandOver | FinishHandOver | ReleaseLease


@final
class ReleaseOnExit:
    """When a worker exits, gives back the leases that it asked for but does not hold."""

    def __init__(self, me: Incarnation) -> None:
        self._incarnation: Incarnation = me
        self._me: str = me.owner
        self.keeps_leases: bool = False
        """Whether kept leases stay with this worker. The coordinator writes this field."""
        self._pending: dict[str, ExitOperation] = {}
        self._retry_at: Instant = -NEVER
        self._until: Instant = NEVER

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to give back."""
        return not self._pending

    # ---- inputs

    def handle_rows(self, rows: Iterable[Lease], held: Collection[str]) -> None:
        """Find the leases to give back. The ``held`` leases are excluded, because ``HeldLeases`` releases them."""
        for row in rows:
            if row.shard_id not in held:
                self._consider(row.shard_id, row)

    def handle_applied(self, operation: LeaseOperation, result: Lease | Refused | None) -> None:
        """Handle the store's response to an operation, even one that was sent before the exit."""
        row = result.current if isinstance(result, Refused) else result
        self._consider(operation.shard_id, row)

    def handle_failure(self, operation: LeaseOperation, retry_at: Instant) -> None:
        """Retry a failed operation that gives a lease back. Undo any other failed operation, because it may have been
        applied.
        """
        self._retry_at = max(self._retry_at, retry_at)
        match operation:
            case CancelHandOver() | FinishHandOver() | ReleaseLease():
                self._pending[operation.shard_id] = operation
            # The failed request for the lease may still be applied, so withdraw it.
            case AskHandOver(shard_id, by, owner):
                self._pending[shard_id] = CancelHandOver(shard_id, by, owner)
            # The take may have been applied, so release the lease, with the counter that the take would have written.
            case TakeLease(shard_id, by):
                self._pending[shard_id] = ReleaseLease(shard_id, by, operation.token)
            case _:
                return

    # ---- outputs, time

    def poll_operation(self, busy: Collection[str], now: Instant) -> ExitOperation | None:
        """Return the next operation for a row that is not ``busy`` with another operation."""
        # The time limit begins when there is something to give back.
        if self._pending and self._until == NEVER:
            self._until = now + self._incarnation.lease_duration
        if now >= self._until:
            self._pending.clear()
        if now < self._retry_at:
            return None
        shard_id = next((shard_id for shard_id in self._pending if shard_id not in busy), None)
        return None if shard_id is None else self._pending.pop(shard_id)

    def next_deadline(self) -> Instant:
        return min(self._retry_at, self._until) if self._pending else NEVER

    # ---- internal

    def _consider(self, shard_id: str, row: Lease | None) -> None:
        self._pending.pop(shard_id, None)
        if row is None or self._me not in {row.owner, row.checkpoint_owner} or row.checkpoint.is_finished:
            return
        if self.keeps_leases and row.is_kept_by(self._me):
            return
        if row.is_foreign_to(self._incarnation):
            return
        # If we are the checkpoint owner, and another worker asked for the lease, hand the lease over to that worker.
        if row.owner != self._me:
            self._pending[shard_id] = FinishHandOver(shard_id, self._me, row.counter)
        elif row.checkpoint_owner is None:
            self._pending[shard_id] = ReleaseLease(shard_id, self._me, row.counter)
        else:
            self._pending[shard_id] = CancelHandOver(shard_id, self._me, row.checkpoint_owner)
