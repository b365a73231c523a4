"""Who reads a shard, and how far was it processed?

The values only: how leases are taken, renewed and lost is decided in ``core/consumer``, and how they are stored in
``adapters/leases``. The fields are those that the Kinesis Client Library keeps, under our names.

Invariants:

- ``counter`` grows with every write by an owner. What a take makes of it is the fencing token.
- A lease at LATEST says since when (L6 of the guarantees): without that, each restart before the first commit would
  skip what arrived meanwhile.
- An incarnation counts only for the owner that it names. A Java KCL that takes a lease keeps attributes that it
  does not know, so that a row may hold the incarnation of an earlier owner.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from shardline.errors import UsageError
from shardline.model.hashing import HashRange
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, Position, PositionKind, at_timestamp
from shardline.model.sequence import SequenceNumber

_KINDS: Final = frozenset(PositionKind) - {PositionKind.AFTER_SEQUENCE_NUMBER}


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All records at or before it were acknowledged. Resuming reads AT it and skips those."""

    position: Position

    def __post_init__(self) -> None:
        if self.position.kind not in _KINDS:
            raise UsageError(f"a checkpoint names the record it stands at, not {self.position}")

    @property
    def sequence_number(self) -> SequenceNumber | None:
        return self.position.sequence_number

    @property
    def is_finished(self) -> bool:
        return self.position == SHARD_END

    @property
    def has_begun(self) -> bool:
        """Whether something of the shard was committed: it does not stand where it was created any more."""
        return self.is_finished or self.sequence_number is not None


@final
class Incarnation(NamedTuple):
    """The process that took a lease, as it describes itself in the row."""

    owner: str
    """The owner's name that it took the lease under: without that name it says nothing."""
    id: str
    """Drawn anew by every consumer: two processes of one name differ in it, and so do two lives of one worker."""
    lease_duration: float
    """Seconds of silence after which this owner counts as dead."""


@final
class Fence(NamedTuple):
    """Who holds a lease, in what state it was seen: what the conditions of writes are made of."""

    counter: int
    owner: str | None
    checkpoint_owner: str | None


@final
@dataclass(frozen=True, slots=True)
class Lease:
    """One shard's row in a lease store."""

    shard_id: str
    counter: int = 0
    owner: str | None = None
    checkpoint: Checkpoint = Checkpoint(TRIM_HORIZON)
    parent_ids: frozenset[str] = frozenset()
    child_ids: frozenset[str] = frozenset()
    hash_range: HashRange | None = None
    owner_switches: int = 0
    """How often the lease changed hands since the last commit."""
    checkpoint_owner: str | None = None
    """During a hand-over: the old owner, who still drains, while ``owner`` already names the next."""
    latest_at: float | None = None
    """Where the checkpoint is LATEST: the service's time when the row was made, less 1 s, in seconds since 1970."""
    pending_checkpoint: Checkpoint | None = None
    """What a KCL application prepared to commit and did not. We read it, and drop it with the next commit."""
    throughput: float | None = None
    """KiB a second that the holder read lately, as the KCL counts them."""
    incarnation: Incarnation | None = None
    """The process that took it last, if it said so. Ask ``incarnation_of``, which also understands older rows."""

    def __post_init__(self) -> None:
        if self.counter < 0 or self.owner_switches < 0:
            raise UsageError(f"a lease counts up from 0: counter {self.counter}, owner switches {self.owner_switches}")
        if self.latest_at is not None:
            at_timestamp(self.latest_at)
            if self.checkpoint.position != LATEST:
                raise UsageError(f"only a checkpoint LATEST has a latest_at, not {self.checkpoint.position}")
        if self.throughput is not None and not (math.isfinite(self.throughput) and self.throughput >= 0):
            raise UsageError(f"a throughput is a finite number from 0, not {self.throughput}")
        if self.incarnation is not None and not 0 < self.incarnation.lease_duration < math.inf:
            raise UsageError(f"a lease duration is a finite number above 0, not {self.incarnation.lease_duration}")

    @property
    def holder(self) -> str | None:
        """Who may write it: the owner, or during a hand-over the old one."""
        return self.owner if self.checkpoint_owner is None else self.checkpoint_owner

    def incarnation_of(self, owner: str | None) -> Incarnation | None:
        """The process that took it under this name; ``None`` if the row does not say."""
        incarnation = self.incarnation
        return incarnation if incarnation is not None and incarnation.owner == owner else None

    def is_foreign_to(self, me: Incarnation) -> bool:
        """Whether the row says that another process took it under our name."""
        known = self.incarnation_of(me.owner)
        return known is not None and known.id != me.id

    @property
    def fence(self) -> Fence:
        """What a writer who saw this row relies on."""
        return Fence(self.counter, self.owner, self.checkpoint_owner)

    @property
    def resume_at(self) -> Position:
        """From where to read: the checkpoint, or the moment when LATEST was said."""
        return self.checkpoint.position if self.latest_at is None else at_timestamp(self.latest_at)
