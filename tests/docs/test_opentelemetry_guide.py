"""Do the examples of the guide on OpenTelemetry run as they stand, and is its trace the one that they make?"""

import re
from pathlib import Path

import anyio
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.docs import pages
from tests.docs.pages import block_with, run_block

import shardline
from shardline.adapters.sinks import otel_metric_table, otel_spans
from shardline.codec.aggregation import encode_tags
from shardline.sinks import OpenTelemetrySink

HERE = Path(__file__)
PAGE, REFERENCE = "docs/guides/sinks/opentelemetry.md", "docs/reference/opentelemetry.md"
BLOCKS = pages.blocks_of(PAGE, "python")
LATEST = {"until": "latest"}


def test_every_example_runs_in_a_test():
    used = [block_with(BLOCKS, text) for text in re.findall(r'page\("(.+?)"\)', HERE.read_text())]
    assert [block for block in BLOCKS if block not in used] == []


@pytest.fixture
def page(kinesis, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda text: run_block(BLOCKS, text)


@pytest.fixture
def sdk(page, monkeypatch):
    """The SDK as the page configures it, until the end of the test: the exporter of spans, and the reader of metrics."""
    chosen = {}
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: chosen.update(spans=provider))
    monkeypatch.setattr(metrics, "set_meter_provider", lambda provider: chosen.update(metrics=provider))
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    page("def configure").configure(reader, SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: chosen["spans"])
    monkeypatch.setattr("opentelemetry.metrics._internal.get_meter_provider", lambda: chosen["metrics"])
    yield exporter, reader
    chosen["spans"].shutdown()
    chosen["metrics"].shutdown()


def metrics_of(reader):
    data = reader.get_metrics_data()
    return {metric.name for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics}


def test_a_trace_is_as_the_page_shows_it(page, sdk, backend, monkeypatch):
    exporter, reader = sdk
    put, work = page("async def check_out"), page("async def work")
    anyio.run(put.check_out, b"order", backend=backend)
    monkeypatch.setitem(work.work.__globals__, "Consumer", until_latest)
    anyio.run(work.work, backend=backend)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    shown = [re.search("`(.+)`", row[0])[1] for row in pages.table_of(PAGE, "span")]
    assert shown == ["check out", "process orders", "charge the card"]
    outer, process, inner = (spans[name] for name in shown)
    assert outer.context.trace_id == process.context.trace_id == inner.context.trace_id
    assert outer.context.span_id == process.parent.span_id
    assert process.context.span_id == inner.parent.span_id
    assert spans["send orders"].context.trace_id != outer.context.trace_id
    assert {"messaging.client.sent.messages", "messaging.process.duration"} <= metrics_of(reader)


def until_latest(*arguments, **options):
    """A consumer that ends when it has read everything."""
    return shardline.Consumer(*arguments, **options, **LATEST)


def test_an_iteration_is_traced(page, sdk, backend, monkeypatch, capsys):
    exporter, _ = sdk
    anyio.run(page("async def check_out").check_out, b"order", backend=backend)
    example = page("sink.process(record)")
    monkeypatch.setitem(example.read.__globals__, "Consumer", until_latest)
    anyio.run(example.read, OpenTelemetrySink(), backend=backend)
    assert capsys.readouterr().out == "user-1\n"
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert spans["process orders"].parent.span_id == spans["check out"].context.span_id
    assert spans["process orders"].attributes["messaging.consumer.group.name"] == "audit"


def test_the_numbers_of_the_page_are_those_of_the_code():
    text = pages.text_of(PAGE)
    tags = encode_tags({"traceparent": f"00-{1:032x}-{2:016x}-01"})
    assert f"| {len(tags)} bytes, and its baggage |" in text
    assert f"{otel_spans._QUEUE_MAX:,}" in text
    assert (otel_spans.SLOW_START, otel_spans.SUSPENSION) == (0.25, 60.0)
    assert "a quarter of a second" in text
    assert "for a minute" in text


def test_the_reference_names_every_attribute():
    named = {name for row in pages.table_of(REFERENCE, "attribute") for name in re.findall(r"`([\w.]+)`", row[0])}
    constants = [
        "SYSTEM",
        "DESTINATION",
        "PARTITION",
        "GROUP",
        "CLIENT",
        "OPERATION",
        "OPERATION_TYPE",
        "SERVER",
        "ERROR",
        "CHANGE",
    ]
    assert named == {getattr(otel_metric_table, name) for name in constants}
