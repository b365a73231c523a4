"""How does a task wait for news without being told which?

Invariants:

- A ring wakes everyone who waits, once; it is not remembered. Whoever waits looks first: nothing here yields
  between looking and waiting.
- A waiter that is cancelled, or whose time is up, leaves, and harms nobody.
- A signal handler that raises leaves no task asleep: each waits by a flag of its own (``asyncio_hosts``), and
  stays on the list until it is awake.
"""

from typing import Final, final

from shardline.aio.loop.host_tasks import Flag, make_flag

_LONGEST_WAIT: Final = 3600.0


@final
class Bell:
    """Rung when something has changed."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Flag] = []

    def ring(self) -> None:
        for flag in [*self._waiting]:
            flag.set()

    async def wait(self, limit: float = _LONGEST_WAIT) -> None:
        """Until it is rung, or ``limit`` seconds have passed."""
        flag = make_flag()
        self._waiting.append(flag)
        try:
            await flag.wait(min(limit, _LONGEST_WAIT))
        finally:
            self._waiting.remove(flag)
