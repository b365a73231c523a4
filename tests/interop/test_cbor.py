"""Does our server give the same answers in CBOR as in JSON, to every operation, as our own client sees them?

Two servers get the same requests, each in one protocol. The answers are compared value by value: sequence numbers by
their order, times and tokens only by their presence.
"""

import http.client
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from urllib.parse import urlsplit

import cbor2
import pytest

from shardline import Client, ServiceError
from shardline.server.model.inputs import INPUTS
from shardline.testing import LocalKinesis

pytestmark = [pytest.mark.interop, pytest.mark.anyio]

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"
SHARD = "shardId-{:012d}".format
STREAM = {"StreamName": "s"}
KEY = {"KeyId": "alias/aws/kinesis", "EncryptionType": "KMS"}
UNIFORM = {"ScalingType": "UNIFORM_SCALING"}
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ENTRIES = [{"Data": bytes([n]) * n, "PartitionKey": f"schlüssel-{n}"} for n in range(20)]


POLICY = '{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "kinesis:*"}]}'
CHANNEL = {
    "ChannelName": "c",
    "ServiceExecutionRoleARN": "arn:aws:iam::000000000000:role/delivery",
    "StreamConfigurationList": [{"StreamARN": ARN, "RecordConfiguration": {"RecordFormatType": "STRING"}}],
    "S3DestinationConfiguration": {
        "StorageConfiguration": {
            "BucketARN": "arn:aws:s3:::records",
            "ExpectedBucketOwner": "000000000000",
            "CompressionType": "GZIP",
        }
    },
}


def channel_arn(kept):
    return kept["CreateChannel"]["ChannelDescription"]["ChannelARN"]


def iterator(kept):
    return kept["GetShardIterator"]["ShardIterator"]


def token(kept):
    return kept["ListShards"]["NextToken"]


def consumer_arn(kept):
    return kept["RegisterStreamConsumer"]["Consumer"]["ConsumerARN"]


def number(kept):
    return kept["PutRecords"]["Records"][0]["SequenceNumber"]


def shard(kept):
    return kept["PutRecords"]["Records"][0]["ShardId"]


CALLS = [
    ("CreateStream", {**STREAM, "ShardCount": 2, "Tags": {"a": "ä"}}),
    ("CreateStream", {**STREAM, "ShardCount": 2}),
    ("ListStreams", {}),
    ("DescribeStream", STREAM),
    ("DescribeStreamSummary", {"StreamARN": ARN}),
    ("DescribeLimits", {}),
    ("DescribeAccountSettings", {}),
    ("PutRecord", {**STREAM, "Data": b"\x00\xff", "PartitionKey": "k"}),
    ("PutRecords", {**STREAM, "Records": ENTRIES}),
    ("PutRecords", {**STREAM, "Records": [{"Data": b"", "PartitionKey": "k", "ExplicitHashKey": "0"}]}),
    ("PutRecords", {**STREAM, "Records": []}),
    ("GetShardIterator", {**STREAM, "ShardId": SHARD(0), "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": LONG_AGO}),
    ("GetRecords", {"ShardIterator": iterator, "Limit": 3}),
    (
        "GetShardIterator",
        {**STREAM, "ShardId": shard, "ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": number},
    ),
    ("GetRecords", {"ShardIterator": iterator}),
    ("GetRecords", {"ShardIterator": "nonsense"}),
    ("SplitShard", {**STREAM, "ShardToSplit": SHARD(0), "NewStartingHashKey": "1000"}),
    ("MergeShards", {**STREAM, "ShardToMerge": SHARD(3), "AdjacentShardToMerge": SHARD(1)}),
    ("GetShardIterator", {**STREAM, "ShardId": SHARD(0), "ShardIteratorType": "TRIM_HORIZON"}),
    ("GetRecords", {"ShardIterator": iterator}),
    ("ListShards", {**STREAM, "ShardFilter": {"Type": "FROM_TIMESTAMP", "Timestamp": LONG_AGO}}),
    ("ListShards", {**STREAM, "MaxResults": 2}),
    ("ListShards", {"NextToken": token}),
    ("UpdateShardCount", {**STREAM, "TargetShardCount": 4, **UNIFORM}),
    ("UpdateShardCount", {**STREAM, "TargetShardCount": 9, **UNIFORM}),
    ("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c"}),
    ("DescribeStreamConsumer", {"ConsumerARN": consumer_arn}),
    ("ListStreamConsumers", {"StreamARN": ARN}),
    ("DeregisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c"}),
    ("IncreaseStreamRetentionPeriod", {**STREAM, "RetentionPeriodHours": 48}),
    ("DecreaseStreamRetentionPeriod", {**STREAM, "RetentionPeriodHours": 24}),
    ("DecreaseStreamRetentionPeriod", {**STREAM, "RetentionPeriodHours": 1}),
    ("AddTagsToStream", {**STREAM, "Tags": {"b": "2"}}),
    ("RemoveTagsFromStream", {**STREAM, "TagKeys": ["b"]}),
    ("ListTagsForStream", STREAM),
    ("TagResource", {"ResourceARN": ARN, "Tags": {"c": "3"}}),
    ("ListTagsForResource", {"ResourceARN": ARN}),
    ("UntagResource", {"ResourceARN": ARN, "TagKeys": ["c"]}),
    ("StartStreamEncryption", {**STREAM, **KEY}),
    ("PutRecord", {**STREAM, "Data": b"x", "PartitionKey": "k"}),
    ("StopStreamEncryption", {**STREAM, **KEY}),
    ("EnableEnhancedMonitoring", {**STREAM, "ShardLevelMetrics": ["ALL"]}),
    ("DisableEnhancedMonitoring", {**STREAM, "ShardLevelMetrics": ["IncomingBytes"]}),
    ("UpdateMaxRecordSize", {"StreamARN": ARN, "MaxRecordSizeInKiB": 2048}),
    ("UpdateStreamMode", {"StreamARN": ARN, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}}),
    ("UpdateStreamRecordDistributionStrategy", {"StreamARN": ARN, "RecordDistributionStrategy": "USER_PARTITION_KEY"}),
    ("DescribeStream", STREAM),
    ("PutResourcePolicy", {"ResourceARN": ARN, "Policy": POLICY}),
    ("GetResourcePolicy", {"ResourceARN": ARN}),
    ("DeleteResourcePolicy", {"ResourceARN": ARN}),
    ("UpdateAccountSettings", {"MinimumThroughputBillingCommitment": {"Status": "ENABLED"}}),
    ("DescribeAccountSettings", {}),
    ("UpdateStreamWarmThroughput", {**STREAM, "WarmThroughputMiBps": 8}),
    ("CreateChannel", CHANNEL),
    ("DescribeChannel", {"ChannelARN": channel_arn}),
    ("ListChannels", {}),
    ("UpdateChannel", {"ChannelARN": channel_arn, "S3DestinationConfiguration": {"DataFreshnessInSeconds": 900}}),
    ("DescribeStreamSummary", STREAM),
    ("DescribeLimits", {}),
    ("DeleteChannel", {"ChannelARN": channel_arn}),
    ("DeleteStream", STREAM),
    ("DescribeStream", STREAM),
    ("NoSuchOperation", {}),
]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


class Told:
    """One server, and its answers so far."""

    def __init__(self, client):
        self.client = client
        self.kept = {}
        self.numbers = {}

    async def answer(self, operation, params):
        known = {name: value(self.kept) if callable(value) else value for name, value in params.items()}
        try:
            self.kept[operation] = await self.client.call(operation, known)
        except ServiceError as error:
            return error.code, error.status, error.message
        return self.comparable("", self.kept[operation])

    def comparable(self, name, value):
        if name.endswith("SequenceNumber"):
            return self.numbers.setdefault(value, len(self.numbers))
        if name.endswith(("Timestamp", "At")):
            assert isinstance(value, (int, float, datetime))
            return "a time"
        if name.endswith(("Token", "Iterator")):
            assert isinstance(value, str)
            return "a token"
        if name in {"StreamId", "ChannelId"}:
            return len(value)
        if name in {"ConsumerARN", "ChannelARN"}:
            return value.rpartition(":")[0]
        if name == "MillisBehindLatest":
            return type(value)
        if isinstance(value, dict):
            return {key: self.comparable(key, inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.comparable("", inner) for inner in value]
        return value


async def test_every_operation_says_the_same_in_cbor_as_in_json():
    async with AsyncExitStack() as stack:
        told = []
        for protocol in ("json", "cbor"):
            kinesis = await stack.enter_async_context(LocalKinesis(limits=False))
            client = Client(
                region="us-east-1",
                endpoint_url=kinesis.endpoint_url,
                credentials=kinesis.credentials,
                protocol=protocol,
            )
            told.append(Told(await stack.enter_async_context(client)))
        for operation, params in CALLS:
            in_json, in_cbor = [await one.answer(operation, params) for one in told]
            assert in_json == in_cbor, operation


async def test_a_subscription_pushes_the_same_in_cbor_as_in_json():
    pushed = []
    for protocol in ("json", "cbor"):
        async with LocalKinesis(limits=False) as kinesis:
            kinesis.create_stream("s")
            client = Client(
                region="us-east-1",
                endpoint_url=kinesis.endpoint_url,
                credentials=kinesis.credentials,
                protocol=protocol,
            )
            async with client:
                await client.call("PutRecords", {**STREAM, "Records": ENTRIES})
                made = await client.call("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c"})
                await client.call("SplitShard", {**STREAM, "ShardToSplit": SHARD(0), "NewStartingHashKey": "1000"})
                arn = made["Consumer"]["ConsumerARN"]
                events = [event async for event in client.subscribe_to_shard(arn, SHARD(0), "TRIM_HORIZON")]
        records = [(record.data, record.key) for event in events for record in event.records]
        pushed.append((records, [child for event in events for child in event.child_shards or ()]))
    assert pushed[0] == pushed[1]
    assert [data for data, _ in pushed[0][0]] == [entry["Data"] for entry in ENTRIES]
    assert [child.shard_id for child in pushed[0][1]] == [SHARD(1), SHARD(2)]


def test_every_operation_is_asked():
    assert {operation for operation, _ in CALLS} - {"NoSuchOperation"} == set(INPUTS) - {"SubscribeToShard"}


def test_an_answer_to_cbor_is_cbor_and_so_is_a_refusal():
    with LocalKinesis(stream="s") as kinesis:
        connection = http.client.HTTPConnection(urlsplit(kinesis.endpoint_url).netloc, timeout=20)
        for name, status in (("s", 200), ("t", 400)):
            headers = {"Content-Type": "application/x-amz-cbor-1.1", "X-Amz-Target": "Kinesis_20131202.ListShards"}
            connection.request("POST", "/", cbor2.dumps({"StreamName": name}), headers)
            response = connection.getresponse()
            body = cbor2.loads(response.read())
            assert (response.status, response.headers["Content-Type"]) == (status, "application/x-amz-cbor-1.1")
            assert body.get("__type", "none") == ("none" if status == 200 else "ResourceNotFoundException")
        connection.close()
