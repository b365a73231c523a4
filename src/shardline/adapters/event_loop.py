"""Which event loop runs here: asyncio's, or trio's?

trio is an extra: it is imported only where the program has done so.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import TypeAlias

CallSoon: TypeAlias = Callable[[Callable[[], object]], object]


def is_trio() -> bool:
    """Whether trio's runs in this thread."""
    if "trio" not in sys.modules:
        return False
    import trio  # noqa: PLC0415 - an extra: only where it is in use

    return trio.lowlevel.in_trio_run()


def running_loop() -> object:
    """The one that runs in this thread; ``None`` if there is none."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        return trio.lowlevel.current_trio_token()
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def call_soon_from_threads() -> CallSoon:
    """What makes this event loop call a function soon, from any thread. ``RuntimeError`` once the loop is over."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe
