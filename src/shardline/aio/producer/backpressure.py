"""Lets tasks wait for room in the buffer, first come, first served.

Invariants:

- P7: only the first in the line tries, and it stays first until it has succeeded or leaves: nobody overtakes it. A
  waiter that leaves, also by cancellation, wakes the next.
- No count of those that wait can get out of step, for the line itself is all that there is. The host wakes the first
  whenever it has looked at the machine and there is room: an interrupt that ends a waiter at any point stops no other.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import final

from shardline.aio.producer.delivery import native_waiter
from shardline.core.producer.intake import Intake


@final
class _Turn:
    """A place in the line."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None  # until it waits there is nothing to wake

    async def wait(self) -> None:
        self.wake, waiting = native_waiter()
        await waiting


class Line:
    """Those who wait for room, in the order of their arrival."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._line = intake.waiters

    def enter(self, turn: object) -> None:
        """Wait behind those who came before."""
        self._line.append(turn)
        self._intake.update_gate()

    def move_up(self) -> None:
        """A putter has left the line: there may be room for the next one as well."""
        self._intake.update_gate()
        self.notify()

    def notify(self) -> None:
        """There may be room: the first in the line tries."""
        if self._line and (self._intake.has_room or self._intake.refusal is not None):
            with suppress(IndexError):  # it left, in another thread
                self._line[0].wake()

    def wake_all(self) -> None:
        """Nobody needs to wait any more."""
        for turn in list(self._line):
            turn.wake()


@final
class RoomQueue(Line):
    """The tasks that wait for room."""

    async def wait_in_turn(self, attempt: Callable[[bool], bool]) -> None:
        """Wait until ``attempt`` succeeds. Its argument says whether this task is first; it raises to end the wait."""
        turn = _Turn()
        try:
            self.enter(turn)
            while not attempt(self._line[0] is turn):
                await turn.wait()
        finally:
            if turn in self._line:
                self._line.remove(turn)  # not in a method: it could be interrupted before it begins
            self.move_up()
