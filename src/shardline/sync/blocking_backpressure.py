"""Lets threads wait for room in the buffer, first come, first served.

Invariants:

- P7: the same as for the async queue (``shardline.aio.producer.backpressure``).
- Each waiting thread has a ``Latch``, which the host or another thread opens. The host never takes a lock that a user's
  thread may hold.
- A signal handler that puts while its own thread waits in the queue does not wait. The put would queue behind the
  interrupted thread, which cannot move up until the handler returns.
"""

import time
from collections.abc import Callable
from typing import final

from shardline.aio.loop.latch import Latch
from shardline.aio.producer.backpressure import WaitQueue


@final
class ThreadWaitQueue(WaitQueue):
    """The queue of threads that wait for room in the buffer."""

    def wait_in_turn(self, attempt: Callable[[bool], bool], timeout: float | None) -> bool:
        """Wait until ``attempt`` succeeds. Return false if it has not succeeded after ``timeout`` seconds.

        The argument of ``attempt`` says whether this thread is first in the queue. ``attempt`` raises to end the wait.
        """
        end = None if timeout is None else time.monotonic() + timeout
        turn = Latch()
        is_nested = any(other.caller is turn.caller for other in list(self._queue))
        try:
            self.enter(turn)
            while not attempt(self._queue[0] is turn):
                left = None if end is None else end - time.monotonic()
                if is_nested or (left is not None and left <= 0):
                    return False
                turn.wait(left)
        finally:
            if turn in self._queue:
                self._queue.remove(turn)  # inline, because an interrupt could prevent the call of a method
            self.move_up()
        return True
