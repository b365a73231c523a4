"""Whom does Ctrl-C interrupt?

The program's own code, never a task that belongs to nobody who calls: a ``KeyboardInterrupt`` there would end that
task, and with trio, where such tasks are the system's, the whole run with an internal error.

Invariants:

- KI1: a host, and every task of its ``host_tasks``, survives an interrupt at any place; the main task gets it.
- KI2: asyncio needs less: ``asyncio.run`` cancels the main task.
"""

import signal
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, final

import anyio

from shardline.adapters.event_loop import is_trio


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
    """``async with HostTasks() as tasks:`` a task group of which no task is interrupted (KI1).

    On trio it is trio's own: protection holds for a function, and what anyio wraps around a task is none of ours.
    """

    def __init__(self) -> None:
        self._manager: Any
        if is_trio():
            import trio  # noqa: PLC0415 - an extra: only where it is in use

            trio.lowlevel.enable_ki_protection(_uninterrupted)
            self._manager = trio.open_nursery(strict_exception_groups=True)
        else:
            self._manager = anyio.create_task_group()
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
        self._group.start_soon(_uninterrupted, call, *arguments)


async def _uninterrupted(call: Callable[..., Awaitable[object]], *arguments: Any) -> None:
    try:
        await call(*arguments)
    except* KeyboardInterrupt:  # it hit a task that the call had started: protection is not inherited
        signal.raise_signal(signal.SIGINT)  # here it is delivered to the main task
