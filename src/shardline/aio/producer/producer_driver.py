"""How is the producer's machine driven?

One host task polls the machine, sends what it gives, sleeps until its next deadline or until it is woken, and tells
everyone what came of it. The blocking producer uses the same driver, in a thread of its own.

Invariants:

- P1: every request that was polled is answered to the machine exactly once, also when its task is cancelled or breaks;
  when the host ends, however it ends, every delivery ends.
- Only the host enters the machine, so that it needs no lock. Other code puts into the intake, and asks the rest
  of the event loop that the host runs in.
- The host lets no exception out: what breaks it ends the deliveries and is logged.
- Between two requests, and two slices of records that are sorted, the host yields: each takes milliseconds.
- When the host ends, however it ends, nothing more is accepted: ``on_end`` is called first.
- Every record that was given up is handed to ``on_failure``, whatever it raises. An async one has
  ``HOOK_PATIENCE`` seconds to come to its end after everything else has.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any, Final, TypeVar, cast, final

import anyio
import anyio.lowlevel

from shardline.aio.client import Client
from shardline.aio.loop.callbacks import Contained
from shardline.aio.loop.host_tasks import Breakage, Flag, HostTasks, LoopAffinity, make_flag
from shardline.aio.loop.notifier import Bell
from shardline.aio.producer.delivery import wake_waiters
from shardline.aio.reporting import ProducerReporter
from shardline.core.failures import Failure, FailureKind, to_error
from shardline.core.producer.machine import ProducerMachine
from shardline.core.producer.producer_record import BufferedRecord
from shardline.core.requests import PutRecords
from shardline.errors import UsageError, WaitTimeout
from shardline.ports import KinesisApi

HOOK_PATIENCE: Final = 5.0
_log: Final = logging.getLogger("shardline.producer")
_CLOSED: Final = "the producer was closed before it could be delivered"
_LOOP_ENDED: Final = "the event loop ended before the producer was closed"
_CLIENT_CLOSED: Final = "the Client that it uses was closed"
_NO_ORDER: Final = "the stream distributes records by itself (AUTO record distribution): ordered=True cannot be kept"
_hook_of: Final = ContextVar["Driver | None"]("shardline_hook_of", default=None)

T = TypeVar("T")


@final
class Driver:
    """Feeds one machine."""

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
        """What broke the host, if anything did."""
        self._reporter = reporter
        self._on_failure = on_failure
        self._on_room = on_room
        self._on_end = on_end
        self._wake: Flag | None = None  # made by the host: this may be another event loop's thread
        self._tasks: HostTasks | None = None
        self._hooks: HostTasks | None = None
        self._stopping = False
        self._has_ended = False
        self._answers = Bell()  # rung when a question about the stream was answered, and at the end
        self.home: LoopAffinity | None = None
        """The event loop in which the host runs; not known before it does."""
        self.orphaned = False
        """Nobody can close it any more: it ends when it has delivered everything."""

    def wake(self) -> None:
        """Something may have to be sent. To be called in the event loop."""
        if self._wake is not None:
            self._wake.set()

    def stop(self) -> None:
        """End: what is not delivered by now is given up."""
        self._stopping = True
        self.wake()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def lose_client(self) -> None:
        """The ``Client`` was closed: nothing more is accepted, and every delivery ends. In the event loop."""
        if not self._stopping:
            self.failure = _CLIENT_CLOSED
            self._on_end(_CLIENT_CLOSED)
            self.stop()

    def orphan(self, in_loop: Callable[[Callable[[], None]], object] | None) -> None:
        """Nobody can close it any more. ``in_loop``: makes a call in the event loop."""
        self.orphaned = True
        if in_loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                in_loop(self.wake)

    def give_up_if_deserted(self) -> bool:
        """Where the host's event loop runs no more, end every delivery here and now. Says whether it is so.

        Raises:
            UsageError: the host runs in another thread.
        """
        if self.home is None or not self.home.is_deserted(has_ended=self._has_ended):
            return False
        if not self._has_ended:
            self._end()
        return True

    def flush(self) -> None:
        """Send what was put, without lingering. To be called in the event loop."""
        self.machine.flush()
        self.wake()

    async def settle(self, limit: float | None, snapshot: list[Any]) -> None:
        """Send without lingering, and wait until these have ended: for ``limit`` seconds at most."""
        self.flush()
        with anyio.move_on_after(limit):
            for delivery in snapshot:
                if delivery.ending is None:
                    await delivery.outcome()

    async def wait_ready(self, limit: float | None, stream: str) -> None:
        """Until the machine knows that it can reach its stream, or the host has ended. In the event loop.

        Raises:
            WaitTimeout: not within ``limit`` seconds.
            ShardlineError: it never will be.
        """
        readiness = self.machine.readiness
        with anyio.move_on_after(limit):
            while not (readiness.is_ready or self._has_ended):
                if readiness.is_hopeless and readiness.failure is not None:
                    raise to_error(readiness.failure, "ListShards")
                await self._answers.wait()
            return
        why = "" if readiness.failure is None else f": {to_error(readiness.failure, 'ListShards')}"
        raise WaitTimeout(f"the producer of {stream} is not ready after {limit:g} s{why}")

    @property
    def is_hook_running_here(self) -> bool:
        """Whether the caller is an ``on_failure`` of ours, for whose end the host waits."""
        return _hook_of.get() is self

    async def run(self, api: KinesisApi) -> None:
        """The host task."""
        self.home = self.home or LoopAffinity("Producer")
        async with HostTasks() as self._hooks:
            try:
                with Breakage(self._break):
                    async with HostTasks() as self._tasks:
                        await self._drive(api, self._tasks)
                        self._tasks.cancel_scope.cancel()
            finally:
                self._end()
            self._hooks.cancel_scope.deadline = anyio.current_time() + HOOK_PATIENCE
        if self._hooks.cancel_scope.cancelled_caught:
            self._reporter.complain("on_failure", TimeoutError(f"not done {HOOK_PATIENCE:g} s after the end"))

    def _break(self, error: BaseException) -> None:
        cause = _first_of(error)
        self.failure = f"{type(cause).__name__}: {cause}"
        _log.critical("the producer broke; what was not delivered is given up", exc_info=error)

    async def _drive(self, api: KinesisApi, tasks: HostTasks) -> None:
        self._wake = make_flag()
        while not self._stopping:
            self._wake.clear()  # before polling: a wake-up while we poll is not lost
            delay = await self._pump(api, tasks)
            if self.machine.refuses_order:
                raise UsageError(_NO_ORDER)
            if self.orphaned and not self.machine.intake.outstanding:
                return
            await self._wake.wait(delay)

    async def _pump(self, api: KinesisApi, tasks: HostTasks) -> float:
        """Send all that is to go now. Returns for how long there is nothing to do."""
        machine = self.machine
        while True:
            now = time.monotonic()
            machine.ledger.wall_offset = time.time() - now
            listing = machine.poll_list_shards(now)
            summary = machine.poll_summary(now)
            put = machine.poll_put(now)
            deadline = machine.next_deadline()
            self._tell()  # what expired
            self._on_room()
            if listing is not None:
                tasks.start_soon(self._ask, api.list_shards, listing, machine.handle_list_shards)
            if summary is not None:
                tasks.start_soon(self._ask, api.describe_stream_summary, summary, machine.handle_summary)
            if put is not None:
                tasks.start_soon(self._put, api, *put)
            elif listing is None and summary is None and deadline > now:
                return deadline - now
            await anyio.lowlevel.checkpoint()

    async def _put(self, api: KinesisApi, number: int, request: PutRecords) -> None:
        def answer(answer: Any, now: float) -> None:
            self.machine.handle_put(number, answer, now)

        await self._call(api.put_records, request, answer)

    async def _ask(
        self,
        send: Callable[[Any], Awaitable[T | Failure]],
        request: Any,
        handle: Callable[[T | Failure, float], None],
    ) -> None:
        await self._call(send, request, handle)
        self._answers.ring()

    async def _call(
        self,
        send: Callable[[Any], Awaitable[T | Failure]],
        request: Any,
        handle: Callable[[T | Failure, float], None],
    ) -> None:
        """Send a request and answer the machine, whatever happens (P1)."""
        answer: T | Failure = Failure(FailureKind.TRANSIENT, "Cancelled", "the producer was closed during the request")
        try:
            answer = await send(request)
        except Exception as error:  # noqa: BLE001 - an adapter's bug: expected failures are values
            _log.exception("a request broke")
            answer = Failure(FailureKind.TRANSIENT, "Internal", f"{type(error).__name__}: {error}")
        finally:
            handle(answer, time.monotonic())
            self._tell()
            self.wake()

    def _tell(self) -> None:
        """Wake waiters, call hooks, report. The end of the driver finishes what an interrupt cut short."""
        finished, failed = self.machine.ledger.finished, self.machine.ledger.failed
        while finished:
            wake_waiters(finished[0])
            finished.popleft()
        while failed:
            self._call_on_failure(failed[0])
            failed.popleft()
        events = self.machine.take_events()
        if events:
            self._reporter.report(events)

    def _call_on_failure(self, record: BufferedRecord) -> None:
        if self._on_failure is None:
            return
        with Contained(self._complain):
            result = self._on_failure(record)
            if isawaitable(result):
                assert self._hooks is not None
                self._hooks.start_soon(self._await_hook, result)

    async def _await_hook(self, result: Awaitable[object]) -> None:
        _hook_of.set(self)
        with Contained(self._complain, awaits=True):
            await result

    def _complain(self, error: BaseException) -> None:
        self._reporter.complain("on_failure", error)

    def _end(self) -> None:
        """Every delivery ends, whatever ended the host (P1)."""
        reason = self.failure or (_CLOSED if self._stopping or self.orphaned else _LOOP_ENDED)
        self._stopping = True
        try:
            self._on_end(reason)
            self.machine.abandon("Closed", reason)
        except Exception:  # noqa: BLE001 - the deliveries end all the same
            _log.exception("the producer's machine broke")
        self.machine.give_up_lost(reason)
        self._tell()
        self._reporter.log_rest()
        self._has_ended = True
        self._answers.ring()

    def make_sure_of_end(self) -> None:
        """The host's task is over: see to it that its end was not interrupted."""
        if not self._has_ended:
            self._end()


async def host_producer(driver: Driver, api: Any, client: Client, ended: Flag, *, owns_client: bool) -> None:
    """The task that owns a producer's requests. It holds no reference to the ``Producer``."""
    try:
        with client.used_by(driver.lose_client):
            await driver.run(api)
    finally:
        try:
            if owns_client:
                with anyio.CancelScope(shield=True):
                    await client.close()
        finally:
            ended.set()


def end_host(driver: Driver, ended: Flag) -> None:
    """The task is over: do what its end left undone, if that was interrupted."""
    driver.make_sure_of_end()
    ended.set()


def _first_of(error: BaseException) -> BaseException:
    """What broke first, taken out of the groups that task groups make."""
    while isinstance(error, BaseExceptionGroup):
        several: tuple[BaseException, ...] = cast("Any", error).exceptions
        error = several[0]
    return error
