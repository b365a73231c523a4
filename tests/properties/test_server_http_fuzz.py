"""Is every request over HTTP/1.1 answered by us, and never by aiohttp's own page of status 500?

Raw requests over sockets have methods, targets, headers and bodies that hardly any client would send. For any input,
the server logs nothing above INFO, answers in JSON (or AWS's XML, or CBOR) and keeps serving.
"""

import contextlib
import json
import logging
import re
import socket

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardline.codec import cbor
from shardline.server.model.fault_kinds import KINDS
from shardline.server.model.inputs import INPUTS
from shardline.testing import LocalKinesis

AIOHTTP = re.compile(rb"Server got itself in trouble|aiohttp\.web|Traceback")
JSON = b"application/json"
METHODS = [
    b"POST",
    b"GET",
    b"HEAD",
    b"PUT",
    b"DELETE",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PATCH",
    b"PRI",
    b"x",
    b"get",
]
PATHS = [b"health", b"faults", b"faults/1", b"requests", b"clock", b"streams", b"", b"nothing"]
HOSTS = [
    b"localhost",
    b"127.0.0.1:80",
    b"[::1]",
    b"evil.example",
    b"",
    b"a, b",
    b"\xff\x00",
    b"localhost:99999999999",
    None,
]
ODD_BYTES = [
    b"%00",
    b"%ff",
    b"%ed%a0%80",
    b"%",
    b"%zz",
    b"%2e%2e",
    b"%0d%0a",
    b"\xff",
    b"\xc3\xa9",
    b"+",
    b"//",
    b";",
    b"#",
]
NUMBERS = [
    b"0",
    b"-0",
    b"-1",
    b"1e12",
    b"1e999",
    b"NaN",
    b"Infinity",
    b"9" * 25,
    b"9" * 5000,
    b"1e-400",
    b"-0.0",
    b"true",
]


@pytest.fixture(scope="module")
def kinesis():
    with LocalKinesis(limits=False, stream="s") as one:
        yield one


@pytest.fixture(scope="module")
def strict():
    """A server that verifies signatures, and needs a token."""
    with LocalKinesis(limits=False, stream="s", token="0123456789abcdef") as one:
        yield one


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog):
    with caplog.at_level(logging.WARNING):
        yield
    said = [*caplog.get_records("setup"), *caplog.get_records("call")]
    assert [(one.name, one.getMessage()) for one in said] == []


def exchange(kinesis, data):
    """Send, and return everything that arrives until the server closes the connection, as each request demands."""
    received = bytearray()
    address = ("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=10) as one, contextlib.suppress(ConnectionError):
        one.sendall(data)
        while chunk := one.recv(65_536):
            received += chunk
    return bytes(received)


def statuses_of(answer, data):
    """Return the statuses of an answer, all of which must be ours."""
    assert not AIOHTTP.search(answer), (answer[:600], data[:600])
    found = [int(status) for status in re.findall(rb"(?:^|\n|\})HTTP/1\.[01] (\d{3})", answer)]
    assert all(status < 500 for status in found), (answer[:600], data[:600])
    return found


def works(kinesis):
    kinesis.faults.clear()
    if "s" not in kinesis.streams:  # a request has deleted it
        kinesis.create_stream("s")
    body = b'{"StreamName":"s","Data":"eA==","PartitionKey":"k"}'
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.1\r\n"
    head += b"X-Amz-Target: Kinesis_20131202.PutRecord\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = exchange(kinesis, head + body)
    assert answer.startswith((b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 400 Bad Request\r\n")), answer[:300]
    assert b"SequenceNumber" in answer or b"MissingAuthenticationTokenException" in answer


def raw_request(method, target, headers, body):
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    lines += [b"%b: %b" % (name, value) for name, value in headers if value is not None]
    return b"\r\n".join([*lines, b"Connection: close", b"Content-Length: %d" % len(body), b"", b""]) + body


odd_bytes = st.one_of(st.sampled_from(ODD_BYTES), st.binary(max_size=6).map(lambda raw: raw.replace(b"\n", b"")))
tails = st.lists(odd_bytes, max_size=3).map(b"".join)
queries = st.one_of(
    st.just(b""),
    st.builds(
        lambda name, value: b"?%b=%b" % (name, value),
        st.sampled_from(
            [b"limit", b"operation", b"stream", b"error", b"x", b"X-Amz-Algorithm", b"X-Amz-Credential", b""]
        ),
        st.one_of(st.sampled_from(NUMBERS), tails, st.just(b"x" * 7_000), st.just(b"&a=b" * 1_500)),
    ),
)
targets = st.one_of(
    st.sampled_from(
        [b"/", b"*", b"/?", b"//", b"http://", b"http:///", b"http://[::1/", b"localhost:1", b"http://evil/", b"?"]
    ),
    st.builds(lambda path, tail, query: b"/_shardline/" + path + tail + query, st.sampled_from(PATHS), tails, queries),
    st.builds(
        lambda host, path, query: b"http://" + (host or b"") + b"/_shardline/" + path + query,
        st.sampled_from(HOSTS),
        st.sampled_from(PATHS),
        queries,
    ),
    st.builds(lambda tail, query: b"/" + tail + query, tails, queries),
)
numbers = st.one_of(
    st.sampled_from(NUMBERS),
    st.floats().map(lambda value: json.dumps(value).encode()),
    st.integers().map(lambda value: b"%d" % value),
)
rules = st.builds(
    lambda kind, members: (
        b'{"kind":"%b"%b}' % (kind.encode(), b"".join(b',"%b":%b' % (name.encode(), value) for name, value in members))
    ),
    st.sampled_from(sorted(KINDS)),
    st.lists(
        st.tuples(
            st.sampled_from(sorted({name for kind in KINDS.values() for name in kind.__struct_fields__})),
            st.one_of(
                numbers,
                st.sampled_from([b'"split"', b'"s"', b'"\\ud800"', b'"\\u0000\\r\\n"', b'["x"]', b"{}", b"null"]),
            ),
        ),
        max_size=3,
    ),
)
bodies = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    numbers.map(lambda number: b'{"advance":%b}' % number),
    numbers.map(lambda number: b'{"freeze":true,"advance":%b}' % number),
    rules,
    st.lists(rules, max_size=3).map(lambda some: b"[%b]" % b",".join(some)),
    st.just(b"[" * 20_000),
    numbers.map(
        lambda number: b'{"StreamName":"s","ShardCount":%b,"Limit":%b,"RetentionPeriodHours":%b}' % ((number,) * 3)
    ),
    numbers.map(
        lambda number: (
            b'{"StreamName":"s","ShardId":"shardId-000000000000","ShardIteratorType":"AT_TIMESTAMP","Timestamp":%b}'
            % number
        )
    ),
    numbers.map(lambda number: b'{"StreamName":"s","ShardFilter":{"Type":"AT_TIMESTAMP","Timestamp":%b}}' % number),
    numbers.map(lambda number: b'{"StreamName":"s","StreamCreationTimestamp":%b}' % number),
    st.floats().map(lambda number: cbor.encode({"StreamName": "s", "Timestamp": number})),
)
headers = st.builds(
    lambda host, kind, operation, rest: [(b"Host", host), (b"Content-Type", kind), (b"X-Amz-Target", operation), *rest],
    st.one_of(st.just(b"localhost"), st.just(b"localhost"), st.sampled_from(HOSTS)),
    st.sampled_from([JSON, JSON, b"application/x-amz-json-1.1", b"application/x-amz-cbor-1.1", b"text/plain", b"\xff", None]),
    st.sampled_from([None, b"Kinesis_20131202.", b"\xff", *(b"Kinesis_20131202." + name.encode() for name in sorted(INPUTS))]),
    st.lists(
        st.tuples(
            st.sampled_from([b"Origin", b"Sec-Fetch-Site", b"Authorization", b"X-Amz-Date", b"Date", b"Host", b"Expect", b"Upgrade"]),
            st.one_of(
                st.sampled_from([b"null", b"http://evil", b"AWS4-HMAC-SHA256 Credential=\xff/", b"Bearer \xff", b"websocket", b"100-continue"]),
                st.binary(max_size=9).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b"")),
                st.just(b"x" * 7_000),
            ),
        ),
        max_size=2,
    ),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(METHODS), targets, headers, bodies)
@example(b"POST", b"/_shardline/clock", [(b"Host", b"localhost"), (b"Content-Type", JSON)], b'{"advance": 1e12}')
@example(b"GET", b"/_shardline/\xff", [(b"Host", b"localhost")], b"")
@example(b"GET", b"/", [], b"")
def test_no_request_is_answered_by_aiohttp(kinesis, strict, method, target, headers, body):
    data = raw_request(method, target, headers, body)
    for server in (kinesis, strict):
        answer = exchange(server, data)
        server.faults.clear()
        # A fault that was set may break its own connection; everything else is answered.
        assert statuses_of(answer, data) or not answer, data[:600]
        works(server)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(INPUTS)), rules)
def test_no_fault_makes_the_shell_fail(kinesis, operation, rule):
    """An accepted rule is carried out, whatever its numbers are."""
    head = [(b"Host", b"localhost"), (b"Content-Type", JSON)]
    kinesis.faults.clear()
    answer = exchange(kinesis, raw_request(b"POST", b"/_shardline/faults", head, rule))
    assert statuses_of(answer, rule) in ([200], [400])
    for fault in kinesis.faults.rules:
        if fault.rule.kind == "latency":  # it may wait for an hour
            fault.remove()
    target = b"Kinesis_20131202." + operation.encode()
    head = [(b"Host", b"localhost"), (b"Content-Type", b"application/x-amz-json-1.1"), (b"X-Amz-Target", target)]
    answer = exchange(kinesis, raw_request(b"POST", b"/", head, b'{"StreamName":"s"}'))
    assert not AIOHTTP.search(answer), (answer[:600], rule)
    works(kinesis)


@pytest.mark.parametrize(
    "length", [b"-1", b"+1", b"1e3", b"0x10", b"9" * 30, b"9" * 5000, b"", b"1, 1", b"1\r\nContent-Length: 2"]
)
def test_a_length_that_is_no_length_is_refused(kinesis, length):
    data = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %b\r\n\r\n{}" % length
    assert statuses_of(exchange(kinesis, data), data) in ([400], [413])
    works(kinesis)


@pytest.mark.parametrize(
    "hosts", [b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: localhost\r\nhOST: evil.example\r\n"]
)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("path", [b"/", b"/_shardline/clock"])
def test_a_request_needs_one_host(kinesis, hosts, version, path):
    data = b"GET %b HTTP/%b\r\n%bConnection: close\r\n\r\n" % (path, version, hosts)
    answer = exchange(kinesis, data)
    assert statuses_of(answer, data) == [400]
    content = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert "Host" in content.get("message", content.get("error", ""))
    works(kinesis)
