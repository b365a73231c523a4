"""Wakes the subscriptions that have something to push.

A subscription waits here until its next push is due, or until the model touches the log that it reads: records came,
the shard closed, its stream or consumer is gone, another subscription took its place. Nothing is polled.

Invariants:

- A subscription that waits is woken when its ``due_at`` has come, when its log was touched, and when the clock was
  moved or a fault was added. Waking it too often is harmless.
- An idle subscription costs one timer; without subscriptions a request costs the test of an empty set.
- Changes that the model carries out later (a reshard, a deletion) are carried out when they are due, also if no
  request comes, while a subscription waits for them.
"""

import asyncio
from typing import TYPE_CHECKING, Final, final

from shardline.server.model.consumers import ServerSubscription
from shardline.server.model.state import ServiceState
from shardline.server.server_clock import ServerClock

if TYPE_CHECKING:
    from shardline.server.model.shard_log import ShardLog

_SHORTEST: Final = 0.001  # timers may fire a little early: without a pause they would be set again and again
_EXACT_WITHIN: Final = 1.0
_TOGETHER: Final = 0.1


@final
class Wakeups:
    """The subscriptions of one server that wait. For the thread that serves."""

    def __init__(self, state: ServiceState, clock: ServerClock) -> None:
        self._state = state
        self._clock = clock
        self._waiting: dict[ShardLog, dict[ServerSubscription, asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    async def wait(self, subscription: ServerSubscription) -> None:
        """Return when there may be something to push."""
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

    def look(self) -> None:
        """Wake the subscriptions whose logs were touched. To be called after anything that may change the model."""
        touched = self._state.touched
        if touched:
            for log in touched:
                for waiter in self._waiting.get(log, {}).values():
                    _wake(waiter)
            touched.clear()
        if self._waiting:
            self._set_timer()

    def wake_all(self) -> None:
        """The clock was moved, or a fault was added."""
        self._drop_timer()
        for readers in self._waiting.values():
            for waiter in readers.values():
                _wake(waiter)
        self._carry_out_what_is_due()

    def wake(self, subscription: ServerSubscription) -> None:
        """Its client has gone, say."""
        waiter = self._waiting.get(subscription.log, {}).get(subscription)
        if waiter is not None:
            _wake(waiter)

    def _carry_out_what_is_due(self) -> None:
        self._timer = self._timer_at = None
        if self._waiting:
            self._state.advance(self._clock.now())
            self.look()

    def _set_timer(self) -> None:
        """Come back when the model has something to carry out."""
        due_at = self._state.due_at
        if due_at == self._timer_at:
            return
        self._drop_timer()
        self._timer_at = due_at
        if due_at < float("inf") and not self._clock.is_frozen:  # a frozen clock that moves or runs on wakes all
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._loop_time(loop, due_at), self._carry_out_what_is_due)

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_at = None

    def _loop_time(self, loop: asyncio.AbstractEventLoop, due_at: float) -> float:
        """When it is ``due_at`` on the server's clock, by the loop's clock.

        What is due in some seconds may come a little later, together with the rest of its tenth of a second: a thousand
        heartbeats then wake the loop a few times a second, at a third of the cost.
        """
        delay = due_at - self._clock.now()
        at = loop.time() + max(_SHORTEST, delay)
        return at if delay < _EXACT_WITHIN else (at // _TOGETHER + 1) * _TOGETHER


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
