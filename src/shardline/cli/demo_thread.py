"""How does the demo wait for what cannot be cancelled, without being held up by it in the end?

Invariants:

- DT1: whoever waits can be cancelled. The thread then goes on alone, and ends with the process at the latest: nobody
  waits for it there either.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """What ``work`` returns or raises, done in a thread of its own (DT1)."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not done.done():
            set_outcome()

    def run() -> None:
        try:
            outcome = partial(done.set_result, work())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            outcome = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, daemon=True, name="shardline demo").start()
    return await done
