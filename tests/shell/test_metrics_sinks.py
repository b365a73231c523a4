"""Do the metrics of a real producer and a real consumer say what they did?"""

import io
import json

import anyio
import pytest
from prometheus_client import CollectorRegistry

import shardline.sync
from shardline import Consumer, FailurePolicy, Producer
from shardline.events import instrument
from shardline.sinks import CloudWatchSink, PrometheusSink
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio

RECORDS = 300
ORDERS = {"stream": "orders"}
BILLING = {"stream": "orders", "group": "billing"}


@pytest.fixture
def wire():
    """These tests need no transport of the client."""


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def event_loop_kind(request):
    return request.param


@pytest.fixture
def kinesis():
    with LocalKinesis(stream="orders", shards=2) as local:
        yield local


def place(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}


def values(registry):
    """Adds up a metric over its shards."""

    def value(name, **labels):
        samples = [sample for family in registry.collect() for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    return value


async def put_and_handle(kinesis, directory, sinks, *, poison=False):
    """Put records and handle all of them; with ``poison``, one of them is dead-lettered. Returns how many were handled."""
    handled, letters = [], []
    async with Producer("orders", sinks=sinks, **place(kinesis)) as producer:
        await producer.put_many([(f"key {number}", b"x" * 100) for number in range(RECORDS)])
        if poison:
            await producer.put(b"poison", key="key 1")

    async def handle(record):
        if record.data == b"poison":
            raise ValueError("poison")
        handled.append(record.data)

    async def bury(letter):
        letters.append(letter)

    consumer = Consumer(
        "orders",
        group="billing",
        store=f"sqlite:///{directory}/leases.db",
        until="latest",
        sinks=sinks,
        **place(kinesis),
    )
    async with consumer:
        policy = FailurePolicy(attempts=2, backoff=0.01, backoff_max=0.01)
        await consumer.run(handle, policy=policy, dead_letter=bury if poison else None)
    assert len(letters) == poison
    return len(handled)


@pytest.mark.parametrize("by_shard", [False, True])
async def test_prometheus_counts_every_record_once(kinesis, tmp_path, by_shard):
    registry = CollectorRegistry()
    assert (
        await put_and_handle(kinesis, tmp_path, [PrometheusSink(registry, by_shard=by_shard)], poison=True) == RECORDS
    )
    value = values(registry)
    assert value("shardline_producer_delivered_records_total", **ORDERS) == RECORDS + 1
    assert value("shardline_producer_delivered_bytes_total", **ORDERS) >= RECORDS * 100
    assert value("shardline_producer_entry_records_total", **ORDERS) == RECORDS + 1
    assert value("shardline_producer_requests_total", **ORDERS) == value("shardline_producer_request_seconds_count")
    assert value("shardline_producer_put_to_ack_seconds_count", **ORDERS) >= 1
    assert value("shardline_producer_outstanding_records", **ORDERS) == 0
    assert value("shardline_consumer_read_records_total", **BILLING) == RECORDS + 1
    assert value("shardline_consumer_handed_out_records_total", **BILLING) == RECORDS + 1
    assert value("shardline_consumer_handled_records_total", **BILLING) == RECORDS, "a dead letter counts elsewhere"
    assert value("shardline_consumer_handler_seconds_count", **BILLING) >= 2
    assert value("shardline_consumer_commit_seconds_count", **BILLING) >= 1
    assert value("shardline_consumer_handler_retries_total", **BILLING) == 1
    assert value("shardline_consumer_dead_lettered_records_total", **BILLING) == 1
    assert value("shardline_consumer_leases_gained_total", **BILLING) == 2
    assert value("shardline_consumer_leases", **BILLING) == 0, "all leases were released"
    shards = {
        sample.labels["shard_id"]
        for family in registry.collect()
        for sample in family.samples
        if "shard_id" in sample.labels
    }
    assert len(shards) == (2 if by_shard else 0)


@pytest.mark.parametrize("names", ["shardline", "kpl", "kcl"])
async def test_cloudwatch_counts_every_record_once(kinesis, tmp_path, names):
    file = io.StringIO()
    assert await put_and_handle(kinesis, tmp_path, [CloudWatchSink(file, names=names)]) == RECORDS
    lines = [json.loads(line) for line in file.getvalue().splitlines()]

    def total(name, **dimensions):
        return sum(line.get(name, 0) for line in lines if dimensions.items() <= line.items())

    if names == "shardline":
        assert total("ProducerDeliveredRecords", Stream="orders") == RECORDS
        assert total("ConsumerHandledRecords", Stream="orders", Group="billing") == RECORDS
    elif names == "kpl":
        assert total("UserRecordsPut", StreamName="orders") == RECORDS
        assert total("UserRecordsDataPut", StreamName="orders") >= RECORDS * 100
    else:
        assert total("RecordsProcessed", Operation="ProcessTask") == RECORDS
        assert {line["ShardId"] for line in lines if "RecordsProcessed" in line} == {
            shard.shard_id for shard in kinesis.streams["orders"].shards
        }


async def test_a_metric_that_hangs_costs_no_record(kinesis, tmp_path):
    """The threads of the sinks wait; the producer and the consumer do not."""
    registry = CollectorRegistry()
    sink = PrometheusSink(registry)
    with sink._metrics._collectors["producer_requests"]._lock, sink._metrics._collectors["consumer_pages"]._lock:
        with anyio.fail_after(60):
            assert await put_and_handle(kinesis, tmp_path, [sink]) == RECORDS


def test_blocking_producers_and_consumers_are_instrumented(kinesis, tmp_path):
    registry = CollectorRegistry()
    with instrument(PrometheusSink(registry), CloudWatchSink(tmp_path / "lines")):
        with shardline.sync.Producer("orders", **place(kinesis)) as producer:
            producer.put_many([("a", b"1"), ("b", b"2")])
        with shardline.sync.Consumer("orders", until="latest", **place(kinesis)) as consumer:
            assert sorted(record.data for record in consumer) == [b"1", b"2"]
    value = values(registry)
    assert value("shardline_producer_delivered_records_total", **ORDERS) == 2
    assert value("shardline_consumer_handled_records_total", stream="orders", group="") == 2
    assert (tmp_path / "lines").read_text().count("ProducerDeliveredRecords") >= 1
