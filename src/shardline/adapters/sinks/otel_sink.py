"""The sink for OpenTelemetry: metrics and traces. This module uses only OpenTelemetry's API, not its SDK.

Invariants:

- Metrics and request spans are created from events, in the sink's thread. Only the headers of a put and the span
  of a handler are created where the user's code runs.
- One sink serves any number of producers and consumers.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast, final

from shardline.errors import UsageError
from shardline.events import Event, EventSource, PageRead, RequestAnswered
from shardline.model.record import Record

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import TracerProvider

    from shardline.adapters.sinks.otel_metric_table import EventMetrics, Instruments
    from shardline.adapters.sinks.otel_spans import Processing, RecordTracing, SpanEnder
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] != "opentelemetry":
        raise
    raise UsageError("OpenTelemetrySink needs an extra: pip install 'shardline[otel]'") from None

_NAME: Final = "shardline"
_FLUSH_TIMEOUT: Final = 1.5  # less than the time that closing a consumer gives its sinks


@final
class OpenTelemetrySink:
    """Turns events into OpenTelemetry metrics and spans, and carries traces through the stream::

        sink = OpenTelemetrySink()
        async with Producer("orders", sinks=[sink]) as producer:
            with tracer.start_as_current_span("checkout"):
                await producer.put(b"...", key="user-1")  # the handler of this record continues the trace

    Needs the extra ``otel``. Install and configure an OpenTelemetry SDK and exporter as for any other instrumented
    library.

    Args:
        tracer_provider: creates the spans. ``None`` means the global one.
        meter_provider: creates the metrics. ``None`` means the global one.
        propagator: writes contexts to headers, and reads contexts from headers. ``None`` means the global one.
        propagate: whether puts under a recording span send the context of the span in the record's headers.
        request_spans: whether each PutRecords request gets a span.
        receive_spans: whether each GetRecords request that returned records gets a span.
        handler_spans: whether each call of a handler gets a span. A handler that is called with single records gets a
            span for each record that has headers.
        by_shard: whether metrics have an attribute for the shard. This creates many time series if the stream has many
            shards.

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
        propagate: bool = True,
        request_spans: bool = True,
        receive_spans: bool = False,
        handler_spans: bool = True,
        by_shard: bool = False,
    ) -> None:
        flags = {
            "propagate": propagate,
            "request_spans": request_spans,
            "receive_spans": receive_spans,
            "handler_spans": handler_spans,
            "by_shard": by_shard,
        }
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise UsageError(f"{name} must be True or False, not {flag!r}")
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        self._instruments = Instruments(metrics.get_meter(_NAME, meter_provider=meter_provider))
        self._propagator = propagator
        self._propagates = propagate
        self._traces_requests = request_spans
        self._traces_pages = receive_spans
        self._traces_handlers = handler_spans
        self._by_shard = by_shard
        self._ender = SpanEnder()
        self._tracings: dict[EventSource, RecordTracing] = {}  # for the producers and consumers that are open
        self._strangers: dict[str | None, RecordTracing] = {}  # by stream: for records that no open consumer read

    def open(self, source: EventSource, /) -> "_Recorder":
        """Return the callable for the events of a producer or consumer."""
        traces = self._traces_requests if source.kind == "producer" else self._traces_pages
        tracing = self._tracing_of(source) if traces else None
        event_metrics = EventMetrics(self._instruments, source, by_shard=self._by_shard)

        def close() -> None:
            self._tracings.pop(source, None)
            event_metrics.close()
            self._ender.flush(_FLUSH_TIMEOUT)

        return _Recorder(event_metrics, tracing, close)

    def tracing(self, source: EventSource, /) -> RecordTracing | None:
        """Return the object that traces the records of a producer or consumer."""
        wants = self._propagates if source.kind == "producer" else self._traces_handlers
        return self._tracing_of(source) if wants else None

    def process(self, records: Record[Any] | Sequence[Record[Any]]) -> Processing:
        """Return a span around your code, for iterations: ``with sink.process(record): ...``.

        ``Consumer.run`` does this for handlers. The span of a single record continues the trace of the record. The span
        of a batch links to the trace of each record.

        Raises:
            UsageError: ``records`` is neither a record nor a batch with records.
        """
        given: Any = (records,) if isinstance(records, Record) else records
        if not isinstance(given, Sequence) or not given or not isinstance(given[0], Record):
            raise UsageError(f"process() takes a record or a batch, not {type(records).__name__}")
        several = cast("Sequence[Record[Any]]", given)
        return Processing(self._reader_of(several[0]), several)

    def context_of(self, record: Record[Any]) -> Context:
        """Return the OpenTelemetry context that the headers of a record carry, or an empty context."""
        return self._reader_of(record).context_of(record)

    def _tracing_of(self, source: EventSource) -> RecordTracing:
        tracing = self._tracings.get(source)
        return self._tracings.setdefault(source, self._make_tracing(source)) if tracing is None else tracing

    def _make_tracing(self, source: EventSource) -> RecordTracing:
        return RecordTracing(self._tracer, self._propagator, self._ender, source)

    def _reader_of(self, record: Record[Any]) -> RecordTracing:
        """Return the tracing of the consumer that read the record, as far as the record identifies it."""
        stream = record.stream
        readers = [
            tracing
            for source, tracing in self._tracings.copy().items()
            if source.kind == "consumer" and source.stream == stream
        ]
        if len(readers) == 1:
            return readers[0]
        if stream not in self._strangers:
            self._strangers[stream] = self._make_tracing(EventSource("consumer", stream or "unknown"))
        return self._strangers[stream]


@final
class _Recorder:
    """Receives the events of one producer or consumer."""

    def __init__(self, event_metrics: EventMetrics, tracing: RecordTracing | None, close: Callable[[], None]) -> None:
        self._metrics = event_metrics
        self._tracing = tracing
        self.close = close

    def __call__(self, event: Event, /) -> None:
        self._metrics.update(event)
        if self._tracing is not None:
            if isinstance(event, RequestAnswered):
                self._tracing.trace_request(event)
            elif isinstance(event, PageRead):
                self._tracing.trace_page(event)
