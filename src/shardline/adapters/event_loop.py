"""Detects which event loop runs in this thread: asyncio's or trio's.

trio is an optional dependency, so this module imports it only if the program already has.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import TypeAlias

CallSoon: TypeAlias = Callable[[Callable[[], object]], object]


def is_trio() -> bool:
    """Whether trio's event loop runs in this thread."""
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

    It raises ``RuntimeError`` once the loop has ended.
    """
    if is_trio():
        import trio  # noqa: PLC0415 - optional: loaded only if in use

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe
