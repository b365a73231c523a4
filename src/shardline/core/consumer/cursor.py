"""A cursor holds records of one shard that user code takes one after another, or all together.

Two sides share a cursor. User code (a task, a thread or a handler) takes records from the cursor without calling the
host. The host sets how far user code may go, and reads ``place`` to find out which records are done.

Invariants (C5 is defined in docs/guarantees.md):

- Each field has one writer: user code writes ``place``, ``taken_at`` and ``slice_end``, and the host writes all other
  fields. The host writes ``place`` or ``taken_at`` only while user code waits for the host.
- Taking a record ends with a single assignment, so an interrupt leaves the record either taken or not taken.
- C5: requesting the next record finishes the previous record. All records before those that were taken last are done.
- The host takes back the remaining records by lowering ``end``. A thread that is taking a record at this moment may
  still get it: ``place`` is then above ``end``, and the record counts as taken.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.handling_lag import HandlingState
from shardline.model.record import Record

SLICE: Final = 0.01
"""For this many seconds, user code may take records without yielding to its event loop or checking the lease."""


class _Lease(Protocol):
    @property
    def held(self) -> bool: ...
    def in_force(self, now: Instant) -> bool: ...


@final
class Cursor:
    """Records of one shard that were handed out to one taker.

    The fast path of user code, which needs no call::

        place = cursor.place
        if place < cursor.end and now < cursor.slice_end:
            record = cursor.records[place]
            cursor.place = place + 1  # comes last: now the record is taken
            return record

    Otherwise, if ``is_open`` is true, begin a time slice and take the next record, or all of them. If the cursor is not
    open, ask the host for another cursor.
    """

    __slots__ = (
        "counted",
        "counted_at",
        "end",
        "finished",
        "given",
        "is_last",
        "lease",
        "place",
        "places",
        "records",
        "reported",
        "slice_end",
        "step",
        "taken_at",
    )

    def __init__(
        self,
        records: Sequence[Record] = (),
        lease: _Lease | None = None,
        *,
        is_last: bool = False,
        whole: bool = False,
        places: Sequence[int] | None = None,
    ) -> None:
        self.records: Sequence[Record[Any]] = records
        self.places: Sequence[int] | None = places
        """The places of the records in their shard, if the records were taken from its lanes (``key_lanes``). ``None``
        if each record directly follows the one before it.
        """
        self.lease: _Lease | None = lease
        self.is_last: bool = is_last
        """Whether the shard ends with these records."""
        self.step: int = len(records) if whole else 1
        """How many records are taken at a time."""
        self.end: int = len(records)
        """How many records may be taken."""
        self.place: int = 0
        """How many records user code has taken."""
        self.taken_at: Instant | None = None
        """When user code took the last record, to within ``SLICE`` seconds, or ``None`` if user code has no record."""
        self.slice_end: Instant = -NEVER
        """The fast path is open until this time. Any thread may set an earlier time to make user code ask the host."""
        self.finished: int = 0
        """How many records a failure policy has finished. These records are done, whatever the value of ``place``."""
        self.reported: int = 0
        """How many records were reported to the coordinator as acknowledged or, with manual acknowledgements, as
        delivered."""
        self.counted: int = 0
        """How many records have been counted as handled. The hand-out writes this field."""
        self.counted_at: Instant = -NEVER
        """When user code got the records that are not counted yet. The hand-out writes this field."""
        self.given: int = self.step
        """How many records user code has at a time: fewer than ``step`` while a failing batch is bisected."""

    # ---- user code

    @property
    def is_open(self) -> bool:
        """Whether the next record may be taken."""
        return self.place < self.end and self.lease is not None and self.lease.held

    def begin_slice(self, now: Instant) -> None:
        """Store the time at which the next record is taken, and open the fast path for the duration of a slice."""
        self.taken_at = now
        self.slice_end = now + SLICE

    def take(self, now: Instant) -> Record[Any]:
        """Take the next record. ``is_open`` must be true."""
        place = self.place
        record = self.records[place]
        self.begin_slice(now)
        self.place = place + 1  # comes last, so that an interrupt leaves the record either taken or not taken
        return record

    def take_all(self) -> Sequence[Record[Any]]:
        """Take all remaining records together. ``is_open`` must be true."""
        self.place = len(self.records)
        return self.records

    # ---- the host

    @property
    def done(self) -> int:
        """How many records are done. All records before those that user code took last are done (C5)."""
        return max(self.finished, self.place - self.step)

    def is_current(self, now: Instant) -> bool:
        """Return whether the next record may be taken.

        Like ``is_open``, but for the host, which passes the current time.
        """
        return self.place < self.end and self.lease is not None and self.lease.in_force(now)

    def take_back(self) -> None:
        """Take back the records that user code has not taken."""
        self.end = min(self.end, self.place)

    def handling_state(self, *, is_manual: bool) -> HandlingState:
        """Return which records user code has, and how many records are waiting.

        With manual acknowledgements, the coordinator's tracker counts the reported records, so the oldest record in the
        result is the first unreported one.
        """
        place, done = self.place, self.done
        # A thread may have taken one record after the host lowered ``end``. That record also counts as in hand.
        known = max(place, self.end)
        first = self.reported if is_manual else done
        # While a failing batch is bisected, user code has only the current part. The rest of the batch waits.
        in_hand = min(self.given, place - done)
        since = self.taken_at if in_hand else None
        return HandlingState(self.records[first] if first < known else None, in_hand, known - done - in_hand, since)
