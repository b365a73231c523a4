"""Does any defect of aiokpl appear here? One test for each that shows at the shell, by its number.

Those that other files here show in more detail are named after the same numbers there.
"""

import asyncio
import collections
import time

import anyio
import pytest

from shardline import DeliveryFailed, UsageError, deaggregate, hash_key_of

pytestmark = pytest.mark.anyio


async def test_b1_no_aggregate_mixes_shards_while_the_map_is_fetched(make_producer, kinesis, all_in_range, stored):
    kinesis.faults.latency(0.2, operation="ListShards")
    async with make_producer() as producer:
        await producer.put_many([(f"k{number}", b"%d" % number) for number in range(200)])
        assert await producer.flush() == []
    assert len(stored()) == 200
    assert all_in_range()


async def test_b1_nor_when_it_never_comes_in_time(make_producer, kinesis):
    kinesis.faults.unavailable(operation="ListShards")
    async with make_producer() as producer:
        await producer.put_many([(f"k{number}", b"%d" % number) for number in range(200)])
        assert await producer.flush() == []
    assert not any(record.aggregated for record in deaggregate(kinesis.streams["s"].records))
    assert kinesis.streams["s"].record_count == 200


async def test_b2_one_split_makes_one_refresh_and_few_duplicates(make_producer, kinesis, stored):
    async with kinesis.client() as client, make_producer() as producer:
        await (await producer.put(b"first", key="k"))
        await client.split_shard("s", "shardId-000000000000", wait=True)
        deliveries = await producer.put_many([(f"k{number}", b"%d" % number) for number in range(400)])
        with anyio.fail_after(3):
            receipts = [await delivery for delivery in deliveries]
        assert max(receipt.attempt_count for receipt in receipts) <= 2
        assert producer.stats().map_requests == 2
    arrived = collections.Counter(data for _, data in stored())
    assert max(arrived.values()) <= 2
    assert len(arrived) == 401


async def test_b3_leaving_the_block_drains_what_is_in_flight_and_retried(make_producer, kinesis, stored):
    kinesis.faults.latency(0.05, operation="PutRecords")
    kinesis.faults.fail_entries(share=0.6, count=6)
    async with make_producer(aggregate_max_count=20) as producer:
        deliveries = await producer.put_many([(f"k{number}", b"%d" % number) for number in range(2000)])
    assert all(delivery.delivered for delivery in deliveries)
    assert len(stored()) == 2000


async def test_b4_cancelled_puts_leave_no_foreign_outcome_open(make_producer):
    deliveries = []
    async with make_producer(buffer_max_records=20, linger=0.001, aggregate_max_count=3) as producer:

        async def put(number):
            with anyio.move_on_after(0.002 * (number % 3)):
                deliveries.append(await producer.put(b"x" * 100, key=f"k{number % 5}"))

        async with anyio.create_task_group() as tasks:
            for number in range(150):
                tasks.start_soon(put, number)
        with anyio.fail_after(3):
            for delivery in deliveries:
                await delivery
        for _ in range(20):
            producer.put_nowait(b"every slot is free again", key="k")


async def test_b5_a_users_exception_stays_as_it_is_and_all_outcomes_are_known(make_producer):
    deliveries = []

    async def work():
        async with make_producer() as producer:
            deliveries.extend(await producer.put_many([("k", b"x")] * 300))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await work()
    assert all(delivery.delivered for delivery in deliveries)


async def test_b6_tasks_may_come_and_go(make_producer, stored):
    async with make_producer() as producer:

        async def one_request(number):
            receipt = await (await producer.put(b"%d" % number, key=f"k{number}"))
            assert receipt.attempt_count == 1

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(one_request, number)
    assert len(stored()) == 60


async def test_b7_a_missing_stream_hangs_nobody(make_producer, kinesis):
    async with kinesis.client() as client:
        missing, other = make_producer("missing", client=client), make_producer("s", client=client)
        with anyio.fail_after(3):
            for producer in (missing, other):
                await producer.start()
            lost = await missing.put(b"x", key="k")
            assert (await (await other.put(b"x", key="k"))).attempt_count == 1
            await missing.flush()
            with pytest.raises(DeliveryFailed, match="ResourceNotFoundException"):
                await lost
            for producer in (missing, other):
                await producer.close()


async def test_b8_neither_a_sink_nor_wrong_data_breaks_the_pipeline(make_producer, stored):
    def sink(_):
        raise ZeroDivisionError

    async with make_producer(sink=sink) as producer:
        deliveries = []
        for number in range(100):
            deliveries.append(await producer.put(b"%d" % number, key="k"))
            with pytest.raises(UsageError):
                await producer.put("text", key="k")
        with anyio.fail_after(3):
            for delivery in deliveries:
                await delivery
    assert len(stored()) == 100


async def test_b9_cancellation_stays_cancellation(make_producer, kinesis, anyio_backend_name, eventually):
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


async def test_b11_no_poison_gets_in(make_producer, kinesis, eventually):
    async with make_producer() as producer:
        await (await producer.put(b"x", key="k"))
        await eventually(lambda: producer._machine.intake.record_max_bytes == 1_048_576)
        for data, key in ((b"x" * 1_100_000, "k"), (b"x", "k" * 300), (5, "k"), (b"x", 5)):
            with pytest.raises(UsageError):
                await producer.put(data, key=key)
        good = await producer.put_many([("k", b"y")] * 70)
        assert {(await delivery).attempt_count for delivery in good} == {1}
    assert kinesis.requests.count(error="ValidationException") == 0


async def test_b12_a_large_legal_record_starves_nobody(make_producer):
    async with make_producer(record_ttl=4.0) as producer:
        large = await producer.put(b"x" * 1_048_575, key="k")
        small = await producer.put(b"y", key="k")
        with anyio.fail_after(3):
            assert (await large).attempt_count == (await small).attempt_count == 1


async def test_b13_errors_have_a_taxonomy_and_retries_a_backoff(make_producer, kinesis):
    kinesis.faults.error("AccessDeniedException", "no", operation="PutRecords", status=400)
    async with make_producer() as producer:
        await producer.put_many([(f"k{number}", b"x") for number in range(400)])
        await producer.flush()
    denied = kinesis.requests.count("PutRecords")
    assert denied <= 4
    kinesis.faults.clear()
    kinesis.faults.unavailable(operation="PutRecords")
    async with make_producer(retry_backoff=0.05, retry_backoff_max=0.2, close_timeout=0) as producer:
        await producer.put_many([(f"k{number}", b"x") for number in range(400)])
        await anyio.sleep(0.6)
    assert kinesis.requests.count("PutRecords") - denied <= 12


@pytest.mark.clock
async def test_b14_the_deadline_is_kept_however_busy_the_puts_are(make_producer):
    arrived = []
    async with make_producer(linger=0.05, aggregate_max_bytes=1_000_000) as producer:

        async def load(until):
            while time.monotonic() < until:
                put_at = time.monotonic()
                delivery = await producer.put(b"x" * 20, key="k")
                delivery.add_done_callback(lambda _, put_at=put_at: arrived.append(time.monotonic() - put_at))
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(load, time.monotonic() + 0.4)
    arrived.sort()
    assert arrived[len(arrived) // 2] < 0.3
    assert arrived[-1] < 1.0


async def test_b15_a_request_carries_many_aggregates(kinesis, make_producer):
    kinesis.create_stream("wide", shards=32)
    async with make_producer("wide", linger=0.05) as producer:
        await (await producer.put(b"the map is there", key="k"))
        before = producer.stats()
        await producer.put_many([(f"k{number}", b"x" * 100) for number in range(3000)])
        assert await producer.flush() == []
        after = producer.stats()
    assert (after.entries - before.entries) / (after.requests - before.requests) >= 15


async def test_b16_the_ttl_counts_from_the_put_and_expiry_is_told_once(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    async with make_producer(record_ttl=0.25) as producer:
        began = time.monotonic()
        outcome = await (await producer.put(b"x", key="k")).outcome()
        assert 0.2 <= time.monotonic() - began < 8, "not the ten seconds that it has otherwise"
    assert outcome.code == "Expired"
    *sent, last = [attempt.code for attempt in outcome.attempts]
    assert set(sent) == {"ProvisionedThroughputExceededException"}
    assert last == "Expired"


async def test_b17_no_aggregate_exceeds_its_configured_size(make_producer, kinesis):
    async with make_producer(aggregate_max_bytes=2_000) as producer:
        await (await producer.put(b"the map is there", key="k"))
        await producer.put_many([(f"k\u00fc{number % 30}", b"x" * (number % 150)) for number in range(600)])
        await producer.put_many([("k", b"y" * 20, str(hash_key_of("k") + number % 5)) for number in range(300)])
    sizes = [len(record.data) for record in kinesis.streams["s"].records]
    assert max(sizes) <= 2_000
    assert sum(size > 1_700 for size in sizes) >= 10, "and they are well filled"


async def test_b18_flush_sends_everything_keeps_the_limits_and_waits(make_producer, stored):
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


async def test_b18_memory_is_bounded_in_bytes(make_producer):
    highest = 0
    async with make_producer(buffer_max_bytes=2_000_000, bytes_per_second=1e9) as producer:
        for _ in range(60):
            await producer.put(b"x" * 200_000, key="k")
            highest = max(highest, producer.stats().buffered_bytes)
    assert highest <= 2_000_000


async def test_b19_lanes_of_dead_shards_are_forgotten(make_producer, kinesis):
    async with kinesis.client() as client, make_producer() as producer:
        for target in (8, 4, 8, 4):
            await client.update_shard_count("s", target, wait=True)
            with anyio.fail_after(5):
                while len(producer.stats().lanes) != target:
                    await (await producer.put(b"x"))
                    await producer.put_many([(f"k{number}", b"x") for number in range(50)])
                    await producer.flush()
        assert len(producer._machine._router.all_lanes()) == 5, "four, and the catch-all"


async def test_metrics_of_the_stats_add_up(make_producer, kinesis):
    """The peer's counters count over a sliding window, several times or not at all."""
    kinesis.faults.fail_entries(share=0.5, count=2)
    totals = collections.Counter()

    def sink(event):
        if type(event).__name__ == "RecordsDelivered":
            totals["delivered"] += event.records
        elif type(event).__name__ == "RequestAnswered":
            totals["requests"] += 1

    async with make_producer(sink=sink) as producer:
        for _ in range(5):
            await producer.put_many([(f"k{number}", b"x") for number in range(100)])
            await producer.flush()
        stats = producer.stats()
    assert (
        (totals["delivered"], totals["requests"]) == (stats.delivered_records, stats.requests) == (500, stats.requests)
    )
