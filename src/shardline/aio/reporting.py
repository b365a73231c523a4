"""Who is told of what a producer does?

Events go to the log, in words and rate-limited, and to the sink that the user gave.

Invariants:

- RP1: a sink or a hook that raises harms nothing (``StormLog``).
- RP2: a storm of failures makes a few lines (``StormLog``).
- RP3: nothing secret: no data, no keys.
"""

import logging
from collections.abc import Callable
from typing import Final, final

from shardline.aio.storm_log import StormLog
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


@final
class Reporter:
    """Logs what a producer emits, and hands it on."""

    def __init__(self, stream: str, sink: EventSink | None, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._sink = sink
        self._storms = StormLog(_log, stream, "delivery goes on", clock)

    def report(self, events: list[Event]) -> None:
        for event in events:
            self._log_event(event)
            self._storms.hand_on(self._sink, event)
        self._storms.log_due()

    def complain(self, what: str, error: BaseException) -> None:
        """Something of the user's failed (RP1)."""
        self._storms.complain(what, error)

    def log_failures(self) -> None:
        """The failures that were counted and not logged yet."""
        self._storms.log_rest()

    def _log_event(self, event: Event) -> None:
        match event:
            case RecordsFailed():
                self._storms.count(_GIVEN_UP, event.code, event.message, event.records, level=logging.ERROR)
            case RecordsRetried():
                self._storms.count(_SENT_AGAIN, event.code, event.message, event.records)
            case ShardsChanged():
                changes = f"{len(event.opened)} new, {len(event.vanished)} gone"
                _log.info("%s: %d open shards (%s)", self._stream, event.open_shards, changes)
            case ShardMapFailed(failure):
                self._storms.count(_NO_MAP, failure.code, failure.message)
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
