"""Lets tasks wait for room in the buffer, first come, first served.

Invariants:

- P7: only the first waiter in the queue tries to put, and it stays first until it succeeds or leaves. No other waiter
  overtakes it. A waiter that leaves, even because of a cancellation, wakes the next one.
- The queue itself is the only state: there is no separate count of waiters, which could become wrong. The host wakes
  the first waiter whenever it has polled the machine and there is room, so an interrupt that ends a waiter at any point
  does not block the others.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import final

from shardline.aio.producer.delivery import native_waiter
from shardline.core.producer.intake import Intake


@final
class _Place:
    """A task's place in the queue."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None  # ``wait`` replaces this function

    async def wait(self) -> None:
        self.wake, waiting = native_waiter()
        await waiting


class WaitQueue:
    """The tasks or threads that wait for room in the buffer, in the order of their arrival."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._queue = intake.waiters

    def enter(self, place: object) -> None:
        """Join the end of the queue."""
        self._queue.append(place)
        self._intake.update_gate()

    def move_up(self) -> None:
        """Wake the next waiter after one has left the queue, because there may be more room."""
        self._intake.update_gate()
        self.notify()

    def notify(self) -> None:
        """Wake the first waiter in the queue if there is room, or if puts are refused."""
        if self._queue and (self._intake.has_room or self._intake.refusal is not None):
            with suppress(IndexError):  # the last waiter has left, in another thread
                self._queue[0].wake()

    def wake_all(self) -> None:
        """Wake all waiters, because puts are refused from now on."""
        for place in list(self._queue):
            place.wake()


@final
class TaskWaitQueue(WaitQueue):
    """The queue of tasks that wait for room in the buffer."""

    async def wait_in_turn(self, attempt: Callable[[bool], bool]) -> None:
        """Wait until ``attempt(is_first)`` returns true. ``attempt`` raises to end the wait."""
        place = _Place()
        try:
            self.enter(place)
            while not attempt(self._queue[0] is place):
                await place.wait()
        finally:
            if place in self._queue:
                self._queue.remove(place)  # inline, because an interrupt could prevent the call of a method
            self.move_up()
