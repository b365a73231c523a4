"""How does a thread wait for another, if signals may come?

Events, conditions and futures of the library have a lock of their own inside. A thread that a signal interrupts may
hold it: a handler that waits for the other thread then waits for ever, and one that raises may leave it locked.

Invariants:

- GA1: who opens never waits, whatever the other thread does or did.
- GA2: a wait that is interrupted leaves nothing behind.
"""

import threading
from typing import final


@final
class Gate:
    """What one thread waits at and another opens, once. A lock as it is."""

    __slots__ = ("_lock", "is_open")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_open = False

    def open(self) -> None:
        """Let the one who waits go on, now or when it comes. To be called by one thread; harmless when done before."""
        if not self.is_open:
            self.is_open = True
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is open; false if it is not after ``timeout`` seconds."""
        return self._lock.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
