"""Calls the sinks of a producer or consumer, each sink in its own thread.

The host appends its events to the queue of each sink, and never waits for a sink.

Invariants:

- A sink that is slow, raises or hangs delays neither the host nor another sink.
- Events reach a sink in order, and within about ``INTERVAL`` seconds if it is fast enough. A queue holds at most
  ``QUEUE_MAX`` events: beyond that, the oldest are dropped, counted and logged, at most once a minute.
- Every event that was emitted before ``stop`` reaches a sink that is fast enough. All threads together have
  ``CLOSE_TIMEOUT`` seconds for that. A thread that needs longer is abandoned, and this is logged.
- Any exception that a sink raises is logged, at most once a minute. ``KeyboardInterrupt`` and ``SystemExit`` are also
  logged: they could not end the program, because they are not raised in the main thread.
- A thread is woken at most once per ``INTERVAL``, and not at all while there are no events.
- After a fork, no sink is called in the child, because the threads exist only in the parent.
- Importing this module does not import asyncio, so that plain functions in AWS Lambda start without asyncio.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, final

from shardline.adapters.sinks.log_context import log_context
from shardline.events import EventSource, instrumented_sinks

INTERVAL: Final = 0.05  # seconds in which a thread collects events before it takes them
QUEUE_MAX: Final = 10_000  # events
CLOSE_TIMEOUT: Final = 2.0  # seconds
_LOG_PERIOD: Final = 60.0  # seconds in which the same problem of a sink is logged once


@final
class _Contained:
    """``with _Contained(report):`` passes any exception of the block to ``report`` and suppresses it."""

    def __init__(self, report: Callable[[BaseException], object]) -> None:
        self._report = report

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._report(error)
        return error is not None


def _open(sink: Any, source: EventSource) -> Any:
    opened = sink.open(source)
    if not callable(opened):
        raise TypeError(f"open() returned a {type(opened).__name__}, which is not callable")
    return opened


@final
class SinkThread:
    """One sink, the queue of its events, and the thread that calls it."""

    def __init__(self, sink: Any, owner: "SinkThreads") -> None:
        self.name: str = getattr(sink, "__qualname__", type(sink).__qualname__).rpartition("<locals>.")[2]
        self.has_ended = False
        """Whether the thread has ended, or will no longer call the sink. The thread writes it."""
        self.closes_owner = False
        """Whether the sink itself closes the producer or consumer. ``SinkThreads`` writes it."""
        self._sink = sink
        self._owner = owner
        self._queue: deque[Any] = deque(maxlen=QUEUE_MAX)
        self._emitted = 0  # the host writes it
        self._taken = 0  # the thread writes it
        # Both locks are held while there is nothing to report, and released to wake the thread.
        self._has_events, self._is_stopping = threading.Lock(), threading.Lock()
        self._has_events.acquire()
        self._is_stopping.acquire()
        self._is_abandoned = False
        self._failure_logged_at = self._drops_logged_at = -_LOG_PERIOD
        self._drops_logged = 0
        self._thread = threading.Thread(target=self._run, name=f"shardline sink {self.name}", daemon=True)
        self._thread.start()

    # ---- called by the host

    def emit(self, events: Sequence[Any]) -> None:
        self._queue.extend(events)
        self._emitted += len(events)
        # Do not use a flag: an interrupt between setting the flag and waking the thread would leave the thread asleep.
        if self._has_events.locked():
            self._has_events.release()
        if len(self._queue) == QUEUE_MAX:
            self._log_drops(_LOG_PERIOD)

    def stop(self) -> None:
        """Have the thread process the events in its queue, and then end."""
        for lock in (self._is_stopping, self._has_events):
            with suppress(RuntimeError):  # already released
                lock.release()

    def abandon(self) -> int:
        """Have the thread end after its current call. Return the number of events that the sink did not get."""
        self._is_abandoned = True
        return len(self._queue)

    def log_drops(self) -> None:
        """Log the dropped events that are not logged yet."""
        self._log_drops(0.0)

    def _log_drops(self, period: float) -> None:
        now = self._owner.clock()
        # The thread counts an event before it takes the event, so this number may be one too low, but never too high.
        dropped = self._emitted - self._taken - len(self._queue)
        if dropped > self._drops_logged and now - self._drops_logged_at >= period:
            self._drops_logged, self._drops_logged_at = dropped, now
            events = "1 event" if dropped == 1 else f"{dropped} events"
            self._owner.log(logging.WARNING, f"the sink {self.name} is too slow: dropped {events} so far")

    @property
    def is_awaited(self) -> bool:
        """Whether the owner must wait for this thread when the owner ends. After a fork, the thread does not exist."""
        return not self.has_ended and not self.closes_owner and self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return self._thread is threading.current_thread()

    # ---- the thread

    def _run(self) -> None:
        try:
            opened: Any = None
            with _Contained(self._log_not_opened):
                opened = _open(self._sink, self._owner.source) if hasattr(self._sink, "open") else self._sink
            if opened is not None:
                self._take_events(opened)
                if opened is not self._sink and hasattr(opened, "close"):
                    with _Contained(self._log_failure):
                        opened.close()
        finally:
            self.has_ended = True
            self._owner.handle_ended()

    def _take_events(self, sink: Any) -> None:
        queue, is_over = self._queue, False
        end_batch = getattr(sink, "end_batch", None)
        while not is_over:
            self._has_events.acquire()
            is_over = self._is_stopping.acquire(timeout=INTERVAL)
            while queue and not self._is_abandoned:
                with _Contained(self._log_failure):  # not per event, which would be slow
                    while queue and not self._is_abandoned:
                        self._taken += 1  # count first: see _log_drops
                        sink(queue.popleft())
            if end_batch is not None and not self._is_abandoned:
                with _Contained(self._log_failure):
                    end_batch()

    def _log_not_opened(self, error: BaseException) -> None:
        self._owner.log(logging.ERROR, f"the sink {self.name} could not be opened and gets no events", error)

    def _log_failure(self, error: BaseException) -> None:
        now = self._owner.clock()
        if now - self._failure_logged_at >= _LOG_PERIOD:
            self._failure_logged_at = now
            self._owner.log(logging.ERROR, f"the sink {self.name} failed; {self._owner.consequence}", error)


@final
class SinkThreads:
    """The sinks of one producer or consumer.

    Args:
        sinks: the checked sinks. ``start`` adds the sinks of ``shardline.events.instrument``.
        source: the producer or consumer.
        name: the beginning of each log line.
        consequence: the end of a log line about a sink that failed.
        clock: returns the current time.
        adapt: returns the sink to call in place of each sink.
    """

    def __init__(
        self,
        sinks: Sequence[Any],
        source: EventSource,
        *,
        name: str,
        consequence: str,
        clock: Callable[[], float] = time.monotonic,
        adapt: Callable[[Any], Any] | None = None,
    ) -> None:
        self.sinks: tuple[Any, ...] = (*sinks,)
        """All sinks, including those of ``instrument`` after ``start``."""
        self.source = source
        self.consequence = consequence
        self.clock = clock
        self._name = name
        self._adapt = adapt
        self._logger = logging.getLogger(f"shardline.{source.kind}")
        self._threads: list[SinkThread] = []
        self._waiters: list[Callable[[], object]] = []  # each thread calls these when it has ended
        self._stopped_at: float | None = None
        self._abandoned = False

    def start(self) -> None:
        """Start a thread for each sink."""
        self.sinks = (*self.sinks, *instrumented_sinks())
        for sink in self.sinks:
            try:
                self._threads.append(SinkThread(sink if self._adapt is None else self._adapt(sink), self))
            except RuntimeError as error:  # the limit on threads is reached
                self.log(logging.ERROR, "a sink gets no events, because its thread could not be started", error)

    def emit(self, events: Sequence[Any]) -> None:
        """Pass events to the sinks, without waiting. Only the host calls this."""
        for thread in self._threads:
            if not thread.has_ended:
                thread.emit(events)

    def stop(self) -> None:
        """Have the threads process the emitted events and then end. This call does not wait. Stopping twice is
        harmless.
        """
        if self._stopped_at is None:
            self._stopped_at = self.clock()
        for thread in self._threads:
            thread.stop()

    def handle_close(self) -> None:
        """Handle a call to ``close`` in this thread. If a sink makes the call, the call must not wait for that sink."""
        for thread in self._threads:
            if thread.is_current:
                thread.closes_owner = True

    async def wait(self, limit: float = CLOSE_TIMEOUT) -> None:
        """Stop the threads, and wait until they have ended, in the running event loop.

        Threads that do not end in time are abandoned: ``CLOSE_TIMEOUT`` after the stop, or after ``limit`` seconds.
        """
        from shardline.adapters.event_loop import call_soon_from_threads  # noqa: PLC0415 - it imports asyncio
        from shardline.aio.loop.host_tasks import make_flag  # noqa: PLC0415 - it imports asyncio

        until = self._stop_until(limit)
        if self._is_any_awaited:
            call_soon, has_ended = call_soon_from_threads(), make_flag()

            def wake() -> None:
                with suppress(RuntimeError):  # the loop has ended
                    call_soon(has_ended.set)

            self._waiters.append(wake)
            while self._is_any_awaited and (left := until - self.clock()) > 0:
                await has_ended.wait(left)
                has_ended.clear()
        self._abandon_rest()

    def wait_blocking(self, limit: float = CLOSE_TIMEOUT) -> None:
        """Like ``wait``, but for callers without an event loop."""
        until = self._stop_until(limit)
        if self._is_any_awaited:
            has_ended = threading.Event()
            self._waiters.append(has_ended.set)
            while self._is_any_awaited and (left := until - self.clock()) > 0:
                has_ended.wait(left)
                has_ended.clear()
        self._abandon_rest()

    def _stop_until(self, limit: float) -> float:
        self.stop()
        assert self._stopped_at is not None
        return min(self._stopped_at + CLOSE_TIMEOUT, self.clock() + limit)

    @property
    def _is_any_awaited(self) -> bool:
        return any(thread.is_awaited for thread in self._threads)

    def _abandon_rest(self) -> None:
        if not self._abandoned:
            self._abandoned = True
            for thread in self._threads:
                thread.log_drops()
            late = [thread for thread in self._threads if thread.is_awaited]
            if late:
                left = sum(thread.abandon() for thread in late)
                names = ", ".join(thread.name for thread in late)
                events = "1 event" if left == 1 else f"{left} events"
                self.log(logging.ERROR, f"the sinks did not finish in time: {names}; {events} discarded")

    # ---- called by the threads

    def handle_ended(self) -> None:
        for wake in [*self._waiters]:
            wake()

    def log(self, level: int, text: str, error: BaseException | None = None) -> None:
        self._logger.log(level, "%s: %s", self._name, text, exc_info=error, extra=log_context(self.source))
