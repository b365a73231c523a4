"""Sinks that misbehave, and the ways in which they do.

To test another sink with every fault, add a function to ``SINKS``. It takes ``work``, and returns the sink and a
function that cleans up. The sink must call ``work`` whenever it does what may be slow or fail: when it writes a line,
updates a metric or sends a request.
"""

import io
import itertools
import logging
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from prometheus_client import CollectorRegistry

from shardline import Credentials
from shardline.sinks import CloudWatchSink, LogSink, OpenTelemetrySink, PrometheusSink

_numbers = itertools.count(1)


def make_callable(work):
    def sink(_):
        work()

    return sink, lambda: None


def make_log_sink(work):
    """A log sink whose handler does the work. ``handle`` raises what ``work`` raises; ``emit`` would not."""

    class Handler(logging.Handler):
        def handle(self, _):
            work()

    logger = logging.getLogger(f"faulty.{next(_numbers)}")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Handler())
    return LogSink(logger), logger.handlers.clear


def make_otel_sink(work):
    """A sink whose metrics and spans do the work: each update of a metric, and each end of a span."""

    class Instrument:
        def add(self, *_):
            work()

        record = set = add

    class Meter:
        def create_gauge(self, *_, **__):
            return Instrument()

        create_histogram = create_observable_counter = create_observable_up_down_counter = create_gauge

    class Meters:
        def get_meter(self, *_, **__):
            return Meter()

    return OpenTelemetrySink(tracer_provider=working_provider(work), meter_provider=Meters()), lambda: None


def working_provider(work, *, at="end"):
    """A tracer provider that does the work when a span starts, or when it ends."""

    class Processor(SpanProcessor):
        def on_start(self, *_, **__):
            if at == "start":
                work()

        def on_end(self, _):
            if at == "end":
                work()

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Processor())
    return provider


def make_opening_sink(work):
    """A sink that misbehaves already when it is opened."""

    class Opening:
        def open(self, _):
            work()
            return lambda _: work()

    return Opening(), lambda: None


def make_prometheus_sink(work):
    """A Prometheus sink whose metrics do the work, as a registry on a full disk does in multiprocess mode."""
    sink = PrometheusSink(CollectorRegistry())
    child_of = sink._metrics.child

    class Child:
        def __init__(self, child):
            self._child = child

        def __getattr__(self, name):
            work()
            return getattr(self._child, name)

    sink._metrics.child = lambda *arguments: Child(child_of(*arguments))
    return sink, lambda: None


def make_cloudwatch_sink(work):
    """A CloudWatch sink whose file does the work."""

    class File(io.StringIO):
        def write(self, text):
            work()
            return super().write(text)

    return CloudWatchSink(File(), period=1), lambda: None


def make_cloudwatch_api_sink(work):
    """A CloudWatch sink whose service does the work. If that raises, the connection is closed without an answer."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            with suppress(OSError):  # of the work, or because the sink has stopped waiting
                work()
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
            self.close_connection = True

        def log_message(self, *_):
            """Keep the output of the tests clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()

    def clean_up():
        sink._publisher._sender.send = lambda *_: True  # otherwise, it would try again until the tests end
        server.shutdown()
        thread.join()
        server.server_close()

    sink = CloudWatchSink(
        period=1,
        endpoint_url=f"http://127.0.0.1:{server.server_port}",
        region="eu-west-1",
        credentials=Credentials("AKIDEXAMPLE", "the secret"),
    )
    return sink, clean_up


SINKS = {
    "callable": make_callable,
    "LogSink": make_log_sink,
    "PrometheusSink": make_prometheus_sink,
    "CloudWatchSink": make_cloudwatch_sink,
    "CloudWatchSink to the API": make_cloudwatch_api_sink,
    "OpenTelemetrySink": make_otel_sink,
    "opening": make_opening_sink,
}
FAULTS = ("slow", "raising", "hanging")


class Work:
    """The work of a sink: it counts its calls, and misbehaves."""

    def __init__(self, fault):
        self.fault = fault
        self.calls = 0
        self.released = threading.Event()

    def __call__(self):
        self.calls += 1
        if self.fault == "slow":
            time.sleep(0.05)
        elif self.fault == "raising":
            raise OSError("the disk is full")
        elif self.fault == "hanging":
            self.released.wait()
