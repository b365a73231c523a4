"""Whose turn is it, when the buffer was full?

Invariants:

- P7: turns come in the order of arrival; a waiter that is cancelled in the very tick its turn comes passes the turn on.
- RQ1: whose turn has come is before everyone who has not waited, also while its task has yet to wake up.
"""

from collections import deque
from collections.abc import Callable
from typing import final

from shardline.aio.delivery import native_waiter


@final
class _Turn:
    __slots__ = ("given", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.given = False


@final
class RoomQueue:
    """Tasks that wait for room, first come, first served."""

    def __init__(self) -> None:
        self._turns: deque[_Turn] = deque()
        self.waiting = 0
        """How many have waited and not gone on: those whose turn has come as well (RQ1)."""
        self._waking = 0  # those whose turn has come

    async def wait(self, *, first: bool = False) -> None:
        """Until it is our turn. ``first``: it was, but there was still no room."""
        wake, waiting = native_waiter()
        turn = _Turn(wake)
        if first:
            self._turns.appendleft(turn)
        else:
            self._turns.append(turn)
        arrived = False
        self.waiting += 1
        try:
            await waiting
            arrived = True
        finally:
            self.waiting -= 1
            self._waking -= turn.given
            if not arrived and turn.given:
                self.give()
            elif not arrived:
                self._turns.remove(turn)

    def give(self) -> None:
        """There may be room: the first in the line tries. One at a time: who fits must not overtake who does not."""
        if self._turns and not self._waking:
            self._wake_first()

    def give_all(self) -> None:
        """Nobody needs to wait any more."""
        while self._turns:
            self._wake_first()

    def _wake_first(self) -> None:
        turn = self._turns.popleft()
        turn.given = True
        self._waking += 1
        turn.wake()
