"""How far may a shard be committed, and when?

The tracker of one held lease. It is told what was handed to the user and what the user is done with, and says when to
write which checkpoint. Who writes it, and whether the lease still allows it, is the coordinator's business.

Two ways to be done with records. With ``manual`` acknowledgements each record counts on its own, in any order, and the
watermark moves when the records below it are done. Otherwise the user is done with them in order, and one call covers
all records up to one.

Invariants (C1 to C5 are of docs/guarantees.md):

- C1: what ``poll_commit`` gives never goes back.
- C2: all records at or before it were acknowledged.
- C3: SHARD_END comes last: after ``end``, once everything that was delivered is done. Nothing comes after it.
- C4: one commit at a time. What is acknowledged meanwhile waits, and is compared with what was written: it is never
  lost, nor written twice. Between two commits lies the interval, unless ``flush`` was called.
- C5: delivered is not done: nothing is committed that was not acknowledged, however long ago it was handed out.
- A call that an interrupt ended between two steps can be made again: nothing counts twice, and nothing is lost.
- An acknowledgement takes constant time, amortized, and a record is remembered by its number and arrival alone, not
  by its data.
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
"""Length and digits of the sequence number, and the sub-sequence: they compare as the numbers do, and are quick."""

_FINISHED = Checkpoint(SHARD_END)


@final
class CheckpointTracker:
    """Deliveries, acknowledgements and commits of one lease."""

    def __init__(self, checkpoint: Checkpoint, *, interval: float, now: Instant, manual: bool = False) -> None:
        at = checkpoint.sequence_number
        self._committed: _Place | None = None if at is None else _place(str(at), at.sub_sequence)
        self._watermark: _Place | None = self._committed
        self._delivered: _Place | None = self._committed  # the last that the user was handed
        self._manual: bool = manual
        self._order: deque[_Place] = deque()  # delivered, not below the watermark
        self._open: dict[_Place, float | None] = {}  # those that are not acknowledged: when they arrived
        self._interval: float = interval
        self._due_at: Instant = now + interval
        self._in_flight: _Place | Checkpoint | None = None
        self.has_ended: bool = False
        """Whether nothing more will be delivered."""
        self.is_finished: bool = False
        """Whether SHARD_END was written."""
        self._flushing: bool = False
        self._closed: bool = False
        self._sealed: bool = False

    # ---- what is so

    @property
    def watermark(self) -> SequenceNumber | None:
        """The record below which, and with which, everything is acknowledged."""
        return None if self._watermark is None else _number(self._watermark)

    @property
    def unacknowledged(self) -> int:
        """How many records were delivered and are not acknowledged (``manual``)."""
        return len(self._open)

    @property
    def remembered(self) -> int:
        """The same, and those that are acknowledged and wait behind one that is not: they all take memory."""
        return len(self._order)

    @property
    def oldest_unacknowledged(self) -> tuple[SequenceNumber, float | None] | None:
        """The first of them, and when it arrived."""
        first = next((place for place in self._order if place in self._open), None)
        return None if first is None else (_number(first), self._open[first])

    @property
    def is_settled(self) -> bool:
        """Whether everything that was delivered is acknowledged."""
        return not self._order if self._manual else self._watermark == self._delivered

    @property
    def is_committed(self) -> bool:
        """Whether nothing is left to write."""
        return self._in_flight is None and self._target() is None

    @property
    def is_at_end(self) -> bool:
        """Whether the next commit is SHARD_END: the moment to write the children's rows."""
        return self.has_ended and self.is_settled and not self.is_finished

    # ---- commands

    def deliver(self, records: Sequence[Record]) -> None:
        """The user was handed ``records``. What was told before does not count again."""
        assert not self.has_ended, "C3: nothing is delivered after the end"
        if not records or self._sealed:
            return
        if self._manual:
            known = (self._order[-1] if self._order else self._watermark) or _BEFORE_ALL
            arrivals = {place: record.arrived_at for record in records if (place := _place_of(record)) > known}
            self._open.update(arrivals)
            self._order.extend(arrivals)
        self._delivered = max(_place_of(records[-1]), self._delivered or _BEFORE_ALL)

    def ack(self, record: Record) -> bool:
        """The user is done with this one. False if it is unknown: done before, or not of this lease any more."""
        if self._sealed:
            return False
        place = _place_of(record)
        is_new = place in self._open
        self._open.pop(place, None)
        self._advance()  # also if it was known: an interrupt may have ended the call before
        return is_new

    def ack_through(self, record: Record) -> bool:
        """The user is done with this one and all before it. False if that is nothing new, or the lease is gone."""
        place = _place_of(record)
        if self._sealed or self._delivered is None or not (self._watermark or _BEFORE_ALL) < place <= self._delivered:
            return False
        if self._manual:
            while self._order and self._order[0] <= place:
                self._open.pop(self._order[0], None)
                self._advance()
        else:
            self._watermark = place
        return True

    def end(self) -> None:
        """All records of the shard were delivered (C3)."""
        self.has_ended = True

    def flush(self) -> None:
        """Write what is acknowledged now without waiting for the interval."""
        self._flushing = not self.is_committed

    def seal(self) -> None:
        """Nothing more is acknowledged; what was, is still to be written, and at once."""
        self.flush()
        self._sealed = True

    def close(self) -> None:
        """The lease is gone: nothing is acknowledged or written any more (L4)."""
        self._closed = self._sealed = True
        self._order.clear()
        self._open.clear()

    # ---- outputs, time

    def poll_commit(self, now: Instant, *, may_end: bool = True) -> Checkpoint | None:
        """What to write now. SHARD_END only if it ``may_end``: once the children have rows."""
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
        """The commit was written (C4)."""
        assert self._in_flight is not None, "C4: there was one"
        if isinstance(self._in_flight, Checkpoint):
            self.is_finished = True
        else:
            self._committed = self._in_flight
        self._in_flight = None
        self._flushing = self._flushing and self._target() is not None

    def handle_commit_failed(self) -> None:
        """It was not, or nobody knows: it stays to be written, or something newer in its place."""
        assert self._in_flight is not None, "C4: there was one"
        self._in_flight = None
        self._due_at -= self._interval  # as if it had not been sent

    def handle_set_back(self, checkpoint: Checkpoint) -> None:
        """The store has lost commits of ours, and is at ``checkpoint`` again: what is acknowledged is written anew."""
        at = checkpoint.sequence_number
        self._committed = None if at is None else _place(str(at), at.sub_sequence)

    # ---- within

    def _target(self, *, may_end: bool = True) -> _Place | Checkpoint | None:
        """What should be written: ``None`` if nothing new."""
        if self._closed or self.is_finished:
            return None
        if may_end and self.is_at_end:
            return _FINISHED
        return self._watermark if self._watermark != self._committed else None

    def _commit_at(self, target: _Place | Checkpoint) -> Instant:
        return -NEVER if self._flushing or isinstance(target, Checkpoint) else self._due_at

    def _advance(self) -> None:
        """Move the watermark over what is acknowledged (C2)."""
        order, unacknowledged = self._order, self._open
        while order and order[0] not in unacknowledged:
            self._watermark = order[0]
            order.popleft()  # Last


_BEFORE_ALL: _Place = (0, "", 0)


def _place(digits: str, sub_sequence: int) -> _Place:
    return len(digits), digits, sub_sequence


def _place_of(record: Record) -> _Place:
    digits = record.sequence_number
    assert digits is not None, "what was read from a shard has a number"
    return len(digits), digits, record.sub_sequence


def _number(place: _Place) -> SequenceNumber:
    return SequenceNumber(int(place[1]), place[2])
