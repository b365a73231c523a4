"""How does each request become a call, and its response a value?"""

import json
from contextlib import asynccontextmanager

import cbor2
import pytest

from shardline.adapters.http.http_failures import broken
from shardline.adapters.kinesis import KinesisHttp, stream_members
from shardline.codec import awscbor, awsjson
from shardline.codec.envelope import BodyError
from shardline.codec.eventstream import encode_message
from shardline.codec.shapes import ListStreamsResponse, SubscribeToShardEvent
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import (
    DescribeStreamSummary,
    GetRecords,
    GetShardIterator,
    ListShards,
    PutRecords,
    ShardFilter,
    SubscribeToShard,
)
from shardline.model.position import LATEST, after_sequence_number, at_timestamp
from shardline.model.record import Entry
from shardline.model.stream import StreamRef, parse_stream
from shardline.ports import HttpResponse

pytestmark = pytest.mark.anyio

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
CONSUMER = f"{ARN}/consumer/c:1"
NAMED, BY_ARN = parse_stream("orders"), parse_stream(ARN)
BROKEN = broken("ConnectionReset", "host")


class Poster:
    """A fake ``SignedHttp``."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.sent = []
        self.closed = 0

    async def post(self, operation, content_type, body, routing, arn):
        self.sent.append((operation, content_type, bytes(body), dict(routing), arn))
        answer = self.answers.pop(0)
        return answer if isinstance(answer, Failure) else HttpResponse(200, {}, answer)

    @asynccontextmanager
    async def stream(self, operation, content_type, body, routing, arn):
        answer = await self.post(operation, content_type, body, routing, arn)
        yield answer if isinstance(answer, Failure) else Arriving(answer.body)

    def host_of(self, operation, _):
        return f"{operation}.example"

    async def close(self):
        self.closed += 1


class Arriving:
    def __init__(self, chunks):
        self.status, self.headers = 200, {}
        self._chunks = list(chunks)

    async def next_chunk(self, _timeout=None, _enough=1):
        return self._chunks.pop(0) if self._chunks else None


async def asked(method, request, answer):
    """Return the operation, the members and the routing of a request."""
    poster = Poster(answer)
    api = KinesisHttp(poster, awsjson)
    value = await getattr(api, method)(request)
    [(operation, content_type, body, routing, arn)] = poster.sent
    assert content_type == "application/x-amz-json-1.1"
    assert arn == routing.get("StreamARN")
    return value, operation, json.loads(body), arn


@pytest.mark.parametrize(("stream", "member"), [(NAMED, {"StreamName": "orders"}), (BY_ARN, {"StreamARN": ARN})])
async def test_put_records(stream, member):
    entries = [Entry(b"\0\xff", "k"), Entry(b"", None), Entry(b"x", "ü", "7")]
    results = b'{"FailedRecordCount":1,"Records":[{"SequenceNumber":"1","ShardId":"s"},{"ErrorCode":"InternalFailure","ErrorMessage":"m"},{"SequenceNumber":"2","ShardId":"s"}]}'
    value, operation, members, arn = await asked("put_records", PutRecords(stream, entries), results)
    assert (operation, arn) == ("PutRecords", stream.arn)
    assert members == member | {
        "Records": [
            {"Data": "AP8=", "PartitionKey": "k"},
            {"Data": ""},
            {"Data": "eA==", "PartitionKey": "ü", "ExplicitHashKey": "7"},
        ]
    }
    assert [one.error_code for one in value.records] == [None, "InternalFailure", None]
    assert value.failed_count == 1


@pytest.mark.parametrize("results", [0, 1, 3])
async def test_results_that_do_not_match_their_entries_are_a_count_mismatch(results):
    body = json.dumps({"Records": [{"SequenceNumber": "1"}] * results}).encode()
    value, *_ = await asked("put_records", PutRecords(NAMED, [Entry(b"x", "k")] * 2), body)
    assert (value.code, value.kind, value.maybe_received) == ("RecordCountMismatch", FailureKind.TRANSIENT, True)
    assert f"{results} results for 2 entries" in value.message
    assert "PutRecords.example" in value.message


@pytest.mark.parametrize(
    ("position", "members"),
    [
        (LATEST, {"ShardIteratorType": "LATEST"}),
        (after_sequence_number("42"), {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": "42"}),
        (at_timestamp(1.25), {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1.25}),
    ],
)
async def test_get_shard_iterator(position, members):
    request = GetShardIterator(BY_ARN, "shardId-1", position)
    value, operation, sent, arn = await asked("get_shard_iterator", request, b'{"ShardIterator":"AAA"}')
    assert (value.shard_iterator, operation, arn) == ("AAA", "GetShardIterator", ARN)
    assert sent == {"StreamARN": ARN, "ShardId": "shardId-1"} | members


@pytest.mark.parametrize(
    ("request_", "members"),
    [
        (GetRecords("AAA"), {"ShardIterator": "AAA"}),
        (GetRecords("AAA", 5), {"ShardIterator": "AAA", "Limit": 5}),
        (GetRecords("AAA", None, NAMED), {"ShardIterator": "AAA"}),  # the service accepts no name here
        (GetRecords("AAA", 5, BY_ARN), {"ShardIterator": "AAA", "Limit": 5, "StreamARN": ARN}),
    ],
)
async def test_get_records(request_, members):
    page = b'{"Records":[{"Data":"QUI=","SequenceNumber":"1","PartitionKey":"k","ApproximateArrivalTimestamp":1.5}],"NextShardIterator":"BBB","MillisBehindLatest":7}'
    value, operation, sent, arn = await asked("get_records", request_, page)
    assert (operation, sent, arn) == ("GetRecords", members, members.get("StreamARN"))
    assert (value.records[0].data, value.next_iterator, value.millis_behind_latest) == (b"AB", "BBB", 7)


SHARD = b'{"Shards":[{"ShardId":"shardId-0","HashKeyRange":{"StartingHashKey":"0","EndingHashKey":"9"},"SequenceNumberRange":{"StartingSequenceNumber":"1"}}],"NextToken":"more"}'


@pytest.mark.parametrize(
    ("request_", "members"),
    [
        (ListShards(NAMED), {"StreamName": "orders"}),
        (ListShards(BY_ARN, max_results=9), {"StreamARN": ARN, "MaxResults": 9}),
        (ListShards(NAMED, ShardFilter("AT_LATEST")), {"StreamName": "orders", "ShardFilter": {"Type": "AT_LATEST"}}),
        (ListShards(NAMED, ShardFilter("AFTER_SHARD_ID", "shardId-4")), {"StreamName": "orders", "ShardFilter": {"Type": "AFTER_SHARD_ID", "ShardId": "shardId-4"}}),
        (ListShards(NAMED, ShardFilter("FROM_TIMESTAMP", timestamp=2.5)), {"StreamName": "orders", "ShardFilter": {"Type": "FROM_TIMESTAMP", "Timestamp": 2.5}}),
        (ListShards(NAMED, ShardFilter("AT_LATEST"), "token", 9), {"NextToken": "token", "MaxResults": 9}),
        (ListShards(BY_ARN, None, "token"), {"NextToken": "token"}),
    ],
)  # fmt: skip
async def test_list_shards(request_, members):
    value, operation, sent, arn = await asked("list_shards", request_, SHARD)
    assert (operation, sent) == ("ListShards", members)
    assert arn == request_.stream.arn  # every page comes from the same endpoint
    assert (value.shards[0].to_shard().shard_id, value.next_token) == ("shardId-0", "more")


async def test_describe_stream_summary():
    body = (
        b'{"StreamDescriptionSummary":{"StreamName":"orders","StreamARN":"%b","StreamStatus":"ACTIVE","MaxRecordSizeInKiB":2048}}'
        % ARN.encode()
    )
    value, operation, sent, arn = await asked("describe_stream_summary", DescribeStreamSummary(BY_ARN), body)
    assert (operation, sent, arn) == ("DescribeStreamSummary", {"StreamARN": ARN}, ARN)
    assert (value.name, value.status, value.max_record_bytes) == ("orders", "ACTIVE", 2_097_152)


@pytest.mark.parametrize("member", ["StreamARN", "ConsumerARN", "ResourceARN", "ChannelARN", "StreamId"])
async def test_any_call_is_routed_by_what_decides_its_address(member):
    poster = Poster(b'{"A":1}')
    assert await KinesisHttp(poster, awsjson).call("Anything", {"StreamName": "s", member: ARN, "B": b"\0"}) == {"A": 1}
    [(operation, _, body, routing, arn)] = poster.sent
    assert (operation, routing, arn) == ("Anything", {member: ARN}, ARN)
    assert json.loads(body) == {"StreamName": "s", member: ARN, "B": "AA=="}


async def test_any_call_without_an_arn_and_without_an_answer():
    poster = Poster(b"")
    assert await KinesisHttp(poster, awsjson).call("DeleteStream", {"StreamName": "s"}) == {}
    assert poster.sent[0][3:] == ({}, None)


async def test_a_typed_call():
    api = KinesisHttp(Poster(b'{"StreamNames":["a"],"HasMoreStreams":false}', b"[]", BROKEN), awsjson)
    assert (await api.typed_call("ListStreams", {}, ListStreamsResponse)).stream_names == ["a"]
    assert (await api.typed_call("ListStreams", {}, ListStreamsResponse)).code == "BadAnswer"
    assert await api.typed_call("ListStreams", {}, ListStreamsResponse) is BROKEN


async def test_what_cannot_be_written_is_a_mistake_of_the_caller():
    with pytest.raises(BodyError):
        await KinesisHttp(Poster(), awsjson).call("Anything", {"A": object()})


async def test_the_same_in_cbor():
    answer = cbor2.dumps({"Records": [{"SequenceNumber": "1", "ShardId": "s"}]})
    poster = Poster(answer, b'{"ShardIterator":"from a front end"}')
    api = KinesisHttp(poster, awscbor)
    await api.put_records(PutRecords(NAMED, [Entry(b"\0", "k")]))
    iterator = await api.get_shard_iterator(GetShardIterator(NAMED, "shardId-1", at_timestamp(1.25)))
    assert iterator.shard_iterator == "from a front end"
    assert {sent[1] for sent in poster.sent} == {"application/x-amz-cbor-1.1"}
    assert cbor2.loads(poster.sent[0][2]) == {"StreamName": "orders", "Records": [{"Data": b"\0", "PartitionKey": "k"}]}
    assert bytes.fromhex("c1") in poster.sent[1][2]  # a tagged time...
    assert (1250).to_bytes(2, "big") in poster.sent[1][2]  # ...in milliseconds


async def test_close():
    poster = Poster()
    await KinesisHttp(poster, awsjson).close()
    assert poster.closed == 1


def test_a_stream_is_named_once():
    assert stream_members(StreamRef("orders")) == {"StreamName": "orders"}
    assert stream_members(BY_ARN) == {"StreamARN": ARN}


# ---- subscriptions


def event(number, kind="SubscribeToShardEvent"):
    headers = {":message-type": "event", ":event-type": kind}
    return encode_message(headers, json.dumps({"Records": [], "ContinuationSequenceNumber": str(number)}).encode())


async def events_of(chunks):
    """Return all events, until the end or a failure."""
    api = KinesisHttp(Poster(chunks), awsjson)
    seen = []
    async with api.subscribe_to_shard(SubscribeToShard(CONSUMER, "shardId-1", LATEST)) as events:
        while (one := await events.next_event()) is not None:
            seen.append(one)
            if isinstance(one, Failure):
                break
    return seen


async def test_events_are_cut_out_of_chunks():
    stream = event(0, "initial-response") + event(1) + event(2, "SomethingNew") + event(3)
    for size in (1, 5, 64, len(stream)):
        seen = await events_of([stream[at : at + size] for at in range(0, len(stream), size)])
        assert [type(one) for one in seen] == [SubscribeToShardEvent] * 2
        assert [one.continuation_sequence_number for one in seen] == ["1", "3"]


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ([event(2)[:-1]], "BadAnswer"),
        ([event(2)[:-1] + b"\0"], "BadAnswer"),
        ([encode_message({":message-type": "event", ":event-type": "SubscribeToShardEvent"}, b"[]")], "BadAnswer"),
        ([BROKEN], "ConnectionReset"),
        ([encode_message({":message-type": "exception", ":exception-type": "a#KMSThrottlingException"}, b'{"message":"m"}')], "KMSThrottlingException"),
        ([encode_message({":message-type": "error", ":error-code": "X", ":error-message": "m"}, b"")], "X"),
        ([encode_message({":message-type": "error"}, b""), event(9)], "InternalFailure"),
        ([encode_message({":message-type": True}, b"")], "InternalFailure"),
    ],
)  # fmt: skip
async def test_a_failure_is_the_last(last, code):
    first, failure = await events_of([event(1), *last])
    assert first.continuation_sequence_number == "1"
    assert failure.code == code
    assert failure.message


async def test_a_subscription_that_does_not_begin():
    api = KinesisHttp(Poster(BROKEN), awsjson)
    async with api.subscribe_to_shard(SubscribeToShard(CONSUMER, "shardId-1", after_sequence_number("7"))) as events:
        assert events is BROKEN
    [(operation, _, body, routing, arn)] = api._http.sent
    assert (operation, routing, arn) == ("SubscribeToShard", {"ConsumerARN": CONSUMER}, CONSUMER)
    position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": "7"}
    assert json.loads(body) == {"ConsumerARN": CONSUMER, "ShardId": "shardId-1", "StartingPosition": position}
