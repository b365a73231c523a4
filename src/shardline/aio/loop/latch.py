"""Lets one thread wait for another, where signals may come.

Events, conditions and futures of the library have a lock of their own inside. A thread that a signal interrupts may
hold it: a handler that waits for the other thread then waits forever, and one that raises may leave it locked.

Invariants:

- Whoever wakes a thread never waits, whatever that thread does or did.
- A wait that is interrupted leaves nothing behind.
"""

import threading
from contextlib import suppress
from typing import final


@final
class Latch:
    """The thread that makes it waits, and another one wakes it. It is a plain lock."""

    __slots__ = ("_lock", "caller")

    def __init__(self) -> None:
        self.caller = threading.current_thread()
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Let the wait end, now or when it comes."""
        with suppress(RuntimeError):  # it was woken before
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is woken; false if that is not so after ``timeout`` seconds."""
        return self._lock.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
