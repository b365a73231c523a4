"""Defines how far the handling of records is behind the stream.

A record is read, waits (*prefetched*), is handed to user code (*in hand*), and is done. The *handling lag* of a shard
is the age of its oldest record that is not done, whether that record was read or not. The *reading lag* is how far the
last page was behind the end of the shard. A slow handler increases only the handling lag.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import DeadLetterFailed, HandlerRetried, HandlingEvent, RecordsDeadLettered
from shardline.model.record import Record

_DATE_RESOLUTION: Final = 1.5  # in seconds: an HTTP Date has whole seconds, and is as old as its response


@final
class HandlingState(NamedTuple):
    """The records of one page that user code has, and those that are waiting for user code."""

    oldest: Record | None = None
    """The first record of the page that is not done."""
    records: int = 0
    """How many records user code has."""
    waiting: int = 0
    """How many records of the page are waiting for user code."""
    since: Instant | None = None
    """When user code got its records, or ``None`` while these are waiting for a retry."""


def service_now(service_time: float, wall_time: float) -> float:
    """Return the service's current time, in seconds since 1970. The ages of records are measured against this time.

    Args:
        service_time: the estimate from the Date header of the last response. The header has whole seconds, so the
            estimate may be up to a second behind.
        wall_time: the time of our own clock, which is more precise. This time is used if it agrees with the estimate.
    """
    # The estimate is rounded down to a second. If our clock lies within that second, both clocks agree.
    return wall_time if 0.0 <= wall_time - service_time < _DATE_RESOLUTION else service_time


def handling_lag(
    arrivals: Iterable[float | None], unread_age: float | None, reading_lag: float | None, now: float
) -> float | None:
    """Return the age of the shard's oldest record that is not done, or ``None`` if the age is unknown.

    Args:
        arrivals: the arrival time of the oldest record in each stage (in hand, waiting) that has records. ``None``
            stands for a record whose arrival time the service did not send.
        unread_age: the age of the oldest unread record. This is the result if no stage has records.
        reading_lag: the result if records exist but no arrival time is known.
        now: the service's time.
    """
    found = list(arrivals)
    known = [arrived_at for arrived_at in found if arrived_at is not None]
    if known:
        return max(0.0, now - min(known))
    return reading_lag if found else unread_age


@final
class HandlingCounts:
    """Counts the outcomes of failed handlers since the consumer's start."""

    def __init__(self) -> None:
        self.retries: int = 0
        """The number of failed handler calls whose records were retried."""
        self.dead_letters: int = 0
        """The number of records that were dead-lettered."""
        self.failed_records: int = 0
        """The number of records whose failure ended a ``run`` with ``HandlerFailed``."""

    def handle_events(self, events: Iterable[HandlingEvent]) -> None:
        """Count events of the failure policy."""
        for event in events:
            if isinstance(event, HandlerRetried):
                self.retries += 1
            elif isinstance(event, RecordsDeadLettered):
                self.dead_letters += event.records
            elif not isinstance(event, DeadLetterFailed) or event.retry_at == NEVER:
                self.failed_records += event.records
