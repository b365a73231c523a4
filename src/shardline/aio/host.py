"""In which task does a producer send?

In one that belongs to nobody who calls: asyncio's own, or a system task of trio.

Invariants:

- PR1: no cancel scope of a caller is entered: a producer may be closed by another task than started it.
- HO1: however it ends, the client that it owns is closed, and whoever waits for the end is told.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, cast

import anyio

from shardline.adapters.event_loop import CallSoon, call_soon_from_threads, is_trio
from shardline.aio.client import Client
from shardline.aio.driver import Driver


async def host(driver: Driver, api: Any, client: Client, ended: anyio.Event, *, owns_client: bool) -> None:
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


class _Turn:
    """Gives the other tasks of asyncio a turn: what ``asyncio.sleep(0)`` does, in a fifth of a checkpoint's time."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_TURN: Final = _Turn()


def native_checkpoint() -> Callable[[], Awaitable[None]]:
    """What gives other tasks of the running event loop a turn, and cancellation its chance."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        return trio.lowlevel.checkpoint
    return lambda: _TURN


def running_task() -> object:
    """The task that runs now: itself, for its id may be another's as soon as it has ended."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        return trio.lowlevel.current_task()
    return asyncio.current_task()


def has_ended(task: object) -> bool:
    """Whether it was a task, and is over."""
    if isinstance(task, asyncio.Task):
        return cast("asyncio.Task[object]", task).done()
    coroutine: object = getattr(task, "coro", None)  # trio's
    return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def has_ended_well(task: object) -> bool:
    """Whether it is over, and returned. With trio what a task raises ends the block that it was started in."""
    if isinstance(task, asyncio.Task):
        one = cast("asyncio.Task[object]", task)
        # exception() would say that somebody has seen it, and asyncio would not tell of it any more
        return one.done() and not one.cancelled() and getattr(one, "_exception", None) is None
    return has_ended(task)


_hosts: Final[set[asyncio.Task[None]]] = set()  # asyncio itself holds tasks weakly


def spawn(task: Coroutine[Any, Any, None], name: str = "shardline producer") -> CallSoon:
    """Run a task that belongs to no caller (PR1). Returns what makes a call in its event loop, from any thread."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        async def run() -> None:
            await task

        trio.lowlevel.spawn_system_task(run, name=name)
    else:
        hosted = asyncio.get_running_loop().create_task(task, name=name)
        _hosts.add(hosted)
        hosted.add_done_callback(_hosts.discard)
    return call_soon_from_threads()
