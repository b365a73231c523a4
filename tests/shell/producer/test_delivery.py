"""Does a delivery end once, for every waiter, whatever the waiters do (P1)?"""

import asyncio
import gc
import threading
import weakref
from contextlib import suppress

import anyio
import pytest

from shardline import DeliveryFailed, Receipt, Undelivered, UsageError, WaitTimeout

pytestmark = pytest.mark.anyio


async def test_it_can_be_awaited_many_times_by_many_waiters(make_producer):
    results = []
    async with make_producer(linger=0.05) as producer:
        delivery = await producer.put(b"x", key="k")

        async def wait():
            results.append(await delivery)
            results.append(await delivery.outcome())

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(wait)
    assert len(results) == 40
    assert len(set(results)) == 1
    assert isinstance(results[0], Receipt)
    assert await delivery == results[0], "after the close too"


async def test_a_waiter_that_is_cancelled_harms_no_other(make_producer):
    results = []
    async with make_producer(linger=0.05) as producer:
        delivery = await producer.put(b"x", key="k")

        async def wait():
            results.append(await delivery)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            for _ in range(3):
                with anyio.move_on_after(0.001) as scope:
                    await delivery
                assert scope.cancelled_caught
            tasks.start_soon(wait)
        assert len(results) == 2
        assert delivery.waiters is None


async def test_a_failure_is_raised_or_given_as_a_value(make_producer, kinesis):
    kinesis.faults.error("AccessDeniedException", "not for you", operation="PutRecords", status=400)
    async with make_producer() as producer:
        delivery = await producer.put(b"data", key="k", explicit_hash_key="5")
        for _ in range(2):
            with pytest.raises(DeliveryFailed, match="AccessDeniedException: not for you") as caught:
                await delivery
        outcome = await delivery.outcome()
    assert isinstance(outcome, Undelivered)
    assert caught.value.reason is outcome
    assert caught.value.delivery is delivery
    assert (caught.value.code, caught.value.attempt_count, caught.value.maybe_stored) == (
        "AccessDeniedException",
        1,
        False,
    )
    assert (delivery.data, delivery.key, delivery.explicit_hash_key) == (b"data", "k", "5"), "it can be put again"
    assert (delivery.done, delivery.delivered, outcome.delivered) == (True, False, False)


async def test_data_is_dropped_on_delivery(make_producer):
    async with make_producer() as producer:
        delivery = await producer.put(b"data", key="k")
        assert delivery.data == b"data"
        await delivery
        assert delivery.data is None


async def test_a_repr_shows_no_data(make_producer):
    async with make_producer() as producer:
        delivery = await producer.put(b"secret", key="k")
        assert "pending" in repr(delivery)
        await delivery
    assert "delivered" in repr(delivery)
    assert "secret" not in repr(delivery)


async def test_records_whose_deliveries_are_dropped_still_arrive(make_producer, stored):
    async with make_producer() as producer:
        for number in range(200):
            await producer.put(b"%d" % number, key="k")
            gc.collect(0)
    assert len(stored()) == 200


# ---- callbacks


async def test_callbacks_are_called_once_in_order_also_when_it_has_ended(make_producer):
    calls = []
    async with make_producer() as producer:
        delivery = await producer.put(b"x", key="k")
        delivery.add_done_callback(lambda one: calls.append(("first", one is delivery, one.delivered)))
        delivery.add_done_callback(lambda _: calls.append("second"))
        await delivery
        assert calls == [("first", True, True), "second"]
        delivery.add_done_callback(lambda _: calls.append("late"))
        assert calls[2:] == ["late"]


class Odd(BaseException):
    """An exception that is neither an Exception nor an exit, as test frameworks raise."""


@pytest.mark.parametrize(
    "error", [ValueError("oops"), asyncio.CancelledError(), AssertionError(), SystemExit(3), GeneratorExit(), Odd()]
)
async def test_a_callback_that_raises_affects_no_other_delivery(make_producer, complaints, error):
    def broken(_):
        raise error

    calls = []
    async with make_producer() as producer:
        deliveries = await producer.put_many([("k", b"%d" % number) for number in range(10)])
        for delivery in deliveries:
            delivery.add_done_callback(broken)
            delivery.add_done_callback(calls.append)
        with anyio.fail_after(10):
            assert [type(await delivery) for delivery in deliveries] == [Receipt] * 10
        assert len(calls) == 10
        await (await producer.put(b"and on it goes", key="k"))
        with suppress(type(error)):  # here the caller's own code raises
            deliveries[0].add_done_callback(broken)
    at_once = isinstance(error, Exception | asyncio.CancelledError)
    assert [text for _, text in complaints()] == ["a delivery's callback failed"] * (10 + at_once)


async def test_a_callback_may_put_again(make_producer, stored):
    async with make_producer() as producer:
        delivery = await producer.put(b"first", key="k")
        delivery.add_done_callback(lambda _: producer.put_nowait(b"second", key="k"))
        await delivery
        await producer.flush()
    assert [data for _, data in stored()] == [b"first", b"second"]


async def test_nothing_of_a_delivery_with_callbacks_is_kept(make_producer):
    """P11: the garbage collector does not track records, so no reference cycle may remain."""

    class Thing:
        pass

    async with make_producer() as producer:
        thing = Thing()
        watched = weakref.ref(thing)
        delivery = await producer.put(b"x", key="k")
        delivery.add_done_callback(lambda one, thing=thing: (one, thing))
        await delivery
        delivery.add_done_callback(lambda one, thing=thing: (one, thing))
        del thing, delivery
        gc.collect()
        assert watched() is None


# ---- from threads


def test_result_waits_and_gives_up_after_its_timeout(make_sync_producer):
    with make_sync_producer(linger=0.2) as producer:
        delivery = producer.put(b"x", key="k")
        for timeout in (0, 0.01):
            with pytest.raises(WaitTimeout, match="the producer keeps trying"):
                delivery.result(timeout)
            with pytest.raises(TimeoutError):
                delivery.outcome(timeout)
        assert delivery.waiters == []
        receipt = delivery.result(timeout=float("inf"))
        assert delivery.result() == delivery.outcome(0) == receipt


@pytest.mark.parametrize("timeout", [-1, "5", float("nan"), 10**400, -(10**5000)], ids=type)
def test_a_wrong_timeout_is_named(make_sync_producer, timeout):
    with make_sync_producer() as producer:
        delivery = producer.put(b"x", key="k")
        with pytest.raises(UsageError, match="timeout must be a number of seconds"):
            delivery.result(timeout)


def test_result_raises_what_failed(make_sync_producer, kinesis):
    kinesis.faults.error("AccessDeniedException", "not for you", operation="PutRecords", status=400)
    with make_sync_producer() as producer:
        delivery = producer.put(b"x", key="k")
        with pytest.raises(DeliveryFailed, match="not for you"):
            delivery.result(5)
        assert delivery.outcome().code == "AccessDeniedException"


def test_any_number_of_threads_wait_and_none_is_forgotten(make_sync_producer):
    """They enter while the network thread collects the waiters."""
    with make_sync_producer(linger=0.0) as producer:
        for _ in range(60):
            delivery = producer.put(b"x", key="k")
            results = []
            start = threading.Barrier(8)

            def wait(delivery=delivery, results=results, start=start):
                start.wait()
                results.append(delivery.result(5))

            threads = [threading.Thread(target=wait) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(6)
            assert len(results) == 8


def test_waiters_enter_one_at_a_time(make_sync_producer):
    """Two threads that both find no list of waiters must not create one each."""
    with make_sync_producer(linger=30.0, record_ttl=60.0) as producer:  # close sends it at once
        delivery = producer.put(b"x", key="k")
        threads = [threading.Thread(target=delivery.add_waiter, args=(lambda: None,)) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(delivery.waiters) == 50


def test_callbacks_run_in_the_network_thread_and_may_not_wait_there(make_sync_producer, stored, complaints):
    refused = []
    threads = []
    with make_sync_producer(linger=0.01) as producer:
        other = producer.put(b"1", key="k")

        def callback(_):
            threads.append(threading.current_thread().name)
            later = producer.put(b"2", key="k")
            for wait in (later.result, producer.flush, producer.close):
                try:
                    wait()
                except UsageError as error:
                    refused.append(str(error))

        other.add_done_callback(callback)
        other.result(5)
        assert producer.flush(5) == []
    assert threads == ["shardline producer"]
    assert len(refused) == 3
    assert all("network thread" in text for text in refused)
    assert [data for _, data in stored()] == [b"1", b"2"]
    assert complaints() == []


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Odd()])
def test_a_callback_in_the_network_thread_ends_nothing(make_sync_producer, complaints, error):
    """If the network thread ended, all callers would wait forever."""
    with make_sync_producer() as producer:
        deliveries = producer.put_many([("k", b"%d" % number) for number in range(10)])

        def leave(_):
            raise error

        for delivery in deliveries:
            delivery.add_waiter(lambda: None)
            delivery.add_done_callback(leave)
        assert all(delivery.outcome(5).delivered for delivery in deliveries)
        assert producer.put(b"and on it goes", key="k").outcome(5).delivered
    assert ("ERROR", "a delivery's callback failed") in complaints()
