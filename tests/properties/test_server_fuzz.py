"""Does anything that a client can send stop the local server, make it grow, or make it answer differently from AWS?

First the whole service is tested without sockets, where thousands of requests take a second: every member of every
operation with an invalid value, mutated bodies, random bytes. Then plain sockets carry data that is hardly HTTP, or not
at all.
"""

import contextlib
import json
import logging
import random
import re
import resource
import socket
import sqlite3
import struct
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.codec import cbor
from shardline.server import bodies
from shardline.server.endpoint import TARGET_PREFIX, Endpoint
from shardline.server.model.faults import Faults
from shardline.server.model.inputs import INPUTS
from shardline.server.model.service import Service
from shardline.server.model.settings import Limits, ServiceSettings
from shardline.server.request_log import RequestLog
from shardline.server.server_clock import ServerClock
from shardline.testing import LocalKinesis

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"
NUMBER = "49590338271490256608559692538361571095921575989136588898"
GOOD = {
    "StreamName": "s",
    "StreamARN": ARN,
    "ResourceARN": ARN,
    "ConsumerARN": f"{ARN}/consumer/c:1700000000",
    "ConsumerName": "c",
    "ShardId": "shardId-000000000000",
    "ShardToSplit": "shardId-000000000000",
    "ShardToMerge": "shardId-000000000000",
    "AdjacentShardToMerge": "shardId-000000000001",
    "NewStartingHashKey": "1000",
    "ShardIteratorType": "TRIM_HORIZON",
    "StartingPosition": {"Type": "TRIM_HORIZON"},
    "StartingSequenceNumber": NUMBER,
    "SequenceNumberForOrdering": NUMBER,
    "ShardIterator": "AAAA",
    "Data": "eA==",
    "PartitionKey": "k",
    "ExplicitHashKey": "7",
    "Records": [{"Data": "eA==", "PartitionKey": "k"}],
    "ScalingType": "UNIFORM_SCALING",
    "TargetShardCount": 2,
    "RetentionPeriodHours": 24,
    "Tags": {"a": "b"},
    "TagKeys": ["a"],
    "EncryptionType": "KMS",
    "KeyId": "alias/aws/kinesis",
    "ShardLevelMetrics": ["ALL"],
    "StreamModeDetails": {"StreamMode": "PROVISIONED"},
    "ShardFilter": {"Type": "AT_LATEST"},
    "MaxRecordSizeInKiB": 1024,
    "RecordDistributionStrategy": "USER_PARTITION_KEY",
    "Policy": '{"Statement": {"Effect": "Allow", "Principal": "*", "Action": "kinesis:*"}}',
    "WarmThroughputMiBps": 8,
    "MinimumThroughputBillingCommitment": {"Status": "ENABLED"},
    "ChannelName": "c",
    "ChannelARN": "arn:aws:kinesis:us-east-1:000000000000:channel/c",
    "ServiceExecutionRoleARN": "arn:aws:iam::000000000000:role/delivery",
    "StreamConfigurationList": [{"StreamARN": ARN, "RecordConfiguration": {"RecordFormatType": "JSON"}}],
    "S3DestinationConfiguration": {
        "StorageConfiguration": {
            "BucketARN": "arn:aws:s3:::records",
            "ExpectedBucketOwner": "000000000000",
            "CompressionType": "GZIP",
        }
    },
}
ODD = [
    *(None, True, False, 0, -1, 1, 3, 10_001, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**40, 0.5, -0.0, 1e308, 1e-300),
    *(
        "",
        " ",
        "x",
        "0" * 400,
        "x" * 5000,
        "\x00",
        "\ud7ff\uffff",
        "é" * 128,
        "🦀",
        "../../etc",
        "9" * 129,
        "-1",
        "1e5",
    ),
    *("shardId-999999999999", "2017-01-01T00:00:00Z", "arn:aws:kinesis:::", f"{ARN}/x", "TRIM_HORIZON"),
    *([], [None], [[]], [{}], ["x"] * 51, {}, {"": ""}, {"x": None}, {"Type": "LATEST"}, {"Type": "AT_TIMESTAMP"}),
    *([{"Data": "eA==", "PartitionKey": ""}], [{"Data": "?", "PartitionKey": "k"}], [{"PartitionKey": "k"}]),
    *([{"Data": "", "PartitionKey": "k", "ExplicitHashKey": str(2**128)}], [{"Data": "e", "PartitionKey": "k"}]),
]
RAW = [
    *(
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"1e400",
        b"-0",
        b"00",
        b'"\\ud800"',
        b'"\\udc00x"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
    ),
    *(b"[" * 50_000, b'{"a":' * 50_000, b"[" * 900 + b"]" * 900, b"9" * 5_000, b'"', b"", b"}", b"nul", b"// x"),
    *(b'"' + b"A" * 3_000_000 + b'"', b'{"Type":"LATEST","Type":"LATEST"}', b'[{"Data":"\\u0000"}]'),
]
TIMES = ("Timestamp", "StreamCreationTimestamp")


class Fuzzed:
    """A service with two streams, and its answers."""

    def __init__(self, **options):
        self.clock = ServerClock()
        self.service = Service(ServiceSettings(limits=Limits.without_rates()), Random(1), self.clock.now())
        faults = Faults(Random(1), self.clock.now)
        self.requests = RequestLog()
        self.endpoint = Endpoint(self.service, self.clock, faults=faults, requests=self.requests, **options)
        self.renew()

    def renew(self):
        """Create the stream again if a request has deleted it."""
        self.service.handle("CreateStream", {"StreamName": "s", "ShardCount": 2}, self.clock.now())

    def send(self, operation, body, content_type=bodies.JSON):
        headers = {"content-type": content_type, "x-amz-target": f"{TARGET_PREFIX}{operation}"}
        reply = self.endpoint.reply(headers, body)
        if reply.subscription is not None:
            reply.subscription.first()
            reply.subscription.due()
            reply.subscription.end()
        if reply.status != 200:
            refusal = msgspec.json.decode(reply.body) if content_type != bodies.CBOR else cbor.decode(reply.body)
            shown = (operation, body[:200], refusal)
            assert 400 <= reply.status < 500, shown
            assert refusal["__type"] == reply.headers["x-amzn-ErrorType"], shown
            assert refusal.keys() - {"__type"} <= {"message", "Message"}, shown
            assert refusal["__type"].endswith("Exception"), shown
        return reply

    def works(self):
        self.renew()
        body = json.dumps({"StreamName": "s", "Records": [{"Data": "eA==", "PartitionKey": "k"}]}).encode()
        assert self.send("PutRecords", body).status == 200


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog):
    """Check that the server logs nothing: errors of clients are not its own."""
    with caplog.at_level(logging.WARNING):
        yield
    said = [*caplog.get_records("setup"), *caplog.get_records("call")]  # caplog.records would be those of the teardown
    assert [(one.name, one.getMessage()) for one in said] == []


@pytest.fixture(scope="module")
def fuzzed():
    return Fuzzed()


def members_of(operation):
    return [field.encode_name for field in msgspec.structs.fields(INPUTS[operation])]


def good_members(operation):
    """Return a valid request with the required members."""
    required = [one.encode_name for one in msgspec.structs.fields(INPUTS[operation]) if one.required]
    named = {"StreamName": "s"} if "StreamName" in members_of(operation) else {}
    return named | {name: GOOD[name] for name in [*required, *(["PartitionKey"] if operation == "PutRecord" else [])]}


def test_the_good_members_are_all_known():
    assert {name for operation in INPUTS for name in good_members(operation)} <= set(GOOD)


@pytest.mark.parametrize("operation", sorted(INPUTS))
def test_every_member_with_every_odd_value(operation, fuzzed):
    for name in [*members_of(operation), "Unknown"]:
        for value in [*ODD, GOOD.get(name)]:
            fuzzed.renew()
            members = good_members(operation) | {name: value}
            fuzzed.send(operation, json.dumps(members).encode())
            with contextlib.suppress(cbor.CborError):  # integers over 64 bits
                fuzzed.send(operation, cbor.encode(members), bodies.CBOR)
        for raw in RAW:
            rest = json.dumps(good_members(operation)).encode()
            fuzzed.send(operation, b'{"%b":%b,%b' % (name.encode(), raw, rest[1:]))
    for value in ODD:
        fuzzed.send(operation, json.dumps(value).encode())
        with contextlib.suppress(cbor.CborError):
            fuzzed.send(operation, cbor.encode(value), bodies.CBOR)
    for raw in RAW:
        fuzzed.send(operation, raw)
        fuzzed.send(operation, raw, bodies.CBOR)
    fuzzed.works()


MOMENTS = [
    *(0, -0.0, -1, -1e-300, 5e-324, 0.5, 1e9, 1e12, 1e15, 1e18, 1e300, -1e300, 2**31, 2**53, 2**63 - 1, -(2**63)),
    *(253402300799, 253402300800, -62135596800, -62135596801, float("nan"), float("inf"), float("-inf")),
]
MOMENT = "the moment"
WITH_TIMES = [
    ("GetShardIterator", {"ShardId": "shardId-000000000000", "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": MOMENT}),
    ("ListShards", {"ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": MOMENT}}),
    ("ListShards", {"ShardFilter": {"Type": "FROM_TIMESTAMP", "Timestamp": MOMENT}}),
    ("ListShards", {"StreamCreationTimestamp": MOMENT}),
    ("ListStreamConsumers", {"StreamARN": ARN, "StreamCreationTimestamp": MOMENT}),
    ("SubscribeToShard", {"StartingPosition": {"Type": "AT_TIMESTAMP", "Timestamp": MOMENT}}),
    ("IncreaseStreamRetentionPeriod", {"RetentionPeriodHours": MOMENT}),
    ("DecreaseStreamRetentionPeriod", {"RetentionPeriodHours": MOMENT}),
    ("UpdateShardCount", {"TargetShardCount": MOMENT, "ScalingType": "UNIFORM_SCALING"}),
]


def with_moment(members, moment):
    if isinstance(members, dict):
        return {name: with_moment(value, moment) for name, value in members.items()}
    return moment if members is MOMENT else members


@pytest.mark.parametrize(("operation", "members"), WITH_TIMES)
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_any_time_is_served_or_refused(fuzzed, operation, members, moment):
    fuzzed.renew()
    sent = with_moment(members, moment)
    if operation == "SubscribeToShard":
        fuzzed.service.handle("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c"}, fuzzed.clock.now())
        [arn] = [arn for arn in fuzzed.service.state.consumers if "/consumer/c:" in arn]
        sent |= {"ConsumerARN": arn, "ShardId": "shardId-000000000000"}
    elif "StreamARN" not in sent:
        sent |= {"StreamName": "s"}
    for body, content_type in ((json.dumps(sent).encode(), bodies.JSON), (cbor.encode(sent), bodies.CBOR)):
        reply = fuzzed.send(operation, body, content_type)
        if operation == "GetShardIterator" and reply.status == 200 and content_type == bodies.JSON:
            assert fuzzed.send("GetRecords", reply.body).status == 200
    fuzzed.works()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(INPUTS)), st.binary(max_size=300), st.sampled_from([bodies.JSON, bodies.CBOR]))
def test_any_bytes(fuzzed, operation, body, content_type):
    fuzzed.send(operation, body, content_type)


def mutate(rng, body):
    """Change, cut, repeat or swap some of the bytes."""
    body = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(4):
            case 0:
                body[at : at + 1] = rng.randbytes(rng.randint(0, 3))
            case 1:
                del body[at : at + rng.randint(1, 9)]
            case 2:
                body[at:at] = body[max(0, at - rng.randint(1, 30)) : at]
            case _:
                body[at:at] = rng.choice([b"null", b"{}", b"[]", b'"', b"9" * 30, b"\\u0000", b"-", b"\xff", b"e9"])
    return bytes(body)


@pytest.mark.parametrize("content_type", [bodies.JSON, bodies.CBOR])
def test_mutated_requests(content_type, fuzzed):
    rng = random.Random(11)
    encode = cbor.encode if content_type == bodies.CBOR else lambda members: json.dumps(members).encode()
    for _ in range(6_000):
        operation = rng.choice(sorted(INPUTS))
        fuzzed.send(operation, mutate(rng, encode(good_members(operation))), content_type)
        fuzzed.renew()
    fuzzed.works()


@pytest.mark.parametrize(
    ("content_type", "status", "code"),
    [
        *((kind, 403, "AccessDeniedException") for kind in ("", "text/html", "*/*", "\x00;;")),
        ("application/json", 404, "UnknownOperationException"),
        (bodies.JSON + ";x=y", 400, "UnknownOperationException"),
    ],
)
@pytest.mark.parametrize(
    "target", [None, "", "Kinesis", "Kinesis_20131202.", "kinesis_20131202.PutRecords", "x" * 5000]
)
def test_odd_headers(content_type, status, code, target, fuzzed):
    headers = {"content-type": content_type} | ({} if target is None else {"x-amz-target": target})
    reply = fuzzed.endpoint.reply(headers, b"{}")
    assert (reply.status, reply.headers["x-amzn-ErrorType"]) == (status, code)


@pytest.mark.parametrize(
    "authorization", ["", "x", "AWS4-HMAC-SHA256 Credential=/", "Credential=" + "/" * 5000, "\xff"]
)
def test_odd_authorization(authorization, fuzzed):
    headers = {"content-type": bodies.JSON, "x-amz-target": f"{TARGET_PREFIX}ListStreams"}
    assert fuzzed.endpoint.reply(headers | {"authorization": authorization}, b"{}").status == 200


# ---- over sockets


@pytest.fixture(scope="module")
def kinesis():
    with LocalKinesis(limits=False) as one:
        one.create_stream("s", shards=2)
        yield one


def port_of(kinesis):
    return int(kinesis.endpoint_url.rpartition(":")[2])


def exchange(kinesis, *parts, finish=True, patience=0.4):
    """Send, and return everything that arrives until the server closes, or is silent for a moment."""
    received = bytearray()
    address = ("127.0.0.1", port_of(kinesis))
    with socket.create_connection(address, timeout=patience) as one, contextlib.suppress(OSError):
        for part in parts:
            one.sendall(part)
        if finish:
            one.shutdown(socket.SHUT_WR)
        while chunk := one.recv(65_536):
            received += chunk
    return bytes(received)


def request(operation="ListStreams", body=b"{}", *, headers=b"", length=None, method=b"POST", path=b"/"):
    head = b"%b %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.1\r\n" % (method, path)
    head += b"X-Amz-Target: Kinesis_20131202.%b\r\n" % operation.encode()
    if length is not False:
        head += b"Content-Length: %b\r\n" % (b"%d" % len(body) if length is None else length)
    return head + headers + b"\r\n" + body


def works(kinesis):
    body = b'{"StreamName":"s","Data":"eA==","PartitionKey":"k"}'
    last = request("PutRecord", body, headers=b"Connection: close\r\n")
    answer = exchange(kinesis, last, finish=False, patience=10.0)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer
    assert b'"SequenceNumber":' in answer


NO_HTTP = [
    b"\x00" * 100,
    b"\r\n" * 50,
    b"GET\r\n\r\n",
    b"POST / HTTP/9.9\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost\r\n\r\n",
    b"POST / HTTP/1.1\r\n: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nA\x00B: c\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 200,
    b"POST " + b"/x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"POST http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
    request(length=b"-1"),
    request(length=b"1e3"),
    request(length=b"99999999999999999999999999"),
    request(length=b"2\r\nContent-Length: 3"),
    request(length=b"2\r\nTransfer-Encoding: chunked"),
    request(length=False, headers=b"Transfer-Encoding: chunked\r\n", body=b"zz\r\n{}\r\n0\r\n\r\n"),
    request(length=False, headers=b"Transfer-Encoding: chunked\r\n", body=b"-2\r\n{}\r\n0\r\n\r\n"),
    request(length=False, headers=b"Transfer-Encoding: chunked\r\n", body=b"2\r\n{}X\r\n0\r\n\r\n"),
    request(length=False, headers=b"Transfer-Encoding: chunked\r\n", body=b"F" * 40 + b"\r\n{}"),
    request(length=False, headers=b"Transfer-Encoding: gzip, nonsense\r\n"),
    request(length=b"10737418240"),
    request(length=b"1000", body=b"{"),
    request(length=b"1000", body=b"{")[:-40],
]


@pytest.mark.parametrize("at", range(len(NO_HTTP)))
def test_what_is_no_http_is_refused_or_cut_off(at, kinesis):
    for finish in (True, False):
        answer = exchange(kinesis, NO_HTTP[at], finish=finish)
        assert not answer.startswith(b"HTTP/1.1 5"), answer
        assert b"Traceback" not in answer
    works(kinesis)


GOOD_HTTP = {
    "no target": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
    "get": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "odd method": request("Nothing", method=b"PATCH"),
    "odd path": request(path=b"/%00/../%ff?x=%zz#y", operation="Nothing"),
    "garbage": request(body=random.Random(1).randbytes(5_000)),
    "deep": request(body=b"[" * 1_000_000),
    "compressed": request(body=b"\x1f\x8b\x08" + bytes(100), headers=b"Content-Encoding: gzip\r\n"),
    "chunked": request(
        "Nothing", length=False, headers=b"Transfer-Encoding: chunked\r\n", body=b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    ),
    "upgrade": request("Nothing", headers=b"Connection: upgrade\r\nUpgrade: websocket\r\n"),
    "encodings": request("Nothing", headers=b"Accept: text/html\r\nAccept-Encoding: gzip, br\r\nTE: trailers\r\n"),
}


@pytest.mark.parametrize("name", GOOD_HTTP)
def test_well_formed_http_gets_an_error_of_aws(name, kinesis):
    answer = exchange(kinesis, GOOD_HTTP[name], finish=False)
    head, _, body = answer.partition(b"\r\n\r\n")
    is_post = GOOD_HTTP[name].startswith(b"POST")
    assert head.startswith(b"HTTP/1.1 400 " if is_post else b"HTTP/1.1 403 "), answer[:300]
    code = re.search(rb"x-amzn-ErrorType: (\w+)", head)[1]
    assert code in body  # JSON, CBOR, or XML for a method other than POST
    works(kinesis)


def test_a_client_may_ask_whether_to_go_on(kinesis):
    asking = request(headers=b"Expect: 100-continue\r\nConnection: close\r\n")
    answer = exchange(kinesis, asking, finish=False, patience=10.0)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_pipelined_requests_are_answered_in_order(kinesis):
    last = request(headers=b"Connection: close\r\n")
    answer = exchange(kinesis, *[request(), request("Nothing")] * 20, last, finish=False, patience=10.0)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [*[b"200", b"400"] * 20, b"200"]


def test_a_body_without_end_is_refused_while_it_comes(kinesis):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    piece = bytes(4 * 1024 * 1024)
    answer = exchange(kinesis, request(length=b"10737418240", body=b""), *[piece] * 40, finish=False)
    assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]
    assert b"RequestEntityTooLargeException" in answer
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
    works(kinesis)


def test_mutated_http(kinesis):
    rng = random.Random(5)
    whole = request(
        "PutRecord", b'{"StreamName":"s","Data":"eA==","PartitionKey":"k"}', headers=b"Connection: close\r\n"
    )
    for _ in range(300):
        answer = exchange(kinesis, mutate(rng, whole))
        assert not answer.startswith(b"HTTP/1.1 5"), answer
    works(kinesis)


def test_slow_and_vanishing_clients_delay_no_other_client(kinesis):
    whole = request("PutRecord", b'{"StreamName":"s","Data":"eA==","PartitionKey":"k"}')
    with contextlib.ExitStack() as stack:
        for at in range(200):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(kinesis)), timeout=5))
            one.sendall(whole[: at * len(whole) // 200])
            if at % 2:  # and half of them end with a reset
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        works(kinesis)
    works(kinesis)


def test_a_client_may_vanish_while_a_large_answer_comes(kinesis):
    if "large" not in kinesis.streams:
        kinesis.create_stream("large", shards=1)
    body = b'{"StreamName":"large","PartitionKey":"k","Data":"%b"}' % (b"A" * 1_000_000)
    for _ in range(8):
        assert exchange(kinesis, request("PutRecord", body, headers=b"Connection: close\r\n"), finish=False)
    where = b'{"StreamName":"large","ShardId":"shardId-000000000000","ShardIteratorType":"TRIM_HORIZON"}'
    answer = exchange(kinesis, request("GetShardIterator", where, headers=b"Connection: close\r\n"), finish=False)
    iterator = json.loads(answer.partition(b"\r\n\r\n")[2])
    for resets in (True, False):
        with socket.create_connection(("127.0.0.1", port_of(kinesis)), timeout=5) as one:
            one.sendall(request("GetRecords", json.dumps(iterator).encode()))
            assert one.recv(1_000).startswith(b"HTTP/1.1 200 ")
            if resets:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    works(kinesis)


def test_memory_does_not_grow_with_garbage(kinesis):
    rng = random.Random(3)

    def batch():
        for _ in range(60):
            exchange(kinesis, request(body=rng.randbytes(200_000)), finish=True)
            exchange(kinesis, rng.randbytes(20_000), finish=True)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    batch()
    before = batch()
    assert batch() - before < 8 * 1024
    works(kinesis)


# ---- connections that cannot be kept


@pytest.mark.parametrize("watched", [True, False], ids=["with a record of requests", "without"])
def test_what_cannot_be_kept_is_not_acknowledged_and_logged_once(watched, caplog):
    failures = [sqlite3.OperationalError("database or disk is full")] * 3

    def keep():
        if failures:
            raise failures.pop()

    clock = ServerClock()
    service = Service(ServiceSettings(), Random(1), clock.now())
    service.handle("CreateStream", {"StreamName": "s", "ShardCount": 1}, clock.now())
    endpoint = Endpoint(service, clock, on_handled=keep, requests=RequestLog() if watched else None)
    headers = {"content-type": bodies.JSON, "x-amz-target": f"{TARGET_PREFIX}PutRecord"}
    body = b'{"StreamName":"s","Data":"eA==","PartitionKey":"k"}'
    replies = [endpoint.reply(headers, body) for _ in range(5)]
    assert [one.status for one in replies] == [500, 500, 500, 200, 200]
    assert replies[0].headers["x-amzn-ErrorType"] == "InternalFailure"
    assert b"SequenceNumber" not in replies[0].body
    assert [one.name for one in caplog.records] == ["shardline.server.endpoint"]
    assert "disk is full" in caplog.text
    caplog.clear()


def test_a_bug_is_an_internal_failure_and_in_the_log(caplog):
    clock = ServerClock()
    service = Service(ServiceSettings(), Random(1), clock.now())
    service.handle = None
    headers = {"content-type": bodies.JSON, "x-amz-target": f"{TARGET_PREFIX}ListStreams"}
    reply = Endpoint(service, clock).reply(headers, b"{}")
    assert (reply.status, reply.headers["x-amzn-ErrorType"]) == (500, "InternalFailure")
    assert "TypeError" in caplog.text
    caplog.clear()
