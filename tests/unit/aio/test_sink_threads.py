"""Are the sinks called in order, completely, and without delaying the host, whatever they do?"""

import asyncio
import logging
import os
import threading
import time

import anyio
import pytest

from shardline.aio import sink_threads
from shardline.aio.sink_threads import CLOSE_TIMEOUT, QUEUE_MAX, SinkThreads
from shardline.events import EventSource, instrument

SOURCE = EventSource("consumer", "orders", "billing", "worker-1")
ERRORS = [ValueError("mine"), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3), GeneratorExit()]


class Recorder:
    """A sink with ``open`` and ``close``."""

    def __init__(self):
        self.calls = []

    def open(self, source):
        self.calls.append(("open", source, threading.current_thread().name))
        return Opened(self.calls)


class Opened:
    def __init__(self, calls):
        self.calls = calls

    def __call__(self, event):
        self.calls.append(event)

    def close(self):
        self.calls.append("close")


@pytest.fixture
def make():
    def make(*sinks, **arguments):
        threads = SinkThreads(sinks, SOURCE, name="s", consequence="life goes on", **arguments)
        threads.start()
        return threads

    return make


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, "shardline")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.fixture
def gate():
    """An event that sinks of the test wait for. It is set at the end, so that their threads end."""
    gate = threading.Event()
    yield gate
    gate.set()


def wait_until(true, limit=10.0):
    until = time.monotonic() + limit
    while not true() and time.monotonic() < until:
        time.sleep(0.002)
    assert true()


def test_every_event_reaches_each_sink_in_order(make, lines):
    first, second = [], []
    threads = make(first.append, second.append)
    for number in range(500):
        threads.emit([number * 2, number * 2 + 1])
    threads.wait_blocking()
    assert first == second == list(range(1000))
    assert lines() == []


def test_events_arrive_soon_while_nothing_is_closed(make):
    seen = []
    threads = make(seen.append)
    for number in range(3):
        threads.emit([number])
        began_at = time.monotonic()
        wait_until(lambda number=number: seen[-1:] == [number])
        assert time.monotonic() - began_at < 2.0
    threads.wait_blocking()


def test_a_sink_is_opened_first_and_closed_last_in_its_own_thread(make):
    sink = Recorder()
    threads = make(sink)
    threads.emit([1])
    threads.wait_blocking()
    assert sink.calls == [("open", SOURCE, "shardline sink Recorder"), 1, "close"]


class Summing:
    """A sink that adds up its events, and writes their sum once per batch."""

    def __init__(self, error=None):
        self.total = 0
        self.written = []
        self.error = error

    def __call__(self, event):
        self.total += event

    def end_batch(self):
        total, self.total = self.total, 0
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.written.append(total)


def test_a_sink_is_told_when_all_waiting_events_were_passed(make):
    sink = Summing()
    threads = make(sink)
    for _ in range(100):
        threads.emit([1, 1])
    wait_until(lambda: sum(sink.written) == 200)
    assert len(sink.written) < 100
    threads.emit([1])
    threads.wait_blocking()
    assert sum(sink.written) == 201
    assert sink.total == 0


def test_an_exception_at_the_end_of_a_batch_is_logged_and_the_sink_gets_further_events(make, lines):
    sink = Summing(ValueError("no"))
    threads = make(sink)
    threads.emit([1])
    wait_until(lambda: sink.error is None)
    threads.emit([2])
    threads.wait_blocking()
    assert sum(sink.written) == 2
    assert ("ERROR", "s: the sink Summing failed; life goes on") in lines()


def test_a_callable_that_was_not_opened_is_not_closed(make):
    calls = []
    threads = make(Opened(calls))
    threads.emit([1])
    threads.wait_blocking()
    assert calls == [1]


@pytest.mark.parametrize("error", ERRORS)
def test_a_sink_that_raises_gets_every_event_and_is_logged_once_a_minute(make, lines, caplog, error):
    now, seen = [100.0], []

    def broken(event):
        seen.append(event)
        raise error

    threads = make(broken, clock=lambda: now[0])
    threads.emit(range(3))
    wait_until(lambda: len(seen) == 3)
    assert lines() == [("ERROR", "s: the sink broken failed; life goes on")]
    assert caplog.records[0].exc_info[1] is error
    assert (caplog.records[0].stream, caplog.records[0].worker) == ("orders", "worker-1")
    now[0] += 61
    threads.emit(range(3))
    threads.wait_blocking()
    assert len(seen) == 6
    assert len(lines()) == 2


@pytest.mark.parametrize("opened", [ValueError("mine"), SystemExit(), 5, None])
def test_a_sink_that_cannot_be_opened_gets_no_events_and_delays_nothing(make, lines, opened):
    class Unopened:
        def open(self, _):
            if isinstance(opened, BaseException):
                raise opened
            return opened

    seen = []
    threads = make(Unopened(), seen.append)
    wait_until(lines)
    for _ in range(QUEUE_MAX + 1):
        threads.emit([1])
    threads.wait_blocking()
    assert seen
    texts = [text for _, text in lines() if "Unopened" in text]
    assert texts == ["s: the sink Unopened could not be opened and gets no events"]


def test_a_sink_whose_close_raises_is_logged(make, lines):
    class Broken(Opened):
        def close(self):
            raise OSError("disk")

    sink = Recorder()
    sink.open = lambda _: Broken(sink.calls)
    threads = make(sink)
    threads.emit([1])
    threads.wait_blocking()
    assert lines() == [("ERROR", "s: the sink Recorder failed; life goes on")]


def test_the_oldest_events_are_dropped_counted_and_reported_once_a_minute(make, lines, gate):
    now, seen = [100.0], []

    def slow(event):
        gate.wait()
        seen.append(event)

    threads = make(slow, clock=lambda: now[0])
    threads.emit([0])
    wait_until(lambda: threads._threads[0]._taken == 1)
    for number in range(1, QUEUE_MAX + 101):
        threads.emit([number])
    assert lines() == [("WARNING", "s: the sink slow is too slow: dropped 1 event so far")]
    now[0] += 61
    threads.emit([QUEUE_MAX + 101])
    assert lines()[1:] == [("WARNING", "s: the sink slow is too slow: dropped 101 events so far")]
    threads.emit([QUEUE_MAX + 102])
    gate.set()
    threads.wait_blocking()
    assert lines()[2:] == [("WARNING", "s: the sink slow is too slow: dropped 102 events so far")]
    assert seen == [0, *range(103, QUEUE_MAX + 103)]


def test_sinks_that_hang_are_abandoned_together_after_two_seconds(make, lines, gate):
    seen, calls = [], []

    def hangs(event):
        calls.append(event)
        gate.wait()

    threads = make(hangs, seen.append, hangs)
    threads.emit(range(10))
    began_at = time.monotonic()
    threads.wait_blocking()
    assert CLOSE_TIMEOUT - 0.1 < time.monotonic() - began_at < 2 * CLOSE_TIMEOUT
    assert seen == list(range(10))
    assert lines() == [("ERROR", "s: the sinks did not finish in time: hangs, hangs; 18 events discarded")]
    began_at = time.monotonic()
    threads.wait_blocking()
    assert time.monotonic() - began_at < 0.5, "the second close does not wait again"
    gate.set()
    wait_until(lambda: all(thread.has_ended for thread in threads._threads))
    assert calls == [0, 0], "an abandoned sink is called no more"


def test_a_shorter_limit_ends_the_wait(make, gate):
    threads = make(lambda _: gate.wait())
    threads.emit([1])
    began_at = time.monotonic()
    threads.wait_blocking(limit=0.1)
    assert time.monotonic() - began_at < 1.0


def test_a_sink_that_opens_slowly_gets_its_events(make, gate):
    sink, open_ = Recorder(), Recorder.open
    sink.open = lambda source: gate.wait() and open_(sink, source)
    threads = make(sink)
    threads.emit([1, 2])
    gate.set()
    threads.wait_blocking()
    assert sink.calls[1:] == [1, 2, "close"]


def test_without_sinks_there_are_no_threads(make):
    before = threading.active_count()
    threads = make()
    threads.emit([1])
    threads.wait_blocking()
    assert threading.active_count() == before


def test_a_thread_that_cannot_be_started_is_logged(make, lines, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sink_threads.threading.Thread, "start", refuse)
    threads = make(print)
    threads.emit([1])
    threads.wait_blocking()
    assert lines() == [("ERROR", "s: a sink gets no events, because its thread could not be started")]


def test_instrumented_sinks_are_added_while_they_are_installed(make):
    first, everywhere = [], []
    with instrument(everywhere.append) as installed:
        threads = make(first.append)
    later = make()
    threads.emit([1])
    later.emit([2])
    for each in (threads, later):
        each.wait_blocking()
    assert (first, everywhere) == ([1], [1])
    installed.remove()  # a second time, which is harmless


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_a_fork_no_sink_is_called_in_the_child(make):
    read, write = os.pipe()
    threads = make(lambda _: os.write(write, b"%d " % os.getpid()))
    child = os.fork()
    if child == 0:
        threads.emit([1])
        threads.wait_blocking()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    threads.emit([1])
    threads.wait_blocking()
    os.close(write)
    with os.fdopen(read, "rb") as pids:
        assert pids.read().split() == [b"%d" % os.getpid()]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_an_event_loop_waits_without_being_blocked(make, gate, anyio_backend):
    seen, ticks = [], []

    def slow(event):
        gate.wait(0.5)
        seen.append(event)

    threads = make(slow)
    threads.emit([1])

    async def tick():
        while True:
            ticks.append(1)
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await threads.wait()
        tasks.cancel_scope.cancel()
    assert seen == [1]
    assert len(ticks) > 3
