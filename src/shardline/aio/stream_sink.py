"""Passes the events of each stream of a consumer to the sink that was opened for that stream.

A consumer has one thread per sink, however many streams it reads. In that thread, the sink is opened once for each
stream, so that it can tell the streams apart.

Invariants:

- The events of the consumer's first stream reach the sink as they are. Those of other streams arrive as ``OfStream``.
- The callable that a sink opened for a stream is closed when the consumer gives up the stream, or after the last event.
"""

from contextlib import ExitStack
from typing import Any, NamedTuple, final

from shardline.events import EventSource


@final
class OfStream(NamedTuple):
    """An event of another stream than the first, or ``None`` if the stream was given up."""

    source: EventSource
    event: Any


@final
class StreamSink:
    """A sink that serves several streams."""

    def __init__(self, sink: Any) -> None:
        self.__qualname__ = getattr(sink, "__qualname__", type(sink).__qualname__)
        self._sink = sink

    def open(self, source: EventSource) -> "_OpenedSinks":
        return _OpenedSinks(self._sink, source)


@final
class _OpenedSinks:
    """The callables that a sink opened for its streams. Only the thread of the sink calls it."""

    def __init__(self, sink: Any, source: EventSource) -> None:
        self._sink = sink
        self._first = self._open(source)
        self._opened: dict[EventSource, Any] = {source: self._first}

    def _open(self, source: EventSource) -> Any:
        if not hasattr(self._sink, "open"):
            return self._sink
        opened = self._sink.open(source)
        if not callable(opened):
            raise TypeError(f"open() returned a {type(opened).__name__}, which is not callable")
        return opened

    def __call__(self, event: Any) -> None:
        if type(event) is not OfStream:  # nearly always
            self._first(event)
        elif event.event is None:
            self._close(self._opened.pop(event.source, None))
        else:
            if event.source not in self._opened:
                self._opened[event.source] = self._open(event.source)
            self._opened[event.source](event.event)

    def end_batch(self) -> None:
        with ExitStack() as stack:  # an exception of one does not prevent the others
            for opened in self._each():
                if hasattr(opened, "end_batch"):
                    stack.callback(opened.end_batch)

    def close(self) -> None:
        """Close what was opened for each stream."""
        with ExitStack() as stack:
            for opened in self._each():
                stack.callback(self._close, opened)

    def _each(self) -> list[Any]:
        """Return what was opened. A sink without ``open`` serves all streams itself."""
        return [self._first] if self._first is self._sink else [*self._opened.values()]

    def _close(self, opened: Any) -> None:
        if opened is not self._sink and hasattr(opened, "close"):
            opened.close()
