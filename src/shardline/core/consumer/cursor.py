"""The page in hand: records of one shard that user code takes one after another, or all at once.

Two sides share a cursor. User code (a task, a thread, a handler) takes records from it, without asking anybody. The
host says how far user code may go, and learns from ``place`` which records are done.

Invariants (C5 is defined in docs/guarantees.md):

- Each field has one writer: ``place``, ``taken_at`` and ``slice_end`` belong to user code, all others to the host. The
  host writes ``place`` or ``taken_at`` only while user code waits for it.
- To take a record is one store, the last step: an interrupt finds the record taken or not taken.
- C5: asking for the next record says that the one before it is done. All records before the last take are done.
- The host takes back the rest by lowering ``end``. A thread that is just taking a record may still get that one:
  ``place`` is then above ``end``, and the record counts as taken.
"""

from collections.abc import Sequence
from typing import Final, Protocol, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.handling_lag import HandlingState
from shardline.model.record import Record

SLICE: Final = 0.01
"""For this many seconds user code may take records without giving its event loop a turn or checking the lease."""


class _Lease(Protocol):
    @property
    def held(self) -> bool: ...
    def in_force(self, now: Instant) -> bool: ...


@final
class Cursor:
    """Records of one shard in the hands of one taker.

    The quick path of user code, which costs no call::

        place = cursor.place
        if place < cursor.end and now < cursor.slice_end:
            record = cursor.records[place]
            cursor.place = place + 1  # last: the record is taken
            return record

    Otherwise, if the cursor ``is_open``, begin a slice of time and take the next, or all; if it is not open, ask the
    host.
    """

    __slots__ = (
        "end",
        "finished",
        "given",
        "is_last",
        "lease",
        "place",
        "records",
        "reported",
        "slice_end",
        "step",
        "taken_at",
    )

    def __init__(
        self, records: Sequence[Record] = (), lease: _Lease | None = None, *, is_last: bool = False, whole: bool = False
    ) -> None:
        self.records: Sequence[Record] = records
        self.lease: _Lease | None = lease
        self.is_last: bool = is_last
        """Whether the shard ends with these records."""
        self.step: int = len(records) if whole else 1
        """How many records are taken at a time."""
        self.end: int = len(records)
        """How many records may be taken."""
        self.place: int = 0
        """How many records were taken."""
        self.taken_at: Instant | None = None
        """When user code took the last record, or up to ``SLICE`` before. ``None``: user code is not at work."""
        self.slice_end: Instant = -NEVER
        """The quick path is open until then. Anyone may set it back to make user code look again."""
        self.finished: int = 0
        """How many records are known to be done, whatever ``place`` says: a failure policy is through with them."""
        self.reported: int = 0
        """How many records the coordinator knows about: as acknowledged, or as delivered (manual acknowledgements)."""
        self.given: int = self.step
        """How many records user code has at a time: fewer than ``step`` while a failing batch is bisected."""

    # ---- user code

    @property
    def is_open(self) -> bool:
        """Whether the next record may be taken."""
        return self.place < self.end and self.lease is not None and self.lease.held

    def begin_slice(self, now: Instant) -> None:
        """The next record is about to be taken: note when, and open the quick path for a while."""
        self.taken_at = now
        self.slice_end = now + SLICE

    def take(self, now: Instant) -> Record:
        """Take the next record. ``is_open`` must hold."""
        place = self.place
        record = self.records[place]
        self.begin_slice(now)
        self.place = place + 1  # last
        return record

    def take_all(self) -> Sequence[Record]:
        """Take the records as a whole. ``is_open`` must hold."""
        self.place = len(self.records)
        return self.records

    # ---- the host

    @property
    def done(self) -> int:
        """How many records are done: all before the last take (C5)."""
        return max(self.finished, self.place - self.step)

    def is_current(self, now: Instant) -> bool:
        """The same as ``is_open``, for the host, which has its own time."""
        return self.place < self.end and self.lease is not None and self.lease.in_force(now)

    def take_back(self) -> None:
        """Let no more records be taken. Those that were taken stay taken."""
        self.end = min(self.end, self.place)

    def look(self, *, is_manual: bool) -> HandlingState:
        """What user code has, and what waits for it. With manual acknowledgements the coordinator's tracker counts the
        records that were reported, so the oldest is the first that was not.
        """
        place, done = self.place, self.done
        known = max(place, self.end)
        first = self.reported if is_manual else done
        in_hand = min(self.given, place - done)
        since = self.taken_at if in_hand else None
        return HandlingState(self.records[first] if first < known else None, in_hand, known - done - in_hand, since)
