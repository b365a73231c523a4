"""Who reads a shard, and how far was it processed?

The values only: how leases are taken, renewed and lost is decided in ``core/consumer``, and how they are stored in
``adapters/leases``. The fields are those that the Kinesis Client Library keeps, under our names.

Invariants:

- E1: ``counter`` grows with every write by an owner: it is the fencing token.
- E2: a lease without an owner can be taken by anyone; one at SHARD_END by nobody.
"""

from dataclasses import dataclass
from typing import Final, final

from shardline.errors import UsageError
from shardline.model.hashing import HashRange
from shardline.model.position import SHARD_END, TRIM_HORIZON, Position, PositionKind
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
    checkpoint_owner: str | None = None
    """During a hand-over: the old owner, who still drains, while ``owner`` already names the next."""

    def __post_init__(self) -> None:
        if self.counter < 0 or self.owner_switches < 0:
            raise UsageError(f"a lease counts up from 0: counter {self.counter}, owner switches {self.owner_switches}")

    @property
    def is_available(self) -> bool:
        """Whether anyone may take it at once (E2)."""
        return self.owner is None and not self.checkpoint.is_finished
