"""Turns events into OpenTelemetry metrics.

The first metrics are those of the semantic conventions for messaging. The others are our own, under ``shardline.``.

Invariants:

- ``METRICS`` names every metric, and the documentation lists the same metrics.
- Attributes have few values: no keys, no sequence numbers, and shards only on request (``by_shard``).
- An unknown event is ignored, because a newer version may emit more events.
- A request delivers records to many shards, with an event for each shard. Unless the metrics are split by shard, the
  events are summed up and update the metrics once, with the next event of the request, because each update costs
  microseconds.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

from opentelemetry.metrics import Meter

from shardline import events
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
    "messaging.process.duration", "histogram", "s", "How long your code had a page, a part of it, or a batch."
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
class Instruments:
    """The instruments of one meter, which all producers and consumers share."""

    def __init__(self, meter: Meter) -> None:
        self._instruments: dict[str, Any] = {}
        for name, kind, unit, description in METRICS:
            self._instruments[name] = _create(meter, kind)(name, unit, description)

    def add(self, metric: Metric, value: float, attributes: Attributes) -> None:
        self._instruments[metric.name].add(value, attributes)

    def record(self, metric: Metric, value: float, attributes: Attributes) -> None:
        """Record a duration."""
        self._instruments[metric.name].record(value, attributes)

    def set(self, metric: Metric, value: float, attributes: Attributes) -> None:
        self._instruments[metric.name].set(value, attributes)


def _create(meter: Meter, kind: Kind) -> Callable[[str, str, str], Any]:
    """Return the method of the meter that creates this kind of instrument."""
    match kind:
        case "counter":
            return meter.create_counter
        case "up-down counter":
            return meter.create_up_down_counter
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


def _operation(name: str) -> dict[str, str]:
    return {OPERATION: name, OPERATION_TYPE: name}


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
        self._delivered: list[events.RecordsDelivered] = []  # deliveries that are not in the metrics yet
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
        update = self._updates.get(type(event))
        if update is not None:
            update(event)

    def close(self) -> None:
        """Count the last deliveries, and subtract the leases and stuck handlers that this consumer still counts."""
        self._count_delivered()
        self._instruments.add(_LEASES, -len(self._leases), self._base)
        self._instruments.add(_STUCK, -len(self._stuck), self._base)
        self._leases.clear()
        self._stuck.clear()

    def _attributes(self, shard_id: str | None = None, error: str | None = None, **more: str) -> dict[str, str]:
        attributes = {**self._base, **more}
        if error is not None:
            attributes[ERROR] = error
        if self._by_shard and shard_id:
            attributes[PARTITION] = shard_id
        return attributes

    # ---- the producer

    def _update_request(self, event: events.RequestAnswered) -> None:
        self._count_delivered()
        instruments = self._instruments
        attributes = self._attributes(error=event.code) | _operation("send")
        instruments.record(OPERATION_DURATION, event.duration, attributes)
        instruments.add(SENT, event.records, attributes)
        instruments.add(_ENTRIES, event.entries, self._base)
        instruments.add(_REFUSED, event.refused_entries, self._base)
        instruments.add(_SENT_BYTES, event.size_bytes, self._base)

    def _update_delivered(self, event: events.RecordsDelivered) -> None:
        self._delivered.append(event)
        if self._by_shard:
            self._count_delivered()

    def _count_delivered(self) -> None:
        delivered, self._delivered = self._delivered, []
        if delivered:
            attributes = self._attributes(delivered[0].shard_id)
            self._instruments.add(_DELIVERED, sum([event.records for event in delivered]), attributes)
            self._instruments.add(_DELIVERED_BYTES, sum([event.payload_bytes for event in delivered]), attributes)
            self._instruments.record(_DELIVERY_DURATION, max([event.latency for event in delivered]), attributes)

    def _update_retried(self, event: events.RecordsRetried) -> None:
        self._instruments.add(_RETRIED, event.records, self._attributes(event.shard_id, event.code))

    def _update_failed(self, event: events.RecordsFailed) -> None:
        self._instruments.add(_FAILED, event.records, self._attributes(error=event.code))

    def _update_shards(self, event: events.ShardsChanged) -> None:
        self._instruments.set(_OPEN_SHARDS, event.open_shards, self._gauge)

    def _update_producer(self, event: events.ProducerMeasured) -> None:
        self._count_delivered()
        instruments = self._instruments
        instruments.set(_OUTSTANDING, event.outstanding, self._gauge)
        instruments.set(_BUFFER, event.buffered_bytes, self._gauge)
        instruments.set(_BUFFER_LIMIT, event.buffer_max_bytes, self._gauge)
        instruments.set(_OLDEST, event.oldest_waiting, self._gauge)
        instruments.set(_IN_FLIGHT, event.requests_in_flight, self._gauge)
        if self._by_shard:
            for lane in event.lanes:
                instruments.set(_RATE_SHARE, lane.rate_share, {**self._gauge, PARTITION: lane.shard_id})
        elif event.lanes:
            instruments.set(_RATE_SHARE, min(lane.rate_share for lane in event.lanes), self._gauge)

    # ---- reading and handling

    def _update_page(self, event: events.PageRead) -> None:
        attributes = self._attributes(event.shard_id)
        self._instruments.add(_READ, event.records, attributes)
        self._instruments.add(_READ_BYTES, event.payload_bytes, attributes)
        # A page of a subscription has no request of its own: its duration is the time of waiting for records.
        if event.read_by == "polling":
            self._instruments.record(OPERATION_DURATION, event.duration, attributes | _operation("receive"))

    def _update_handed_out(self, event: events.RecordsHandedOut) -> None:
        self._instruments.add(CONSUMED, event.records, self._attributes(event.shard_id) | _operation("receive"))

    def _update_handled(self, event: events.RecordsHandled) -> None:
        attributes = self._attributes(event.shard_id)
        self._instruments.add(_HANDLED, event.records, attributes)
        self._instruments.record(PROCESS_DURATION, event.duration, attributes | _operation("process"))

    def _update_committed(self, event: events.Committed) -> None:
        attributes = self._attributes(event.shard_id) | _operation("settle")
        self._instruments.record(OPERATION_DURATION, event.duration, attributes)

    def _update_lag(self, event: events.LagMeasured) -> None:
        if self._by_shard:
            for shard in event.shards:
                self._set_lag((shard,), {**self._gauge, PARTITION: shard.shard_id})
        else:
            self._set_lag(event.shards, self._gauge)

    def _set_lag(self, shards: tuple[events.ShardLag, ...], attributes: Attributes) -> None:
        """Set the lag of the shard that is furthest behind, and the sums of the records."""
        reading = [shard.reading_lag for shard in shards if shard.reading_lag is not None]
        handling = [shard.handling_lag for shard in shards if shard.handling_lag is not None]
        if reading:
            self._instruments.set(_READING_LAG, max(reading), attributes)
        if handling:
            self._instruments.set(_HANDLING_LAG, max(handling), attributes)
        self._instruments.set(_PREFETCHED, sum(shard.prefetched for shard in shards), attributes)
        self._instruments.set(_IN_HAND, sum(shard.in_hand for shard in shards), attributes)

    def _update_handler_retried(self, event: events.HandlerRetried) -> None:
        self._instruments.add(_HANDLER_RETRIED, event.records, self._attributes(event.shard_id, event.error_type))

    def _update_dead_lettered(self, event: events.RecordsDeadLettered) -> None:
        self._instruments.add(_DEAD_LETTERED, event.records, self._attributes(event.shard_id, event.error_type))

    def _update_dead_letter_failed(self, event: events.DeadLetterFailed) -> None:
        self._instruments.add(_DEAD_LETTER_FAILURES, 1, self._attributes(event.shard_id, event.error_type))

    def _update_stopped(self, event: events.HandlingStopped) -> None:
        self._instruments.add(_STOPS, 1, self._attributes(event.shard_id, event.error_type))

    # ---- leases and failures

    def _update_gained(self, event: events.LeaseGained) -> None:
        if event.shard_id not in self._leases:
            self._leases.add(event.shard_id)
            self._instruments.add(_LEASES, 1, self._base)
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
            self._instruments.add(_LEASES, -1, self._base)

    def _count_change(self, shard_id: str, change: str) -> None:
        self._instruments.add(_LEASE_CHANGES, 1, self._attributes(shard_id, **{CHANGE: change}))

    def _update_read_failed(self, event: events.ReadFailed | events.ListingFailed) -> None:
        shard_id = event.shard_id if isinstance(event, events.ReadFailed) else None
        attributes = self._attributes(shard_id, event.failure.code, **{OPERATION: event.operation})
        self._instruments.add(_READ_FAILURES, 1, attributes)

    def _update_store_failed(self, event: events.StoreFailed) -> None:
        self._instruments.add(_STORE_FAILURES, 1, self._attributes(error=event.failure.code))

    def _update_loss(self, event: object) -> None:
        shard_id: str | None = getattr(event, "shard_id", None)
        self._instruments.add(_LOSSES, 1, self._attributes(shard_id, type(event).__name__))

    def _update_stalled(self, event: events.Stalled) -> None:
        self._instruments.add(_STALLED, event.seconds, self._base)

    def _update_stuck(self, event: events.HandlerStuck) -> None:
        if event.shard_id not in self._stuck:
            self._stuck.add(event.shard_id)
            self._instruments.add(_STUCK, 1, self._base)

    def _update_recovered(self, event: events.HandlerRecovered) -> None:
        if event.shard_id in self._stuck:
            self._stuck.remove(event.shard_id)
            self._instruments.add(_STUCK, -1, self._base)
