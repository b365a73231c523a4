"""Applies the middleware of a consumer to the records that were read, before user code gets them.

Invariants:

- A middleware may change the data, the key and the headers of a record, but not its position, so acknowledgements and
  fences work as they do without middleware.
- An exception in a middleware fails the record, as an exception in its handler does. In an iteration, it is raised by
  the request for the record, and the record is not taken: the next request tries it again.
- A record counts as handled only if the handler has returned, whatever a context manager around it does.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from itertools import groupby
from typing import Any, final

from shardline.aio.consumer.batches import Batch
from shardline.aio.producer.put_chain import check_middleware, checked_result, is_async_middleware
from shardline.core.consumer.handler_checks import is_async_callable
from shardline.errors import UsageError
from shardline.middleware import Around, ConsumerMiddleware
from shardline.model.record import Record


@final
class ReadChain:
    """The middleware of a consumer. It can be pickled, if all middleware can."""

    def __init__(self, middleware: Sequence[ConsumerMiddleware]) -> None:
        self._middleware: list[Any] = [each for each in middleware if not isinstance(each, Around)]
        self._all = middleware
        self.is_async = any(map(is_async_middleware, middleware))

    def check_iteration(self) -> None:
        """Refuse to iterate if there is middleware around handlers.

        Raises:
            UsageError: there is middleware around handlers.
        """
        if len(self._middleware) < len(self._all):
            raise UsageError("the consumer has middleware around handlers, so use run(handler) instead of an iteration")

    def read(self, given: Any) -> Any:
        """Apply the middleware to a record or batch, and return the result, which user code gets."""
        if isinstance(given, Batch):
            return _batch([self._read(record) for record in _records(given)], given)
        return self._read(given)

    async def read_async(self, given: Any) -> Any:
        """Like ``read``, but async middleware is allowed."""
        if isinstance(given, Batch):
            return _batch([await self._read_async(record) for record in _records(given)], given)
        return await self._read_async(given)

    def wrap(self, handler: Callable[[Any], object]) -> Callable[[Any], object]:
        """Return a handler that applies the middleware, and then calls this handler with the result.

        Raises:
            UsageError: a middleware is async, and the handler is not.
        """
        is_async = is_async_callable(handler)
        if self.is_async and not is_async:
            raise UsageError("async middleware needs an async handler: the handler is a plain function")
        # The first middleware is the outermost one.
        for is_around, group in groupby(reversed(self._all), lambda each: isinstance(each, Around)):
            found: list[Any] = list(group)
            if is_around:
                for each in found:
                    handler = AsyncAround(handler, each) if is_async else PlainAround(handler, each)
            else:
                chain = ReadChain(found[::-1])
                handler = AsyncHandler(handler, chain) if is_async else PlainHandler(handler, chain)
        return handler

    def _read(self, record: Record[Any]) -> Record[Any]:
        found = record
        for middleware in self._middleware:
            found = checked_result(middleware, middleware(found), Record)
        return _same_place(record, found)

    async def _read_async(self, record: Record[Any]) -> Record[Any]:
        found = record
        for middleware in self._middleware:
            result = middleware(found)
            found = checked_result(middleware, await result if inspect.isawaitable(result) else result, Record)
        return _same_place(record, found)


def read_chain(middleware: object) -> ReadChain | None:
    """Return the middleware of a consumer, or ``None`` if the list is empty."""
    checked = check_middleware(middleware, is_reading=True)
    return ReadChain(checked) if checked else None


@final
class AsyncHandler:
    """Applies middleware to a record or batch, and calls an async handler with the result."""

    def __init__(self, handler: Callable[[Any], Any], chain: ReadChain) -> None:
        self._handler = handler
        self._chain = chain

    async def __call__(self, given: Any) -> None:
        await self._handler(await self._chain.read_async(given))


@final
class PlainHandler:
    """Applies middleware to a record or batch, and calls a plain handler with the result. If the handler returns an
    awaitable, so does this object.
    """

    def __init__(self, handler: Callable[[Any], object], chain: ReadChain) -> None:
        self._handler = handler
        self._chain = chain

    def __call__(self, given: Any) -> object:
        return self._handler(self._chain.read(given))


@final
class AsyncAround:
    """Calls an async handler inside a context manager, which may be plain or async."""

    def __init__(self, handler: Callable[[Any], Any], around: Around) -> None:
        self._handler = handler
        self._around = around

    async def __call__(self, given: Any) -> None:
        manager: Any = self._around.enter(given)
        is_handled = False
        async with AsyncExitStack() as stack:
            if hasattr(manager, "__aenter__"):
                await stack.enter_async_context(manager)
            else:
                stack.enter_context(_checked_manager(manager))
            await self._handler(given)
            is_handled = True
        _check_handled(is_handled=is_handled)


@final
class PlainAround:
    """Calls a plain handler inside a context manager."""

    def __init__(self, handler: Callable[[Any], object], around: Around) -> None:
        self._handler = handler
        self._around = around

    def __call__(self, given: Any) -> None:
        is_handled = False
        with ExitStack() as stack:
            stack.enter_context(_checked_manager(self._around.enter(given)))
            result = self._handler(given)
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise UsageError("the handler returned an awaitable: make it a coroutine function (async def)")
            is_handled = True
        _check_handled(is_handled=is_handled)


def _checked_manager(manager: Any) -> Any:
    if hasattr(manager, "__enter__"):
        return manager
    needed = "an async handler" if hasattr(manager, "__aenter__") else "a function that returns a context manager"
    raise UsageError(f"around needs {needed}: it got a {type(manager).__name__}")


def _check_handled(*, is_handled: bool) -> None:
    if not is_handled:
        raise RuntimeError("a middleware around the handler suppressed its exception: let middleware raise it again")


def _records(given: Any) -> list[Record[Any]]:
    found: list[Record[Any]] = given.records
    return found


def _batch(records: list[Record[Any]], given: Any) -> Batch[Any]:
    return Batch(records, lambda _: given.ack())


def _same_place(given: Record[Any], found: Record[Any]) -> Record[Any]:
    is_same = (
        found.sequence_number == given.sequence_number
        and found.sub_sequence == given.sub_sequence
        and found.shard_id == given.shard_id
        and found.stream == given.stream
        and found.origin is given.origin
    )
    if not is_same:
        raise UsageError("a middleware must return the record it got, or a copy by shardline.middleware.replace")
    if found.headers is not given.headers:
        found.origin.may_have_headers = True  # the deaggregator cannot know of headers that a middleware adds
    return found
