"""Which writes to a lease are there, and when is each allowed?

The closed set of lease operations as values, and ``apply``: what each does to a row, and the only statement of the
conditions under which it may. It is the reference for every store (``adapters/leases``) and for the simulation; a store
that cannot run it in a transaction (DynamoDB) states the same conditions in its own words.

The *holder* of a lease is who may write it: the owner, or during a hand-over the old owner (``checkpoint_owner``) who
still drains while ``owner`` already names the next.

Invariants (L1 to L6 are of docs/guarantees.md):

- Whatever changes the holder or the checkpoint, and every renewal, is conditional on the counter and adds 1 to it
  (L4): of two writers who saw the same row one is refused, and a zombie's commit always is. A take may add more.
- Renewals, commits, releases and the end of a hand-over are the holder's alone. A commit is also a renewal.
- Asking for a hand-over changes no holder, nor does calling it off, so they leave the counter alone: the holder's
  next write still goes through, and its answer, the row as it then stands, is how the holder learns of it.
- Nobody commits to, takes or asks for a finished lease (C3: SHARD_END comes last).
- A refusal carries the row that refused. Facts about the shard's topology (children) need no fence: all who write
  them write the same.
- No operation retries itself. After an answer was lost, the same operation is sent again, and a refusal is held
  against ``landed``: it may have been refused by its own effect.
- A reset is an operator's, never a worker's: it may take a checkpoint back, also from SHARD_END. It is conditional
  on all that was seen of the holder, and leaves none: whoever held the lease is refused from then on.
- What a take makes of the counter is the fencing token. It is at least the take's ``floor``, which lies above all
  earlier tokens even if the store has lost them (``core.consumer.token_floor``).
- A take says which process took the lease, and how long that may be silent. Whoever lets go of a lease removes it.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias, final

from shardline.errors import UsageError
from shardline.model.lease import Checkpoint, Fence, Incarnation, Lease

THROUGHPUT_DECIMALS: Final = 6  # as many as the KCL writes
_THROUGHPUT_END: Final = 1e15  # of KiB a second: more is no throughput, and would lose its decimals


@final
class Refused(NamedTuple):
    """The condition did not hold: nothing was written."""

    current: Lease | None
    """The row as it stands; ``None`` if there is none."""


@final
@dataclass(frozen=True, slots=True)
class CreateLease:
    """Write a new row. Refused if there is one: who creates what exists already finds it there, and goes on."""

    lease: Lease

    @property
    def shard_id(self) -> str:
        return self.lease.shard_id


@final
@dataclass(frozen=True, slots=True)
class RenewLease:
    """The holder is alive."""

    shard_id: str
    by: str
    counter: int
    throughput: float | None = None
    """KiB a second that were read lately; ``None`` leaves what the row says."""

    def __post_init__(self) -> None:
        if self.throughput is not None and not 0 <= self.throughput < _THROUGHPUT_END:
            raise UsageError(f"a throughput is a finite number from 0, not {self.throughput}")

    def allowed(self, row: Lease) -> bool:
        return row.counter == self.counter and row.holder == self.by

    def written(self, row: Lease) -> Lease:
        throughput = row.throughput if self.throughput is None else round(self.throughput, THROUGHPUT_DECIMALS)
        return replace(row, counter=row.counter + 1, throughput=throughput)

    def landed(self, row: Lease) -> bool:
        return row.counter == self.counter + 1 and row.holder == self.by


@final
@dataclass(frozen=True, slots=True)
class TakeLease:
    """Take what nobody holds or whose holder is dead, whatever hand-over was under way."""

    shard_id: str
    by: str
    seen: Fence
    incarnation: Incarnation | None = None
    """The process that takes it; ``None`` leaves what the row says, as a KCL does."""
    floor: int = 0
    """The least that the token may be; 0 asks for none. A store with a clock of its own raises it to its time."""

    def __post_init__(self) -> None:
        if self.incarnation is not None and self.incarnation.owner != self.by:
            raise UsageError(f"{self.by!r} cannot take a lease as {self.incarnation}")

    @property
    def token(self) -> int:
        """What the counter becomes, unless the store raises the floor."""
        return max(self.seen.counter + 1, self.floor)

    def allowed(self, row: Lease) -> bool:
        return row.fence == self.seen and not row.checkpoint.is_finished

    def written(self, row: Lease) -> Lease:
        return replace(
            row,
            owner=self.by,
            checkpoint_owner=None,
            counter=self.token,
            owner_switches=row.owner_switches + (row.holder != self.by),
            incarnation=self.incarnation or row.incarnation,
        )

    def landed(self, row: Lease) -> bool:
        return row.fence == Fence(self.token, self.by, None)


@final
@dataclass(frozen=True, slots=True)
class AskHandOver:
    """Ask a live owner for its lease (the KCL 3 protocol): ``by`` becomes the owner, the old one drains."""

    shard_id: str
    by: str
    owner: str

    def __post_init__(self) -> None:
        if self.by == self.owner:
            raise UsageError(f"a hand-over needs two workers, not {self.by!r} alone")

    def allowed(self, row: Lease) -> bool:
        return row.owner == self.owner and row.checkpoint_owner is None and not row.checkpoint.is_finished

    def written(self, row: Lease) -> Lease:
        return replace(row, owner=self.by, checkpoint_owner=row.owner)

    def landed(self, row: Lease) -> bool:
        return row.owner == self.by and row.checkpoint_owner == self.owner


@final
@dataclass(frozen=True, slots=True)
class CancelHandOver:
    """Who asked wants it no more: ``owner``, who has not handed it over yet, is its owner again."""

    shard_id: str
    by: str
    owner: str

    def allowed(self, row: Lease) -> bool:
        return row.owner == self.by and row.checkpoint_owner == self.owner

    def written(self, row: Lease) -> Lease:
        return replace(row, owner=self.owner, checkpoint_owner=None)

    def landed(self, row: Lease) -> bool:
        return row.owner == self.owner and row.checkpoint_owner is None


@final
@dataclass(frozen=True, slots=True)
class FinishHandOver:
    """The old owner has drained and committed: the owner that asked is now the holder."""

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
    """Let go at once, so that nobody waits for us to expire (L5). Refused if someone asked: finish the hand-over."""

    shard_id: str
    by: str
    counter: int

    def allowed(self, row: Lease) -> bool:
        return row.fence == Fence(self.counter, self.by, None)

    def written(self, row: Lease) -> Lease:
        return replace(row, owner=None, counter=row.counter + 1, incarnation=None)

    def landed(self, row: Lease) -> bool:
        return row.fence == Fence(self.counter + 1, None, None)


@final
@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """All records at or before ``checkpoint`` are done, and the holder is alive."""

    shard_id: str
    by: str
    counter: int
    checkpoint: Checkpoint

    def allowed(self, row: Lease) -> bool:
        return row.counter == self.counter and row.holder == self.by and not row.checkpoint.is_finished

    def written(self, row: Lease) -> Lease:
        return replace(
            row,
            counter=row.counter + 1,
            checkpoint=self.checkpoint,
            owner_switches=0,
            pending_checkpoint=None,
            latest_at=None,
        )

    def landed(self, row: Lease) -> bool:
        return row.counter == self.counter + 1 and row.holder == self.by and row.checkpoint == self.checkpoint


@final
@dataclass(frozen=True, slots=True)
class WriteChildren:
    """Into which shards this one was split or merged."""

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
    """Put the checkpoint somewhere else, whoever holds the lease and whatever it said."""

    shard_id: str
    seen: Fence
    checkpoint: Checkpoint
    latest_at: float | None = None
    """Where the checkpoint is LATEST: since when."""

    def __post_init__(self) -> None:
        Lease(self.shard_id, checkpoint=self.checkpoint, latest_at=self.latest_at)  # which checks both

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
        )

    def landed(self, row: Lease) -> bool:
        written = (Fence(self.seen.counter + 1, None, None), self.checkpoint, self.latest_at)
        return (row.fence, row.checkpoint, row.latest_at) == written


@final
@dataclass(frozen=True, slots=True)
class DeleteLease:
    """Remove the row as it was seen. A row that is gone already is no refusal: the answer is ``None`` in both cases."""

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
    """What becomes of ``row``: the new row, ``None`` after a deletion, or a refusal that leaves it as it is.

    ``row`` is the one that ``operation.shard_id`` names; ``None`` if there is none.
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
    """Apply the operation to the rows of a group, by shard; the answer is that of ``apply``."""
    answer = apply(rows.get(operation.shard_id), operation)
    if answer is None:
        rows.pop(operation.shard_id, None)
    elif isinstance(answer, Lease):
        rows[operation.shard_id] = answer
    return answer


def landed(operation: LeaseOperation, current: Lease | None) -> bool:
    """Whether a refusal shows the operation's own effect: an earlier attempt, whose answer was lost, got through.

    To be asked only where such an attempt was made: for anyone else the row is just someone else's. A true answer means
    what an accepted write would have meant at the time of the *first* attempt (L2), with ``current`` as the row.
    """
    if isinstance(operation, CreateLease):
        return current == operation.lease
    if current is None or isinstance(operation, DeleteLease):
        return False
    return operation.landed(current)
