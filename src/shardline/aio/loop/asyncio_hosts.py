"""Runs host tasks on asyncio so that an exception raised by a signal handler cannot leave them hanging.

A handler that was set with ``signal.signal`` runs in the main thread, between any two bytecodes, and its exception is
raised at that point. If the exception is raised in the code of a task, it ends the task. If it is raised in the event
loop's own code, it may destroy something that asyncio never repeats: the next step of a task (its handle was taken from
the queue, but not run), or a callback (a timer, the end of a task, a wake-up). The task would then wait forever, and
``asyncio.run``, which waits for every task, would never return.

So about once a second, a supervisor checks everything that tasks wait for, and repeats lost steps and callbacks. The
check is a timer of the same event loop. The exception can hit either the check or a checked task, and the one that is
not hit schedules the other again.

Invariants:

- A task whose next step was lost continues with that step, in another ``asyncio.Task``. (If an anyio cancel scope is
  open in it, the call that opened the scope fails, because anyio refuses to leave a scope in another task.)
- A wait ends when its condition holds, or when its time is up.
- ``on_end`` of a host is called after the host has ended, and is repeated until it has returned once.
- If a loop has only idle hosts, which sleep, no checks wake it. There are also no checks outside the main thread,
  because signal handlers run only in the main thread.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import copy_context
from types import TracebackType
from typing import Any, Final, cast, final

CHECK_INTERVAL: Final = 1.0  # seconds
_ABANDON_AFTER: Final = 10  # how many checks may find a cancelled task still running
_FOREVER: Final = float("inf")


@final
class _HostedTask(Coroutine[Any, Any, None]):
    """A coroutine that counts its steps, knows which future it waits for, and can continue in another task."""

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        name: str,
        on_done: "Callable[[_HostedTask], object]",
        on_end: Callable[[], None] | None,
    ) -> None:
        self._work = work
        self._name = name
        self._on_done = on_done
        self._context = copy_context()
        self._waits_for: Any = None  # a future, or None if the next step is queued
        self._queued_step: int | None = None  # the step that was queued at the last check
        self._checks_since_cancel = 0
        self.steps = 0
        self.on_end = on_end
        """The function to call when the task has ended, in whatever way. It is ``None`` for tasks of a group, which are
        not hosts.
        """
        self.task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def start_task(self) -> None:
        """Continue the coroutine in a new ``asyncio.Task``."""
        self.task = asyncio.get_running_loop().create_task(self, name=self._name, context=self._context)
        self.task.add_done_callback(self._handle_done)

    def _handle_done(self, _: object = None) -> None:
        self._on_done(self)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self.task is not None:
            self.task.cancel()

    @property
    def is_done(self) -> bool:
        return self.task is not None and self.task.done()

    # ---- the coroutine protocol

    def send(self, value: Any, /) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        if self._state == inspect.CORO_CREATED:  # cancelled before its first step: take it, so that finally blocks run
            self._step(self._work.send, None)
        return self._step(self._work.throw, *error)

    @property
    def _state(self) -> str:
        return inspect.getcoroutinestate(cast("Any", self._work))

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        self.steps += 1
        with self:
            self.task = asyncio.current_task()  # start_task may have been interrupted before it set this
            self._waits_for = None
            self._waits_for = step(*arguments)
        return self._waits_for

    def __enter__(self) -> None:
        """Begin a step. ``__exit__`` handles the exception that may end it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        if self._state == inspect.CORO_SUSPENDED:  # the exception was raised in this class: pass it on to the coroutine
            self._waits_for = self._work.throw(error)
            return True
        # start_task may have been interrupted before it added the callback.
        asyncio.get_running_loop().call_soon(self._handle_done)
        return False

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)  # cr_frame and other attributes, which code that prints a task's stack needs

    # ---- checks

    def check(self) -> bool:
        """Repeat the next step if it was lost. Cancel a cancelled task again if it is still running, then abandon it.

        Return whether the task needs further checks. A sleeping host needs no checks, because other tasks wake it.
        """
        if self.is_done:
            return False
        task = self.task
        if task is not None and task.cancelling():
            self._is_cancelled = True
        is_queued = self._waits_for is None or self._waits_for.done()
        if is_queued and self._queued_step == self.steps:  # asyncio runs its queue in order: the step is lost
            self.start_task()
            _mark_done(task)
        self._queued_step = self.steps if is_queued else None
        if self._is_cancelled:
            self._checks_since_cancel += 1
            if self._checks_since_cancel >= _ABANDON_AFTER:
                with suppress(RuntimeError, ValueError):  # the coroutine ignores GeneratorExit, or runs at this moment
                    self.close()
                _mark_done(self.task)
            elif self._checks_since_cancel > 1:
                self.cancel()
        return is_queued or self._is_cancelled or self.on_end is None


def _mark_done(task: "asyncio.Task[Any] | None") -> None:
    """Mark a task that gets no further steps as done, because ``asyncio.run`` would wait for it forever."""
    if task is not None and not task.done():
        asyncio.Future[Any].set_result(task, None)


@final
class Supervisor:
    """Supervises all tasks, groups and flags of this library in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._hosted: set[_HostedTask] = set()
        self._groups: set[Group] = set()
        self.flags: set[Flag] = set()
        """The flags that tasks wait for. Each ``Flag`` adds and removes itself."""
        self._next_check: asyncio.TimerHandle | None = None
        self._steps = 0  # the sum of the steps of all tasks at the last check
        self._is_interruptible = threading.current_thread() is threading.main_thread()

    def run(self, work: Coroutine[Any, Any, None], name: str, on_end: Callable[[], None] | None = None) -> _HostedTask:
        """Run ``work`` in a task. ``on_end`` is called when it has ended, for whatever reason."""
        hosted = _HostedTask(work, name, self._collect, on_end)
        self._hosted.add(hosted)  # added first: if the rest is interrupted, a check starts the task
        self.ensure_check()
        hosted.start_task()
        return hosted

    @property
    def is_over(self) -> bool:
        """Whether every task has ended or has never been started."""
        return all(hosted.task is None or hosted.is_done for hosted in self._hosted)

    def enter(self, group: "Group") -> None:
        self._groups.add(group)

    def leave(self, group: "Group") -> None:
        self._groups.discard(group)

    def _collect(self, hosted: _HostedTask) -> None:
        """Remove a task if it has ended, and call its ``on_end``. A check repeats this if it is interrupted.

        No other task is examined, because there may be thousands.
        """
        if hosted in self._hosted and hosted.is_done:
            if hosted.on_end is not None:
                hosted.on_end()
            self._hosted.discard(hosted)
        for group in [*self._groups]:
            group.collect(hosted)

    def _collect_ended(self) -> None:
        """Remove all tasks that have ended, even if the callback at their end was lost."""
        for hosted in [*self._hosted]:
            if hosted.is_done:
                self._collect(hosted)
        for group in [*self._groups]:
            group.collect_ended()

    # ---- checks

    def ensure_check(self) -> None:
        """Ensure that a check is scheduled within ``CHECK_INTERVAL``."""
        if self._is_interruptible:
            now = self._loop.time()
            if (
                self._next_check is None or not now - CHECK_INTERVAL < self._next_check.when() <= now + CHECK_INTERVAL
            ):  # the check was lost, or is due later
                self._schedule_check(now + CHECK_INTERVAL)

    def _schedule_check(self, at: float) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
        self._next_check = self._loop.call_at(at, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        self._schedule_check(now + CHECK_INTERVAL)  # scheduled first, because the rest may be interrupted
        is_busy = sum([hosted.check() for hosted in self._hosted]) > 0
        self._collect_ended()
        for flag in [*self.flags]:
            flag.check(now)
        steps = sum([hosted.steps for hosted in self._hosted])
        if steps == self._steps and not is_busy:
            self._check_less_often()
        self._steps = steps

    def _check_less_often(self) -> None:
        """Check again only when the first sleeping host is overdue, because all hosts sleep and no other task runs."""
        assert self._next_check is not None
        until = min([flag.until for flag in self.flags], default=_FOREVER)
        if until < _FOREVER:
            self._schedule_check(until + CHECK_INTERVAL)
        else:
            self._next_check.cancel()
            self._next_check = None


_supervisors: Final[dict[asyncio.AbstractEventLoop, Supervisor]] = {}


def supervisor_of_loop() -> Supervisor:
    """Return the supervisor of the running event loop."""
    loop = asyncio.get_running_loop()
    supervisor = _supervisors.get(loop)
    if supervisor is None:
        for other, supervisor in [*_supervisors.items()]:
            if other.is_closed() and supervisor.is_over:
                _supervisors.pop(other, None)
        supervisor = _supervisors[loop] = Supervisor(loop)
    return supervisor


@final
class Flag:
    """Like ``asyncio.Event``, with a time limit, for waits that must end even if a wake-up is lost."""

    def __init__(self) -> None:
        self._supervisor = supervisor_of_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_set = False
        self.until = _FOREVER
        """A time before which no time limit of a wait ends."""

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        if self._waiting:
            self._supervisor.ensure_check()
            self._wake()

    def _wake(self) -> None:
        for future in [*self._waiting]:
            if not future.done():
                future.set_result(None)

    def check(self, now: float) -> None:
        """Wake the waiting tasks again if the flag is set, or if a time limit has passed."""
        if self._is_set or now > self.until:
            self._wake()

    async def wait(self, limit: float = _FOREVER) -> None:
        """Wait until the flag is set, for at most ``limit`` seconds. If several tasks wait, all waits end at the
        earliest limit.
        """
        if self._is_set:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = None
        self._waiting.add(future)
        self._supervisor.flags.add(self)
        if limit < _FOREVER:
            self.until = min(self.until, loop.time() + limit)
            timer = loop.call_later(limit, self._wake)
        self._supervisor.ensure_check()
        try:
            await future
        finally:
            self._waiting.discard(future)
            if not self._waiting:
                self.until = _FOREVER
                self._supervisor.flags.discard(self)
            if timer is not None:
                timer.cancel()


@final
class Group:
    """A task group: ``async with`` waits for its tasks. The first failure cancels the block and the other tasks."""

    def __init__(self) -> None:
        self._supervisor = supervisor_of_loop()
        self._owner: asyncio.Task[Any] | None = None
        self._running: set[_HostedTask] = set()
        self._errors: list[BaseException] = []
        self._is_cancelled = False
        self._is_block_over = False
        self._cancels_of_owner = 0
        self._emptied = Flag()
        self.deadline = _FOREVER
        """When to cancel tasks that are still running after the end of the block. The user of the group sets it."""
        self.cancelled_caught = False
        """Whether a task, or the block, was cancelled by ``cancel`` or by the deadline."""

    @property
    def cancel_scope(self) -> "Group":
        return self

    async def __aenter__(self) -> "Group":
        self._owner = asyncio.current_task()
        self._supervisor.enter(self)
        return self

    def start_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._emptied.clear()
        hosted = self._supervisor.run(call(*arguments), "shardline host task")
        self._running.add(hosted)
        if self._is_cancelled:
            hosted.cancel()

    def cancel(self) -> None:
        self._is_cancelled = True
        for hosted in [*self._running]:
            hosted.cancel()
        owner = self._owner
        if owner is not None and not self._is_block_over and owner is not asyncio.current_task():
            self._cancels_of_owner += 1
            owner.cancel()

    def collect_ended(self) -> None:
        """Remove all tasks that have ended and keep their errors."""
        for hosted in [*self._running]:
            self.collect(hosted)
        if not self._running:
            self._emptied.set()

    def collect(self, hosted: _HostedTask) -> None:
        """Remove a task of this group if it has ended, and keep its error."""
        task = hosted.task
        if hosted in self._running and task is not None and task.done():
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._errors.append(error)
            self.cancelled_caught = self.cancelled_caught or (self._is_cancelled and task.cancelled())
            self._running.discard(hosted)
        if self._errors and not self._is_cancelled:
            self.cancel()
        if not self._running:
            self._emptied.set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._is_block_over = True
        try:
            if error is not None:
                self.cancel()
            if isinstance(error, GeneratorExit):  # the coroutine is being closed, so it must not wait
                return False
            error = await self._wait_for_tasks(error)
        finally:
            self._supervisor.leave(self)
        is_ours = self._take_back_cancels()
        if isinstance(error, asyncio.CancelledError):
            if not is_ours and not self._errors:
                raise error
            self.cancelled_caught = is_ours
        elif isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error  # asyncio passes these exceptions of a task on to the program
        elif error is not None:
            self._errors.append(error)
        if self._errors:
            raise BaseExceptionGroup("unhandled errors in host tasks", self._errors)
        return True

    async def _wait_for_tasks(self, error: BaseException | None) -> BaseException | None:
        self.collect_ended()
        while self._running or (self._cancels_of_owner and error is None):
            try:
                if not self._running:
                    await asyncio.sleep(0)  # let the cancellation arrive, because the block ended first
                    break
                limit = _FOREVER if self._is_cancelled else self.deadline - asyncio.get_running_loop().time()
                await self._emptied.wait(max(0.0, limit))
                if self._running and limit <= 0:
                    self.cancel()
            except asyncio.CancelledError as cancelled:
                if error is None:
                    error = cancelled
                self.cancel()
        return error

    def _take_back_cancels(self) -> bool:
        """Undo the cancellations that ``cancel`` requested. Return whether these were the owner's only
        cancellations.
        """
        is_ours = False
        while self._cancels_of_owner and self._owner is not None:
            self._cancels_of_owner -= 1
            is_ours = self._owner.uncancel() == 0
        return is_ours
