"""Creates OpenTelemetry spans, and carries their context in the headers of records.

Invariants:

- Headers are added only under a recording span, and the context of each span is encoded once.
- The span of a handler links to each distinct context that its records carry. If all of them carry the same context,
  this context is also the parent: the handler then works in the trace of the producer.
- A span contains no data and no keys, and not the text of an exception, which may quote data or keys.
- Spans of handlers start and end in a separate thread, because ``start_span`` calls the tracer provider, and ``end``
  may call an exporter: a provider or an exporter that hangs or raises then delays no handler and no event loop. If too
  many spans wait, further ones are dropped, and this is logged.
- If the handler itself uses its span, for example as the parent of another span, the span starts at that moment, in
  the thread of the handler.
- After a start that took longer than ``SLOW_START`` seconds, no spans of handlers are started for ``SUSPENSION``
  seconds. While a start has not returned for that long, no further spans of handlers are created.
"""

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, final

from opentelemetry import baggage, propagate
from opentelemetry.context import Context, attach, get_current
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)

from shardline.adapters.sinks.otel_metric_table import (
    CLIENT,
    ERROR,
    OPERATION,
    OPERATION_TYPE,
    PARTITION,
    describe,
)
from shardline.events import EventSource, PageRead, RequestAnswered
from shardline.model.record import Record

LINKS_MAX: Final = 128
"""How many contexts a span links to at most. This is the default limit of the OpenTelemetry SDK."""
SLOW_START: Final = 0.25
SUSPENSION: Final = 60.0
_QUEUE_MAX: Final = 10_000  # spans
_INTERVAL: Final = 0.05  # seconds in which the thread collects spans before it ends them
_EXIT_TIMEOUT: Final = 1.0
_LOG_PERIOD: Final = 60.0
_REMEMBERED_MAX: Final = 1_000  # contexts that are kept, encoded or decoded
_BATCH_SIZE: Final = "messaging.batch.message_count"
_MESSAGE_ID: Final = "messaging.message.id"
_BODY_SIZE: Final = "messaging.message.body.size"
_STREAM: Final = "aws.kinesis.stream_name"
_ENTRIES: Final = "shardline.entries"
_REFUSED: Final = "shardline.refused_entries"
_NANOSECONDS: Final = 1_000_000_000
_NO_PARENT: Final = Context()
_log: Final = logging.getLogger("shardline.otel")


@final
class SpanEnder:
    """Ends spans in a thread, which is started when it is needed. After a fork, the child starts its own thread."""

    def __init__(self) -> None:
        self._logged_at = -_LOG_PERIOD
        self._pid = 0
        self._starts_at = 0.0  # written by the thread: when it began to start a span, or 0 if it is not starting one

    def end(self, span: "HandlerSpan", ended_at: int, error_type: str | None) -> None:
        """Have the thread end the span, with this time in nanoseconds since 1970. This call does not wait."""
        if self._pid != os.getpid():
            self._begin()
        if len(self._waiting) >= _QUEUE_MAX:
            self.log("the exporter of spans is too slow: spans are dropped")
            return
        self._waiting.append((span, ended_at, error_type))
        if not self._has_spans.is_set():
            self._has_spans.set()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the spans so far have ended. Return whether they ended in time."""
        if self._pid != os.getpid():
            return True
        has_ended = threading.Event()
        self._waiting.append(has_ended)
        self._is_flushing.set()
        self._has_spans.set()
        return has_ended.wait(timeout)

    def has_hung(self, now: float) -> bool:
        """Return whether the thread has been starting the same span for longer than ``SLOW_START`` seconds."""
        starts_at = self._starts_at
        if not starts_at or now - starts_at <= SLOW_START or self._pid != os.getpid():
            return False
        self.log("the tracer provider hangs at the start of a span: handlers get no spans until it returns")
        return True

    def _begin(self) -> None:
        self._waiting: deque[tuple[HandlerSpan, int, str | None] | threading.Event] = deque()
        self._starts_at = 0.0
        self._has_spans, self._is_flushing = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="shardline spans", daemon=True).start()
        if not self._pid:
            atexit.register(self.flush, _EXIT_TIMEOUT)  # runs before the providers, which registered earlier, shut down
        self._pid = os.getpid()

    def _run(self) -> None:
        waiting, has_spans, is_flushing = self._waiting, self._has_spans, self._is_flushing
        while True:
            has_spans.wait()
            is_flushing.wait(_INTERVAL)
            is_flushing.clear()
            has_spans.clear()  # before the spans are taken, so that a wake-up is not lost
            while waiting:
                ended = waiting.popleft()
                if isinstance(ended, threading.Event):
                    ended.set()
                    continue
                span, ended_at, error_type = ended
                self._starts_at = time.monotonic()
                started = span.started()
                self._starts_at = 0.0
                try:
                    if started.is_recording():
                        if error_type is not None:
                            started.set_attribute(ERROR, error_type)
                            started.set_status(StatusCode.ERROR)
                        started.end(ended_at)
                except Exception:  # noqa: BLE001 - from an exporter or a span processor
                    self.log("a span could not be exported", exc_info=True)

    def log(self, message: str, *, exc_info: bool = False) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_PERIOD:
            self._logged_at = now
            _log.warning(message, exc_info=exc_info)


class _Encoded(NamedTuple):
    """The headers for puts in a context. ``headers`` is ``None`` if the span of the context is not recording."""

    context: Context | None
    span: Span
    headers: Mapping[str, str] | None


@final
class RecordTracing:
    """The spans and headers of one producer or consumer: a ``shardline.events.Tracing``.

    Args:
        tracer: creates the spans.
        propagator: encodes contexts as headers. ``None`` means the global one at the time of each call.
        ender: ends the spans.
        source: the producer or consumer.
    """

    def __init__(
        self, tracer: Tracer, propagator: TextMapPropagator | None, ender: SpanEnder, source: EventSource
    ) -> None:
        self._tracer = tracer
        self._propagator = propagator
        self._ender = ender
        attributes = {**describe(source), _STREAM: source.stream}
        if source.worker_id is not None:
            attributes[CLIENT] = source.worker_id
        self._sending, self._receiving, self._processing = (
            (f"{operation} {source.stream}", {**attributes, OPERATION: operation, OPERATION_TYPE: operation})
            for operation in ("send", "receive", "process")
        )  # the name and the attributes that all spans of an operation have
        self._suspended_until = -SUSPENSION
        self._last = _Encoded(None, get_current_span(Context()), None)
        self._encoded: dict[tuple[int, int], tuple[Mapping[str, object], Mapping[str, str]]] = {}
        self._decoded: dict[tuple[str | None, ...], tuple[Context, SpanContext]] = {}
        self._fields: tuple[TextMapPropagator | None, tuple[str, ...]] = None, ()  # the names that the propagator reads
        self.put_context: ContextVar[Any] | None = find_context_variable()
        """The variable that ``put_headers`` depends on: once ``put_headers`` has returned ``None``, it returns ``None``
        as long as this variable keeps its value.
        """

    # ---- producers

    def put_headers(self) -> Mapping[str, str] | None:
        context = get_current()
        last = self._last
        if context is not last.context:
            self._last = last = self._encode(context)
        # The span may have ended since its context was encoded.
        return last.headers if last.headers is not None and last.span.is_recording() else None

    def _encode(self, context: Context) -> _Encoded:
        span = get_current_span(context)
        if not span.is_recording():
            return _Encoded(context, span, None)
        of_span, carried = span.get_span_context(), baggage.get_all(context)
        key = of_span.trace_id, of_span.span_id
        known_baggage, headers = self._encoded.get(key, (None, None))
        if headers is None or known_baggage != carried:
            fresh: dict[str, str] = {}
            # In OpenTelemetry's API, the type of the default setter does not fit the parameter.
            propagator: Any = self._propagator or propagate.get_global_textmap()
            propagator.inject(fresh, context)
            headers = fresh
            if len(self._encoded) >= _REMEMBERED_MAX:
                self._encoded.clear()
            self._encoded[key] = carried, headers
        return _Encoded(context, span, headers or None)

    def trace_request(self, event: RequestAnswered) -> None:
        """Create the span of a PutRecords request that has ended."""
        name, common = self._sending
        attributes: dict[str, str | int] = {**common, _BATCH_SIZE: event.records, _ENTRIES: event.entries}
        if event.refused_entries:
            attributes[_REFUSED] = event.refused_entries
        if event.code is not None:
            attributes[ERROR] = event.code
        started_at = round(event.started_at * _NANOSECONDS)
        # A request carries records of many contexts, so its span has no parent.
        span = self._tracer.start_span(name, _NO_PARENT, SpanKind.CLIENT, attributes, start_time=started_at)
        if event.code is not None:
            span.set_status(StatusCode.ERROR, event.code)
        span.end(started_at + round(event.duration * _NANOSECONDS))

    # ---- consumers

    def trace_page(self, event: PageRead) -> None:
        """Create the span of a GetRecords request that has ended and returned records.

        A page of a subscription has no request of its own.
        """
        if event.records and event.read_by == "polling":
            name, common = self._receiving
            attributes: dict[str, str | int] = {**common, PARTITION: event.shard_id, _BATCH_SIZE: event.records}
            started_at = round(event.started_at * _NANOSECONDS)
            span = self._tracer.start_span(name, _NO_PARENT, SpanKind.CLIENT, attributes, start_time=started_at)
            span.end(started_at + round(event.duration * _NANOSECONDS))

    def flush(self, timeout: float) -> None:
        """Wait until the spans of handlers have ended, for at most ``timeout`` seconds."""
        self._ender.flush(timeout)

    def handling(self, records: Sequence[Record[Any]], /) -> "Processing | None":
        """Return the span around a call of a handler. For a handler that takes single records, ``records`` is a tuple
        of one record.
        """
        now = time.monotonic()
        return None if now < self._suspended_until or self._ender.has_hung(now) else Processing(self, records)

    def open(self, records: Sequence[Record[Any]]) -> "HandlerSpan":
        """Return the span around the processing of records, which begins now."""
        parent, links = self._find_contexts(records)
        return HandlerSpan(self, get_current() if parent is None else parent, self._describe(records), links)

    def start(self, context: Context, attributes: dict[str, str | int], links: list[Link], began_at: int) -> Span:
        """Have the tracer provider start the span of a handler. Exceptions of the provider are logged."""
        started_at = time.monotonic()
        name = self._processing[0]
        try:
            span = self._tracer.start_span(name, context, SpanKind.CONSUMER, attributes, links, began_at)
        except Exception:  # noqa: BLE001 - from a sampler, an id generator or a span processor
            self._ender.log("a span could not be started", exc_info=True)
            span = pass_through(context)
        now = time.monotonic()
        if now - started_at > SLOW_START:
            self._suspended_until = now + SUSPENSION
            message = "starting a span took %.1f s: handlers get no spans for %g s"
            _log.warning(message, now - started_at, SUSPENSION)
        return span

    def end(self, span: "HandlerSpan", error: BaseException | None) -> None:
        self._ender.end(span, time.time_ns(), None if error is None else type(error).__qualname__)

    def context_of(self, record: Record[Any]) -> Context:
        """Return the context that the headers of a record carry, or an empty context."""
        return self._decode(record.headers)[0]

    def _describe(self, records: Sequence[Record[Any]]) -> dict[str, str | int]:
        first = records[0]
        attributes: dict[str, str | int] = {**self._processing[1]}
        if first.shard_id is not None:
            attributes[PARTITION] = first.shard_id
        if not isinstance(records, tuple):
            attributes[_BATCH_SIZE] = len(records)
            return attributes
        attributes[_BODY_SIZE] = len(first.data)
        if first.sequence_number is not None:
            within = f"/{first.sub_sequence}" if first.aggregated else ""
            attributes[_MESSAGE_ID] = f"{first.sequence_number}{within}"
        return attributes

    def _find_contexts(self, records: Sequence[Record[Any]]) -> tuple[Context | None, list[Link]]:
        """Return the parent of the span around these records, and the links to their distinct contexts."""
        origin = records[0].origin
        if not origin.may_have_headers and records[-1].origin is origin:  # the records are in order, so it is one page
            return None, []
        found: dict[tuple[int, int], tuple[Context, SpanContext]] = {}  # by the ids of the trace and of the span
        is_common = True  # whether all records carry the same context
        last: Mapping[str, str] | None = None
        for record in records:
            headers = record.headers
            if headers is last:
                continue  # equal headers in one aggregate are the same object
            last = headers
            decoded = self._decode(headers)
            span_context = decoded[1]
            if not span_context.is_valid:
                is_common = False
            elif len(found) < LINKS_MAX:
                found[span_context.trace_id, span_context.span_id] = decoded
        links = [Link(span_context) for _, span_context in found.values()]
        if is_common and len(found) == 1:
            [(context, _)] = found.values()
            return Context({**get_current(), **context}), links
        return None, links

    def _decode(self, headers: Mapping[str, str]) -> tuple[Context, SpanContext]:
        propagator = self._propagator or propagate.get_global_textmap()
        if propagator is not self._fields[0]:
            self._fields = propagator, tuple(propagator.fields)
        key = tuple([headers.get(name) for name in self._fields[1]]) if headers else ()
        known = self._decoded.get(key)
        if known is None:
            context = propagator.extract(headers, Context())
            known = context, get_current_span(context).get_span_context()
            if len(self._decoded) >= _REMEMBERED_MAX:
                self._decoded.clear()
            self._decoded[key] = known
        return known


def pass_through(context: Context) -> Span:
    """Return a span that records nothing. The children of the span continue the trace of the context."""
    return NonRecordingSpan(get_current_span(context).get_span_context())


@final
class HandlerSpan(Span):
    """The span of a handler. The tracer provider starts the span when code uses it, or else after the handler has
    ended.

    In either case, the times of the span are those of the handler.
    """

    def __init__(
        self, tracing: RecordTracing, context: Context, attributes: dict[str, str | int], links: list[Link]
    ) -> None:
        self.parent_context = context  # the context of the record, or else of the code that calls the handler
        self._start: Callable[[], Span] = partial(tracing.start, context, attributes, links, time.time_ns())
        self._lock = threading.RLock()
        self._span: Span | None = None
        self._is_starting = False

    def started(self) -> Span:
        """Return the span of the tracer provider, which is started first if necessary."""
        if self._span is None:
            with self._lock:
                if self._is_starting:  # the provider's own code asks for the current span
                    return pass_through(self.parent_context)
                if self._span is None:
                    self._is_starting = True
                    try:
                        self._span = self._start()
                    finally:
                        self._is_starting = False
        return self._span

    def end(self, end_time: int | None = None) -> None:
        self.started().end(end_time)

    def get_span_context(self) -> SpanContext:
        return self.started().get_span_context()

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.started().set_attributes(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        self.started().set_attribute(key, value)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        self.started().add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        self.started().add_link(context, attributes)

    def update_name(self, name: str) -> None:
        self.started().update_name(name)

    def is_recording(self) -> bool:
        return self.started().is_recording()

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self.started().set_status(status, description)

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        self.started().record_exception(exception, attributes, timestamp, escaped)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that the SDK's spans have in addition to those of the API, such as ``attributes``."""
        return getattr(self.started(), name)


@final
class Processing:
    """The span around one call of a handler, as a context manager. The user's code runs in the context of the span."""

    __slots__ = ("_before", "_records", "_span", "_tracing")

    def __init__(self, tracing: RecordTracing, records: Sequence[Record[Any]]) -> None:
        self._tracing = tracing
        self._records = records

    def __enter__(self) -> Span:
        self._span = self._tracing.open(self._records)
        self._before = get_current()
        attach(set_span_in_context(self._span, self._span.parent_context))
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        attach(self._before)
        self._tracing.end(self._span, error)


def find_context_variable() -> ContextVar[Any] | None:
    """Return the variable in which OpenTelemetry keeps the current context. ``None`` if the context is kept elsewhere.

    Reading the variable takes a tenth of the time of ``get_current``, which matters for puts outside any span.
    """

    def find() -> list[ContextVar[Any]]:
        mark = Context({})
        attach(mark)
        return [variable for variable, value in copy_context().items() if value is mark]

    found = copy_context().run(find)
    return found[0] if len(found) == 1 else None
