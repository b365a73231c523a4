"""Which records of a shard are already in the user's database, and which rows must the next transaction write about its
records?

``exactly_once`` commits the rows of a handler and the position of its records in one transaction. The position consists
of a *watermark* (``through``: every record at or before it is done) and of the done records *beyond* the watermark. If
records are handled in order, a transaction only moves the watermark. If keys are handled concurrently
(``order="key"``), records finish out of order: a transaction adds its records to those beyond the watermark, and the
consumer reports how far all records are done (``Grant.done_through``).

Invariants:

- A record counts as done only if a transaction with its position was committed, or if the consumer reported that it is
  done (handled, filtered or dead-lettered).
- The watermark never moves backwards.
- A transaction is committed only if the database still has our token, and contains none of the transaction's records.
  Otherwise another worker owns the shard (FENCED), or an earlier transaction, whose outcome was unknown, was committed
  (CHANGED).
- The number of records beyond the watermark is at most ``PRUNE_AT``, plus the number that the consumer allows beyond
  its own watermark.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple, final

from shardline.model.sequence import BEFORE_FIRST, SequenceNumber

NOTHING_DONE: Final = SequenceNumber(0, BEFORE_FIRST)
"""The watermark of a shard of which no record is done."""
PRUNE_AT: Final = 256


@final
class StoredPosition(NamedTuple):
    """The row of a shard in the database."""

    token: int
    """The fencing token of the last owner that has claimed the shard."""
    through: SequenceNumber = NOTHING_DONE


@final
class PositionWrite(NamedTuple):
    """The rows that a transaction writes about its records."""

    records: Sequence[SequenceNumber]
    """The records of the transaction."""
    beyond: Sequence[SequenceNumber]
    """The records to add to those beyond the watermark."""
    through: SequenceNumber | None
    """The new watermark, or ``None`` if the watermark does not move. Stored records that were beyond the old watermark
    and are at or before the new one are removed.
    """

    def after(self, stored: StoredPosition) -> "PositionWrite":
        """Return this write. If another of our transactions has moved the watermark to the same or a later place since
        ``plan``, the returned write does not move the watermark.

        Two transactions that finish together may lock the row in the opposite order to that in which they planned their
        watermarks. The transaction with the higher watermark then comes first, and removes the records up to this
        watermark. If the other transaction lowered the watermark again, nothing would show that these records are done.
        """
        is_passed = self.through is not None and self.through <= stored.through
        return self._replace(through=None) if is_passed else self


class Verdict(Enum):
    """Whether a transaction may be committed."""

    COMMIT = "commit"
    CHANGED = "changed"
    """The positions in the database differ from those that we know. Roll back, load the positions and decide again."""
    FENCED = "fenced"
    """A later owner has claimed the shard. Roll back: the records belong to that owner."""


@final
class DoneRecords:
    """The records of one shard that are in the database, as far as this worker knows.

    Args:
        stored: the row of the shard, after we have claimed it.
        beyond: the records beyond the watermark that are done.
    """

    def __init__(self, stored: StoredPosition, beyond: Iterable[SequenceNumber] = ()) -> None:
        self.token: Final = stored.token
        self.through: SequenceNumber = stored.through
        self._beyond: set[SequenceNumber] = {number for number in beyond if number > stored.through}

    @property
    def beyond(self) -> Collection[SequenceNumber]:
        """The records beyond the watermark that are done."""
        return self._beyond

    def select_new(self, records: Sequence[SequenceNumber]) -> list[int]:
        """Return the indices of the records that are not done."""
        through, beyond = self.through, self._beyond
        return [index for index, record in enumerate(records) if record > through and record not in beyond]

    def plan(
        self, records: Sequence[SequenceNumber], *, is_in_order: bool, done_through: SequenceNumber | None
    ) -> PositionWrite:
        """Return what the transaction with these records writes.

        Args:
            records: the records. None of them is done.
            is_in_order: whether all records of the shard before these are done.
            done_through: how far all records of the shard are done, if the consumer has reported that.
        """
        if is_in_order:
            return PositionWrite(records, (), max(records))
        # Moving the watermark excludes the other transactions of the shard until ours ends, so it is done rarely.
        is_moved = done_through is not None and done_through > self.through and len(self._beyond) >= PRUNE_AT
        return PositionWrite(records, records, done_through if is_moved else None)

    def check(self, write: PositionWrite, stored: StoredPosition | None) -> Verdict:
        """Decide whether the transaction may be committed.

        Args:
            write: what the transaction writes.
            stored: the row of the shard, which the transaction has locked, or ``None`` if there is no row.
        """
        if stored is None or stored.token < self.token:
            return Verdict.CHANGED  # the row was removed, or restored from a backup
        if stored.token > self.token:
            return Verdict.FENCED
        # Another transaction of ours may have moved the watermark past records that are done, but not past these.
        return Verdict.COMMIT if stored.through < min(write.records) else Verdict.CHANGED

    def handle_committed(self, write: PositionWrite) -> None:
        """Note that a transaction was committed, so that its records count as done."""
        self._beyond.update(write.beyond)
        if write.through is not None and write.through > self.through:
            self.through = through = write.through
            self._beyond = {number for number in self._beyond if number > through}
