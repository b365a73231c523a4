"""The events of an enhanced fan-out subscription, as an async iterator.

Invariants:

- The first ``anext`` (or ``async with``) opens a subscription. The end of the events, an error, a cancelled ``anext``
  or ``aclose`` closes it. If another task calls ``aclose``, the iteration of the task that waits for an event ends.
- The service ends a subscription after at most 5 minutes. The caller continues with a new one, after the last
  ``continuation_sequence_number``.
- Closing a subscription closes its connection, even under cancellation. A subscription that is dropped without being
  closed releases its connection when it is garbage-collected.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self, final

import anyio

from shardline.codec.shapes import SubscribeToShardEvent
from shardline.core.error_codes import Failure, to_error
from shardline.errors import UsageError
from shardline.ports import ShardEvents

_OPERATION: Final = "SubscribeToShard"


@final
class Subscription:
    """An async iterator of ``SubscribeToShardEvent``. As an async context manager, it closes the subscription at the
    end of the block.
    """

    def __init__(
        self,
        opening: AbstractAsyncContextManager[ShardEvents | Failure],
        on_close: Callable[[Any], None],
    ) -> None:
        self._opening = opening
        self._on_close = on_close
        self._events: ShardEvents | None = None
        self._opened = False
        self._closed = False
        self._scope: anyio.CancelScope | None = None
        """The scope of the task that opens the subscription or waits for an event."""
        self._step_ended: anyio.Event | None = None

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        if not self._opened and not self._closed:
            await self._step(wants_event=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> SubscribeToShardEvent:
        event = None if self._closed else await self._step(wants_event=True)
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """End the subscription. This is harmless if it has already ended."""
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        if self._scope is None or self._step_ended is None:
            await self._close()
        else:  # the reading task closes the connection, which must not be closed during a read
            self._scope.cancel()
            await self._step_ended.wait()

    async def _step(self, *, wants_event: bool) -> SubscribeToShardEvent | None:
        """Open the subscription if necessary, and return the next event if ``wants_event``. Close the subscription when
        it has ended or this call fails.
        """
        if self._scope is not None:
            raise UsageError("only one task at a time may read a Subscription")
        self._scope, self._step_ended = scope, step_ended = anyio.CancelScope(), anyio.Event()
        event: SubscribeToShardEvent | Failure | None = None
        continues = False
        try:
            with scope:
                event = await self._open() if self._events is None else None
                if event is None and wants_event and self._events is not None:
                    event = await self._events.next_event()
                continues = (
                    not self._closed and not isinstance(event, Failure) and (event is not None or not wants_event)
                )
        finally:
            self._scope = None
            try:
                if not continues:
                    await self._close()
            finally:
                step_ended.set()
        if isinstance(event, Failure):
            raise to_error(event, _OPERATION)
        return event

    async def _open(self) -> Failure | None:
        self._opened = True
        events = await self._opening.__aenter__()
        if isinstance(events, Failure):
            return events
        self._events = events
        return None

    async def _close(self) -> None:
        self._closed = True
        self._on_close(self)
        self._events = None
        if self._opened:
            with anyio.CancelScope(shield=True):
                await self._opening.__aexit__(None, None, None)
