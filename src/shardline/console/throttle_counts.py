"""Counts the throttled calls of a stream, from the embedded server's log, CloudWatch or the producers' metrics.

Kinesis does not tell a reader which calls of other programs it refused. Three sources know: the embedded server, which
refused the calls; CloudWatch, which counts them by the minute; and the producers, which had to repeat them.

Invariants:

- The counts name their source and what that source includes. Without a source, the counts are ``None``: a missing
  figure is better than a wrong 0.
- Memory is bounded to the last ``HISTORY`` seconds.
"""

from typing import TYPE_CHECKING, Any, Final, final

from shardline.console.cloudwatch_throttles import CloudWatchThrottles
from shardline.console.fleet_metrics import FleetMetrics

if TYPE_CHECKING:
    from shardline.testing.local_kinesis import LocalKinesis

HISTORY: Final = 120
_THROTTLED: Final = "ProvisionedThroughputExceededException"
_EMBEDDED: Final[dict[str, Any]] = {
    "source": "the embedded server",
    "includes": "every record and every GetRecords call that it refused, of all programs, by the second",
}
_CLOUDWATCH: Final[dict[str, Any]] = {
    "source": "CloudWatch",
    "includes": "the records and GetRecords calls of all programs, by the minute and some minutes late; by shard only"
    " if enhanced monitoring is on",
}
_PRODUCERS: Final[dict[str, Any]] = {
    "source": "the producers' metrics",
    "includes": "only records that the producers at --metrics had to send again: no other producers, and no reads",
}


@final
class ThrottleCounts:
    """The throttled calls of one stream."""

    def __init__(
        self,
        stream: str,
        metrics: FleetMetrics,
        kinesis: "LocalKinesis | None",
        cloudwatch: CloudWatchThrottles | None = None,
    ) -> None:
        self._stream = stream
        self._metrics = metrics
        self._kinesis = kinesis
        self._cloudwatch = cloudwatch
        self._total: float | None = None
        self._seconds: dict[int, list[int]] = {}

    def to_json(self, now: float) -> dict[str, Any] | None:
        """Return rows (second, throttled writes, throttled reads), or ``None`` if there is no source."""
        if self._kinesis is not None:
            return _EMBEDDED | {"seconds": self._of_log(now)}
        if self._cloudwatch is not None:
            return _CLOUDWATCH | self._cloudwatch.to_json(self._stream)
        total = self._metrics.throttled_records(self._stream)
        if total is None:
            return None
        if self._total is not None and total > self._total:
            self._seconds.setdefault(int(now), [0, 0])[0] += round(total - self._total)
        self._total = total
        self._seconds = {second: row for second, row in self._seconds.items() if second > now - HISTORY}
        return _PRODUCERS | {"seconds": [[at, *row] for at, row in self._seconds.items()]}

    def _of_log(self, now: float) -> list[list[int]]:
        assert self._kinesis is not None
        seconds: dict[int, list[int]] = {}
        for request in self._kinesis.requests.find(stream=self._stream, since=now - HISTORY):
            is_refused = request.error is not None and request.error.endswith(_THROTTLED)
            writes = request.failed_entries
            if is_refused and request.operation in {"PutRecord", "PutRecords"}:
                writes = request.entries
            reads = int(is_refused and request.operation == "GetRecords")
            if writes or reads:
                row = seconds.setdefault(int(request.at), [0, 0])
                row[0] += writes
                row[1] += reads
        return [[at, *row] for at, row in sorted(seconds.items())]
