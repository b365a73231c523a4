"""Which CloudWatch metrics does an event change, and what are their names?

There are three sets of names: our own, those of the Kinesis Producer Library (KPL) and those of the Kinesis Client
Library (KCL). With the KPL's and the KCL's names, existing dashboards and alarms keep working.

Invariants:

- The KPL's names apply only to producers, and the KCL's names only to consumers.
- Metrics of these libraries that cannot be computed from events are not sent: docs/guides/sinks/cloudwatch.md lists
  them.
"""

from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, final

from shardline import events as ev
from shardline.adapters.sinks.metric_table import Meter, Metric

Names: TypeAlias = Literal["shardline", "kpl", "kcl"]
Unit: TypeAlias = Literal["Count", "Bytes", "Seconds", "Milliseconds", "None"]
Dimensions: TypeAlias = tuple[tuple[str, str], ...]

_EXPIRED: Final = "Expired"
_EXPIRED_ITERATOR: Final = "ExpiredIteratorException"


@final
class Sample(NamedTuple):
    """A measured value of a metric."""

    name: str
    unit: Unit
    value: float
    dimensions: Dimensions
    times: int = 1
    """How many times the value occurred."""
    is_sum: bool = False
    """Whether the values of a period are added up, so that only their sum is sent. If not, every value is sent."""


class Translation(Protocol):
    """Translates the events of one producer or consumer into samples."""

    @property
    def namespace(self) -> str: ...
    def samples(self, event: ev.Event) -> list[Sample]: ...


def translation(names: Names, source: ev.EventSource, *, by_shard: bool) -> Translation | None:
    """Return the translation for a producer or consumer, or ``None`` if this set of names does not apply to it."""
    if names == "shardline":
        return OwnNames(source, by_shard=by_shard)
    if names == "kpl":
        return KplNames(source, by_shard=by_shard) if source.kind == "producer" else None
    return KclNames(source) if source.kind == "consumer" else None


# ---- our own names


def own_name(metric: Metric) -> str:
    """Return the name of a metric: ``ProducerDeliveredRecords`` for ``producer_delivered_records``."""
    name = metric.name.removesuffix("_seconds") if metric.kind == "histogram" else metric.name
    return "".join(word.capitalize() for word in name.split("_"))


def own_unit(metric: Metric) -> Unit:
    """Return the unit of a metric, from the last part of its name."""
    last = metric.name.rpartition("_")[2]
    return "Seconds" if last == "seconds" else "Bytes" if last == "bytes" else "None" if last == "ratio" else "Count"


@final
class OwnNames:
    """Translates events into Shardline's own metrics. The names of these metrics are those of the Prometheus metrics,
    in CloudWatch's style.
    """

    namespace: str = "Shardline"

    def __init__(self, source: ev.EventSource, *, by_shard: bool) -> None:
        group = () if source.kind == "producer" else (("Group", source.group or "-"),)
        self._base: Dimensions = (("Stream", source.stream), *group)
        self._by_shard = by_shard
        self._meter = Meter(by_shard=by_shard)
        self._known: dict[tuple[str, tuple[str, ...], str], tuple[str, Unit, Dimensions, bool]] = {}

    def samples(self, event: ev.Event) -> list[Sample]:
        samples: list[Sample] = []
        for metric, value, labels, shard_id in self._meter.changes(event):
            key = metric.name, labels, shard_id if self._by_shard and metric.has_shards else ""
            name, unit, dimensions, is_sum = self._known.get(key) or self._describe(metric, *key)
            samples.append(Sample(name, unit, value, dimensions, 1, is_sum))
        return samples

    def _describe(
        self, metric: Metric, _: str, labels: tuple[str, ...], shard_id: str
    ) -> tuple[str, Unit, Dimensions, bool]:
        """Return the name, the unit and the dimensions of a metric, and whether its values are added up.

        The result is cached: labels have few values, and there are few shards.
        """
        names = ("".join(word.capitalize() for word in label.split("_")) for label in metric.labels)
        shard = (("ShardId", shard_id),) if shard_id else ()
        found = (
            own_name(metric),
            own_unit(metric),
            (*self._base, *zip(names, labels, strict=True), *shard),
            metric.kind == "counter",
        )
        self._known[metric.name, labels, shard_id] = found
        return found


# ---- the KPL's names


@final
class KplNames:
    """Translates a producer's events into metrics with the names of the Kinesis Producer Library (KPL). These metrics
    are counted by stream, and with ``by_shard`` also by shard.
    """

    namespace: str = "KinesisProducerLibrary"

    def __init__(self, source: ev.EventSource, *, by_shard: bool) -> None:
        self._stream: Dimensions = (("StreamName", source.stream),)
        self._by_shard = by_shard
        self._request_duration = 0.0  # the duration of the request whose records are reported next
        self._finished = 0  # records that were delivered or failed
        self._received = 0  # records that were counted as received
        self._retried = 0  # records that have been sent again since the last delivery

    def samples(self, event: ev.Event) -> list[Sample]:
        match event:
            case ev.RequestAnswered():
                return self._request(event)
            case ev.RecordsDelivered():
                return self._delivered(event)
            case ev.RecordsRetried():
                self._retried += event.records
                return self._errors(event.code, event.records, event.shard_id or "")
            case ev.RecordsFailed():
                self._finished += event.records
                expired = self._sum("UserRecordExpired", event.records) if event.code == _EXPIRED else []
                return [*expired, *self._errors(event.code, event.records, "")]
            case ev.ProducerMeasured():
                received = max(0, self._finished + event.outstanding - self._received)
                self._received += received
                return [
                    *self._sum("UserRecordsReceived", received),
                    *self._values("UserRecordsPending", "Count", event.outstanding),
                ]
            case _:
                return []

    def _request(self, event: ev.RequestAnswered) -> list[Sample]:
        self._request_duration = event.duration
        stored = 0 if event.code is not None else event.entries - event.refused_entries
        samples = self._values("RequestTime", "Milliseconds", event.duration * 1000)
        if stored <= 0:
            return samples
        return [
            *samples,
            *self._sum("KinesisRecordsPut", stored),
            *self._sum("KinesisRecordsDataPut", event.size_bytes * stored / event.entries, "Bytes"),
            *self._values("KinesisRecordsPerPutRecordsRequest", "Count", event.entries),
            *self._values("UserRecordsPerPutRecordsRequest", "Count", event.records),
            *self._values("UserRecordsPerKinesisRecord", "Count", event.records / event.entries, times=event.entries),
        ]

    def _delivered(self, event: ev.RecordsDelivered) -> list[Sample]:
        self._finished += event.records
        retries, self._retried = self._retried / event.records if event.records else 0.0, 0
        samples: list[Sample] = []
        levels: list[tuple[Dimensions, ev.RecordsDelivered | ev.ShardDelivery]] = [((), event), (self._stream, event)]
        if self._by_shard:
            levels += [((*self._stream, ("ShardId", shard.shard_id)), shard) for shard in event.shards]
        for level, delivered in levels:
            waited = max(0.0, delivered.latency - self._request_duration)
            samples += [
                Sample("UserRecordsPut", "Count", delivered.records, level, is_sum=True),
                Sample("UserRecordsDataPut", "Bytes", delivered.payload_bytes, level, is_sum=True),
                Sample("BufferingTime", "Milliseconds", waited * 1000, level),
                Sample("RetriesPerRecord", "Count", retries, level, times=delivered.records),
            ]
        return samples

    def _errors(self, code: str, records: int, shard_id: str) -> list[Sample]:
        all_errors = self._sum("AllErrors", records, shard_id=shard_id)
        by_code = (("ErrorCode", code),)
        return [*all_errors, *self._sum("ErrorsByCode", records, shard_id=shard_id, more=by_code)]

    def _levels(self, shard_id: str) -> list[Dimensions]:
        """Return the dimensions to count under: the KPL counts globally, by stream and, on request, by shard."""
        levels: list[Dimensions] = [(), self._stream]
        if self._by_shard and shard_id:
            levels.append((*self._stream, ("ShardId", shard_id)))
        return levels

    def _sum(
        self, name: str, value: float, unit: Unit = "Count", shard_id: str = "", more: Dimensions = ()
    ) -> list[Sample]:
        return [Sample(name, unit, value, (*level, *more), is_sum=True) for level in self._levels(shard_id)]

    def _values(self, name: str, unit: Unit, value: float, *, times: int = 1, shard_id: str = "") -> list[Sample]:
        return [Sample(name, unit, value, level, times) for level in self._levels(shard_id)]


# ---- the KCL's names


@final
class KclNames:
    """Translates a consumer's events into metrics with the names of the Kinesis Client Library (KCL). The namespace of
    these metrics is the name of the group. The KCL uses the name of the application.
    """

    def __init__(self, source: ev.EventSource) -> None:
        self._namespace = source.group or source.stream
        self._worker: Dimensions = (("Operation", "RenewAllLeases"), ("WorkerIdentifier", source.worker_id or "-"))
        self._leases: set[str] = set()

    @property
    def namespace(self) -> str:
        return self._namespace

    def samples(self, event: ev.Event) -> list[Sample]:
        match event:
            case ev.PageRead():
                return self._page(event)
            case ev.RecordsHandled(shard_id, records, duration):
                task = _task(shard_id)
                return [
                    Sample("RecordsProcessed", "Count", records, task, is_sum=True),
                    Sample("RecordProcessor.processRecords.Time", "Milliseconds", duration * 1000, task),
                    Sample("RecordProcessor.processRecords.Success", "Count", 1, task),
                ]
            case ev.HandlerRetried(shard_id) | ev.RecordsDeadLettered(shard_id) | ev.HandlingStopped(shard_id):
                return [Sample("RecordProcessor.processRecords.Success", "Count", 0, _task(shard_id))]
            case ev.ReadFailed(shard_id, operation, failure):
                samples = [Sample(f"KinesisDataFetcher.{_lower(operation)}.Success", "Count", 0, _task(shard_id))]
                if failure.code == _EXPIRED_ITERATOR:
                    samples.append(Sample("ExpiredIterator", "Count", 1, _task(shard_id), is_sum=True))
                return samples
            case ev.Committed(_, _, duration):
                return [Sample("UpdateLease.Time", "Milliseconds", duration * 1000, self._worker)]
            case ev.LagMeasured(shards):
                lags = [shard.reading_lag * 1000 for shard in shards if shard.reading_lag is not None]
                tracker = (("Operation", "ApplicationTracker"),)
                behind = [Sample("MillisBehindLatest", "Milliseconds", max(lags), tracker)] if lags else []
                return [*behind, self._current_leases()]
            case ev.LeaseGained() | ev.LeaseReleased() | ev.LeaseLost():
                return self._leases_changed(event)
            case _:
                return []

    def _leases_changed(self, event: ev.LeaseGained | ev.LeaseReleased | ev.LeaseLost) -> list[Sample]:
        if isinstance(event, ev.LeaseGained):
            self._leases.add(event.shard_id)
        else:
            self._leases.discard(event.shard_id)
        is_lost = isinstance(event, ev.LeaseLost)
        lost = [Sample("LostLeases", "Count", 1, self._worker, is_sum=True)] if is_lost else []
        return [*lost, self._current_leases()]

    def _page(self, event: ev.PageRead) -> list[Sample]:
        task = _task(event.shard_id)
        samples = [
            Sample("DataBytesProcessed", "Bytes", event.payload_bytes, task, is_sum=True),
            Sample("KinesisDataFetcher.getRecords.Time", "Milliseconds", event.duration * 1000, task),
            Sample("KinesisDataFetcher.getRecords.Success", "Count", 1, task),
        ]
        if event.reading_lag is not None:
            samples.append(Sample("MillisBehindLatest", "Milliseconds", event.reading_lag * 1000, task))
        return samples

    def _current_leases(self) -> Sample:
        return Sample("CurrentLeases", "Count", len(self._leases), self._worker)


def _task(shard_id: str) -> Dimensions:
    return ("Operation", "ProcessTask"), ("ShardId", shard_id)


def _lower(operation: str) -> str:
    """Return the name of an operation as a Java method: ``getRecords`` for ``GetRecords``."""
    return operation[:1].lower() + operation[1:]
