"""Does Ctrl-C reach the program, and never one of our tasks? And does an interrupted put lose nothing (P1)?"""

import contextlib
import gc
import random
import signal
import sys
import threading
import time
from itertools import count

import anyio
import pytest
import trio
from tests.sim.interrupting import entered_once_more, interrupted

from shardline import BufferFull, Closed
from shardline.aio.loop.host_tasks import HostTasks, spawn


async def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


async def press_ctrl_c_deeper():
    """Press Ctrl-C in a task that the call has started, as the race of two connections does."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(press_ctrl_c)


@pytest.mark.parametrize("call", [press_ctrl_c, press_ctrl_c_deeper])
def test_the_main_task_is_interrupted_and_the_host_lives_on(call):
    lived = []

    async def host():
        async with HostTasks() as tasks:
            tasks.start_soon(call)
        lived.append("through it")

    async def main():
        spawn(host(), "host", lambda: None)
        try:
            await trio.sleep(5)
        finally:
            with trio.CancelScope(shield=True):
                while not lived:  # noqa: ASYNC110 - nothing tells
                    await trio.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert lived == ["through it"]


class Pressed(BaseException):
    """The exception that a signal handler raises, like that of Ctrl-C."""


class OutOfTimeError(Exception):
    """An ordinary exception that a signal handler raises."""


@pytest.fixture(params=[Pressed, OutOfTimeError])
def raised(request):
    return request.param


@pytest.fixture
def alarm(raised):
    """Raise it in the main thread after this many seconds, wherever it is then."""

    def press(*_):
        raise raised

    before = signal.signal(signal.SIGALRM, press)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("many", [False, True], ids=["put", "put_many"])
def test_p1_a_signal_in_the_middle_of_blocking_puts_loses_no_record(make_sync_producer, stored, alarm, raised, many):
    rng = random.Random(many)
    deliveries = []
    with make_sync_producer(linger=0.01, request_max_entries=50) as producer:
        producer.put(b"first", key="k").result(5)

        def put_until_it_rings():
            alarm(rng.uniform(0.0002, 0.004))
            until = time.monotonic() + 0.1  # an exception in a finalizer of the library is lost
            while time.monotonic() < until:
                number = len(deliveries)
                if many:
                    deliveries.extend(
                        producer.put_many([(f"k{number}-{n}", b"%d-%d" % (number, n)) for n in range(40)])
                    )
                else:
                    deliveries.append(producer.put(b"%d" % number, key=f"k{number}"))

        pressed = 0
        for _ in range(150):
            try:
                put_until_it_rings()
            except raised:
                pressed += 1
        not_delivered = producer.flush(20)
        assert pressed > 100
        assert [delivery.outcome(0).delivered for delivery in deliveries] == [True] * len(deliveries)
        assert (not_delivered, producer.outstanding) == ([], 0)
    arrived = {key for key, _ in stored()}
    assert {delivery.key for delivery in deliveries} <= arrived
    assert len(deliveries) > 1_000


@pytest.mark.anyio
@pytest.mark.parametrize("after", range(0, 6_000, 661))
async def test_p1_an_interrupt_in_the_middle_of_puts_in_an_event_loop_loses_no_record(make_producer, stored, after):
    deliveries = []
    async with make_producer(request_max_entries=20, linger=0.2) as producer:
        await producer.put(b"first", key="k")
        assert await producer.flush(5) == []
        with interrupted(after) as interruption:
            for number in range(200):
                deliveries.append(producer.put_nowait(b"%d" % number, key=f"k{number}"))
        assert interruption.where is not None
        with anyio.fail_after(5):  # there is no flush
            for delivery in deliveries:
                assert (await delivery.outcome()).delivered
    assert {delivery.key for delivery in deliveries} <= {key for key, _ in stored()}


# ---- signal handlers that return


class PutsWhenCollected:
    """A logging handler that ships lines with a producer, called when a finalizer logs."""

    def __init__(self, put):
        self.put = put
        self.itself = self

    def __del__(self):
        self.put()


@pytest.mark.anyio
async def test_p1_a_finalizer_that_puts_in_the_middle_of_a_put_adds_a_record(make_producer, stored, anyio_backend):
    deliveries = []
    async with make_producer(linger=0.01, request_max_entries=50) as producer:

        def put():
            if threading.current_thread() is threading.main_thread():  # the server's thread collects garbage, too
                deliveries.append(producer.put_nowait(b"collected", key=f"c{len(deliveries)}"))

        threshold = gc.get_threshold()
        gc.set_threshold(20)
        try:
            for number in range(3_000):
                PutsWhenCollected(put)
                deliveries.append(await producer.put(b"put", key=f"p{number}"))
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        assert await producer.flush(10) == []
        assert producer.outstanding == 0
        assert producer.stats().buffered_bytes == 0
    assert all(delivery.delivered for delivery in deliveries)
    assert len(stored()) == len(deliveries) >= 3_500


@pytest.mark.anyio
async def test_p1_a_record_that_a_signal_handler_puts_while_the_loop_waits_is_sent(make_producer):
    """Regression: the loop kept waiting, and the record with it, until something else happened."""
    deliveries = []
    async with make_producer(linger=0.01) as producer:
        await (await producer.put(b"first", key="k"))
        await anyio.sleep(0.1)
        before = signal.signal(
            signal.SIGALRM, lambda *_: deliveries.append(producer.put_nowait(b"of the handler", key="k"))
        )
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            await anyio.sleep(2.0)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert [delivery.delivered for delivery in deliveries] == [True], "before anything else woke the loop"


def test_a_signal_handler_may_put_and_close_the_producer_that_it_interrupts(make_sync_producer, stored, alarm):
    rng = random.Random(3)
    deliveries, nested = [], []
    with make_sync_producer(linger=0.01, request_max_entries=50) as producer:

        def put_nested(*_):
            with contextlib.suppress(BufferFull):  # its own thread may be waiting for room
                nested.append(producer.put_nowait(b"nested", key=f"n{len(nested)}"))
            if len(nested) < 300:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.001))
            else:
                producer.close()

        signal.signal(signal.SIGALRM, put_nested)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        with contextlib.suppress(Closed):
            for number in range(10_000_000):
                deliveries.append(producer.put(b"put", key=f"p{number}"))
        assert producer.close() == []
    assert all(delivery.delivered for delivery in deliveries + nested)
    assert len(stored()) == len(deliveries) + len(nested)
    assert len(nested) == 300


def test_a_close_in_the_middle_of_a_put_comes_after_it_also_if_the_handler_exits(make_sync_producer):
    """This holds wherever a handler may run during the put."""
    for after in count():
        producer = make_sync_producer(linger=0.0)
        producer.start()
        first = producer.put(b"1", key="k")

        def stop(producer=producer):
            producer.close()
            sys.exit(3)

        try:
            with entered_once_more(after, stop, "shardline/sync/blocking_producer.py") as once_more:
                producer.put(b"2", key="k", timeout=30.0)  # with a timeout, the pure method runs in both forms
        except (SystemExit, Closed):
            assert once_more.where is not None
        assert (once_more.where is None) == producer._thread._thread.is_alive()
        assert producer.close() == []
        assert first.delivered
        if once_more.where is None:
            break
    assert after > 5


def test_a_signal_handler_may_flush_and_ask_in_the_middle_of_a_put_and_finds_a_full_buffer_full(
    make_sync_producer, kinesis, stored
):
    """Its thread has the lock, or waits for room."""
    with make_sync_producer(buffer_max_records=1, close_timeout=0, linger=5.0) as producer:
        producer.put(b"x", key="k")
        with producer._lock:
            assert producer.flush(5) == []
            assert producer.stats().delivered_records == 1
        kinesis.faults.throttle(operation="PutRecords")
        producer.put(b"x", key="k")
        seen = []

        def put(*_):
            with pytest.raises(BufferFull):
                producer.put(b"nested", key="k")
            seen.append(len(producer._intake.waiters))

        before = signal.signal(signal.SIGALRM, put)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(BufferFull):
                producer.put(b"y", key="k", timeout=0.3)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert seen == [1], "the one that was interrupted is still in the line"
    assert len(stored()) == 1


def test_p7_a_signal_handler_that_raises_while_a_thread_waits_for_room_stops_no_other(
    make_sync_producer, alarm, raised
):
    """Regression: the count of woken threads was not taken back, and no thread was ever woken again."""
    rng = random.Random(7)
    with make_sync_producer(buffer_max_records=3, linger=0.0) as producer:
        is_over = threading.Event()
        counts = [0, 0]

        def put_on(place):
            while not is_over.is_set():
                producer.put(b"other", key=f"k{place}", timeout=20)
                counts[place] += 1

        threads = [threading.Thread(target=put_on, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        pressed = 0
        until = time.monotonic() + 4
        while time.monotonic() < until:
            before = list(counts)
            try:
                alarm(rng.uniform(0.0001, 0.01))
                for _ in range(1_000):
                    producer.put(b"mine", key="m", timeout=20)
            except raised:
                pressed += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
        is_over.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert producer.flush(10) == []
        assert (producer.outstanding, len(producer._intake.waiters)) == (0, 0)
        assert pressed > 50
        assert min(counts) > min(before)
