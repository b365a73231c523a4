"""What does a worker that leaves give back, beside the leases that it holds?

It may have asked others for theirs. Whoever hands one over to a worker that is gone leaves the shard to nobody, until
the lease has lapsed. So requests are called off, and what was handed over meanwhile is let go of unread.

Invariants:

- A row that names us as its next owner, or as its holder though we do not hold it, is given back: the hand-over is
  called off, or, where it is over, the lease released (L5), or handed on if another asked for it meanwhile. A refusal
  shows the row, and so what is left to do. What another process took under our name is not ours to give back.
- What failed is tried again for one lease duration. By then nobody has to wait for it any more.
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
    """What one worker gives back when it leaves."""

    def __init__(self, me: Incarnation) -> None:
        self._incarnation: Incarnation = me
        self._me: str = me.owner
        self._left: dict[str, FarewellOperation] = {}
        self._retry_at: Instant = -NEVER
        self._until: Instant = NEVER

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be given back."""
        return not self._left

    # ---- inputs

    def handle_rows(self, rows: Iterable[Lease], held: Collection[str]) -> None:
        """These are the rows, and the leases that we hold; those are let go of by others."""
        for row in rows:
            if row.shard_id not in held:
                self._consider(row.shard_id, row)

    def handle_applied(self, operation: LeaseOperation, result: Lease | Refused | None) -> None:
        """The store's answer, to one of ours or to what was under way when we left."""
        row = result.current if isinstance(result, Refused) else result
        self._consider(operation.shard_id, row)

    def handle_failure(self, operation: LeaseOperation, retry_at: Instant) -> None:
        """It may or may not have been applied: undo it as if it had."""
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
        """What to write now, for a row that is not ``busy`` with another operation."""
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

    # ---- within

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
