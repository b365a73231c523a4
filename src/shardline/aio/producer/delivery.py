"""The delivery: the result of ``put``, which resolves to a receipt or to an error.

Invariants:

- P1: a delivery resolves exactly once, and wakes every waiter, however many there are.
- P11: a delivery is the record itself, not a second object. Each wait creates its own waiter, native to the event loop,
  because a caller that cancels a shared waiter would cancel it for all callers.
- A cancelled waiter is removed, and affects no other waiter. A caller may drop a delivery without waiting for it.
- Exceptions in a callback are logged, and have no other effect. If the delivery has already resolved, the callback is
  called immediately, in the caller's own code: an exit or an interrupt that the callback raises is then not suppressed.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, final

from shardline._speedups import twin_method
from shardline.adapters.event_loop import is_trio
from shardline.aio.loop.callbacks import MAY_FAIL, Contained
from shardline.codec.aggregation import decode_tags
from shardline.core.producer.producer_record import BufferedRecord, Landing, Receipt, Undelivered
from shardline.errors import DeliveryFailed
from shardline.model.headers import NO_HEADERS

_log: Final = logging.getLogger("shardline.producer")


@final
class DeliveryHook:
    """Calls the ``on_delivery`` callback of a put once. The record treats the hook as one of its waiters.

    The hook does not refer to the record: if the record is not accepted, the garbage collector would not find the
    cycle.
    """

    __slots__ = ("_call", "_pending")

    def __init__(
        self, call: Callable[[str, Callable[[Any], object], Any], None], callback: Callable[[Any], object]
    ) -> None:
        self._call = call
        self._pending = [callback]

    def notify(self, record: BufferedRecord) -> None:
        """Call the callback, unless it has already been called."""
        if self._pending:
            self._call("on_delivery", self._pending.pop(), record)


class SettledRecord(BufferedRecord):
    """The methods that the async and the blocking delivery share."""

    @property
    def done(self) -> bool:
        """Whether the delivery has resolved, to a receipt or to an error."""
        return self.ending is not None

    @property
    def delivered(self) -> bool:
        """Whether the record is in the stream, with a receipt."""
        return self.ending is not None and type(self.ending) is not Undelivered

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the record, as readers get them. The mapping is empty if the record has no headers."""
        return decode_tags(self.tags) if self.tags else NO_HEADERS

    def receipt(self) -> Receipt:
        """Return the receipt of a delivery that has resolved.

        Raises:
            DeliveryFailed: the record was not delivered.
        """
        outcome = self.conclusion
        assert outcome is not None
        if isinstance(outcome, Receipt):
            return outcome
        raise DeliveryFailed(self, outcome)

    def when_done(self, call: Callable[[], object]) -> None:
        """Call ``call`` once, when the delivery has resolved, or immediately if it already has."""
        pending = [call]  # the caller pops the call first: list.pop is atomic, so it is called only once

        def once() -> None:
            try:
                taken = pending.pop()
            except IndexError:
                return
            try:
                taken()
            except MAY_FAIL as error:  # includes CancelledError: a callback may read the result of a cancelled future
                _log_failure(error)

        def once_contained() -> None:
            with Contained(_log_failure):
                once()

        self.add_waiter(once_contained)
        if self.ending is not None:  # checked after adding the waiter: another thread may resolve the delivery
            once()

    def add_waiter(self, wake: Callable[[], None]) -> None:
        record: BufferedRecord = self  # BufferedRecord declares the type of the waiters
        if record.waiters is None:
            record.waiters = []
        record.waiters.append(wake)

    def remove_waiter(self, wake: Callable[[], None]) -> None:
        if self.waiters is not None and wake in self.waiters:
            self.waiters.remove(wake)

    def __repr__(self) -> str:
        """Return a text without data, because data must not get into logs."""
        state = "pending" if self.ending is None else "delivered" if self.delivered else "undelivered"
        return f"<{type(self).__name__} key={self.key!r} {state}>"


@final
class Delivery(SettledRecord):
    """A record that was put. ``await`` it to get the receipt, or drop it if you do not need the receipt."""

    @twin_method("await_delivery")
    def __await__(self) -> Generator[Any, None, Receipt]:
        """Wait for the delivery and return the receipt.

        Raises:
            DeliveryFailed: the record was not delivered. The exception carries the record and every attempt.
        """
        if self.ending is None:
            yield from self._wait().__await__()
        landing = self.ending
        if type(landing) is Landing and self.history is None:  # the common case, with as few calls as possible
            place = self.place
            if isinstance(place, int):
                return Receipt(landing.shard_id, landing.sequence_number, place, landing.sent)
            return Receipt(landing.shard_id, place, 0, landing.sent)
        return self.receipt()

    async def outcome(self) -> Receipt | Undelivered:
        """Like ``await``, but return an ``Undelivered`` instead of raising ``DeliveryFailed``."""
        if self.ending is None:
            await self._wait()
        conclusion = self.conclusion
        assert conclusion is not None
        return conclusion

    def add_done_callback(self, callback: "Callable[[Delivery], object]") -> None:
        """Call ``callback(delivery)`` when the delivery has resolved, or immediately if it already has."""
        self.when_done(lambda: callback(self))

    async def _wait(self) -> None:
        """Wait until the delivery has resolved, with its own waiter (P11)."""
        wake, waiting = native_waiter()
        self.add_waiter(wake)
        try:
            await waiting
        finally:
            self.remove_waiter(wake)


def _log_failure(error: BaseException) -> None:
    _log.error("a delivery's callback failed", exc_info=error)


def wake_waiters(record: BufferedRecord) -> None:
    """Wake all waiters of a record that has resolved."""
    for wake in [*(record.waiters or ())]:
        if type(wake) is DeliveryHook:
            wake.notify(record)
        else:
            wake()
    record.waiters = None  # set last: if this is interrupted, all waiters are woken again


def native_waiter() -> tuple[Callable[[], None], Any]:
    """Return a function that wakes one task of the running event loop, and an awaitable that waits for that call."""
    if is_trio():
        import trio  # noqa: PLC0415 - an extra: imported only where it is used

        event = trio.Event()
        return event.set, event.wait()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done() and not loop.is_closed():
            future.set_result(None)

    return wake, future
