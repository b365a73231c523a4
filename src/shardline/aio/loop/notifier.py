"""Wakes tasks that wait for something to change.

Invariants:

- A notification wakes all tasks that wait at that moment, and is not remembered. A task therefore checks its condition
  first, and does not yield to the event loop between the check and the wait.
- A waiter that is cancelled or times out is removed, and affects no other waiter.
- A signal handler that raises leaves no task asleep: each task waits for its own flag (``asyncio_hosts``), which
  stays on the list until the task is awake.
"""

import math
from typing import final

from shardline.aio.loop.host_tasks import Flag, make_flag


@final
class Notifier:
    """Notifies tasks that something has changed, without saying what."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Flag] = []

    def notify(self) -> None:
        """Wake all tasks that are waiting at this moment."""
        for flag in [*self._waiting]:
            flag.set()

    async def wait(self, limit: float = math.inf) -> None:
        """Wait for the next notification, for at most ``limit`` seconds."""
        flag = make_flag()
        self._waiting.append(flag)
        try:
            await flag.wait(limit)  # without a limit there is no timer, which would cost as much as the wait
        finally:
            self._waiting.remove(flag)
