"""Calls the user's lifecycle callbacks: ``on_assigned``, ``on_revoked`` and ``on_shard_end``.

A coroutine function is awaited in the consumer's event loop. Any other callable is called in a thread.
``core/consumer/lifecycle`` decides when each of them is called.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias, cast, final

import anyio
import anyio.to_thread

from shardline.aio.producer.validation import check_callable
from shardline.core.consumer.handler_checks import is_async_callable
from shardline.core.consumer.lifecycle import AssignedShard, CallbackKind, RevokedShard

OnAssigned: TypeAlias = Callable[[AssignedShard], object]
OnRevoked: TypeAlias = Callable[[RevokedShard], object]

_MAX_THREADS: Final = 64


class _Called(NamedTuple):
    """The result of a call in a thread. The result is wrapped, because trio refuses a coroutine as the result of a
    thread.
    """

    result: object


@final
class LifecycleCallbacks:
    """The callbacks of one consumer.

    Args:
        on_assigned: the user's callback, or ``None``.
        on_revoked: the user's callback, or ``None``.
        on_shard_end: the user's callback, or ``None``.
        enter: called in the task of each callback before the callback.
    """

    def __init__(
        self,
        on_assigned: OnAssigned | None,
        on_revoked: OnRevoked | None,
        on_shard_end: OnAssigned | None,
        enter: Callable[[], object],
    ) -> None:
        passed: dict[CallbackKind, Callable[[Any], object] | None] = {
            CallbackKind.ASSIGNED: check_callable("on_assigned", on_assigned),
            CallbackKind.REVOKED: check_callable("on_revoked", on_revoked),
            CallbackKind.SHARD_END: check_callable("on_shard_end", on_shard_end),
        }
        self._callbacks = {kind: callback for kind, callback in passed.items() if callback is not None}
        self._enter = enter
        self._threads: anyio.CapacityLimiter | None = None  # created by the host: __init__ may run in another thread

    @property
    def kinds(self) -> list[CallbackKind]:
        """The kinds of callbacks that the user passed."""
        return [*self._callbacks]

    def can_cancel(self, kind: CallbackKind) -> bool:
        """Return whether a call can be cancelled. A call in a thread cannot be cancelled."""
        return is_async_callable(self._callbacks[kind])

    async def call(self, kind: CallbackKind, argument: AssignedShard | RevokedShard) -> None:
        """Call the callback, and await its result if the result is awaitable."""
        self._enter()
        callback = self._callbacks[kind]
        if is_async_callable(callback):
            result = callback(argument)
        else:
            self._threads = self._threads or anyio.CapacityLimiter(_MAX_THREADS)
            called = await anyio.to_thread.run_sync(
                lambda: _Called(callback(argument)), abandon_on_cancel=True, limiter=self._threads
            )
            result = called.result
        if inspect.isawaitable(result):
            await cast("Awaitable[object]", result)
