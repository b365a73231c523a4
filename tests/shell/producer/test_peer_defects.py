"""Does any defect of aiokpl occur here? One test for each that no other file covers, by its number.

Other files here and tests/unit/core/producer/test_peer_defects.py use the same numbers.
"""

import asyncio
import collections
import time

import anyio
import pytest

from shardline import deaggregate

pytestmark = pytest.mark.anyio


async def test_aiokpl_b1_no_aggregate_mixes_shards_while_the_map_is_fetched(
    make_producer, kinesis, all_in_range, stored
):
    kinesis.faults.latency(0.2, operation="ListShards")
    async with make_producer() as producer:
        await producer.put_many([(f"k{number}", b"%d" % number) for number in range(200)])
        assert await producer.flush() == []
    assert len(stored()) == 200
    assert all_in_range()


async def test_aiokpl_b1_nor_when_it_never_comes_in_time(make_producer, kinesis):
    kinesis.faults.unavailable(operation="ListShards")
    async with make_producer() as producer:
        await producer.put_many([(f"k{number}", b"%d" % number) for number in range(200)])
        assert await producer.flush() == []
    assert not any(record.aggregated for record in deaggregate(kinesis.streams["s"].records))
    assert kinesis.streams["s"].record_count == 200


async def test_aiokpl_b9_cancellation_stays_cancellation(make_producer, kinesis, anyio_backend_name, eventually):
    kinesis.faults.latency(30, operation="PutRecords")
    producer = make_producer(linger=0.0)
    await producer.start()
    delivery = await producer.put(b"x", key="k")
    await eventually(lambda: producer.stats().requests_in_flight)
    if anyio_backend_name == "asyncio":
        waiting = asyncio.ensure_future(delivery)
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert waiting.cancelled()
    else:
        with anyio.move_on_after(0.05) as scope:
            await delivery
        assert scope.cancelled_caught
    assert await producer.close(0) == [delivery]
    outcome = await delivery.outcome()
    assert (outcome.code, outcome.attempts[-1].code, outcome.attempt_count) == ("Closed", "Cancelled", 1)


async def test_aiokpl_b15_a_request_carries_many_aggregates(kinesis, make_producer):
    kinesis.create_stream("wide", shards=32)
    async with make_producer("wide", linger=0.05) as producer:
        await (await producer.put(b"the map is there", key="k"))
        before = producer.stats()
        await producer.put_many([(f"k{number}", b"x" * 100) for number in range(3000)])
        assert await producer.flush() == []
        after = producer.stats()
    assert (after.entries - before.entries) / (after.requests - before.requests) >= 15


async def test_aiokpl_b16_the_ttl_counts_from_the_put_and_expiry_is_reported_once(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    async with make_producer(record_ttl=0.25) as producer:
        began = time.monotonic()
        outcome = await (await producer.put(b"x", key="k")).outcome()
        assert 0.2 <= time.monotonic() - began < 8, "not the ten seconds that it has otherwise"
    assert outcome.code == "Expired"
    *sent, last = [attempt.code for attempt in outcome.attempts]
    assert set(sent) == {"ProvisionedThroughputExceededException"}
    assert last == "Expired"


async def test_aiokpl_b18_flush_sends_everything_keeps_the_limits_and_waits(make_producer, stored):
    async with make_producer(
        linger=5.0, aggregate_max_count=10, records_per_second=100.0, shard_burst_bytes=10
    ) as producer:
        await producer.put_many([("k", b"%d" % number) for number in range(1200)])  # 120 entries for one shard
        began = time.monotonic()
        with anyio.fail_after(8):
            assert await producer.flush() == []
        assert time.monotonic() - began > 0.1, "20 of them wait for tokens"
        assert producer.outstanding == 0
    assert len(stored()) == 1200


async def test_metrics_of_the_stats_add_up(make_producer, kinesis):
    """The peer's counters count over a sliding window: several times, or not at all."""
    kinesis.faults.fail_entries(share=0.5, count=2)
    totals = collections.Counter()

    def sink(event):
        if type(event).__name__ == "RecordsDelivered":
            totals["delivered"] += event.records
        elif type(event).__name__ == "RequestAnswered":
            totals["requests"] += 1

    async with make_producer(sinks=[sink]) as producer:
        for _ in range(5):
            await producer.put_many([(f"k{number}", b"x") for number in range(100)])
            await producer.flush()
        stats = producer.stats()
    assert (
        (totals["delivered"], totals["requests"]) == (stats.delivered_records, stats.requests) == (500, stats.requests)
    )
