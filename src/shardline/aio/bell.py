"""How does a task wait for news without being told which?

Invariants:

- BE1: a ring wakes everyone who waits, once; it is not remembered. Whoever waits looks first: nothing here yields
  between looking and waiting.
- BE2: a waiter that is cancelled, or whose time is up, leaves, and harms nobody.
- BE3: waiting takes what the event loop itself has, a future and a timer: a thousand idle shards do it every second.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias, final

from shardline.adapters.event_loop import is_trio

Wake: TypeAlias = Callable[[], None]

_LONGEST_WAIT: Final = 3600.0


@final
class Bell:
    """Rung when something has changed."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Wake] = []

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    async def wait(self, limit: float = _LONGEST_WAIT) -> None:
        """Until it is rung, or ``limit`` seconds have passed."""
        limit = min(limit, _LONGEST_WAIT)
        if is_trio():
            import trio  # noqa: PLC0415 - an extra: only where it is in use

            event = trio.Event()
            self._waiting.append(event.set)
            try:
                with trio.move_on_after(limit):
                    await event.wait()
            finally:
                self._leave(event.set)
            return
        loop = asyncio.get_running_loop()
        rung: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not rung.done():
                rung.set_result(None)

        self._waiting.append(wake)
        timer = loop.call_later(limit, wake)
        try:
            await rung
        finally:
            timer.cancel()
            self._leave(wake)

    def _leave(self, wake: Wake) -> None:
        if wake in self._waiting:
            self._waiting.remove(wake)
