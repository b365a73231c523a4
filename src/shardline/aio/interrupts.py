"""Whom does Ctrl-C interrupt?

The program's own code, never a task that belongs to nobody who calls: a ``KeyboardInterrupt`` there would end that
task, and with trio, where such tasks are the system's, the whole run with an internal error.

Invariants:

- KI1: a host, and every task that it starts through ``uninterrupted``, survives an interrupt; the main task gets it.
- KI2: asyncio needs less: ``asyncio.run`` cancels the main task.
"""

import signal
from collections.abc import Awaitable, Callable
from typing import Any


async def uninterrupted(call: Callable[..., Awaitable[object]], *arguments: Any) -> None:
    """``await call(*arguments)``, protected once ``protect`` was called (KI1)."""
    try:
        await call(*arguments)
    except* KeyboardInterrupt:  # it hit a task that the call had started: protection is not inherited
        signal.raise_signal(signal.SIGINT)  # here it is delivered to the main task


def protect() -> None:
    """To be called where trio runs: system tasks are protected by trio, but not the tasks that they start."""
    import trio  # noqa: PLC0415 - an extra: only where it is in use

    trio.lowlevel.enable_ki_protection(uninterrupted)
