"""Does a hook or a sink that fails harm nothing, and does the log of a real producer stay short and free of secrets?"""

import asyncio
import logging

import anyio
import pytest

import shardline.aio.producer.producer_driver as driver_module
from shardline import DeliveryFailed
from shardline.core.producer_events import RecordsDelivered, RecordsRetried, RequestAnswered, ShardsChanged

pytestmark = pytest.mark.anyio

DENIED = {"code": "AccessDeniedException", "message": "not you", "operation": "PutRecords", "status": 400}


# ---- on_failure


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_every_record_that_was_given_up_is_handed_over(make_producer, kinesis, kind):
    kinesis.faults.error(**DENIED)
    handed = []

    async def later(delivery):
        await anyio.sleep(0.01)
        handed.append(delivery)

    async with make_producer(on_failure=handed.append if kind == "sync" else later) as producer:
        deliveries = await producer.put_many([("k", b"%d" % number) for number in range(20)])
        await producer.flush()
    assert sorted(handed, key=deliveries.index) == deliveries
    assert {(delivery.delivered, delivery.data is None) for delivery in handed} == {(False, False)}


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_what_the_close_gives_up_is_handed_over_too(make_producer, kinesis, complaints, kind):
    """The records that are left at the end matter most."""
    kinesis.faults.throttle(operation="PutRecords")
    handed = []

    async def later(delivery):
        await anyio.sleep(0.05)
        handed.append(delivery.ending.code)

    hook = later if kind == "async" else (lambda delivery: handed.append(delivery.ending.code))
    async with make_producer(on_failure=hook, close_timeout=0.02) as producer:
        await producer.put_many([("k", b"1"), ("k", b"2")])
    assert handed == ["Closed", "Closed"]


class Odd(BaseException):
    """An exception that is neither an Exception nor an exit, as test frameworks raise."""


ERRORS = [ValueError("mine"), asyncio.CancelledError(), SystemExit(3), GeneratorExit(), Odd()]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_hook_that_raises_harms_nothing_and_is_reported_once(make_producer, kinesis, complaints, kind, error):
    kinesis.faults.error(**DENIED, count=1)

    handed = []

    def broken(delivery):
        handed.append(delivery)
        raise error

    async def broken_later(delivery):
        await anyio.lowlevel.checkpoint()
        broken(delivery)

    if kind == "async" and isinstance(error, GeneratorExit):
        error = RuntimeError("mine")  # the coroutine was closed
    async with make_producer(on_failure=broken if kind == "sync" else broken_later) as producer:
        deliveries = await producer.put_many([("k", b"%d" % number) for number in range(10)])
        await producer.flush()
        assert all(delivery.done for delivery in deliveries)
        assert (await (await producer.put(b"x", key="k"))).attempt_count == 1
    assert sorted(handed, key=id) == sorted(deliveries, key=id)
    told = [text for _, text in complaints() if "on_failure" in text]
    assert told == ["s: on_failure failed; delivery continues"]


async def test_a_hook_may_put_again(make_producer, kinesis, stored):
    kinesis.faults.error(**DENIED, count=1)
    async with make_producer(on_failure=lambda one: producer.put_nowait(one.data, key=one.key)) as producer:
        await producer.put(b"again", key="k")
        await producer.flush()
        await producer.flush()
    assert stored() == [("k", b"again")]


async def test_a_hook_that_does_not_end_does_not_delay_the_close_forever(
    make_producer, kinesis, complaints, monkeypatch
):
    monkeypatch.setattr(driver_module, "HOOK_TIMEOUT", 0.05)
    kinesis.faults.error(**DENIED)
    async with make_producer(on_failure=lambda _: anyio.sleep(100)) as producer:
        await producer.put(b"x", key="k")
        await producer.flush()
        with anyio.fail_after(10):
            await producer.close()
    assert ("ERROR", "s: an async hook failed; delivery continues") in complaints()


async def test_a_hook_may_close_the_producer(make_producer, kinesis):
    kinesis.faults.error(**DENIED)
    closed = []

    async def close(_):
        closed.append(await producer.close())

    async with make_producer(on_failure=close) as producer:
        await producer.put(b"x", key="k")
        with anyio.fail_after(10):
            while not closed:  # noqa: ASYNC110 - from another task
                await anyio.sleep(0.005)
            await producer.close()
    assert len(closed) == 1


def test_hooks_of_the_blocking_producer(make_sync_producer, kinesis):
    kinesis.faults.error(**DENIED)
    handed = []

    async def later(delivery):
        await asyncio.sleep(0.01)
        handed.append(delivery.data)

    with make_sync_producer(on_failure=lambda one: handed.append(one.data)) as producer:
        producer.put(b"1", key="k")
    with make_sync_producer(on_failure=later) as producer:
        producer.put(b"2", key="k")
    assert handed == [b"1", b"2"]


# ---- sinks


@pytest.mark.parametrize("error", ERRORS)
async def test_a_sink_that_raises_harms_nothing(make_producer, complaints, stored, error):
    """A defect of aiokpl (aiokpl_b8)."""
    calls = []

    def sink(event):
        calls.append(event)
        raise error

    async with make_producer(sinks=[sink]) as producer:
        deliveries = await producer.put_many([(f"k{number}", b"x") for number in range(100)])
        assert await producer.flush() == []
        assert all(delivery.delivered for delivery in deliveries)
    assert len(calls) >= 3
    assert [text for _, text in complaints()] == ["s: the sink sink failed; delivery continues"]
    assert len(stored()) == 100


async def test_a_sink_sees_what_happens_and_neither_data_nor_keys(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords", count=1)
    events = []
    async with make_producer(sinks=[events.append]) as producer:
        await producer.put_many([("a-private-key", b"private data"), ("another-private-key", b"private data")])
        await producer.flush()
    kinds = {type(event) for event in events}
    assert {ShardsChanged, RequestAnswered, RecordsRetried, RecordsDelivered} <= kinds
    assert sum(event.records for event in events if isinstance(event, RecordsDelivered)) == 2
    assert "private" not in repr(events)


# ---- the log


async def test_a_storm_makes_a_few_lines_with_counts_and_no_data(make_producer, kinesis, caplog):
    caplog.set_level(logging.DEBUG, logger="shardline")
    kinesis.faults.throttle(operation="PutRecords")
    async with make_producer(record_ttl=0.4, linger=0.0) as producer:
        deliveries = await producer.put_many([(f"private-{number}", b"private data") for number in range(2000)])
        await producer.flush()
        assert not any(delivery.delivered for delivery in deliveries)
    loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert 2 <= len(loud) <= 20, "a few for each of four shards"
    lost = sum(record.args[1] for record in loud if "given up" in record.msg)
    assert lost == 2000
    secrets = ("private", kinesis.credentials.secret_key, kinesis.credentials.access_key)
    assert not [record for record in caplog.records if any(one in record.getMessage() for one in secrets)]


async def test_a_failed_delivery_says_no_secret(make_producer, kinesis):
    kinesis.faults.error(**DENIED)
    async with make_producer() as producer:
        with pytest.raises(DeliveryFailed) as caught:
            await (await producer.put(b"private data", key="private-key"))
    assert "private" not in str(caught.value)
    assert kinesis.credentials.secret_key not in repr(caught.value.reason)
