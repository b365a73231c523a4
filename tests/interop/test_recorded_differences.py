"""Does the server differ from the recordings of AWS exactly as ``recorded_differences.py`` says?"""

import http.client
import json
from contextlib import closing
from datetime import UTC, datetime
from urllib.parse import urlsplit

import cbor2
import pytest
from tests.interop.recorded_differences import RECORDED_DIFFERENCES as ROWS

from shardline.testing import LocalKinesis

BY_REQUEST = [
    pytest.param(row, operation, id=f"{operation}-{row.case}")
    for row in ROWS
    if not row.is_by_hand
    for operation in row.operations
]


@pytest.fixture
def kinesis():
    with LocalKinesis(limits=False) as server:
        server.create_stream("known", shards=3)
        server.create_stream("ten", shards=10)
        yield server


@pytest.fixture
def send(kinesis):
    with closing(http.client.HTTPConnection(urlsplit(kinesis.endpoint_url).netloc, timeout=30)) as connection:

        def send(method, headers, body=b""):
            connection.request(method, "/", body, headers)
            return connection.getresponse()

        yield send


def target(operation, kind="json"):
    return {"content-type": f"application/x-amz-{kind}-1.1", "x-amz-target": f"Kinesis_20131202.{operation}"}


def call(send, operation, parameters):
    response = send("POST", target(operation), json.dumps(parameters))
    return response.status, json.loads(response.read() or "{}")


def leaf(answer, path):
    for name in path.split("."):
        answer = next(iter(answer.values())) if name == "*" else answer[name]
    return answer


@pytest.mark.parametrize(("row", "operation"), BY_REQUEST)
def test_the_server_answers_as_the_table_says(send, row, operation):
    status, answer = call(send, operation, row.parameters)
    assert (status, answer.get("__type")) == (row.status, row.code)
    assert [path for path in row.has if not leaf(answer, path)] == []
    if row.code is not None:
        assert row.recorded.strip("`") not in answer["message"]


def test_no_web_page_is_let_in(send):
    preflight = send("OPTIONS", {"origin": "https://example.com", "access-control-request-method": "POST"})
    preflight.read()
    request = send("POST", {"origin": "https://example.com"} | target("ListStreams"), "{}")
    request.read()
    assert preflight.status == 403
    allowed = [name.lower() for answer in (preflight, request) for name in answer.headers if "control-allow" in name]
    assert allowed == []


def test_a_refusal_in_xml_has_a_content_type(send):
    response = send("GET", {})
    response.read()
    assert (response.status, response.headers["content-type"]) == (403, "application/xml")


def test_each_shard_counts_for_itself(send):
    numbers = [
        int(call(send, "PutRecord", {"StreamName": "known", "PartitionKey": key, "Data": ""})[1]["SequenceNumber"])
        for key in ("a", "b")
    ]
    shards = [number >> 4 & 0xFFFF for number in numbers]
    counters = [number >> 80 & 0xFFFFFFFF for number in numbers]
    assert (shards, counters) == ([0, 1], [1, 1])


def test_a_subscription_in_cbor_begins_at_a_time(kinesis, send):
    arn = f"arn:aws:kinesis:{kinesis.boto3_arguments['region_name']}:000000000000:stream/known"
    _, answer = call(send, "RegisterStreamConsumer", {"StreamARN": arn, "ConsumerName": "c"})
    parameters = {
        "ConsumerARN": answer["Consumer"]["ConsumerARN"],
        "ShardId": "shardId-000000000000",
        "StartingPosition": {"Type": "AT_TIMESTAMP", "Timestamp": datetime(2020, 1, 1, tzinfo=UTC)},
    }
    encoders = {datetime: lambda encoder, when: encoder.encode(cbor2.CBORTag(1, int(when.timestamp() * 1000)))}
    response = send("POST", target("SubscribeToShard", "cbor"), cbor2.dumps(parameters, encoders=encoders))
    assert response.status == 200
    assert b"initial-response" in response.read(100)
    response.close()


def test_a_closed_shard_ends_at_once(send):
    shard = {"StreamName": "known", "ShardId": "shardId-000000000000"}
    halves = {"StreamName": "known", "ShardToSplit": shard["ShardId"], "NewStartingHashKey": "7"}
    assert call(send, "SplitShard", halves) == (200, {})
    _, found = call(send, "GetShardIterator", {**shard, "ShardIteratorType": "TRIM_HORIZON"})
    status, page = call(send, "GetRecords", found)
    assert (status, page.keys()) == (200, {"Records", "MillisBehindLatest", "ChildShards"})


def test_every_row_that_no_request_shows_has_a_test_here():
    by_hand = [name for name in globals() if name.startswith(("test_no_web", "test_a_", "test_each_"))]
    assert len(by_hand) == len([row for row in ROWS if row.is_by_hand])
