"""Runs producers and consumers in host tasks, and ties each of them to the event loop that it was started in.

A host task belongs to no caller: it is a task of asyncio's own, or a system task of trio.

Invariants:

- A host enters no cancel scope of a caller: a producer may be closed by another task than the one that started it.
- Calls from another event loop are refused, with the reason: they would wait for a wake-up that cannot come.
- A producer or consumer whose loop runs no more can be closed from anywhere.
- Ctrl-C interrupts the program's own code, never a host or a task of its ``HostTasks``: the main task gets it. On trio
  a ``KeyboardInterrupt`` in a system task would end the whole run with an internal error. asyncio needs less:
  ``asyncio.run`` cancels the main task.
"""

import asyncio
import inspect
import math
import signal
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Final, Protocol, cast, final

import anyio

from shardline.adapters.event_loop import CallSoon, call_soon_from_threads, is_trio, running_loop
from shardline.aio.loop.asyncio_hosts import Flag as AsyncioFlag
from shardline.aio.loop.asyncio_hosts import Group, watch_of_loop
from shardline.errors import Closed, UsageError

# ---- hosts


def spawn(task: Coroutine[Any, Any, None], name: str, on_end: Callable[[], None]) -> CallSoon:
    """Run a task that belongs to no caller. Returns a function that makes a call in its event loop, from any thread.

    ``on_end`` is called when the task has ended, and may be called twice: a signal handler may raise anywhere.
    """
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        async def run() -> None:
            try:
                await task
            finally:
                on_end()

        trio.lowlevel.spawn_system_task(run, name=name)
    else:
        watch_of_loop().run(task, name, on_end)
    return call_soon_from_threads()


class Flag(Protocol):
    """An event with a limit, native to the event loop."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    async def wait(self, limit: float = ...) -> None: ...


@final
class _TrioFlag:
    def __init__(self) -> None:
        self.clear()

    def is_set(self) -> bool:
        is_set: bool = self._event.is_set()
        return is_set

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        self._event = trio.Event()

    async def wait(self, limit: float = math.inf) -> None:
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        with trio.move_on_after(limit):
            await self._event.wait()


def make_flag() -> Flag:
    """A flag for tasks of the running event loop."""
    return _TrioFlag() if is_trio() else AsyncioFlag()


class Scope(Protocol):
    """A cancel scope of anyio's, or trio's own."""

    deadline: float

    @property
    def cancelled_caught(self) -> bool: ...
    def cancel(self) -> object: ...


class _Group(Protocol):
    @property
    def cancel_scope(self) -> Scope: ...
    def start_soon(self, call: Callable[..., Awaitable[Any]], /, *arguments: Any) -> object: ...


@final
class HostTasks:
    """``async with HostTasks() as tasks:`` opens a task group whose tasks Ctrl-C does not interrupt.

    On trio it is trio's own nursery: protection holds for one function, and anyio wraps tasks in functions of its own.
    """

    def __init__(self) -> None:
        self._manager: Any
        if is_trio():
            import trio  # noqa: PLC0415 - an extra: only where it is in use

            trio.lowlevel.enable_ki_protection(_uninterrupted)
            self._manager = trio.open_nursery(strict_exception_groups=True)
        else:
            self._manager = Group()
        self._group: _Group

    async def __aenter__(self) -> "HostTasks":
        self._group = await self._manager.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> bool | None:
        swallowed: bool | None = await self._manager.__aexit__(*error)
        return swallowed

    @property
    def cancel_scope(self) -> Scope:
        return self._group.cancel_scope

    def start_soon(self, call: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        if is_trio():
            self._group.start_soon(_uninterrupted, call, *arguments)
        else:  # what interrupts a task of asyncio's may have broken what it worked on: it breaks the group
            self._group.start_soon(call, *arguments)


async def _uninterrupted(call: Callable[..., Awaitable[object]], *arguments: Any) -> None:
    try:
        await call(*arguments)
    except* KeyboardInterrupt:  # it hit a task that the call had started: protection is not inherited
        signal.raise_signal(signal.SIGINT)  # here it is delivered to the main task


@final
class Breakage:
    """``with Breakage(call):`` calls it with the exception that ended the block, unless that is a cancellation.

    An ``Exception`` goes no further. Whatever else a signal handler raises does.
    """

    def __init__(self, call: Callable[[BaseException], object]) -> None:
        self._call = call

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not _is_cancellation(error):
            self._call(error)
        return isinstance(error, Exception)


def _is_cancellation(error: BaseException) -> bool:
    """Whether it only says that its task was cancelled, or its coroutine closed."""
    if isinstance(error, BaseExceptionGroup):
        several: tuple[BaseException, ...] = cast("Any", error).exceptions
        return all(map(_is_cancellation, several))
    return isinstance(error, (anyio.get_cancelled_exc_class(), GeneratorExit))


# ---- tasks of callers


class _Turn:
    """Gives the other tasks of asyncio a turn: the same as ``asyncio.sleep(0)``, in a fifth of a checkpoint's time."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_TURN: Final = _Turn()


def native_checkpoint() -> Callable[[], Awaitable[None]]:
    """A function that gives the other tasks of the running event loop a turn, and lets cancellation through."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        return trio.lowlevel.checkpoint
    return lambda: _TURN


def running_task() -> object:
    """The task that runs now. It is the object, not its id: an id may be reused as soon as the task has ended."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        return trio.lowlevel.current_task()
    return asyncio.current_task()


def has_ended(task: object) -> bool:
    """Whether this is a task, and it is over."""
    if isinstance(task, asyncio.Task):
        return cast("asyncio.Task[object]", task).done()
    coroutine: object = getattr(task, "coro", None)  # trio's
    return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def has_ended_well(task: object) -> bool:
    """Whether the task is over, and returned. On trio an exception of a task ends the block that started it."""
    if isinstance(task, asyncio.Task):
        ended = cast("asyncio.Task[object]", task)
        # Not exception(): that would mark the exception as retrieved, and asyncio would not log it any more.
        return ended.done() and not ended.cancelled() and not ended.get_stack(limit=1)
    return has_ended(task)


# ---- the event loop that a producer or consumer belongs to


@final
class LoopAffinity:
    """The event loop that runs where this is made."""

    def __init__(self, owner: str) -> None:
        self._loop = running_loop()
        self._why = (
            f"this {owner} belongs to the event loop in which it was started: use it there, or make a new one here"
        )

    @property
    def is_elsewhere(self) -> bool:
        """Whether another loop runs here, or this one is closed."""
        loop = self._loop
        return running_loop() not in {loop, None} or (isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed())

    def check(self) -> None:
        """Refuse a call from another event loop.

        Raises:
            UsageError: this is another event loop.
            Closed: the loop that it belongs to runs no more.
        """
        if self.is_elsewhere:
            loop = self._loop
            is_over = isinstance(loop, asyncio.AbstractEventLoop) and not loop.is_running()
            raise Closed(self._why) if is_over else UsageError(self._why)

    def checker(self) -> Callable[[], object]:
        """The cheapest call whose result is the same object as ``here`` in this event loop, and nowhere else.

        In an event loop of the other kind it raises ``RuntimeError``.
        """
        if is_trio():
            import trio  # noqa: PLC0415 - an extra: only where it is in use

            return trio.lowlevel.current_trio_token
        return asyncio.get_running_loop

    @property
    def here(self) -> object:
        return self._loop

    def is_deserted(self, *, has_ended: bool) -> bool:
        """Whether this is another event loop, and the host's runs no more. ``has_ended``: the host itself has ended.

        Raises:
            UsageError: it runs, in another thread.
        """
        if not self.is_elsewhere:
            return False
        loop = self._loop
        if not has_ended and (not isinstance(loop, asyncio.AbstractEventLoop) or loop.is_running()):
            raise UsageError(self._why)
        return True
