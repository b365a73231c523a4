"""What becomes of what the user's code raises, where nobody of the user's could catch it?

Callbacks, hooks and sinks are called by tasks and threads that belong to nobody who calls. Whatever came out of them
would end those: with asyncio the producer, with trio the whole run.

Invariants:

- Whatever it raises, ``SystemExit`` included, is told, and ends nothing.
- Only a Ctrl-C is the program's: it gets it from its event loop, as if it had come a moment later.
- A coroutine of the user's that raises ``CancelledError`` while nobody cancels it has failed.
"""

import asyncio
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, cast, final

from shardline.adapters.event_loop import is_trio

MAY_FAIL: Final = (Exception, asyncio.CancelledError)
"""What code of the user's may fail with. Where it is awaited, a ``CancelledError`` may be ours: ``is_cancelled``."""


def is_cancelled(error: object) -> bool:
    """Whether this ``CancelledError`` is a cancellation of the running task: else it is of something else."""
    if not isinstance(error, asyncio.CancelledError) or is_trio():
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


@final
class Contained:
    """``with Contained(complain):`` whatever the code in it raises is told to ``complain``.

    Args:
        complain: called with what was raised.
        awaits: whether it is awaited in the block: then cancellation is not the user's.
    """

    __slots__ = ("_awaits", "_complain")

    def __init__(self, complain: Callable[[BaseException], object], *, awaits: bool = False) -> None:
        self._complain = complain
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
            self._complain(error)
        return True


def _is_from_outside(error: BaseException) -> bool:
    """Whether it came into a coroutine by its task, and not out of the user's code."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        return isinstance(error, trio.Cancelled | GeneratorExit)
    return isinstance(error, GeneratorExit) or is_cancelled(error)


def _is_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_interrupt(one) for one in cast("BaseExceptionGroup[BaseException]", error).exceptions)
    return isinstance(error, KeyboardInterrupt)


def _interrupt_program(error: BaseException) -> None:

    def interrupt() -> None:
        raise error

    if is_trio():
        signal.raise_signal(signal.SIGINT)  # in a protected task: it is delivered to the main one
    else:
        asyncio.get_running_loop().call_soon(interrupt)  # it comes out of the loop, and ends no task
