"""Does a trace go from an HTTP request through a stream into a handler in another process?

The producer serves HTTP requests in this process. The consumer runs in a process of its own, and prints its spans.
"""

import http.client
import json
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from tests.harness.faulty_sinks import FAULTS, Work, working_provider
from tests.programs import command_for

from shardline import Consumer, ConsumerConfig, Producer, ProducerConfig, sync
from shardline.events import LeaseGained, LeaseLost, LeaseReleased
from shardline.sinks import OpenTelemetrySink
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
QUICK = ProducerConfig(linger=0.01)
numbers_of_groups = count(1)  # the store "memory:" is the whole process's

PROGRAM = """
import json, sys
import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from shardline import Consumer, sync
from shardline.sinks import OpenTelemetrySink

_, backend, kind, store = sys.argv
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("worker")
sink = OpenTelemetrySink()
arguments = dict(group="billing", store=store, until="latest", sinks=[sink])
batch = {"batch": 10, "max_wait": 0.5} if "batch" in kind else {}

def plain(argument):
    with tracer.start_as_current_span("charge the card"):
        pass

async def handle(argument):
    await anyio.sleep(0)
    plain(argument)

handler = handle if "async" in kind else (lambda given: handle(given)) if "awaitable" in kind else plain

async def main():
    async with Consumer("orders", **arguments) as consumer:
        if kind != "iteration":
            return await consumer.run(handler, **batch)
        async for record in consumer:
            with sink.process(record):
                plain(record)

def main_in_threads():
    with sync.Consumer("orders", **arguments) as consumer:
        if kind != "iteration":
            return consumer.run(handler, **batch)
        for record in consumer:
            with sink.process(record):
                plain(record)

main_in_threads() if backend == "threads" else anyio.run(main, backend=backend)
print(json.dumps([
    {
        "name": span.name,
        "kind": span.kind.name,
        "trace": format(span.context.trace_id, "032x"),
        "id": format(span.context.span_id, "016x"),
        "parent": span.parent and format(span.parent.span_id, "016x"),
        "links": [[format(link.context.trace_id, "032x"), format(link.context.span_id, "016x")] for link in span.links],
        "attributes": dict(span.attributes),
    }
    for span in exporter.get_finished_spans()
]))
"""


class Spans:
    """A provider that keeps its spans and metrics, and a sink that uses it."""

    def __init__(self):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("shop")
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.make_sink = partial(OpenTelemetrySink, tracer_provider=self.provider, meter_provider=meters)

    def named(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    @contextmanager
    def request(self, headers=None):
        """The span of an HTTP request with these headers."""
        context = propagate.extract(headers or {})
        with self.tracer.start_as_current_span("POST /orders", context, SpanKind.SERVER) as span:
            yield span

    def metrics(self):
        data = self.reader.get_metrics_data()
        return {
            metric.name: sum(getattr(point, "value", getattr(point, "count", 0)) for point in metric.data.data_points)
            for scope in data.resource_metrics[0].scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def spans():
    return Spans()


@pytest.fixture
def event_loop_kind(request):
    return getattr(request, "param", "asyncio")


@pytest.fixture
def kinesis(monkeypatch):
    with LocalKinesis(stream="orders", shards=1) as kinesis:
        for name, value in kinesis.environment.items():
            monkeypatch.setenv(name, value)
        yield kinesis


@pytest.fixture
def consume(kinesis, tmp_path):
    """The spans of a worker in another process that has read the stream to its end."""

    def run(backend, kind):
        ended = subprocess.run(
            [*command_for(PROGRAM, "-W", "error"), backend, kind, f"sqlite:///{tmp_path}/leases.db"],
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        return json.loads(ended.stdout)

    return run


# ---- HTTP requests that put


def post(port):
    """Send a request that is a part of a trace."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/orders", b"", {"traceparent": f"00-{TRACE}-{CALLER}-01"})
    assert connection.getresponse().status == 202
    connection.close()


async def serve_async(spans, count):
    """An HTTP server that puts a record per request, on the running event loop."""

    async def answer(stream):
        async with stream:
            received = b""
            while b"\r\n\r\n" not in received:
                received += await stream.receive()
            lines = received.decode().partition("\r\n\r\n")[0].split("\r\n")[1:]
            with spans.request({name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}):
                await producer.put(b"order", key="user-1")
            await stream.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    async with (
        Producer("orders", config=QUICK, sinks=[spans.make_sink()]) as producer,
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, answer)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        for _ in range(count):
            await anyio.to_thread.run_sync(post, port)
        tasks.cancel_scope.cancel()


def serve_in_threads(spans, count):
    """An HTTP server that puts a record per request, each in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            with spans.request({name.lower(): value for name, value in self.headers.items()}):
                producer.put(b"order", key="user-1")
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_):
            """Print nothing."""

    with sync.Producer("orders", config=QUICK, sinks=[spans.make_sink()]) as producer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for _ in range(count):
            post(server.server_port)
        server.shutdown()
        thread.join()
        server.server_close()


KINDS = ("async", "plain", "plain returning an awaitable", "async batch", "plain batch", "iteration")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("event_loop_kind", "backend"),
    [("asyncio", "asyncio"), ("uvloop", "asyncio"), ("trio", "trio"), ("asyncio", "threads")],
    indirect=["event_loop_kind"],
)
async def test_a_trace_goes_from_a_request_into_a_handler_of_another_process(spans, consume, backend, kind):
    if backend == "threads":
        await anyio.to_thread.run_sync(serve_in_threads, spans, 1)
    else:
        await serve_async(spans, 1)
    [request] = spans.named("POST /orders")
    request_id = format(request.context.span_id, "016x")
    inner, process = await anyio.to_thread.run_sync(consume, backend, kind)
    assert format(request.context.trace_id, "032x") == process["trace"] == inner["trace"] == TRACE
    assert format(request.parent.span_id, "016x") == CALLER
    assert (process["name"], process["kind"]) == ("process orders", "CONSUMER")
    assert (process["parent"], process["links"]) == (request_id, [[TRACE, request_id]])
    assert (inner["name"], inner["parent"]) == ("charge the card", process["id"])
    assert process["attributes"]["messaging.consumer.group.name"] == "billing"
    assert ("messaging.batch.message_count" in process["attributes"]) == ("batch" in kind)


# ---- puts: which records carry the trace


LOOPS = pytest.mark.parametrize("event_loop_kind", ["asyncio", "uvloop", "trio"], indirect=True)
READER = {"start": "TRIM_HORIZON", "until": "latest"}


async def read(stream="orders"):
    async with Consumer(stream, **READER) as consumer:
        return [record async for record in consumer]


def traceparent(span):
    of_span = span.get_span_context()
    return f"00-{of_span.trace_id:032x}-{of_span.span_id:016x}-{of_span.trace_flags:02x}"


async def generate(*records):
    for record in records:
        yield record


@LOOPS
async def test_every_kind_of_put_carries_the_trace(spans, kinesis):
    async with Producer("orders", config=QUICK, sinks=[spans.make_sink()]) as producer:
        await producer.put(b"before", key="a")
        with spans.request() as span:
            await producer.put(b"put", key="a")
            await producer.put(b"keyless")
            await producer.put(b"hashed", key="a", explicit_hash_key="1")
            producer.put_nowait(b"nowait", key="a")
            await producer.put_many([("a", b"many"), (None, b"many keyless")])
            await producer.put_many(record for record in [("a", b"generated")])
            await producer.put_many(generate(("a", b"generated async")))
            await producer.put_many([("a", b"many"), ("", b"invalid")], on_invalid="fail")
        await producer.put(b"after", key="a")
    headers = {record.data: record.headers for record in await read()}
    assert {data for data, found in headers.items() if not found} == {b"before", b"after"}
    assert all(found == {"traceparent": traceparent(span)} for found in headers.values() if found)
    assert len(headers) == 10


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
async def test_every_kind_of_put_in_threads_carries_the_trace(spans, kinesis):
    def put():
        with sync.Producer("orders", config=QUICK, sinks=[spans.make_sink()]) as producer:
            producer.put(b"before", key="a")
            with spans.request() as span:
                producer.put(b"put", key="a")
                producer.put(b"keyless")
                producer.put_nowait(b"nowait", key="a")
                producer.put_many([("a", b"many"), (None, b"many keyless")])
                producer.put_many(record for record in [("a", b"generated")])
            producer.put(b"after", key="a")
        return span

    span = await anyio.to_thread.run_sync(put)
    headers = {record.data: record.headers for record in await read()}
    assert {data for data, found in headers.items() if not found} == {b"before", b"after"}
    assert all(found == {"traceparent": traceparent(span)} for found in headers.values() if found)
    assert len(headers) == 8


@LOOPS
async def test_headers_of_the_caller_win(spans, kinesis):
    async with Producer("orders", config=QUICK, sinks=[spans.make_sink()]) as producer:
        with spans.request() as span:
            await producer.put(b"own", key="a", headers={"traceparent": "own", "tenant": "acme"})
            await producer.put(b"more", key="a", headers={"tenant": "acme"})
            await producer.put_many([("a", b"many", {"tenant": "acme"})])
            await producer.put(b"full", key="a", headers={f"h{place}": "x" for place in range(64)})
    own, more, many, full = [record.headers for record in await read()]
    assert own == {"traceparent": "own", "tenant": "acme"}
    assert more == many == {"traceparent": traceparent(span), "tenant": "acme"}
    assert len(full) == 64
    assert "traceparent" not in full


@LOOPS
async def test_concurrent_requests_keep_their_traces_apart(spans, kinesis):
    async def request(number):
        with spans.request() as span:
            for _ in range(5):
                await producer.put(b"%d" % number, key=f"k{number}")
                await anyio.lowlevel.checkpoint()
        expected[b"%d" % number] = {"traceparent": traceparent(span)}

    expected = {}
    sinks = [spans.make_sink()]
    async with Producer("orders", config=QUICK, sinks=sinks) as producer, anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(request, number)
    records = await read()
    assert len(records) == 50
    assert all(record.headers == expected[record.data] for record in records)


async def test_concurrent_threads_keep_their_traces_apart(spans, kinesis):
    def request(producer, number):
        with spans.request() as span:
            for _ in range(20):
                producer.put(b"%d" % number, key=f"k{number}")
        return b"%d" % number, {"traceparent": traceparent(span)}

    def put():
        with (
            sync.Producer("orders", config=QUICK, sinks=[spans.make_sink()]) as producer,
            ThreadPoolExecutor(8) as pool,
        ):
            return dict(pool.map(partial(request, producer), range(32)))

    expected = await anyio.to_thread.run_sync(put)
    records = await read()
    assert len(records) == 640
    assert all(record.headers == expected[record.data] for record in records)


@LOOPS
async def test_a_record_without_room_for_headers_is_put_without_them(spans, kinesis):
    largest = b"x" * (1_048_576 - 1)
    async with Producer("orders", config=QUICK, sinks=[spans.make_sink()]) as producer:
        await producer.wait_ready()
        with spans.request():
            await (await producer.put(largest, key="a"))
            [delivery] = await producer.put_many([("a", largest)])
            await delivery
    assert [(record.data == largest, dict(record.headers)) for record in await read()] == [(True, {})] * 2


async def test_threads_put_a_record_without_room_for_headers_without_them(spans, kinesis):
    largest = b"x" * (1_048_576 - 1)

    def put():
        with sync.Producer("orders", config=QUICK, sinks=[spans.make_sink()]) as producer:
            producer.wait_ready()
            with spans.request():
                producer.put(largest, key="a").result(timeout=10)

    await anyio.to_thread.run_sync(put)
    assert [(record.data == largest, dict(record.headers)) for record in await read()] == [(True, {})]


async def test_propagation_can_be_switched_off(spans, kinesis):
    async with Producer("orders", config=QUICK, sinks=[spans.make_sink(propagate=False)]) as producer:
        with spans.request():
            await producer.put(b"put", key="a")
    assert [dict(record.headers) for record in await read()] == [{}]


# ---- where headers cannot be sent


def lines_about_traces(caplog):
    return [line.getMessage() for line in caplog.records if "trace" in line.getMessage()]


@LOOPS
@pytest.mark.parametrize("settings", [{"aggregation": False}, {"packing": "json-lines"}])
async def test_a_producer_that_cannot_send_headers_says_so_once(spans, kinesis, caplog, settings):
    config = ProducerConfig(linger=0.01, **settings)
    async with Producer("orders", config=config, sinks=[spans.make_sink()]) as producer:
        for _ in range(3):
            with spans.request():
                await producer.put(b"1", key="a")
                await producer.put_many([("a", b"1")])
    assert len(await read()) == (6 if "aggregation" in settings else 1)
    [line] = lines_about_traces(caplog)
    assert "orders: records carry no trace: " in line


async def make_auto(kinesis):
    async with kinesis.client() as client:
        arguments = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}, "RecordDistributionStrategy": "AUTO"}
        await client.call("CreateStream", {"StreamName": "auto", **arguments})


@LOOPS
@pytest.mark.parametrize("is_known", [True, False])
async def test_under_auto_distribution_records_are_put_without_traces(spans, kinesis, caplog, is_known):
    await make_auto(kinesis)
    async with Producer("auto", config=QUICK, sinks=[spans.make_sink()]) as producer:
        if is_known:
            await producer.wait_ready()
            await (await producer.put(b"first", key="a"))
        with spans.request():
            deliveries = [await producer.put(b"%d" % place, key="a") for place in range(20)]
        for delivery in deliveries:
            await delivery
        assert producer.stats().outstanding == 0
        assert producer._intake.buffered_bytes == 0
        with spans.request():
            await (await producer.put(b"last", key="a"))
    records = await read("auto")
    assert sorted(record.data for record in records if record.data.isdigit()) == sorted(b"%d" % n for n in range(20))
    # Records that were sent before the distribution was known may carry a trace: their readers accept them.
    assert not is_known or all(dict(record.headers) == {} for record in records)
    assert [record.headers for record in records if record.data == b"last"] == [{}]
    assert len(lines_about_traces(caplog)) == 1


# ---- handlers


class HandlerError(Exception):
    pass


@LOOPS
@pytest.mark.parametrize("kind", ["async", "plain", "async batch"])
async def test_each_attempt_is_a_span(spans, kinesis, kind):
    sink, calls = spans.make_sink(), []

    def fail_once(argument):
        calls.append(trace.get_current_span().get_span_context().span_id)
        if len(calls) == 1:
            raise HandlerError("secret")

    async def fail_once_async(argument):
        fail_once(argument)

    async with Producer("orders", config=QUICK, sinks=[sink]) as producer:
        with spans.request() as request:
            await producer.put(b"order", key="a")
    async with Consumer("orders", **READER, sinks=[sink]) as consumer:
        handler = fail_once_async if "async" in kind else fail_once
        await consumer.run(handler, **({"batch": 10} if "batch" in kind else {}))
    failed, done = spans.named("process orders")
    assert [span.context.span_id for span in (failed, done)] == calls
    assert failed.attributes["error.type"] == "HandlerError"
    assert not failed.status.is_ok
    assert "error.type" not in done.attributes
    assert done.status.is_ok
    parents = {span.parent.span_id for span in (failed, done)}
    assert parents == {request.get_span_context().span_id}
    assert "secret" not in failed.to_json()


@LOOPS
async def test_records_without_headers_get_no_span_and_batches_always_do(spans, kinesis):
    async with Producer("orders", config=QUICK) as producer:
        await producer.put_many([("a", b"1"), ("a", b"2")])
    seen = []

    async def handle(argument):
        seen.append(trace.get_current_span().is_recording())

    async with Consumer("orders", **READER, sinks=[spans.make_sink()]) as consumer:
        await consumer.run(handle)
    assert spans.named("process orders") == []
    async with Consumer("orders", **READER, sinks=[spans.make_sink()]) as consumer:
        await consumer.run(handle, batch=2, max_wait=1.0)
    [span] = spans.named("process orders")
    assert (span.attributes["messaging.batch.message_count"], span.parent) == (2, None)
    assert seen == [False, False, True]


@LOOPS
async def test_a_batch_of_several_traces_links_to_each(spans, kinesis):
    sink, requests = spans.make_sink(), []
    async with Producer("orders", config=QUICK, sinks=[sink]) as producer:
        for _ in range(3):
            with spans.request() as request:
                await producer.put_many([("a", b"1"), ("a", b"2")])
            requests.append(request.get_span_context().span_id)
    async with Consumer("orders", **READER, sinks=[sink]) as consumer:
        await consumer.run(lambda _: None, batch=6, max_wait=2.0)
    [span] = spans.named("process orders")
    assert span.parent is None
    assert sorted(link.context.span_id for link in span.links) == sorted(requests)


@LOOPS
async def test_the_metrics_and_spans_of_a_producer_and_a_consumer(spans, kinesis):
    sink = spans.make_sink()
    async with Producer("orders", config=QUICK, sinks=[sink]) as producer:
        await producer.put_many([("a", b"x")] * 100)
    async with Consumer(
        "orders", group=f"metrics-{next(numbers_of_groups)}", store="memory:", **READER, sinks=[sink]
    ) as consumer:
        await consumer.run(lambda _: None)
    metrics = spans.metrics()
    assert metrics["messaging.client.sent.messages"] == metrics["shardline.producer.delivered.records"] == 100
    assert metrics["messaging.client.consumed.messages"] == metrics["shardline.consumer.handled.records"] == 100
    assert metrics["messaging.client.operation.duration"] > 0
    assert metrics["messaging.process.duration"] > 0
    assert metrics["shardline.consumer.leases"] == 0
    sent = spans.named("send orders")
    assert sum(span.attributes["messaging.batch.message_count"] for span in sent) == 100
    assert all(0 <= span.end_time - span.start_time < 10_000_000_000 for span in sent)


# ---- providers and exporters that are broken


LEASE_DURATION = 1.0


@pytest.fixture
def broken(request):
    """The work of a provider that misbehaves."""
    work = Work(request.param)
    yield work
    work.released.set()


async def consume_traced(spans, work, at, kind):
    """Handle 20 traced records with a provider that misbehaves. Return the numbers that were handled, and the events."""
    async with Producer("orders", config=QUICK, sinks=[spans.make_sink()]) as producer:
        with spans.request():
            await producer.put_many([("a", b"%d" % number) for number in range(20)])
    events, numbers, is_done = [], [], threading.Event()

    def plain(record):
        numbers.append(int(record.data))
        if len(numbers) == 20:
            is_done.set()

    async def handle(record):
        plain(record)

    sinks = [OpenTelemetrySink(tracer_provider=working_provider(work, at=at)), events.append]
    config = ConsumerConfig(lease_duration=LEASE_DURATION, checkpoint_interval=0.05, scan_interval=0.05)
    arguments = {"group": f"faults-{next(numbers_of_groups)}", "store": "memory:", "config": config, "sinks": sinks}

    def consume_in_threads():
        with sync.Consumer("orders", **arguments) as consumer:
            thread = threading.Thread(target=consumer.run, args=[plain])
            thread.start()
            threading.Event().wait(1.5 * LEASE_DURATION)
            assert is_done.wait(10)
            consumer.close(timeout=5)
            thread.join()

    if kind == "threads":
        await anyio.to_thread.run_sync(consume_in_threads)
        return numbers, events
    async with anyio.create_task_group() as tasks, Consumer("orders", **arguments) as consumer:
        tasks.start_soon(consumer.run, handle if kind == "async" else plain)
        await anyio.sleep(1.5 * LEASE_DURATION)
        assert await anyio.to_thread.run_sync(is_done.wait, 10)
        with anyio.fail_after(10):
            await consumer.close(timeout=5)
    return numbers, events


BROKEN = [
    (loop, fault, at, kind)
    for loop in ("asyncio", "uvloop", "trio")
    for fault in FAULTS
    for at in ("start", "end")
    for kind in ("async", "plain", "threads")
    if loop == "asyncio" or kind == "async"
]


@pytest.mark.parametrize(("event_loop_kind", "broken", "at", "kind"), BROKEN, indirect=["event_loop_kind", "broken"])
async def test_a_broken_provider_costs_no_record_and_no_lease(spans, kinesis, broken, at, kind):
    numbers, events = await consume_traced(spans, broken, at, kind)
    assert numbers == list(range(20))
    assert broken.calls >= 1
    kinds = [type(event) for event in events]
    assert (kinds.count(LeaseGained), kinds.count(LeaseReleased), kinds.count(LeaseLost)) == (1, 1, 0)


def run_hanging_worker(backend, arguments, work):
    """Run a worker, in its own event loop, whose handler uses its span, which hangs in the tracer provider."""
    numbers = []

    async def handle(record):
        trace.get_current_span().get_span_context()
        numbers.append(int(record.data))

    async def run():
        sinks = [OpenTelemetrySink(tracer_provider=working_provider(work, at="start"))]
        async with Consumer("orders", worker_id="hanging", sinks=sinks, **arguments) as consumer:
            with anyio.move_on_after(3.0):
                await consumer.run(handle)

    anyio.run(run, backend=backend)
    return numbers


@pytest.mark.parametrize("event_loop_kind", ["asyncio", "uvloop", "trio"], indirect=True)
async def test_a_provider_that_hangs_in_the_code_of_a_handler_costs_the_worker_and_no_record(
    spans, kinesis, tmp_path, event_loop_kind
):
    work = Work("hanging")
    async with Producer("orders", config=QUICK, sinks=[spans.make_sink()]) as producer:
        with spans.request():
            await producer.put_many([("k", b"%d" % number) for number in range(20)])
    config = ConsumerConfig(lease_duration=LEASE_DURATION, checkpoint_interval=0.05, scan_interval=0.05)
    arguments = {"group": "hanging", "store": f"sqlite:///{tmp_path}/leases.db", "config": config}
    backend = "trio" if event_loop_kind == "trio" else "asyncio"
    numbers, is_done = [], anyio.Event()

    async def handle(record):
        numbers.append(int(record.data))
        if len(numbers) == 20:
            is_done.set()

    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(run_hanging_worker, backend, arguments, work)
        try:
            with anyio.fail_after(30):
                while not work.calls:  # noqa: ASYNC110 - it hangs in another event loop
                    await anyio.sleep(0.02)
                async with anyio.create_task_group() as tasks, Consumer("orders", **arguments) as consumer:
                    tasks.start_soon(consumer.run, handle)
                    await is_done.wait()  # the leases of the worker that hangs have expired
                    await consumer.close()
        finally:
            work.released.set()
        late = await anyio.to_thread.run_sync(hanging.result, 30)
    assert numbers == list(range(20))
    assert late in ([], [0]), "the handler that was about to be called is the only one that may run again"
