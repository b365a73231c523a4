"""How are the events of an enhanced fan-out subscription handed to the caller?

Invariants:

- A subscription is opened by the first ``anext`` (or ``async with``) and closed by its end, an error, a cancelled
  ``anext`` or ``aclose``, which may come from another task: the one that waits for an event then sees the end.
- It ends when the service ends it (after at most 5 minutes): continue with a new one after the last
  ``continuation_sequence_number``.
- When it is closed its connection is, also under cancellation. One that is dropped unclosed gives its connection
  back when it is collected.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self, final

import anyio

from shardline.codec.shapes import SubscribeToShardEvent
from shardline.core.failures import Failure, to_error
from shardline.errors import UsageError
from shardline.ports import ShardEvents

_OPERATION: Final = "SubscribeToShard"


@final
class Subscription:
    """An async iterator of ``SubscribeToShardEvent``; as ``async with`` it closes at once when the block is left."""

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
        self._inside: anyio.CancelScope | None = None
        """Around the task that opens or waits for an event."""
        self._left: anyio.Event | None = None

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        if not self._opened and not self._closed:
            await self._step(wanted=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> SubscribeToShardEvent:
        event = None if self._closed else await self._step(wanted=True)
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """End the subscription. Harmless when it has ended."""
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        if self._inside is None or self._left is None:
            await self._shut()
        else:  # the task inside leaves and closes: a connection is not closed under its reader
            self._inside.cancel()
            await self._left.wait()

    async def _step(self, *, wanted: bool) -> SubscribeToShardEvent | None:
        """Open if need be, then get the next event if one is ``wanted``. Whatever else comes of it closes."""
        if self._inside is not None:
            raise UsageError("a Subscription is read by one task at a time")
        self._inside, self._left = scope, left = anyio.CancelScope(), anyio.Event()
        event: SubscribeToShardEvent | Failure | None = None
        goes_on = False
        try:
            with scope:
                event = await self._open() if self._events is None else None
                if event is None and wanted and self._events is not None:
                    event = await self._events.next_event()
                goes_on = not self._closed and not isinstance(event, Failure) and (event is not None or not wanted)
        finally:
            self._inside = None
            try:
                if not goes_on:
                    await self._shut()
            finally:
                left.set()
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

    async def _shut(self) -> None:
        self._closed = True
        self._on_close(self)
        self._events = None
        if self._opened:
            with anyio.CancelScope(shield=True):
                await self._opening.__aexit__(None, None, None)
