"""The host of a consumer: the only code that calls the consumer's machines.

One task polls the host of each stream (``StreamHost``), which sends the operations of its coordinator to the lease
store and its requests to Kinesis, and sleeps until the next deadline. A second task makes the calls that user code
posts (``post``) from any thread. One further task per shard reads the shard. All of these tasks run in one event loop,
and none of them runs user code. The user's lifecycle callbacks run in separate tasks.

Invariants (L2 is defined in docs/guarantees.md):

- L2: the clock includes the time during which the machine is suspended, and is read before every decision.
- No exception leaves the host. An exception that ends the host becomes the consumer's failure, and is raised by the
  next call that asks for records.
- The progress of user code is reported to the coordinator once per pump (``HandOut.handle_time``), not per record.
- No message is lost. Messages are also taken before each pump, so an interrupt between posting a message and waking
  the host delays the message, at most until the next deadline.
- After the host has ended, every taker gets the answer that there are no more records.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias, final

import anyio
import anyio.lowlevel

from shardline.adapters.event_loop import call_soon_from_threads
from shardline.aio.consumer.lifecycle_callbacks import LifecycleCallbacks
from shardline.aio.consumer.stream_host import StreamHost
from shardline.aio.loop.callbacks import Contained
from shardline.aio.loop.host_tasks import CrashGuard, Flag, HostTasks, LoopAffinity, make_flag
from shardline.aio.loop.notifier import Notifier
from shardline.aio.loop.stall_watchdog import StallWatchdog
from shardline.aio.reporting import ConsumerReporter
from shardline.core.clock import Instant
from shardline.core.consumer import consumer_events
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.handout import CancelHandler, HandOut, ReadingFailed, StopReading, WakeReader
from shardline.core.consumer.lifecycle import CallBack, CancelCallBack
from shardline.core.consumer.taker import Taker
from shardline.core.error_codes import to_error
from shardline.errors import Closed
from shardline.ports import KinesisApi

_log: Final = logging.getLogger("shardline.consumer")

Message: TypeAlias = Callable[[Instant], object]
"""A call to the hand-out that the host makes. Its argument is the current time."""


@final
class ConsumerDriver:
    """Drives the hand-out and the hosts of the streams."""

    def __init__(
        self,
        hand_out: HandOut,
        clock: Callable[[], Instant],
        *,
        reporter: ConsumerReporter,
        callbacks: LifecycleCallbacks,
    ) -> None:
        self.hand_out = hand_out
        self.streams: dict[str, StreamHost] = {}
        """The host of each stream, by its name. The session adds the first ones before the start."""
        self.clock = clock
        self.changes = Notifier()
        """Notified when the state may have changed: ready, closing, ended, or records returned by user code."""
        self._scopes: dict[Taker, anyio.CancelScope] = {}  # the scopes in which the handlers run
        self._callbacks = callbacks
        self._calls: dict[CallBack, anyio.CancelScope] = {}  # the callbacks that can be cancelled
        self._call_soon = call_soon_from_threads()
        self._config = hand_out.config
        self._error: Exception | None = None
        self._mail: deque[Message] = deque()
        self._is_mail_due = False
        self._mail_arrived = Notifier()
        self._thread = threading.get_ident()
        self.random = random.Random()  # noqa: S311 - no secret
        self.reporter = reporter
        """The reporter of the first stream, which also reports on the whole consumer."""
        self.sinks = reporter.sinks
        """The threads that call the sinks. The session starts them before the host."""
        self.log_user_error = reporter.log_user_error
        self._watchdog = StallWatchdog(reporter.name, self._config.lease_duration, self.clock)
        self._tasks: HostTasks | None = None
        self.api: KinesisApi | None = None
        self._wake: Flag | None = None
        self._is_finished = False
        self._is_releasing = False
        self.is_stopping = False
        self.loop_affinity = LoopAffinity("Consumer")
        """The event loop that the host runs in."""
        self.is_disowned = False
        """Whether this is the copy in a child process, after a fork."""

    # ---- start and end

    async def run(self, api: KinesisApi) -> None:
        """Run the host until all coordinators are closed."""
        self.api = api
        self._wake = make_flag()
        if self.sinks.sinks:
            self.hand_out.work.observe(self.clock())
            self.hand_out.work.set_wall_offset(time.time() - self.clock())
        self._watchdog.start()
        try:
            with CrashGuard(self._handle_crash):
                async with HostTasks() as self._tasks:
                    self._tasks.start_soon(self._serve)
                    for host in [*self.streams.values()]:
                        await host.open_store()
                    await self._drive(self._tasks)
                    self._tasks.cancel_scope.cancel()
        finally:
            self.finish()

    def _handle_crash(self, error: BaseException) -> None:
        _log.critical("the consumer stopped because of an internal error", exc_info=error)
        if not isinstance(error, Exception):  # from Ctrl-C or a signal handler: user code must not get it
            error = Closed(f"this Consumer does not run any more: {error!r}")
        self.fail(error)

    def finish(self) -> None:
        """Answer all takers that wait, once the host has ended. This is called again if it was interrupted."""
        if self._is_finished:
            return
        self._watchdog.stop()
        for host in self.streams.values():
            host.finish()
        self.hand_out.end(self.clock())
        self._take_mail()  # the last messages: callers that post from now on see that the host has ended
        self.reporter.log_rest()
        self.sinks.stop()  # after the last event
        self._is_finished = True

    def fail(self, error: Exception) -> None:
        """Stop handing out records for this reason."""
        self.hand_out.fail(error, self.clock())

    def start_soon(self, task: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Start a task that ends with the host."""
        assert self._tasks is not None, "the host runs"
        self._tasks.start_soon(task, *arguments)

    def stop(self) -> None:
        """Stop at once. Leases that are still held will lapse."""
        self.is_stopping = True
        self.wake()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def stop_if_loop_gone(self) -> bool:
        """Stop the host if its event loop has ended and the caller is in another one. Return whether it was stopped.

        Raises:
            UsageError: the host's event loop is running, in another thread.
        """
        is_loop_gone = self.loop_affinity.is_loop_gone(has_ended=self.has_ended)
        if is_loop_gone:
            with suppress(RuntimeError):  # the host's loop is closed
                self.stop()
        return is_loop_gone

    def release(self, now: Instant, *, is_clean: bool = False) -> None:
        """Commit the acknowledged records, release all leases, and end (L5). Call it through ``post``.

        With ``keep_leases``, a clean close of a consumer that has not failed keeps the leases.
        """
        self._is_releasing = True
        self.hand_out.close(now)
        self.hand_out.handle_time(now)
        for host in self.streams.values():
            host.coordinator.close(is_clean=is_clean and self.hand_out.failure is None)
        self.wake()

    def disown(self, error: Exception) -> None:
        """Refuse to work in the child of a fork, because everything belongs to the parent.

        This must neither wait nor touch the event loop.
        """
        self.is_disowned = True
        self.hand_out.disown(error)

    @property
    def has_ended(self) -> bool:
        return self.hand_out.has_ended

    @property
    def _is_closed(self) -> bool:
        """Whether the worker has released every lease of every stream."""
        return all(host.coordinator.is_closed for host in self.streams.values())

    @property
    def failure(self) -> Exception | None:
        """The error that stopped the hand-out of records, or ``None``."""
        reason = self.hand_out.failure
        if self._error is None and reason is not None:
            if isinstance(reason, ReadingFailed):
                self._error = to_error(reason.failure, f"reading {reason.shard_id}")
            else:
                assert isinstance(reason, Exception), "the host fails with exceptions"
                self._error = reason
        return self._error

    # ---- mail

    def post(self, message: Message) -> None:
        """Have the host make this call. Any thread may call this, and a signal handler, too."""
        self._mail.append(message)
        if self._is_mail_due:
            return
        is_woken = False
        try:
            self._is_mail_due = True  # set before waking the host, which resets it, perhaps in another thread
            if threading.get_ident() == self._thread:
                self._mail_arrived.notify()
            else:
                with suppress(RuntimeError):  # the loop has ended
                    self._call_soon(self._mail_arrived.notify)
            is_woken = True
        finally:
            if not is_woken:  # this call was interrupted: let the next post wake the host
                self._is_mail_due = False

    def enter(self, taker: Taker, scope: anyio.CancelScope) -> None:
        """Register the cancel scope of the taker's handler. The scope is cancelled when the lease is lost (L2)."""
        self._scopes[taker] = scope
        if taker.shard is not None and taker.shard.is_over:
            scope.cancel()

    def leave(self, taker: Taker) -> None:
        """Forget the scope of a handler whose task has ended."""
        self._scopes.pop(taker, None)

    async def _serve(self) -> None:
        while True:
            self._take_mail()
            await self._mail_arrived.wait()

    def _take_mail(self) -> None:
        self._is_mail_due = False  # reset first: a message posted after this is taken below, or wakes the host again
        while self._mail:
            self._mail.popleft()(self.clock())
        self.pump_hand_out()

    def pump_hand_out(self) -> None:
        """Carry out the hand-out's outputs. Must follow every call to the hand-out."""
        hand_out = self.hand_out
        for action in hand_out.take_actions():
            if isinstance(action, CallBack):
                self._begin_call_back(action)
            else:
                self._carry_out(action)
        for taker in hand_out.take_answered():
            taker.wake()
        self._report(hand_out.take_stream_events())
        if hand_out.take_pump_due():
            self.wake()
        self.changes.notify()

    def _report(self, events: Sequence[tuple[str, consumer_events.Event]]) -> None:
        """Report the events of the hand-out, each as an event of its stream."""
        by_stream: dict[str, list[consumer_events.Event]] = {}
        for stream, event in events:
            by_stream.setdefault(stream, []).append(event)
        for stream, found in by_stream.items():
            self.hand_out.work.handle_events(found)
            host = self.streams.get(stream)
            (self.reporter if host is None else host.reporter).report(found)

    def _carry_out(self, action: StopReading | WakeReader | CancelHandler | CancelCallBack) -> None:
        match action:
            case StopReading(shard):
                if (host := self.streams.get(shard.key[0])) is not None:
                    host.stop_reading(shard)
            case WakeReader(shard):
                if (host := self.streams.get(shard.key[0])) is not None:
                    host.wake_reader(shard)
            case CancelHandler(taker):
                if taker in self._scopes:
                    self._scopes[taker].cancel()
            case CancelCallBack(call):
                if call in self._calls:
                    self._calls[call].cancel()

    def _begin_call_back(self, call: CallBack) -> None:
        scope = anyio.CancelScope()
        if self._callbacks.can_cancel(call.kind):
            self._calls[call] = scope
        assert self._tasks is not None
        self._tasks.start_soon(self._call_back, call, scope)

    async def _call_back(self, call: CallBack, scope: anyio.CancelScope) -> None:
        """Call a lifecycle callback of the user and report its end to the hand-out."""
        errors: list[BaseException] = []
        has_returned = False
        try:
            with scope, Contained(errors.append, awaits=True):
                await self._callbacks.call(call.kind, call.argument)
                has_returned = True
        finally:
            self._calls.pop(call, None)
            error = None
            for raised in errors:
                what = f"{call.kind.value} of {call.shard.shard_id}"
                _log.error("%s: %s failed; the consumer stops", self.reporter.name, what, exc_info=raised)
                # An iterator or a run must not raise SystemExit.
                error = raised if isinstance(raised, Exception) else Closed(f"{what} raised {raised!r}")
            self.post(partial(self.hand_out.handle_called_back, call, has_returned=has_returned, error=error))

    def wake(self) -> None:
        """Wake the host, because there may be something to write or to request."""
        if self._wake is not None:
            self._wake.set()

    async def sleep(self, delay: float) -> None:
        """Wait until the host is woken, at most this long."""
        assert self._wake is not None
        self._wake.clear()
        self._watchdog.expect(self.clock() + delay)
        await self._wake.wait(delay)

    async def _drive(self, tasks: HostTasks) -> None:
        assert self._wake is not None
        while not self.is_stopping and not self._is_closed:
            self._wake.clear()  # clear before polling, so that a wake-up during the poll is not lost
            deadline = self._pump(tasks)
            now = self.clock()
            delay = min(deadline - now, self._config.lease_duration)
            self._watchdog.expect(now + max(0.0, delay))
            if delay > 0:
                await self._wake.wait(delay)
            else:
                await anyio.lowlevel.checkpoint()

    def _pump(self, tasks: HostTasks) -> Instant:
        """Do everything that is due and return the next deadline."""
        self._take_mail()
        now, hand_out = self.clock(), self.hand_out
        hand_out.handle_time(now)
        if hand_out.work.take_measure_due(now):
            hand_out.work.set_wall_offset(time.time() - now)  # the clock may have been adjusted
            for host in self.streams.values():
                host.measure_lag(now)
        deadlines = [host.pump(now) for host in [*self.streams.values()]]
        self._forget_closed(tasks)
        self.pump_hand_out()
        return min([*deadlines, hand_out.next_deadline()])

    # ---- streams

    def add_stream(self, name: str, coordinator: Coordinator, make: Callable[[], StreamHost], now: Instant) -> None:
        """Read another stream. Call it through ``post``. ``make`` returns the stream's host."""
        if not self.has_ended:
            self.hand_out.add_stream(name, coordinator, now)
            self.streams[name] = make()
            if self._is_releasing:
                coordinator.close()
            self.wake()
            self.changes.notify()

    def _forget_closed(self, tasks: HostTasks) -> None:
        """Forget the streams that the worker has given up."""
        for name, host in [*self.streams.items()]:
            if host.coordinator.is_retiring and host.coordinator.is_closed:
                del self.streams[name]
                self.hand_out.forget_stream(name, self.clock())
                host.reporter.end_stream()
                tasks.start_soon(host.close_store)
                self.changes.notify()
