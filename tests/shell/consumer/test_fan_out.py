"""Does a consumer read by enhanced fan-out as it does by polling?"""

from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline import FanOut, ServiceError, StreamRecreated, UsageError, WaitTimeout
from shardline.adapters.http import http2_connection
from shardline.adapters.http.http2_transport import Http2Transport
from shardline.adapters.kinesis import KinesisHttp
from shardline.adapters.leases.sqlite import SqliteLeases
from shardline.aio.consumer import fan_out as fan_out_module
from shardline.core.consumer import fanout_reader
from shardline.core.consumer.consumer_events import (
    PositionLost,
    ReadFailed,
    StreamMissing,
    Subscribed,
    SubscriptionEnded,
)
from shardline.core.leases import FinishHandOver, ReleaseLease
from shardline.testing import Delays, Limits, LocalKinesis

pytestmark = pytest.mark.anyio
WAIT = 0.3  # in place of the service's 5 s


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(fanout_reader, "_TAKEOVER_WAIT", WAIT)
    monkeypatch.setattr(fanout_reader, "_CALL_DISTANCE", 0.05)


@pytest.fixture
def kinesis():
    """A Kinesis with two shards. A second subscription is refused for a short time."""
    limits = replace(Limits.without_rates(), subscription_takeover_wait=WAIT)
    with LocalKinesis(shards=2, limits=limits, stream="s", delays=Delays(register=0.1)) as running:
        yield running


@pytest.fixture
def calls(kinesis):
    """Return how often the clients called each operation."""
    return lambda: Counter(request.operation for request in kinesis.requests)


async def read(make_consumer, ledger, **arguments):
    async with make_consumer(**({"until": "latest", "fan_out": "billing"} | arguments)) as consumer:
        async for record in consumer:
            ledger(record)


@EVERY_API
async def test_all_records_come_in_order_without_a_call_of_get_records(make_consumer, put, ledger, calls):
    await put(range(300))
    events = []
    with anyio.fail_after(20):
        await read(make_consumer, ledger, sinks=[events.append])
    assert sorted(ledger.numbers) == list(range(300))
    ledger.check_order()
    assert (calls()["GetRecords"], calls()["GetShardIterator"]) == (0, 0)
    assert calls()["RegisterStreamConsumer"] == 1
    assert sum(isinstance(event, Subscribed) for event in events) == 2


async def test_records_are_pushed_and_the_status_says_how_they_are_read(make_consumer, put):
    async with make_consumer(fan_out=FanOut("billing")) as consumer:
        await consumer.wait_ready()
        assert {shard.read_by for shard in consumer.status().shards} == {"fan-out"}
        records = aiter(consumer)
        for number in range(3):
            await put([number])
            with anyio.fail_after(4):
                assert (await anext(records)).data == b"%d" % number
    async with make_consumer() as consumer:
        await consumer.wait_ready()
        assert {shard.read_by for shard in consumer.status().shards} == {"polling"}


async def test_the_next_consumer_finds_the_registration_and_continues_at_the_checkpoint(
    make_consumer, put, ledger, calls, group, store
):
    await put(range(50))
    await read(make_consumer, ledger, group=group, store=store)
    await put(range(50, 100))
    await read(make_consumer, ledger, group=group, store=store)
    assert sorted(ledger.numbers) == list(range(100))
    ledger.check_order()
    assert (calls()["RegisterStreamConsumer"], calls()["DeregisterStreamConsumer"]) == (1, 0)


async def test_a_consumer_arn_is_used_without_describing_it(make_consumer, put, ledger, client_of, calls):
    async with client_of() as client:
        registered = await client.register_stream_consumer("s", "other", wait=True)
    before = calls()["DescribeStreamConsumer"]
    await put(range(20))
    await read(make_consumer, ledger, fan_out=registered.arn)
    assert sorted(ledger.numbers) == list(range(20))
    assert calls()["DescribeStreamConsumer"] == before


async def test_subscriptions_that_end_or_break_lose_nothing_and_are_quiet(
    make_consumer, kinesis, put, ledger, complaints
):
    events = []
    kinesis.faults.fan_out_end(after=1, count=1)
    kinesis.faults.fan_out_reset(after=3, count=1)
    kinesis.faults.fan_out_exception("InternalFailureException", after=5, count=1)
    async with make_consumer(fan_out="billing", sinks=[events.append]) as consumer, anyio.create_task_group() as tasks:

        async def put_all():
            for number in range(60):
                await put([number])
                await anyio.sleep(0.03)

        tasks.start_soon(put_all)
        with anyio.fail_after(30):
            async for record in consumer:
                ledger(record)
                if len(ledger.numbers) == 60:
                    break
    assert sorted(ledger.numbers) == list(range(60))
    ledger.check_order()
    ended = [event for event in events if isinstance(event, SubscriptionEnded)]
    assert len(ended) >= 3
    assert complaints() == []


async def test_an_older_subscription_delays_the_next_owner_and_no_error_is_logged(
    make_consumer, client_of, put, ledger, kinesis, complaints
):
    await put(range(10))
    events = []
    async with client_of() as client:
        registered = await client.register_stream_consumer("s", "billing", wait=True)
        subscriptions = [
            client.subscribe_to_shard(registered.arn, shard.shard_id, "LATEST") for shard in kinesis.streams["s"].shards
        ]
        for subscription in subscriptions:
            await anext(subscription)
        with anyio.fail_after(10):
            await read(make_consumer, ledger, sinks=[events.append])
        for subscription in subscriptions:
            await subscription.aclose()
    assert sorted(ledger.numbers) == list(range(10))
    refused = [event for event in events if isinstance(event, SubscriptionEnded) and event.failure is not None]
    assert {event.failure.code for event in refused} == {"ResourceInUseException"}
    assert complaints() == []


async def test_silence_replaces_the_subscription(make_consumer, put, monkeypatch, eventually):
    monkeypatch.setattr(fanout_reader, "SILENCE", 0.4)
    events = []
    async with make_consumer(fan_out="billing", sinks=[events.append]) as consumer:
        await consumer.wait_ready()
        await eventually(lambda: any(isinstance(event, SubscriptionEnded) for event in events))
        await put([1])
        with anyio.fail_after(10):
            assert (await anext(aiter(consumer))).data == b"1"
    assert [event for event in events if isinstance(event, PositionLost)] == []


async def test_a_subscription_is_closed_before_the_same_worker_opens_the_next_one(
    make_consumer, kinesis, put, monkeypatch, eventually
):
    """Otherwise events of the older subscription could still arrive."""
    happened = []
    subscribe = KinesisHttp.subscribe_to_shard

    @asynccontextmanager
    async def noted_subscription(api, request):
        happened.append(("opened", request.shard_id))
        async with subscribe(api, request) as events:
            yield events
        happened.append(("closed", request.shard_id))

    monkeypatch.setattr(KinesisHttp, "subscribe_to_shard", noted_subscription)
    monkeypatch.setattr(fanout_reader, "SILENCE", 1.0)
    kinesis.faults.fan_out_end(after=1, count=1)
    kinesis.faults.fan_out_reset(after=2, count=1)
    async with make_consumer(fan_out="billing") as consumer:
        await consumer.wait_ready()
        await put(range(10))
        await eventually(lambda: len(happened) >= 10, 30)
    for shard_id in {shard_id for _, shard_id in happened}:
        steps = [what for what, shard in happened if shard == shard_id]
        assert steps == (["opened", "closed"] * len(steps))[: len(steps)]


async def test_an_idle_subscription_outlives_the_read_timeout_of_calls(make_consumer, kinesis, put):
    """The service is silent for 5 s at a time, and a client that expects answers within 2 s is not wrong."""
    events = []
    async with make_consumer(fan_out="billing", read_timeout=2.0, sinks=[events.append]) as consumer:
        await consumer.wait_ready()
        await anyio.sleep(3.5)
        await put([1])
        with anyio.fail_after(10):
            assert (await anext(aiter(consumer))).data == b"1"
    assert not [event for event in events if isinstance(event, SubscriptionEnded)]


@pytest.mark.parametrize("is_over_http2", [True, False])
async def test_a_shard_without_a_free_connection_is_reported_and_delays_no_call(
    make_consumer, calls, put, monkeypatch, eventually, is_over_http2
):
    """Without HTTP/2, each subscription needs a connection of its own."""
    if is_over_http2:
        monkeypatch.setattr(http2_connection, "STREAMS_MAX", 1)
    else:
        monkeypatch.setattr(Http2Transport, "_find_link", speak_http1)
    events = []
    settings = {"max_connections": 1, "read_timeout": 2.0, "lease_duration": 20.0, "sinks": [events.append]}
    async with make_consumer(fan_out="billing", **settings) as consumer:
        await eventually(lambda: "NoFreeConnection" in failures_of(events))
        (lacking,) = {event.shard_id for event in events if "NoFreeConnection" in failures_of([event])}
        before = calls()["ListShards"]
        await eventually(lambda: calls()["ListShards"] > before + 1)
        await put(range(10))
        with anyio.fail_after(10):
            assert (await anext(aiter(consumer))).shard_id != lacking


async def speak_http1(transport, url):
    """Replaces the search for an HTTP/2 connection."""
    del transport, url
    return "http/1.1"


def failures_of(events):
    """The codes of the failures that these events report."""
    failed = [event for event in events if isinstance(event, ReadFailed | SubscriptionEnded)]
    return {event.failure.code for event in failed if event.failure is not None}


async def test_a_slow_handler_stops_the_subscription_of_its_shard_and_no_other(make_consumer, kinesis, eventually):
    big = bytes(200_000)
    shards = kinesis.streams["s"].shards
    low, high = (str(shard.hash_range.start) for shard in shards)
    events = []
    async with make_consumer(fan_out="billing", prefetch_max_bytes=1_000_000, sinks=[events.append]) as consumer:
        async with kinesis.client() as client:
            for _ in range(40):
                await client.put_record("s", big, "k", explicit_hash_key=low)
        records = aiter(consumer)
        with anyio.fail_after(10):
            first = await anext(records)
        assert first.shard_id == shards[0].shard_id
        await anyio.sleep(1.0)
        held = {shard.shard_id: shard for shard in consumer.status().shards}
        assert held[shards[0].shard_id].prefetched < 30, "the budget is a fifth of the shard"
        async with kinesis.client() as client:
            await client.put_record("s", b"other", "k", explicit_hash_key=high)
        await eventually(lambda: consumer.status().shards[1].prefetched)
        seen = 1
        with anyio.fail_after(20):
            async for record in records:
                seen += record.data == big
                if seen == 40:
                    break
    assert not [event for event in events if isinstance(event, ReadFailed)]


async def test_resharding_is_followed(make_consumer, kinesis, put, ledger, client_of, group, store):
    await put(range(100))
    async with (
        make_consumer(fan_out="billing", group=group, store=store) as consumer,
        client_of() as client,
        anyio.create_task_group() as tasks,
    ):

        async def reshard():
            await client.update_shard_count("s", 4, wait=True)
            await put(range(100, 200))

        tasks.start_soon(reshard)
        with anyio.fail_after(30):
            async for record in consumer:
                ledger(record)
                if len(set(ledger.numbers)) == 200:
                    break
    assert sorted(ledger.numbers) == list(range(200))
    ledger.check_order()


async def test_a_group_may_mix_both_readers_and_hand_shards_over(make_consumer, put, ledger, group, store):
    await put(range(100))
    done = anyio.Event()

    async def work(fan_out, tasks_status):
        async with make_consumer(fan_out=fan_out, group=group, store=store) as consumer:

            async def handle(record):
                ledger(record)
                if set(ledger.numbers) == set(range(200)):
                    done.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, handle)
                await consumer.wait_ready()
                tasks_status.set()
                await done.wait()
                await consumer.close()

    with anyio.fail_after(40):
        async with anyio.create_task_group() as workers:
            for fan_out in ("billing", None, "billing"):
                started = anyio.Event()
                workers.start_soon(work, fan_out, started)
                await started.wait()
            await put(range(100, 200))
    assert Counter(ledger.numbers) == Counter(range(200))


async def test_latest_on_idle_shards_skips_nothing_after_a_restart(make_consumer, put, ledger, group, store):
    for _ in range(2):
        async with make_consumer(fan_out="billing", start="LATEST", group=group, store=store) as consumer:
            await consumer.wait_ready()
    await put(range(10))
    await read(make_consumer, ledger, start="LATEST", group=group, store=store)
    assert sorted(ledger.numbers) == list(range(10))


@pytest.mark.parametrize("how", ["close", "hand-over"])
async def test_a_subscription_is_closed_before_the_next_owner_can_begin(
    make_consumer, group, tmp_path, monkeypatch, eventually, how
):
    """Otherwise the old subscription would still get the records that the next owner waits for."""
    happened = []
    subscribe, apply = KinesisHttp.subscribe_to_shard, SqliteLeases.apply_many

    @asynccontextmanager
    async def noted_subscription(api, request):
        async with subscribe(api, request) as events:
            yield events
        happened.append(("closed", request.shard_id))

    async def noted_writes(store, operations):
        releases = [one for one in operations if isinstance(one, ReleaseLease | FinishHandOver)]
        happened.extend(("released", one.shard_id) for one in releases)
        return await apply(store, operations)

    monkeypatch.setattr(KinesisHttp, "subscribe_to_shard", noted_subscription)
    monkeypatch.setattr(SqliteLeases, "apply_many", noted_writes)
    settings = {"fan_out": "billing", "group": group, "store": f"sqlite:///{tmp_path}/leases.db"}
    async with make_consumer(**settings) as first, anyio.create_task_group() as tasks:

        async def handle(record):
            pytest.fail(f"nothing was put, but {record} came")

        tasks.start_soon(first.run, handle)
        await first.wait_ready()
        if how == "hand-over":
            async with make_consumer(**settings):
                await eventually(lambda: "released" in dict(happened), 30)
        await first.close()
    released = [shard for what, shard in happened if what == "released"]
    assert released
    for shard in released:
        assert happened.index(("closed", shard)) < happened.index(("released", shard))


# ---- registration


async def test_workers_that_start_together_register_one_consumer(make_consumer, put, ledger, client_of):
    await put(range(10))
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(_start_and_close, make_consumer)
    async with client_of() as client:
        (registered,) = await client.list_stream_consumers("s")
    assert (registered.name, registered.status) == ("billing", "ACTIVE")


async def _start_and_close(make_consumer):
    async with make_consumer(fan_out="billing"):
        pass


async def test_a_limit_is_one_clear_error_or_polling(connection, make_consumer, put, ledger, kinesis, complaints):
    await put(range(10))
    kinesis.faults.error("LimitExceededException", "20 consumers", operation="RegisterStreamConsumer", status=400)
    with pytest.raises(ServiceError, match=r"registering the consumer 'billing'.*20 consumers"):
        await _start_and_close(make_consumer)
    await read(make_consumer, ledger, fan_out=FanOut("billing", fallback="polling"))
    assert sorted(ledger.numbers) == list(range(10))
    assert any("this worker polls" in text for _, text in complaints())


async def test_a_limit_on_the_rate_of_registrations_is_waited_for(make_consumer, kinesis, calls):
    """The service allows 5 registrations per second, and 5 consumers that are being created."""
    kinesis.faults.error(
        "LimitExceededException", "5 in CREATING", operation="RegisterStreamConsumer", status=400, count=2
    )
    await _start_and_close(make_consumer)
    assert calls()["RegisterStreamConsumer"] == 3


async def test_registration_survives_throttling_and_reports_what_retrying_does_not_cure(make_consumer, kinesis, put):
    kinesis.faults.throttle(operation="DescribeStreamConsumer", count=2)
    kinesis.faults.unavailable(operation="DescribeStreamSummary", count=1)
    await _start_and_close(make_consumer)
    kinesis.faults.error("AccessDeniedException", "not you", operation="DescribeStreamConsumer", status=400)
    with pytest.raises(ServiceError, match="not you"):
        await _start_and_close(make_consumer)


async def test_a_consumer_that_never_becomes_active_is_an_error(make_consumer, monkeypatch):
    monkeypatch.setattr(fan_out_module, "_TIMEOUT", 0.05)
    with pytest.raises(WaitTimeout, match=r"'billing' of s is not ACTIVE after 0.05 s: it is "):
        await _start_and_close(make_consumer)


async def test_a_consumer_that_is_deregistered_ends_the_reading_with_an_error(make_consumer, client_of, put):
    async with make_consumer(fan_out="billing") as consumer, client_of() as client:
        await consumer.wait_ready()
        await client.deregister_stream_consumer(stream="s", name="billing")
        with anyio.fail_after(10), pytest.raises(ServiceError, match=r"billing.*not found"):
            await anext(aiter(consumer))


@pytest.mark.parametrize("is_missed", [True, False], ids=["while the worker looks", "before the worker looks"])
async def test_a_stream_that_is_re_created_gets_its_consumer_again(
    make_consumer, client_of, kinesis, put, ledger, group, eventually, calls, is_missed
):
    await put(range(20))
    events = []
    settings = {"group": group, "store": "memory:", "if_recreated": "restart", "sinks": [events.append]}
    async with (
        client_of() as client,
        make_consumer(fan_out=FanOut("billing", fallback="polling"), **settings) as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def handle(record):
            ledger(record)

        tasks.start_soon(consumer.run, handle)
        await eventually(lambda: len(ledger.records) == 20)
        kinesis.clock.advance(10)
        await client.delete_stream("s", enforce_consumer_deletion=True, wait=True)
        if is_missed:
            await eventually(lambda: any(isinstance(event, StreamMissing) for event in events))
        await client.create_stream("s", shards=1, wait=True)
        await put(range(20, 40))
        await eventually(lambda: {*ledger.numbers} == {*range(40)}, 40)
        (registered,) = await client.list_stream_consumers("s")
        assert (registered.name, consumer.status().health) == ("billing", "ok")
        reading = [shard for shard in consumer.status().shards if shard.state == "reading"]
        assert {shard.read_by for shard in reading} == {"fan-out"}
        await consumer.close()
    assert calls()["RegisterStreamConsumer"] >= 2
    assert calls()["GetRecords"] == 0


async def test_without_restart_a_stream_that_is_re_created_stops_the_consumer(
    make_consumer, client_of, kinesis, put, group
):
    async with client_of() as client, make_consumer(fan_out="billing", group=group, store="memory:") as consumer:
        await consumer.wait_ready()
        kinesis.clock.advance(10)
        await client.delete_stream("s", enforce_consumer_deletion=True, wait=True)
        await client.create_stream("s", shards=1, wait=True)
        with anyio.fail_after(20), pytest.raises(StreamRecreated):
            await anext(aiter(consumer))


@pytest.mark.parametrize(
    ("fan_out", "message"),
    [
        (7, "must be a consumer name, a consumer ARN or a FanOut, not int"),
        ("", "takes the name of a registered consumer"),
        ("a/b", "takes the name of a registered consumer"),
        ("arn:aws:kinesis:us-east-1:000000000000:stream/s", "is not a consumer ARN"),
        (
            "arn:aws:kinesis:us-east-1:000000000000:stream/other/consumer/c:1",
            "a consumer of the stream .*other, but this Consumer reads s",
        ),
    ],
)
async def test_wrong_arguments_are_refused(make_consumer, fan_out, message):
    with pytest.raises(UsageError, match=message):
        make_consumer(fan_out=fan_out)


async def test_a_wrong_fallback_is_refused():
    with pytest.raises(UsageError, match="fallback must be 'polling' or None, not 'none'"):
        FanOut("billing", fallback="none")
