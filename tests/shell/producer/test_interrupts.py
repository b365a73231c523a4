"""Does Ctrl-C reach the program, and never a task of ours? And does a put that it ends lose nothing (P1)?"""

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

from shardline import BufferFull, Closed, UsageError
from shardline.aio.host_tasks import HostTasks, spawn


async def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


async def press_ctrl_c_deeper():
    """In a task that the call started by itself, as the race of two connections does."""
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
        spawn(host())
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
    """What a signal handler raises, as that of Ctrl-C does."""


class OutOfTimeError(Exception):
    """What one raises that is no interrupt."""


@pytest.fixture(params=[Pressed, OutOfTimeError])
def raised(request):
    return request.param


@pytest.fixture
def alarm(raised):
    """Raise it in the main thread after so many seconds, wherever it is then."""

    def press(*_):
        raise raised

    before = signal.signal(signal.SIGALRM, press)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("many", [False, True], ids=["put", "put_many"])
def test_p1_a_signal_in_the_middle_of_blocking_puts_loses_no_record(make_sync_producer, stored, alarm, raised, many):
    chance = random.Random(many)
    deliveries = []
    with make_sync_producer(linger=0.01, request_max_entries=50) as producer:
        producer.put(b"first", key="k").result(5)

        def put_until_it_rings():
            alarm(chance.uniform(0.0002, 0.004))
            until = time.monotonic() + 0.1  # one that came in a finalizer of the library is lost
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
@pytest.mark.parametrize("after", range(0, 9_000, 997))
async def test_p1_an_interrupt_in_the_middle_of_puts_in_an_event_loop_loses_no_record(make_producer, stored, after):
    deliveries = []
    async with make_producer(request_max_entries=20, linger=0.2) as producer:
        await producer.put(b"first", key="k")
        assert await producer.flush(5) == []
        with interrupted(after) as interruption:
            for number in range(100):
                deliveries.append(producer.put_nowait(b"%d" % number, key=f"k{number}"))
        assert interruption.where is not None
        with anyio.fail_after(5):  # nobody flushes
            for delivery in deliveries:
                assert (await delivery.outcome()).delivered
    assert {delivery.key for delivery in deliveries} <= {key for key, _ in stored()}


# ---- one that returns


class PutsWhenCollected:
    """What a logging handler does that ships lines by a producer, when a finalizer logs."""

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
            if threading.current_thread() is threading.main_thread():  # the server's thread collects as well
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


def test_sp3_a_signal_handler_may_put_and_close_the_producer_that_it_interrupts(make_sync_producer, stored, alarm):
    chance = random.Random(3)
    deliveries, nested = [], []
    with make_sync_producer(linger=0.01, request_max_entries=50) as producer:

        def put_nested(*_):
            nested.append(producer.put_nowait(b"nested", key=f"n{len(nested)}"))
            if len(nested) < 300:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.001))
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


def test_sp3_a_close_in_the_middle_of_a_put_comes_after_it_also_if_the_handler_exits(make_sync_producer):
    """Wherever in the put a handler may run."""
    for after in count():
        producer = make_sync_producer(linger=0.0)
        producer.start()
        first = producer.put(b"1", key="k")

        def stop(producer=producer):
            producer.close()
            sys.exit(3)

        try:
            with entered_once_more(after, stop, "shardline/sync/producer.py") as once_more:
                producer.put(b"2", key="k")
        except (SystemExit, Closed):
            assert once_more.where is not None
        assert (once_more.where is None) == producer._thread.is_alive()
        assert producer.close() == []
        assert first.delivered
        if once_more.where is None:
            break
    assert after > 5


def test_sp3_what_would_wait_in_the_middle_of_a_put_says_so(make_sync_producer, kinesis):
    with make_sync_producer(buffer_max_records=1, close_timeout=0) as producer:
        with producer._lock, pytest.raises(UsageError, match="in the middle of a put"):
            producer.flush()
        kinesis.faults.throttle(operation="PutRecords")
        producer.put(b"x", key="k")
        with producer._lock, producer._machine.turn, pytest.raises(BufferFull):
            producer.put(b"y", key="k")
