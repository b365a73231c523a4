"""What does a caller hold of a record that was put, and how does it learn the outcome?

Invariants:

- P1: a delivery ends exactly once, and says so to everyone who waits, however many, however often.
- P11: it is the record itself, no second object; waiting makes one waiter per wait, native to the event loop. A shared
  one would be cancelled for all by one.
- A waiter that is cancelled leaves, and harms nobody; a delivery that nobody waits for may be dropped.
- What a callback raises is the callback's business: it is logged, and stops nothing. One that is called at
  once is the caller's code, and ends as that does: an exit or an interrupt goes through.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any, Final, final

from shardline.adapters.event_loop import is_trio
from shardline.aio.loop.callbacks import MAY_FAIL, Contained
from shardline.core.producer.producer_record import BufferedRecord, Landing, Receipt, Undelivered
from shardline.errors import DeliveryFailed

_log: Final = logging.getLogger("shardline.producer")


class SettledRecord(BufferedRecord):
    """What the async and the blocking delivery have in common."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self.ending is not None

    @property
    def delivered(self) -> bool:
        """Whether it is in the stream, with a receipt."""
        return self.ending is not None and type(self.ending) is not Undelivered

    def receipt(self) -> Receipt:
        """Where it lies, once it is there.

        Raises:
            DeliveryFailed: it was given up.
        """
        outcome = self.conclusion
        assert outcome is not None
        if isinstance(outcome, Receipt):
            return outcome
        raise DeliveryFailed(self, outcome)

    def when_done(self, call: Callable[[], object]) -> None:
        """Call it when this has ended: at once if it has."""
        pending = [call]  # taken out by whoever calls it: list.pop is atomic

        def once() -> None:
            try:
                taken = pending.pop()
            except IndexError:
                return
            try:
                taken()
            except MAY_FAIL as error:  # a callback may ask a cancelled future
                _complain(error)

        def once_contained() -> None:
            with Contained(_complain):
                once()

        self.add_waiter(once_contained)
        if self.ending is not None:  # entered first, looked then: the ending may come from another thread
            once()

    def add_waiter(self, wake: Callable[[], None]) -> None:
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(wake)

    def remove_waiter(self, wake: Callable[[], None]) -> None:
        if self.waiters is not None and wake in self.waiters:
            self.waiters.remove(wake)

    def __repr__(self) -> str:
        """Without the data: that belongs in no log."""
        state = "pending" if self.ending is None else "delivered" if self.delivered else "undelivered"
        return f"<{type(self).__name__} key={self.key!r} {state}>"


@final
class Delivery(SettledRecord):
    """A record on its way. ``await`` it for the receipt; drop it if you do not care."""

    def __await__(self) -> Generator[Any, None, Receipt]:
        """The receipt, when it is delivered.

        Raises:
            DeliveryFailed: it was given up; the exception carries the record and every attempt.
        """
        if self.ending is None:
            yield from self._wait().__await__()
        landing = self.ending
        if type(landing) is Landing and self.history is None:  # nearly all, with as few calls as can be
            number = self.sequence_number or landing.sequence_number
            return Receipt(landing.shard_id, number, self.sub_sequence, landing.sent)
        return self.receipt()

    async def outcome(self) -> Receipt | Undelivered:
        """As ``await``, but a failure is a value: an ``Undelivered``."""
        if self.ending is None:
            await self._wait()
        conclusion = self.conclusion
        assert conclusion is not None
        return conclusion

    def add_done_callback(self, callback: "Callable[[Delivery], object]") -> None:
        """Call ``callback(delivery)`` when it ends; at once if it has."""
        self.when_done(lambda: callback(self))

    async def _wait(self) -> None:
        """Until it has ended, by a waiter of one's own (P11)."""
        wake, waiting = native_waiter()
        self.add_waiter(wake)
        try:
            await waiting
        finally:
            self.remove_waiter(wake)


def _complain(error: BaseException) -> None:
    _log.error("a delivery's callback failed", exc_info=error)


def wake_waiters(record: BufferedRecord) -> None:
    """It has ended: tell everyone who waits."""
    for wake in [*(record.waiters or ())]:
        wake()
    record.waiters = None  # last: after an interrupt all of them are woken again


def native_waiter() -> tuple[Callable[[], None], Any]:
    """What wakes a task of the running event loop, and what it awaits."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: only where it is in use

        event = trio.Event()
        return event.set, event.wait()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done() and not loop.is_closed():
            future.set_result(None)

    return wake, future
