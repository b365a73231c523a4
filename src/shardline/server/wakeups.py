"""Wakes the subscriptions that have something to push.

A subscription waits here until its next push is due, or until the model touches the log that it reads: records arrived,
the shard was closed, the stream or the consumer was deleted, or another subscription replaced this one. Nothing is
polled.

Invariants:

- A waiting subscription is woken at its ``due_at``, when its log is touched, when the clock is moved, and when a fault
  is added. Waking it too often is harmless.
- An idle subscription costs one timer. While no subscription waits, a request costs one check of an empty set.
- While a subscription waits, delayed changes of the model (a reshard, a deletion) are carried out when they are due,
  even if no request arrives.
"""

import asyncio
from typing import TYPE_CHECKING, Final, final

from shardline.server.model.consumers import ServerSubscription
from shardline.server.model.state import ServiceState
from shardline.server.server_clock import ServerClock

if TYPE_CHECKING:
    from shardline.server.model.shard_log import ShardLog

_DELAY_MIN: Final = 0.001  # timers may fire a little early: without a minimum, a timer would be set again and again
_EXACT_WITHIN: Final = 1.0
_GROUP_BY: Final = 0.1


@final
class Wakeups:
    """The waiting subscriptions of one server. Only the server's thread may use it."""

    def __init__(self, state: ServiceState, clock: ServerClock) -> None:
        self._state = state
        self._clock = clock
        self._waiting: dict[ShardLog, dict[ServerSubscription, asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    async def wait(self, subscription: ServerSubscription) -> None:
        """Wait until the subscription may have something to push."""
        if subscription.ended:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        readers = self._waiting.setdefault(subscription.log, {})
        readers[subscription] = waiter
        timer = (
            None if self._clock.is_frozen else loop.call_at(self._loop_time(loop, subscription.due_at), _wake, waiter)
        )
        self._set_timer()
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            del readers[subscription]
            if not readers:
                self._waiting.pop(subscription.log, None)
            if not self._waiting:
                self._drop_timer()

    def wake_touched(self) -> None:
        """Wake the subscriptions whose logs were touched. Call this after anything that may change the model."""
        touched = self._state.touched
        if touched:
            for log in touched:
                for waiter in self._waiting.get(log, {}).values():
                    _wake(waiter)
            touched.clear()
        if self._waiting:
            self._set_timer()

    def wake_all(self) -> None:
        """Wake all subscriptions, because the clock was moved or a fault was added."""
        self._drop_timer()
        for readers in self._waiting.values():
            for waiter in readers.values():
                _wake(waiter)
        self._advance_model()

    def wake(self, subscription: ServerSubscription) -> None:
        """Wake one subscription, for instance because its client has disconnected."""
        waiter = self._waiting.get(subscription.log, {}).get(subscription)
        if waiter is not None:
            _wake(waiter)

    def _advance_model(self) -> None:
        """Let the model carry out the changes that are due, if a subscription waits for them."""
        self._timer = self._timer_at = None
        if self._waiting:
            self._state.advance(self._clock.now())
            self.wake_touched()

    def _set_timer(self) -> None:
        """Set the timer to the time of the model's next change."""
        due_at = self._state.due_at
        if due_at == self._timer_at:
            return
        self._drop_timer()
        self._timer_at = due_at
        # A frozen clock needs no timer: moving or resuming it wakes all subscriptions.
        if due_at < float("inf") and not self._clock.is_frozen:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._loop_time(loop, due_at), self._advance_model)

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_at = None

    def _loop_time(self, loop: asyncio.AbstractEventLoop, due_at: float) -> float:
        """Convert ``due_at`` from the server's clock to the loop's clock.

        A time that is at least a second away is rounded up to the next tenth of a second, so that many timers fire
        together: a thousand heartbeats then wake the loop a few times a second, at a third of the cost.
        """
        delay = due_at - self._clock.now()
        at = loop.time() + max(_DELAY_MIN, delay)
        return at if delay < _EXACT_WITHIN else (at // _GROUP_BY + 1) * _GROUP_BY


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
