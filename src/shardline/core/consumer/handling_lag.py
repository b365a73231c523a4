"""How does a worker do with the records that it has read?

A record is read, waits (*prefetched*), is handed to the user's code (*in hand*), and is done. The *handling lag* of a
shard is the age of its oldest record that is not done, wherever that record is; the *reading lag* is how far behind
the end of the shard the last page was. A slow handler shows in the first alone.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import DeadLetterFailed, HandlerRetried, HandlingEvent, RecordsDeadLettered
from shardline.model.record import Record

_DATE_RESOLUTION: Final = 1.5  # seconds: an HTTP Date has whole seconds, and is as old as its answer


@final
class HandlingState(NamedTuple):
    """What the user's code has of one shard, and what of the same page waits for it."""

    oldest: Record | None = None
    """The first record of the page that is not done."""
    records: int = 0
    """How many records the user's code has."""
    waiting: int = 0
    """How many records of the page follow them."""
    since: Instant | None = None
    """Since when the user's code has had them without a break; ``None`` while they wait for a retry."""


def service_now(service_time: float, wall_time: float) -> float:
    """The service's time, in seconds since 1970, by which ages are measured.

    Args:
        service_time: by the Date of the last answer, which has whole seconds: up to a second too early.
        wall_time: by our own clock. It is used where it may be right.
    """
    return wall_time if 0.0 <= wall_time - service_time < _DATE_RESOLUTION else service_time


def handling_lag(
    arrivals: Iterable[float | None], unread_age: float | None, reading_lag: float | None, now: float
) -> float | None:
    """The age of the oldest record of a shard that is not done; ``None`` if it is not known.

    Args:
        arrivals: when the oldest record of each stage arrived that has records: those in hand, and those that wait.
            ``None`` for one whose arrival the service did not name.
        unread_age: the age of the oldest record that was not read; it counts if no stage has records.
        reading_lag: what to say if no arrival is known.
        now: the service's time.
    """
    found = list(arrivals)
    known = [arrived_at for arrived_at in found if arrived_at is not None]
    if known:
        return max(0.0, now - min(known))
    return reading_lag if found else unread_age


@final
class HandlingCounts:
    """What became of records that handlers failed on, since the consumer was started."""

    def __init__(self) -> None:
        self.retries: int = 0
        """Calls of a handler that failed, and after which the records were handed to it again."""
        self.dead_letters: int = 0
        """Records that were written as dead letters."""
        self.failed_records: int = 0
        """Records that ended a ``run`` with ``HandlerFailed``."""

    def handle_events(self, events: Iterable[HandlingEvent]) -> None:
        """Count what the failure policy tells."""
        for event in events:
            if isinstance(event, HandlerRetried):
                self.retries += 1
            elif isinstance(event, RecordsDeadLettered):
                self.dead_letters += event.records
            elif not isinstance(event, DeadLetterFailed) or event.retry_at == NEVER:
                self.failed_records += event.records
