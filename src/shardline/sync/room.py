"""Lets threads wait for room in the buffer, first come, first served.

Invariants:

- P7: as the async line's (``shardline.aio.room``).
- A waiter has a lock of its own, which whoever wakes it releases. The host takes no lock of a user's thread.
- A signal handler in a thread that waits does not wait in that line: its place would be behind its own thread's.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from shardline.core.producer.intake import Intake
from shardline.errors import BufferFull

_LOCK_TIMEOUT: Final = 0.1  # seconds: a put has the lock for microseconds


@final
class _Turn:
    """A place in the line."""

    __slots__ = ("_lock", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout: float | None) -> None:
        self._lock.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        with suppress(RuntimeError):  # it is awake already
            self._lock.release()


@final
class LockForCallbacks:
    """The putters' lock, for a callback in the network thread. It gives up soon: see ``shardline.sync.producer``."""

    __slots__ = ("_lock",)

    def __init__(self, lock: "threading.RLock") -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT):
            raise BufferFull("another thread is in the middle of a put, and does not come to its end")

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@final
class RoomLine:
    """The threads that wait for room."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._line = intake.waiters

    def wait_in_turn(self, attempt: Callable[[bool], bool], timeout: float | None) -> bool:
        """Until ``attempt`` succeeds; false if it has not after ``timeout`` seconds.

        Its argument says whether this thread is first in line; it raises to end the wait.
        """
        end = None if timeout is None else time.monotonic() + timeout
        turn = _Turn()
        is_nested = any(one.thread == turn.thread for one in list(self._line))
        try:
            self._line.append(turn)
            while not attempt(self._line[0] is turn):
                left = None if end is None else end - time.monotonic()
                if is_nested or (left is not None and left <= 0):
                    return False
                turn.wait(left)
        finally:
            if turn in self._line:
                self._line.remove(turn)
            self.notify()  # there may be room for the next as well
        return True

    def notify(self) -> None:
        """There may be room: the first in the line tries."""
        if self._intake.has_room or self._intake.refusal is not None:
            with suppress(IndexError):  # nobody waits
                self._line[0].wake()

    def wake_all(self) -> None:
        """Nobody needs to wait any more."""
        for turn in list(self._line):
            turn.wake()
