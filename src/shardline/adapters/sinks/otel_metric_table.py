"""Turns events into OpenTelemetry metrics.

The first metrics are those of the semantic conventions for messaging. The others are our own, under ``shardline.``.
``metric_table`` has the metrics of the other sinks: if you add a metric to one of the two, add it to the other.

Invariants:

- ``METRICS`` names every metric, and the documentation lists the same metrics.
- Attributes have few values: no keys, no sequence numbers, and shards only on request (``by_shard``).
- An unknown event is ignored, because a newer version may emit more events.
- Counts are added up here, and the provider reads the totals when it collects (observable counters), because each
  update of a counter costs microseconds. Every duration is recorded.
- Totals never decrease: the counts of a closed producer stay in the totals.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from shardline import events
from shardline.adapters.sinks.metric_table import backlogs
from shardline.events import EventSource

Attributes: TypeAlias = Mapping[str, str | int]
Kind: TypeAlias = Literal["counter", "histogram", "gauge", "up-down counter"]

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
CLIENT: Final = "messaging.client.id"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
SERVER: Final = "server.address"
ERROR: Final = "error.type"
CHANGE: Final = "shardline.lease.change"

_KNOWN_MAX: Final = 1_000  # sets of attributes that are remembered
# The histogram boundaries that the conventions recommend.
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


@final
class Metric(NamedTuple):
    """The definition of a metric, for its instrument and for the documentation."""

    name: str
    kind: Kind
    unit: str
    description: str


OPERATION_DURATION: Final = Metric(
    "messaging.client.operation.duration",
    "histogram",
    "s",
    "Duration of PutRecords requests (send), of reading pages (receive) and of writing checkpoints (settle).",
)
SENT: Final = Metric(
    "messaging.client.sent.messages", "counter", "{message}", "Records in PutRecords requests; a retry counts again."
)
CONSUMED: Final = Metric(
    "messaging.client.consumed.messages", "counter", "{message}", "Records that were handed out to your code."
)
PROCESS_DURATION: Final = Metric(
    "messaging.process.duration", "histogram", "s", "How long your code had a page, a part of a page, or a batch."
)
_DELIVERY_DURATION: Final = Metric(
    "shardline.producer.delivery.duration",
    "histogram",
    "s",
    "Time from put to acknowledgement, of the oldest record of each request.",
)
_DELIVERED: Final = Metric("shardline.producer.delivered.records", "counter", "{record}", "Delivered records.")
_DELIVERED_BYTES: Final = Metric(
    "shardline.producer.delivered.size", "counter", "By", "Data and keys of the delivered records."
)
_RETRIED: Final = Metric("shardline.producer.retried.records", "counter", "{record}", "Records that are sent again.")
_FAILED: Final = Metric("shardline.producer.failed.records", "counter", "{record}", "Records that failed for good.")
_ENTRIES: Final = Metric("shardline.producer.sent.entries", "counter", "{entry}", "Entries in PutRecords requests.")
_REFUSED: Final = Metric(
    "shardline.producer.refused.entries", "counter", "{entry}", "Entries that the service refused."
)
_SENT_BYTES: Final = Metric("shardline.producer.sent.size", "counter", "By", "Size of the PutRecords requests.")
_OUTSTANDING: Final = Metric(
    "shardline.producer.outstanding.records", "gauge", "{record}", "Records that are neither delivered nor failed."
)
_BUFFER: Final = Metric("shardline.producer.buffer.usage", "gauge", "By", "Bytes in the buffer.")
_BUFFER_LIMIT: Final = Metric("shardline.producer.buffer.limit", "gauge", "By", "Size of the buffer.")
_OLDEST: Final = Metric(
    "shardline.producer.oldest_record.age", "gauge", "s", "How long the oldest record that is not in flight has waited."
)
_IN_FLIGHT: Final = Metric("shardline.producer.requests.in_flight", "gauge", "{request}", "Requests in flight.")
_RATE_SHARE: Final = Metric(
    "shardline.producer.rate_share",
    "gauge",
    "1",
    "Lowest share of the configured rates that throttling has left to a shard.",
)
_BACKLOG: Final = Metric(
    "shardline.producer.shard_backlog",
    "gauge",
    "s",
    "How long a shard takes to store the records that are waiting for it, after throttling.",
)
_OPEN_SHARDS: Final = Metric("shardline.producer.open_shards", "gauge", "{shard}", "Open shards of the stream.")
_READ: Final = Metric("shardline.consumer.read.records", "counter", "{record}", "Records that were read.")
_READ_BYTES: Final = Metric("shardline.consumer.read.size", "counter", "By", "Data and keys that were read.")
_HANDLED: Final = Metric("shardline.consumer.handled.records", "counter", "{record}", "Records that are done.")
_READING_LAG: Final = Metric(
    "shardline.consumer.reading.lag", "gauge", "s", "How far reading is behind the end of the stream."
)
_HANDLING_LAG: Final = Metric(
    "shardline.consumer.handling.lag", "gauge", "s", "How far your code is behind the end of the stream."
)
_PREFETCHED: Final = Metric(
    "shardline.consumer.prefetched.records", "gauge", "{record}", "Records that were read and not handed out."
)
_IN_HAND: Final = Metric("shardline.consumer.in_hand.records", "gauge", "{record}", "Records that your code has.")
_HANDLER_RETRIED: Final = Metric(
    "shardline.consumer.retried.records", "counter", "{record}", "Records that your handler gets again after a failure."
)
_DEAD_LETTERED: Final = Metric(
    "shardline.consumer.dead_lettered.records", "counter", "{record}", "Records that were dead-lettered."
)
_DEAD_LETTER_FAILURES: Final = Metric(
    "shardline.consumer.dead_letter.failures", "counter", "{failure}", "Dead letters that could not be written."
)
_STOPS: Final = Metric(
    "shardline.consumer.handling.stops", "counter", "{stop}", "Runs that ended because a handler failed for good."
)
_LEASES: Final = Metric("shardline.consumer.leases", "up-down counter", "{lease}", "Leases that the worker holds.")
_LEASE_CHANGES: Final = Metric(
    "shardline.consumer.lease.changes", "counter", "{change}", "Leases that were gained, lost, released or finished."
)
_HAND_OVER: Final = Metric(
    "shardline.consumer.hand_over.duration", "histogram", "s", "Time from another worker's request to the release."
)
_READ_FAILURES: Final = Metric(
    "shardline.consumer.read.failures", "counter", "{failure}", "Failed requests to read or to list shards."
)
_STORE_FAILURES: Final = Metric(
    "shardline.consumer.store.failures", "counter", "{failure}", "Failed requests to the lease store."
)
_LOSSES: Final = Metric(
    "shardline.consumer.losses",
    "counter",
    "{loss}",
    "Times when retention or a refused position may have cost records.",
)
_STALLED: Final = Metric(
    "shardline.consumer.stalled.time", "counter", "s", "Time in which the event loop was blocked for too long."
)
_STUCK: Final = Metric(
    "shardline.consumer.stuck_handlers", "up-down counter", "{handler}", "Handlers that hang, or are very slow."
)

METRICS: Final = tuple(value for value in globals().copy().values() if isinstance(value, Metric))


@final
class Total:
    """The total of a counter for one set of attributes. Several producers and consumers may add to it at the same
    time.
    """

    __slots__ = ("_lock", "attributes", "value")

    def __init__(self, attributes: Attributes, lock: Lock) -> None:
        self._lock = lock
        self.attributes: Attributes = attributes
        self.value: float = 0

    def add(self, value: float) -> None:
        with self._lock:
            self.value += value


@final
class Instruments:
    """The instruments of one meter, which all producers and consumers share."""

    def __init__(self, meter: Meter) -> None:
        self._lock = Lock()
        self._totals: dict[str, dict[frozenset[tuple[str, str | int]], Total]] = {}
        self._instruments: dict[str, Any] = {}
        for name, kind, unit, description in METRICS:
            self._totals[name] = {}
            self._instruments[name] = _create(meter, kind, partial(self._observe, name))(name, unit, description)

    def total(self, metric: Metric, attributes: Attributes) -> Total:
        """Return the total of a counter for these attributes. The attributes must not change later."""
        totals, key = self._totals[metric.name], frozenset(attributes.items())
        with self._lock:
            return totals.setdefault(key, Total(attributes, self._lock))

    def record(self, metric: Metric, value: float, attributes: Attributes) -> None:
        """Record a duration in a histogram."""
        self._instruments[metric.name].record(value, attributes)

    def set(self, metric: Metric, value: float, attributes: Attributes) -> None:
        self._instruments[metric.name].set(value, attributes)

    def _observe(self, name: str, _options: CallbackOptions) -> Iterator[Observation]:
        """Return the totals of a counter. The provider calls this in its own thread."""
        with self._lock:
            totals = list(self._totals[name].values())
        return (Observation(total.value, total.attributes) for total in totals)


def _create(
    meter: Meter, kind: Kind, observe: Callable[[CallbackOptions], Iterator[Observation]]
) -> Callable[[str, str, str], Any]:
    """Return a function that creates this kind of instrument from its name, unit and description."""
    match kind:
        case "counter":
            return lambda name, unit, text: meter.create_observable_counter(name, [observe], unit, text)
        case "up-down counter":
            return lambda name, unit, text: meter.create_observable_up_down_counter(name, [observe], unit, text)
        case "gauge":
            return meter.create_gauge
        case "histogram":
            return partial(meter.create_histogram, explicit_bucket_boundaries_advisory=_SECONDS)


def describe(source: EventSource) -> dict[str, str]:
    """Return the attributes that all metrics and spans of a producer or consumer have."""
    described = {SYSTEM: "aws.kinesis", DESTINATION: source.stream}
    if source.group is not None:
        described[GROUP] = source.group
    if source.server_address is not None:
        described[SERVER] = source.server_address
    return described


@final
class EventMetrics:
    """Updates the instruments with the events of one producer or consumer.

    Args:
        instruments: the instruments.
        source: the producer or consumer.
        by_shard: whether the metrics have the shard as an attribute, if the event names a shard.
    """

    def __init__(self, instruments: Instruments, source: EventSource, *, by_shard: bool) -> None:
        self._instruments = instruments
        self._by_shard = by_shard
        self._base: dict[str, str] = describe(source)
        # Two workers in one process must not overwrite each other's gauges.
        self._gauge = self._base if source.worker_id is None else {**self._base, CLIENT: source.worker_id}
        self._totals: dict[tuple[str, int], Total] = {}  # by the name of the metric and the id of the attributes
        self._known: dict[tuple[str | None, ...], dict[str, str]] = {}  # the attributes that were used lately
        self._leases: set[str] = set()
        self._stuck: set[str] = set()
        self._updates: Mapping[type, Callable[[Any], None]] = {
            events.RequestAnswered: self._update_request,
            events.RecordsDelivered: self._update_delivered,
            events.RecordsRetried: self._update_retried,
            events.RecordsFailed: self._update_failed,
            events.ShardsChanged: self._update_shards,
            events.ProducerMeasured: self._update_producer,
            events.PageRead: self._update_page,
            events.RecordsHandedOut: self._update_handed_out,
            events.RecordsHandled: self._update_handled,
            events.Committed: self._update_committed,
            events.LagMeasured: self._update_lag,
            events.HandlerRetried: self._update_handler_retried,
            events.RecordsDeadLettered: self._update_dead_lettered,
            events.DeadLetterFailed: self._update_dead_letter_failed,
            events.HandlingStopped: self._update_stopped,
            events.LeaseGained: self._update_gained,
            events.LeaseLost: self._update_lost,
            events.LeaseReleased: self._update_released,
            events.LeaseHandedOver: self._update_handed_over,
            events.ReadFailed: self._update_read_failed,
            events.ListingFailed: self._update_read_failed,
            events.StoreFailed: self._update_store_failed,
            events.RecordsTrimmed: self._update_loss,
            events.ShardTrimmed: self._update_loss,
            events.PositionLost: self._update_loss,
            events.ProgressLost: self._update_loss,
            events.Stalled: self._update_stalled,
            events.HandlerStuck: self._update_stuck,
            events.HandlerRecovered: self._update_recovered,
        }

    def update(self, event: object) -> None:
        """Record the durations of an event, and add its counts to the totals."""
        update = self._updates.get(type(event))
        if update is not None:
            update(event)

    def close(self) -> None:
        """Subtract the leases and stuck handlers that this consumer still counts."""
        self._add(_LEASES, -len(self._leases), self._base)
        self._add(_STUCK, -len(self._stuck), self._base)
        self._leases.clear()
        self._stuck.clear()

    def _add(self, metric: Metric, value: float, attributes: Attributes) -> None:
        key = metric.name, id(attributes)  # the attributes live as long as the entry: both are cleared together
        total = self._totals.get(key)
        if total is None:
            total = self._totals[key] = self._instruments.total(metric, attributes)
        total.add(value)

    def _attributes(
        self,
        shard_id: str | None = None,
        error: str | None = None,
        *,
        operation: str | None = None,
        call: str | None = None,
        change: str | None = None,
    ) -> dict[str, str]:
        """Return the attributes of an event, the same object for the same arguments. The caller must not change the
        object.

        Args:
            shard_id: the shard, if the event has one.
            error: the code of the error, or the type of an exception.
            operation: an operation of the conventions, such as ``send``.
            call: an operation of the API that failed.
            change: what happened to a lease.
        """
        key = (shard_id if self._by_shard else None, error, operation, call, change)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
                self._totals.clear()  # the instruments keep the totals themselves
            found = (ERROR, error), (OPERATION, operation or call), (OPERATION_TYPE, operation), (CHANGE, change)
            known = self._base | {name: value for name, value in found if value is not None}
            if self._by_shard and shard_id:
                known[PARTITION] = shard_id
            self._known[key] = known
        return known

    # ---- the producer

    def _update_request(self, event: events.RequestAnswered) -> None:
        attributes = self._attributes(error=event.code, operation="send")
        self._instruments.record(OPERATION_DURATION, event.duration, attributes)
        self._add(SENT, event.records, attributes)
        self._add(_ENTRIES, event.entries, self._base)
        self._add(_REFUSED, event.refused_entries, self._base)
        self._add(_SENT_BYTES, event.size_bytes, self._base)

    def _update_delivered(self, event: events.RecordsDelivered) -> None:
        if self._by_shard:
            for shard in event.shards:
                attributes = self._attributes(shard.shard_id)
                self._add(_DELIVERED, shard.records, attributes)
                self._add(_DELIVERED_BYTES, shard.payload_bytes, attributes)
                self._instruments.record(_DELIVERY_DURATION, shard.latency, attributes)
        else:
            self._add(_DELIVERED, event.records, self._base)
            self._add(_DELIVERED_BYTES, event.payload_bytes, self._base)
            self._instruments.record(_DELIVERY_DURATION, event.latency, self._base)

    def _update_retried(self, event: events.RecordsRetried) -> None:
        self._add(_RETRIED, event.records, self._attributes(event.shard_id, event.code))

    def _update_failed(self, event: events.RecordsFailed) -> None:
        self._add(_FAILED, event.records, self._attributes(error=event.code))

    def _update_shards(self, event: events.ShardsChanged) -> None:
        self._instruments.set(_OPEN_SHARDS, event.open_shards, self._gauge)

    def _update_producer(self, event: events.ProducerMeasured) -> None:
        instruments = self._instruments
        instruments.set(_OUTSTANDING, event.outstanding, self._gauge)
        instruments.set(_BUFFER, event.buffered_bytes, self._gauge)
        instruments.set(_BUFFER_LIMIT, event.buffer_max_bytes, self._gauge)
        instruments.set(_OLDEST, event.oldest_waiting, self._gauge)
        instruments.set(_IN_FLIGHT, event.requests_in_flight, self._gauge)
        waits = backlogs(event)
        if self._by_shard:
            for lane in event.lanes:
                instruments.set(_RATE_SHARE, lane.rate_share, {**self._gauge, PARTITION: lane.shard_id})
            for shard_id, wait in waits.items():
                instruments.set(_BACKLOG, wait, {**self._gauge, PARTITION: shard_id})
        elif event.lanes:
            instruments.set(_RATE_SHARE, min(lane.rate_share for lane in event.lanes), self._gauge)
            instruments.set(_BACKLOG, max(waits.values(), default=0.0), self._gauge)

    # ---- reading and handling

    def _update_page(self, event: events.PageRead) -> None:
        attributes = self._attributes(event.shard_id)
        self._add(_READ, event.records, attributes)
        self._add(_READ_BYTES, event.payload_bytes, attributes)
        # A page of a subscription has no request of its own: its duration is the time of waiting for records.
        if event.read_by == "polling":
            self._instruments.record(
                OPERATION_DURATION, event.duration, self._attributes(event.shard_id, operation="receive")
            )

    def _update_handed_out(self, event: events.RecordsHandedOut) -> None:
        self._add(CONSUMED, event.records, self._attributes(event.shard_id, operation="receive"))

    def _update_handled(self, event: events.RecordsHandled) -> None:
        attributes = self._attributes(event.shard_id)
        self._add(_HANDLED, event.records, attributes)
        self._instruments.record(
            PROCESS_DURATION, event.duration, self._attributes(event.shard_id, operation="process")
        )

    def _update_committed(self, event: events.Committed) -> None:
        attributes = self._attributes(event.shard_id, operation="settle")
        self._instruments.record(OPERATION_DURATION, event.duration, attributes)

    def _update_lag(self, event: events.LagMeasured) -> None:
        if self._by_shard:
            for shard in event.shards:
                self._set_lag((shard,), {**self._gauge, PARTITION: shard.shard_id})
        else:
            self._set_lag(event.shards, self._gauge)

    def _set_lag(self, shards: tuple[events.ShardLag, ...], attributes: Attributes) -> None:
        """Set the lag of the shard that is furthest behind, and the numbers of records in all shards together."""
        reading = [shard.reading_lag for shard in shards if shard.reading_lag is not None]
        handling = [shard.handling_lag for shard in shards if shard.handling_lag is not None]
        if reading:
            self._instruments.set(_READING_LAG, max(reading), attributes)
        if handling:
            self._instruments.set(_HANDLING_LAG, max(handling), attributes)
        self._instruments.set(_PREFETCHED, sum(shard.prefetched for shard in shards), attributes)
        self._instruments.set(_IN_HAND, sum(shard.in_hand for shard in shards), attributes)

    def _update_handler_retried(self, event: events.HandlerRetried) -> None:
        self._add(_HANDLER_RETRIED, event.records, self._attributes(event.shard_id, event.error_type))

    def _update_dead_lettered(self, event: events.RecordsDeadLettered) -> None:
        self._add(_DEAD_LETTERED, event.records, self._attributes(event.shard_id, event.error_type))

    def _update_dead_letter_failed(self, event: events.DeadLetterFailed) -> None:
        self._add(_DEAD_LETTER_FAILURES, 1, self._attributes(event.shard_id, event.error_type))

    def _update_stopped(self, event: events.HandlingStopped) -> None:
        self._add(_STOPS, 1, self._attributes(event.shard_id, event.error_type))

    # ---- leases and failures

    def _update_gained(self, event: events.LeaseGained) -> None:
        if event.shard_id not in self._leases:
            self._leases.add(event.shard_id)
            self._add(_LEASES, 1, self._base)
        self._count_change(event.shard_id, "gained")

    def _update_lost(self, event: events.LeaseLost) -> None:
        self._drop_lease(event.shard_id)
        self._count_change(event.shard_id, "lost")

    def _update_released(self, event: events.LeaseReleased) -> None:
        self._drop_lease(event.shard_id)
        self._count_change(event.shard_id, "finished" if event.finished else "released")

    def _update_handed_over(self, event: events.LeaseHandedOver) -> None:
        self._instruments.record(_HAND_OVER, event.duration, self._attributes(event.shard_id))

    def _drop_lease(self, shard_id: str) -> None:
        if shard_id in self._leases:
            self._leases.remove(shard_id)
            self._add(_LEASES, -1, self._base)

    def _count_change(self, shard_id: str, change: str) -> None:
        self._add(_LEASE_CHANGES, 1, self._attributes(shard_id, change=change))

    def _update_read_failed(self, event: events.ReadFailed | events.ListingFailed) -> None:
        shard_id = event.shard_id if isinstance(event, events.ReadFailed) else None
        attributes = self._attributes(shard_id, event.failure.code, call=event.operation)
        self._add(_READ_FAILURES, 1, attributes)

    def _update_store_failed(self, event: events.StoreFailed) -> None:
        self._add(_STORE_FAILURES, 1, self._attributes(error=event.failure.code))

    def _update_loss(self, event: object) -> None:
        shard_id: str | None = getattr(event, "shard_id", None)
        self._add(_LOSSES, 1, self._attributes(shard_id, type(event).__name__))

    def _update_stalled(self, event: events.Stalled) -> None:
        self._add(_STALLED, event.seconds, self._base)

    def _update_stuck(self, event: events.HandlerStuck) -> None:
        if event.shard_id not in self._stuck:
            self._stuck.add(event.shard_id)
            self._add(_STUCK, 1, self._base)

    def _update_recovered(self, event: events.HandlerRecovered) -> None:
        if event.shard_id in self._stuck:
            self._stuck.remove(event.shard_id)
            self._add(_STUCK, -1, self._base)
