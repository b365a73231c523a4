"""Which metrics does an event change, and by how much?

The Prometheus sink and the CloudWatch sink share this table of metrics. A ``Meter`` translates the events of one
producer or consumer into changes of these metrics.

If you add a metric here, also add it to ``otel_metric_table``. OpenTelemetry has its own table, because its conventions
prescribe other names, units and attributes.

Invariants:

- A counter that an alarm may watch has only the labels stream and group, so that it exists, with the value 0, as soon
  as the producer or consumer starts. Breakdowns by error code are separate metrics.
- The values of labels are bounded: after ``_CODES_MAX`` different error codes, further codes count as ``other``.
- No label holds data or a key.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

from shardline import events as ev
from shardline.model.limits import SHARD_WRITE_BYTES_PER_SECOND, SHARD_WRITE_RECORDS_PER_SECOND

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Combine: TypeAlias = Literal["sum", "max", "min"]

_CODES_MAX: Final = 50
_OTHER: Final = "other"


@final
class Metric(NamedTuple):
    """A metric. Its name ends in its unit (``_seconds``, ``_bytes``), unless the metric is a count."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    """The labels besides the stream and the group."""
    has_shards: bool = False
    """Whether the metric can be split by shard."""
    combine: Combine = "sum"
    """How the values of a gauge are combined if several shards, producers or consumers have one."""
    idle: float = 0.0
    """The value of a gauge while no producer or consumer reports a value."""


@final
class Change(NamedTuple):
    """An event's effect on a metric: an increment, an observation, or the new value of a gauge."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    shard_id: str = ""


_all: list[Metric] = []


def _metric(
    name: str, kind: Kind, text: str, *labels: str, shards: bool = False, combine: Combine = "sum", idle: float = 0.0
) -> Metric:
    metric = Metric(name, kind, text, labels, shards, combine, idle)
    _all.append(metric)
    return metric


# ---- the producer's metrics

DELIVERED_RECORDS: Final = _metric("producer_delivered_records", "counter", "Records that were stored.", shards=True)
DELIVERED_BYTES: Final = _metric("producer_delivered_bytes", "counter", "Bytes of data in these records.", shards=True)
RETRIED_RECORDS: Final = _metric(
    "producer_retried_records", "counter", "Records that had to be sent again; once per retry.", shards=True
)
FAILED_RECORDS: Final = _metric("producer_failed_records", "counter", "Records that failed for good.")
PRODUCER_ERRORS: Final = _metric(
    "producer_errors", "counter", "Records that were sent again or failed, by error code.", "code"
)
REQUESTS: Final = _metric("producer_requests", "counter", "PutRecords requests that were answered or failed.")
FAILED_REQUESTS: Final = _metric("producer_failed_requests", "counter", "PutRecords requests that failed as a whole.")
ENTRIES: Final = _metric("producer_entries", "counter", "Entries of these requests: aggregates and single records.")
ENTRY_RECORDS: Final = _metric("producer_entry_records", "counter", "Records in these entries.")
ENTRY_BYTES: Final = _metric("producer_entry_bytes", "counter", "Bytes of these entries.")
REFUSED_ENTRIES: Final = _metric("producer_refused_entries", "counter", "Entries that were refused, mostly throttled.")
PUT_TO_ACK: Final = _metric(
    "producer_put_to_ack_seconds", "histogram", "Time from the put of a request's oldest record to its receipt."
)
REQUEST: Final = _metric("producer_request_seconds", "histogram", "Duration of PutRecords requests.")
OUTSTANDING: Final = _metric(
    "producer_outstanding_records", "gauge", "Records that were put and are neither delivered nor failed."
)
BUFFERED: Final = _metric("producer_buffered_bytes", "gauge", "Bytes of the outstanding records.")
BUFFER_MAX: Final = _metric("producer_buffer_max_bytes", "gauge", "Capacity of the buffer.")
OLDEST_WAITING: Final = _metric(
    "producer_oldest_waiting_seconds", "gauge", "How long the oldest unsent record has waited.", combine="max"
)
IN_FLIGHT: Final = _metric("producer_requests_in_flight", "gauge", "PutRecords requests that have no response yet.")
QUEUED: Final = _metric("producer_queued_entries", "gauge", "Entries that are waiting to be sent.", shards=True)
RATE: Final = _metric(
    "producer_rate_ratio",
    "gauge",
    "Share of the configured rate that is left after throttling, the lowest of all shards. 1 means the full rate.",
    shards=True,
    combine="min",
    idle=1.0,
)
BACKLOG: Final = _metric(
    "producer_shard_backlog_seconds",
    "gauge",
    "How long a shard takes to store the records that are waiting for it, after throttling; the highest of all shards.",
    shards=True,
    combine="max",
)
TRIPPED: Final = _metric(
    "producer_tripped_shards", "gauge", "Shards that get one entry at a time, after many failures."
)
OPEN_SHARDS: Final = _metric("producer_open_shards", "gauge", "Open shards of the stream.", combine="max")
SHARD_MAP_FAILURES: Final = _metric("producer_shard_map_failures", "counter", "Failed attempts to list the shards.")
PRODUCER_EVENTS: Final = _metric("producer_events", "counter", "Other events, by their type.", "event")

# ---- the consumer's metrics

PAGES: Final = _metric("consumer_pages", "counter", "Pages that were read, including empty ones.")
READ_RECORDS: Final = _metric("consumer_read_records", "counter", "Records that were read.", shards=True)
READ_BYTES: Final = _metric("consumer_read_bytes", "counter", "Bytes of data in these records.", shards=True)
READ: Final = _metric(
    "consumer_read_seconds",
    "histogram",
    "Duration of GetRecords requests; with fan-out, the time between pages.",
    "read_by",
)
HANDED_OUT: Final = _metric("consumer_handed_out_records", "counter", "Records that were handed to your code.")
HANDLED: Final = _metric("consumer_handled_records", "counter", "Records that your code is done with.", shards=True)
HANDLER: Final = _metric(
    "consumer_handler_seconds", "histogram", "How long your code worked on a page, a slice of a page, or a batch."
)
HANDLER_RETRIES: Final = _metric("consumer_handler_retries", "counter", "Failed calls of a handler that were repeated.")
DEAD_LETTERED: Final = _metric("consumer_dead_lettered_records", "counter", "Records that were dead-lettered.")
DEAD_LETTER_FAILURES: Final = _metric(
    "consumer_dead_letter_failures", "counter", "Failed attempts to write a dead letter."
)
STOPPED: Final = _metric("consumer_stopped_records", "counter", "Records whose failure ended the run.")
HANDLER_ERRORS: Final = _metric(
    "consumer_handler_errors", "counter", "Failures of handlers, by the type of the exception.", "error_type"
)
STUCK: Final = _metric("consumer_stuck_handlers", "gauge", "Handlers that have had their records for too long.")
COMMIT: Final = _metric("consumer_commit_seconds", "histogram", "Duration of commits to the lease store.")
HANDLING_LAG: Final = _metric(
    "consumer_handling_lag_seconds",
    "gauge",
    "Age of the oldest record that is not done; the highest of all shards.",
    shards=True,
    combine="max",
)
READING_LAG: Final = _metric(
    "consumer_reading_lag_seconds",
    "gauge",
    "How far reading is behind the end of the shard; the highest of all shards.",
    shards=True,
    combine="max",
)
PREFETCHED: Final = _metric(
    "consumer_prefetched_records", "gauge", "Records that were read and not handed out yet.", shards=True
)
IN_HAND: Final = _metric(
    "consumer_in_hand_records", "gauge", "Records that your code has and is not done with.", shards=True
)
LEASES: Final = _metric("consumer_leases", "gauge", "Leases that this worker holds.")
LEASES_GAINED: Final = _metric("consumer_leases_gained", "counter", "Leases that this worker took.")
LEASES_LOST: Final = _metric("consumer_leases_lost", "counter", "Leases that expired or were taken.")
LEASES_RELEASED: Final = _metric("consumer_leases_released", "counter", "Leases that were released in an orderly way.")
HAND_OVER: Final = _metric(
    "consumer_hand_over_seconds", "histogram", "Time from another worker's request for a lease to its release."
)
HAND_OVERS_OVERDUE: Final = _metric(
    "consumer_hand_overs_overdue", "counter", "Hand-overs whose timeout ended before the handler had finished."
)
RECORD_LOSSES: Final = _metric(
    "consumer_record_losses", "counter", "How often records may have been removed before they were read."
)
READ_FAILURES: Final = _metric("consumer_read_failures", "counter", "Failed requests to a shard.")
LISTING_FAILURES: Final = _metric("consumer_listing_failures", "counter", "Failed requests for the list of shards.")
STORE_FAILURES: Final = _metric("consumer_store_failures", "counter", "Failed requests to the lease store.")
STORE_UP: Final = _metric(
    "consumer_store_up", "gauge", "1 while the lease store answers, 0 while it does not.", combine="min", idle=1.0
)
CONSUMER_ERRORS: Final = _metric(
    "consumer_errors", "counter", "Failed requests, by operation and error code.", "operation", "code"
)
SUBSCRIPTIONS: Final = _metric("consumer_subscriptions", "counter", "Subscriptions to shards (enhanced fan-out).")
STALLS: Final = _metric("consumer_stalls", "counter", "How often the event loop was blocked for too long.")
STALLED: Final = _metric("consumer_stalled_seconds", "counter", "How long the event loop was blocked in total.")
FAILURES: Final = _metric("consumer_failures", "counter", "Failures that stopped the consumer.")
CONSUMER_EVENTS: Final = _metric("consumer_events", "counter", "Other events, by their type.", "event")

METRICS: Final = tuple(_all)
PRODUCER_METRICS: Final = tuple(metric for metric in METRICS if metric.name.startswith("producer_"))
CONSUMER_METRICS: Final = tuple(metric for metric in METRICS if metric.name.startswith("consumer_"))

_COMBINED: Final[dict[Combine, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max, "min": min}


def backlogs(event: ev.ProducerMeasured) -> dict[str, float]:
    """Return how many seconds each shard will take to store the records that are waiting for it, at its current rate.

    If too many records have keys of one shard, and no other producer writes to this shard, the producer stays within
    its limits. The producer is then not throttled, and only this time shows that the shard is hot.
    """
    return {
        lane.shard_id: max(
            lane.queued_entries / SHARD_WRITE_RECORDS_PER_SECOND, lane.queued_bytes / SHARD_WRITE_BYTES_PER_SECOND
        )
        / lane.rate_share
        for lane in event.lanes
        if lane.shard_id
    }


def combined(metric: Metric, values: Iterable[float]) -> float:
    """Return the value of a gauge, combined from the values of several shards, producers or consumers."""
    found = list(values)
    return _COMBINED[metric.combine](found) if found else metric.idle


@final
class Meter:
    """Translates the events of one producer or consumer into changes of metrics."""

    def __init__(self, *, by_shard: bool) -> None:
        self._by_shard = by_shard
        self._codes: set[str] = set()
        self._leases: set[str] = set()
        self._stuck: set[str] = set()
        self._shards: dict[str, set[str]] = {}  # by gauge: the shards that had a value in its last measurement

    def changes(self, event: ev.Event) -> list[Change]:
        """Return the changes that an event causes."""
        translate = _TRANSLATIONS.get(type(event))
        if translate is not None:
            return translate(self, event)
        is_producer = type(event) in _OTHER_PRODUCER_EVENTS
        return [Change(PRODUCER_EVENTS if is_producer else CONSUMER_EVENTS, 1, (type(event).__name__,))]

    def first_values(self, metrics: Iterable[Metric]) -> list[Change]:
        """Return the changes at the start: counters without further labels begin at 0, and gauges at their idle value.

        Metrics that are split by shard begin with the first event of a shard.
        """
        return [
            Change(metric, metric.idle)
            for metric in metrics
            if metric.kind != "histogram" and not metric.labels and not (self._by_shard and metric.has_shards)
        ]

    def bounded(self, code: str) -> str:
        """Return an error code, or ``other`` if there are too many different codes."""
        if code not in self._codes:
            if len(self._codes) >= _CODES_MAX:
                return _OTHER
            self._codes.add(code)
        return code

    def split(self, metric: Metric, values: dict[str, float]) -> list[Change]:
        """Return the new values of a gauge that has a value for each shard."""
        if not self._by_shard:
            return [Change(metric, combined(metric, values.values()))]
        gone = self._shards.get(metric.name, set()) - values.keys()
        self._shards[metric.name] = set(values)
        return [
            *(Change(metric, value, (), shard_id) for shard_id, value in values.items()),
            *(Change(metric, metric.idle, (), shard_id) for shard_id in sorted(gone)),
        ]

    # ---- the producer's events

    def request_answered(self, event: ev.RequestAnswered) -> list[Change]:
        changes = [
            Change(REQUESTS, 1),
            Change(REQUEST, event.duration),
            Change(ENTRIES, event.entries),
            Change(ENTRY_RECORDS, event.records),
            Change(ENTRY_BYTES, event.size_bytes),
        ]
        if event.refused_entries:
            changes.append(Change(REFUSED_ENTRIES, event.refused_entries))
        if event.code is not None:
            changes.append(Change(FAILED_REQUESTS, 1))
        return changes

    def records_delivered(self, event: ev.RecordsDelivered) -> list[Change]:
        if not self._by_shard:
            return [
                Change(DELIVERED_RECORDS, event.records),
                Change(DELIVERED_BYTES, event.payload_bytes),
                Change(PUT_TO_ACK, event.latency),
            ]
        return [
            *(Change(DELIVERED_RECORDS, shard.records, (), shard.shard_id) for shard in event.shards),
            *(Change(DELIVERED_BYTES, shard.payload_bytes, (), shard.shard_id) for shard in event.shards),
            Change(PUT_TO_ACK, event.latency),
        ]

    def records_retried(self, event: ev.RecordsRetried) -> list[Change]:
        return [
            Change(RETRIED_RECORDS, event.records, (), event.shard_id or ""),
            Change(PRODUCER_ERRORS, event.records, (self.bounded(event.code),)),
        ]

    def records_failed(self, event: ev.RecordsFailed) -> list[Change]:
        return [
            Change(FAILED_RECORDS, event.records),
            Change(PRODUCER_ERRORS, event.records, (self.bounded(event.code),)),
        ]

    def producer_measured(self, event: ev.ProducerMeasured) -> list[Change]:
        lanes = event.lanes
        return [
            Change(OUTSTANDING, event.outstanding),
            Change(BUFFERED, event.buffered_bytes),
            Change(BUFFER_MAX, event.buffer_max_bytes),
            Change(OLDEST_WAITING, event.oldest_waiting),
            Change(IN_FLIGHT, event.requests_in_flight),
            Change(TRIPPED, sum(lane.tripped for lane in lanes)),
            *self.split(QUEUED, {lane.shard_id: lane.queued_entries for lane in lanes}),
            *self.split(RATE, {lane.shard_id: lane.rate_share for lane in lanes}),
            *self.split(BACKLOG, backlogs(event)),
        ]

    def shards_changed(self, event: ev.ShardsChanged) -> list[Change]:
        return [Change(OPEN_SHARDS, event.open_shards)]

    def shard_map_failed(self, _: ev.ShardMapFailed) -> list[Change]:
        return [Change(SHARD_MAP_FAILURES, 1)]

    # ---- the consumer's events: records

    def page_read(self, event: ev.PageRead) -> list[Change]:
        return [
            Change(PAGES, 1),
            Change(READ, event.duration, (event.read_by,)),
            Change(READ_RECORDS, event.records, (), event.shard_id),
            Change(READ_BYTES, event.payload_bytes, (), event.shard_id),
        ]

    def records_handed_out(self, event: ev.RecordsHandedOut) -> list[Change]:
        return [Change(HANDED_OUT, event.records)]

    def records_handled(self, event: ev.RecordsHandled) -> list[Change]:
        return [Change(HANDLED, event.records, (), event.shard_id), Change(HANDLER, event.duration)]

    def committed(self, event: ev.Committed) -> list[Change]:
        return [Change(COMMIT, event.duration)]

    def lag_measured(self, event: ev.LagMeasured) -> list[Change]:
        shards = event.shards
        handling = {shard.shard_id: shard.handling_lag for shard in shards if shard.handling_lag is not None}
        reading = {shard.shard_id: shard.reading_lag for shard in shards if shard.reading_lag is not None}
        return [
            *self.split(HANDLING_LAG, handling),
            *self.split(READING_LAG, reading),
            *self.split(PREFETCHED, {shard.shard_id: shard.prefetched for shard in shards}),
            *self.split(IN_HAND, {shard.shard_id: shard.in_hand for shard in shards}),
        ]

    def records_lost(self, event: ev.RecordsTrimmed | ev.ShardTrimmed | ev.PositionLost) -> list[Change]:
        return [Change(RECORD_LOSSES, 1), Change(CONSUMER_EVENTS, 1, (type(event).__name__,))]

    # ---- the consumer's events: handlers

    def handler_retried(self, event: ev.HandlerRetried) -> list[Change]:
        return [Change(HANDLER_RETRIES, 1), self._handler_error(event.error_type)]

    def dead_lettered(self, event: ev.RecordsDeadLettered) -> list[Change]:
        return [Change(DEAD_LETTERED, event.records), self._handler_error(event.error_type)]

    def dead_letter_failed(self, _: ev.DeadLetterFailed) -> list[Change]:
        return [Change(DEAD_LETTER_FAILURES, 1)]

    def handling_stopped(self, event: ev.HandlingStopped) -> list[Change]:
        return [Change(STOPPED, event.records), self._handler_error(event.error_type)]

    def _handler_error(self, error_type: str) -> Change:
        return Change(HANDLER_ERRORS, 1, (self.bounded(error_type),))

    def handler_stuck(self, event: ev.HandlerStuck) -> list[Change]:
        self._stuck.add(event.shard_id)
        return [Change(STUCK, len(self._stuck))]

    def handler_recovered(self, event: ev.HandlerRecovered) -> list[Change]:
        self._stuck.discard(event.shard_id)
        return [Change(STUCK, len(self._stuck))]

    def stalled(self, event: ev.Stalled) -> list[Change]:
        return [Change(STALLS, 1), Change(STALLED, event.seconds)]

    # ---- the consumer's events: leases

    def lease_gained(self, event: ev.LeaseGained) -> list[Change]:
        self._leases.add(event.shard_id)
        return [Change(LEASES_GAINED, 1), Change(LEASES, len(self._leases))]

    def lease_lost(self, event: ev.LeaseLost) -> list[Change]:
        return [Change(LEASES_LOST, 1), *self._without(event.shard_id)]

    def lease_released(self, event: ev.LeaseReleased) -> list[Change]:
        return [Change(LEASES_RELEASED, 1), *self._without(event.shard_id)]

    def _without(self, shard_id: str) -> list[Change]:
        self._leases.discard(shard_id)
        self._stuck.discard(shard_id)
        return [Change(LEASES, len(self._leases)), Change(STUCK, len(self._stuck))]

    def lease_handed_over(self, event: ev.LeaseHandedOver) -> list[Change]:
        return [Change(HAND_OVER, event.duration)]

    def hand_over_overdue(self, _: ev.HandOverOverdue) -> list[Change]:
        return [Change(HAND_OVERS_OVERDUE, 1)]

    # ---- the consumer's events: failed requests

    def read_failed(self, event: ev.ReadFailed) -> list[Change]:
        return [Change(READ_FAILURES, 1), self._error(event.operation, event.failure)]

    def subscribed(self, _: ev.Subscribed) -> list[Change]:
        return [Change(SUBSCRIPTIONS, 1)]

    def store_failed(self, event: ev.StoreFailed) -> list[Change]:
        return [Change(STORE_FAILURES, 1), Change(STORE_UP, 0), self._error("lease store", event.failure)]

    def store_recovered(self, _: ev.StoreRecovered) -> list[Change]:
        return [Change(STORE_UP, 1)]

    def listing_failed(self, event: ev.ListingFailed) -> list[Change]:
        return [Change(LISTING_FAILURES, 1), self._error(event.operation, event.failure)]

    def consumer_failed(self, event: ev.ConsumerFailed) -> list[Change]:
        return [Change(FAILURES, 1), self._error(event.operation, event.failure)]

    def _error(self, operation: str, failure: ev.Failure) -> Change:
        return Change(CONSUMER_ERRORS, 1, (operation, self.bounded(failure.code)))


_TRANSLATIONS: Final[dict[type, Callable[[Meter, Any], list[Change]]]] = {
    ev.RequestAnswered: Meter.request_answered,
    ev.RecordsDelivered: Meter.records_delivered,
    ev.RecordsRetried: Meter.records_retried,
    ev.RecordsFailed: Meter.records_failed,
    ev.ProducerMeasured: Meter.producer_measured,
    ev.ShardsChanged: Meter.shards_changed,
    ev.ShardMapFailed: Meter.shard_map_failed,
    ev.PageRead: Meter.page_read,
    ev.RecordsHandedOut: Meter.records_handed_out,
    ev.RecordsHandled: Meter.records_handled,
    ev.Committed: Meter.committed,
    ev.LagMeasured: Meter.lag_measured,
    ev.RecordsTrimmed: Meter.records_lost,
    ev.ShardTrimmed: Meter.records_lost,
    ev.PositionLost: Meter.records_lost,
    ev.HandlerRetried: Meter.handler_retried,
    ev.RecordsDeadLettered: Meter.dead_lettered,
    ev.DeadLetterFailed: Meter.dead_letter_failed,
    ev.HandlingStopped: Meter.handling_stopped,
    ev.HandlerStuck: Meter.handler_stuck,
    ev.HandlerRecovered: Meter.handler_recovered,
    ev.Stalled: Meter.stalled,
    ev.LeaseGained: Meter.lease_gained,
    ev.LeaseLost: Meter.lease_lost,
    ev.LeaseReleased: Meter.lease_released,
    ev.LeaseHandedOver: Meter.lease_handed_over,
    ev.HandOverOverdue: Meter.hand_over_overdue,
    ev.ReadFailed: Meter.read_failed,
    ev.Subscribed: Meter.subscribed,
    ev.StoreFailed: Meter.store_failed,
    ev.StoreRecovered: Meter.store_recovered,
    ev.ListingFailed: Meter.listing_failed,
    ev.ConsumerFailed: Meter.consumer_failed,
}
_OTHER_PRODUCER_EVENTS: Final = frozenset(
    {ev.StreamUnknown, ev.DistributionChanged, ev.AggregationStopped, ev.ChannelsFound, ev.ProducerReconfigured}
)
