"""Can a web page control the embedded server? A real browser tries it (``make test-browser``).

Chromium opens a page of another origin, which does what any page may do (``attacks.js``), and reports what it learned.
The first test sends the same attacks to an undefended server: there they arrive, so they are real.
"""

import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest

from shardline.testing import LocalKinesis

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FILES = {
    "/": ("text/html", b'<!doctype html><title>a page</title><body><script src="/attacks.js"></script>'),
    "/attacks.js": ("text/javascript", Path(__file__).with_name("attacks.js").read_bytes()),
}
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--host-resolver-rules=MAP evil.example 127.0.0.1", "--ignore-certificate-errors"),
]
WITHIN = 120  # seconds: on a busy machine, a browser takes half a minute to start
OPAQUE = {"opaque", "blocked"}


class _Server(ThreadingHTTPServer):
    """Serves the page at ``/``, and keeps the requests that it gets."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port=0):
        self.seen = queue.SimpleQueue()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def port(self):
        return self.server_address[1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        self.server.seen.put((self.command, path, dict(self.headers), body))
        content_type, content = FILES.get(path, ("text/plain", b"")) if self.command == "GET" else ("text/plain", b"")
        self.send_response(200 if content else 404)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = do_OPTIONS = _answer  # noqa: N815 - as http.server looks them up

    def log_message(self, *_):
        """Print nothing."""


@contextmanager
def serving(port=0):
    with _Server(port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def browsing(url, *flags):
    """Chromium with this page open, and with its own profile."""
    assert Path(CHROMIUM).exists(), f"{CHROMIUM} is not here: apt-get install chromium, or set CHROMIUM"
    with tempfile.TemporaryDirectory(prefix="shardline-browser-", ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, url]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        ) as process:
            try:
                yield process
            finally:
                process.terminate()  # so that it ends its own processes, which write to the profile
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def wait_for(server, path):
    """Return the body of the request for this path."""
    end = time.monotonic() + WITHIN
    while True:
        _, found, _, body = server.seen.get(timeout=max(0.1, end - time.monotonic()))
        if found == path:
            return body


def attack(name, target):
    """Return what a page at ``name`` learned when it attacked this server."""
    with serving() as page, serving() as reports:
        report = f"http://127.0.0.1:{reports.port}"
        url = f"http://{name}:{page.port}/?target={target}&report={report}"
        with browsing(url, "--remote-debugging-port=0"):
            return json.loads(wait_for(reports, "/results"))


def drained(seen):
    found = []
    while not seen.empty():
        found.append(seen.get())
    return found


@pytest.fixture(params=["http", "https"])
def kinesis(request):
    """A server with something to lose, and a frozen clock. With https, Chromium speaks HTTP/2."""
    with LocalKinesis(stream="orders", tls=request.param == "https") as one:
        boto3.client("kinesis", **one.boto3_arguments).put_record(StreamName="orders", Data=b"x", PartitionKey="k")
        one.clock.freeze()
        yield one


def state_of(kinesis):
    return {
        "now": kinesis.clock.now(),
        "faults": [fault.to_dict() for fault in kinesis.faults.rules],
        "streams": {name: (stream.status, stream.record_count) for name, stream in kinesis.streams.items()},
        "requests": [(request.operation, request.error) for request in kinesis.requests.find()],
    }


def test_the_attacks_arrive_at_a_server_that_does_not_defend_itself():
    with serving() as victim:
        results = attack("evil.example", f"http://127.0.0.1:{victim.port}")
        seen = drained(victim.seen)
    arrived = [(method, path, body) for method, path, _, body in seen]
    hour = b'{"advance": 3600}'
    assert arrived.count(("POST", "/_shardline/clock", hour)) == 6, arrived
    assert ("POST", "/_shardline/faults", b'{"kind": "throttle"}') in arrived
    assert ("POST", "/_shardline/faults", b'{"kind":"throttle","stream":"="}\r\n') in arrived
    assert [path for method, path, _, _ in seen if method == "OPTIONS"] == [
        "/_shardline/clock",
        "/_shardline/requests",
        "/",
    ]
    assert {headers.get("Origin") for method, _, headers, _ in seen if method == "POST"} == {
        next(headers["Origin"] for _, _, headers, _ in seen if "evil" in headers.get("Origin", "")),
        "null",
    }
    assert "no answer" not in results.values()


@pytest.mark.parametrize(
    ("name", "server"),
    [("evil.example", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("localhost", "localhost")],
)
def test_a_page_of_another_origin_changes_and_learns_nothing(kinesis, name, server):
    before = state_of(kinesis)
    results = attack(name, kinesis.endpoint_url.replace("127.0.0.1", server))
    after = state_of(kinesis)
    # A request to the API without an operation is answered with an error, as for any program.
    assert [error for _, error in after.pop("requests")[1:] if error is None] == []
    del before["requests"]
    assert after == before
    assert results.pop("beacon") == "true"  # sent, but the page cannot read the answer
    assert set(results.values()) <= OPAQUE, results


def rebind(kinesis_settings):
    """Return what a page learned after its own name was rebound to the embedded server, and the server's state before
    and after.
    """
    with ExitStack() as stack:
        reports = stack.enter_context(serving())
        with serving() as page:
            origin = f"http://evil.example:{page.port}"
            url = f"{origin}/?rebound&target={origin}&report=http://127.0.0.1:{reports.port}"
            stack.enter_context(browsing(url, "--remote-debugging-port=0"))
            wait_for(reports, "/loaded")
            port = page.port
        kinesis = stack.enter_context(LocalKinesis(port=port, stream="orders", **kinesis_settings))
        kinesis.clock.freeze()
        before = state_of(kinesis)
        results = json.loads(wait_for(reports, "/results"))
        return results, before, state_of(kinesis)


def test_dns_rebinding_reaches_neither_the_control_path_nor_the_api():
    results, before, after = rebind({})
    assert after == before
    refused = {name: answer[:4] for name, answer in results.items()}
    assert refused == dict.fromkeys(
        ["clock", "text/plain", "read", "list streams", "faults", "delete a stream"], "403 "
    )
    assert "--allow-host evil.example" in results["list streams"]


def test_a_page_of_a_host_that_is_allowed_may_do_everything():
    results, before, after = rebind({"allow_host": "evil.example"})
    assert {name: answer[:4] for name, answer in results.items()} == {
        "clock": "200 ",
        "text/plain": "415 ",
        "read": "200 ",
        "list streams": "200 ",
        "faults": "200 ",
        "delete a stream": "400 ",  # throttled by the fault that the page has set
    }
    assert after["now"] == before["now"] + 3600
    assert [fault["kind"] for fault in after["faults"]] == ["throttle"]
    assert [operation for operation, _ in after["requests"] if operation] == ["ListStreams", "DeleteStream"]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_person_may_look_at_the_control_path(kinesis, name):
    url = f"{kinesis.endpoint_url.replace('127.0.0.1', name)}/_shardline/health"
    with browsing(url, "--dump-dom") as process:
        shown = process.communicate(timeout=WITHIN)[0]
    assert re.search(r'\{"status":\s*"ok"', shown), shown
