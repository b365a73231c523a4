"""Does the control API carry out each request completely or not at all?"""

import json
from random import Random

import pytest

from shardline.errors import UsageError
from shardline.server.control import Control
from shardline.server.endpoint import Endpoint
from shardline.server.model.faults import Faults
from shardline.server.model.service import Service
from shardline.server.model.settings import ServiceSettings
from shardline.server.model.streams import ServerStream
from shardline.server.request_log import RequestLog
from shardline.server.server_clock import ServerClock

NOW = 1_700_000_000.0


class World:
    def __init__(self):
        self.clock = ServerClock(lambda: NOW)
        self.service = Service(ServiceSettings(), Random(1), NOW)
        self.faults = Faults(Random(1), self.clock.now)
        self.requests = RequestLog()
        self.endpoint = Endpoint(self.service, self.clock, faults=self.faults, requests=self.requests)
        self.control = Control(self.service, self.clock, faults=self.faults, requests=self.requests)

    def call(self, method, path, body=b"", **query):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = self.control.control(method, f"/_shardline/{path}", query, raw)
        return status, json.loads(json.dumps(answer))

    def post(self, operation, **members):
        headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"Kinesis_20131202.{operation}"}
        return self.endpoint.reply(headers, json.dumps(members).encode())


@pytest.fixture
def world():
    return World()


def test_health_is_small_and_reads_no_stream(world, monkeypatch):
    world.post("CreateStream", StreamName="s", ShardCount=1)
    world.post("PutRecord", StreamName="s", Data="eA==", PartitionKey="k")
    monkeypatch.setattr(ServerStream, "advance", None)  # no method of a stream is called
    assert world.call("GET", "health") == (200, {"status": "ok", "streams": 1, "records": 1})
    assert world.call("HEAD", "health")[0] == 200
    assert world.call("POST", "health")[0] == 405
    assert world.call("GET", "health/more")[0] == 404


def test_faults_are_added_listed_and_removed(world):
    one = {"id": 1, "hits": 0, "count_left": 3, "kind": "throttle", "operation": "PutRecords", "shard": 2, "count": 3}
    status, answer = world.call(
        "POST", "faults", {"kind": "throttle", "operation": "PutRecords", "shard": 2, "count": 3}
    )
    assert (status, answer) == (200, {"faults": [one]})
    status, answer = world.call("POST", "faults", [{"kind": "html"}, {"kind": "reset", "where": "after"}])
    assert [fault["id"] for fault in answer["faults"]] == [2, 3]
    assert world.call("GET", "faults")[1]["faults"][0] == one
    assert world.call("DELETE", "faults/2") == (200, {"removed": 1})
    assert [fault.id for fault in world.faults.rules] == [1, 3]
    status, answer = world.call("DELETE", "faults/2")
    assert (status, answer) == (400, {"error": "there is no fault 2: it was removed, or its count is used up"})
    assert world.call("DELETE", "faults") == (200, {"removed": 2})
    assert world.faults.rules == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"3", "JSON object"),
        (b"[3]", "JSON object"),
        ([{"kind": "html"}, {"kind": "fire"}], "not 'fire'"),
        ({"kind": "throttle", "cuont": 1}, "'cuont'"),
    ],
)
def test_what_is_wrong_adds_nothing(world, body, words):
    status, answer = world.call("POST", "faults", body)
    assert status == 400
    assert words in answer["error"]
    assert world.faults.rules == []


def test_a_fault_of_the_control_path_hits_the_next_request(world):
    world.call("POST", "faults", {"kind": "error", "code": "InternalFailureException", "count": 1})
    assert world.post("ListStreams").status == 500
    assert world.post("ListStreams").status == 200


def test_requests_are_listed_and_forgotten(world):
    world.post("CreateStream", StreamName="s", ShardCount=1)
    for _ in range(3):
        world.post("ListStreams")
    world.post("ListShards", StreamName="nowhere")
    status, answer = world.call("GET", "requests")
    assert (status, answer["total"], len(answer["requests"])) == (200, 5, 5)
    assert world.call("GET", "requests", operation="ListStreams", limit="2")[1]["requests"][0]["operation"] == (
        "ListStreams"
    )
    assert len(world.call("GET", "requests", limit="2")[1]["requests"]) == 2
    assert world.call("GET", "requests", limit="0")[1]["requests"] == []
    assert len(world.call("GET", "requests", error="ResourceNotFoundException", stream="nowhere")[1]["requests"]) == 1
    assert world.call("GET", "requests", limit="-1")[0] == 400
    assert world.call("GET", "requests", colour="red")[0] == 400
    assert world.call("DELETE", "requests") == (200, {"removed": 5})
    assert world.call("GET", "requests")[1] == {"total": 0, "requests": []}


def test_the_clock_is_frozen_advanced_and_resumed(world):
    assert world.call("GET", "clock") == (200, {"now": NOW, "frozen": False})
    assert world.call("POST", "clock", {"freeze": True}) == (200, {"now": NOW, "frozen": True})
    assert world.call("POST", "clock", {"advance": 60}) == (200, {"now": NOW + 60, "frozen": True})
    assert world.call("POST", "clock", {"resume": True, "advance": 0.5}) == (200, {"now": NOW + 60.5, "frozen": False})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        {},
        [],
        {"stop": True},
        {"freeze": False},
        {"freeze": True, "resume": True},
        {"advance": -1},
        {"advance": True},
        {"advance": "1"},
        {"freeze": True, "advance": -1},
        b'{"advance": 1e999}',
        b'{"advance": 1e12}',
        b'{"freeze": true, "advance": 1e12}',
        b'{"advance": 1e308}',
        b'{"advance": NaN}',
        b'{"advance": Infinity}',
        b'{"advance": -1e-300}',
        b'{"advance": ' + b"9" * 30 + b"}",
        b'{"advance": ' + b"9" * 400 + b"}",
        b'{"advance": ' + b"9" * 100_000 + b"}",
        b'{"advance": 1e99999999999999999999}',
    ],
)
def test_an_invalid_request_does_not_move_the_clock(world, body):
    status, answer = world.call("POST", "clock", body)
    assert (status, list(answer)) == (400, ["error"])
    assert (world.clock.now(), world.clock.is_frozen) == (NOW, False)


def test_streams_are_summarised(world):
    world.post("CreateStream", StreamName="s", ShardCount=2)
    world.post(
        "PutRecords", StreamName="s", Records=[{"Data": "AAAA", "PartitionKey": "k", "ExplicitHashKey": "0"}] * 3
    )
    world.faults.reshard_at(delay=1, stream="s", action="split", shard=0)
    world.clock.advance(1)
    status, answer = world.call("GET", "streams")
    assert status == 200
    (stream,) = answer["streams"]
    assert (stream["name"], stream["status"], stream["open_shards"], stream["records"]) == ("s", "ACTIVE", 3, 3)
    assert stream["shards"][0] == {
        "id": "shardId-000000000000",
        "is_open": False,
        "records": 3,
        "written": 3,
        "written_bytes": 12,
    }


def test_paths_and_methods_that_do_not_exist(world):
    assert world.call("GET", "nothing")[0] == 404
    assert "/_shardline/faults" in world.call("GET", "")[1]["error"]
    assert world.call("GET", "clock/1")[0] == 404
    assert world.call("PUT", "faults")[0] == 405
    assert world.call("GET", "faults/1")[0] == 405
    assert world.call("POST", "streams")[0] == 405


@pytest.mark.parametrize(
    "number", ["9" * 12, "9" * 30, "9" * 400, "9" * 100_000, "1e300", "1e999", "-1", "NaN", "-0.5"]
)
@pytest.mark.parametrize(
    "rule",
    [
        '"kind": "throttle", "count": %',
        '"kind": "throttle", "after": %',
        '"kind": "throttle", "chance": %',
        '"kind": "throttle", "shard": %',
        '"kind": "fail_entries", "k": %',
        '"kind": "fail_entries", "share": %',
        '"kind": "error", "code": "X", "status": %',
        '"kind": "html", "status": %',
        '"kind": "latency", "seconds": %',
        '"kind": "latency", "seconds": [0, %]',
        '"kind": "latency", "seconds": {"mean": %, "p99": 1}',
        '"kind": "clock_skew", "seconds": %',
        '"kind": "truncate", "at": %',
        '"kind": "truncate", "share": %',
        '"kind": "wrong_count", "delta": %',
        '"kind": "random", "intensity": %',
        '"kind": "reshard", "stream": "s", "action": "split", "at": %',
        '"kind": "reshard", "stream": "s", "action": "split", "delay": %',
        '"kind": "reshard", "stream": "s", "action": "scale", "delay": 1, "shards": %',
    ],
)
def test_every_number_of_a_fault_is_bounded(world, rule, number):
    status, answer = world.call("POST", "faults", b"{%b}" % rule.replace("%", number).encode())
    if status == 200:  # only these two may go below zero
        assert (number, rule.split('"')[3]) in {("-1", "wrong_count"), ("-1", "clock_skew"), ("-0.5", "clock_skew")}
        world.call("DELETE", "faults")
        return
    assert (status, list(answer)) == (400, ["error"])
    assert world.faults.rules == []
    assert world.post("ListStreams").status == 200


def test_the_number_of_faults_is_bounded(world):
    status, answer = world.call("POST", "faults", [{"kind": "html"}] * 1_001)
    assert (status, answer) == (
        400,
        {"error": "there can be at most 1,000 faults at once, and there are 0: remove some"},
    )
    assert world.faults.rules == []
    assert world.call("POST", "faults", [{"kind": "html", "after": 9}] * 1_000)[0] == 200
    status, answer = world.call("POST", "faults", {"kind": "html"})
    assert (status, answer) == (
        400,
        {"error": "there can be at most 1,000 faults at once, and there are 1,000: remove some"},
    )
    with pytest.raises(UsageError, match="remove some"):
        world.faults.throttle()
    assert len(world.faults.rules) == 1_000


@pytest.mark.parametrize("limit", ["1e3", "-0", "+1", "٣", "9" * 10, "9" * 5000, "", " 1", "1.0", "NaN", "\x00"])
def test_a_limit_is_a_whole_number(world, limit):
    status, answer = world.call("GET", "requests", limit=limit)
    assert (status, list(answer)) == (400, ["error"])


def test_the_service_works_at_the_end_of_time(world):
    """The clock is as far ahead as it goes: everything that writes a time still works."""
    left = 7_258_118_400 - NOW
    assert world.call("POST", "clock", {"freeze": True, "advance": left})[0] == 200
    assert world.call("POST", "clock", {"advance": 1})[0] == 400
    assert world.post("CreateStream", StreamName="s", ShardCount=1).status == 200
    put = json.loads(world.post("PutRecord", StreamName="s", Data="eA==", PartitionKey="k").body)
    start = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": put["SequenceNumber"]}
    found = json.loads(world.post("GetShardIterator", StreamName="s", ShardId=put["ShardId"], **start).body)
    [record] = json.loads(world.post("GetRecords", **found).body)["Records"]
    assert record["ApproximateArrivalTimestamp"] == 7_258_118_400
    assert world.post("DescribeStream", StreamName="s").headers["Date"] == "Wed, 01 Jan 2200 00:00:00 GMT"
    assert world.post("SplitShard", StreamName="s", ShardToSplit=put["ShardId"], NewStartingHashKey="9").status == 200
    assert world.post("ListShards", StreamName="s").status == 200
    assert [one["records"] for one in world.call("GET", "streams")[1]["streams"]] == [1]
