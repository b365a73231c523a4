"""Who is told of what a producer does?

Events go to the log, in words and rate-limited, and to the sink that the user gave.

Invariants:

- RP1: a sink or a hook that raises harms nothing: it is logged, at most once a minute.
- RP2: failures are logged once per distinct (code, message) and period, with a count: a storm makes a few lines.
- RP3: nothing secret: no data, no keys.
"""

import logging
from asyncio import CancelledError
from collections.abc import Callable
from typing import Final, final

from shardline.core.events import (
    AggregationStopped,
    DistributionChanged,
    Event,
    RecordsFailed,
    RecordsRetried,
    ShardMapFailed,
    ShardsChanged,
    StreamUnknown,
)
from shardline.ports import EventSink

_log: Final = logging.getLogger("shardline.producer")
_GIVEN_UP: Final = "%d records given up"
_SENT_AGAIN: Final = "%d records sent again"
_NO_MAP: Final = "the shards could not be listed (%d times), until they are nothing new is aggregated"
_PERIOD: Final = 10.0  # seconds in which the same failure is logged once
_COMPLAINT_PERIOD: Final = 60.0
_DISTINCT_MAX: Final = 100  # different failures remembered in a period


@final
class Reporter:
    """Logs what a producer emits, and hands it on."""

    def __init__(self, stream: str, sink: EventSink | None, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._sink = sink
        self._clock = clock
        self._counts: dict[tuple[str, str, str], int] = {}
        self._logged_at: dict[tuple[str, str, str], float] = {}
        self._complained_at: dict[str, float] = {}

    def report(self, events: list[Event]) -> None:
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
        """Something of the user's failed (RP1)."""
        now = self._clock()
        if now - self._complained_at.get(what, -_COMPLAINT_PERIOD) >= _COMPLAINT_PERIOD:
            self._complained_at[what] = now
            _log.error("%s: %s failed; delivery goes on", self._stream, what, exc_info=error)

    def log_failures(self) -> None:
        """The failures that were counted and not logged yet."""
        self._log_counts(list(self._counts), self._clock())

    def _log_counts(self, keys: list[tuple[str, str, str]], now: float) -> None:
        for key in keys:
            what, code, message = key
            level = logging.ERROR if what == _GIVEN_UP else logging.WARNING
            _log.log(level, f"%s: {what}: %s: %s", self._stream, self._counts.pop(key), code, message)
            self._logged_at[key] = now

    def _log_event(self, event: Event) -> None:
        match event:
            case RecordsFailed():
                self._count(_GIVEN_UP, event.code, event.message, event.records)
            case RecordsRetried():
                self._count(_SENT_AGAIN, event.code, event.message, event.records)
            case ShardsChanged():
                changes = f"{len(event.opened)} new, {len(event.vanished)} gone"
                _log.info("%s: %d open shards (%s)", self._stream, event.open_shards, changes)
            case ShardMapFailed(failure):
                self._count(_NO_MAP, failure.code, failure.message, 1)
            case StreamUnknown(failure):
                _log.warning(
                    "%s: DescribeStreamSummary failed (%s: %s): the record limit is taken to be 1 MiB; set "
                    "record_max_bytes if it is another",
                    self._stream,
                    failure.code,
                    failure.message,
                )
            case DistributionChanged():
                words = "by itself (AUTO): nothing is aggregated" if event.auto else "by partition key"
                _log.warning("%s: the stream distributes records %s", self._stream, words)
            case AggregationStopped(failure):
                _log.warning(
                    "%s: entries land in other shards than their keys say, and DescribeStreamSummary failed (%s: %s): "
                    "nothing is aggregated any more",
                    self._stream,
                    failure.code,
                    failure.message,
                )
            case _:
                return

    def _count(self, what: str, code: str, message: str, records: int) -> None:
        key = (what, code, message)
        if key not in self._counts and key not in self._logged_at and len(self._logged_at) >= _DISTINCT_MAX:
            now = self._clock()
            self._logged_at = {old: at for old, at in self._logged_at.items() if now - at < _PERIOD}
            if len(self._logged_at) >= _DISTINCT_MAX:
                key = (what, "and others", f"more than {_DISTINCT_MAX} different failures")
        self._counts[key] = self._counts.get(key, 0) + records
