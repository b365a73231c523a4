"""Serializes a record that is put, and applies the middleware of the producer to it.

Invariants:

- The middleware runs after the serializer and before all checks of sizes, so the limits apply to its result.
- If a middleware raises an exception, the put raises it, too, and the record is not accepted.
"""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, final

from shardline.aio.producer.validation import Serializer, serialized
from shardline.codec.value_packing import Packing
from shardline.core.consumer.handler_checks import is_async_callable
from shardline.core.producer.intake import Intake
from shardline.errors import UsageError
from shardline.middleware import Around, ProducerMiddleware, RecordToPut
from shardline.model.headers import check_headers
from shardline.model.record import check_data


@final
class PutChain:
    """The serializer and the middleware of a producer."""

    def __init__(
        self,
        serializer: Serializer | None,
        middleware: Sequence[ProducerMiddleware],
        packing: Packing | None,
        intake: Intake,
    ) -> None:
        self._serializer = serializer
        self._middleware = middleware
        self._check = None if packing is None else packing.check
        self._needs_headers = any(getattr(each, "needs_headers", False) for each in middleware)
        self._intake = intake
        self.is_async = any(map(is_async_callable, middleware))

    def prepare(self, data: Any, key: Any, explicit_hash_key: Any, headers: Any) -> tuple[bytes, Any, Any, Any]:
        """Return the data, key, explicit hash key and headers of the record to put.

        Raises:
            UsageError: the record is invalid, or a middleware is async.
        """
        record = self._begin(data, key, explicit_hash_key, headers)
        for middleware in self._middleware:
            record = checked_result(middleware, middleware(record), RecordToPut)
        return self._end(record)

    async def prepare_async(
        self, data: Any, key: Any, explicit_hash_key: Any, headers: Any
    ) -> tuple[bytes, Any, Any, Any]:
        """Like ``prepare``, but async middleware is allowed."""
        record = self._begin(data, key, explicit_hash_key, headers)
        for middleware in self._middleware:
            result = middleware(record)
            record = checked_result(middleware, await result if inspect.isawaitable(result) else result, RecordToPut)
        return self._end(record)

    def _begin(self, data: Any, key: Any, explicit_hash_key: Any, headers: Any) -> RecordToPut:
        if self._needs_headers and self._intake.headers_refusal is not None:
            raise UsageError(f"this producer cannot send headers: {self._intake.headers_refusal}")
        payload = check_data(data) if self._serializer is None else serialized(self._serializer, data)
        return RecordToPut(payload, key, explicit_hash_key, check_headers(headers))

    def _end(self, record: RecordToPut) -> tuple[bytes, Any, Any, Any]:
        data = check_data(record.data)
        if self._check is not None:
            self._check(data)
        return data, record.key, record.explicit_hash_key, record.headers or None


def check_middleware(middleware: object, *, is_blocking: bool = False, is_reading: bool = False) -> tuple[Any, ...]:
    """Return the middleware of a producer, or of a consumer (``is_reading``).

    Raises:
        UsageError: the argument is not a list of callables, or a middleware is async although the API is blocking.
    """
    if isinstance(middleware, (str, bytes)) or not isinstance(middleware, Iterable):
        raise UsageError(f"middleware must be a list of callables, not {type(middleware).__name__}")
    found: tuple[Any, ...] = tuple(middleware)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for each in found:
        if isinstance(each, Around) and not is_reading:
            raise UsageError("around is a middleware for consumers: a producer has no handler")
        if not isinstance(each, Around) and not callable(each):
            raise UsageError(f"middleware must be a list of callables, and {type(each).__name__} is not callable")
        if is_blocking and is_async_middleware(each):
            raise UsageError(
                f"the blocking API takes no async middleware, such as {_name_of(each)}: use a plain function"
            )
    return found


def is_async_middleware(middleware: object) -> bool:
    """Return whether this middleware needs the async API."""
    return middleware.is_async if isinstance(middleware, Around) else is_async_callable(middleware)


def checked_result(middleware: object, result: Any, kind: type[Any]) -> Any:
    """Return the result of a middleware.

    Raises:
        UsageError: the result is not a record.
    """
    if isinstance(result, kind):
        return result
    name = _name_of(middleware)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError(
            f"the middleware {name} is async, which needs the async API, and neither put_nowait nor a plain handler"
        )
    raise UsageError(f"the middleware {name} must return a {kind.__name__}, not {type(result).__name__}")


def _name_of(middleware: object) -> str:
    middleware = middleware.enter if isinstance(middleware, Around) else middleware
    return getattr(middleware, "__qualname__", type(middleware).__name__)
