"""The sink: what it creates for producers and consumers, and spans for iterations."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shardline.adapters.sinks.otel_sink import OpenTelemetrySink
from shardline.errors import UsageError
from shardline.events import EventSource, PageRead, RequestAnswered
from shardline.model.record import Record

PRODUCER = EventSource("producer", "orders")
CONSUMER = EventSource("consumer", "orders", "billing", "worker-1")
ANSWERED = RequestAnswered(3, 40, 2_000, 0.25, 1, None, 1_700_000_000.5)
PARENT = "00-0000000000000000000000000000000a-000000000000000b-01"
GROUP = "messaging.consumer.group.name"


class World:
    def __init__(self, **options):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.sink = OpenTelemetrySink(tracer_provider=provider, meter_provider=meters, **options)

    def spans(self):
        assert self.sink._ender.flush(5)
        return self.exporter.get_finished_spans()

    def metrics(self):
        data = self.reader.get_metrics_data()
        scopes = [] if data is None else data.resource_metrics[0].scope_metrics
        return {metric.name for scope in scopes for metric in scope.metrics}


def record(stream="orders"):
    return Record(b"data", "key", stream=stream, headers={"traceparent": PARENT})


@pytest.mark.parametrize("name", ["propagate", "request_spans", "handler_spans", "by_shard"])
def test_a_wrong_flag_is_refused(name):
    with pytest.raises(UsageError, match=f"{name} must be True or False, not 'yes'"):
        OpenTelemetrySink(**{name: "yes"})


def test_without_providers_it_uses_the_global_ones():
    sink = OpenTelemetrySink()
    recorder = sink.open(PRODUCER)
    recorder(ANSWERED)
    assert sink.tracing(PRODUCER).put_headers() is None
    with sink.process(record()):
        assert trace.get_current_span().get_span_context().trace_id == 10
    recorder.close()


def test_an_event_becomes_metrics_and_a_span():
    world = World()
    opened = world.sink.open(PRODUCER)
    opened(ANSWERED)
    assert "messaging.client.sent.messages" in world.metrics()
    assert [span.name for span in world.spans()] == ["send orders"]
    assert world.spans()[0].instrumentation_scope.name == "shardline"


def test_spans_of_requests_can_be_switched_off():
    world = World(request_spans=False)
    opened = world.sink.open(PRODUCER)
    opened(ANSWERED)
    assert "messaging.client.sent.messages" in world.metrics()
    assert world.spans() == ()


@pytest.mark.parametrize(("arguments", "names"), [({}, []), ({"receive_spans": True}, ["receive orders"])])
def test_pages_have_spans_on_request(arguments, names):
    world = World(**arguments)
    world.sink.open(CONSUMER)(PageRead("s-1", 10, 400, 0.03, 2.0, "polling", 1_700_000_000.0))
    assert [span.name for span in world.spans()] == names


def test_producers_and_consumers_are_traced_unless_switched_off():
    sink = World().sink
    assert sink.tracing(PRODUCER) is sink.tracing(PRODUCER) is not None
    assert sink.tracing(CONSUMER) is not None
    sink = World(propagate=False).sink
    assert sink.tracing(PRODUCER) is None
    assert sink.tracing(CONSUMER) is not None
    sink = World(handler_spans=False).sink
    assert sink.tracing(PRODUCER) is not None
    assert sink.tracing(CONSUMER) is None


def test_a_span_for_an_iteration_knows_its_consumer():
    world = World()
    world.sink.tracing(CONSUMER)
    recorder = world.sink.open(CONSUMER)
    with world.sink.process(record()):
        assert trace.get_current_span().get_span_context().trace_id == 10
    [span] = world.spans()
    assert span.parent.span_id == 11
    assert span.attributes[GROUP] == "billing"
    recorder.close()
    with world.sink.process(record()):
        pass
    assert GROUP not in world.spans()[-1].attributes


def test_a_span_for_a_record_of_one_of_several_consumers_names_no_group():
    world = World()
    for source in (CONSUMER, CONSUMER._replace(group="audit"), CONSUMER._replace(stream="other")):
        world.sink.tracing(source)
    with world.sink.process(record()):
        pass
    with world.sink.process(record("other")):
        pass
    one, other = world.spans()
    assert GROUP not in one.attributes
    assert other.attributes[GROUP] == "billing"


def test_a_span_for_a_batch():
    world = World()
    with world.sink.process([record(), record()]):
        pass
    [span] = world.spans()
    assert span.attributes["messaging.batch.message_count"] == 2
    assert span.parent.span_id == 11


def test_a_span_for_a_record_without_stream():
    world = World()
    with world.sink.process(record(None)):
        pass
    assert [span.name for span in world.spans()] == ["process unknown"]


@pytest.mark.parametrize("wrong", [[], b"data", "orders", None, [b"data"]])
def test_a_span_needs_records(wrong):
    with pytest.raises(UsageError, match="takes a record or a batch, not"):
        OpenTelemetrySink().process(wrong)


def test_the_context_of_a_record():
    found = trace.get_current_span(OpenTelemetrySink().context_of(record())).get_span_context()
    assert (found.trace_id, found.span_id, found.is_remote) == (10, 11, True)
    nothing = OpenTelemetrySink().context_of(Record(b"data", "key"))
    assert not trace.get_current_span(nothing).get_span_context().is_valid
