"""Tests of ``shardline.codec.lambda_events``: events in the shapes that AWS documents."""

import json
from base64 import b64encode

import pytest

from shardline import aggregate
from shardline.codec.lambda_events import read_event, replace_state
from shardline.errors import UsageError
from shardline.model.record import Origin

NUMBER = "49590338271490256608559692538361571095921575989136588898"
SHARD = "shardId-000000000006"


def record(data=b"Hello, this is a test.", number=NUMBER, **changes):
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": "1",
            "sequenceNumber": number,
            "data": b64encode(data).decode(),
            "approximateArrivalTimestamp": 1545084650.987,
        },
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": f"{SHARD}:{number}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": "arn:aws:iam::123456789012:role/lambda-role",
        "awsRegion": "us-east-2",
        "eventSourceARN": "arn:aws:kinesis:us-east-2:123456789012:stream/lambda-stream",
    } | changes


def window(*records, **changes):
    return {
        "Records": list(records),
        "window": {"start": "2020-12-09T07:04:00Z", "end": "2020-12-09T07:06:00Z"},
        "state": {"1": 282, "2": 715},
        "shardId": SHARD,
        "eventSourceARN": "arn:aws:kinesis:us-east-1:123456789012:stream/lambda-stream",
        "isFinalInvokeForWindow": False,
        "isWindowTerminatedEarly": False,
    } | changes


def read(event):
    return read_event(event, Origin())


def test_a_record_has_the_fields_of_a_consumers_record():
    origin = Origin()
    origin.deserializer = bytes.decode
    [found], no_window = read_event({"Records": [record()]}, origin)
    assert no_window is None
    assert (found.data, found.value, found.key) == (b"Hello, this is a test.", "Hello, this is a test.", "1")
    assert (found.sequence_number, found.sub_sequence, found.aggregated) == (NUMBER, 0, False)
    assert (found.shard_id, found.stream, found.arrived_at) == (SHARD, "lambda-stream", 1545084650.987)
    assert found.explicit_hash_key is None


def test_aggregates_are_opened():
    data = aggregate([("a", b"1"), ("b", b"2", "7")])
    found, _ = read({"Records": [record(b"0", "1"), record(data, "2")]})
    assert [(one.data, one.key, one.sequence_number, one.sub_sequence) for one in found] == [
        (b"0", "1", "1", 0),
        (b"1", "a", "2", 0),
        (b"2", "b", "2", 1),
    ]
    assert (found[2].explicit_hash_key, found[2].aggregated, found[2].shard_id) == ("7", True, SHARD)


def test_data_that_is_no_intact_aggregate_is_a_plain_record():
    data = bytearray(aggregate([("a", b"1"), ("b", b"2")]))
    data[-1] ^= 1
    [found], _ = read({"Records": [record(bytes(data))]})
    assert (found.data, found.aggregated) == (bytes(data), False)


def test_a_window():
    found, there = read(window(record()))
    assert len(found) == 1
    assert there.state == {"1": 282, "2": 715}
    assert (there.starts_at, there.ends_at, there.shard_id) == (1607497440.0, 1607497560.0, SHARD)
    assert (there.is_final, there.is_terminated_early) == (False, False)


def test_the_last_event_of_a_window_may_have_no_records():
    event = window(isFinalInvokeForWindow=True, isWindowTerminatedEarly=True)
    del event["Records"], event["state"], event["shardId"]
    found, there = read(event)
    assert (found, there.state, there.shard_id) == ([], {}, None)
    assert (there.is_final, there.is_terminated_early) == (True, True)


def test_the_state_cannot_be_changed_in_place():
    _, there = read(window())
    for one in (there, replace_state(there, {"n": 1}), replace_state(there, None)):
        with pytest.raises(TypeError):
            one.state["n"] = 2
    assert replace_state(there, {"n": 1}).state == {"n": 1}
    assert replace_state(there, None) == there._replace(state={})


@pytest.mark.parametrize(
    ("event", "given"),
    [
        (None, "not NoneType"),
        ([record()], "not list"),
        ("{}", "not str"),
        ({}, "not a mapping with no keys, whose 'Records' are no list"),
        ({"detail": {}, "source": "aws.s3"}, "with 'detail', 'source', whose"),
        ({"Records": None}, "with 'Records', whose 'Records' are no list"),
        ({"Records": "text"}, "are no list"),
        ({"Records": [record(), {"eventSource": "aws:sqs", "body": "x"}]}, "record 1 is a record of 'aws:sqs'"),
        ({"Records": [{"EventSource": "aws:sns", "Sns": {}}]}, "record 0 is a record of 'aws:sns'"),
        ({"Records": [{"kinesis": "x"}]}, "record 0 is dict"),
        ({"Records": [7]}, "record 0 is int"),
        ({"Records": [record(number=None)]}, "the sequence number of record 0 is None"),
        ({"Records": [record(number="")]}, "the sequence number of record 0 is ''"),
        ({"Records": [record(number=7)]}, "the sequence number of record 0 is 7"),
    ],
)
def test_an_event_of_another_kind_is_refused(event, given):
    with pytest.raises(UsageError) as refused:
        read(event)
    assert str(refused.value).startswith("expected a Kinesis event of Lambda, whose 'Records' have 'kinesis' and")
    assert given in str(refused.value)


@pytest.mark.parametrize("data", ["*", None, 7])
def test_data_that_is_not_base64_is_refused_as_by_deaggregate(data):
    broken = record()
    broken["kinesis"]["data"] = data
    with pytest.raises(UsageError, match="record 1: its data"):
        read({"Records": [record(), broken]})


@pytest.mark.parametrize(
    "changes", [{"window": {}}, {"window": 7}, {"window": {"start": "now", "end": "later"}}, {"state": 7}]
)
def test_a_window_that_cannot_be_read_is_refused(changes):
    with pytest.raises(UsageError, match="the window of an event must have a 'start' and an 'end' in ISO 8601"):
        read(json.loads(json.dumps(window() | changes)))
