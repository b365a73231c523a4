"""Does the server remember its requests?"""

import json
from random import Random

import pytest

from shardline.server import request_log
from shardline.server.endpoint import Endpoint
from shardline.server.model.faults import Faults
from shardline.server.model.service import Service
from shardline.server.model.settings import Limits, ServiceSettings
from shardline.server.request_log import RequestLog
from shardline.server.server_clock import ServerClock

from .conftest import JSON, POLICY, ROLE, TO_S3

NOW = 1_700_000_000.0


class World:
    def __init__(self, requests):
        self.clock = ServerClock(lambda: NOW)
        self.requests = requests
        self.service = Service(ServiceSettings(limits=Limits.without_rates()), Random(1), NOW)
        self.faults = Faults(Random(1), self.clock.now)
        self.endpoint = Endpoint(self.service, self.clock, faults=self.faults, requests=requests)
        self.post("CreateStream", StreamName="s", ShardCount=2)

    def post(self, operation, **members):
        headers = {
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": f"Kinesis_20131202.{operation}",
            "authorization": "AWS4-HMAC-SHA256 Credential=AKID/20231114/x/kinesis/aws4_request, Signature=abc",
        }
        return self.endpoint.reply(headers, json.dumps(members).encode())

    def put(self, *keys):
        return self.post("PutRecords", StreamName="s", Records=[{"Data": "", "PartitionKey": key} for key in keys])


@pytest.fixture
def world():
    return World(RequestLog())


def test_a_put_is_remembered_with_its_shards_and_what_failed(world):
    world.faults.fail_entries(k=1, count=1)
    reply = world.put("a", "b", "c", "d")
    kept = {one["ShardId"] for one in json.loads(reply.body)["Records"] if "ShardId" in one}
    seen = world.requests.last
    assert (seen.operation, seen.stream, seen.entries, seen.failed_entries) == ("PutRecords", "s", 4, 1)
    assert seen.shards == kept
    assert (seen.at, seen.status, seen.error, seen.was_handled, seen.access_key) == (NOW, 200, None, True, "AKID")
    assert seen.size > 100
    world.post("PutRecord", StreamName="s", Data="", PartitionKey="a")
    assert world.requests.last.entries == 1
    assert len(world.requests.last.shards) == 1


def test_reads_are_remembered_by_the_shard_of_their_iterator(world):
    world.put("a", "b", "c")
    shard = world.requests.last.shards
    reply = world.post("GetShardIterator", StreamName="s", ShardId=min(shard), ShardIteratorType="TRIM_HORIZON")
    world.post("GetRecords", ShardIterator=json.loads(reply.body)["ShardIterator"])
    seen = world.requests.last
    assert (seen.operation, seen.stream, seen.shards) == ("GetRecords", "s", {min(shard)})
    assert seen.entries >= 1
    world.post("ListShards", StreamARN="arn:aws:kinesis:us-east-1:000000000000:stream/s")
    assert world.requests.last.stream == "s"


def test_errors_and_lost_answers_are_remembered(world):
    world.post("ListShards", StreamName="nowhere")
    assert (world.requests.last.status, world.requests.last.error) == (400, "ResourceNotFoundException")
    world.post("Nonsense")
    assert (world.requests.last.operation, world.requests.last.error) == ("", "UnknownOperationException")
    assert world.requests.last.was_handled is False
    world.faults.reset("after", count=1)
    world.put("a")
    assert (world.requests.last.status, world.requests.last.was_handled) == (None, True)
    world.faults.reset("before", count=1)
    world.put("a")
    assert (world.requests.last.status, world.requests.last.was_handled) == (None, False)
    world.faults.error("InternalFailureException", count=1)
    world.put("a")
    assert (world.requests.last.status, world.requests.last.error) == (500, "InternalFailureException")


def test_requests_are_found_and_counted_by_what_they_were(world):
    for _ in range(3):
        world.put("a")
    world.post("ListShards", StreamName="nowhere")
    requests = world.requests
    assert [one.operation for one in requests] == ["CreateStream", *["PutRecords"] * 3, "ListShards"]
    assert requests.count() == len(requests) == requests.total == 5
    assert requests.count("PutRecords") == 3
    assert requests.count("PutRecords", stream="other") == 0
    assert requests.count(stream="s", status=200) == 4
    assert requests.count(error="ResourceNotFoundException") == 1
    assert requests.count(since=NOW + 1) == 0
    shard = min(requests.find("PutRecords")[0].shards)
    assert requests.count(shard=shard) == 3
    requests.clear()
    assert (len(requests), requests.total, requests.last) == (0, 0, None)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(request_log, "LIMIT", 2)
    world = World(RequestLog())
    for key in ("a", "b", "c"):
        world.put(key)
    assert [one.operation for one in world.requests] == ["PutRecords"] * 2
    assert world.requests.total == 4
    assert json.loads(json.dumps(world.requests.last.to_dict()))["shards"] == sorted(world.requests.last.shards)


def test_requests_about_channels_are_remembered_by_their_stream(world):
    arn, channel = "arn:aws:kinesis:us-east-1:000000000000:stream/d", "arn:aws:kinesis:us-east-1:000000000000:channel/c"
    world.post("CreateStream", StreamName="d", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    streams = [{"StreamARN": arn, "RecordConfiguration": JSON}]
    world.post("CreateChannel", ChannelName="c", ServiceExecutionRoleARN=ROLE, StreamConfigurationList=streams, **TO_S3)
    world.post("DescribeChannel", ChannelARN=channel)
    world.post("UpdateChannel", ChannelARN=channel, S3DestinationConfiguration={"DataFreshnessInSeconds": 600})
    world.post("TagResource", ResourceARN=channel, Tags={"a": "b"})
    world.post("ListChannels", StreamFilter=[{"StreamARN": arn}])
    world.post("PutResourcePolicy", ResourceARN=arn, Policy=POLICY)
    world.post("UpdateStreamWarmThroughput", StreamARN=arn, WarmThroughputMiBps=1)
    world.faults.error("ResourceInUseException", operation="DeleteChannel", stream="d", count=1)
    world.faults.error("ResourceInUseException", operation="DeleteChannel", stream="s", count=1)
    assert world.post("DeleteChannel", ChannelARN=channel).status == 400
    assert world.post("DeleteChannel", ChannelARN=channel).status == 200
    named = [one.operation for one in world.requests.find(stream="d")]
    assert named == [
        *("CreateStream", "CreateChannel", "DescribeChannel", "UpdateChannel", "TagResource", "ListChannels"),
        *("PutResourcePolicy", "UpdateStreamWarmThroughput", "DeleteChannel", "DeleteChannel"),
    ]
    world.post("ListChannels")
    world.post("ListChannels", StreamFilter=[{"StreamARN": arn}, {"StreamARN": arn[:-1] + "s"}])
    world.post("DescribeChannel", ChannelARN=channel)
    world.post("UpdateAccountSettings", MinimumThroughputBillingCommitment={"Status": "ENABLED"})
    assert [one.stream for one in list(world.requests)[-4:]] == [None] * 4
