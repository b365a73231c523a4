"""The delivery that a blocking ``put`` returns.

Invariants:

- P1 and the invariants of the async delivery also hold for this delivery.
- Any number of threads may wait. The network thread stores the outcome and then looks for waiters; a waiter adds itself
  and then looks for the outcome. So one of the two always sees the other. Waiters add themselves one at a time: if two
  waiters found no list at the same time, each would create a list, and one waiter would be lost.
- The network thread never waits for an outcome that only it can produce: a callback that tries to wait is refused.
"""

import math
import os
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from shardline._speedups import twin_method
from shardline.aio.loop.latch import Latch
from shardline.aio.producer.delivery import SettledRecord
from shardline.aio.producer.validation import check_timeout
from shardline.core.producer.producer_record import BufferedRecord, Landing, Receipt, Undelivered
from shardline.errors import DeliveryFailed, UsageError, WaitTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

_WAIT_SLICE: Final = 0.5  # seconds: a Ctrl-C that arrives just as a wait begins is noticed only when the wait ends


@final
class _WaitersLock:
    """The lock that is held while a waiter adds itself. It is re-entrant, because a signal handler may also wait."""

    lock = threading.RLock()

    @classmethod
    def replace(cls) -> None:
        """Replace the lock in the child of a fork. A thread that exists only in the parent may have held it."""
        cls.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WaitersLock.replace)


@final
class NetworkThread(threading.Thread):
    """The thread that runs the event loop and the callbacks of a producer or consumer."""


def refuse_to_wait_in_callback(action: str) -> None:
    """Refuse to block the network thread, because only that thread could end the wait.

    Raises:
        UsageError: the caller runs in a network thread.
    """
    if isinstance(threading.current_thread(), NetworkThread):
        raise UsageError(f"{action} in a callback would wait for itself: callbacks run in the network thread")


@final
class Delivery(SettledRecord):
    """A record that was put. ``result()`` waits for its receipt. You may drop a delivery that you do not need."""

    @twin_method("wait_for_delivery")
    def result(self, timeout: float | None = None) -> Receipt:
        """Wait until the record is delivered and return its receipt.

        Raises:
            DeliveryFailed: the record could not be delivered. The exception carries the record and every attempt.
            WaitTimeout: the record is still in flight after ``timeout`` seconds. The producer keeps trying.
        """
        if self.ending is None or not (timeout is None or (type(timeout) is float and timeout >= 0.0)):
            self._wait(timeout)
        landing = self.ending
        if type(landing) is Landing and self.history is None:  # the usual case, with few function calls
            place = self.place
            if isinstance(place, int):
                return Receipt(landing.shard_id, landing.sequence_number, place, landing.sent)
            return Receipt(landing.shard_id, place, 0, landing.sent)
        return self.receipt()

    def outcome(self, timeout: float | None = None) -> Receipt | Undelivered:
        """Like ``result``, but return a failure as a value, an ``Undelivered``, instead of raising."""
        self._wait(timeout)
        conclusion = self.conclusion
        assert conclusion is not None
        return conclusion

    def future(self) -> "Future[Receipt]":
        """Return a future for the receipt, for ``concurrent.futures.wait``, ``as_completed`` and similar functions.

        Each call returns a new future. The future cannot be cancelled, because the record was already put. The
        callbacks of the future run in the network thread, so they must not wait for a delivery.
        """
        future: Future[Receipt] = Future()
        future.set_running_or_notify_cancel()

        def settle() -> None:
            try:
                future.set_result(self.receipt())
            except DeliveryFailed as error:
                future.set_exception(error)

        self.when_done(settle)
        return future

    def add_done_callback(self, callback: "Callable[[Delivery], object]") -> None:
        """Call ``callback(delivery)`` in the network thread when the delivery has succeeded or failed.

        If the delivery has already succeeded or failed, call the callback immediately, in this thread.
        """
        self.when_done(lambda: callback(self))

    def add_waiter(self, wake: "Callable[[], None]") -> None:
        with _WaitersLock.lock:
            record: BufferedRecord = self  # BufferedRecord declares the type of the waiters
            waiters = record.waiters
            if waiters is None:
                record.waiters = waiters = []
            waiters.append(wake)

    def remove_waiter(self, wake: "Callable[[], None]") -> None:
        waiters = self.waiters
        if waiters is not None:
            with suppress(ValueError):
                waiters.remove(wake)

    def _wait(self, timeout: float | None) -> None:
        limit = check_timeout("timeout", timeout)
        if self.ending is not None:
            return
        refuse_to_wait_in_callback("waiting for a delivery")
        ended = Latch()
        wake = ended.wake
        self.add_waiter(wake)
        if self.ending is not None:
            return
        until = math.inf if limit is None else time.monotonic() + limit
        try:
            while not ended.wait(max(0.0, min(_WAIT_SLICE, until - time.monotonic()))):
                if time.monotonic() >= until:
                    raise WaitTimeout(f"not delivered after {limit:g} s: the producer keeps trying")
        finally:
            self.remove_waiter(wake)
