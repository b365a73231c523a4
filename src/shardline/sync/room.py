"""Whose turn is it, among threads, when the buffer was full?

Invariants:

- P7: turns come in the order of arrival; a thread that is interrupted, or out of time, as its turn comes passes it on.
- RQ1: as the async queue's: whose turn has come is before everyone who has not waited.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import final


@final
class _Turn:
    __slots__ = ("condition", "given")

    def __init__(self, lock: "threading.RLock") -> None:
        self.condition = threading.Condition(lock)
        self.given = False


@final
class RoomLine:
    """Threads that wait for room, first come, first served. All but ``notify`` is called with the lock held."""

    def __init__(self, lock: "threading.RLock") -> None:
        self._lock = lock
        self._turns: deque[_Turn] = deque()
        self._waking = 0  # those whose turn has come
        self.waiting = 0
        """How many have waited and not gone on: those whose turn has come as well (RQ1)."""
        self._threads: set[int] = set()  # those that wait

    @property
    def is_waited_for_here(self) -> bool:
        """Whether this thread waits already: a signal handler in it must not, its turn would come after its own."""
        return threading.get_ident() in self._threads

    def try_in_turn(self, attempt: Callable[[], bool], timeout: float | None) -> bool:
        """Until it is our turn and ``attempt`` succeeds; false if it has not after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        our_turn = False
        while True:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            our_turn = self.wait(left, first=our_turn)
            is_done, passes = False, True  # the turn, also if an interrupt ends it
            try:
                is_done = our_turn and attempt()
                passes = is_done or (end is not None and time.monotonic() >= end)
            finally:
                if passes:
                    self.give()  # there may be room for the next as well
            if is_done:
                return True

    def wait(self, timeout: float | None, *, first: bool = False) -> bool:
        """Until it is our turn; false if it is not after ``timeout`` seconds. ``first``: it was, without enough room.

        The lock is released meanwhile.
        """
        turn = _Turn(self._lock)
        if first:
            self._turns.appendleft(turn)
        else:
            self._turns.append(turn)
        arrived = False
        self.waiting += 1
        self._threads.add(threading.get_ident())
        try:
            turn.condition.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
            arrived = True
        finally:
            self._threads.discard(threading.get_ident())
            self.waiting -= 1
            self._waking -= turn.given
            if not turn.given:
                self._turns.remove(turn)
            elif not arrived:
                self.give()
        return turn.given

    def give(self) -> None:
        """There may be room: the first in the line tries. One at a time: who fits must not overtake who does not."""
        if self._turns and not self._waking:
            self._wake_first()

    def notify(self) -> None:
        """As ``give``, of one who has not the lock."""
        with self._lock:
            self.give()

    def give_all(self) -> None:
        """Nobody needs to wait any more."""
        while self._turns:
            self._wake_first()

    def _wake_first(self) -> None:
        turn = self._turns.popleft()
        turn.given = True
        self._waking += 1
        turn.condition.notify()
