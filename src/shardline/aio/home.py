"""In which event loop does a producer live?

In the one in which it was started. Nobody there sees what is put from another loop, or when that loop runs no more.

Invariants:

- HM1: what is asked for in another event loop is refused, with the reason, and never waits for what cannot come.
- HM2: a producer whose loop does not run any more can be closed from anywhere.
"""

import asyncio
from typing import Final, final

from shardline.adapters.event_loop import running_loop
from shardline.errors import Closed, UsageError

_ELSEWHERE: Final = (
    "this Producer belongs to the event loop in which it was started: use it there, or make a new one here"
)


@final
class Home:
    """The event loop that runs where this is made."""

    def __init__(self) -> None:
        self._loop = running_loop()

    @property
    def is_elsewhere(self) -> bool:
        """Whether another one runs here, or this one has ended."""
        loop = self._loop
        return running_loop() not in {loop, None} or (isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed())

    def check(self) -> None:
        """HM1.

        Raises:
            Closed: this is another event loop.
        """
        if self.is_elsewhere:
            raise Closed(_ELSEWHERE)

    def is_deserted(self, *, has_ended: bool) -> bool:
        """Whether this is another event loop, and that one does nothing more (HM2). ``has_ended``: it said so itself.

        Raises:
            UsageError: it runs, in another thread.
        """
        if not self.is_elsewhere:
            return False
        loop = self._loop
        if not has_ended and (not isinstance(loop, asyncio.AbstractEventLoop) or loop.is_running()):
            raise UsageError(_ELSEWHERE)
        return True
