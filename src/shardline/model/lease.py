"""The lease of a shard: which worker reads the shard, and how far the shard has been processed.

This module holds the values only. ``core/consumer`` decides how leases are taken, renewed and lost, and
``adapters/leases`` stores them. The Kinesis Client Library has the same fields, under other names.

Invariants:

- ``counter`` grows with every write by an owner. The counter that a worker writes when it takes the lease is the
  fencing token.
- A lease at LATEST stores the time that LATEST refers to (L6). Otherwise each restart before the first commit would
  skip the records that arrived in the meantime.
- A lease whose incarnation is ``KEPT`` belongs to its owner, but no process holds it: the owner's last process has
  ended and has kept the lease for its next one.
- An incarnation counts only for the owner that it names. A Java KCL that takes a lease keeps attributes that it does
  not know, so a row may hold the incarnation of an earlier owner.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from shardline.errors import UsageError
from shardline.model.hashing import HashRange
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, Position, PositionKind, at_timestamp
from shardline.model.sequence import SequenceNumber

KEPT: Final = "kept"
"""The id of an incarnation without a process: a worker that exited has kept the lease for its restart."""
_KINDS: Final = frozenset(PositionKind) - {PositionKind.AFTER_SEQUENCE_NUMBER}


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position in a shard. All records at or before it were acknowledged.

    A consumer resumes by reading AT this position and skipping the acknowledged records.
    """

    position: Position

    def __post_init__(self) -> None:
        if self.position.kind not in _KINDS:
            raise UsageError(f"a checkpoint must be at its last record, not {self.position}")

    @property
    def sequence_number(self) -> SequenceNumber | None:
        return self.position.sequence_number

    @property
    def is_finished(self) -> bool:
        return self.position == SHARD_END

    @property
    def has_begun(self) -> bool:
        """Whether any record of the shard was committed. If so, the checkpoint is no longer the initial one."""
        return self.is_finished or self.sequence_number is not None


@final
class Incarnation(NamedTuple):
    """The process that took a lease, as the process described itself in the row."""

    owner: str
    """The worker name under which the process took the lease. The incarnation counts only for this owner."""
    id: str
    """A random id of the consumer. Two processes with the same worker name, or two runs, have different ids."""
    lease_duration: float
    """Seconds of silence after which this owner counts as dead."""
    read_by: str | None = None
    """How the process reads the shard: ``"polling"`` or ``"fan-out"``, or ``None`` if the row does not contain it. No
    worker acts on this."""

    @property
    def is_kept(self) -> bool:
        """Whether no process holds the lease, because the owner's last process kept it when it exited."""
        return self.id == KEPT


@final
class Fence(NamedTuple):
    """The fields of a lease that conditional writes compare: if one has changed, the write is refused."""

    counter: int
    owner: str | None
    checkpoint_owner: str | None


@final
@dataclass(frozen=True, slots=True)
class Lease:
    """The row of a shard in a lease store."""

    shard_id: str
    counter: int = 0
    owner: str | None = None
    checkpoint: Checkpoint = Checkpoint(TRIM_HORIZON)
    parent_ids: frozenset[str] = frozenset()
    child_ids: frozenset[str] = frozenset()
    hash_range: HashRange | None = None
    owner_switches: int = 0
    """How often the owner has changed since the last commit."""
    checkpoint_owner: str | None = None
    """During a hand-over, the old owner, which is still draining, while ``owner`` already names the next owner."""
    latest_at: float | None = None
    """The service's time when the row was created, minus 1 s, in seconds since 1970, if the checkpoint is LATEST."""
    pending_checkpoint: Checkpoint | None = None
    """A checkpoint that a KCL application prepared and did not commit. The next commit removes it."""
    throughput: float | None = None
    """How much the holder read recently, in KiB per second."""
    handling: float | None = None
    """For how long user code had records of the shard recently, in seconds per second, summed over all handlers."""
    incarnation: Incarnation | None = None
    """The process that last stored its incarnation. This may be an earlier owner: use ``incarnation_of``."""
    window: str = ""
    """The stamps of the records at or before the checkpoint, as text, for consumers with ``dedup`` (``dedup_window``).
    The text is empty if no such consumer has committed."""

    def __post_init__(self) -> None:
        if self.counter < 0 or self.owner_switches < 0:
            raise UsageError(
                f"the counts of a lease must not be negative: counter {self.counter}, "
                f"owner switches {self.owner_switches}"
            )
        if self.latest_at is not None:
            at_timestamp(self.latest_at)
            if self.checkpoint.position != LATEST:
                raise UsageError(f"latest_at is only for the checkpoint LATEST, not for {self.checkpoint.position}")
        for name, value in (("a throughput", self.throughput), ("a handling time", self.handling)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} is a finite number from 0, not {value}")
        if self.incarnation is not None and not 0 < self.incarnation.lease_duration < math.inf:
            raise UsageError(f"a lease duration is a finite number above 0, not {self.incarnation.lease_duration}")

    @property
    def holder(self) -> str | None:
        """The worker that may write to the lease: the owner or, during a hand-over, the old owner."""
        return self.owner if self.checkpoint_owner is None else self.checkpoint_owner

    def incarnation_of(self, owner: str | None) -> Incarnation | None:
        """Return the process that took the lease under this worker name, or ``None`` if the row does not name it."""
        incarnation = self.incarnation
        return incarnation if incarnation is not None and incarnation.owner == owner else None

    def is_foreign_to(self, me: Incarnation) -> bool:
        """Return whether the row says that another process took the lease under our worker name."""
        known = self.incarnation_of(me.owner)
        return known is not None and known.id not in {me.id, KEPT}

    def is_kept_by(self, owner: str) -> bool:
        """Return whether the last process of this worker kept the lease, and no other worker has asked for it."""
        known = self.incarnation_of(owner)
        return self.owner == owner and known is not None and known.is_kept

    @property
    def fence(self) -> Fence:
        """The fields of this row that a conditional write compares."""
        return Fence(self.counter, self.owner, self.checkpoint_owner)

    @property
    def resume_at(self) -> Position:
        """The position to read from: the checkpoint, or the time that LATEST refers to."""
        return self.checkpoint.position if self.latest_at is None else at_timestamp(self.latest_at)
