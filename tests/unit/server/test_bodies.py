"""The same values, in JSON and in CBOR, as botocore reads and writes them."""

from datetime import UTC, datetime

import cbor2
import msgspec
import pytest

from shardline.codec import cbor
from shardline.server import bodies
from shardline.server.model.refusals import Refused, not_found

NOW = 1_700_000_000.123


def test_a_request_is_read_alike_from_both():
    members = {"StreamName": "s", "Data": b"\x00\xff", "PartitionKey": "k"}
    from_json = bodies.read_request("PutRecord", bodies.JSON, b'{"StreamName":"s","Data":"AP8=","PartitionKey":"k"}')
    assert from_json == bodies.read_request("PutRecord", bodies.CBOR, cbor.encode(members))
    assert from_json.data == b"\x00\xff"


def test_a_time_is_read_from_both():
    members = {"StreamName": "s", "ShardId": "a", "ShardIteratorType": "AT_TIMESTAMP"}
    when = datetime.fromtimestamp(NOW, UTC)
    by_cbor = bodies.read_request("GetShardIterator", bodies.CBOR, cbor.encode(members | {"Timestamp": when}))
    by_json = bodies.read_request("GetShardIterator", bodies.JSON, msgspec.json.encode(members | {"Timestamp": NOW}))
    assert by_cbor == by_json
    assert by_cbor.timestamp == NOW
    whole = bodies.read_request("GetShardIterator", bodies.JSON, msgspec.json.encode(members | {"Timestamp": 5}))
    assert whole.timestamp == 5.0


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (bodies.JSON, b""),
        (bodies.CBOR, b""),
        (bodies.JSON, b"{"),
        (bodies.JSON, b'"x"'),
        (bodies.CBOR, b"\xff"),
        (bodies.CBOR, b"{}"),
        (bodies.CBOR, cbor.encode([1])),
        (bodies.CBOR, cbor.encode({"Limit": "x"})),
        (bodies.CBOR, cbor.encode({"Limit": None}) + b"x"),
    ],
)
def test_what_cannot_be_read_is_refused(content_type, body):
    with pytest.raises(Refused) as caught:
        bodies.read_request("ListStreams", content_type, body)
    assert caught.value.code == "SerializationException"


def test_an_answer_is_written_in_both(server):
    server.create().put(b"\x00\xff")
    iterator = server.iterator()
    body = server.answer("GetRecords", ShardIterator=iterator).body
    by_json = msgspec.json.decode(bodies.write_answer(bodies.JSON, body))
    assert by_json["Records"][0]["Data"] == "AP8="
    assert by_json["Records"][0]["ApproximateArrivalTimestamp"] == server.now
    assert by_json["MillisBehindLatest"] == 0
    assert "ChildShards" not in by_json
    written = bodies.write_answer(bodies.CBOR, body)
    by_cbor = cbor.decode(written)
    assert by_cbor["Records"][0]["Data"] == b"\x00\xff"
    assert by_cbor["Records"][0]["ApproximateArrivalTimestamp"] == server.now
    assert by_cbor.keys() == by_json.keys()
    milliseconds = cbor2.dumps(cbor2.CBORTag(1, int(server.now * 1000)))
    assert milliseconds in written  # AWS's CBOR: tag 1 around milliseconds


def test_times_are_tagged_wherever_they_stand(server):
    server.create()
    server.register()
    server.now = NOW
    server.create("t").create_on_demand("d").create_channel("c", "d")
    server.set_commitment()
    for operation, members in (
        ("DescribeStreamSummary", {"StreamName": "t"}),
        ("ListStreamConsumers", {"StreamARN": server.arn()}),
        ("ListStreams", {}),
        ("ListChannels", {}),
        ("DescribeAccountSettings", {}),
    ):
        body = server.answer(operation, **members).body
        written = bodies.write_answer(bodies.CBOR, body)
        assert cbor.decode(written) == msgspec.to_builtins(body)
        assert b"\xc1\x1b" in written
    summary = bodies.write_answer(bodies.CBOR, server.answer("DescribeStreamSummary", StreamName="t").body)
    assert cbor2.dumps(cbor2.CBORTag(1, 1_700_000_000_000)) in summary


def test_an_operation_that_answers_nothing_has_no_body():
    assert bodies.write_answer(bodies.JSON, None) == b""
    assert bodies.write_answer(bodies.CBOR, None) == b""


def test_a_refusal_is_written_in_both():
    expected = {"__type": "ResourceNotFoundException", "message": "no"}
    assert msgspec.json.decode(bodies.write_refusal(bodies.JSON, not_found("no"))) == expected
    assert cbor.decode(bodies.write_refusal(bodies.CBOR, not_found("no"))) == expected


@pytest.mark.parametrize(
    ("method", "content_type", "has_body", "form"),
    [
        ("POST", "application/x-amz-json-1.1", True, bodies.JSON),
        ("POST", "  Application/X-Amz-Json-1.1 ; charset=utf-8", False, bodies.JSON),
        ("POST", "application/x-amz-cbor-1.1", True, bodies.CBOR),
        ("POST", "", False, bodies.CBOR),
        ("POST", "application/json", False, bodies.CBOR),
        ("POST", "application/json", True, bodies.OLD_JSON),
        ("POST", "", True, bodies.XML),
        ("POST", "text/plain", True, bodies.XML),
        ("GET", "application/x-amz-json-1.1", False, bodies.XML),
        ("OPTIONS", "", False, bodies.XML),
    ],
)
def test_the_form_of_a_request(method, content_type, has_body, form):
    headers = {"content-type": content_type} if content_type else {}
    assert bodies.form_of(method, headers, has_body=has_body) == form


@pytest.mark.parametrize(
    ("form", "body", "code", "status"),
    [
        (bodies.XML, b"{}", "AccessDeniedException", 403),
        (bodies.OLD_JSON, b"{}", "UnknownOperationException", 404),
        (bodies.OLD_JSON, b"[]", "SerializationException", 400),
        (bodies.OLD_JSON, b"hello", "SerializationException", 400),
        (bodies.OLD_JSON, b'{"\xff":1}', "SerializationException", 400),
    ],
)
def test_no_operation_can_be_called_in_the_other_forms(form, body, code, status):
    refusal = bodies.refusal_of_form(form, body)
    assert (refusal.code, refusal.status) == (code, status)


def test_an_operation_can_be_called_in_json_and_cbor():
    assert bodies.refusal_of_form(bodies.JSON, b"") is None
    assert bodies.refusal_of_form(bodies.CBOR, b"") is None


def test_a_refusal_in_the_other_forms():
    refusal = not_found("<a & b>")
    expected = {"Output": {"__type": "com.amazon.coral.service#ResourceNotFoundException"}, "Version": "1.0"}
    assert msgspec.json.decode(bodies.write_refusal(bodies.OLD_JSON, refusal)) == expected
    assert bodies.write_refusal(bodies.XML, refusal) == (
        b"<ResourceNotFoundException>\n  <Message>&lt;a &amp; b&gt;</Message>\n</ResourceNotFoundException>\n"
    )
    assert bodies.write_refusal(bodies.XML, Refused("InternalFailure", "", 500)) == b"<InternalFailure/>\n"
