"""Counts the work of a consumer since its start, and measures how fast the consumer works.

Invariants:

- Everything is counted per page, batch, commit or event, never per record.
- Totals never decrease. Rates are moving averages (``core.rates``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import (
    Committed,
    DedupWindowOverflowed,
    Event,
    LeaseGained,
    LeaseHandedOver,
    LeaseLost,
    LeaseReleased,
    ReadFailed,
    RecordsFiltered,
    RecordsHandedOut,
    RecordsHandled,
    RepeatsDropped,
    StoreFailed,
)
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.handling_lag import HandlingCounts
from shardline.core.consumer.reader import ShardKey
from shardline.core.rates import MEASURE_INTERVAL, Rate

WorkEvent: TypeAlias = RecordsFiltered | RepeatsDropped | RecordsHandedOut | RecordsHandled

_COUNT_INTERVAL: Final = 1.0  # after this many seconds, the handled part of a page is counted before the rest


@final
@dataclass(frozen=True, slots=True)
class ConsumerTotals:
    """The numbers of pages, records, bytes, commits, leases and failures since the start of a consumer."""

    pages: int = 0
    """The number of pages that were read, including empty pages."""
    records_read: int = 0
    bytes_read: int = 0
    """The size in bytes of the data that was read, as it is stored in the stream."""
    records_filtered: int = 0
    """The number of records that did not pass the filter, and were not handed out."""
    records_repeated: int = 0
    """The number of records that were copies of earlier ones, and were not handed out (``dedup``)."""
    stamps_forgotten: int = 0
    """How many producer ids, or ranges of their numbers, ``dedup`` forgot because there was no room. Copies of their
    records are handed out.
    """
    records_handed_out: int = 0
    """The number of records that were handed to your code. A record that was given back and handed out again counts
    twice.
    """
    records_handled: int = 0
    """The number of records that your code has finished."""
    handling_time: float = 0.0
    """How long your code worked on the finished records, in seconds, summed over all shards."""
    handler_retries: int = 0
    """The number of handler calls that failed and were repeated."""
    dead_letters: int = 0
    failed_records: int = 0
    """The number of records whose failure ended a ``run`` with ``HandlerFailed``."""
    commits: int = 0
    commit_time: float = 0.0
    """How long the commits took, in seconds."""
    leases_gained: int = 0
    leases_lost: int = 0
    leases_released: int = 0
    """The number of leases that were released in an orderly way, including leases of finished shards and leases that
    were handed over.
    """
    hand_overs: int = 0
    """The number of leases that were handed over to another worker at its request."""
    read_failures: dict[str, int] = field(default_factory=dict[str, int])
    """The number of failed calls to shards by error code. ``ProvisionedThroughputExceededException`` means throttling.
    """
    store_failures: int = 0
    """The number of failed calls to the lease store."""


@final
@dataclass(frozen=True, slots=True)
class ConsumerRates:
    """How fast a consumer works, per second. The values are moving averages over about the last 10 seconds."""

    records_read: float = 0.0
    bytes_read: float = 0.0
    records_handled: float = 0.0


@final
class ReadCounts:
    """Counts the pages that all readers of a consumer have read. The readers update the counts."""

    def __init__(self) -> None:
        self.pages: int = 0
        self.records: int = 0
        self.size_bytes: int = 0
        self.is_observed: bool = False
        """Whether the readers also emit an event for each page. ``WorkCounts`` writes this field."""
        self.wall_offset: float = 0.0
        """The offset that turns an instant into seconds since 1970. ``WorkCounts`` writes this field."""


@final
class WorkCounts:
    """Counts all work other than reading, and emits events about this work if a sink wants them (``observe``)."""

    def __init__(self, reads: ReadCounts, handling: HandlingCounts) -> None:
        self._reads: ReadCounts = reads
        self._handling: HandlingCounts = handling
        self._events: list[tuple[str, WorkEvent]] = []  # each with its stream
        self._summed_out: dict[ShardKey, int] = {}  # by shard: the records for which no event has been emitted yet
        self._summed_handled: dict[ShardKey, tuple[int, float]] = {}  # likewise, with the sum of their durations
        self.measure_at: Instant = NEVER
        """When to measure the lag next (``take_measure_due``)."""
        self._filtered: int = 0
        self._repeated: int = 0
        self._forgotten: int = 0
        self._handed_out: int = 0
        self._handled: int = 0
        self._handling_time: float = 0.0
        self._commits: int = 0
        self._commit_time: float = 0.0
        self._gained: int = 0
        self._lost: int = 0
        self._released: int = 0
        self._hand_overs: int = 0
        self._read_failures: dict[str, int] = {}
        self._store_failures: int = 0
        self._rates: tuple[Rate, Rate, Rate] | None = None  # records read, bytes read, records handled

    def observe(self, now: Instant) -> None:
        """From now on, also emit the events that only sinks need: one for each page, and the lag at regular intervals
        (``take_measure_due``).
        """
        self._reads.is_observed = True
        self.measure_at = now + MEASURE_INTERVAL

    def set_wall_offset(self, offset: float) -> None:
        """Set the offset that converts an instant to seconds since 1970."""
        self._reads.wall_offset = offset

    def count_filtered(self, key: ShardKey, count: int) -> None:
        """Count records of a page that did not pass the filter."""
        self._filtered += count
        if self._reads.is_observed:
            self._events.append((key[0], RecordsFiltered(key[1], count)))

    def count_repeated(self, key: ShardKey, count: int) -> None:
        """Count records of a page that are copies of earlier ones."""
        self._repeated += count
        if self._reads.is_observed:
            self._events.append((key[0], RepeatsDropped(key[1], count)))

    def note_handed_out(self, key: ShardKey, cursor: Cursor, now: Instant, *, is_summed: bool = False) -> None:
        """Count the records of a cursor that is handed to user code.

        ``is_summed`` means that the cursor has a single record. The next ``handle_time`` then emits one event for many
        such records.
        """
        cursor.counted_at = now
        self._handed_out += len(cursor.records)
        if not self._reads.is_observed:
            return
        if is_summed:
            self._summed_out[key] = self._summed_out.get(key, 0) + len(cursor.records)
        else:
            self._events.append((key[0], RecordsHandedOut(key[1], len(cursor.records))))

    def count_handled(self, key: ShardKey, cursor: Cursor, done: int, now: Instant, *, is_summed: bool = False) -> None:
        """Count the first ``done`` records of the cursor as handled, unless they have already been counted."""
        count = done - cursor.counted
        if count > 0:
            duration = max(0.0, now - cursor.counted_at)
            self._handled += count
            self._handling_time += duration
            if is_summed and self._reads.is_observed:
                before = self._summed_handled.get(key, (0, 0.0))
                self._summed_handled[key] = (before[0] + count, before[1] + duration)
            elif self._reads.is_observed:
                self._events.append((key[0], RecordsHandled(key[1], count, duration)))
            cursor.counted, cursor.counted_at = done, now

    def count_progress(self, key: ShardKey, cursor: Cursor, now: Instant) -> None:
        """Count the records of a page that are done so far, if the rest of the page takes long."""
        if now >= cursor.counted_at + _COUNT_INTERVAL:
            self.count_handled(key, cursor, cursor.done, now)

    def take_events(self) -> list[tuple[str, WorkEvent]]:
        """Return the events, each with the name of its stream."""
        events, self._events = self._events, []
        return events

    def take_measure_due(self, now: Instant) -> bool:
        """Return whether it is time to measure the lag (``measure_lag``)."""
        is_due = now >= self.measure_at
        if is_due:
            self.measure_at = now + MEASURE_INTERVAL
        return is_due

    def handle_events(self, events: Iterable[Event]) -> None:
        """Count the events that the consumer's machines emit."""
        for event in events:
            match event:
                case Committed():
                    self._commits += 1
                    self._commit_time += event.duration
                case ReadFailed():
                    code = event.failure.code
                    self._read_failures[code] = self._read_failures.get(code, 0) + 1
                case DedupWindowOverflowed():
                    self._forgotten += event.forgotten
                case LeaseGained():
                    self._gained += 1
                case LeaseLost():
                    self._lost += 1
                case LeaseReleased():
                    self._released += 1
                case LeaseHandedOver():
                    self._hand_overs += 1
                case StoreFailed():
                    self._store_failures += 1
                case _:
                    continue

    def handle_time(self, now: Instant) -> None:
        """Update the rates, which begin with the first call, and emit the events about single records."""
        self.rates(now)
        self._events += [(key[0], RecordsHandedOut(key[1], count)) for key, count in self._summed_out.items()]
        self._events += [(key[0], RecordsHandled(key[1], *handled)) for key, handled in self._summed_handled.items()]
        self._summed_out.clear()
        self._summed_handled.clear()

    def totals(self) -> ConsumerTotals:
        reads, handling = self._reads, self._handling
        return ConsumerTotals(
            pages=reads.pages,
            records_read=reads.records,
            bytes_read=reads.size_bytes,
            records_filtered=self._filtered,
            records_repeated=self._repeated,
            stamps_forgotten=self._forgotten,
            records_handed_out=self._handed_out,
            records_handled=self._handled,
            handling_time=self._handling_time,
            handler_retries=handling.retries,
            dead_letters=handling.dead_letters,
            failed_records=handling.failed_records,
            commits=self._commits,
            commit_time=self._commit_time,
            leases_gained=self._gained,
            leases_lost=self._lost,
            leases_released=self._released,
            hand_overs=self._hand_overs,
            read_failures=dict(self._read_failures),
            store_failures=self._store_failures,
        )

    def rates(self, now: Instant) -> ConsumerRates:
        if self._rates is None:
            self._rates = Rate(now), Rate(now), Rate(now)
        totals = (self._reads.records, self._reads.size_bytes, self._handled)
        return ConsumerRates(*(rate.per_second(total, now) for rate, total in zip(self._rates, totals, strict=True)))
