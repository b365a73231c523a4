"""The host of a producer: the only code that calls the producer's machine.

One host task polls the machine, sends its requests, sleeps until its next deadline or until it is woken, wakes the
callers whose records are delivered or failed, and reports the events. The blocking producer runs the same driver in its
own thread.

Invariants:

- P1: the machine gets exactly one response or failure for every request that was polled, even if the task that sends
  the request is cancelled or raises. When the host ends, in whatever way, every delivery resolves.
- Only the host calls the machine, so the machine needs no lock. Other code puts records into the intake, and schedules
  all other calls in the host's event loop.
- No exception leaves the host. An exception that ends the host is logged, and the undelivered records fail.
- The host yields between two requests, and between two slices of records that it sorts, because each request and each
  slice takes milliseconds.
- When the host ends, in whatever way, it calls ``on_end`` first, after which no more records are accepted.
- Every record that failed is passed to ``on_failure``, and every record that was put with ``on_delivery`` is passed to
  that hook, even if earlier calls raised. Async hooks have ``HOOK_TIMEOUT`` seconds to finish after everything else has
  ended.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeVar, cast, final

import anyio
import anyio.lowlevel

from shardline.aio.client import Client
from shardline.aio.loop.callbacks import Contained
from shardline.aio.loop.host_tasks import CrashGuard, Flag, HostTasks, LoopAffinity, make_flag
from shardline.aio.loop.notifier import Notifier
from shardline.aio.producer.delivery import wake_waiters
from shardline.aio.reporting import ProducerReporter
from shardline.core.error_codes import Failure, FailureKind, to_error
from shardline.core.producer.machine import ProducerMachine
from shardline.core.producer.producer_config import SettingChanges
from shardline.core.producer.producer_record import BufferedRecord
from shardline.core.requests import PutRecords
from shardline.errors import UsageError, WaitTimeout
from shardline.ports import KinesisApi

HOOK_TIMEOUT: Final = 5.0
_log: Final = logging.getLogger("shardline.producer")
_CLOSED: Final = "the producer was closed before it could be delivered"
_LOOP_ENDED: Final = "the event loop ended before the producer was closed"
_CLIENT_CLOSED: Final = "the Client that this Producer uses was closed"
_NO_ORDER: Final = "the stream uses AUTO record distribution, which ignores keys: ordered=True cannot be honoured"
_current_driver: Final = ContextVar["Driver | None"]("shardline_current_driver", default=None)

T = TypeVar("T")


@final
class Driver:
    """Drives one producer's machine: sends its requests, and wakes the callers that wait for deliveries."""

    def __init__(
        self,
        machine: ProducerMachine,
        *,
        reporter: ProducerReporter,
        on_failure: Callable[[Any], object] | None,
        on_room: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.machine = machine
        self.failure: str | None = None
        """The error that ended the host, or ``None``."""
        self._reporter = reporter
        self.log_user_error = reporter.log_user_error
        self.sinks = reporter.sinks
        """The threads that call the sinks. These threads must be started before the host."""
        self._on_failure = on_failure
        self._on_room = on_room
        self._on_end = on_end
        self._wake: Flag | None = None  # created by the host, because __init__ may run in another thread
        self._tasks: HostTasks | None = None
        self._hooks: HostTasks | None = None
        self._stopping = False
        self._has_ended = False
        self._readiness_changed = Notifier()  # notified after each response about the stream, and at the end
        self.loop_affinity: LoopAffinity | None = None
        """The event loop that the host runs in, or ``None`` until the host is started."""
        self.orphaned = False
        """Whether the producer was garbage-collected. The host then ends when all records have resolved."""

    def wake(self) -> None:
        """Wake the host, because there may be something to send. This must be called in the event loop."""
        if self._wake is not None:
            self._wake.set()

    def stop(self) -> None:
        """Stop immediately. All records that have not been delivered yet fail."""
        self._stopping = True
        self.wake()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def handle_client_closed(self) -> None:
        """Stop, because the ``Client`` was closed. This must be called in the event loop."""
        if not self._stopping:
            self.failure = _CLIENT_CLOSED
            self._on_end(_CLIENT_CLOSED)
            self.stop()

    def orphan(self, call_soon: Callable[[Callable[[], None]], object] | None) -> None:
        """Let the host finish on its own, because the producer was garbage-collected.

        ``call_soon`` schedules a call in the host's event loop.
        """
        self.orphaned = True
        if call_soon is not None:
            with suppress(RuntimeError):  # the loop has ended
                call_soon(self.wake)

    def abandon_if_loop_gone(self) -> bool:
        """Fail all deliveries if the host's event loop has ended. Return whether it has ended.

        Raises:
            UsageError: the host's event loop is running, in another thread.
        """
        if self.loop_affinity is None or not self.loop_affinity.is_loop_gone(has_ended=self._has_ended):
            return False
        if not self._has_ended:
            self._end()
        return True

    def flush(self) -> None:
        """Send the records that were put, without lingering. This must be called in the event loop."""
        self.machine.flush()
        self.wake()

    def reconfigure(self, changes: SettingChanges) -> None:
        """Change settings. The values must be valid. This must be called in the event loop."""
        self.machine.reconfigure(changes, time.monotonic())
        self.wake()

    async def flush_and_wait(self, limit: float | None, snapshot: list[Any]) -> None:
        """Send without lingering, and wait until the deliveries have resolved, for at most ``limit`` seconds."""
        self.flush()
        with anyio.move_on_after(limit):
            for delivery in snapshot:
                if delivery.ending is None:
                    await delivery.outcome()

    async def wait_ready(self) -> None:
        """Wait until the machine knows that it can reach its stream, or the host has ended.

        Raises:
            ShardlineError: the stream cannot be reached, and waiting will not help.
        """
        readiness = self.machine.readiness
        while not (readiness.is_ready or self._has_ended):
            if readiness.is_hopeless and readiness.failure is not None:
                raise to_error(readiness.failure, "ListShards")
            await self._readiness_changed.wait()

    @property
    def is_hook_running_here(self) -> bool:
        """Whether the caller is an async hook of this producer. The host waits for the end of such hooks."""
        return _current_driver.get() is self

    async def run(self, api: KinesisApi) -> None:
        """Run the host until the producer is closed."""
        self.loop_affinity = self.loop_affinity or LoopAffinity("Producer")
        if self.sinks.sinks:
            self.machine.observe(time.monotonic())
        async with HostTasks() as self._hooks:
            try:
                with CrashGuard(self._handle_crash):
                    async with HostTasks() as self._tasks:
                        await self._drive(api, self._tasks)
                        self._tasks.cancel_scope.cancel()
            finally:
                self._end()
            self._hooks.cancel_scope.deadline = anyio.current_time() + HOOK_TIMEOUT
        if self._hooks.cancel_scope.cancelled_caught:
            self._reporter.log_user_error(
                "an async hook", TimeoutError(f"not done {HOOK_TIMEOUT:g} s after the producer has ended")
            )

    def _handle_crash(self, error: BaseException) -> None:
        cause = _first_error(error)
        self.failure = f"{type(cause).__name__}: {cause}"
        _log.critical("the producer stopped because of an internal error; undelivered records fail", exc_info=error)

    async def _drive(self, api: KinesisApi, tasks: HostTasks) -> None:
        self._wake = make_flag()
        while not self._stopping:
            self._wake.clear()  # clear before polling, so that a wake-up during the poll is not lost
            delay = await self._pump(api, tasks)
            if self.machine.refuses_order:
                raise UsageError(_NO_ORDER)
            if self.machine.dedup_refusal is not None:
                raise UsageError(f"dedup=True stamps each record in a header, and {self.machine.dedup_refusal}")
            if self.orphaned and not self.machine.intake.outstanding:
                return
            await self._wake.wait(delay)

    async def _pump(self, api: KinesisApi, tasks: HostTasks) -> float:
        """Send everything that is due. Return the seconds until the next deadline."""
        machine = self.machine
        while True:
            now = time.monotonic()
            machine.ledger.wall_offset = time.time() - now
            listing = machine.poll_list_shards(now)
            summary = machine.poll_summary(now)
            put = machine.poll_put(now)
            deadline = machine.next_deadline()
            self._report_outcomes()  # the outcomes of records that have expired
            self._on_room()
            if listing is not None:
                tasks.start_soon(self._query, api.list_shards, listing, machine.handle_list_shards)
            if summary is not None:
                tasks.start_soon(self._query, api.describe_stream_summary, summary, machine.handle_summary)
            if put is not None:
                tasks.start_soon(self._put, api, *put)
            elif listing is None and summary is None and deadline > now:
                return deadline - now
            await anyio.lowlevel.checkpoint()

    async def _put(self, api: KinesisApi, number: int, request: PutRecords) -> None:
        def handle(response: Any, now: float) -> None:
            self.machine.handle_put(number, response, now)

        await self._call(api.put_records, request, handle)

    async def _query(
        self,
        send: Callable[[Any], Awaitable[T | Failure]],
        request: Any,
        handle: Callable[[T | Failure, float], None],
    ) -> None:
        await self._call(send, request, handle)
        self._readiness_changed.notify()

    async def _call(
        self,
        send: Callable[[Any], Awaitable[T | Failure]],
        request: Any,
        handle: Callable[[T | Failure, float], None],
    ) -> None:
        """Send a request, and pass its response or a failure to the machine, even if the call is cancelled or raises
        (P1).
        """
        response: T | Failure = Failure(
            FailureKind.TRANSIENT, "Cancelled", "the producer was closed during the request"
        )
        try:
            response = await send(request)
        except Exception as error:  # noqa: BLE001 - a bug in an adapter: expected failures are values
            _log.exception("internal error while sending a request")
            response = Failure(FailureKind.TRANSIENT, "Internal", f"{type(error).__name__}: {error}")
        finally:
            handle(response, time.monotonic())
            self._report_outcomes()
            self.wake()

    def _report_outcomes(self) -> None:
        """Wake waiters, call hooks and report events. If an interrupt cuts this short, ``_end`` does the rest."""
        finished, failed = self.machine.ledger.finished, self.machine.ledger.failed
        while finished:
            wake_waiters(finished[0])
            finished.popleft()
        while failed:
            if self._on_failure is not None:
                self.call_hook("on_failure", self._on_failure, failed[0])
            failed.popleft()
        events = self.machine.take_events()
        if events:
            self._reporter.report(events)

    def call_hook(self, name: str, hook: Callable[[Any], object], record: BufferedRecord) -> None:
        """Call a user's hook with a record, in the host. If the hook returns an awaitable, a task awaits it."""
        report = partial(self._reporter.log_user_error, name)
        with Contained(report):
            result = hook(record)
            if isawaitable(result):
                assert self._hooks is not None
                self._hooks.start_soon(self._await_hook, result, report)

    async def _await_hook(self, result: Awaitable[object], report: Callable[[BaseException], None]) -> None:
        _current_driver.set(self)
        with Contained(report, awaits=True):
            await result

    def _end(self) -> None:
        """Resolve every delivery, whatever ended the host (P1)."""
        reason = self.failure or (_CLOSED if self._stopping or self.orphaned else _LOOP_ENDED)
        self._stopping = True
        try:
            self._on_end(reason)
            self.machine.abandon("Closed", reason)
        except Exception:  # noqa: BLE001 - the deliveries must resolve anyway
            _log.exception("internal error while the producer ended")
        self.machine.give_up_lost(reason)
        self._report_outcomes()
        self._reporter.log_rest()
        self.sinks.stop()  # after the last event
        self._has_ended = True
        self._readiness_changed.notify()

    def finish(self) -> None:
        """Complete the work of ``_end`` if ``_end`` was interrupted. This is called when the host's task has ended."""
        if not self._has_ended:
            self._end()


async def host_producer(driver: Driver, api: Any, client: Client, ended: Flag, *, owns_client: bool) -> None:
    """Run the host task of a producer. The task holds no reference to the ``Producer``."""
    try:
        with client.used_by(driver.handle_client_closed):
            await driver.run(api)
    finally:
        try:
            with anyio.CancelScope(shield=True):
                if owns_client:
                    await client.close()
                await driver.sinks.wait()
        finally:
            ended.set()


def end_host(driver: Driver, ended: Flag) -> None:
    """Complete the work at the end of the host task if that was interrupted."""
    driver.finish()
    ended.set()


def _first_error(error: BaseException) -> BaseException:
    """Return the first error of a group, which may be nested."""
    while isinstance(error, BaseExceptionGroup):
        members: tuple[BaseException, ...] = cast("Any", error).exceptions
        error = members[0]
    return error


async def wait_until_ready(drivers: Mapping[str, Driver], limit: float | None) -> None:
    """Wait until each driver's machine knows that it can reach its stream. Call it in the event loop.

    Args:
        drivers: the drivers, by the name or ARN of the stream.
        limit: how many seconds to wait for all of them together.

    Raises:
        WaitTimeout: a machine was not ready within ``limit`` seconds. The message contains its last failure.
        ShardlineError: a stream cannot be reached, and waiting will not help.
    """
    stream = ""
    with anyio.move_on_after(limit):
        for stream, driver in drivers.items():  # noqa: B007 - the message names the stream
            await driver.wait_ready()
        return
    failure = drivers[stream].machine.readiness.failure
    why = "" if failure is None else f": {to_error(failure, 'ListShards')}"
    raise WaitTimeout(f"the producer of {stream} is not ready after {limit:g} s{why}")
