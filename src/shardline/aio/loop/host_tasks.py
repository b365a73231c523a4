"""Runs producers and consumers in host tasks, and ties each of them to the event loop that it was started in.

A host task does not belong to the caller that starts it: it is a separate asyncio task, or a system task of trio.

Invariants:

- A host enters no cancel scope of a caller, so a task other than the one that started a producer may close it.
- Calls from another event loop are refused with the reason, because they would wait forever.
- A producer or consumer whose event loop has ended can be closed from anywhere.
- Ctrl-C interrupts the program's main task, never a host or a task of its ``HostTasks``. On trio, a
  ``KeyboardInterrupt`` in a system task would end the whole run with an internal error. On asyncio, nothing is needed:
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
from shardline.aio.loop.asyncio_hosts import Group, supervisor_of_loop
from shardline.errors import Closed, UsageError

# ---- hosts


def spawn(task: Coroutine[Any, Any, None], name: str, on_end: Callable[[], None]) -> CallSoon:
    """Run a host task. Return a function that any thread can use to schedule a call in the task's event loop.

    ``on_end`` is called when the task has ended. It may be called twice, because a signal handler may interrupt it.
    """
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: imported only where it is used

        async def run() -> None:
            try:
                await task
            finally:
                on_end()

        trio.lowlevel.spawn_system_task(run, name=name)
    else:
        supervisor_of_loop().run(task, name, on_end)
    return call_soon_from_threads()


class Flag(Protocol):
    """An event of the running event loop, whose ``wait`` has a time limit."""

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
        import trio  # noqa: PLC0415 - an extra: imported only where it is used

        self._event = trio.Event()

    async def wait(self, limit: float = math.inf) -> None:
        import trio  # noqa: PLC0415 - an extra: imported only where it is used

        with trio.move_on_after(limit):
            await self._event.wait()


def make_flag() -> Flag:
    """Return a flag for tasks of the running event loop."""
    return _TrioFlag() if is_trio() else AsyncioFlag()


class Scope(Protocol):
    """A cancel scope of anyio or of trio."""

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

    On trio it uses a nursery directly: trio protects a single function, and anyio's task groups wrap each task in
    another function.
    """

    def __init__(self) -> None:
        self._manager: Any
        if is_trio():
            import trio  # noqa: PLC0415 - an extra: imported only where it is used

            trio.lowlevel.enable_ki_protection(_run_protected)
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
            self._group.start_soon(_run_protected, call, *arguments)
        else:  # an interrupt may leave the task's data inconsistent, so it ends the group on asyncio
            self._group.start_soon(call, *arguments)


async def _run_protected(call: Callable[..., Awaitable[object]], *arguments: Any) -> None:
    try:
        await call(*arguments)
    except* KeyboardInterrupt:  # raised by a task that the call started, which is not protected
        signal.raise_signal(signal.SIGINT)  # trio delivers the signal to the main task


@final
class CrashGuard:
    """``with CrashGuard(call):`` passes the exception that ends the block to ``call``, unless it is a cancellation.

    It suppresses an ``Exception``. Any other exception, such as one raised by a signal handler, is raised again.
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
    """Return whether the exception only means that the task was cancelled, or that the coroutine was closed."""
    if isinstance(error, BaseExceptionGroup):
        members: tuple[BaseException, ...] = cast("Any", error).exceptions
        return all(map(_is_cancellation, members))
    return isinstance(error, (anyio.get_cancelled_exc_class(), GeneratorExit))


# ---- tasks of callers


class _Yield:
    """Lets other asyncio tasks run, as ``asyncio.sleep(0)`` does, in a fifth of the time of an anyio checkpoint."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_YIELD: Final = _Yield()


def native_checkpoint() -> Callable[[], Awaitable[None]]:
    """Return a function that lets other tasks of the running event loop run, and that can be cancelled."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: imported only where it is used

        return trio.lowlevel.checkpoint
    return lambda: _YIELD


def running_task() -> object:
    """Return the current task. Callers compare tasks, not ids, because an id may be reused once its task has ended."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: imported only where it is used

        return trio.lowlevel.current_task()
    return asyncio.current_task()


def has_ended(task: object) -> bool:
    """Return whether the object is a task that has ended."""
    if isinstance(task, asyncio.Task):
        return cast("asyncio.Task[object]", task).done()
    coroutine: object = getattr(task, "coro", None)  # a trio task has this attribute
    return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def has_ended_well(task: object) -> bool:
    """Return whether the task has ended successfully.

    On trio, a failed task also counts as successful, because its exception ends the block around it.
    """
    if isinstance(task, asyncio.Task):
        ended = cast("asyncio.Task[object]", task)
        # Do not call exception(), which marks the exception as retrieved: asyncio would no longer log it.
        return ended.done() and not ended.cancelled() and not ended.get_stack(limit=1)
    return has_ended(task)


# ---- the event loop that a producer or consumer belongs to


@final
class LoopAffinity:
    """The event loop that was running when this object was created."""

    def __init__(self, owner: str) -> None:
        self._loop = running_loop()
        self._message = (
            f"this {owner} belongs to the event loop in which it was started: use it there, or create a new one here"
        )

    @property
    def is_elsewhere(self) -> bool:
        """Whether the caller runs in a different event loop, or the loop of this object is closed."""
        loop = self._loop
        return running_loop() not in {loop, None} or (isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed())

    def check(self) -> None:
        """Refuse a call from another event loop.

        Raises:
            UsageError: the caller is in another event loop.
            Closed: the caller is in another event loop, and the event loop of this object has ended.
        """
        if self.is_elsewhere:
            loop = self._loop
            is_over = isinstance(loop, asyncio.AbstractEventLoop) and not loop.is_running()
            raise Closed(self._message) if is_over else UsageError(self._message)

    def checker(self) -> Callable[[], object]:
        """Return a fast function that checks the event loop of its caller. In this event loop, it returns ``here``.

        In another event loop of the same library (asyncio or trio), the function returns another object. In an event
        loop of the other library, it raises ``RuntimeError``.
        """
        if is_trio():
            import trio  # noqa: PLC0415 - an extra: imported only where it is used

            return trio.lowlevel.current_trio_token
        return asyncio.get_running_loop

    @property
    def here(self) -> object:
        """The event loop that this object belongs to. On trio, the token of the event loop."""
        return self._loop

    def is_loop_gone(self, *, has_ended: bool) -> bool:
        """Return whether the caller is in another event loop, and the host's loop has ended.

        Args:
            has_ended: whether the host itself has ended.

        Raises:
            UsageError: the host's event loop is running, in another thread.
        """
        if not self.is_elsewhere:
            return False
        loop = self._loop
        if not has_ended and (not isinstance(loop, asyncio.AbstractEventLoop) or loop.is_running()):
            raise UsageError(self._message)
        return True
