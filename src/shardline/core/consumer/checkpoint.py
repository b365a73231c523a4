"""Decides which checkpoint of a shard is written, and when.

Each held lease has a tracker. The shell reports to the tracker which records were handed to the user and which records
are done, and the tracker decides when to write which checkpoint. The coordinator writes the checkpoint, if the lease is
still held.

Records become done in one of two ways. With ``manual`` acknowledgements, the user acknowledges each record separately
and in any order, and the watermark moves when all records below it are done. Otherwise the user finishes records in
order, and one call covers all records up to the given one.

Invariants (docs/guarantees.md defines C1 to C5):

- C1: the checkpoints that ``poll_commit`` returns never go back, except to the position that the user passed to
  ``seek``. After ``seek``, the tracker accepts nothing more: records that were delivered before the seek must not move
  the checkpoint away from the new position. ``HeldLeases`` replaces the tracker once the position is written.
- C2: all records at or before a checkpoint were acknowledged.
- C3: SHARD_END is committed last: after ``end`` was called and every delivered record is done. Nothing is committed
  after SHARD_END.
- C4: there is one commit at a time. Acknowledgements that arrive during a commit wait until it has ended. They are then
  compared with the written checkpoint, so they are neither lost nor written twice. The time between two commits is at
  least the checkpoint interval, unless ``flush`` was called.
- C5: delivery does not make a record done. No record is committed before it is acknowledged, however long ago it was
  delivered.
- A call that an interrupt ended between two steps can be repeated: no record counts twice, and no record is lost.
- An acknowledgement takes amortized constant time. The tracker stores the sequence number and the arrival time of a
  record, but not its data.
"""

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.model.lease import Checkpoint
from shardline.model.position import SHARD_END, at_sequence_number
from shardline.model.record import Record
from shardline.model.sequence import SequenceNumber

_Place: TypeAlias = tuple[int, str, int]
"""The place of a record: the length and the digits of its sequence number, and its sub-sequence. These tuples sort like
the numbers themselves, so no number has to be parsed.
"""

_FINISHED = Checkpoint(SHARD_END)


@final
class CheckpointTracker:
    """Tracks deliveries, acknowledgements and commits of one lease."""

    def __init__(self, checkpoint: Checkpoint, *, interval: float, now: Instant, manual: bool = False) -> None:
        at = checkpoint.sequence_number
        self._committed: _Place | None = None if at is None else _place(str(at), at.sub_sequence)
        self._watermark: _Place | None = self._committed
        self._delivered: _Place | None = self._committed  # the last record that was handed to the user
        self._manual: bool = manual
        self._order: deque[_Place] = deque()  # delivered records above the watermark
        self._open: dict[_Place, float | None] = {}  # unacknowledged records, with their arrival times
        self._returned: set[_Place] = set()  # records of ``_open`` that the user gave back
        self._interval: float = interval
        self._due_at: Instant = now + interval
        self._in_flight: _Place | Checkpoint | None = None
        self._sought: Checkpoint | None = None  # the position passed to ``seek``, until it is written
        self.is_sought: bool = False
        """Whether the position that the user passed to ``seek`` has been written."""
        self.has_ended: bool = False
        """Whether all records of the shard have been delivered."""
        self.is_finished: bool = False
        """Whether SHARD_END has been written."""
        self._flushing: bool = False
        self._closed: bool = False
        self._sealed: bool = False

    # ---- queries

    @property
    def watermark(self) -> SequenceNumber | None:
        """The sequence number up to which all records are acknowledged."""
        return None if self._watermark is None else _number(self._watermark)

    @property
    def unacknowledged(self) -> int:
        """With ``manual`` acknowledgements, the number of records that the user has but has not acknowledged."""
        return len(self._open) - len(self._returned)

    @property
    def returned(self) -> int:
        """With ``manual`` acknowledgements, the number of unacknowledged records that the user gave back."""
        return len(self._returned)

    @property
    def remembered(self) -> int:
        """The number of records that the tracker remembers: the first unacknowledged record and all that were delivered
        after it.
        """
        return len(self._order)

    @property
    def oldest_unacknowledged(self) -> tuple[SequenceNumber, float | None] | None:
        """The first unacknowledged record that the user has, and its arrival time."""
        first = next((place for place in self._order if place in self._open and place not in self._returned), None)
        return None if first is None else (_number(first), self._open[first])

    @property
    def is_settled(self) -> bool:
        """Whether every delivered record is acknowledged."""
        return not self._order if self._manual else self._watermark == self._delivered

    @property
    def is_committed(self) -> bool:
        """Whether the store contains the newest checkpoint. If so, nothing is left to write."""
        return self._in_flight is None and self._target() is None

    def has_written(self, number: SequenceNumber) -> bool:
        """Whether the store has confirmed a checkpoint at or after ``number``."""
        return self.is_finished or (self._committed is not None and _number(self._committed) >= number)

    @property
    def is_replaced(self) -> bool:
        """Whether the user has called ``seek``. If so, nothing more is written for the delivered records."""
        return self._sought is not None or self.is_sought

    @property
    def is_at_end(self) -> bool:
        """Whether the next commit is SHARD_END. If so, the rows of the shard's children have to be written now."""
        return self.has_ended and self.is_settled and not self.is_finished

    # ---- commands

    def deliver(self, records: Sequence[Record]) -> None:
        """Track ``records``, which have been handed to the user. Records that are already tracked do not count
        again.
        """
        assert not self.has_ended, "C3: nothing is delivered after the end"
        if not records or self._sealed:
            return
        if self._manual:
            # A record may be delivered twice: if the user gave it back and took it again, or if an interrupted report
            # is repeated. Records arrive in order, so records at or before the last known record are repetitions.
            known = (self._order[-1] if self._order else self._watermark) or _BEFORE_ALL
            arrivals = {place: record.arrived_at for record in records if (place := _place_of(record)) > known}
            self._open.update(arrivals)
            self._order.extend(arrivals)
            self._returned.difference_update(map(_place_of, records))
        # After records have been given back, the next delivery may be smaller and end before the last delivered record.
        self._delivered = max(_place_of(records[-1]), self._delivered or _BEFORE_ALL)

    def take_back(self, records: Sequence[Record]) -> None:
        """Take back ``records``, which the user gave back. The unacknowledged ones will be delivered again."""
        self._returned.update(place for record in records if (place := _place_of(record)) in self._open)

    def ack(self, record: Record) -> bool:
        """Mark this record as done. Return False if the record has already been acknowledged, or is not tracked."""
        if self._sealed:
            return False
        place = _place_of(record)
        is_new = place in self._open
        self._open.pop(place, None)
        self._returned.discard(place)
        self._advance()  # even if this record was acknowledged before: an interrupt may have ended that call
        return is_new

    def ack_through(self, record: Record) -> bool:
        """Mark this record and all records before it as done.

        Returns False if all these records have already been acknowledged, or if the lease is gone.
        """
        place = _place_of(record)
        if self._sealed or self._delivered is None or not (self._watermark or _BEFORE_ALL) < place <= self._delivered:
            return False
        if self._manual:
            # Forget the records one by one. If an interrupt comes between two steps, the state is consistent, and the
            # call can be repeated.
            while self._order and self._order[0] <= place:
                self._open.pop(self._order[0], None)
                self._returned.discard(self._order[0])
                self._advance()
        else:
            self._watermark = place
        return True

    def end(self) -> None:
        """Called when all records of the shard have been delivered (C3)."""
        self.has_ended = True

    def flush(self) -> None:
        """Commit the current watermark without waiting for the interval."""
        self._flushing = not self.is_committed

    def seek(self, checkpoint: Checkpoint) -> None:
        """Write this checkpoint next, even if it is earlier than the last one, and refuse acknowledgements (C1)."""
        assert not self.has_ended, "C3: a shard that was read to its end is not sought"
        self._sought = checkpoint
        self._sealed = True
        self._forget()

    def seal(self) -> None:
        """Refuse further acknowledgements, and commit the current watermark without waiting for the interval."""
        self.flush()
        self._sealed = True

    def close(self) -> None:
        """Refuse further acknowledgements and commits, because the lease is gone (L4)."""
        self._closed = self._sealed = True
        self._forget()

    # ---- outputs, time

    def poll_commit(self, now: Instant, *, may_end: bool = True) -> Checkpoint | None:
        """Return the checkpoint to write now, if any.

        Args:
            now: the current time.
            may_end: whether SHARD_END may be written, because the children have rows.
        """
        target = self._target(may_end=may_end)
        if target is None or self._in_flight is not None or now < self._commit_at(target):
            return None
        self._in_flight = target
        self._due_at = now + self._interval
        return target if isinstance(target, Checkpoint) else Checkpoint(at_sequence_number(_number(target)))

    def next_deadline(self, *, may_end: bool = True) -> Instant:
        target = self._target(may_end=may_end)
        return NEVER if target is None or self._in_flight is not None else self._commit_at(target)

    # ---- inputs

    def handle_committed(self) -> None:
        """Called when the commit in flight has been written (C4)."""
        assert self._in_flight is not None, "C4: a commit is in flight"
        written, self._in_flight = self._in_flight, None
        if not isinstance(written, Checkpoint):
            self._committed = written
        elif written.is_finished:
            self.is_finished = True
        elif written == self._sought:  # otherwise the user has called ``seek`` again meanwhile
            self._sought, self.is_sought = None, True
        # A flush covers all acknowledgements up to now. Those that came while this commit was in flight are still due
        # at once.
        self._flushing = self._flushing and self._target() is not None

    def handle_commit_failed(self) -> None:
        """Called when the commit in flight failed or may have failed. It is repeated later, perhaps with a newer
        checkpoint.
        """
        assert self._in_flight is not None, "C4: a commit is in flight"
        self._in_flight = None
        self._due_at -= self._interval  # as if the commit had not been sent

    def handle_set_back(self, checkpoint: Checkpoint) -> None:
        """Called when the store lost commits and now contains ``checkpoint``. The watermark is written again."""
        at = checkpoint.sequence_number
        self._committed = None if at is None else _place(str(at), at.sub_sequence)

    # ---- internal

    def _target(self, *, may_end: bool = True) -> _Place | Checkpoint | None:
        """Return the next checkpoint to write, or ``None`` if the store contains the newest checkpoint."""
        if self._closed or self.is_finished or self.is_sought:
            return None
        if self._sought is not None:
            return self._sought
        if may_end and self.is_at_end:
            return _FINISHED
        return self._watermark if self._watermark != self._committed else None

    def _commit_at(self, target: _Place | Checkpoint) -> Instant:
        # SHARD_END does not wait for the interval, because the children of the shard cannot be read until SHARD_END is
        # written. A position that the user passed to ``seek`` does not wait either, because no record is read until
        # that position is written.
        return -NEVER if self._flushing or isinstance(target, Checkpoint) else self._due_at

    def _forget(self) -> None:
        self._order.clear()
        self._open.clear()
        self._returned.clear()

    def _advance(self) -> None:
        """Move the watermark past the acknowledged records that follow it without a gap (C2)."""
        order, unacknowledged = self._order, self._open
        while order and order[0] not in unacknowledged:
            self._watermark = order[0]
            order.popleft()  # comes last: after an interrupt before this line, the next call repeats both steps


_BEFORE_ALL: _Place = (0, "", 0)


def _place(digits: str, sub_sequence: int) -> _Place:
    return len(digits), digits, sub_sequence


def _place_of(record: Record) -> _Place:
    digits = record.sequence_number
    assert digits is not None, "a record that was read from a shard has a sequence number"
    return len(digits), digits, record.sub_sequence


def _number(place: _Place) -> SequenceNumber:
    return SequenceNumber(int(place[1]), place[2])
