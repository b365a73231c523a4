"""Runs host tasks on asyncio so that an exception raised by a signal handler cannot leave them hanging.

A handler that was set with ``signal.signal`` runs in the main thread, between any two bytecodes, and the exception that
it raises comes out there. In the code of a task it ends the task. In the event loop's own code it may destroy a single
thing that asyncio never repeats: the next step of a task (the handle was taken from the queue, but not run), or a
callback (a timer, the end of a task, a wake-up). The task concerned would wait forever, and ``asyncio.run``, which
waits for every task, would never return.

So a look at everything that is waited for, about once a second, does what was lost once more. The look is a timer of
the same event loop: the exception can hit either the look or the thing that it looks at, and each arms the other again.

Invariants:

- A task whose next step was lost goes on, in another ``asyncio.Task``, where the step would have taken it. (A cancel
  scope of anyio's that is open in it refuses to go on elsewhere: the call that opened it fails.)
- A wait whose condition holds comes to its end, and so does a wait whose time is up.
- ``on_end`` of a host is called once the host has ended, until it has returned once.
- A loop in which only an idle host sleeps is not woken. Nor does a look take place outside the main thread, where no
  signal handler runs.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import copy_context
from types import TracebackType
from typing import Any, Final, cast, final

LOOK_EVERY: Final = 1.0  # seconds
_ABANDON_AFTER: Final = 10  # looks at a task that was cancelled and does not end
_FOREVER: Final = float("inf")


@final
class _Hosted(Coroutine[Any, Any, None]):
    """A coroutine that counts its steps, knows what it waits for, and can change its task."""

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        name: str,
        on_done: Callable[[object], object],
        on_end: Callable[[], None] | None,
    ) -> None:
        self._work = work
        self._name = name
        self._on_done = on_done
        self._context = copy_context()
        self._waits_for: Any = None  # a future; None: the next step is queued
        self._due_step: int | None = None  # the step that was queued at the last look
        self._looks_since_cancel = 0
        self.steps = 0
        self.on_end = on_end
        """Only a host has it. Called when the task has ended, however it did."""
        self.task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def begin(self) -> None:
        """Take the next step in a new task."""
        self.task = asyncio.get_running_loop().create_task(self, name=self._name, context=self._context)
        self.task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self.task is not None:
            self.task.cancel()

    @property
    def is_done(self) -> bool:
        return self.task is not None and self.task.done()

    # ---- as a coroutine

    def send(self, value: Any, /) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        if self._state == inspect.CORO_CREATED:  # cancelled before it began: it begins, so that its finally is run
            self._step(self._work.send, None)
        return self._step(self._work.throw, *error)

    @property
    def _state(self) -> str:
        return inspect.getcoroutinestate(cast("Any", self._work))

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        self.steps += 1
        with self:
            self.task = asyncio.current_task()  # begin may have been interrupted before it could say so
            self._waits_for = None
            self._waits_for = step(*arguments)
        return self._waits_for

    def __enter__(self) -> None:
        """A step begins."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        if self._state == inspect.CORO_SUSPENDED:  # it was raised here, and the coroutine would not learn of it
            self._waits_for = self._work.throw(error)
            return True
        asyncio.get_running_loop().call_soon(self._on_done, None)  # begin may have been interrupted before it could
        return False

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)  # cr_frame and the like: who prints a task's stack asks for them

    # ---- at a look

    def look(self) -> bool:
        """Take the next step, if that was lost. Cancel once more what was cancelled and goes on, then abandon it.

        Returns whether there is more to look at: a host that only sleeps is woken by others.
        """
        if self.is_done:
            return False
        task = self.task
        if task is not None and task.cancelling():
            self._is_cancelled = True
        is_due = self._waits_for is None or self._waits_for.done()
        if is_due and self._due_step == self.steps:  # it was queued at the last look, and asyncio's queue is in order
            self.begin()
            _end(task)
        self._due_step = self.steps if is_due else None
        if self._is_cancelled:
            self._looks_since_cancel += 1
            if self._looks_since_cancel >= _ABANDON_AFTER:
                with suppress(RuntimeError, ValueError):  # it goes on waiting, or it runs at this moment
                    self.close()
                _end(self.task)
            elif self._looks_since_cancel > 1:
                self.cancel()
        return is_due or self._is_cancelled or self.on_end is None


def _end(task: "asyncio.Task[Any] | None") -> None:
    """Declare that it is done: a task that takes no step never ends, and ``asyncio.run`` waits for every task."""
    if task is not None and not task.done():
        asyncio.Future[Any].set_result(task, None)


@final
class Watch:
    """Everything of ours that runs or waits in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._hosted: set[_Hosted] = set()
        self._groups: set[Group] = set()
        self.flags: set[Flag] = set()
        """The flags that are waited for; written by themselves."""
        self._next: asyncio.TimerHandle | None = None
        self._steps = 0  # of all, at the last look
        self._is_interruptible = threading.current_thread() is threading.main_thread()

    def run(self, work: Coroutine[Any, Any, None], name: str, on_end: Callable[[], None] | None = None) -> _Hosted:
        """Run it in a task. ``on_end``: called when it has ended, however it did."""
        hosted = _Hosted(work, name, self._settle, on_end)
        self._hosted.add(hosted)  # first: if the rest is interrupted, a look begins it
        self.look_soon()
        hosted.begin()
        return hosted

    @property
    def is_over(self) -> bool:
        """Whether every task has ended, or never began."""
        return all(hosted.task is None or hosted.is_done for hosted in self._hosted)

    def enter(self, group: "Group") -> None:
        self._groups.add(group)

    def leave(self, group: "Group") -> None:
        self._groups.discard(group)

    def _settle(self, _: object = None) -> None:
        """Take note of what has ended."""
        for hosted in [*self._hosted]:
            if hosted.is_done:
                if hosted.on_end is not None:
                    hosted.on_end()
                self._hosted.discard(hosted)
        for group in [*self._groups]:
            group.settle()

    # ---- the look

    def look_soon(self) -> None:
        """Something has begun, or was woken: see to it that a look comes."""
        if self._is_interruptible:
            now = self._loop.time()
            if self._next is None or not now - LOOK_EVERY < self._next.when() <= now + LOOK_EVERY:  # lost, or far off
                self._look_at(now + LOOK_EVERY)

    def _look_at(self, at: float) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        self._look_at(now + LOOK_EVERY)  # first: the rest may be interrupted
        is_busy = sum([hosted.look() for hosted in self._hosted]) > 0
        self._settle()
        for flag in [*self.flags]:
            flag.look(now)
        steps = sum([hosted.steps for hosted in self._hosted])
        if steps == self._steps and not is_busy:
            self._rest()
        self._steps = steps

    def _rest(self) -> None:
        """Only hosts are left, and they sleep: look again when one of them has overslept."""
        assert self._next is not None
        until = min([flag.until for flag in self.flags], default=_FOREVER)
        if until < _FOREVER:
            self._look_at(until + LOOK_EVERY)
        else:
            self._next.cancel()
            self._next = None


_watches: Final[dict[asyncio.AbstractEventLoop, Watch]] = {}


def watch_of_loop() -> Watch:
    """That of the running event loop."""
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        for other, watch in [*_watches.items()]:
            if other.is_closed() and watch.is_over:
                _watches.pop(other, None)
        watch = _watches[loop] = Watch(loop)
    return watch


@final
class Flag:
    """As ``asyncio.Event``, with a limit, and for waits that must come to their end."""

    def __init__(self) -> None:
        self._watch = watch_of_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_set = False
        self.until = _FOREVER
        """When the first wait ends by itself, or earlier."""

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        if self._waiting:
            self._watch.look_soon()
            self._wake()

    def _wake(self) -> None:
        for future in [*self._waiting]:
            if not future.done():
                future.set_result(None)

    def look(self, now: float) -> None:
        """Wake the tasks once more if they should be awake."""
        if self._is_set or now > self.until:
            self._wake()

    async def wait(self, limit: float = _FOREVER) -> None:
        """Until it is set, or ``limit`` seconds have passed. With several waits, any of them may end earlier."""
        if self._is_set:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = None
        self._waiting.add(future)
        self._watch.flags.add(self)
        if limit < _FOREVER:
            self.until = min(self.until, loop.time() + limit)
            timer = loop.call_later(limit, self._wake)
            self._watch.look_soon()
        try:
            await future
        finally:
            self._waiting.discard(future)
            if not self._waiting:
                self.until = _FOREVER
                self._watch.flags.discard(self)
            if timer is not None:
                timer.cancel()


@final
class Group:
    """A task group: ``async with`` waits for its tasks; the first that fails cancels the block and the other tasks."""

    def __init__(self) -> None:
        self._watch = watch_of_loop()
        self._owner: asyncio.Task[Any] | None = None
        self._running: set[_Hosted] = set()
        self._errors: list[BaseException] = []
        self._is_cancelled = False
        self._is_block_over = False
        self._cancels_of_owner = 0
        self._emptied = Flag()
        self.deadline = _FOREVER
        """When the tasks are cancelled, if the block has ended before."""
        self.cancelled_caught = False
        """Whether a task, or the block, was cancelled by ``cancel`` or by the deadline."""

    @property
    def cancel_scope(self) -> "Group":
        return self

    async def __aenter__(self) -> "Group":
        self._owner = asyncio.current_task()
        self._watch.enter(self)
        return self

    def start_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._emptied.clear()
        hosted = self._watch.run(call(*arguments), "shardline host task")
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

    def settle(self) -> None:
        """Take note of the tasks that have ended."""
        for hosted in [*self._running]:
            task = hosted.task
            if task is not None and task.done():
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
            if isinstance(error, GeneratorExit):  # the coroutine is being closed: it must not wait
                return False
            error = await self._wait_for_tasks(error)
        finally:
            self._watch.leave(self)
        is_ours = self._take_back_cancels()
        if isinstance(error, asyncio.CancelledError):
            if not is_ours and not self._errors:
                raise error
            self.cancelled_caught = is_ours
        elif isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error  # from a task, asyncio lets these through to the program
        elif error is not None:
            self._errors.append(error)
        if self._errors:
            raise BaseExceptionGroup("unhandled errors in host tasks", self._errors)
        return True

    async def _wait_for_tasks(self, error: BaseException | None) -> BaseException | None:
        self.settle()
        while self._running or (self._cancels_of_owner and error is None):
            try:
                if not self._running:
                    await asyncio.sleep(0)  # the block ended before our cancellation came
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
        """Whether ``cancel`` alone cancelled the owner."""
        is_ours = False
        while self._cancels_of_owner and self._owner is not None:
            self._cancels_of_owner -= 1
            is_ours = self._owner.uncancel() == 0
        return is_ours
