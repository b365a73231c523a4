"""Counts the work of a consumer since its start, and measures how fast the consumer works.

Invariants:

- Everything is counted per page, batch, commit or event, never per record.
- Totals never decrease. Rates are moving averages (``core.rates``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import (
    Committed,
    Event,
    LeaseGained,
    LeaseHandedOver,
    LeaseLost,
    LeaseReleased,
    ReadFailed,
    RecordsHandedOut,
    RecordsHandled,
    StoreFailed,
)
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.handling_lag import HandlingCounts
from shardline.core.rates import MEASURE_INTERVAL, Rate

_COUNT_INTERVAL: Final = 1.0  # after this many seconds, the handled part of a page is counted before the rest


@final
@dataclass(frozen=True, slots=True)
class ConsumerTotals:
    """The work of a consumer since its start."""

    pages: int = 0
    """The number of pages that were read, including empty pages."""
    records_read: int = 0
    bytes_read: int = 0
    """The size in bytes of the data that was read, as it is stored in the stream."""
    records_handed_out: int = 0
    """The number of records that were handed to your code. A record that was given back and handed out again counts
    twice.
    """
    records_handled: int = 0
    """The number of records that your code has finished."""
    handling_time: float = 0.0
    """How long your code had the finished records, in seconds. The times of all shards are added up."""
    handler_retries: int = 0
    """The number of failed calls of a handler that were repeated."""
    dead_letters: int = 0
    failed_records: int = 0
    """The number of records because of which a ``run`` ended with ``HandlerFailed``."""
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
        """Whether the readers also emit an event for each page. Written by ``WorkCounts``."""


@final
class WorkCounts:
    """Counts all work other than reading, and emits events about this work if a sink wants them (``observe``)."""

    def __init__(self, reads: ReadCounts, handling: HandlingCounts) -> None:
        self._reads: ReadCounts = reads
        self._handling: HandlingCounts = handling
        self._events: list[RecordsHandedOut | RecordsHandled] = []
        self.measure_at: Instant = NEVER
        """When the lag is to be measured (``take_measure_due``)."""
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
        """Also emit the events that only sinks need: those about each page and about the lag (``take_measure_due``)."""
        self._reads.is_observed = True
        self.measure_at = now + MEASURE_INTERVAL

    def note_handed_out(self, shard_id: str, cursor: Cursor, now: Instant) -> None:
        """Count the records of a cursor that is handed to user code."""
        cursor.counted_at = now
        self._handed_out += len(cursor.records)
        if self._reads.is_observed:
            self._events.append(RecordsHandedOut(shard_id, len(cursor.records)))

    def count_handled(self, shard_id: str, cursor: Cursor, done: int, now: Instant) -> None:
        """Count the first ``done`` records of the cursor as handled, unless they were counted before."""
        count = done - cursor.counted
        if count > 0:
            duration = max(0.0, now - cursor.counted_at)
            self._handled += count
            self._handling_time += duration
            if self._reads.is_observed:
                self._events.append(RecordsHandled(shard_id, count, duration))
            cursor.counted, cursor.counted_at = done, now

    def count_progress(self, shard_id: str, cursor: Cursor, now: Instant) -> None:
        """Count the handled part of a page that takes long."""
        if now >= cursor.counted_at + _COUNT_INTERVAL:
            self.count_handled(shard_id, cursor, cursor.done, now)

    def take_events(self) -> list[RecordsHandedOut | RecordsHandled]:
        events, self._events = self._events, []
        return events

    def take_measure_due(self, now: Instant) -> bool:
        """Whether the lag is to be measured now (``measure_lag``)."""
        is_due = now >= self.measure_at
        if is_due:
            self.measure_at = now + MEASURE_INTERVAL
        return is_due

    def handle_events(self, events: Iterable[Event]) -> None:
        """Count the events that leave the machines of the consumer."""
        for event in events:
            match event:
                case Committed():
                    self._commits += 1
                    self._commit_time += event.duration
                case ReadFailed():
                    code = event.failure.code
                    self._read_failures[code] = self._read_failures.get(code, 0) + 1
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
        """Update the rates, which begin with the first call."""
        self.rates(now)

    def totals(self) -> ConsumerTotals:
        reads, handling = self._reads, self._handling
        return ConsumerTotals(
            pages=reads.pages,
            records_read=reads.records,
            bytes_read=reads.size_bytes,
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
