"""Defines the operations that change a lease, and when each operation is allowed.

Each lease operation is a value. Only ``apply`` decides when an operation is allowed and what it does to a row. So
``apply`` is the reference for every store (``adapters/leases``) and for the simulation. A store that cannot run
``apply`` in a transaction (DynamoDB) expresses the same conditions in its own language.

The *holder* of a lease is the worker that may write to the lease. This is the owner, or, during a hand-over, the old
owner (``checkpoint_owner``), which still drains while ``owner`` already names the next owner.

Invariants (docs/guarantees.md defines L1 to L6):

- Every operation that changes the holder or the checkpoint, and every renewal, is conditional on the counter and adds 1
  to it (L4). So of two writers that read the same row, one is refused, and the commit of a worker that lost the lease
  is always refused. Taking a lease may add more than 1.
- Only the holder may renew, commit, release, or finish a hand-over. A commit is also a renewal.
- Requesting or cancelling a hand-over does not change the holder, and so leaves the counter unchanged. The holder's
  next write still succeeds, and the row that this write returns informs the holder of the request.
- A finished lease cannot be committed to, taken or requested (C3: SHARD_END comes last).
- A refusal contains the row that caused the refusal. Facts about the shard's topology (its children) need no fence,
  because all writers write the same facts.
- No operation is retried automatically. If an answer was lost, the caller sends the same operation again. If the second
  attempt is refused, ``landed`` says whether the first attempt caused the refusal.
- Only an operator resets a lease, never a worker. A reset may move a checkpoint back, even from SHARD_END. It is
  conditional on the whole fence that the operator saw, and removes the holder: the old holder's later writes are
  refused.
- The counter that ``TakeLease`` writes is the fencing token. It is at least the operation's ``floor``, which is above
  all earlier tokens even if the store has lost these tokens (``core.consumer.token_floor``).
- ``TakeLease`` stores which process took the lease and how long this process may be silent. Releasing or handing over
  the lease removes this information.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias, final

from shardline.errors import UsageError
from shardline.model.lease import Checkpoint, Fence, Incarnation, Lease

LOAD_DECIMALS: Final = 6  # the KCL writes the same number of decimals
_LOAD_END: Final = 1e15  # larger numbers are implausible, and floats of this size lose the decimals


@final
class Refused(NamedTuple):
    """The condition of an operation did not hold, and nothing was written."""

    current: Lease | None
    """The current row, or ``None`` if there is no row."""


@final
@dataclass(frozen=True, slots=True)
class CreateLease:
    """Write a new row. The operation is refused if the row exists. The caller can then use the existing row."""

    lease: Lease

    @property
    def shard_id(self) -> str:
        return self.lease.shard_id


@final
@dataclass(frozen=True, slots=True)
class RenewLease:
    """Renew the lease, to show that its holder is alive."""

    shard_id: str
    by: str
    counter: int
    throughput: float | None = None
    """The KiB per second that the holder read recently. ``None`` keeps the row's value."""
    handling: float | None = None
    """For how long user code recently had records, in seconds per second. ``None`` keeps the row's value."""

    def __post_init__(self) -> None:
        for name, value in (("a throughput", self.throughput), ("a handling time", self.handling)):
            if value is not None and not 0 <= value < _LOAD_END:
                raise UsageError(f"{name} is a finite number from 0, not {value}")

    def allowed(self, row: Lease) -> bool:
        return row.counter == self.counter and row.holder == self.by

    def written(self, row: Lease) -> Lease:
        throughput = row.throughput if self.throughput is None else round(self.throughput, LOAD_DECIMALS)
        handling = row.handling if self.handling is None else round(self.handling, LOAD_DECIMALS)
        # The moving counter is the only sign of life that other workers see.
        return replace(row, counter=row.counter + 1, throughput=throughput, handling=handling)

    def landed(self, row: Lease) -> bool:
        return row.counter == self.counter + 1 and row.holder == self.by


@final
@dataclass(frozen=True, slots=True)
class TakeLease:
    """Take a lease that has no holder or whose holder is dead. This ends any hand-over."""

    shard_id: str
    by: str
    seen: Fence
    incarnation: Incarnation | None = None
    """The process that takes the lease. ``None`` keeps the row's value, as the KCL does."""
    floor: int = 0
    """The lowest allowed token. 0 sets no floor. A store with its own clock raises a floor to its current time."""

    def __post_init__(self) -> None:
        if self.incarnation is not None and self.incarnation.owner != self.by:
            raise UsageError(f"{self.by!r} cannot take a lease as {self.incarnation}")

    @property
    def token(self) -> int:
        """The counter that this operation writes, unless the store raises the floor."""
        return max(self.seen.counter + 1, self.floor)

    def allowed(self, row: Lease) -> bool:
        # Compare the whole fence, not only the counter: requesting a hand-over changes the owners but not the counter.
        return row.fence == self.seen and not row.checkpoint.is_finished

    def written(self, row: Lease) -> Lease:
        return replace(
            row,
            owner=self.by,
            checkpoint_owner=None,
            counter=self.token,
            # For the KCL, a worker that takes its lease back under the same name is not a new holder.
            owner_switches=row.owner_switches + (row.holder != self.by),
            incarnation=self.incarnation or row.incarnation,
        )

    def landed(self, row: Lease) -> bool:
        return row.fence == Fence(self.token, self.by, None)


@final
@dataclass(frozen=True, slots=True)
class AskHandOver:
    """Request a lease from its live owner (the KCL 3 protocol): ``by`` becomes the owner, and the old owner drains."""

    shard_id: str
    by: str
    owner: str

    def __post_init__(self) -> None:
        if self.by == self.owner:
            raise UsageError(f"a hand-over needs two workers, not {self.by!r} alone")

    def allowed(self, row: Lease) -> bool:
        return row.owner == self.owner and row.checkpoint_owner is None and not row.checkpoint.is_finished

    def written(self, row: Lease) -> Lease:
        # The counter stays the same, so that the holder's next renewal or commit is not refused.
        return replace(row, owner=self.by, checkpoint_owner=row.owner)

    def landed(self, row: Lease) -> bool:
        return row.owner == self.by and row.checkpoint_owner == self.owner


@final
@dataclass(frozen=True, slots=True)
class CancelHandOver:
    """Withdraw the request of ``by``. The old owner, ``owner``, has not handed the lease over yet and keeps it."""

    shard_id: str
    by: str
    owner: str

    def allowed(self, row: Lease) -> bool:
        return row.owner == self.by and row.checkpoint_owner == self.owner

    def written(self, row: Lease) -> Lease:
        # The counter stays the same, because the holder stays the same.
        return replace(row, owner=self.owner, checkpoint_owner=None)

    def landed(self, row: Lease) -> bool:
        return row.owner == self.owner and row.checkpoint_owner is None


@final
@dataclass(frozen=True, slots=True)
class FinishHandOver:
    """Make the new owner the holder, after the old owner has drained and committed."""

    shard_id: str
    by: str
    counter: int

    def allowed(self, row: Lease) -> bool:
        return row.counter == self.counter and row.checkpoint_owner == self.by

    def written(self, row: Lease) -> Lease:
        return replace(
            row,
            checkpoint_owner=None,
            counter=row.counter + 1,
            owner_switches=row.owner_switches + 1,
            incarnation=None,
        )

    def landed(self, row: Lease) -> bool:
        return row.counter == self.counter + 1 and row.checkpoint_owner is None


@final
@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """Release a lease immediately, so that other workers need not wait for it to expire (L5).

    The release is refused during a hand-over: the holder must finish the hand-over instead.
    """

    shard_id: str
    by: str
    counter: int

    def allowed(self, row: Lease) -> bool:
        # The fence contains no ``checkpoint_owner``: a requested lease must go to the worker that requested it.
        return row.fence == Fence(self.counter, self.by, None)

    def written(self, row: Lease) -> Lease:
        return replace(row, owner=None, counter=row.counter + 1, incarnation=None)

    def landed(self, row: Lease) -> bool:
        return row.fence == Fence(self.counter + 1, None, None)


@final
@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """Commit a checkpoint: all records up to and including it are done. This also renews the lease."""

    shard_id: str
    by: str
    counter: int
    checkpoint: Checkpoint
    window: str | None = None
    """The stamps to store with the checkpoint (``Lease.window``). ``None`` keeps the row's value."""

    def allowed(self, row: Lease) -> bool:
        return row.counter == self.counter and row.holder == self.by and not row.checkpoint.is_finished

    def written(self, row: Lease) -> Lease:
        return replace(
            row,
            counter=row.counter + 1,
            checkpoint=self.checkpoint,
            owner_switches=0,  # the KCL counts the switches from the last checkpoint on
            pending_checkpoint=None,
            latest_at=None,  # the checkpoint is no longer LATEST
            window=row.window if self.window is None else self.window,
        )

    def landed(self, row: Lease) -> bool:
        return row.counter == self.counter + 1 and row.holder == self.by and row.checkpoint == self.checkpoint


@final
@dataclass(frozen=True, slots=True)
class WriteChildren:
    """Store the shards that a split or merge of this shard created."""

    shard_id: str
    child_ids: frozenset[str]

    def __post_init__(self) -> None:
        if not self.child_ids:
            raise UsageError("a set of children is not empty")

    def allowed(self, row: Lease) -> bool:
        return row.shard_id == self.shard_id

    def written(self, row: Lease) -> Lease:
        return replace(row, child_ids=self.child_ids)

    def landed(self, row: Lease) -> bool:
        return row.child_ids == self.child_ids


@final
@dataclass(frozen=True, slots=True)
class ResetLease:
    """Move the checkpoint, regardless of who holds the lease and where the checkpoint is."""

    shard_id: str
    seen: Fence
    checkpoint: Checkpoint
    latest_at: float | None = None
    """The time that LATEST refers to, if the checkpoint is LATEST."""

    def __post_init__(self) -> None:
        Lease(self.shard_id, checkpoint=self.checkpoint, latest_at=self.latest_at)  # checks both fields

    def allowed(self, row: Lease) -> bool:
        return row.fence == self.seen

    def written(self, row: Lease) -> Lease:
        return replace(
            row,
            counter=row.counter + 1,
            owner=None,
            checkpoint_owner=None,
            checkpoint=self.checkpoint,
            latest_at=self.latest_at,
            owner_switches=0,
            pending_checkpoint=None,
            incarnation=None,
            window="",
        )

    def landed(self, row: Lease) -> bool:
        written = (Fence(self.seen.counter + 1, None, None), self.checkpoint, self.latest_at)
        return (row.fence, row.checkpoint, row.latest_at) == written


@final
@dataclass(frozen=True, slots=True)
class DeleteLease:
    """Remove a row that has not changed. If there is no row, this also succeeds, and the answer is ``None``."""

    shard_id: str
    counter: int


LeaseOperation: TypeAlias = (
    CreateLease
    | RenewLease
    | TakeLease
    | AskHandOver
    | CancelHandOver
    | FinishHandOver
    | ReleaseLease
    | CommitCheckpoint
    | WriteChildren
    | ResetLease
    | DeleteLease
)


def apply(row: Lease | None, operation: LeaseOperation) -> Lease | Refused | None:
    """Apply an operation to a row. Return the new row, ``None`` after a deletion, or a refusal.

    Args:
        row: the row for ``operation.shard_id``, or ``None`` if there is no such row.
        operation: the operation.
    """
    assert row is None or row.shard_id == operation.shard_id, f"{operation} met the row {row}"
    if isinstance(operation, CreateLease):
        return operation.lease if row is None else Refused(row)
    if isinstance(operation, DeleteLease):
        return None if row is None or row.counter == operation.counter else Refused(row)
    if row is None or not operation.allowed(row):
        return Refused(row)
    return operation.written(row)


def apply_to(rows: dict[str, Lease], operation: LeaseOperation) -> Lease | Refused | None:
    """Apply an operation to the rows of a group, keyed by shard id. Return the result of ``apply``."""
    answer = apply(rows.get(operation.shard_id), operation)
    if answer is None:
        rows.pop(operation.shard_id, None)
    elif isinstance(answer, Lease):
        rows[operation.shard_id] = answer
    return answer


def landed(operation: LeaseOperation, current: Lease | None) -> bool:
    """Return whether an operation was refused only because an earlier attempt, whose answer was lost, had succeeded.

    Call this only if there was an earlier attempt. Otherwise another writer may have written the row. If the result
    is true, the operation counts as accepted at the time of the *first* attempt (L2), and ``current`` is the new row.
    """
    if isinstance(operation, CreateLease):
        return current == operation.lease
    # If the row is missing, every other operation except a deletion is refused. A deletion is refused only if another
    # writer has changed the row. In neither case did an earlier attempt cause the refusal.
    if current is None or isinstance(operation, DeleteLease):
        return False
    return operation.landed(current)
