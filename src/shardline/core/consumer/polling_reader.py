"""Reads one shard by polling: GetShardIterator, then GetRecords until the shard ends.

The shell sends the requests of ``poll_request``, answers each with exactly one ``handle_*`` call, and passes the pages
of ``take_pages`` on.

Invariants:

- There is one request at a time, at the pace that the shard allows (``ReadPace``) and only with room for a page
  (``PrefetchBudget``). An idle or slow shard delays no other.
- Pages come out in the order of the shard, without gaps: after any failure, reading continues right after the last
  record that came out.
- If the service refuses a position, reading continues at TRIM_HORIZON (``PositionLost``). If the record of the
  checkpoint is gone (``RecordsTrimmed``), or retention may have removed records between two pages (``TrimWatch``), that
  is reported. Records are never skipped silently.
- The end of the shard is reported once, with the last page, which names the children.
- A page is opened slice by slice, each slice only when there is room, because opened aggregates may take much memory.
  The next page is requested when the current one is fully opened.
- A stopped reader sends no requests and returns no pages. It drops the response to a request in flight.
- The reader never starts at LATEST, which would be another position for each request. The worker that creates the row
  pins LATEST to a time (L6).
"""

from collections.abc import Sequence
from typing import Final, final

from shardline.codec.shapes import GetRecordsResponse, GetShardIteratorResponse, RawRecord
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import PositionLost, ReadFailed, RecordsTrimmed
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.prefetch import RECORD_BYTES, PrefetchBudget
from shardline.core.consumer.read_pace import ReadPace
from shardline.core.consumer.reader import OVER, TRANSITIONS, Children, Page, ReaderEvent, ReaderState, ShardKey
from shardline.core.consumer.trim_watch import TrimWatch
from shardline.core.failures import Failure, FailureKind
from shardline.core.requests import GetRecords, GetShardIterator
from shardline.model.position import LATEST, TRIM_HORIZON, Position, after_sequence_number
from shardline.model.record import LeaseInForce, Origin
from shardline.model.stream import StreamRef

SLICE_RECORDS: int = 10_000
"""A slice of a page is complete with this many records: the maximum of a page without aggregates."""
_BAD_ITERATORS_MAX: Final = 3  # fresh iterators that the service may refuse in a row before the reader fails


@final
class PollingReader:
    """Reads one shard."""

    def __init__(
        self,
        stream: StreamRef,
        shard_id: str,
        start: Position,
        *,
        budget: PrefetchBudget,
        pace: ReadPace,
        deaggregator: Deaggregator,
        trims: TrimWatch,
        lease: LeaseInForce | None = None,
        page_max_records: int | None = None,
    ) -> None:
        assert start.can_start, "a finished shard is not read"
        assert start != LATEST, "LATEST is pinned to a time before it is read"
        self._stream: StreamRef = stream
        self.shard_id: str = shard_id
        self.key: ShardKey = (stream.name, shard_id)
        self.position: Position = start
        """The position that a new iterator would start at."""
        self._budget: PrefetchBudget = budget
        self._pace: ReadPace = pace
        self._deaggregator: Deaggregator = deaggregator
        self._lease: LeaseInForce | None = lease
        self._page_max_records: int | None = page_max_records
        self._trims: TrimWatch = trims
        # The record at the checkpoint is read again, and first. If another record comes first, retention has removed
        # the expected one, and perhaps unread records after it.
        self._expected: int | None = None if start.sequence_number is None else start.sequence_number.number
        self._asked_at: Instant = -NEVER  # when the last page was requested
        self._unread_since: Instant | None = None  # the earliest time at which the next record may have arrived
        self._read_until: Instant = -NEVER  # the latest estimate of the same time
        self._last_arrived_at: float | None = None  # when the last record read had arrived, by the service's clock
        self._is_failing: bool = False  # whether a call failed since the last page
        self._has_reached_tip: bool = False
        self._iterator: str = ""
        self._bad_iterators: int = 0
        self._blocked: bool = False
        self._pages: list[Page] = []
        self._unopened: list[RawRecord] = []  # the rest of the page that was read last
        self._unopened_bytes: int = 0
        self._is_last: bool = False  # whether that page is the last of the shard
        self._children: Children = ()
        self._events: list[ReaderEvent] = []
        self.state: ReaderState = ReaderState.STARTING
        self.lag: float | None = None
        """How far behind the end of the shard the last page was, in seconds."""
        self.failure: Failure | None = None
        """Why the reader is GONE or FAILED."""

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def unread_age(self, now: Instant) -> float | None:
        """The age of the oldest unread record. 0 if all records were read, ``None`` if unknown.

        A shard that was read up to its newest record may have new records by now. While the calls to it fail, the
        result is the longest time that such a record can have waited.
        """
        if self.lag is None or self._unread_since is None:
            return None
        return 0.0 if self.lag == 0 and not self._is_failing else now - self._unread_since

    @property
    def has_unopened(self) -> bool:
        """Whether ``take_pages`` will return more once there is room."""
        return bool(self._unopened) or self._is_last

    @property
    def has_caught_up(self) -> bool:
        """Whether the shard was once read up to its newest record, and ``take_pages`` has returned all of these
        records.
        """
        return self._has_reached_tip and not self.has_unopened

    @property
    def out_of_range(self) -> int:
        """How many records of aggregates lay outside the shard's hash range."""
        return self._deaggregator.out_of_range

    # ---- commands

    def stop(self) -> None:
        """Stop reading, and drop the pages that were not taken."""
        if not self.is_over:
            self._enter(ReaderState.STOPPED)
        self._unopened, self._is_last = [], False
        self._pages.clear()
        self._budget.forget(self.key)

    # ---- outputs

    def poll_request(self, now: Instant) -> GetShardIterator | GetRecords | None:
        """Return the request to send now."""
        if now < self._pace.next_at or self.has_unopened:
            return None
        if self.state is ReaderState.STARTING:
            self._enter(ReaderState.ASKING)
            self._pace.handle_sent(now)
            return GetShardIterator(self._stream, self.shard_id, self.position)
        if self.state is not ReaderState.READY:
            return None
        self._blocked = not self._budget.admits(self.key)
        if self._blocked:
            return None
        self._enter(ReaderState.READING)
        self._asked_at = now
        self._pace.handle_sent(now)
        return GetRecords(self._iterator, self._page_max_records, self._stream)

    def take_pages(self) -> list[Page]:
        """Return the next pages, in order: at most one slice, and only if the budget has room for it. The result is
        empty if nothing is left to take, or if there is no room. The budget then admits the shard later
        (``take_admitted``).
        """
        if not self._pages and self.has_unopened:
            self._blocked = not self._budget.admits(self.key)
            if not self._blocked:
                self._open_slice()
        pages, self._pages = self._pages, []
        return pages

    def _open_slice(self) -> None:
        """Open entries until there is a page. Entries whose records are all done already make no page."""
        pages = len(self._pages)
        while self.has_unopened and len(self._pages) == pages:
            self._open_some()

    def _open_some(self) -> None:
        raws = self._unopened
        records, opened = self._deaggregator.open_some(raws, Origin(self._lease), SLICE_RECORDS)
        size_bytes = sum([len(raw.data) for raw in raws[:opened]])
        self._unopened = raws[opened:]
        self._unopened_bytes -= size_bytes
        self._budget.keep(self.key, self._unopened_bytes)
        is_last = self._is_last and not self._unopened
        if is_last:
            self._is_last = False
            self._enter(ReaderState.ENDED)
        if records or is_last:
            held_bytes = size_bytes + RECORD_BYTES * len(records) if records else 0
            self._budget.hold(self.key, held_bytes)
            children = self._children if is_last else ()
            self._pages.append(Page(self.shard_id, records, held_bytes, self.lag, is_last, children))

    def take_events(self) -> list[ReaderEvent]:
        events, self._events = self._events, []
        return events

    # ---- time

    def next_deadline(self) -> Instant:
        """When to poll again. A reader without room is polled when the budget admits it."""
        if self.has_unopened:
            return NEVER
        if self.state is ReaderState.STARTING or (self.state is ReaderState.READY and not self._blocked):
            return self._pace.next_at
        return NEVER

    # ---- inputs

    def handle_iterator(self, response: GetShardIteratorResponse, now: Instant) -> None:  # noqa: ARG002 - like all inputs
        if self.state is ReaderState.STOPPED:
            return
        assert self.state is ReaderState.ASKING
        self._iterator = response.shard_iterator
        self._pace.handle_iterator()
        self._enter(ReaderState.READY)

    def handle_page(self, response: GetRecordsResponse, now: Instant) -> None:
        """Handle a page, which may be empty, or the last one. ``take_pages`` returns its records."""
        if self.state is ReaderState.STOPPED:
            return
        assert self.state is ReaderState.READING
        raws = response.records
        millis = response.millis_behind_latest
        self.lag = None if millis is None else millis / 1000
        self._is_failing = False
        self._bad_iterators = 0
        size_bytes = sum([len(raw.data) for raw in raws])
        self._notice_trimmed(raws, now)
        if raws:
            self.position = after_sequence_number(raws[-1].sequence_number)
            self._last_arrived_at = raws[-1].arrived_at
        if self.lag is not None:
            # The service measured the lag at some time between the request and the response.
            self._unread_since = self._asked_at - self.lag
            self._read_until = now - self.lag
        is_last = response.next_iterator is None
        behind = bool(raws) if self.lag is None else self.lag > 0
        self._has_reached_tip = self._has_reached_tip or not behind
        self._pace.handle_page(size_bytes, empty=not raws, behind=behind, now=now)
        self._unopened, self._unopened_bytes = raws, size_bytes
        self._is_last, self._children = is_last, response.child_shards if is_last else ()
        self._iterator = response.next_iterator or ""
        self._enter(ReaderState.READY)
        self._open_slice()  # the budget admitted the request, and this slice with it

    def handle_failure(self, failure: Failure, now: Instant) -> None:
        """Handle the failure of the request in flight."""
        if self.state is ReaderState.STOPPED:
            return
        self._is_failing = True
        asking = self.state is ReaderState.ASKING
        assert asking or self.state is ReaderState.READING
        operation = "GetShardIterator" if asking else "GetRecords"
        if failure.kind is FailureKind.EXPIRED_ITERATOR:
            self._enter(ReaderState.STARTING)
        elif failure.retryable:
            self._pace.handle_failure(failure, now)
            self._enter(ReaderState.STARTING if asking else ReaderState.READY)
            self._events.append(ReadFailed(self.shard_id, operation, failure, self._pace.next_at))
        elif failure.kind is FailureKind.INVALID and self._recover_from_refusal(failure, asking=asking, now=now):
            self._enter(ReaderState.STARTING)
        else:
            self.failure = failure
            self._enter(ReaderState.GONE if failure.kind is FailureKind.NOT_FOUND else ReaderState.FAILED)
            self._events.append(ReadFailed(self.shard_id, operation, failure, NEVER))

    def _enter(self, state: ReaderState) -> None:
        assert state in TRANSITIONS[self.state], f"a reader does not go from {self.state} to {state}"
        self.state = state

    def _recover_from_refusal(self, failure: Failure, *, asking: bool, now: Instant) -> bool:
        """Prepare another attempt after the service refused an iterator or a position. Return False to give up.

        A refused iterator is replaced by a new one, and a refused position by TRIM_HORIZON.
        """
        if asking and self.position == TRIM_HORIZON:
            return False
        if asking:
            self._events.append(PositionLost(self.shard_id, self.position, failure))
            self.position, self._expected = TRIM_HORIZON, None
            self._deaggregator.stop_skipping()  # numbers that the service does not know cannot show what is done
            return True
        self._bad_iterators += 1
        self._pace.handle_failure(failure, now)
        return self._bad_iterators <= _BAD_ITERATORS_MAX

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

        The lag is the age of the page's last record, or of the record after it, or 0 at the tip of the shard, where the
        records may have any age. So there are two lower bounds: the lag plus the time span of the page, and the age of
        the last record of the previous page, less the time between that record and this page's first one.
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
