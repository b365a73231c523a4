"""What does a blocking caller hold of a record that was put?

Invariants:

- P1, and the invariants of the async delivery.
- Any thread may wait, any number of them. The network thread sets the ending first and looks for waiters then; a
  waiter enters itself first and looks for the ending then: one of the two always sees the other. Waiters enter one at a
  time: two that both found no list would each make one, and one of them would be forgotten.
- The network thread does not wait for what only it can bring: a callback that tries is refused.
"""

import math
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from shardline.aio.loop.latch import Latch
from shardline.aio.producer.delivery import SettledRecord
from shardline.aio.producer.validation import check_timeout
from shardline.core.producer.producer_record import Landing, Receipt, Undelivered
from shardline.errors import UsageError, WaitTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

_GLANCE: Final = 0.5  # seconds: a Ctrl-C in the very moment in which a wait begins is seen when it ends


@final
class _Entering:
    """Held while a waiter enters itself. Re-entrant: a signal handler may wait for a delivery as well."""

    lock = threading.RLock()

    @classmethod
    def replace(cls) -> None:
        """In the child of a fork: another thread may have held it, and is not there."""
        cls.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Entering.replace)


@final
class NetworkThread(threading.Thread):
    """The thread in which a producer sends, and callbacks run."""


def refuse_to_wait_in_callback(what: str) -> None:
    """Refuse to wait in the network thread for what only that thread can bring.

    Raises:
        UsageError: this is a network thread.
    """
    if isinstance(threading.current_thread(), NetworkThread):
        raise UsageError(f"{what} in a callback would wait for itself: callbacks run in the network thread")


@final
class Delivery(SettledRecord):
    """A record on its way. ``result()`` waits for the receipt; drop it if you do not care."""

    def result(self, timeout: float | None = None) -> Receipt:
        """The receipt, when it is delivered.

        Raises:
            DeliveryFailed: it was given up; the exception carries the record and every attempt.
            WaitTimeout: it has not ended after ``timeout`` seconds. It goes on.
        """
        if self.ending is None or not (timeout is None or (type(timeout) is float and timeout >= 0.0)):
            self._wait(timeout)
        landing = self.ending
        if type(landing) is Landing and self.history is None:  # nearly all, with as few calls as can be
            number = self.sequence_number or landing.sequence_number
            return Receipt(landing.shard_id, number, self.sub_sequence, landing.sent)
        return self.receipt()

    def outcome(self, timeout: float | None = None) -> Receipt | Undelivered:
        """As ``result``, but a failure is a value: an ``Undelivered``."""
        self._wait(timeout)
        conclusion = self.conclusion
        assert conclusion is not None
        return conclusion

    def add_done_callback(self, callback: "Callable[[Delivery], object]") -> None:
        """Call ``callback(delivery)`` when it ends, in the network thread; at once, and here, if it has."""
        self.when_done(lambda: callback(self))

    def add_waiter(self, wake: "Callable[[], None]") -> None:
        with _Entering.lock:
            waiters = self.waiters
            if waiters is None:
                self.waiters = waiters = []
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
            while not ended.wait(max(0.0, min(_GLANCE, until - time.monotonic()))):
                if time.monotonic() >= until:
                    raise WaitTimeout(f"not delivered after {limit:g} s: it goes on")
        finally:
            self.remove_waiter(wake)
