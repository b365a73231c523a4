"""Does ``status()`` show how far handling is behind, which records are in hand, and that a handler is stuck?"""

import time

import anyio
import pytest

import shardline.sync
from shardline import ConsumerConfig, FailurePolicy
from shardline.core.consumer.consumer_events import HandlerRecovered, HandlerStuck

pytestmark = pytest.mark.anyio

WAYS = ["loop", "batches", "run", "run in a thread", "run batches"]


class Sink:
    def __init__(self):
        self.events = []

    def __call__(self, event):
        if isinstance(event, (HandlerStuck, HandlerRecovered)):
            self.events.append(event)

    @property
    def kinds(self):
        return [type(event).__name__ for event in self.events]


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def working(make_consumer):
    """Run a consumer in some way, with a handler that awaits ``work(records)``."""

    async def consume(consumer, way, work):
        async def handle(given):
            await work([given] if not hasattr(given, "records") else given.records)

        def handle_in_thread(given):
            anyio.from_thread.run(handle, given)

        if way == "loop":
            async for record in consumer:
                await handle(record)
        elif way == "batches":
            async for batch in consumer.batches(max_records=2):
                await handle(batch)
        elif way == "run":
            await consumer.run(handle)
        elif way == "run in a thread":
            await consumer.run(handle_in_thread)
        else:
            await consumer.run(handle, batch=2)

    return consume


def shard_at_work(status):
    [shard] = [shard for shard in status.shards if shard.in_hand or shard.prefetched]
    return shard


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ack", ["auto", "manual"])
async def test_the_age_of_the_oldest_record_that_is_not_done(
    make_consumer, put, kinesis, working, way, ack, eventually
):
    """The reading lag stays at 0, so it is useless for an alarm."""
    await put(range(10), keys=1)
    kinesis.clock.advance(30)
    first, go_on = anyio.Event(), anyio.Event()

    async def work(records):
        first.set()
        await go_on.wait()
        for record in records:
            consumer.ack(record)

    size = 2 if "batch" in way else 1
    async with make_consumer(until="latest", ack=ack) as consumer, anyio.create_task_group() as tasks:
        began = time.time()
        tasks.start_soon(working, consumer, way, work)
        await first.wait()
        await eventually(lambda: consumer.status().reading_lag == 0.0)
        status = consumer.status()
        assert status.lag == 0.0  # its old name
        assert [shard.lag for shard in status.shards] == [shard.reading_lag for shard in status.shards]
        shard = shard_at_work(status)
        assert status.handling_lag == shard.handling_lag
        assert 28.9 <= shard.handling_lag <= 31 + (time.time() - began)
        if ack == "auto" or way != "run in a thread":
            assert (shard.in_hand, shard.prefetched) == (size, 10 - size)
        assert shard.in_hand + shard.prefetched == 10
        assert began - 0.1 <= shard.handler_started_at <= time.time()
        assert status.handler_started_at == shard.handler_started_at
        assert status.in_hand == shard.in_hand
        await eventually(lambda: consumer.status().health == "ok")
        kinesis.clock.advance(60)
        await put(range(10, 11), keys=1)  # its response states the time
        await eventually(lambda: 88.9 <= consumer.status().handling_lag <= 95 + (time.time() - began))
        go_on.set()
    assert consumer.status().in_hand == 0


@pytest.mark.parametrize("way", WAYS)
async def test_the_lag_of_a_record_is_its_age_when_it_was_handed_out(make_consumer, put, working, way):
    """It is not the lag of its page when that was read: all ten records come in one page."""
    await put(range(6), keys=1)
    seen = []

    async def work(records):
        seen.extend((record, record.lag, time.time()) for record in records)
        await anyio.sleep(0.15)

    async with make_consumer(until="latest") as consumer:
        await working(consumer, way, work)
    assert len(seen) == 6
    for record, lag, handed_out_at in seen:
        assert lag == pytest.approx(handed_out_at - record.arrived_at, abs=0.03)
        assert record.lag == lag, "it does not change any more"
    size = 2 if "batch" in way else 1
    assert seen[-1][1] - seen[0][1] >= 0.15 * (6 / size - 1) - 0.03


async def test_a_record_that_is_tried_again_has_the_lag_of_the_last_attempt(make_consumer, put):
    await put(range(1))
    lags = []

    async def handle(record):
        lags.append(record.lag)
        if len(lags) < 3:
            raise ValueError

    async with make_consumer(until="latest") as consumer:
        await consumer.run(handle, policy=FailurePolicy(backoff=0.2, backoff_max=0.2))
    assert lags[2] - lags[0] >= 0.2
    assert lags == sorted(lags)


# ---- stuck


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ack", ["auto", "manual"])
async def test_a_stuck_handler_is_reported_once_and_again_when_it_continues(
    make_consumer, put, working, way, ack, sink, eventually, complaints
):
    await put(range(2), keys=1)
    hangs = anyio.Event()

    async def work(records):
        await hangs.wait()
        for record in records:
            consumer.ack(record)

    async with make_consumer(until="latest", stuck_after=0.3, sinks=[sink], ack=ack) as consumer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(working, consumer, way, work)
            await eventually(lambda: consumer.status().health == "handler-stuck")
            await eventually(lambda: sink.kinds == ["HandlerStuck"])
            await anyio.sleep(0.3)
            assert sink.kinds == ["HandlerStuck"], "once a spell"
            assert consumer.status().is_ready
            hangs.set()
        await eventually(lambda: sink.kinds == ["HandlerStuck", "HandlerRecovered"])
        assert consumer.status().health == "ok"
    stuck, recovered = sink.events
    assert stuck.shard_id == recovered.shard_id
    assert stuck.sequence_number.isdigit()
    assert 0.3 <= stuck.seconds < 5
    assert recovered.seconds >= 0.5
    said = [text for level, text in complaints() if level == "WARNING" and "handler of" in text]
    assert len(said) == 2
    assert f"the handler of {stuck.shard_id} has had record {stuck.sequence_number}/0 for 0." in said[0]


async def test_a_handler_that_fails_and_waits_for_its_retry_is_not_stuck(make_consumer, put, sink):
    """A restart would not help, so the health stays ok."""
    await put(range(1))
    calls = []

    async def handle(record):
        calls.append(consumer.status())
        if len(calls) < 3:
            raise ValueError

    async with make_consumer(until="latest", stuck_after=0.3, sinks=[sink]) as consumer:
        await consumer.run(handle, policy=FailurePolicy(backoff=1.0, backoff_max=1.0))
    assert sink.events == []
    assert "handler-stuck" not in {status.health for status in calls}
    assert all(status.in_hand == 1 for status in calls)


async def test_a_dead_letter_that_hangs_is_stuck(make_consumer, put, sink, eventually):
    await put(range(1))
    hangs = anyio.Event()

    async def handle(record):
        raise ValueError

    async def bury(letter):
        await hangs.wait()

    async with make_consumer(until="latest", stuck_after=0.2, sinks=[sink]) as consumer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle, policy=FailurePolicy(attempts=1), dead_letter=bury))
            await eventually(lambda: consumer.status().health == "handler-stuck")
            hangs.set()
        await eventually(lambda: sink.kinds == ["HandlerStuck", "HandlerRecovered"])


@pytest.mark.parametrize("way", ["loop", "batches", "run"])
def test_the_blocking_consumer_tells_the_same(kinesis, connection, sink, way):
    """The body of the loop blocks its own thread, and the consumer's thread notices it."""
    from shardline import Client

    async def put():
        async with Client(**connection) as client:
            await client.put_records("s", [(b"%d" % number, "k") for number in range(4)])

    anyio.run(put)
    seen, lags = [], []

    def handle(given):
        records = given.records if hasattr(given, "records") else [given]
        lags.extend((record.lag, time.time() - record.arrived_at) for record in records)
        if not seen:
            time.sleep(0.6)
            seen.append(consumer.status())
        else:
            time.sleep(0.1)

    config = ConsumerConfig(scan_interval=0.05, idle_poll_interval=0.05, stuck_after=0.3)
    with shardline.sync.Consumer("s", until="latest", sinks=[sink], config=config, **connection) as consumer:
        if way == "loop":
            for record in consumer:
                handle(record)
        elif way == "batches":
            for batch in consumer.batches(max_records=2):
                handle(batch)
        else:
            consumer.run(handle)
        give_up_at = time.monotonic() + 10
        while len(sink.events) < 2:
            assert time.monotonic() < give_up_at
            time.sleep(0.02)
        assert consumer.status().health == "ok"
    (status,) = seen
    assert status.health == "handler-stuck"
    assert status.handling_lag >= 0.5
    size = 2 if way == "batches" else 1
    assert (status.in_hand, shard_at_work(status).prefetched) == (size, 4 - size)
    assert time.time() - status.handler_started_at >= 0.5
    assert sink.kinds == ["HandlerStuck", "HandlerRecovered"]
    for lag, age in lags:
        assert lag == pytest.approx(age, abs=0.05)
    assert lags[-1][0] - lags[0][0] >= 0.5
