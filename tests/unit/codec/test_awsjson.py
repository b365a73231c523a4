"""JSON 1.1 by example."""

import base64
import json
from array import array
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from types import MappingProxyType

import pytest

from shardline.codec import awsjson
from shardline.codec.envelope import BodyError
from shardline.codec.shapes import (
    DescribeStreamSummaryResponse,
    GetRecordsResponse,
    GetShardIteratorResponse,
    ListShardsResponse,
    ListStreamConsumersResponse,
    PutRecordsResponse,
    RawRecord,
    SubscribeToShardEvent,
)
from shardline.model.record import Entry
from shardline.model.stream import parse_stream

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
PAGES = [GetRecordsResponse, SubscribeToShardEvent]


class NoZone(tzinfo):
    def utcoffset(self, _when):
        return None


def text(data):
    return base64.b64encode(data).decode()


def record(data, number="1", **more):
    return {"SequenceNumber": number, "Data": text(data)} | more


def body_of(*records, **more):
    return json.dumps({"Records": list(records)} | more).encode()


# ---- requests


def test_put_records_by_name():
    entries = [
        Entry(b"one", "key"),
        Entry(b"", 'quo"te\\ \x00\x1f\n ä 😀', "0"),
        Entry(bytes(range(256)), None),
        Entry(b"four", None, str(2**128 - 1)),
    ]
    assert json.loads(awsjson.encode_put_records(parse_stream("orders"), entries)) == {
        "Records": [
            {"Data": text(b"one"), "PartitionKey": "key"},
            {"Data": "", "PartitionKey": 'quo"te\\ \x00\x1f\n ä 😀', "ExplicitHashKey": "0"},
            {"Data": text(bytes(range(256)))},
            {"Data": text(b"four"), "ExplicitHashKey": str(2**128 - 1)},
        ],
        "StreamName": "orders",
    }


def test_put_records_by_arn():
    body = json.loads(awsjson.encode_put_records(parse_stream(ARN), [Entry(b"x", "k")]))
    assert body == {"Records": [{"Data": "eA==", "PartitionKey": "k"}], "StreamARN": ARN}


@pytest.mark.parametrize(("stream", "member"), [("orders", "StreamName"), (ARN, "StreamARN")])
def test_put_records_of_much_data(stream, member):
    """If base64 is most of the work, the body is assembled by hand."""
    data = bytes(range(256)) * 20
    entries = [
        Entry(data, "key"),
        Entry(data[1:], 'quo"te\\ \x00\x1f\n ä 😀', "0"),
        Entry(data[2:], None),
        Entry(b"", None, str(2**128 - 1)),
    ]
    body = awsjson.encode_put_records(parse_stream(stream), entries)
    assert isinstance(body, bytearray), "the large way"
    assert json.loads(body) == {
        "Records": [
            {"Data": text(data), "PartitionKey": "key"},
            {"Data": text(data[1:]), "PartitionKey": 'quo"te\\ \x00\x1f\n ä 😀', "ExplicitHashKey": "0"},
            {"Data": text(data[2:])},
            {"Data": "", "ExplicitHashKey": str(2**128 - 1)},
        ],
        member: stream,
    }


def test_put_records_of_nothing_is_valid_json_too():
    assert json.loads(awsjson.encode_put_records(parse_stream("orders"), [])) == {"Records": [], "StreamName": "orders"}


def test_any_request_is_written_with_its_values():
    params = {
        "Text": "ä😀\x00",
        "Number": -5,
        "Big": 2**62,
        "Yes": True,
        "Nothing": None,
        "Float": 1.5,
        "List": ["a", ("b", 1)],
        "Map": MappingProxyType({"k": {"deep": []}}),
    }
    assert json.loads(awsjson.encode(params)) == {
        "Text": "ä😀\x00",
        "Number": -5,
        "Big": 2**62,
        "Yes": True,
        "Nothing": None,
        "Float": 1.5,
        "List": ["a", ["b", 1]],
        "Map": {"k": {"deep": []}},
    }


@pytest.mark.parametrize("members", [{}, {"StreamName": "orders", "Limit": 5}, {"Tags": {"a": "b"}}])
def test_any_mapping_will_do(members):
    assert json.loads(awsjson.encode(MappingProxyType(members))) == members


@pytest.mark.parametrize(
    "data",
    [b"xy", bytearray(b"xy"), memoryview(b"xy"), memoryview(b"x1y2")[::2], memoryview(array("B", b"xy"))],
    ids=range(5),
)
def test_blobs_are_base64(data):
    assert json.loads(awsjson.encode({"Data": data, "In": [{"Data": data}]})) == {
        "Data": "eHk=",
        "In": [{"Data": "eHk="}],
    }


@pytest.mark.parametrize(
    ("when", "seconds"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2026, 11, 15, 12, tzinfo=UTC), 1_794_744_000),
        (datetime(2026, 11, 15, 14, tzinfo=timezone(timedelta(hours=2))), 1_794_744_000),
        (datetime(2026, 11, 15, 12, 0, 0, 123_000, tzinfo=UTC), 1_794_744_000.123),
        (datetime(2026, 11, 15, 12, 0, 0, 123_999, tzinfo=UTC), 1_794_744_000.123),
        (datetime(2026, 11, 15, 12, 0, 0, 999_999, tzinfo=UTC), 1_794_744_000.999),
        (datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC), -0.001),
    ],
)
def test_times_are_seconds_with_milliseconds_rounded_down(when, seconds):
    assert json.loads(awsjson.encode({"Timestamp": when, "In": [when]})) == {"Timestamp": seconds, "In": [seconds]}


@pytest.mark.parametrize("when", [datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=NoZone())])  # noqa: DTZ001
def test_a_naive_time_is_refused(when):
    with pytest.raises(BodyError, match="needs a time zone"):
        awsjson.encode({"Timestamp": when})


def endless():
    loop = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [
        object(),
        1j,
        "\ud800",
        {"\ud800": 1},
        {(1, 2): 3},
        float("nan"),
        float("inf"),
        float("-inf"),
        endless(),
        [lambda: None],
    ],
    ids=range(10),
)
def test_a_value_without_a_form_in_json_is_refused(value):
    with pytest.raises(BodyError):
        awsjson.encode({"Value": value})


# ---- answers


@pytest.fixture
def large(monkeypatch):
    """The answers that used the path for large records."""
    taken = []
    real = awsjson._decode_large

    def spy(body, shape):
        taken.append(body)
        return real(body, shape)

    monkeypatch.setattr(awsjson, "_decode_large", spy)
    return taken


SMALL, LARGE = b"x" * 10, bytes(range(256)) * 20


@pytest.mark.parametrize("shape", PAGES)
@pytest.mark.parametrize("data_first", [False, True])
@pytest.mark.parametrize(
    ("sizes", "way"),
    [([], 0), ([SMALL], 0), ([SMALL, SMALL], 0), ([LARGE, LARGE], 1), ([LARGE] * 3, 1)],
    ids=["none", "one", "two", "large", "many"],
)
def test_both_ways_to_read_a_page_give_the_same(large, shape, sizes, way, data_first):
    records = [record(data, str(i), PartitionKey="k", ApproximateArrivalTimestamp=1.5) for i, data in enumerate(sizes)]
    if data_first:
        records = [dict(reversed(one.items())) for one in records]
    page = awsjson.decode(body_of(*records, MillisBehindLatest=7), shape)
    assert page.records == [RawRecord(data, str(i), "k", 1.5) for i, data in enumerate(sizes)]
    assert page.millis_behind_latest == 7
    assert len(large) == way


def test_one_large_record_is_read_the_large_way_where_its_data_follow_its_number(large):
    assert awsjson.decode(body_of(record(LARGE)), GetRecordsResponse).records == [RawRecord(LARGE, "1")]
    assert len(large) == 1


def test_members_of_a_large_page(large):
    child = {
        "ShardId": "shardId-000000000003",
        "ParentShards": ["shardId-000000000002"],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    }
    body = body_of(
        record(LARGE, EncryptionType="KMS"),
        NextShardIterator="AAA",
        ContinuationSequenceNumber="9",
        MillisBehindLatest=5,
        ChildShards=[child],
        Unknown=1,
    )
    page = awsjson.decode(body, GetRecordsResponse)
    assert (page.next_iterator, page.millis_behind_latest, len(page.child_shards)) == ("AAA", 5, 1)
    assert page.records[0].encryption_type == "KMS"
    event = awsjson.decode(body, SubscribeToShardEvent)
    assert (event.continuation_sequence_number, event.millis_behind_latest, len(event.child_shards)) == ("9", 5, 1)
    assert len(large) == 2


TRAPS = [
    "SequenceNumber",
    '"SequenceNumber"',
    '\\"SequenceNumber\\"',
    '","SequenceNumber":"',
    'x"SequenceNumber":' * 10,
]


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("shape", PAGES)
def test_the_words_sequence_number_in_another_place_do_no_harm(shape, data, trap):
    records = [{"PartitionKey": trap, "Data": text(data), "SequenceNumber": trap}, record(data, "2", PartitionKey=trap)]
    body = body_of(*records, Note=trap, **{trap: trap})
    page = awsjson.decode(body, shape)
    assert page.records == [RawRecord(data, trap, trap), RawRecord(data, "2", trap)]


@pytest.mark.parametrize("shape", PAGES)
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("Data", "eHk"),  # no padding
        ("Data", "e"),
        ("Data", "eH k="),
        ("Data", "eHk=\n"),
        ("Data", "-_-_"),
        ("Data", "äöüß"),
        ("Data", None),
        ("Data", 5),
        ("Data", ["eHk="]),
        ("Data", {"type": "Buffer", "data": [1]}),
        ("SequenceNumber", None),
        ("SequenceNumber", 5),
        ("PartitionKey", 5),
        ("ApproximateArrivalTimestamp", "2026-11-15T12:00:00Z"),
        ("ApproximateArrivalTimestamp", True),
    ],
    ids=range(15),
)
def test_a_wrong_record_is_refused_both_ways(shape, member, value):
    wrong = record(SMALL, "2") | {member: value}
    for good in (SMALL, LARGE):
        body = body_of(record(good), record(good, "3"), wrong)
        with pytest.raises(BodyError, match=f"^not a {shape.__name__}: "):
            awsjson.decode(body, shape)


@pytest.mark.parametrize("shape", PAGES)
@pytest.mark.parametrize("missing", ["Data", "SequenceNumber"])
def test_a_record_without_its_data_or_number_is_refused(shape, missing):
    one = record(SMALL)
    del one[missing]
    for good in (SMALL, LARGE):
        with pytest.raises(BodyError, match=f"missing required field `{missing}`"):
            awsjson.decode(body_of(record(good), record(good), one), shape)


@pytest.mark.parametrize("shape", [GetRecordsResponse, SubscribeToShardEvent, PutRecordsResponse])
@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"Records":null}', b'{"Records":{}}', b'{"Records":"x"}', b'{"Records":[null]}']
)
def test_a_page_without_a_list_of_records_is_refused(shape, body):
    with pytest.raises(BodyError, match=f"^not a {shape.__name__}: "):
        awsjson.decode(body, shape)


@pytest.mark.parametrize("member", ["NextShardIterator", "MillisBehindLatest", "ChildShards"])
def test_what_may_be_missing_may_be_null(member):
    page = awsjson.decode(body_of(**{member: None}), GetRecordsResponse)
    assert page == GetRecordsResponse([])


def test_an_empty_answer_is_an_empty_object():
    assert awsjson.decode(b"", ListShardsResponse) == ListShardsResponse(None, None)
    assert awsjson.decode(b"", ListStreamConsumersResponse).consumers == []
    assert awsjson.decode(b"", dict[str, object]) == {}


BROKEN = [
    b"null",
    b"[]",
    b"5",
    b'"x"',
    b"{",
    b'{"Records"',
    b'{"Records":[',
    b'{"Records":[]',
    b'{"Records":[]}}',
    b"\xff",
    b'{"\xff":1}',
    b'{"Records":[],"NextShardIterator":"\xff","ContinuationSequenceNumber":"\xff"}',
    b'{"Records":[],"x":"\\ud800"}',
    b'{"Records":[],"MillisBehindLatest":1e999}',
    b'{"Records":[],"MillisBehindLatest":1.5}',
    b'{"Records":[],"MillisBehindLatest":NaN}',
    b"<html>",
    b"[" * 200_000,
    b'{"a":' * 200_000,
    b'{"Records":[' * 100_000,
    b'{"SequenceNumber":"' + b"x" * 10_000,
]


@pytest.mark.parametrize("shape", [*PAGES, GetShardIteratorResponse, DescribeStreamSummaryResponse])
@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_body_is_a_body_error_that_names_what_it_should_be(shape, body):
    with pytest.raises(BodyError, match=f"^not a {shape.__name__}: "):
        awsjson.decode(body, shape)


# ---- any answer


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_any_answer_may_be_empty(body):
    assert awsjson.decode_any(body) == {}


@pytest.mark.parametrize("records", ["null", "[]", '""', "false", "0"])
def test_any_answer_may_have_no_records(records):
    assert not awsjson.decode_any(f'{{"Records":{records}}}'.encode())["Records"]


@pytest.mark.parametrize(
    "records", ["5", "true", "1.5", "[5]", "[null]", '["Data"]', '{"Data":1}', '[["Data"]]', '"Data"', "[[]]", '["x"]']
)
def test_records_of_another_form_are_left_alone_or_refused(records):
    body = f'{{"Records":{records}}}'.encode()
    try:
        answer = awsjson.decode_any(body)
    except BodyError as error:
        assert str(error).startswith("not a list of records: ")  # noqa: PT017
    else:
        assert answer == json.loads(body)


@pytest.mark.parametrize("data", ["5", "null", "{}", "[]", '"e"', '"e h"', '"\\u00e4"', "true"])
def test_a_blob_that_is_no_base64_is_refused(data):
    with pytest.raises(BodyError, match=r"^not a list of records: "):
        awsjson.decode_any(f'{{"Records":[{{"Data":{data}}}]}}'.encode())


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_any_answer_that_is_broken_is_a_body_error(body):
    try:
        answer = awsjson.decode_any(body)
    except BodyError:
        return
    assert answer == json.loads(body)  # no shape guarantees it
