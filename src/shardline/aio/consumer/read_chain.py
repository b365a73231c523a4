"""Applies the middleware of a consumer to the records that were read, before user code gets them.

Invariants:

- A middleware may change the data, the key and the headers of a record, but not its position, so acknowledgements and
  fences work as without middleware.
- An exception of a middleware fails the record, as an exception of its handler does. In an iteration, it is raised by
  the request for the record, and the record is not taken: the next request tries it again.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, final

from shardline.aio.consumer.batches import Batch
from shardline.aio.producer.put_chain import check_middleware, checked_result
from shardline.core.consumer.handler_checks import is_async_callable
from shardline.errors import UsageError
from shardline.middleware import ConsumerMiddleware
from shardline.model.record import Record


@final
class ReadChain:
    """The middleware of a consumer. It can be pickled, if all middleware can."""

    def __init__(self, middleware: Sequence[ConsumerMiddleware]) -> None:
        self._middleware = middleware
        self.is_async = any(map(is_async_callable, middleware))

    def read(self, given: Any) -> Any:
        """Return the record or batch for user code."""
        if isinstance(given, Batch):
            return _batch([self._read(record) for record in _records(given)], given)
        return self._read(given)

    async def read_async(self, given: Any) -> Any:
        """Like ``read``, but async middleware is allowed."""
        if isinstance(given, Batch):
            return _batch([await self._read_async(record) for record in _records(given)], given)
        return await self._read_async(given)

    def wrap(self, handler: Callable[[Any], object]) -> "AsyncHandler | PlainHandler":
        """Return a handler that calls this one with the result of the middleware.

        Raises:
            UsageError: a middleware is async, and the handler is not.
        """
        if is_async_callable(handler):
            return AsyncHandler(handler, self)
        if self.is_async:
            raise UsageError("async middleware needs an async handler: the handler is a plain function")
        return PlainHandler(handler, self)

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
    checked = check_middleware(middleware)
    return ReadChain(checked) if checked else None


@final
class AsyncHandler:
    """An async handler behind middleware."""

    def __init__(self, handler: Callable[[Any], Any], chain: ReadChain) -> None:
        self._handler = handler
        self._chain = chain

    async def __call__(self, given: Any) -> None:
        await self._handler(await self._chain.read_async(given))


@final
class PlainHandler:
    """A plain handler behind middleware. If the handler returns an awaitable, so does this object."""

    def __init__(self, handler: Callable[[Any], object], chain: ReadChain) -> None:
        self._handler = handler
        self._chain = chain

    def __call__(self, given: Any) -> object:
        return self._handler(self._chain.read(given))


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
