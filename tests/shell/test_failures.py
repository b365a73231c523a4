"""What does a caller learn when an answer is bad or missing? The same on every event loop and transport, after one
request.
"""

import contextlib
import json
import socket
import ssl
import threading
import time
from typing import NamedTuple

import anyio
import cbor2
import pytest

from shardline import Credentials, CredentialsError, RequestError, ServiceError, TransportError, UsageError

pytestmark = pytest.mark.anyio

ENTRIES = [(b"x", "k")]
CONSUMER = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/c:1"


def error_body(code, message="told so"):
    return json.dumps({"__type": f"com.amazonaws.kinesis.v20131202#{code}", "message": message}).encode()


class Case(NamedTuple):
    script: object
    code: str
    exception: type = TransportError
    kind: str = "transient"
    status: int | None = None
    maybe_received: bool = True
    retryable: bool = True
    says: tuple = ()
    settings: dict = {}  # noqa: RUF012 - never changed


CASES = {
    "500 with a page": Case(
        lambda s: s.reply(b"<html><style>p{}</style><h1>Oh no</h1></html>", status=500, headers={"Content-Type": "text/html"}),
        "InternalServerError", ServiceError, status=500, says=("PutRecords", "Oh no"),
    ),
    "503 with nothing": Case(
        lambda s: s.reply(b"", status=503), "ServiceUnavailable", ServiceError, status=503, says=("HTTP status 503",)
    ),
    "throttled": Case(
        lambda s: s.reply(error_body("ProvisionedThroughputExceededException"), status=400, headers={"x-amzn-RequestId": "id-1"}),
        "ProvisionedThroughputExceededException", ServiceError, "throttled", 400, says=("told so", "id-1"),
    ),
    "throttled by a front end": Case(
        lambda s: s.reply(b"", status=429, headers={"Retry-After": "3"}), "TooManyRequests", ServiceError, "throttled", 429
    ),
    "denied": Case(
        lambda s: s.reply(error_body("AccessDeniedException"), status=400),
        "AccessDeniedException", ServiceError, "denied", 400, retryable=False,
    ),
    "no such stream": Case(
        lambda s: s.reply(error_body("ResourceNotFoundException"), status=400),
        "ResourceNotFoundException", ServiceError, "not-found", 400, retryable=False,
    ),
    "error in CBOR": Case(
        lambda s: s.reply(cbor2.dumps({"__type": "ExpiredTokenException", "message": "told so"}), status=400),
        "ExpiredTokenException", ServiceError, "expired-credentials", 400, says=("told so",),
    ),
    "redirect": Case(
        lambda s: s.reply(b"", status=307, headers={"Location": "http://127.0.0.1:1/"}),
        "Http307", ServiceError, "transient", 307,
    ),
    "nothing with status 200": Case(lambda s: s.reply(b""), "BadAnswer", says=("invalid response",)),
    "no JSON with status 200": Case(lambda s: s.reply(b'{"Records":[{"Seq'), "BadAnswer", says=("invalid response",)),
    "a page with status 200": Case(lambda s: s.reply(b"<html>captive portal</html>"), "BadAnswer"),
    "too few results": Case(
        lambda s: s.reply(b'{"Records":[]}'), "RecordCountMismatch", says=("0 results for 1 entries",)
    ),
    "compressed though not asked for": Case(
        lambda s: s.reply(b"\x1f\x8b\x08\x00", headers={"Content-Encoding": "gzip"}), "BadAnswer"
    ),
    "cut short": Case(
        lambda s: s.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"), "ConnectionReset", says=("cut short",)
    ),
    "chunks cut short": Case(lambda s: s.chunked([b"{"], end=False), "ConnectionReset", says=("cut short",)),
    "garbage": Case(lambda s: s.raw(b"220 mail.example ESMTP\r\n\r\n"), "BadAnswer", says=("invalid response",)),
    "garbage chunks": Case(
        lambda s: s.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"), "BadAnswer|ConnectionReset"
    ),
    "huge headers": Case(
        lambda s: s.raw(b"HTTP/1.1 200 OK\r\nX-Huge: " + b"a" * 300_000 + b"\r\nContent-Length: 2\r\n\r\n{}"), "BadAnswer"
    ),
    "reset": Case(lambda s: s.reset(), "ConnectionReset", says=("reset by peer",)),
    "closed without an answer": Case(lambda s: s.raw(), "ConnectionReset", says=("closed by the server",)),
    "silence": Case(lambda s: s.then_stay(), "ReadTimeout", says=("read_timeout",), settings={"read_timeout": 0.2}),
    "silence in the middle": Case(
        lambda s: s.then_stay(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), "ReadTimeout", settings={"read_timeout": 0.2}
    ),
}  # fmt: skip


def check(error, case, host):
    assert type(error) is case.exception
    assert error.code in case.code.split("|")
    facts = (error.kind, error.status, error.maybe_received, error.retryable, error.operation)
    assert facts == (case.kind, case.status, case.maybe_received, case.retryable, "PutRecords")
    for words in case.says:
        assert words in str(error)
    if case.exception is TransportError:
        assert host in str(error)
    # nothing keeps the request and its headers alive
    assert error.__cause__ is None
    assert error.__context__ is None


@pytest.mark.parametrize("name", CASES)
async def test_a_bad_response_is_reported_after_one_request(name, server, make_client):
    case = CASES[name]
    case.script(server)
    async with make_client(server, **case.settings) as client:
        with pytest.raises(RequestError) as caught:
            await client.put_records("orders", ENTRIES)
        check(caught.value, case, server.host)
        assert len(server.requests) == server.connections == 1
        # the client still works afterwards
        assert (await client.put_records("orders", ENTRIES)).records[0].sequence_number == "1"
    assert len(server.requests) == 2


async def test_the_delay_that_a_front_end_requests_is_reported(server, make_client):
    server.reply(b"", status=503, headers={"Retry-After": "17"})
    async with make_client(server) as client:
        with pytest.raises(ServiceError) as caught:
            await client.put_records("orders", ENTRIES)
    assert caught.value.retry_after == 17.0


async def test_a_slow_answer_is_no_failure_while_it_moves(server, make_client):
    def drip(peer, request):
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
        whole = b'{"Records":[{"SequenceNumber":"1","ShardId":"shardId-0"}]}'.ljust(60_000)
        for start in range(0, len(whole), 6_000):
            peer.send(whole[start : start + 6_000])
            time.sleep(0.05)  # longer than read_timeout in total, each pause shorter

    server.does(drip)
    async with make_client(server, read_timeout=0.15) as client:
        answer = await client.put_records("orders", ENTRIES)
    assert answer.records[0].shard_id == "shardId-0"


def every_now_and_then(beginning, piece):
    """A server that is never silent for long, and never finishes."""

    def drip(peer, _):
        with contextlib.suppress(OSError):  # the client has left
            peer.send(beginning)
            for _ in range(200):
                peer.send(piece)
                time.sleep(0.02)

    return drip


DRIPS = {
    "a head": (b"HTTP/1.1 200 OK\r\n", b"X-Some: Header\r\n"),
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "an error": (b"HTTP/1.1 503 No\r\nContent-Length: 100000\r\n\r\n", b" "),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize(
    ("what", "streamed"),
    [*((what, False) for what in DRIPS), ("a head", True), ("an error", True), ("100 Continue", True)],
)
async def test_a_drip_comes_to_an_end(what, streamed, *, server, make_client):
    """This also applies if an event stream was requested and a refusal comes."""
    server.does(every_now_and_then(*DRIPS[what]))
    async with make_client(server, read_timeout=0.3) as client:
        began = time.monotonic()
        subscription = client.subscribe_to_shard(CONSUMER, "shardId-0", "LATEST")
        with pytest.raises(TransportError) as caught:
            await (anext(subscription) if streamed else client.put_records("orders", ENTRIES))
        assert 0.25 < time.monotonic() - began < 2
    assert caught.value.code == "ReadTimeout"


async def test_a_chunked_answer_is_read_whole(server, make_client):
    server.chunked([b'{"Rec', b'ords":[{"Sequence', b'Number":"7","ShardId":"shardId-0"}]', b"}"])
    async with make_client(server) as client:
        assert (await client.put_records("orders", ENTRIES)).records[0].sequence_number == "7"


async def test_a_cbor_answer_is_read(server, make_client):
    body = cbor2.dumps({"FailedRecordCount": 0, "Records": [{"SequenceNumber": "7", "ShardId": "shardId-0"}]})
    server.reply(body, headers={"Content-Type": "application/x-amz-cbor-1.1"})
    async with make_client(server, protocol="cbor") as client:
        assert (await client.put_records("orders", ENTRIES)).records[0].sequence_number == "7"
    assert server.requests[0].headers["content-type"] == "application/x-amz-cbor-1.1"
    assert cbor2.loads(server.requests[0].body) == {
        "StreamName": "orders",
        "Records": [{"Data": b"x", "PartitionKey": "k"}],
    }


async def test_connections_are_kept_and_used_again(server, make_client):
    async with make_client(server) as client:
        for _ in range(5):
            await client.put_records("orders", ENTRIES)
    assert (len(server.requests), server.connections) == (5, 1)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_connection_that_the_server_closed_while_idle_is_not_used(is_busy, server, make_client):
    server.reply(keep=False)
    async with make_client(server) as client:
        await client.put_records("orders", ENTRIES)
        if is_busy:  # as in a busy program: the FIN is in the kernel, unnoticed by the loop
            time.sleep(0.05)  # noqa: ASYNC251
        else:
            await anyio.sleep(0.05)
        await client.put_records("orders", ENTRIES)
    assert (len(server.requests), server.connections) == (2, 2)


async def test_a_connection_closed_under_a_request_is_not_tried_again_in_secret(server, make_client):
    server.reply().raw()
    async with make_client(server) as client:
        await client.put_records("orders", ENTRIES)
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
        check(caught.value, Case(None, "ConnectionReset"), server.host)
    assert (len(server.requests), server.connections) == (2, 1)


async def test_a_refused_port(make_client):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host = f"127.0.0.1:{taken.getsockname()[1]}"
    async with make_client(f"http://{host}") as client:
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
    check(caught.value, Case(None, "ConnectError", maybe_received=False, says=("check endpoint_url",)), host)


@pytest.mark.parametrize("host", ["shardline-test.invalid", "a..b.invalid", "a" * 70 + ".invalid"])
async def test_a_host_that_is_not_there(host, make_client):
    async with make_client(f"http://{host}") as client:
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
    check(caught.value, Case(None, "DnsError", maybe_received=False, says=("cannot be resolved", "region")), host)


async def test_no_connection_in_time(make_client):
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):  # the backlog is full: further handshakes get no answer
            filler.setblocking(False)  # noqa: FBT003
            filler.connect_ex(full.getsockname())
        host = f"127.0.0.1:{full.getsockname()[1]}"
        async with make_client(f"http://{host}", connect_timeout=0.2) as client:
            with pytest.raises(TransportError) as caught:
                await client.put_records("orders", ENTRIES)
    check(caught.value, Case(None, "ConnectTimeout", maybe_received=False, says=("connect_timeout",)), host)


async def test_a_name_look_up_that_hangs_counts_as_connecting(make_client, monkeypatch):
    hung = threading.Event()

    def hang(*args):
        flags = args[5] if len(args) > 5 else 0
        if not flags & socket.AI_NUMERICHOST:  # trio requests that first, on the loop
            hung.wait(5)
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    async with make_client("http://kinesis.example", connect_timeout=0.15) as client:
        monkeypatch.setattr(socket, "getaddrinfo", hang)
        try:
            with pytest.raises(TransportError) as caught:
                await client.put_records("orders", ENTRIES)
        finally:
            hung.set()
    check(caught.value, Case(None, "ConnectTimeout", maybe_received=False), "kinesis.example")


async def test_a_server_that_does_not_read(start_server, make_client):
    mute = start_server(mute=True)
    async with make_client(mute, read_timeout=0.3, credentials=Credentials("A", "S")) as client:
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", [(bytes(900_000), "k")] * 10)
    check(caught.value, Case(None, "ReadTimeout", says=("read_timeout",)), mute.host)


async def test_an_answer_before_the_body_is_read_is_no_hang(start_server, make_client, wire):
    hasty = start_server(banner=b"HTTP/1.1 413 Too large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    async with make_client(hasty, read_timeout=0.3) as client:
        with pytest.raises(RequestError) as caught:
            await client.put_records("orders", [(bytes(900_000), "k")] * 10)
    # A client that writes before it reads only learns that the connection is broken.
    assert caught.value.status in {413, None}
    assert hasty.connections == 1 + wire.http2  # the first connection showed that the server does not speak HTTP/2


async def test_an_exception_that_the_caller_deals_with_is_not_mistaken_for_the_cause(server, make_client):
    server.reset()
    async with make_client(server) as client:
        try:
            raise ssl.SSLCertVerificationError("another matter")
        except ssl.SSLError:
            with pytest.raises(TransportError) as caught:
                await client.put_records("orders", ENTRIES)
    assert (caught.value.code, caught.value.kind) == ("ConnectionReset", "transient")


async def test_credentials_that_are_missing(make_client):
    async with make_client("http://127.0.0.1:1", credentials=None) as client:
        with pytest.raises(CredentialsError, match="AWS_ACCESS_KEY_ID"):
            await client.put_records("orders", ENTRIES)


async def test_a_wrong_argument_sends_nothing(server, make_client):
    async with make_client(server) as client:
        for wrong in ([], [("text", "k")], [(b"x", "")], [(b"x", "k", "-1")], [(b"x", "k")] * 501):
            with pytest.raises(UsageError):
                await client.put_records("orders", wrong)
        with pytest.raises(UsageError):
            await client.call("DescribeStream", {"When": object()})
        with pytest.raises(UsageError):
            await client.call("DescribeStream", ["StreamName", "orders"])
        with pytest.raises(UsageError):
            await client.call("Describe Stream")
    assert server.connections == 0
