"""Under which names do events count in CloudWatch?"""

import pytest
from tests.harness.event_examples import (
    CONSUMER,
    CONSUMER_EXAMPLES,
    EXAMPLES,
    FAILURE,
    PRODUCER,
    PRODUCER_EXAMPLES,
    THROTTLED,
)  # fmt: skip

from shardline import events as ev
from shardline.adapters.sinks.cloudwatch_names import own_name, own_unit, translation
from shardline.adapters.sinks.metric_table import METRICS

STREAM = (("StreamName", "orders"),)
TASK = (("Operation", "ProcessTask"), ("ShardId", "shard-1"))
WORKER = (("Operation", "RenewAllLeases"), ("WorkerIdentifier", "worker-1"))


def samples(names, source, *events, by_shard=False):
    """The last sample of each name and dimensions."""
    translate = translation(names, source, by_shard=by_shard)
    return {(one.name, one.dimensions): one for event in events for one in translate.samples(event)}


def values(names, source, *events, dimensions, by_shard=False):
    found = samples(names, source, *events, by_shard=by_shard)
    return {name: one.value for (name, where), one in found.items() if where == dimensions}


# ---- our own names


def test_own_names_are_those_of_prometheus_in_camel_case():
    found = samples("shardline", PRODUCER, *PRODUCER_EXAMPLES)
    delivered = found["ProducerDeliveredRecords", (("Stream", "orders"),)]
    assert (delivered.value, delivered.unit, delivered.is_sum) == (150, "Count", True)
    latency = found["ProducerPutToAck", (("Stream", "orders"),)]
    assert (latency.value, latency.unit, latency.is_sum) == (0.12, "Seconds", False)
    by_code = found["ProducerErrors", (("Stream", "orders"), ("Code", THROTTLED))]
    assert by_code.value == 50


def test_own_names_of_a_consumer_have_the_group():
    found = samples("shardline", CONSUMER, *CONSUMER_EXAMPLES, by_shard=True)
    base = (("Stream", "orders"), ("Group", "billing"))
    assert found["ConsumerHandlingLagSeconds", (*base, ("ShardId", "shard-1"))].value == 5.0
    assert found["ConsumerRead", (*base, ("ReadBy", "polling"))].unit == "Seconds"
    assert found["ConsumerHandlerErrors", (*base, ("ErrorType", "KeyError"))].value == 1
    without = samples("shardline", CONSUMER._replace(group=None), EXAMPLES[ev.RecordsHandled])
    assert ("ConsumerHandler", (("Stream", "orders"), ("Group", "-"))) in without


def test_own_names_are_unique_and_have_units():
    assert len({own_name(metric) for metric in METRICS}) == len(METRICS)
    units = {metric.name: own_unit(metric) for metric in METRICS}
    assert units["producer_rate_ratio"] == "None"
    assert units["producer_buffered_bytes"] == "Bytes"
    assert units["consumer_handling_lag_seconds"] == "Seconds"
    assert units["consumer_leases"] == "Count"


# ---- the KPL's names


def test_the_names_of_the_kpl():
    found = values("kpl", PRODUCER, *PRODUCER_EXAMPLES, dimensions=STREAM)
    assert found == {
        "RequestTime": 20.0,
        "KinesisRecordsPut": 3,
        "KinesisRecordsDataPut": 6_000,
        "KinesisRecordsPerPutRecordsRequest": 4,
        "UserRecordsPerPutRecordsRequest": 200,
        "UserRecordsPerKinesisRecord": 50,
        "UserRecordsPut": 150,
        "UserRecordsDataPut": 6_000,
        "BufferingTime": pytest.approx(100.0),
        "RetriesPerRecord": 0,
        "AllErrors": 2,
        "UserRecordExpired": 2,
        "UserRecordsReceived": 150 + 2 + 70,
        "UserRecordsPending": 70,
    }
    by_code = values("kpl", PRODUCER, *PRODUCER_EXAMPLES, dimensions=(*STREAM, ("ErrorCode", THROTTLED)))
    assert by_code == {"ErrorsByCode": 50}
    assert values("kpl", PRODUCER, *PRODUCER_EXAMPLES, dimensions=())["UserRecordsPut"] == 150, "the global level"


def test_the_kpl_counts_by_shard_on_request():
    shard = (*STREAM, ("ShardId", "shard-1"))
    assert values("kpl", PRODUCER, EXAMPLES[ev.RecordsDelivered], dimensions=shard) == {}
    split = values("kpl", PRODUCER, EXAMPLES[ev.RecordsDelivered], dimensions=shard, by_shard=True)
    assert split["UserRecordsPut"] == 100
    retried = (*STREAM, ("ShardId", "shard-2"), ("ErrorCode", THROTTLED))
    assert values("kpl", PRODUCER, EXAMPLES[ev.RecordsRetried], dimensions=retried, by_shard=True)["ErrorsByCode"] == 50


def test_the_records_that_the_kpl_received_are_counted_once():
    translate = translation("kpl", PRODUCER, by_shard=False)
    measured, delivered = EXAMPLES[ev.ProducerMeasured], EXAMPLES[ev.RecordsDelivered]

    def received(*events):
        found = [one for event in events for one in translate.samples(event)]
        return sum(one.value for one in found if one.name == "UserRecordsReceived" and one.dimensions == STREAM)

    assert received(measured) == 70
    assert received(delivered._replace(records=70), measured._replace(outstanding=0)) == 0
    assert received(delivered._replace(records=5), measured._replace(outstanding=10)) == 15


def test_retries_per_record_of_the_kpl():
    retried, delivered = EXAMPLES[ev.RecordsRetried], EXAMPLES[ev.RecordsDelivered]
    sample = samples("kpl", PRODUCER, retried, delivered._replace(records=50))["RetriesPerRecord", STREAM]
    assert (sample.value, sample.times) == (1.0, 50)


def test_a_failed_request_stored_nothing():
    failed = EXAMPLES[ev.RequestAnswered]._replace(code="InternalFailure", refused_entries=4)
    assert values("kpl", PRODUCER, failed, dimensions=STREAM) == {"RequestTime": 20.0}


# ---- the KCL's names


def test_the_names_of_the_kcl():
    assert translation("kcl", CONSUMER, by_shard=False).namespace == "billing"
    assert translation("kcl", CONSUMER._replace(group=None), by_shard=False).namespace == "orders"
    found = values("kcl", CONSUMER, *CONSUMER_EXAMPLES, dimensions=TASK)
    assert found == {
        "RecordsProcessed": 100,
        "DataBytesProcessed": 4_000,
        "MillisBehindLatest": 2_000,
        "RecordProcessor.processRecords.Time": 400,
        "RecordProcessor.processRecords.Success": 1,
        "KinesisDataFetcher.getRecords.Time": 30,
        "KinesisDataFetcher.getRecords.Success": 1,
    }
    assert values("kcl", CONSUMER, *CONSUMER_EXAMPLES, dimensions=WORKER) == {
        "UpdateLease.Time": 10,
        "CurrentLeases": 0,
        "LostLeases": 1,
    }
    tracker = (("Operation", "ApplicationTracker"),)
    assert values("kcl", CONSUMER, *CONSUMER_EXAMPLES, dimensions=tracker) == {"MillisBehindLatest": 2_000}


def test_the_leases_of_the_kcl():
    gained = EXAMPLES[ev.LeaseGained]
    assert values("kcl", CONSUMER, gained, dimensions=WORKER) == {"CurrentLeases": 1}
    assert values("kcl", CONSUMER, gained, EXAMPLES[ev.LagMeasured], dimensions=WORKER) == {"CurrentLeases": 1}
    assert values("kcl", CONSUMER, gained, EXAMPLES[ev.LeaseReleased], dimensions=WORKER) == {"CurrentLeases": 0}


def test_failures_of_the_kcl():
    expired = EXAMPLES[ev.ReadFailed]._replace(failure=FAILURE._replace(code="ExpiredIteratorException"))
    assert values("kcl", CONSUMER, expired, dimensions=TASK) == {
        "KinesisDataFetcher.getRecords.Success": 0,
        "ExpiredIterator": 1,
    }
    assert values("kcl", CONSUMER, EXAMPLES[ev.HandlerRetried], dimensions=TASK) == {
        "RecordProcessor.processRecords.Success": 0
    }
    unknown = EXAMPLES[ev.PageRead]._replace(reading_lag=None)
    assert "MillisBehindLatest" not in values("kcl", CONSUMER, unknown, dimensions=TASK)


def test_each_library_counts_only_its_side():
    assert translation("kpl", CONSUMER, by_shard=False) is None
    assert translation("kcl", PRODUCER, by_shard=False) is None
