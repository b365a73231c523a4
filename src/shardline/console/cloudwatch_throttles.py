"""Reads from CloudWatch how many writes and reads of a stream were throttled.

CloudWatch counts the calls of all programs; a reader of the stream cannot see those of other programs. One
GetMetricData call per minute returns the throttled writes and reads of the stream, and of its most throttled shards if
enhanced monitoring is on.

Invariants:

- Nothing is called unless ``--cloudwatch`` is given, and then at most once per ``INTERVAL`` while a page is open.
- The call counts against the budget of the console, like all others.
- A failure is a problem that the page shows. It neither stops the page nor hides the figures of earlier minutes.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, final

import anyio.to_thread
import msgspec

from shardline.adapters.aws.aws_service import AwsSettings, find_service, open_cloudwatch
from shardline.core.error_codes import Failure
from shardline.errors import UsageError

if TYPE_CHECKING:
    from shardline.adapters.aws.signed_http import SignedHttp

INTERVAL: Final = 60.0
HISTORY: Final = 1800
_PERIOD: Final = 60
_SHARDS_SHOWN: Final = 5
_CONTENT_TYPE: Final = "application/x-amz-json-1.0"
_METRICS: Final = {"writes": "WriteProvisionedThroughputExceeded", "reads": "ReadProvisionedThroughputExceeded"}


class _Result(msgspec.Struct, frozen=True, rename="pascal"):
    id: str
    label: str = ""
    timestamps: list[float] = msgspec.field(default_factory=list[float])
    values: list[float] = msgspec.field(default_factory=list[float])


class _Answer(msgspec.Struct, frozen=True, rename="pascal"):
    metric_data_results: list[_Result] = msgspec.field(default_factory=list[_Result])


@final
class CloudWatchThrottles:
    """The throttled calls of each stream, counted by the minute."""

    def __init__(self, settings: AwsSettings, wall_time: Callable[[], float]) -> None:
        self._settings = settings
        self._wall_time = wall_time
        self._http: SignedHttp | None = None
        self._asked_at: dict[str, float] = {}
        self._minutes: dict[str, list[list[int]]] = {}
        self._shards: dict[str, list[tuple[str, int]]] = {}
        self.problem: str | None = None
        """Why the last call to CloudWatch failed, or ``None`` if it succeeded."""

    async def refresh(self, stream: str, before_call: Callable[[str], Awaitable[None]]) -> None:
        """Ask CloudWatch about a stream, unless CloudWatch was asked about this stream less than a minute ago."""
        now = self._wall_time()
        if now < self._asked_at.get(stream, 0.0) + INTERVAL:
            return
        self._asked_at[stream] = now
        try:
            if self._http is None:
                service = await anyio.to_thread.run_sync(find_service, "cloudwatch", self._settings)
                self._http = open_cloudwatch(service, self._settings.http, "shardline", self._wall_time)
        except UsageError as error:
            self.problem = str(error)
            return
        await before_call("GetMetricData")
        body = msgspec.json.encode(_request(stream, now))
        answer = await self._http.post("GetMetricData", _CONTENT_TYPE, body, {}, None)
        if isinstance(answer, Failure):
            self.problem = f"CloudWatch did not give its figures: {answer.code}: {answer.message}"
            return
        try:
            results = msgspec.json.decode(answer.body, type=_Answer).metric_data_results
        except msgspec.DecodeError as error:
            self.problem = f"CloudWatch sent an answer that cannot be read: {error}"
            return
        self.problem = None
        self._keep(stream, results)

    def to_json(self, stream: str) -> dict[str, Any]:
        """Return rows (second, throttled writes, throttled reads), and the shards that were throttled most."""
        return {
            "seconds": self._minutes.get(stream, []),
            "step": _PERIOD,
            "shards": self._shards.get(stream, []),
            "problem": self.problem,
        }

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    def _keep(self, stream: str, results: list[_Result]) -> None:
        minutes: dict[int, list[int]] = {}
        shards: dict[str, int] = {}
        for result in results:
            if result.id not in _METRICS:
                shards[result.label] = round(sum(result.values))
                continue
            for at, value in zip(result.timestamps, result.values, strict=False):
                row = minutes.setdefault(int(at), [0, 0])
                row[list(_METRICS).index(result.id)] += round(value)
        self._minutes[stream] = [[at, *row] for at, row in sorted(minutes.items())]
        self._shards[stream] = sorted(
            ((name, count) for name, count in shards.items() if count), key=lambda each: -each[1]
        )


def _request(stream: str, now: float) -> dict[str, Any]:
    """Return a request for the last half hour. The search finds shards only if enhanced monitoring is on."""
    name = stream.rpartition("/")[2]  # also finds the name in an ARN
    queries: list[dict[str, Any]] = [
        {
            "Id": query,
            "MetricStat": {
                "Metric": {
                    "Namespace": "AWS/Kinesis",
                    "MetricName": metric,
                    "Dimensions": [{"Name": "StreamName", "Value": name}],
                },
                "Period": _PERIOD,
                "Stat": "Sum",
            },
        }
        for query, metric in _METRICS.items()
    ]
    search = f'{{AWS/Kinesis,ShardId,StreamName}} MetricName="{_METRICS["writes"]}" StreamName="{name}"'
    by_shard = f"SORT(SEARCH('{search}', 'Sum', {_PERIOD}), SUM, DESC, {_SHARDS_SHOWN})"
    queries.append({"Id": "shards", "Expression": by_shard, "Label": "${PROP('Dim.ShardId')}"})
    end = int(now) // _PERIOD * _PERIOD
    return {"StartTime": end - HISTORY, "EndTime": end, "MetricDataQueries": queries}
