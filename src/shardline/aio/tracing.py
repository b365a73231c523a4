"""Calls the tracings of a producer's or consumer's sinks, and logs the exceptions that they raise.

Invariants:

- No record is lost if a tracing raises: the record is put without the tracing's headers, or handled without its
  context. The exception is logged, at most once a minute.
- Code around a handler runs in the handler's task or thread. If a plain function returns an awaitable, the awaitable is
  awaited in a different thread from the one that called the function. The context variables that the tracing set are
  also set in that thread.
- An exception in the user's code, or a cancellation, passes through unchanged.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final

from shardline.events import EventSource, Tracing
from shardline.model.record import Record

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Report: TypeAlias = Callable[[str, BaseException], None]
_WHAT: Final = "the tracing"


def find_tracings(sinks: Iterable[Any], source: EventSource, report: Report) -> "Tracings | None":
    """Return the tracings that the sinks have for this producer or consumer, or ``None`` if there are no tracings."""
    found: list[Tracing] = []
    for sink in sinks:
        make = getattr(sink, "tracing", None)
        if make is not None:
            try:
                tracing = make(source)
            except Exception as error:  # noqa: BLE001 - of a sink
                report(_WHAT, error)
            else:
                found += [] if tracing is None else [tracing]
    return Tracings(found, report) if found else None


@final
class Tracings:
    """The tracings of one producer or consumer.

    Args:
        tracings: the tracings; there must be at least one.
        report: logs which call failed, and the exception.
    """

    def __init__(self, tracings: Sequence[Tracing], report: Report) -> None:
        self._tracings = tracings
        self._report = report
        variable = getattr(tracings[0], "put_context", None) if len(tracings) == 1 else None
        self.put_context: ContextVar[Any] | None = variable
        """The variable that ``put_headers`` depends on: once ``put_headers`` has returned ``None``, it returns ``None``
        as long as this variable keeps its value.
        """

    def put_headers(self) -> Mapping[str, str] | None:
        """Return the headers for a put. If several tracings set the same header, the first one wins."""
        headers: Mapping[str, str] | None = None
        for tracing in self._tracings:
            try:
                more = tracing.put_headers()
            except Exception as error:  # noqa: BLE001 - of a tracing
                self._report(_WHAT, error)
                continue
            if more and headers is None:
                headers = more
            elif more and headers is not None:
                merged: dict[str, str] = {**more, **headers}
                headers = merged
        return headers

    def flush(self, timeout: float) -> None:
        """Have each tracing finish the work of its threads, within ``timeout`` seconds."""
        for tracing in self._tracings:
            flush = getattr(tracing, "flush", None)
            if flush is not None:
                try:
                    flush(timeout)
                except Exception as error:  # noqa: BLE001 - of a tracing
                    self._report(_WHAT, error)

    def report(self, error: Exception) -> None:
        """Log that a tracing failed, or returned invalid headers."""
        self._report(_WHAT, error)

    def wrap(self, handler: Callable[[Any], object], *, is_async: bool) -> Callable[[Any], Any]:
        """Return a handler that takes the same argument as this handler, and calls it inside the tracings."""
        return _TracedAsync(self, handler) if is_async else _TracedPlain(self, handler)

    def handling(self, argument: Any) -> "Handling":
        given: Any = (argument,) if isinstance(argument, Record) else argument
        return Handling(self._tracings, cast("Sequence[Record[Any]]", given), self._report)


@final
class Handling:
    """Enters the context managers of all tracings around one call of a handler. Exceptions of the tracings are only
    logged.
    """

    __slots__ = ("_entered", "_records", "_report", "_tracings")

    def __init__(self, tracings: Sequence[Tracing], records: Sequence[Record[Any]], report: Report) -> None:
        self._tracings = tracings
        self._records = records
        self._report = report
        self._entered: list[AbstractContextManager[object]] = []

    def __enter__(self) -> None:
        for tracing in self._tracings:
            try:
                manager = tracing.handling(self._records)
                if manager is not None:
                    manager.__enter__()
                    self._entered.append(manager)
            except Exception as error:  # noqa: BLE001 - of a tracing
                self._report(_WHAT, error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._entered:
            manager = self._entered.pop()
            try:
                manager.__exit__(kind, error, trace)
            except Exception as failure:  # noqa: BLE001 - of a tracing
                if failure is not error:
                    self._report(_WHAT, failure)


@final
class _TracedAsync:
    """An async handler that is called inside the context managers of the tracings."""

    def __init__(self, tracings: Tracings, handler: Callable[[Any], Any]) -> None:
        self._tracings = tracings
        self._handler = handler

    async def __call__(self, argument: Any) -> None:
        with self._tracings.handling(argument):
            await self._handler(argument)


@final
class _TracedPlain:
    """A plain handler that is called inside the context managers of the tracings.

    If the handler returns an awaitable, so does this object.
    """

    def __init__(self, tracings: Tracings, handler: Callable[[Any], Any]) -> None:
        self._tracings = tracings
        self._handler = handler

    def __call__(self, argument: Any) -> object:
        handling = self._tracings.handling(argument)
        # The call needs its own context: the tracings can only be left in the context in which they were entered, and
        # they may be left in another thread.
        outside = copy_context()
        inside = outside.copy()
        inside.run(handling.__enter__)
        try:
            result = inside.run(self._handler, argument)
        except BaseException:
            inside.run(handling.__exit__, *sys.exc_info())
            raise
        if inspect.isawaitable(result):
            return _finish(result, handling, outside, inside)
        inside.run(handling.__exit__, None, None, None)
        return None


async def _finish(result: Awaitable[object], handling: Handling, outside: Context, inside: Context) -> None:
    """Await the result of a handler with the context variables that the tracings have set."""
    changed = [
        (variable, variable.set(value))
        for variable, value in inside.items()
        if variable not in outside or outside[variable] is not value
    ]
    try:
        await result
    except BaseException:
        inside.run(handling.__exit__, *sys.exc_info())
        raise
    else:
        inside.run(handling.__exit__, None, None, None)
    finally:
        for variable, token in reversed(changed):
            variable.reset(cast("Any", token))
