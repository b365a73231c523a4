"""Which metrics does each event change?"""

from typing import get_args

import pytest
from tests.harness.event_examples import CONSUMER_EXAMPLES, EXAMPLES, FAILURE, PRODUCER_EXAMPLES, THROTTLED

from shardline import events as ev
from shardline.adapters.sinks import metric_table as m
from shardline.adapters.sinks.metric_table import Change, Meter, backlogs
from shardline.adapters.sinks.otel_metric_table import EventMetrics


def changed(*events, by_shard=False):
    """The last value of each metric that the events changed, with its labels."""
    meter = Meter(by_shard=by_shard)
    return {
        (change.metric.name, *change.labels, *([change.shard_id] if by_shard and change.shard_id else [])): change.value
        for event in events
        for change in meter.changes(event)
    }


def test_there_is_an_example_of_every_event():
    assert set(EXAMPLES) == set(get_args(ev.Event))


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_every_event_counts_somewhere_and_under_its_own_side(kind):
    changes = Meter(by_shard=True).changes(EXAMPLES[kind])
    assert changes
    side = "producer_" if kind in get_args(ev.ProducerEvent) else "consumer_"
    assert all(change.metric.name.startswith(side) for change in changes)
    assert all(len(change.labels) == len(change.metric.labels) for change in changes)


ONLY_HERE = {
    ev.ShardMapFailed,  # an error of the producer's own requests; OpenTelemetry has no metric for these
    ev.ConsumerFailed,  # the end of a consumer, which its exception reports
    ev.HandOverOverdue,  # OpenTelemetry counts the release that follows
    ev.StoreRecovered,  # ends the gauge consumer_store_up; OpenTelemetry counts the failures
    ev.Subscribed,  # OpenTelemetry counts pages, however they are read
}
ONLY_IN_OPENTELEMETRY = {ev.ProgressLost}  # here, it is one of the other events


def test_both_tables_of_metrics_translate_the_same_events():
    """If you add a metric, this test names the other table: ``metric_table`` and ``otel_metric_table``."""
    opentelemetry = EventMetrics(None, ev.EventSource("consumer", "orders"), by_shard=False)._updates
    assert set(m._TRANSLATIONS) - set(opentelemetry) == ONLY_HERE
    assert set(opentelemetry) - set(m._TRANSLATIONS) == ONLY_IN_OPENTELEMETRY


def test_every_metric_is_changed_by_some_event():
    failed_request = EXAMPLES[ev.RequestAnswered]._replace(code="InternalFailure")
    events = [*EXAMPLES.values(), failed_request]
    changes = [change for event in events for change in Meter(by_shard=False).changes(event)]
    assert {change.metric for change in changes} == set(m.METRICS)
    assert {*m.PRODUCER_METRICS, *m.CONSUMER_METRICS} == set(m.METRICS)
    assert len({metric.name for metric in m.METRICS}) == len(m.METRICS)


def test_a_request():
    assert changed(EXAMPLES[ev.RequestAnswered]) == {
        ("producer_requests",): 1,
        ("producer_request_seconds",): 0.02,
        ("producer_entries",): 4,
        ("producer_entry_records",): 200,
        ("producer_entry_bytes",): 8_000,
        ("producer_refused_entries",): 1,
    }
    failed = changed(EXAMPLES[ev.RequestAnswered]._replace(code="InternalFailure", refused_entries=0))
    assert failed["producer_failed_requests",] == 1
    assert ("producer_refused_entries",) not in failed


def test_deliveries_are_split_by_shard_on_request():
    assert changed(EXAMPLES[ev.RecordsDelivered])["producer_delivered_records",] == 150
    split = changed(EXAMPLES[ev.RecordsDelivered], by_shard=True)
    assert split["producer_delivered_records", "shard-2"] == 50
    assert split["producer_delivered_bytes", "shard-1"] == 4_000
    assert split["producer_put_to_ack_seconds",] == 0.12


def test_errors_are_counted_by_code():
    retried = changed(EXAMPLES[ev.RecordsRetried])
    assert retried == {("producer_retried_records",): 50, ("producer_errors", THROTTLED): 50}
    assert (
        changed(EXAMPLES[ev.RecordsRetried]._replace(shard_id=None), by_shard=True)["producer_retried_records",] == 50
    )
    assert changed(EXAMPLES[ev.RecordsFailed])["producer_errors", "Expired"] == 2


def test_there_are_not_too_many_codes():
    meter = Meter(by_shard=False)
    codes = {meter.changes(ev.RecordsFailed(1, f"Code{number}", ""))[1].labels[0] for number in (*range(200), 0, 1)}
    assert codes == {*(f"Code{number}" for number in range(50)), "other"}


def test_the_lanes_of_a_producer():
    assert changed(EXAMPLES[ev.ProducerMeasured]) == {
        ("producer_outstanding_records",): 70,
        ("producer_buffered_bytes",): 2_800,
        ("producer_buffer_max_bytes",): 64_000_000,
        ("producer_oldest_waiting_seconds",): 1.5,
        ("producer_requests_in_flight",): 2,
        ("producer_tripped_shards",): 1,
        ("producer_queued_entries",): 4,
        ("producer_rate_ratio",): 0.5,
        ("producer_shard_backlog_seconds",): 0.006,
    }
    nothing = changed(EXAMPLES[ev.ProducerMeasured]._replace(lanes=()))
    assert (nothing["producer_rate_ratio",], nothing["producer_queued_entries",]) == (1.0, 0.0)
    assert nothing["producer_shard_backlog_seconds",] == 0.0


def lane(shard_id, entries, size, share=1.0):
    return ev.LaneStats(shard_id, entries, size, 1, share, tripped=False)


def test_a_hot_shard_has_a_backlog_even_if_it_is_not_throttled():
    lanes = (
        lane("bytes", 60, 3 << 20),
        lane("entries", 4_000, 1_000),
        lane("throttled", 1_000, 1, 0.25),
        lane("", 9_000, 9),
    )
    measured = EXAMPLES[ev.ProducerMeasured]._replace(lanes=lanes)
    assert backlogs(measured) == {"bytes": 3.0, "entries": 4.0, "throttled": 4.0}
    assert changed(measured)["producer_shard_backlog_seconds",] == 4.0
    assert changed(measured, by_shard=True)["producer_shard_backlog_seconds", "bytes"] == 3.0


def test_a_shard_that_is_gone_goes_back_to_its_idle_value():
    measured = EXAMPLES[ev.ProducerMeasured]
    after = changed(measured, measured._replace(lanes=measured.lanes[1:]), by_shard=True)
    assert after["producer_rate_ratio", "shard-1"] == 1.0
    assert after["producer_queued_entries", "shard-1"] == 0
    assert after["producer_queued_entries", "shard-2"] == 1


def test_lag_is_the_highest_of_all_shards_and_unknown_lag_does_not_count():
    measured = EXAMPLES[ev.LagMeasured]
    assert changed(measured) == {
        ("consumer_handling_lag_seconds",): 5.0,
        ("consumer_reading_lag_seconds",): 2.0,
        ("consumer_prefetched_records",): 35,
        ("consumer_in_hand_records",): 10,
    }
    split = changed(measured, by_shard=True)
    assert split["consumer_handling_lag_seconds", "shard-1"] == 5.0
    assert ("consumer_handling_lag_seconds", "shard-2") not in split


def test_leases_and_stuck_handlers_are_counted_by_shard():
    gained = EXAMPLES[ev.LeaseGained]
    second = gained._replace(shard_id="shard-2")
    held = changed(gained, second, gained)
    assert held["consumer_leases",] == 2
    stuck = EXAMPLES[ev.HandlerStuck]
    assert changed(gained, stuck)["consumer_stuck_handlers",] == 1
    assert changed(gained, stuck, EXAMPLES[ev.HandlerRecovered])["consumer_stuck_handlers",] == 0
    lost = changed(gained, second, stuck, EXAMPLES[ev.LeaseLost])
    assert (lost["consumer_leases",], lost["consumer_stuck_handlers",], lost["consumer_leases_lost",]) == (1, 0, 1)
    assert changed(gained, EXAMPLES[ev.LeaseReleased])["consumer_leases",] == 0


def test_the_store_is_up_again_after_it_recovered():
    assert changed(EXAMPLES[ev.StoreFailed])["consumer_store_up",] == 0
    assert changed(EXAMPLES[ev.StoreFailed])["consumer_errors", "lease store", THROTTLED] == 1
    assert changed(EXAMPLES[ev.StoreFailed], EXAMPLES[ev.StoreRecovered])["consumer_store_up",] == 1


@pytest.mark.parametrize("kind", [ev.ReadFailed, ev.ListingFailed, ev.ConsumerFailed], ids=lambda kind: kind.__name__)
def test_failed_requests_are_counted_by_operation_and_code(kind):
    event = EXAMPLES[kind]
    assert changed(event)["consumer_errors", event.operation, FAILURE.code] == 1


def test_lost_records_always_count_as_losses():
    for kind in (ev.RecordsTrimmed, ev.ShardTrimmed, ev.PositionLost):
        assert changed(EXAMPLES[kind]) == {("consumer_record_losses",): 1, ("consumer_events", kind.__name__): 1}


def test_handlers():
    assert changed(EXAMPLES[ev.HandlerRetried])["consumer_handler_errors", "KeyError"] == 1
    assert changed(EXAMPLES[ev.RecordsDeadLettered])["consumer_dead_lettered_records",] == 5
    assert changed(EXAMPLES[ev.HandlingStopped])["consumer_stopped_records",] == 5
    assert changed(EXAMPLES[ev.RecordsHandled]) == {
        ("consumer_handled_records",): 100,
        ("consumer_handler_seconds",): 0.4,
    }


def test_counters_that_alarms_watch_begin_at_zero():
    first = Meter(by_shard=False).first_values(m.CONSUMER_METRICS)
    assert Change(m.DEAD_LETTERED, 0.0) in first
    assert Change(m.STORE_UP, 1.0) in first
    assert Change(m.HANDLED, 0.0) in first
    assert not [change for change in first if change.metric.kind == "histogram" or change.metric.labels]
    split = Meter(by_shard=True).first_values(m.CONSUMER_METRICS)
    assert Change(m.DEAD_LETTERED, 0.0) in split
    assert not [change for change in split if change.metric.has_shards]


def test_other_events_are_counted_by_their_type():
    for event in (*PRODUCER_EXAMPLES, *CONSUMER_EXAMPLES):
        for change in Meter(by_shard=False).changes(event):
            if change.metric in (m.PRODUCER_EVENTS, m.CONSUMER_EVENTS):
                assert change.labels == (type(event).__name__,)
