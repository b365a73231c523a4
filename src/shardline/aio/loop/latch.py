"""Lets one thread wait for another, even if signal handlers interrupt it.

The standard library's events, conditions and futures contain a lock. A thread that is interrupted by a signal may hold
that lock: a signal handler that waits for the other thread then waits forever, and a handler that raises may leave the
lock locked.

Invariants:

- Waking a thread never blocks, whatever that thread does.
- An interrupted wait leaves nothing locked.
- A signal ends the wait of the main thread within ``_LOOK_INTERVAL``, even if the system lets another thread run the C
  handler of the signal. This happens when the other thread changes its signal mask, as it does to start a process. The
  lock then does not notice the signal, and Python runs the signal's Python handler only in the main thread.
"""

import math
import threading
from contextlib import suppress
from typing import Final, final

_LOOK_INTERVAL: Final = 0.5  # seconds


@final
class Latch:
    """A plain lock. The thread that creates it waits, and another thread wakes it."""

    __slots__ = ("_lock", "caller")

    def __init__(self) -> None:
        self.caller = threading.current_thread()
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """End the wait. If the wait has not begun yet, it will end immediately."""
        with suppress(RuntimeError):  # already woken
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until ``wake`` is called. Return false if that has not happened after ``timeout`` seconds."""
        left = math.inf if timeout is None else max(0.0, timeout)
        while left > _LOOK_INTERVAL:
            if self._lock.acquire(timeout=_LOOK_INTERVAL):
                return True
            left -= _LOOK_INTERVAL
        return self._lock.acquire(timeout=left)
