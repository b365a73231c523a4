"""Keeps exceptions in the user's callbacks, hooks and sinks from ending a host.

Hosts call user code in their own tasks and threads, where the user cannot catch an exception. An exception that left
the host would end the producer on asyncio, and the whole run on trio.

Invariants:

- Any exception, ``SystemExit`` included, is reported, and does not end the host.
- Ctrl-C is not suppressed: the program gets it from its event loop, as if it had been pressed a moment later.
- A user's coroutine that raises ``CancelledError`` although its task was not cancelled has failed.
"""

import asyncio
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, cast, final

from shardline.adapters.event_loop import is_trio

MAY_FAIL: Final = (Exception, asyncio.CancelledError)
"""The exceptions that user code may raise. In an awaited call, ``is_cancelled`` detects a cancellation."""


def is_cancelled(error: object) -> bool:
    """Return whether the error is the cancellation of the running task, and not a ``CancelledError`` with another
    origin.
    """
    if not isinstance(error, asyncio.CancelledError) or is_trio():
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


@final
class Contained:
    """``with Contained(report):`` passes exceptions from the block to ``report`` and suppresses them.

    Args:
        report: the function that is called with the exception.
        awaits: whether the block awaits. If so, cancellations are not suppressed.
    """

    __slots__ = ("_awaits", "_report")

    def __init__(self, report: Callable[[BaseException], object], *, awaits: bool = False) -> None:
        self._report = report
        self._awaits = awaits

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or (self._awaits and _is_from_outside(error)):
            return False
        if _is_interrupt(error) and threading.current_thread() is threading.main_thread():
            _interrupt_program(error)
        else:
            self._report(error)
        return True


def _is_from_outside(error: BaseException) -> bool:
    """Return whether the event loop threw the exception into the coroutine: a cancellation, or the coroutine's end."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: imported only where it is used

        return isinstance(error, trio.Cancelled | GeneratorExit)
    return isinstance(error, GeneratorExit) or is_cancelled(error)


def _is_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_interrupt(member) for member in cast("BaseExceptionGroup[BaseException]", error).exceptions)
    return isinstance(error, KeyboardInterrupt)


def _interrupt_program(error: BaseException) -> None:
    """Pass a ``KeyboardInterrupt`` that was raised in a callback on to the program."""

    def interrupt() -> None:
        raise error

    if is_trio():
        signal.raise_signal(signal.SIGINT)  # this task is protected, so trio delivers the signal to the main task
    else:
        asyncio.get_running_loop().call_soon(interrupt)  # outside of any task, so that it ends the loop and no task
