"""Runs coroutines for plain functions, in one event loop of the process or without an event loop.

``shardline.awslambda`` uses this. Lambda calls a plain function repeatedly in the same process. The event loop
stands still between two calls, and continues in the next call, so connections and the tasks of an async producer
survive.

Invariants:

- All calls share one event loop, which is closed when the process ends.
- Importing this module does not import asyncio: a plain function that never awaits starts without asyncio.
- ``bounded`` distinguishes its own time limit from a ``TimeoutError`` that the awaitable raises.
"""

import time
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

from shardline.errors import UsageError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class TimeLimitError(Exception):
    """The time was up, and the awaitable was cancelled."""


@final
class SystemClock:
    """The clock of the computer. ``sleep`` returns an awaitable if ``is_async`` is true."""

    def __init__(self, *, is_async: bool) -> None:
        self._is_async = is_async

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> object:
        if not self._is_async:
            time.sleep(seconds)
            return None
        import asyncio  # noqa: PLC0415 - see the invariants

        return asyncio.sleep(seconds)


def run_plainly(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("this coroutine never suspends")


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop of this process.

    Raises:
        UsageError: another event loop is running in this thread.
    """
    import asyncio  # noqa: PLC0415 - see the invariants

    with suppress(RuntimeError):
        asyncio.get_running_loop()
        work.close()
        raise UsageError(
            "this Lambda function was called inside a running event loop, and it has its own: call it in a thread, "
            "as in await asyncio.to_thread(handler, event, context)"
        )
    return _runner().run(work, context=copy_context())  # the caller's context, in which tracers keep their data


@cache
def _runner() -> "asyncio.Runner":
    import asyncio  # noqa: PLC0415 - see the invariants
    import atexit  # noqa: PLC0415 - only a process with an event loop needs it

    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


async def bounded(awaitable: Awaitable[T], seconds: float | None) -> T:
    """Await the awaitable and cancel it after this many seconds. ``None`` means no limit.

    Raises:
        TimeLimitError: the awaitable was cancelled.
    """
    import asyncio  # noqa: PLC0415 - see the invariants

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            raise TimeLimitError from None
        raise


async def yield_to_loop() -> None:
    """Let the other tasks of the event loop run."""
    import asyncio  # noqa: PLC0415 - see the invariants

    await asyncio.sleep(0)


def user_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions that user code may raise.

    An ``except`` clause evaluates this only after an exception was raised.
    """
    from shardline.aio.loop.callbacks import MAY_FAIL  # noqa: PLC0415 - it imports asyncio

    return MAY_FAIL


def is_cancelled(error: BaseException) -> bool:
    """Return whether this error is the cancellation of the running task."""
    from shardline.aio.loop import callbacks  # noqa: PLC0415 - it imports asyncio

    return callbacks.is_cancelled(error)
