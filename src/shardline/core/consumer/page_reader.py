"""The part of a reader that does not depend on how records are read: it opens pages and notices missing records.

``PollingReader`` and ``FanOutReader`` are the two kinds of readers. A page is the response to one GetRecords, or one
event of a subscription.

Invariants:

- A page is opened slice by slice, and each slice only when there is room, because opened aggregates may take much
  memory.
- The end of the shard is reported once, with the last page, which names the children.
- If the service refuses a position, reading continues at TRIM_HORIZON (``PositionLost``). If the record at the
  checkpoint is gone (``RecordsTrimmed``), or retention may have removed records between two pages (``TrimWatch``), the
  loss is reported. Records are never skipped silently.
- A stopped reader returns no pages.
- The reader never starts at LATEST, because LATEST would be a different position in each request. The worker that
  creates the row pins LATEST to a time (L6).
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from shardline.codec.shapes import RawRecord
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import DedupWindowOverflowed, PageRead, PositionLost, RecordsTrimmed
from shardline.core.consumer.consumer_totals import ReadCounts
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.prefetch import RECORD_BYTES, PrefetchBudget
from shardline.core.consumer.reader import OVER, TRANSITIONS, Children, Page, ReaderEvent, ReaderState, ShardKey
from shardline.core.consumer.trim_watch import TrimWatch
from shardline.core.error_codes import Failure
from shardline.model.position import LATEST, TRIM_HORIZON, Position
from shardline.model.record import LeaseInForce, Origin
from shardline.model.stream import StreamRef

SLICE_RECORDS: int = 10_000
"""The number of records that completes a slice of a page. A page without aggregates has at most this many records."""


class PageReader:
    """Opens the pages of one shard. The subclasses request the pages."""

    read_by: ClassVar[Literal["polling", "fan-out"]]
    """How the reader gets its records: by polling or by fan-out."""

    def __init__(
        self,
        stream: StreamRef,
        shard_id: str,
        start: Position,
        *,
        budget: PrefetchBudget,
        deaggregator: Deaggregator,
        trims: TrimWatch,
        lease: LeaseInForce | None,
        counts: ReadCounts | None,
    ) -> None:
        assert start.can_start, "a finished shard is not read"
        assert start != LATEST, "LATEST is pinned to a time before it is read"
        self._stream: StreamRef = stream
        self.shard_id: str = shard_id
        self.key: ShardKey = (stream.name, shard_id)
        self.position: Position = start
        """Where reading would continue after a failure."""
        self._budget: PrefetchBudget = budget
        self._deaggregator: Deaggregator = deaggregator
        self._lease: LeaseInForce | None = lease
        self._trims: TrimWatch = trims
        self._counts: ReadCounts = ReadCounts() if counts is None else counts
        self._page_records: int = 0  # how many records of the page were opened
        self._page_bytes: int = 0
        self._page_duration: float = 0.0
        self._page_began_at: Instant = 0.0
        # Reading begins with the record at the checkpoint. If another record comes first, retention has removed the
        # expected record, and perhaps unread records after it.
        self._expected: int | None = None if start.sequence_number is None else start.sequence_number.number
        self._asked_at: Instant = -NEVER  # the earliest time at which the service can have created the last page
        self._unread_since: Instant | None = None  # the earliest time at which the next record may have arrived
        self._read_until: Instant = -NEVER  # the latest time at which the next record may have arrived
        self._last_arrived_at: float | None = None  # when the last record arrived, by the service's clock
        self._is_failing: bool = False  # whether a call has failed since the last page
        self._has_reached_tip: bool = False
        self._blocked: bool = False
        self._pages: list[Page] = []
        self._unopened: list[RawRecord] = []  # the rest of the page that was read last
        self._unopened_bytes: int = 0
        self._is_last: bool = False  # whether the page that was read last is the last of the shard
        self._children: Children = ()
        self._events: list[ReaderEvent] = []
        self.state: ReaderState = ReaderState.STARTING
        self.lag: float | None = None
        """How far behind the end of the shard the last page was, in seconds."""
        self.failure: Failure | None = None
        """Why the reader is in the state GONE or FAILED."""

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def unread_age(self, now: Instant) -> float | None:
        """Return the age of the oldest unread record: 0 if all records were read, or ``None`` if the age is unknown.

        A shard that was read up to its newest record may have new records by now. While calls to the shard fail, the
        result is the longest time that such a record can have waited.
        """
        if self.lag is None or self._unread_since is None:
            return None
        return 0.0 if self.lag == 0 and not self._is_failing else now - self._unread_since

    @property
    def has_unopened(self) -> bool:
        """Whether ``take_pages`` will return more pages once there is room."""
        return bool(self._unopened) or self._is_last

    @property
    def has_caught_up(self) -> bool:
        """Whether the shard was once read up to its newest record, and ``take_pages`` has returned all of these
        records.
        """
        return self._has_reached_tip and not self.has_unopened

    @property
    def out_of_range(self) -> int:
        """How many records of aggregates were outside the shard's hash range."""
        return self._deaggregator.out_of_range

    # ---- commands

    def stop(self) -> None:
        """Stop reading and drop the pages that were not taken."""
        if not self.is_over:
            self._enter(ReaderState.STOPPED)
        self._unopened, self._is_last = [], False
        self._pages.clear()
        self._budget.forget(self.key)

    # ---- outputs

    def take_pages(self) -> list[Page]:
        """Return the next pages, in order: at most one slice, and only if the budget has room for it. The result is
        empty if nothing is left to take, or if there is no room. In the second case, the budget admits the shard later
        (``take_admitted``).
        """
        if not self._pages and self.has_unopened:
            self._blocked = not self._budget.admits(self.key)
            if not self._blocked:
                self._open_slice()
        pages, self._pages = self._pages, []
        return pages

    def _open_slice(self) -> None:
        """Open entries until there is a page. Entries whose records are all already done add no page."""
        pages = len(self._pages)
        while self.has_unopened and len(self._pages) == pages:
            self._open_some()
        if not self.has_unopened:
            self._note_read()

    def _note_read(self) -> None:
        """Count and report a page after all its records were opened."""
        counts = self._counts
        counts.pages += 1
        counts.records += self._page_records
        counts.size_bytes += self._page_bytes
        if counts.is_observed:
            self._events.append(
                PageRead(
                    self.shard_id,
                    self._page_records,
                    self._page_bytes,
                    self._page_duration,
                    self.lag,
                    self.read_by,
                    self._page_began_at + counts.wall_offset,
                )
            )

    def _open_some(self) -> None:
        raws = self._unopened
        records, opened = self._deaggregator.open_some(raws, Origin(self._lease), SLICE_RECORDS)
        size_bytes = sum([len(raw.data) for raw in raws[:opened]])
        self._unopened = raws[opened:]
        self._unopened_bytes -= size_bytes
        self._page_records += len(records)
        self._budget.keep(self.key, self._unopened_bytes)
        is_last = self._is_last and not self._unopened
        if is_last:
            self._is_last = False
            self._enter(ReaderState.ENDED)
        repeated, through = self._deaggregator.take_left_out()
        if through is not None and records and records[-1].order > through.order:
            through = None  # the checkpoint of the last record covers the copies before it
        self._note_forgotten()
        if records or is_last or through is not None:
            held_bytes = size_bytes + RECORD_BYTES * len(records) if records else 0
            self._budget.hold(self.key, held_bytes)
            children = self._children if is_last else ()
            page = Page(self.shard_id, records, held_bytes, self.lag, is_last, children)
            self._pages.append(page._replace(through=through, repeated=repeated) if repeated else page)

    def _note_forgotten(self) -> None:
        window = self._deaggregator.window
        if window is not None and window.has_forgotten:
            self._events.append(DedupWindowOverflowed(self.shard_id, window.take_forgotten()))

    def take_events(self) -> list[ReaderEvent]:
        events, self._events = self._events, []
        return events

    # ---- shared by the subclasses

    def _begin_page(self, raws: list[RawRecord], began_at: Instant, now: Instant) -> None:
        """Keep the entries of a page until they are opened. ``began_at`` is when the request was sent."""
        self._unopened, self._unopened_bytes = raws, sum([len(raw.data) for raw in raws])
        self._page_records, self._page_bytes = 0, self._unopened_bytes
        self._page_duration, self._page_began_at = now - began_at, began_at

    def _enter(self, state: ReaderState) -> None:
        assert state in TRANSITIONS[self.state], f"a reader does not go from {self.state} to {state}"
        self.state = state

    def _lose_position(self, failure: Failure) -> None:
        """Continue at TRIM_HORIZON, because the service refused the position."""
        self._events.append(PositionLost(self.shard_id, self.position, failure))
        self.position, self._expected = TRIM_HORIZON, None
        self._deaggregator.stop_skipping()  # numbers unknown to the service cannot show which records are done

    def _notice_trimmed(self, raws: Sequence[RawRecord], now: Instant) -> None:
        """Check whether retention may have removed unread records before this page, which may be empty."""
        if self._expected is not None:
            if raws and int(raws[0].sequence_number) > self._expected:
                first = raws[0].sequence_number
                why = f"the record at the checkpoint, {self._expected}, is gone; the first remaining one is {first}"
                self._events.append(RecordsTrimmed(self.shard_id, why))
            self._expected = None if raws else self._expected
        elif self._unread_since is not None:
            self._trims.handle_page(self.shard_id, self._least_age(raws), now - self._unread_since, now)

    def _least_age(self, raws: Sequence[RawRecord]) -> float:
        """Return a lower bound for the age of the page's first record, or of the position where an empty page ends.

        The lag is the age of the page's last record, or of the record after it. At the end of the shard, the lag is 0,
        although the records may have any age. So there are two lower bounds: the lag plus the time span of the page,
        and the age of the last record of the previous page, minus the time between that record and this page's first
        record.
        """
        age = self.lag or 0.0
        if not raws:
            return age
        first, last = raws[0].arrived_at, raws[-1].arrived_at
        if first is not None and last is not None:
            age += max(0.0, last - first)
        if first is not None and self._last_arrived_at is not None:
            age = max(age, self._asked_at - self._read_until - (first - self._last_arrived_at))
        return age
