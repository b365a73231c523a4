"""Lets threads wait for room in the buffer, first come, first served.

Invariants:

- P7: as the async line's (``shardline.aio.producer.backpressure``).
- A waiter has a ``Latch``, which whoever wakes it opens. The host takes no lock of a user's thread.
- A signal handler in a thread that waits does not wait in that line: its place would be behind its own thread's.
"""

import time
from collections.abc import Callable
from typing import final

from shardline.aio.loop.latch import Latch
from shardline.aio.producer.backpressure import Line


@final
class RoomLine(Line):
    """The threads that wait for room."""

    def wait_in_turn(self, attempt: Callable[[bool], bool], timeout: float | None) -> bool:
        """Until ``attempt`` succeeds; false if it has not after ``timeout`` seconds.

        Its argument says whether this thread is first in line; it raises to end the wait.
        """
        end = None if timeout is None else time.monotonic() + timeout
        turn = Latch()
        is_nested = any(other.caller is turn.caller for other in list(self._line))
        try:
            self.enter(turn)
            while not attempt(self._line[0] is turn):
                left = None if end is None else end - time.monotonic()
                if is_nested or (left is not None and left <= 0):
                    return False
                turn.wait(left)
        finally:
            if turn in self._line:
                self._line.remove(turn)  # as in the async line
            self.move_up()
        return True
