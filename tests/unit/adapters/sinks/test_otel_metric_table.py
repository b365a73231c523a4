"""Which metrics does each event update, and with which attributes?"""

import threading
from typing import get_args

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from shardline import events
from shardline.adapters.sinks.otel_metric_table import METRICS, EventMetrics, Instruments
from shardline.core.consumer.grant import Grant
from shardline.model.lease import Checkpoint
from shardline.model.position import TRIM_HORIZON

SHARD = "shardId-000000000000"
DENIED = events.Failure(events.FailureKind.DENIED, "AccessDenied", "no")
PRODUCER = events.EventSource("producer", "orders", None, None, "kinesis.eu-west-1.amazonaws.com")
CONSUMER = events.EventSource("consumer", "orders", "billing", "worker-1", None)
OF_PRODUCER = {
    "messaging.system": "aws.kinesis",
    "messaging.destination.name": "orders",
    "server.address": "kinesis.eu-west-1.amazonaws.com",
}
OF_CONSUMER = {
    "messaging.system": "aws.kinesis",
    "messaging.destination.name": "orders",
    "messaging.consumer.group.name": "billing",
}
OF_WORKER = {**OF_CONSUMER, "messaging.client.id": "worker-1"}
SEND = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
RECEIVE = {"messaging.operation.name": "receive", "messaging.operation.type": "receive"}
PROCESS = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
SETTLE = {"messaging.operation.name": "settle", "messaging.operation.type": "settle"}
FAILED = ("seq", 0, 3, 2, "ValueError", "no", "bill (worker.py:12)")
PARTITION = "messaging.destination.partition.id"


def collected(emitted, source, *, by_shard=False, close=False):
    """The points of all metrics after these events: (name, attributes) and the value, or the sum of a histogram."""
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    metrics = EventMetrics(instruments, source, by_shard=by_shard)
    for event in emitted:
        metrics.update(event)
    if close:
        metrics.close()
    return points_of(reader)


def points_of(reader):
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        (metric.name, frozenset(point.attributes.items())): getattr(point, "value", getattr(point, "sum", None))
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def points(*expected):
    return {(name, frozenset(attributes.items())): value for name, attributes, value in expected}


def gained(shard_id):
    return events.LeaseGained(shard_id, Grant(shard_id, 1, 0.0), TRIM_HORIZON, Checkpoint(TRIM_HORIZON), None)


def test_a_request():
    event = events.RequestAnswered(3, 40, 2_000, 0.02, 1, None, 1_700_000_000.0)
    assert collected([event], PRODUCER) == points(
        ("messaging.client.operation.duration", OF_PRODUCER | SEND, 0.02),
        ("messaging.client.sent.messages", OF_PRODUCER | SEND, 40),
        ("shardline.producer.sent.entries", OF_PRODUCER, 3),
        ("shardline.producer.refused.entries", OF_PRODUCER, 1),
        ("shardline.producer.sent.size", OF_PRODUCER, 2_000),
    )


def test_a_failed_request_has_the_code_as_its_error_type():
    event = events.RequestAnswered(3, 40, 2_000, 0.02, 3, "InternalFailure", 1_700_000_000.0)
    attributes = OF_PRODUCER | SEND | {"error.type": "InternalFailure"}
    found = collected([event], PRODUCER)
    assert found["messaging.client.operation.duration", frozenset(attributes.items())] == 0.02
    assert found["messaging.client.sent.messages", frozenset(attributes.items())] == 40


LANES = tuple(
    events.LaneStats(f"shard-{place}", 1, 2, 3, share, tripped=False) for place, share in enumerate((1.0, 0.25))
)
OF_PRODUCERS = [
    (
        events.RecordsDelivered(40, 1_500, 0.15, (events.ShardDelivery(SHARD, 40, 1_500, 0.15),)),
        points(
            ("shardline.producer.delivered.records", OF_PRODUCER, 40),
            ("shardline.producer.delivered.size", OF_PRODUCER, 1_500),
            ("shardline.producer.delivery.duration", OF_PRODUCER, 0.15),
        ),
    ),
    (
        events.RecordsRetried(5, SHARD, "Throttled", "slow down"),
        points(("shardline.producer.retried.records", OF_PRODUCER | {"error.type": "Throttled"}, 5)),
    ),
    (
        events.RecordsFailed(5, "Expired", "too old"),
        points(("shardline.producer.failed.records", OF_PRODUCER | {"error.type": "Expired"}, 5)),
    ),
    (events.ShardsChanged(4, ("a",), ()), points(("shardline.producer.open_shards", OF_PRODUCER, 4))),
    (
        events.ProducerMeasured(100, 5_000, 64_000, 0.5, 2, LANES),
        points(
            ("shardline.producer.outstanding.records", OF_PRODUCER, 100),
            ("shardline.producer.buffer.usage", OF_PRODUCER, 5_000),
            ("shardline.producer.buffer.limit", OF_PRODUCER, 64_000),
            ("shardline.producer.oldest_record.age", OF_PRODUCER, 0.5),
            ("shardline.producer.requests.in_flight", OF_PRODUCER, 2),
            ("shardline.producer.rate_share", OF_PRODUCER, 0.25),
            ("shardline.producer.shard_backlog", OF_PRODUCER, 0.004),
        ),
    ),
]


@pytest.mark.parametrize(("event", "expected"), OF_PRODUCERS, ids=[type(event).__name__ for event, _ in OF_PRODUCERS])
def test_events_of_producers(event, expected):
    assert {name: value for name, value in collected([event], PRODUCER, close=True).items() if value} == expected


def test_the_deliveries_of_a_request_to_many_shards_are_counted_once():
    shards = tuple(events.ShardDelivery(f"shard-{place}", 10, 100, place / 10) for place in range(4))
    delivered = events.RecordsDelivered(40, 400, 0.3, shards)
    assert collected([delivered], PRODUCER) == points(
        ("shardline.producer.delivered.records", OF_PRODUCER, 40),
        ("shardline.producer.delivered.size", OF_PRODUCER, 400),
        ("shardline.producer.delivery.duration", OF_PRODUCER, 0.3),
    )
    by_shard = collected([delivered], PRODUCER, by_shard=True)
    assert sorted(
        (dict(attributes)[PARTITION], value)
        for (name, attributes), value in by_shard.items()
        if name.endswith(".duration")
    ) == [(f"shard-{place}", place / 10) for place in range(4)]


def test_the_producers_of_a_stream_share_their_totals():
    """Also after one of them was closed: a total that falls looks like a restart of the process."""
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    first, second = (EventMetrics(instruments, PRODUCER, by_shard=False) for _ in range(2))
    for metrics in (first, first, second):
        metrics.update(events.RecordsFailed(10, "Expired", "too old"))
    first.close()
    second.update(events.RecordsFailed(5, "Expired", "too old"))
    found = points_of(reader)
    assert (
        found["shardline.producer.failed.records", frozenset((OF_PRODUCER | {"error.type": "Expired"}).items())] == 35
    )


def test_whole_numbers_stay_whole():
    found = collected([events.RecordsHandedOut(SHARD, 100)] * 3, CONSUMER)
    (total,) = found.values()
    assert total == 300
    assert isinstance(total, int)


def test_threads_that_add_to_a_total_lose_nothing():
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    event = events.RecordsHandedOut(SHARD, 1)

    def add():
        metrics = EventMetrics(instruments, CONSUMER, by_shard=False)
        for _ in range(5_000):
            metrics.update(event)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(points_of(reader).values()) == [20_000]


def test_few_sets_of_attributes_are_remembered_and_no_count_is_lost(monkeypatch):
    monkeypatch.setattr("shardline.adapters.sinks.otel_metric_table._KNOWN_MAX", 2)
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    metrics = EventMetrics(instruments, PRODUCER, by_shard=False)
    for number in (*range(10), *range(10)):
        metrics.update(events.RecordsFailed(1, f"code-{number}", "too old"))
    assert len(metrics._known) <= 2
    assert len(metrics._totals) <= 2
    assert sorted((dict(attributes)["error.type"], value) for (_, attributes), value in points_of(reader).items()) == [
        (f"code-{number}", 2) for number in range(10)
    ]


def of_error(error_type):
    return OF_CONSUMER | {"error.type": error_type}


LAGS = (events.ShardLag("shard-0", 1.0, 7.0, 10, 2), events.ShardLag("shard-1", None, None, 5, 1))
OF_CONSUMERS = [
    (
        events.PageRead(SHARD, 100, 9_000, 0.03, 0.0, "polling"),
        points(
            ("shardline.consumer.read.records", OF_CONSUMER, 100),
            ("shardline.consumer.read.size", OF_CONSUMER, 9_000),
            ("messaging.client.operation.duration", OF_CONSUMER | RECEIVE, 0.03),
        ),
    ),
    (
        events.RecordsHandedOut(SHARD, 100),
        points(("messaging.client.consumed.messages", OF_CONSUMER | RECEIVE, 100)),
    ),
    (
        events.RecordsHandled(SHARD, 100, 1.5),
        points(
            ("shardline.consumer.handled.records", OF_CONSUMER, 100),
            ("messaging.process.duration", OF_CONSUMER | PROCESS, 1.5),
        ),
    ),
    (
        events.Committed(SHARD, TRIM_HORIZON, 0.004),
        points(("messaging.client.operation.duration", OF_CONSUMER | SETTLE, 0.004)),
    ),
    (
        events.LagMeasured(LAGS),
        points(
            ("shardline.consumer.reading.lag", OF_WORKER, 1.0),
            ("shardline.consumer.handling.lag", OF_WORKER, 7.0),
            ("shardline.consumer.prefetched.records", OF_WORKER, 15),
            ("shardline.consumer.in_hand.records", OF_WORKER, 3),
        ),
    ),
    (
        events.HandlerRetried(SHARD, *FAILED, 1.0),
        points(("shardline.consumer.retried.records", of_error("ValueError"), 3)),
    ),
    (
        events.RecordsDeadLettered(SHARD, *FAILED),
        points(("shardline.consumer.dead_lettered.records", of_error("ValueError"), 3)),
    ),
    (
        events.DeadLetterFailed(SHARD, *FAILED, 1.0),
        points(("shardline.consumer.dead_letter.failures", of_error("ValueError"), 1)),
    ),
    (
        events.HandlingStopped(SHARD, *FAILED),
        points(("shardline.consumer.handling.stops", of_error("ValueError"), 1)),
    ),
    (
        events.LeaseHandedOver(SHARD, "worker-2", 0.7),
        points(("shardline.consumer.hand_over.duration", OF_CONSUMER, 0.7)),
    ),
    (
        events.ReadFailed(SHARD, "GetRecords", DENIED, 1.0),
        points(
            (
                "shardline.consumer.read.failures",
                of_error("AccessDenied") | {"messaging.operation.name": "GetRecords"},
                1,
            )
        ),
    ),
    (
        events.ListingFailed("ListShards", DENIED, 1.0),
        points(
            (
                "shardline.consumer.read.failures",
                of_error("AccessDenied") | {"messaging.operation.name": "ListShards"},
                1,
            )
        ),
    ),
    (events.StoreFailed(DENIED, 2), points(("shardline.consumer.store.failures", of_error("AccessDenied"), 1))),
    (events.RecordsTrimmed(SHARD, "late"), points(("shardline.consumer.losses", of_error("RecordsTrimmed"), 1))),
    (events.ProgressLost(4), points(("shardline.consumer.losses", of_error("ProgressLost"), 1))),
    (events.Stalled(2.5), points(("shardline.consumer.stalled.time", OF_CONSUMER, 2.5))),
]


@pytest.mark.parametrize(("event", "expected"), OF_CONSUMERS, ids=[type(event).__name__ for event, _ in OF_CONSUMERS])
def test_events_of_consumers(event, expected):
    assert collected([event], CONSUMER) == expected


def test_waiting_for_a_page_of_a_subscription_is_no_operation():
    found = collected([events.PageRead(SHARD, 1, 2, 290.0, 0.0, "fan-out")], CONSUMER)
    assert {name for name, _ in found} == {"shardline.consumer.read.records", "shardline.consumer.read.size"}


def test_leases_are_counted_as_they_come_and_go():
    coming = [gained("a"), gained("b"), gained("c"), gained("d"), gained("d")]
    going = [
        events.LeaseLost("a", "late"),
        events.LeaseReleased("b", finished=True),
        events.LeaseReleased("c", finished=False),
    ]
    held = "shardline.consumer.leases", frozenset(OF_CONSUMER.items())
    assert collected(coming, CONSUMER)[held] == 4
    found = collected([*coming, *going, events.LeaseLost("z", "never held")], CONSUMER)
    assert found[held] == 1
    assert collected([*coming, *going], CONSUMER, close=True)[held] == 0
    changes = {
        dict(attributes)["shardline.lease.change"]: value
        for (name, attributes), value in found.items()
        if name == "shardline.consumer.lease.changes"
    }
    assert changes == {"gained": 5, "lost": 2, "finished": 1, "released": 1}


def test_stuck_handlers_are_counted_until_they_recover():
    stuck = [events.HandlerStuck(shard, "seq", 0, 1, 60.0) for shard in ("a", "b", "b")]
    name = "shardline.consumer.stuck_handlers", frozenset(OF_CONSUMER.items())
    assert collected(stuck, CONSUMER)[name] == 2
    recovered = [events.HandlerRecovered("a", 61.0), events.HandlerRecovered("c", 61.0)]
    assert collected([*stuck, *recovered], CONSUMER)[name] == 1
    assert collected(stuck, CONSUMER, close=True)[name] == 0


def test_the_shard_is_an_attribute_only_on_request():
    emitted = [
        events.RecordsHandled(SHARD, 100, 1.5),
        events.LagMeasured(LAGS),
        events.RecordsFailed(5, "Expired", "too old"),
    ]
    assert not any(PARTITION in dict(attributes) for _, attributes in collected(emitted, CONSUMER))
    found = collected(emitted, CONSUMER, by_shard=True)
    assert found["messaging.process.duration", frozenset((OF_CONSUMER | PROCESS | {PARTITION: SHARD}).items())] == 1.5
    lags = {
        dict(attributes)[PARTITION]: value for (name, attributes), value in found.items() if name.endswith("ing.lag")
    }
    assert lags == {"shard-0": 7.0}
    shares = collected([events.ProducerMeasured(1, 2, 3, 0.0, 0, LANES)], PRODUCER, by_shard=True)
    assert {
        dict(attributes)[PARTITION]: value
        for (name, attributes), value in shares.items()
        if name == "shardline.producer.rate_share"
    } == {"shard-0": 1.0, "shard-1": 0.25}
    assert {
        dict(attributes)[PARTITION]: value
        for (name, attributes), value in shares.items()
        if name == "shardline.producer.shard_backlog"
    } == {"shard-0": 0.001, "shard-1": 0.004}


def test_a_producer_without_shards_has_no_rate_share():
    found = collected([events.ProducerMeasured(1, 2, 3, 0.0, 0, ())], PRODUCER)
    assert "shardline.producer.rate_share" not in {name for name, _ in found}


def test_an_unknown_event_is_ignored():
    assert collected([object()], CONSUMER) == {}


def test_no_event_has_the_name_of_a_handled_one_twice():
    metrics = EventMetrics(
        Instruments(MeterProvider(shutdown_on_exit=False).get_meter("test")), CONSUMER, by_shard=False
    )
    assert set(metrics._updates) <= set(get_args(events.Event))


def test_each_metric_has_one_name_and_a_sentence():
    assert len({metric.name for metric in METRICS}) == len(METRICS) > 30
    assert all(metric.description.endswith(".") for metric in METRICS)
