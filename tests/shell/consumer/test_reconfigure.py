"""Can settings of a running producer and of a running consumer change?"""

import time

import anyio
import pytest
from tests.harness.sinks import sinks_are_up_to_date
from tests.shell.blocking import EVERY_API, BlockingProducer, kind_for

from shardline import Closed, Producer, ProducerConfig, UsageError
from shardline.events import LeaseLost, LeaseSurplus, MaxLeasesChanged, ProducerReconfigured

pytestmark = pytest.mark.anyio


@pytest.fixture
def make_producer(connection, request):
    def make(sinks=(), **config):
        kind = kind_for(request, Producer, BlockingProducer)
        return kind("s", config=ProducerConfig(**config), sinks=sinks, **connection)

    return make


def held(consumer):
    return {shard.shard_id for shard in consumer.status().shards if shard.state in ("reading", "ending")}


# ---- the producer


@EVERY_API
async def test_another_linger_sends_what_waits_and_applies_to_later_records(make_producer):
    events = []
    async with make_producer(linger=3_000.0, record_ttl=3_600.0, sinks=[events.append]) as producer:
        waiting = await producer.put(b"waits", key="k")
        await anyio.sleep(0.2)
        assert not waiting.done
        await producer.reconfigure(linger=0.05)
        assert producer.config.linger == 0.05
        await waiting
        began = time.monotonic()
        await (await producer.put(b"later", key="k"))
        assert time.monotonic() - began < 20
        await producer.reconfigure(records_per_second=500, bytes_per_second=100_000)
        await producer.put(b"short", key="k", ttl=0.5)  # linger is 0.05 now
        with pytest.raises(UsageError, match=r"ttl must be more than linger: 0\.05 is not more than 0\.05"):
            await producer.put(b"too short", key="k", ttl=0.05)
    assert [event for event in events if isinstance(event, ProducerReconfigured)] == [
        ProducerReconfigured(0.05, 1_000.0, 1_048_576.0),
        ProducerReconfigured(0.05, 500.0, 100_000.0),
    ]
    assert (producer.config.records_per_second, producer.config.bytes_per_second) == (500.0, 100_000.0)


@EVERY_API
async def test_other_rates_apply_at_once(make_producer):
    async with make_producer(aggregation=False, linger=0.0, records_per_second=2.0) as producer:
        deliveries = await producer.put_many([("k", b"%d" % number) for number in range(40)])
        await anyio.sleep(0.3)
        assert not deliveries[-1].done, "at 2 records per second, this takes 19 seconds"
        began = time.monotonic()
        await producer.reconfigure(records_per_second=1_000)
        for delivery in deliveries:
            await delivery
        assert time.monotonic() - began < 10


@EVERY_API
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "reconfigure changes nothing: pass at least one of linger, records_per_second, bytes_per_second"),
        ({"linger": -1}, "linger must be a number from 0 to 3,600, not -1"),
        ({"linger": 30.0}, "linger must be less than record_ttl: 30.0 is not less than 30.0"),
        ({"records_per_second": 0}, "records_per_second must be a number"),
        ({"bytes_per_second": "fast"}, "bytes_per_second must be a number"),
    ],
)
async def test_a_wrong_setting_of_a_producer_is_refused(make_producer, changes, said):
    async with make_producer() as producer:
        with pytest.raises(UsageError, match=said):
            await producer.reconfigure(**changes)
        assert producer.config == ProducerConfig()


@EVERY_API
async def test_a_producer_that_does_not_run_is_not_reconfigured(make_producer):
    producer = make_producer()
    with pytest.raises(Closed, match="not started"):
        await producer.reconfigure(linger=1.0)
    async with producer:
        pass
    with pytest.raises(Closed, match="closed"):
        await producer.reconfigure(linger=1.0)


# ---- the consumer


@EVERY_API
async def test_a_lower_max_leases_releases_shards_and_another_worker_gets_them(
    make_consumer, put, group, store, eventually
):
    events, done = [], []

    def handle(record):
        done.append(int(record.data))

    async with anyio.create_task_group() as tasks:
        first = make_consumer(group=group, store=store, sinks=[events.append])
        await first.start()
        tasks.start_soon(first.run, handle)
        await eventually(lambda: len(held(first)) == 2)
        await put(range(100))
        await eventually(lambda: len(done) == 100)
        await first.reconfigure(max_leases=1)
        assert first.config.max_leases == 1
        await eventually(lambda: len(held(first)) == 1)
        second = make_consumer(group=group, store=store)
        await second.start()
        tasks.start_soon(second.run, handle)
        await eventually(lambda: len(held(second)) == 1)
        assert held(first) != held(second)
        await put(range(100, 200))
        await eventually(lambda: len(done) == 200)
        await second.close()
        await first.reconfigure(max_leases=None)
        await eventually(lambda: len(held(first)) == 2)
        await sinks_are_up_to_date(first)
        await first.close()
    assert sorted(done) == list(range(200)), "in good order: no record comes twice"
    assert [event for event in events if isinstance(event, MaxLeasesChanged)] == [
        MaxLeasesChanged(1, before=None),
        MaxLeasesChanged(None, before=1),
    ]
    assert len([event for event in events if isinstance(event, LeaseSurplus)]) == 1
    assert not any(isinstance(event, LeaseLost) for event in events)


@EVERY_API
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
async def test_a_wrong_max_leases_is_refused(make_consumer, group, value):
    async with make_consumer(group=group, store="memory:") as consumer:
        with pytest.raises(UsageError, match="max_leases must be a whole number, 1 or more, or None, not"):
            await consumer.reconfigure(max_leases=value)
        assert consumer.config.max_leases is None


@EVERY_API
async def test_a_consumer_that_does_not_run_is_not_reconfigured(make_consumer, group):
    consumer = make_consumer(group=group, store="memory:", max_leases=3)
    assert consumer.config.max_leases == 3
    with pytest.raises(Closed, match="not started"):
        await consumer.reconfigure(max_leases=1)
    async with consumer:
        pass
    with pytest.raises(Closed, match="closed"):
        await consumer.reconfigure(max_leases=1)
