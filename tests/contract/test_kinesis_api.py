"""What must every ``KinesisApi`` do, whatever the transport? There is one suite, and a harness for each implementation.

The rules of the port: an expected failure is returned as a value after one attempt, and only a bug raises.
"""

import json
from contextlib import asynccontextmanager

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.adapters.aws.credential_provider import CredentialSource
from shardline.adapters.aws.endpoints import Endpoints, parse_endpoint
from shardline.adapters.aws.signed_http import SignedHttp
from shardline.adapters.http.http_failures import broken
from shardline.adapters.kinesis import SERVICE, TARGET_PREFIX, KinesisHttp
from shardline.codec import awscbor, awsjson
from shardline.codec.eventstream import encode_message
from shardline.codec.shapes import (
    GetRecordsResponse,
    GetShardIteratorResponse,
    ListShardsResponse,
    PutRecordsResponse,
    StreamSummary,
    SubscribeToShardEvent,
)
from shardline.core.error_codes import KIND_BY_CODE, Failure, FailureKind
from shardline.core.requests import (
    DescribeStreamSummary,
    GetRecords,
    GetShardIterator,
    ListShards,
    PutRecords,
    ShardFilter,
    SubscribeToShard,
)
from shardline.model.credentials import Credentials
from shardline.model.position import TRIM_HORIZON
from shardline.model.record import Entry
from shardline.model.stream import parse_stream
from shardline.ports import HttpResponse

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


class Scripted:
    """An ``HttpTransport`` that gives one prepared answer to everything."""

    def __init__(self):
        self.answer = None
        self.sent = 0

    async def post(self, *_):
        self.sent += 1
        return self.answer

    @asynccontextmanager
    async def stream(self, *_):
        self.sent += 1
        yield Arriving(self.answer) if isinstance(self.answer, HttpResponse) else self.answer

    async def close(self):
        pass


class Arriving:
    def __init__(self, answer):
        self.status, self.headers, body = answer
        self._chunks = [body[at : at + 7] for at in range(0, len(body), 7)]

    async def next_chunk(self, _timeout=None, _enough=1):
        return self._chunks.pop(0) if self._chunks else None

    async def read(self):
        return b"".join(self._chunks)


class HttpHarness:
    """``KinesisHttp`` with scripted answers."""

    def __init__(self, codec, write):
        self._write = write
        self._transport = Scripted()
        http = SignedHttp(
            transport=self._transport,
            credentials=CredentialSource(None, Credentials("AKID", "s")),
            endpoints=Endpoints(None, parse_endpoint("http://localhost:4567")),
            region="eu-west-1",
            service=SERVICE,
            target_prefix=TARGET_PREFIX,
            user_agent="test",
            wall_time=lambda: 1.7e9,
        )
        self.api = KinesisHttp(http, codec)

    def answers(self, members, status=200, headers=None):
        self.answers_raw(self._write(members), status, headers)

    def answers_raw(self, body, status=200, headers=None):
        self._transport.answer = HttpResponse(status, headers or {}, body)

    def breaks(self, failure):
        self._transport.answer = failure

    @property
    def attempts(self):
        return self._transport.sent


def in_json(members):
    return json.dumps(members, default=lambda blob: blob.decode("latin-1")).encode()


HARNESSES = {
    "http-json": lambda: HttpHarness(awsjson, in_json),
    "http-cbor": lambda: HttpHarness(awscbor, cbor2.dumps),
}


@pytest.fixture(params=HARNESSES)
def harness(request):
    return HARNESSES[request.param]()


def drive(awaitable):
    """Run a coroutine that never waits."""
    coroutine = awaitable.__await__()
    try:
        next(coroutine)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waited for something")


async def first_of_subscription(api):
    async with api.subscribe_to_shard(SubscribeToShard(f"{ARN}/consumer/c:1", "shardId-0", TRIM_HORIZON)) as events:
        if isinstance(events, Failure):
            return events
        first = await events.next_event()
        return {"end": True} if first is None else first


STREAM = parse_stream(ARN)
CALLS = {
    "put_records": (lambda api: api.put_records(PutRecords(STREAM, [Entry(b"x", "k"), Entry(b"y", None)])), PutRecordsResponse),
    "get_shard_iterator": (lambda api: api.get_shard_iterator(GetShardIterator(STREAM, "shardId-0", TRIM_HORIZON)), GetShardIteratorResponse),
    "get_records": (lambda api: api.get_records(GetRecords("AAA", 10, STREAM)), GetRecordsResponse),
    "list_shards": (lambda api: api.list_shards(ListShards(STREAM, ShardFilter("AT_LATEST"))), ListShardsResponse),
    "describe_stream_summary": (lambda api: api.describe_stream_summary(DescribeStreamSummary(STREAM)), StreamSummary),
    "call": (lambda api: api.call("DescribeLimits", {}), dict),
    "subscribe_to_shard": (first_of_subscription, (SubscribeToShardEvent, dict)),
}  # fmt: skip

GOOD = {
    "put_records": {"FailedRecordCount": 0, "Records": [{"SequenceNumber": "1", "ShardId": "s"}, {"ErrorCode": "InternalFailure"}]},
    "get_shard_iterator": {"ShardIterator": "AAA"},
    "get_records": {"Records": [], "NextShardIterator": "BBB", "MillisBehindLatest": 0},
    "list_shards": {"Shards": [], "NextToken": "t"},
    "describe_stream_summary": {"StreamDescriptionSummary": {"StreamName": "orders", "StreamARN": ARN, "StreamStatus": "ACTIVE"}},
    "call": {"ShardLimit": 500, "OpenShardCount": 2},
}  # fmt: skip

# Damaged versions of a good answer.
BAD_VALUES = [
    None,
    7,
    "text",
    [],
    {},
    [7],
    ["text"],
    [[]],
    [{}],
    [{"Data": 7}],
    [{"SequenceNumber": 7}],
    {"a": {"b": []}},
]


def called(harness, name):
    call, shape = CALLS[name]
    before = harness.attempts
    value = drive(call(harness.api))
    assert harness.attempts == before + 1
    assert isinstance(value, (Failure, shape) if isinstance(shape, type) else (Failure, *shape))
    return value


def test_every_method_of_the_port_is_in_this_suite():
    from shardline.ports import KinesisApi

    methods = {name for name in vars(KinesisApi) if not name.startswith("_")}
    assert methods == set(CALLS)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_answer_is_a_value(name, harness):
    harness.answers(GOOD[name])
    assert not isinstance(called(harness, name), Failure)


def test_a_good_event_is_a_value(harness):
    page = json.dumps({"Records": [], "ContinuationSequenceNumber": "1", "MillisBehindLatest": 0}).encode()
    frame = encode_message({":message-type": "event", ":event-type": "SubscribeToShardEvent"}, page)
    harness.answers_raw(frame)
    assert called(harness, "subscribe_to_shard").continuation_sequence_number == "1"
    harness.answers_raw(b"")
    assert called(harness, "subscribe_to_shard") == {"end": True}


@pytest.mark.parametrize("name", GOOD)
def test_unknown_members_are_ignored(name, harness):
    harness.answers(GOOD[name] | {"AddedIn2030": {"Deep": [1, {"x": None}]}})
    assert not isinstance(called(harness, name), Failure)


@pytest.mark.parametrize("name", CALLS)
def test_an_error_answer_is_a_failure_of_its_kind(name, harness):
    for code, kind in KIND_BY_CODE.items():
        told = {"__type": f"com.amazonaws.kinesis#{code}", "message": "told so"}
        harness.answers(told, 400, {"x-amzn-requestid": "id-1"})
        failure = called(harness, name)
        assert (failure.kind, failure.code, failure.status) == (kind, code, 400)
        assert (failure.request_id, failure.maybe_received) == ("id-1", True)
        assert "told so" in failure.message


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("body", [b"", b"{}", b"<html>no</html>", b"\xff\xfe\x00", b"{", b"[]", b"null"])
def test_an_error_answer_in_any_form_is_a_failure(name, body, harness):
    for status in (201, 204, 301, 400, 401, 403, 404, 407, 413, 429, 500, 502, 503, 504, 509, 599):
        harness.answers_raw(body, status)
        failure = called(harness, name)
        assert failure.status == status
        assert failure.code
        assert failure.message


@pytest.mark.parametrize("name", CALLS)
def test_a_broken_connection_is_a_failure(name, harness):
    failure = broken("ReadTimeout", "host")
    harness.breaks(failure)
    assert called(harness, name) is failure


@pytest.mark.parametrize("name", sorted(set(GOOD) - {"call"}))
def test_what_misses_a_required_member_is_no_answer(name, harness):
    harness.answers({})
    value = called(harness, name)
    if name == "list_shards":  # all its members are optional
        assert not isinstance(value, Failure)
        return
    assert (value.kind, value.code, value.maybe_received) == (FailureKind.TRANSIENT, "BadAnswer", True)


@pytest.mark.parametrize("name", CALLS)
def test_bytes_that_are_no_answer_raise_nothing(name, harness):
    nonsense = [b"{", b"[]", b"null", b"7", b'"text"', b"\xff", b"\xbf", b"\x80", b"<html>", b"\x00" * 100]
    for body in [*nonsense, b"[" * 5_000, b'{"a":' * 5_000, b"\x81" * 5_000]:
        harness.answers_raw(body)
        assert isinstance(called(harness, name), Failure)


@pytest.mark.parametrize("name", GOOD)
def test_members_of_wrong_types_raise_nothing(name, harness):
    for value in BAD_VALUES:
        for member in [*GOOD[name], "Records", "ChildShards", "__type"]:
            harness.answers(GOOD[name] | {member: value})
            assert called(harness, name) is not None  # a value or a Failure; an exception fails the test


@pytest.mark.parametrize("implementation", HARNESSES)
@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=40)
@given(status=st.sampled_from([200, 400, 500]), body=st.binary(max_size=60))
def test_no_answer_whatsoever_raises(implementation, name, status, body):
    harness = HARNESSES[implementation]()
    harness.answers_raw(body, status)
    called(harness, name)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("implementation", HARNESSES)
@pytest.mark.parametrize("name", GOOD)
@settings(max_examples=40)
@given(data=st.data())
def test_no_answer_with_the_right_members_raises(implementation, name, data):
    harness = HARNESSES[implementation]()
    members = {member: data.draw(ANYTHING) for member in GOOD[name]}
    harness.answers(members)
    called(harness, name)
