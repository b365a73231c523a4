"""Do responses that Kinesis did not write cost records, or start a storm of requests?

A proxy is between the clients and the embedded server. For a while it answers by itself, as a firewall, a captive
portal or a misconfigured gateway does.
"""

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import pytest

from shardline import Client, Consumer, ConsumerConfig, Producer, ServiceError, deaggregate
from shardline import sync as blocking
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio

HTML = b"<html><title>Blocked</title><body>Access to this site is blocked</body></html>"
RESPONSES = {
    "204": (204, {}, b""),
    "302 captive portal": (302, {"Location": "http://portal.example/login"}, HTML),
    "307": (307, {"Location": "https://elsewhere.example"}, b""),
    "400 HTML": (400, {"Content-Type": "text/html"}, HTML),
    "401": (401, {"WWW-Authenticate": "Basic"}, b"login"),
    "403 HTML": (403, {"Content-Type": "text/html"}, HTML),
    "404": (404, {}, b"not found"),
    "405": (405, {"Allow": "GET"}, b""),
    "407": (407, {"Proxy-Authenticate": "Basic"}, b""),
    "413": (413, {"Content-Type": "text/html"}, b"<html>413 Request Entity Too Large</html>"),
    "421": (421, {}, b"Misdirected Request"),
    "400 JSON of another API": (
        400,
        {"Content-Type": "application/json"},
        b'{"code":"ValidationError","message":"no"}',
    ),
    "403 JSON without a code": (403, {"Content-Type": "application/json"}, b'{"message":"Forbidden"}'),
    "200 HTML": (200, {"Content-Type": "text/html"}, HTML),
}
FEW = ["307", "403 HTML", "404"]


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def event_loop_kind(request):
    return request.param


class Middlebox(ThreadingHTTPServer):
    """Forwards requests, unless it has a ``response`` of its own."""

    daemon_threads = True

    def __init__(self, kinesis):
        self.response = None
        self.answered_itself = 0
        self.target = kinesis.endpoint_url.removeprefix("http://")
        super().__init__(("127.0.0.1", 0), Relay)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.response is not None:
            self.server.answered_itself += 1
            self.answer(*self.server.response)
            return
        upstream = http.client.HTTPConnection(self.server.target, timeout=10)
        upstream.request("POST", self.path, body, dict(self.headers))
        response = upstream.getresponse()
        content = response.read()
        upstream.close()
        self.answer(response.status, {"Content-Type": response.headers["Content-Type"]}, content)

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Discard the log of the server."""


@pytest.fixture
def kinesis():
    with LocalKinesis(stream="s", shards=4, limits=False) as running:
        yield running


@pytest.fixture
def middlebox(kinesis):
    with Middlebox(kinesis) as box:
        thread = threading.Thread(target=box.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield box
        box.shutdown()
        thread.join(10)


def way(kinesis, middlebox):
    return {"endpoint_url": middlebox.url, "region": kinesis.region, "credentials": kinesis.credentials}


def stored(kinesis):
    return {int(record.data) for record in deaggregate(kinesis.streams["s"].records)}


def check(kinesis, middlebox, outcomes):
    assert [outcome.code for outcome in outcomes if not outcome.delivered] == []
    assert len(outcomes) == 700
    assert stored(kinesis) == set(range(700))
    # Four shards back off from 0.1 s on, one request each, besides those in flight. A storm has 500 and more.
    assert 1 <= middlebox.answered_itself <= 60


async def put_through(kinesis, middlebox, response):
    """Put records before, during and after a second in which the middlebox answers by itself."""
    async with Producer("s", **way(kinesis, middlebox)) as producer:
        deliveries = await producer.put_many([(f"k{n}", b"%d" % n) for n in range(200)])
        await producer.flush(10)
        middlebox.response = response
        for number in range(200, 400):
            deliveries.append(await producer.put(b"%d" % number, key=f"k{number}"))
            await anyio.sleep(0.005)
        middlebox.response = None
        deliveries += await producer.put_many([(f"k{n}", b"%d" % n) for n in range(400, 700)])
        outcomes = [await delivery.outcome() for delivery in deliveries]
    check(kinesis, middlebox, outcomes)


@pytest.mark.parametrize("name", FEW)
async def test_a_producer_loses_nothing_and_makes_no_storm(kinesis, middlebox, name):
    await put_through(kinesis, middlebox, RESPONSES[name])


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
@pytest.mark.parametrize("name", [name for name in RESPONSES if name not in FEW])
async def test_no_response_of_a_middlebox_costs_a_record(kinesis, middlebox, name):
    await put_through(kinesis, middlebox, RESPONSES[name])


def test_a_blocking_producer_loses_nothing_and_makes_no_storm(kinesis, middlebox):
    with blocking.Producer("s", **way(kinesis, middlebox)) as producer:
        deliveries = producer.put_many([(f"k{n}", b"%d" % n) for n in range(200)])
        producer.flush(10)
        middlebox.response = RESPONSES["403 HTML"]
        for number in range(200, 400):
            deliveries.append(producer.put(b"%d" % number, key=f"k{number}"))
            time.sleep(0.005)
        middlebox.response = None
        deliveries += producer.put_many([(f"k{n}", b"%d" % n) for n in range(400, 700)])
        outcomes = [delivery.outcome(20) for delivery in deliveries]
    check(kinesis, middlebox, outcomes)


@pytest.mark.parametrize("name", FEW)
async def test_a_consumer_reads_on(kinesis, middlebox, name):
    config = ConsumerConfig(idle_poll_interval=0.05, calls_per_second=200.0)
    seen = []
    async with (
        Client(**way(kinesis, middlebox)) as client,
        Consumer("s", config=config, **way(kinesis, middlebox)) as one,
    ):
        await client.put_record("s", b"0", "k")
        with anyio.fail_after(30):
            async for record in one:
                seen.append(int(record.data))
                if len(seen) == 2:
                    break
                middlebox.response = RESPONSES[name]
                await anyio.sleep(1)
                middlebox.response = None
                await client.put_record("s", b"1", "k")
    assert seen == [0, 1]
    assert middlebox.answered_itself <= 60


async def test_the_exception_of_a_client_says_what_came_and_that_it_may_be_tried_again(kinesis, middlebox):
    middlebox.response = RESPONSES["403 HTML"]
    async with Client(**way(kinesis, middlebox)) as client:
        with pytest.raises(ServiceError, match="Access to this site is blocked") as caught:
            await client.put_record("s", b"0", "k")
    assert (caught.value.code, caught.value.kind, caught.value.retryable) == ("Forbidden", "transient", True)
