"""Are requests sent as intended: signed in every way, in both protocols, and again after a connection was closed?"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from botocore.credentials import ReadOnlyCredentials
from tests.conformance.wire import (
    CBOR,
    JSON,
    SIGNING,
    Raw,
    Request,
    Wire,
    WireError,
    decode,
    encode,
    error_of,
    outcome_of,
)

from shardline.codec import cbor

KEYS = ReadOnlyCredentials("AKIAEXAMPLE", "secret", "token")


@pytest.fixture
def server():
    """A server that returns the request, and closes the connection after each answer."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            self.close_connection = True  # without announcing it

        def log_message(self, *_):
            """Print nothing."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    running.seen = seen
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture
def wire(server):
    made = Wire(f"http://127.0.0.1:{server.server_port}", "us-east-1", lambda: KEYS, now=lambda: 1_700_000_000.0)
    yield made
    made.close()


def test_a_connection_that_was_closed_is_opened_again(server, wire):
    for _ in range(3):
        assert wire.send(Request("ListStreams", b"{}")).status == 200
    assert len(server.seen) == 3


def test_no_answer_at_all_is_said():
    with pytest.raises(WireError, match=r"no answer from http://127.0.0.1:1"):
        Wire("http://127.0.0.1:1", "r", lambda: KEYS).send(Request("ListStreams", b"{}"))


@pytest.mark.parametrize("how", [*SIGNING, "at -900"])
def test_every_way_of_signing(server, wire, how):
    wire.send(Request("ListStreams", b'{"Limit": 1}', signing=how))
    [(path, headers, body)] = server.seen
    assert body == b'{"Limit": 1}'
    authorization = headers.get("authorization", "")
    assert bool(authorization) == (how not in {"none", "query"})
    assert ("X-Amz-Signature=" in path) == (how == "query")
    assert ("us-west-2" in authorization) == (how == "wrong region")
    assert ("/firehose/" in authorization) == (how == "wrong service")
    assert ("AKIAIOSFODNN7EXAMPLE" in authorization) == (how == "unknown key")
    assert headers["x-amz-target"].startswith("Kinesis_20131202.ListStreams")
    if how == "at -900":
        assert headers["x-amz-date"] == "20231114T215820Z"


def test_headers_can_be_left_out_and_added(server, wire):
    wire.send(Request("ListStreams", b"{}", headers={"X-Amz-Target": None, "Content-Type": "text/plain"}))
    [(_, headers, _)] = server.seen
    assert "x-amz-target" not in headers
    assert headers["content-type"] == "text/plain"


def test_both_protocols_have_the_same_trees():
    members = {"Data": b"\x00\xff", "PartitionKey": "k"}
    assert decode(JSON, encode(members, as_cbor=False)) == {"Data": "AP8=", "PartitionKey": "k"}
    assert decode(CBOR, encode(members, as_cbor=True)) == {"Data": "AP8=", "PartitionKey": "k"}
    assert decode(JSON, b"") is None
    assert decode("", b"<odd>") == "<odd>"
    with pytest.raises(TypeError):
        encode({"x": object()}, as_cbor=False)


def test_an_outcome_has_a_body_or_an_error_and_the_headers_that_were_asked_for():
    error = cbor.encode({"__type": "com.amazonaws.kinesis#ResourceNotFoundException", "message": "m"})
    outcome = outcome_of(Raw(400, {"content-type": CBOR, "x": "1"}, error), ("x", "y"))
    assert outcome == {
        "status": 400,
        "error": {"__type": "ResourceNotFoundException", "message": "m"},
        "headers": {"x": "1"},
    }
    assert error_of(outcome) == ("ResourceNotFoundException", "m")
    assert outcome_of(Raw(200, {}, b"")) == {"status": 200}
    assert error_of({"status": 500, "error": "<odd>"}) == ("", "")
    assert error_of({"error": {"__type": "X", "Message": "m"}}) == ("X", "m")
