"""CBOR 1.1 by example."""

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType

import cbor2
import pytest

from shardline.codec import awscbor, awsjson
from shardline.codec.envelope import BodyError
from shardline.codec.shapes import (
    DescribeStreamSummaryResponse,
    GetRecordsResponse,
    GetShardIteratorResponse,
    ListShardsResponse,
    RawRecord,
    SubscribeToShardEvent,
)
from shardline.model.record import Entry
from shardline.model.stream import parse_stream

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


def loads(body):
    """Return the value that cbor2 reads, with times as their milliseconds."""
    return cbor2.loads(body, semantic_decoders={1: lambda value, _: ("milliseconds", value)})


# ---- requests


def test_put_records_by_name():
    entries = [
        Entry(b"one", "key"),
        Entry(b"", 'quo"te\\ \x00\x1f\n ä 😀', "0"),
        Entry(bytes(range(256)), None),
        Entry(b"four" * 20_000, None, str(2**128 - 1)),
        Entry(b"five", "😀" * 256),
    ]
    assert loads(awscbor.encode_put_records(parse_stream("orders"), entries)) == {
        "Records": [
            {"Data": b"one", "PartitionKey": "key"},
            {"Data": b"", "PartitionKey": 'quo"te\\ \x00\x1f\n ä 😀', "ExplicitHashKey": "0"},
            {"Data": bytes(range(256))},
            {"Data": b"four" * 20_000, "ExplicitHashKey": str(2**128 - 1)},
            {"Data": b"five", "PartitionKey": "😀" * 256},
        ],
        "StreamName": "orders",
    }


def test_put_records_by_arn():
    body = loads(awscbor.encode_put_records(parse_stream(ARN), [Entry(b"x", "k")]))
    assert body == {"Records": [{"Data": b"x", "PartitionKey": "k"}], "StreamARN": ARN}


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256, 500])
def test_put_records_of_any_number(count):
    body = loads(awscbor.encode_put_records(parse_stream("orders"), [Entry(b"x", "k")] * count))
    assert body == {"Records": [{"Data": b"x", "PartitionKey": "k"}] * count, "StreamName": "orders"}


def test_any_request_is_written_with_its_values():
    params = {
        "Text": "ä😀",
        "Number": -5,
        "Yes": True,
        "Nothing": None,
        "Float": 1.5,
        "List": ["a", (b"b", 1)],
        "Map": {"k": {}},
    }
    assert loads(awscbor.encode(params)) == params | {"List": ["a", [b"b", 1]]}


@pytest.mark.parametrize("members", [{}, {"StreamName": "orders", "Limit": 5}, {"Tags": {"a": "b"}}])
def test_any_mapping_will_do(members):
    assert loads(awscbor.encode(MappingProxyType(members))) == members


@pytest.mark.parametrize(
    ("when", "milliseconds"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2026, 11, 15, 12, tzinfo=UTC), 1_794_744_000_000),
        (datetime(2026, 11, 15, 14, 0, 0, 123_999, tzinfo=timezone(timedelta(hours=2))), 1_794_744_000_123),
    ],
)
def test_times_are_tag_1_with_whole_milliseconds(when, milliseconds):
    body = awscbor.encode({"Timestamp": when})
    assert loads(body) == {"Timestamp": ("milliseconds", milliseconds)}
    assert b"\xc1" in body
    # both protocols encode the same time
    assert json.loads(awsjson.encode({"Timestamp": when})) == {"Timestamp": milliseconds / 1000}


def endless():
    loop = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [object(), 1j, "\ud800", {"\ud800": 1}, {5: 1}, 2**64, datetime(2026, 1, 1), endless(), {1}],  # noqa: DTZ001
    ids=range(9),
)
def test_a_value_without_a_form_in_cbor_is_refused(value):
    with pytest.raises(BodyError, match=r"^cannot be written as CBOR: "):
        awscbor.encode({"Value": value})


# ---- answers


@pytest.mark.parametrize("shape", [GetRecordsResponse, SubscribeToShardEvent])
def test_records_have_their_data_and_their_time_in_seconds(shape):
    records = [
        {
            "SequenceNumber": str(i),
            "Data": bytes(range(256)) * i,
            "PartitionKey": "null",  # a text, whatever it looks like
            "ApproximateArrivalTimestamp": cbor2.CBORTag(1, 1_794_744_000_123),
        }
        for i in range(20)
    ]
    page = awscbor.decode(cbor2.dumps({"Records": records, "MillisBehindLatest": 5}), shape)
    assert page.records == [RawRecord(bytes(range(256)) * i, str(i), "null", 1_794_744_000.123) for i in range(20)]
    assert page.millis_behind_latest == 5


def test_a_base64_text_in_place_of_a_blob_is_read_for_an_emulator_sends_it():
    body = cbor2.dumps({"Records": [{"SequenceNumber": "1", "Data": base64.b64encode(b"xyz").decode()}]})
    assert awscbor.decode(body, GetRecordsResponse).records == [RawRecord(b"xyz", "1")]


@pytest.mark.parametrize("member", ["NextShardIterator", "MillisBehindLatest", "ChildShards"])
def test_what_may_be_missing_may_be_null(member):
    assert awscbor.decode(cbor2.dumps({"Records": [], member: None}), GetRecordsResponse) == GetRecordsResponse([])


def test_an_empty_answer_is_an_empty_object():
    assert awscbor.decode(b"", ListShardsResponse) == ListShardsResponse(None, None)
    assert awscbor.decode_any(b"") == {}


def test_an_answer_in_json_is_read_as_json():
    body = b'{"Records":[{"SequenceNumber":"1","Data":"eHk="}]}'
    assert awscbor.decode(body, GetRecordsResponse).records == [RawRecord(b"xy", "1")]
    assert awscbor.decode_any(body) == {"Records": [{"SequenceNumber": "1", "Data": b"xy"}]}


def test_a_broken_answer_in_json_is_a_body_error():
    with pytest.raises(BodyError):
        awscbor.decode(b'{"Records":', GetRecordsResponse)
    with pytest.raises(BodyError):
        awscbor.decode_any(b'{"Records":5}')


WRONG = [
    None,
    [],
    5,
    "x",
    b"x",
    {},
    {"Records": None},
    {"Records": {}},
    {"Records": "x"},
    {"Records": b"x"},
    {"Records": [None]},
    {"Records": [5]},
    {"Records": [{"SequenceNumber": "1"}]},
    {"Records": [{"Data": b"x"}]},
    {"Records": [{"Data": None, "SequenceNumber": "1"}]},
    {"Records": [{"Data": "no base64", "SequenceNumber": "1"}]},
    {"Records": [{"Data": {"type": "Buffer", "data": [1]}, "SequenceNumber": "1"}]},
    {"Records": [{"Data": b"x", "SequenceNumber": 1}]},
    {"Records": [{"Data": b"x", "SequenceNumber": "1", "PartitionKey": b"k"}]},
    {"Records": [{"Data": b"x", "SequenceNumber": "1", "ApproximateArrivalTimestamp": "soon"}]},
    {"Records": [{"Data": b"x", "SequenceNumber": "1", "ApproximateArrivalTimestamp": 10**400}]},
    {"Records": [], "MillisBehindLatest": "x"},
    {"Records": [], "ChildShards": 5},
    {"Records": [], "ChildShards": [{}]},
]


@pytest.mark.parametrize("shape", [GetRecordsResponse, SubscribeToShardEvent])
@pytest.mark.parametrize("answer", WRONG, ids=range(len(WRONG)))
def test_an_answer_that_does_not_fit_is_a_body_error_that_names_what_it_should_be(shape, answer):
    with pytest.raises(BodyError, match=f"^not a {shape.__name__}: "):
        awscbor.decode(cbor2.dumps(answer), shape)


BROKEN = [
    b"\xa1",
    b"\xbf",
    b"\xff",
    b"\xa1\x67Records",
    b"\xa1\x67Records\x9f",
    b"\xa1\x67Records\x80\x00",
    b"\xa1\x67Records\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xa1\x61\xff\x00",
    b"\xa1\x00\x00",
    b"\x81" * 200_000,
    b"\xa1\x61a" * 200_000,
    b"<html>",
    b" {}",
]


@pytest.mark.parametrize("shape", [GetRecordsResponse, GetShardIteratorResponse, DescribeStreamSummaryResponse])
@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_body_is_a_body_error(shape, body):
    with pytest.raises(BodyError, match=f"^not a {shape.__name__}: "):
        awscbor.decode(body, shape)
    with pytest.raises(BodyError):
        awscbor.decode_any(body)


@pytest.mark.parametrize("answer", [None, [], 5, "x", b"x"])
def test_any_answer_is_an_object(answer):
    with pytest.raises(BodyError):
        awscbor.decode_any(cbor2.dumps(answer))
