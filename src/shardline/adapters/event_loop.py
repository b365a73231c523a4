"""Detects which event loop runs in this thread, asyncio's or trio's, and runs tasks and waits on either.

trio is an optional dependency, so this module imports trio only if the program has already imported trio.
"""

import asyncio
import contextvars
import math
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeAlias, final

_tasks: Final[set[asyncio.Task[None]]] = set()  # asyncio itself keeps no task alive

CallSoon: TypeAlias = Callable[[Callable[[], object]], object]


def is_trio() -> bool:
    """Return whether trio's event loop runs in this thread."""
    if "trio" not in sys.modules:
        return False
    import trio  # noqa: PLC0415 - optional: loaded only if in use

    return trio.lowlevel.in_trio_run()


def running_loop() -> object:
    """Return the event loop that runs in this thread (on trio, its token), or ``None``."""
    if is_trio():
        import trio  # noqa: PLC0415 - optional: loaded only if in use

        return trio.lowlevel.current_trio_token()
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def call_soon_from_threads() -> CallSoon:
    """Return a function that schedules a call in the running event loop, and that any thread may use.

    The function raises ``RuntimeError`` once the loop has ended.
    """
    if is_trio():
        import trio  # noqa: PLC0415 - optional: loaded only if in use

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


def spawn_task(task: Coroutine[Any, Any, None], name: str) -> None:
    """Run a task that belongs to no caller, so the cancellation of a caller does not end the task. The task must not
    raise.
    """
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        trio.lowlevel.spawn_system_task(lambda: task, name=name)
        return
    # Use an empty context, because a copy of the caller's context would keep the values of its variables alive.
    running = asyncio.get_running_loop().create_task(task, name=name, context=contextvars.Context())
    _tasks.add(running)
    running.add_done_callback(_tasks.discard)


class Wakeup(Protocol):
    """Wakes one task. A wake-up is remembered until that task waits, and forgotten when the wait ends."""

    def set(self) -> None: ...
    async def wait(self, limit: float = math.inf) -> bool:
        """Wait for at most ``limit`` seconds. Return whether the task was woken."""
        ...


def make_wakeup() -> Wakeup:
    """Return a wake-up for a task of the running event loop."""
    return _TrioWakeup() if is_trio() else _AsyncioWakeup()


@final
class _AsyncioWakeup:
    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        _end(self._waiter)

    async def wait(self, limit: float = math.inf) -> bool:
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if limit == math.inf else loop.call_later(limit, _end, self._waiter)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set


def _end(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


@final
class _TrioWakeup:
    __slots__ = ("_event",)

    def __init__(self) -> None:
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, limit: float = math.inf) -> bool:
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        with trio.move_on_after(max(limit, 0.0)):
            await self._event.wait()
        was_set: bool = self._event.is_set()
        if was_set:
            self._event = trio.Event()
        return was_set
