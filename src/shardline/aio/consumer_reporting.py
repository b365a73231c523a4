"""Who is told of what a consumer does?

Events go to the log, in words and rate-limited, and to the sink that the user gave.

Invariants:

- CR1: a sink that raises harms nothing: it is logged, at most once a minute.
- CR2: what can come in storms (failures of reads, of the store, of listings) is logged once per distinct (what, code,
  message) and period, with a count. What means that records may be missing is always logged, at ERROR.
- CR3: nothing secret: no data, no keys.
"""

import logging
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, final

from shardline.core.clock import NEVER
from shardline.core.consumer import events as told

ConsumerSink: TypeAlias = Callable[[told.Event], object]
"""Takes the events of a consumer: see ``shardline.core.consumer.events``."""

_log: Final = logging.getLogger("shardline.consumer")
_PERIOD: Final = 10.0
_COMPLAINT_PERIOD: Final = 60.0
_DISTINCT_MAX: Final = 100


@final
class ConsumerReporter:
    """Logs what a consumer emits, and hands it on."""

    def __init__(self, name: str, sink: ConsumerSink | None, clock: Callable[[], float]) -> None:
        self.name = name
        self._sink = sink
        self._clock = clock
        self._counts: dict[tuple[str, str, str], int] = {}
        self._logged_at: dict[tuple[str, str, str], float] = {}
        self._complained_at: dict[str, float] = {}

    def report(self, events: Sequence[told.Event]) -> None:
        for event in events:
            self._log_event(event)
            if self._sink is not None:
                try:
                    self._sink(event)
                except (Exception, CancelledError) as error:  # noqa: BLE001 - user code
                    self.complain("the sink", error)
        if self._counts:
            now = self._clock()
            self._log_counts([key for key in self._counts if now - self._logged_at.get(key, -_PERIOD) >= _PERIOD], now)

    def complain(self, what: str, error: BaseException) -> None:
        """Something of the user's failed, and nobody else is told (CR1)."""
        now = self._clock()
        if now - self._complained_at.get(what, -_COMPLAINT_PERIOD) >= _COMPLAINT_PERIOD:
            self._complained_at[what] = now
            _log.error("%s: %s failed; reading goes on", self.name, what, exc_info=error)

    def log_rest(self) -> None:
        """What was counted and not logged yet."""
        self._log_counts(list(self._counts), self._clock())

    def count(self, what: str, code: str, message: str) -> None:
        """CR2."""
        key = (what, code, message)
        if key not in self._counts and key not in self._logged_at and len(self._logged_at) >= _DISTINCT_MAX:
            key = (what, "and others", f"more than {_DISTINCT_MAX} different failures")
        self._counts[key] = self._counts.get(key, 0) + 1

    def _log_counts(self, keys: list[tuple[str, str, str]], now: float) -> None:
        for key in keys:
            what, code, message = key
            times = self._counts.pop(key)
            often = "" if times == 1 else f" ({times} times)"
            _log.warning("%s: %s%s: %s: %s", self.name, what, often, code, message)
            self._logged_at[key] = now
        if len(self._logged_at) > _DISTINCT_MAX:
            self._logged_at = {key: at for key, at in self._logged_at.items() if now - at < _PERIOD}

    def _log_event(self, event: told.Event) -> None:
        name = self.name
        match event:
            case told.LeaseGained():
                _log.info("%s: %s is ours, read from %s", name, event.shard_id, event.start)
            case told.LeaseReleased(shard_id, finished):
                _log.info("%s: %s %s", name, shard_id, "is finished" if finished else "was let go")
            case told.LeaseLost(shard_id, why):
                _log.warning("%s: %s was lost: %s", name, shard_id, why)
            case told.HandOverAsked(shard_id, by):
                _log.info("%s: %s asks for %s", name, by, shard_id)
            case told.HandOverOverdue(shard_id):
                _log.warning("%s: %s is handed over, and its handler was not done: it is cancelled", name, shard_id)
            case told.ReadFailed():
                final_word = " and is not tried again" if event.retry_at == NEVER else ""
                what = f"{event.operation} of {event.shard_id} failed{final_word}"
                self.count(what, event.failure.code, event.failure.message)
            case told.StoreFailed(failure):
                self.count("the lease store failed; reading goes on until the leases lapse", *failure[1:3])
            case told.StoreRecovered(failures):
                _log.warning("%s: the lease store answers again, after %d failures", name, failures)
            case told.ListingFailed(operation, failure):
                self.count(f"{operation} failed", failure.code, failure.message)
            case _:
                self._log_loud(event)

    def _log_loud(self, event: told.Event) -> None:
        name = self.name
        match event:
            case told.RecordsTrimmed(shard_id, why):
                _log.error("%s: retention removed records of %s before they were read: %s", name, shard_id, why)
            case told.ShardTrimmed(shard_id):
                _log.error("%s: %s went out of retention before it was finished: records are lost", name, shard_id)
            case told.PositionLost():
                _log.error(
                    "%s: the service refuses to read %s from %s (%s: %s): it is read from TRIM_HORIZON",
                    name,
                    event.shard_id,
                    event.position,
                    event.failure.code,
                    event.failure.message,
                )
            case told.StreamRecreated(why):
                _log.error("%s: the stream was deleted and made anew: %s", name, why)
            case told.ConsumerFailed(operation, failure):
                _log.error("%s: %s failed for good: %s: %s", name, operation, failure.code, failure.message)
            case told.Stalled(seconds):
                _log.warning(
                    "%s: the event loop was blocked, or the machine suspended, for %.1f s: leases are in danger",
                    name,
                    seconds,
                )
            case _:
                return
