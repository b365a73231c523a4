"""Do records carry the context of the span under which they were put, and do handlers work in it?"""

import os
import re
import threading
import time

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from shardline.adapters.sinks import otel_spans
from shardline.adapters.sinks.otel_spans import LINKS_MAX, RecordTracing, SpanEnder, find_context_variable
from shardline.events import EventSource, PageRead, RequestAnswered
from shardline.model.record import Record

PRODUCER = EventSource("producer", "orders", None, None, "localhost")
CONSUMER = EventSource("consumer", "orders", "billing", "worker-1", None)


class World:
    """A tracer provider that keeps its spans, and tracings that use it."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.ender = SpanEnder()
        self.producer = RecordTracing(self.tracer, None, self.ender, PRODUCER)
        self.consumer = RecordTracing(self.tracer, None, self.ender, CONSUMER)

    def put(self, name="checkout"):
        """The record that is put under a new span, and the context of the span."""
        with self.tracer.start_as_current_span(name) as span:
            return record(headers=dict(self.producer.put_headers())), span.get_span_context()

    def handle(self, records, error=None):
        """The span around a handler of these records."""
        with pytest.raises(type(error)) if error else self.consumer.handling(records):
            if error:
                with self.consumer.handling(records):
                    raise error
        return self.spans()[-1]

    def spans(self):
        assert self.ender.flush(5)
        return self.exporter.get_finished_spans()


@pytest.fixture
def world():
    return World()


def record(headers=None, **fields):
    fields = {"sequence_number": "4711", "shard_id": "shardId-000000000001", "stream": "orders"} | fields
    return Record(b"data", "key", **fields, **({} if headers is None else {"headers": headers}))


# ---- headers of a put


def test_no_headers_without_a_span(world):
    assert world.producer.put_headers() is None


def test_the_headers_of_a_recording_span(world):
    put, of_span = world.put()
    assert put.headers == {
        "traceparent": f"00-{of_span.trace_id:032x}-{of_span.span_id:016x}-{of_span.trace_flags:02x}"
    }


def test_no_headers_under_a_span_that_does_not_record(world):
    tracer = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("test")
    with tracer.start_as_current_span("not sampled"):
        assert world.producer.put_headers() is None


def test_no_headers_after_the_end_of_the_span(world):
    with world.tracer.start_as_current_span("checkout", end_on_exit=False) as span:
        assert world.producer.put_headers() is not None
        span.end()
        assert world.producer.put_headers() is None


def test_baggage_travels_too(world):
    with world.tracer.start_as_current_span("checkout"):
        plain = world.producer.put_headers()
        token = context.attach(baggage.set_baggage("tenant", "acme"))
        assert world.producer.put_headers() == {**plain, "baggage": "tenant=acme"}
        context.detach(token)
        assert world.producer.put_headers() == plain


class CountingPropagator:
    fields = frozenset({"x-context"})

    def __init__(self):
        self.injected = 0

    def inject(self, carrier, context=None, **_):
        self.injected += 1
        carrier["x-context"] = str(trace.get_current_span(context).get_span_context().span_id)


def test_the_context_of_a_span_is_encoded_once(world):
    propagator = CountingPropagator()
    tracing = RecordTracing(world.tracer, propagator, world.ender, PRODUCER)
    with world.tracer.start_as_current_span("one") as one, world.tracer.start_as_current_span("two") as two:
        for _ in range(3):
            for span in (one, two):
                with trace.use_span(span, end_on_exit=False):
                    headers = tracing.put_headers()
                    assert headers == {"x-context": str(span.get_span_context().span_id)}
                    assert tracing.put_headers() is headers
    assert propagator.injected == 2


def test_old_contexts_are_forgotten(world, monkeypatch):
    monkeypatch.setattr(otel_spans, "_REMEMBERED_MAX", 2)
    for place in range(5):
        put, of_span = world.put(f"span {place}")
        assert f"{of_span.span_id:016x}" in put.headers["traceparent"]
        assert world.handle((put,)).parent.span_id == of_span.span_id
    assert len(world.producer._encoded) <= 2
    assert len(world.consumer._decoded) <= 2


def test_a_propagator_that_adds_nothing(world):
    tracing = RecordTracing(world.tracer, CountingPropagator(), world.ender, PRODUCER)
    tracing._propagator.inject = lambda _, __: None
    with world.tracer.start_as_current_span("checkout"):
        assert tracing.put_headers() is None


def test_the_context_variable_changes_with_every_context(world):
    variable = find_context_variable()
    assert world.producer.put_context is variable
    before = variable.get(None)
    with world.tracer.start_as_current_span("checkout"):
        assert variable.get(None) is context.get_current() is not before
    assert variable.get(None) is before


def test_a_context_that_is_kept_elsewhere_has_no_variable(monkeypatch):
    monkeypatch.setattr(otel_spans, "attach", lambda _: None)
    assert find_context_variable() is None


# ---- requests


def test_the_span_of_a_request(world):
    world.producer.trace_request(RequestAnswered(3, 40, 2_000, 0.25, 1, None, 1_700_000_000.5))
    [span] = world.spans()
    assert (span.name, span.kind, span.parent) == ("send orders", SpanKind.CLIENT, None)
    assert (span.start_time, span.end_time) == (1_700_000_000_500_000_000, 1_700_000_000_750_000_000)
    assert span.attributes == {
        "messaging.system": "aws.kinesis",
        "messaging.destination.name": "orders",
        "aws.kinesis.stream_name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 40,
        "server.address": "localhost",
        "shardline.entries": 3,
        "shardline.refused_entries": 1,
    }
    assert span.status.status_code is StatusCode.UNSET


def test_the_span_of_a_request_that_failed(world):
    with world.tracer.start_as_current_span("not its parent"):
        world.producer.trace_request(RequestAnswered(3, 40, 2_000, 0.25, 3, "AccessDenied", 1_700_000_000.5))
    span = world.spans()[0]
    assert span.parent is None
    assert span.attributes["error.type"] == "AccessDenied"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "AccessDenied")


# ---- handlers


def test_a_handler_continues_the_trace_of_its_record(world):
    put, of_span = world.put()
    seen = []
    with world.consumer.handling((put,)):
        seen.append(trace.get_current_span().get_span_context())
    span = world.spans()[-1]
    assert seen == [span.context]
    assert span.context.trace_id == of_span.trace_id
    assert span.parent.span_id == of_span.span_id
    assert span.parent.is_remote
    assert [link.context.span_id for link in span.links] == [of_span.span_id]
    assert (span.name, span.kind) == ("process orders", SpanKind.CONSUMER)
    assert span.attributes == {
        "messaging.system": "aws.kinesis",
        "messaging.destination.name": "orders",
        "aws.kinesis.stream_name": "orders",
        "messaging.consumer.group.name": "billing",
        "messaging.client.id": "worker-1",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.partition.id": "shardId-000000000001",
        "messaging.message.id": "4711",
        "messaging.message.body.size": 4,
    }
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_record_of_an_aggregate_is_named_by_its_place(world):
    put, _ = world.put()
    aggregated = record(put.headers, sub_sequence=7, aggregated=True)
    assert world.handle((aggregated,)).attributes["messaging.message.id"] == "4711/7"


def test_a_record_without_place(world):
    span = world.handle((Record(b"data", None, headers=world.put()[0].headers),))
    assert not {"messaging.message.id", "messaging.destination.partition.id"} & set(span.attributes)


def test_a_batch_links_to_each_distinct_context_and_has_no_parent(world):
    (one, of_one), (two, of_two) = world.put(), world.put()
    span = world.handle([one, two, one, two])
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [of_one.span_id, of_two.span_id]
    assert span.attributes["messaging.batch.message_count"] == 4
    assert "messaging.message.id" not in span.attributes


def test_a_batch_of_one_context_is_part_of_its_trace(world):
    put, of_span = world.put()
    again = record(dict(put.headers))
    span = world.handle([put, put, again])
    assert span.parent.span_id == of_span.span_id
    assert [link.context.span_id for link in span.links] == [of_span.span_id]


def test_a_batch_in_which_one_record_has_no_context_has_no_parent(world):
    put, of_span = world.put()
    span = world.handle([put, record()])
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [of_span.span_id]


def test_a_batch_without_contexts_is_the_child_of_the_surrounding_span(world):
    with world.tracer.start_as_current_span("job") as job:
        span = world.handle([record(), record({"traceparent": "broken"})])
    assert span.parent.span_id == job.get_span_context().span_id
    assert span.links == ()


def test_the_links_of_a_batch_are_limited(world):
    span = world.handle([world.put(f"span {place}")[0] for place in range(LINKS_MAX + 2)])
    assert len(span.links) == LINKS_MAX


def test_baggage_reaches_the_handler_beside_the_surrounding_context(world):
    put = record({"traceparent": f"00-{1:032x}-{2:016x}-01", "baggage": "tenant=acme"})
    token = context.attach(context.set_value("own", "value"))
    with world.consumer.handling((put,)):
        assert baggage.get_baggage("tenant") == "acme"
        assert context.get_value("own") == "value"
    assert baggage.get_baggage("tenant") is None
    context.detach(token)
    assert baggage.get_baggage("tenant", world.consumer.context_of(put)) == "acme"


def test_a_failure_is_marked_without_its_text(world):
    put, _ = world.put()
    span = world.handle((put,), error=ValueError("secret of the record"))
    assert span.attributes["error.type"] == "ValueError"
    assert span.status.status_code is StatusCode.ERROR
    assert "secret" not in span.to_json()


def test_a_context_that_is_not_sampled_is_passed_on(world):
    put = record({"traceparent": f"00-{1:032x}-{2:016x}-00"})
    with world.consumer.handling((put,)) as span:
        assert not span.is_recording()
        assert trace.get_current_span().get_span_context().trace_id == 1
    assert world.spans() == ()


def test_the_end_of_a_span_is_that_of_the_handler(world):
    before = time.time_ns()
    with world.consumer.handling([record()]):
        pass
    after = time.time_ns()
    [span] = world.spans()
    assert before <= span.start_time <= span.end_time <= after


# ---- exporters and providers that are broken


class Exporter(SpanExporter):
    def __init__(self, export):
        self._export = export

    def export(self, spans):
        return self._export(spans)


def test_an_exporter_that_hangs_delays_no_handler(world, monkeypatch, caplog):
    monkeypatch.setattr(otel_spans, "_QUEUE_MAX", 3)
    goes_on = threading.Event()
    world.provider.add_span_processor(SimpleSpanProcessor(Exporter(lambda _: goes_on.wait(30))))
    began_at = time.monotonic()
    for _ in range(20):
        with world.consumer.handling([record()]):
            pass
    assert not world.ender.flush(0.2)
    assert time.monotonic() - began_at < 5
    goes_on.set()
    assert [line.getMessage() for line in caplog.records] == ["the exporter of spans is too slow: spans are dropped"]


class RaisingProcessor(SimpleSpanProcessor):
    def on_end(self, _):
        raise RuntimeError("broken")


def test_a_processor_that_raises_is_logged_once(world, caplog):
    world.provider.add_span_processor(RaisingProcessor(world.exporter))
    for _ in range(3):
        with world.consumer.handling([record()]):
            pass
    assert len(world.spans()) == 3
    [line] = caplog.records
    assert (line.getMessage(), line.exc_info[0]) == ("a span could not be exported", RuntimeError)


@pytest.mark.parametrize("is_used", [False, True], ids=["in its thread", "in the handler"])
def test_a_slow_provider_is_not_asked_for_a_while(world, monkeypatch, caplog, is_used):
    monkeypatch.setattr(otel_spans, "SLOW_START", 0.01)
    world.provider.add_span_processor(StartingProcessor(lambda: time.sleep(0.02)))
    with world.consumer.handling([record()]) as span:
        if is_used:
            span.get_span_context()
    assert len(world.spans()) == 1
    assert world.consumer.handling([record()]) is None
    assert re.search(r"starting a span took [\d.]+ s: handlers get no spans for 60 s", caplog.text)
    monkeypatch.setattr(world.consumer, "_suspended_until", time.monotonic())
    assert world.consumer.handling([record()]) is not None


def test_a_provider_that_hangs_delays_no_handler(world, monkeypatch, caplog):
    monkeypatch.setattr(otel_spans, "SLOW_START", 0.05)
    hangs, goes_on = threading.Event(), threading.Event()

    def hang():
        hangs.set()
        goes_on.wait(30)

    world.provider.add_span_processor(StartingProcessor(hang))
    began_at = time.monotonic()
    for _ in range(3):
        with world.consumer.handling([record()]):
            pass
    assert hangs.wait(10)
    time.sleep(0.06)
    assert world.consumer.handling([record()]) is None
    assert world.consumer.handling([record()]) is None
    assert time.monotonic() - began_at < 5
    message = "the tracer provider hangs at the start of a span: handlers get no spans until it returns"
    assert [line.getMessage() for line in caplog.records] == [message]
    goes_on.set()
    assert len(world.spans()) == 3, "the spans that waited are not lost"


@pytest.mark.parametrize("is_used", [False, True], ids=["in its thread", "in the handler"])
def test_a_provider_that_raises_fails_no_handler(world, caplog, is_used):
    put, of_span = world.put()
    world.provider.add_span_processor(StartingProcessor(raise_error))
    with world.consumer.handling((put,)) as span:
        if is_used:
            assert span.get_span_context() == of_span_without_parent(of_span)
            assert not span.is_recording()
            span.set_attribute("is", "ignored")
    assert [span.name for span in world.spans()] == ["checkout"]
    [line] = caplog.records
    assert (line.getMessage(), line.exc_info[0]) == ("a span could not be started", RuntimeError)


def raise_error():
    raise RuntimeError("broken")


def of_span_without_parent(context):
    """The context of a span as it arrives in another process."""
    return trace.SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=context.trace_flags)


class StartingProcessor(SpanProcessor):
    """Calls a function when a span starts."""

    def __init__(self, call):
        self._call = call

    def on_start(self, *_, **__):
        self._call()


# ---- the span of a handler


def test_a_span_that_the_handler_does_not_use_starts_in_another_thread(world):
    threads = []
    world.provider.add_span_processor(StartingProcessor(lambda: threads.append(threading.current_thread().name)))
    with world.consumer.handling([record()]):
        assert threads == []
    assert len(world.spans()) == 1
    with world.consumer.handling([record()]), world.tracer.start_as_current_span("child"):
        pass
    assert len(world.spans()) == 3
    assert threads == ["shardline spans", "MainThread", "MainThread"]


def test_the_provider_may_ask_for_the_current_span_when_it_starts_one(world):
    put, of_span = world.put()
    seen = []
    world.provider.add_span_processor(
        StartingProcessor(lambda: seen.append(trace.get_current_span().get_span_context().span_id))
    )
    with world.consumer.handling((put,)) as span:
        assert span.is_recording()
    assert seen == [of_span.span_id], "the span itself has not started"
    assert len(world.spans()) == 2


def test_threads_of_a_handler_start_its_span_once(world):
    started, all_wait = [], threading.Barrier(4)
    world.provider.add_span_processor(StartingProcessor(lambda: (started.append(1), time.sleep(0.01))))
    found = set()
    with world.consumer.handling([record()]) as span:

        def use():
            all_wait.wait(10)
            found.add(span.get_span_context().span_id)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (len(started), len(found), len(world.spans())) == (1, 1, 1)


def test_the_span_of_a_handler_takes_all_that_a_span_takes(world):
    other = trace.SpanContext(1, 2, is_remote=True)
    with world.consumer.handling([record()]) as span:
        span.set_attributes({"one": 1})
        span.set_attribute("two", 2)
        span.add_event("event", {"three": 3}, 4)
        span.add_link(other, {"five": 5})
        span.update_name("renamed")
        span.set_status(StatusCode.OK)
        span.record_exception(ValueError("text"), timestamp=6)
        assert (span.name, span.attributes["one"]) == ("renamed", 1), "attributes of the SDK's spans"
        span.end(7)
        assert not span.is_recording()
    [found] = world.spans()
    assert (found.name, found.attributes["two"], found.end_time) == ("renamed", 2, 7)
    assert [(event.name, event.timestamp) for event in found.events] == [("event", 4), ("exception", 6)]
    assert (found.links[0].context, found.status.status_code) == (other, StatusCode.OK)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("is_used", [True, False])
def test_the_child_of_a_fork_has_a_thread_of_its_own(world, is_used):
    if is_used:
        with world.consumer.handling([record()]):
            pass
    assert world.ender.flush(5)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with world.consumer.handling([record()]):
                pass
            world.ender.flush(5)
            code = 0 if len(world.exporter.get_finished_spans()) == is_used + 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(world.spans()) == is_used


# ---- pages


PAGE = PageRead("shardId-000000000001", 100, 4_000, 0.25, 2.0, "polling", 1_700_000_000.5)


def test_a_page_becomes_a_span_of_its_request(world):
    world.consumer.trace_page(PAGE)
    [span] = world.spans()
    assert (span.name, span.kind, span.parent) == ("receive orders", SpanKind.CLIENT, None)
    assert (span.start_time, span.end_time) == (1_700_000_000_500_000_000, 1_700_000_000_750_000_000)
    assert span.attributes["messaging.operation.type"] == "receive"
    assert span.attributes["messaging.batch.message_count"] == 100
    assert span.attributes["messaging.destination.partition.id"] == "shardId-000000000001"


@pytest.mark.parametrize("change", [{"records": 0}, {"read_by": "fan-out"}])
def test_empty_pages_and_pages_of_subscriptions_have_no_span(world, change):
    world.consumer.trace_page(PAGE._replace(**change))
    assert world.spans() == ()
