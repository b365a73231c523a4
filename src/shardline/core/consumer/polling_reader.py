"""Reads one shard by polling.

The reader calls GetShardIterator and then GetRecords, until the shard ends. The shell sends the requests that
``poll_request`` returns, answers each request with exactly one ``handle_*`` call, and passes on the pages that
``take_pages`` returns.

Invariants:

- There is one request at a time, at the pace that the shard allows (``ReadPace``), and only if there is room for a page
  (``PrefetchBudget``). An idle or slow shard delays no other shard.
- Pages are returned in the order of the shard, without gaps: after any failure, reading continues right after the last
  record that was read.
- The next page is requested when the current page is fully opened.
- A stopped reader sends no requests. It drops the response to a request in flight.
"""

from typing import ClassVar, Final, Literal, final

from shardline.codec.shapes import GetRecordsResponse, GetShardIteratorResponse
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import ReadFailed
from shardline.core.consumer.consumer_totals import ReadCounts
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.page_reader import PageReader
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.consumer.read_pace import ReadPace
from shardline.core.consumer.reader import ReaderState
from shardline.core.consumer.trim_watch import TrimWatch
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import GetRecords, GetShardIterator
from shardline.model.position import TRIM_HORIZON, Position, after_sequence_number
from shardline.model.record import LeaseInForce
from shardline.model.stream import StreamRef

_BAD_ITERATORS_MAX: Final = 3  # how many new iterators in a row the service may refuse before the reader fails


@final
class PollingReader(PageReader):
    """Reads one shard with GetRecords calls."""

    read_by: ClassVar[Literal["polling", "fan-out"]] = "polling"

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
        counts: ReadCounts | None = None,
    ) -> None:
        super().__init__(
            stream, shard_id, start, budget=budget, deaggregator=deaggregator, trims=trims, lease=lease, counts=counts
        )
        self._pace: ReadPace = pace
        self._page_max_records: int | None = page_max_records
        self._iterator: str = ""
        self._bad_iterators: int = 0

    # ---- outputs

    def poll_request(self, now: Instant) -> GetShardIterator | GetRecords | None:
        """Return the request to send now, or ``None``."""
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

    # ---- time

    def next_deadline(self) -> Instant:
        """Return the time of the next poll. If the budget has no room, the reader is polled again when the budget
        admits it.
        """
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
        """Handle a page, which may be empty or be the last page. ``take_pages`` returns its records."""
        if self.state is ReaderState.STOPPED:
            return
        assert self.state is ReaderState.READING
        raws = response.records
        millis = response.millis_behind_latest
        self.lag = None if millis is None else millis / 1000
        self._is_failing = False
        self._bad_iterators = 0
        self._begin_page(raws, self._asked_at, now)
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
        self._pace.handle_page(self._unopened_bytes, empty=not raws, behind=behind, now=now)
        self._is_last, self._children = is_last, response.child_shards if is_last else ()
        self._iterator = response.next_iterator or ""
        self._enter(ReaderState.READY)
        self._open_slice()  # when the budget admitted the request, it also admitted this slice

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

    def _recover_from_refusal(self, failure: Failure, *, asking: bool, now: Instant) -> bool:
        """Prepare another attempt after the service refused an iterator or a position. Return False to give up.

        A refused iterator is replaced by a new one, and a refused position by TRIM_HORIZON.
        """
        if asking and self.position == TRIM_HORIZON:
            return False
        if asking:
            self._lose_position(failure)
            return True
        self._bad_iterators += 1
        self._pace.handle_failure(failure, now)
        return self._bad_iterators <= _BAD_ITERATORS_MAX
