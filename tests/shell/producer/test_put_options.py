"""Do the options of a put work: ``ttl``, ``on_delivery`` and ``timeout``? And does a blocking delivery create a future?"""

import gc
import threading
import time
from concurrent.futures import FIRST_COMPLETED, as_completed, wait

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline import BufferFull, Closed, DeliveryFailed, UsageError

pytestmark = pytest.mark.anyio

DENIED = {"code": "AccessDeniedException", "message": "not you", "operation": "PutRecords", "status": 400}


# ---- ttl


@EVERY_API
async def test_a_record_expires_by_its_own_ttl(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    async with make_producer(close_timeout=0) as producer:
        began = time.monotonic()
        short = await producer.put(b"short", key="k", ttl=0.2)
        shorter = producer.put_nowait(b"shorter", key="k", ttl=0.1)
        many = await producer.put_many([("k", b"many"), (None, b"keyless")], ttl=0.2)
        plain = await producer.put(b"plain", key="k")
        for delivery in [short, shorter, *many]:
            outcome = await delivery.outcome()
            assert outcome.code == "Expired"
            assert outcome.message.startswith("not delivered within its ttl (0."), outcome.message
        assert 0.19 < time.monotonic() - began < 8
        assert not plain.done


@EVERY_API
async def test_a_longer_ttl_outlives_record_ttl(make_producer, kinesis, stored):
    kinesis.faults.throttle(operation="PutRecords")
    async with make_producer(record_ttl=0.2) as producer:
        plain = await producer.put(b"plain", key="k")
        long = await producer.put(b"long", key="k", ttl=30)
        outcome = await plain.outcome()
        assert (outcome.code, outcome.message[:40]) == ("Expired", "not delivered within record_ttl (0.2 s);"[:40])
        assert not long.done
        kinesis.faults.clear()
        await long
    assert stored() == [("k", b"long")]


@EVERY_API
@pytest.mark.parametrize(
    ("ttl", "said"),
    [
        (0, "ttl must be a number from 0.001 to 31,536,000, not 0"),
        (True, "ttl must be a number"),
        (float("nan"), "ttl must be a number"),
        (0.1, "ttl must be more than linger: 0.1 is not more than 0.1"),
    ],
)
async def test_a_wrong_ttl_is_refused(make_producer, ttl, said):
    async with make_producer(linger=0.1) as producer:
        for put in (producer.put(b"x", key="k", ttl=ttl), producer.put_many([("k", b"x")], ttl=ttl)):
            with pytest.raises(UsageError, match=said):
                await put
        with pytest.raises(UsageError, match=said):
            producer.put_nowait(b"x", key="k", ttl=ttl)
        assert producer.outstanding == 0


# ---- on_delivery


@EVERY_API
async def test_on_delivery_is_called_once_with_the_delivery(make_producer, kinesis):
    called = []
    async with make_producer() as producer:
        delivered = await producer.put(b"1", key="k", on_delivery=called.append)
        await producer.flush()
        kinesis.faults.error(**DENIED)
        failed = producer.put_nowait(b"2", key="k", on_delivery=called.append)
        with pytest.raises(DeliveryFailed):
            await failed
    assert [(one.key, one.delivered, one.done) for one in called] == [("k", True, True), ("k", False, True)]
    assert [getattr(one, "_inner", one) for one in (delivered, failed)] == called


async def test_on_delivery_may_be_async(make_producer):
    called = []

    async def later(delivery):
        await anyio.sleep(0.01)
        called.append(delivery)

    async with make_producer() as producer:
        delivery = await producer.put(b"1", key="k", on_delivery=later)
        await delivery
    assert called == [delivery]


@EVERY_API
async def test_on_delivery_that_raises_harms_nothing(make_producer, complaints):
    def raising(_):
        raise ZeroDivisionError

    async with make_producer() as producer:
        await (await producer.put(b"1", key="k", on_delivery=raising))
        await (await producer.put(b"2", key="k"))
    ((level, line),) = complaints()
    assert (level, "on_delivery failed" in line) == ("ERROR", True)


@EVERY_API
async def test_on_delivery_is_called_for_what_the_close_gives_up(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    called = []
    async with make_producer(close_timeout=0.02) as producer:
        await producer.put(b"1", key="k", on_delivery=lambda delivery: called.append(delivery.ending.code))
    assert called == ["Closed"]


@EVERY_API
async def test_on_delivery_is_not_called_for_what_was_not_accepted_and_nothing_leaks(make_producer):
    class Callback:
        def __call__(self, _):
            called.append(1)

        def __del__(self):
            gone.append(1)

    called, gone = [], []
    async with make_producer(buffer_max_records=1, linger=30.0, record_ttl=60.0, close_timeout=0) as producer:
        await producer.put(b"1", key="k")
        with pytest.raises(BufferFull):
            producer.put_nowait(b"2", key="k", on_delivery=Callback())
        with pytest.raises(UsageError, match="on_delivery must be callable, not int"):
            await producer.put(b"2", key="k", on_delivery=5)
    with pytest.raises(Closed):
        producer.put_nowait(b"2", key="k", on_delivery=Callback())
    gc.collect()
    assert (called, len(gone)) == ([], 2)


def test_the_blocking_on_delivery_runs_in_the_network_thread(make_sync_producer):
    threads = []
    with make_sync_producer() as producer:
        producer.put(b"1", key="k", on_delivery=lambda _: threads.append(threading.current_thread())).result(10)
        producer.flush()
    assert [thread.name for thread in threads] == ["shardline producer"]


# ---- timeout


@EVERY_API
async def test_a_put_without_room_gives_up_after_its_timeout(make_producer):
    async with make_producer(buffer_max_records=1, linger=30.0, record_ttl=60.0, close_timeout=0) as producer:
        await producer.put(b"1", key="k", timeout=5)
        for seconds in (0, 0.05):
            began = time.monotonic()
            with pytest.raises(BufferFull, match="1 records"):
                await producer.put(b"2", key="k", timeout=seconds)
            assert time.monotonic() - began >= seconds
        with pytest.raises(UsageError, match="timeout must be a number of seconds"):
            await producer.put(b"2", key="k", timeout="soon")
        assert (producer.outstanding, len(producer._intake.waiters)) == (1, 0)


async def test_a_put_that_gets_room_within_its_timeout_is_accepted(make_producer, stored):
    async with make_producer(buffer_max_records=1, linger=0.02) as producer:
        for number in range(5):
            await producer.put(b"%d" % number, key="k", timeout=10)
    assert sorted(data for _, data in stored()) == [b"%d" % number for number in range(5)]


async def test_timeouts_at_the_very_moment_of_room_lose_and_duplicate_nothing(make_producer, stored):
    """A put either raises and is not stored, or returns and is stored."""
    accepted = []
    async with make_producer(buffer_max_records=2, linger=0.0) as producer:

        async def put(number):
            try:
                delivery = await producer.put(b"%d" % number, key="k", timeout=0.001 * (number % 20))
            except BufferFull:
                return
            accepted.append(delivery)

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(put, number)
        assert not producer._intake.waiters
    assert all(delivery.delivered for delivery in accepted)
    assert len(stored()) == len(accepted)


async def test_an_outer_cancellation_is_not_taken_for_the_timeout(make_producer):
    async with make_producer(buffer_max_records=1, linger=30.0, record_ttl=60.0, close_timeout=0) as producer:
        await producer.put(b"1", key="k")
        with anyio.move_on_after(0.02) as scope:
            await producer.put(b"2", key="k", timeout=30)
        assert scope.cancelled_caught


# ---- futures


def test_blocking_deliveries_make_futures_for_wait_and_as_completed(make_sync_producer, kinesis):
    with make_sync_producer() as producer:
        deliveries = [producer.put(b"%d" % number, key=f"k{number}") for number in range(20)]
        futures = {delivery.future(): delivery for delivery in deliveries}
        done, left = wait(futures, timeout=10)
        assert (len(done), left) == (20, set())
        assert all(future.result() == futures[future].result(0.0) for future in as_completed(futures, timeout=10))
        assert deliveries[0].future().done(), "a delivery that has resolved makes a future that is done"

        kinesis.faults.error(**DENIED)
        failed = producer.put(b"x", key="k")
        (future,) = wait([failed.future()], timeout=10).done
        error = future.exception()
        assert isinstance(error, DeliveryFailed)
        assert (error.code, error.delivery) == ("AccessDeniedException", failed)


def test_a_future_of_a_pending_delivery_can_neither_be_cancelled_nor_harm_it(make_sync_producer):
    with make_sync_producer(linger=0.2) as producer:
        delivery = producer.put(b"x", key="k")
        first, second = delivery.future(), delivery.future()
        assert first is not second
        assert (first.cancel(), first.running(), first.done()) == (False, True, False)
        done, left = wait([first, second], timeout=0.0, return_when=FIRST_COMPLETED)
        assert (done, left) == (set(), {first, second})
        assert first.result(10) == second.result(10) == delivery.result(10)


def test_a_delivery_whose_future_is_not_requested_costs_no_waiter(make_sync_producer):
    """P11: an unused future costs nothing."""
    with make_sync_producer(linger=0.2) as producer:
        delivery = producer.put(b"x", key="k")
        assert delivery.waiters is None
        delivery.result(10)
