"""Does the server support everything in botocore's model of the service, and answer nothing else?

With a newer botocore, this test shows what is missing: an operation, a member of a request, or a member of an answer.
"""

import json

import msgspec
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from tests.unit.server.conftest import JSON, SCHEMA, TO_S3, TO_TABLES

from shardline.server.model.inputs import INPUTS
from shardline.server.model.service import OPERATIONS

MODEL = ServiceModel(Loader().load_service_model("kinesis", "service-2"))
ARN = "arn:aws:kinesis:us-east-1:000000000000"
STREAM = {"StreamName": "s"}
METRICS = {"ShardLevelMetrics": ["IncomingBytes"]}
POLICY = json.dumps({"Statement": {"Effect": "Allow", "Principal": "*", "Action": "kinesis:*"}})
RECORD = {"Data": b"x", "PartitionKey": "k"}
NEVER = {
    "ChannelDescription.ChannelStatusReason": "no channel fails",
    "ChannelSummary.ChannelStatusReason": "no channel fails",
}
"""Members of answers that the server never has, with the reason."""


@pytest.fixture
def answers(server):
    """Return the answers to requests that together use every operation, as (operation, answer)."""
    found = []

    def call(operation, **members):
        found.append((operation, server.call(operation, **members)))
        return found[-1][1]

    call("UpdateAccountSettings", MinimumThroughputBillingCommitment={"Status": "ENABLED"})
    call("CreateStream", StreamName="s", ShardCount=2)
    call("CreateStream", StreamName="d", StreamModeDetails={"StreamMode": "ON_DEMAND"}, WarmThroughputMiBps=8)
    call("ListStreams", Limit=1)
    call("StartStreamEncryption", EncryptionType="KMS", KeyId="key", **STREAM)
    call("PutRecord", **STREAM, **RECORD)
    call("PutRecords", **STREAM, Records=[RECORD])
    first = {"ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
    iterators = [call("GetShardIterator", **STREAM, **first | {"ShardId": f"shardId-{n:012d}"}) for n in (0, 1)]
    half = str(2**126)
    call("SplitShard", **STREAM, ShardToSplit="shardId-000000000000", NewStartingHashKey=half)
    for iterator in iterators:
        call("GetRecords", ShardIterator=iterator["ShardIterator"])
    call("MergeShards", **STREAM, ShardToMerge="shardId-000000000002", AdjacentShardToMerge="shardId-000000000003")
    call("ListShards", **STREAM, MaxResults=4)
    call("DescribeStream", **STREAM)
    call("UpdateShardCount", **STREAM, TargetShardCount=4, ScalingType="UNIFORM_SCALING")
    call("EnableEnhancedMonitoring", **STREAM, **METRICS)
    call("DisableEnhancedMonitoring", **STREAM, **METRICS)
    call("IncreaseStreamRetentionPeriod", **STREAM, RetentionPeriodHours=48)
    call("DecreaseStreamRetentionPeriod", **STREAM, RetentionPeriodHours=24)
    call("AddTagsToStream", **STREAM, Tags={"a": "b"})
    call("ListTagsForStream", **STREAM)
    call("RemoveTagsFromStream", **STREAM, TagKeys=["a"])
    consumers = {"StreamARN": f"{ARN}:stream/s"}
    call("RegisterStreamConsumer", **consumers, ConsumerName="c")
    consumer = call("RegisterStreamConsumer", **consumers, ConsumerName="e")["Consumer"]["ConsumerARN"]
    call("DescribeStreamConsumer", ConsumerARN=consumer)
    call("ListStreamConsumers", **consumers, MaxResults=1)
    call("TagResource", ResourceARN=consumer, Tags={"a": "b"})
    call("ListTagsForResource", ResourceARN=consumer)
    call("UntagResource", ResourceARN=consumer, TagKeys=["a"])
    call("PutResourcePolicy", ResourceARN=consumer, Policy=POLICY)
    call("GetResourcePolicy", ResourceARN=consumer)
    call("DeleteResourcePolicy", ResourceARN=consumer)
    call("UpdateStreamWarmThroughput", StreamName="d", WarmThroughputMiBps=9)
    call("UpdateStreamRecordDistributionStrategy", StreamARN=f"{ARN}:stream/d", RecordDistributionStrategy="AUTO")
    storage = TO_S3["S3DestinationConfiguration"]["StorageConfiguration"] | {"OutputKeyTemplate": "a"}
    to_s3 = {"S3DestinationConfiguration": {"StorageConfiguration": storage}}
    encryption = {"EncryptionConfiguration": {"EncryptionType": "KMS", "KeyId": "key"}}
    logs = {"LoggingConfiguration": {"CloudWatchLogs": {"Enabled": True}}}
    call("CreateChannel", **server.channel_members("c", "d", to_s3, **encryption, **logs))
    tables = TO_TABLES["S3TablesDestinationConfiguration"]
    spec = {"PartitionSpec": {"PartitionFields": [{"Transform": "TIME_HOUR", "SourceName": "at"}]}}
    table = [tables["S3TablesConfigurationList"][0] | spec]
    tables |= {"S3TablesConfigurationList": table}
    with_schema = JSON | {"GSRSchemaARN": SCHEMA}
    to_tables = {"S3TablesDestinationConfiguration": tables}
    channel = call("CreateChannel", **server.channel_members("t", "d", to_tables, with_schema))["ChannelDescription"]
    call("DescribeChannel", ChannelARN=channel["ChannelARN"])
    call("ListChannels", MaxResults=1)
    call("UpdateChannel", ChannelARN=channel["ChannelARN"], **logs)
    call("DescribeStreamSummary", StreamName="d")
    call("DescribeStreamSummary", **STREAM)
    call("DescribeLimits")
    call("DescribeAccountSettings")
    server.pass_time(90_000)
    call("UpdateAccountSettings", MinimumThroughputBillingCommitment={"Status": "DISABLED"})
    call("UpdateMaxRecordSize", StreamARN=f"{ARN}:stream/s", MaxRecordSizeInKiB=2048)
    call("DeleteChannel", ChannelARN=channel["ChannelARN"])
    call("DeregisterStreamConsumer", ConsumerARN=consumer)
    call("StopStreamEncryption", EncryptionType="KMS", KeyId="key", **STREAM)
    call("UpdateStreamMode", StreamARN=f"{ARN}:stream/s", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    call("DeleteStream", **STREAM, EnforceConsumerDeletion=True)
    consumer = server.create("f").register("c", "f")
    server.put(b"x", name="f")
    event = server.pushed(server.subscribe(consumer))
    server.split(name="f")
    found.append(("SubscribeToShard", {"EventStream": {"SubscribeToShardEvent": event}}))
    event = server.pushed(server.subscribe(server.register("g", "f"), kind="LATEST"))
    found.append(("SubscribeToShard", {"EventStream": {"SubscribeToShardEvent": event}}))
    return found


def test_every_operation_is_known():
    assert set(INPUTS) == {*OPERATIONS, "SubscribeToShard"} == set(MODEL.operation_names)


def members_of(shape, value, where):
    """Return the members of a value, as ``Shape.Member``. A wrong type, or a member that the model does not have,
    raises.
    """
    if shape.type_name == "structure":
        for name in shape.required_members:
            # At the end of a shard there is no number to continue from, whatever the model says.
            assert name in value or name == "ContinuationSequenceNumber", f"{where} has no {name}"
        for name, member in value.items():
            assert name in shape.members, f"{where} has {name}, which the model does not know"
            yield f"{shape.name}.{name}"
            yield from members_of(shape.members[name], member, f"{where}.{name}")
    elif shape.type_name == "list":
        assert isinstance(value, list), where
        for item in value:
            yield from members_of(shape.member, item, where)
    else:
        types = {"string": str, "integer": int, "long": int, "boolean": bool, "timestamp": (int, float), "blob": bytes}
        assert isinstance(value, types[shape.type_name]), where
        assert value in (getattr(shape, "enum", None) or [value]), where
        constraints = shape.metadata
        measure = value if shape.type_name in {"integer", "long"} else len(value) if isinstance(value, str) else 1
        least = 0 if where == "PutRecords.FailedRecordCount" else constraints.get("min", 0)  # the model has 1, AWS 0
        assert least <= measure <= constraints.get("max", measure), where


def all_members(shape):
    if shape.type_name == "structure":
        for name, member in shape.members.items():
            if not member.metadata.get("exception"):
                yield f"{shape.name}.{name}"
                yield from all_members(member)
    elif shape.type_name == "list":
        yield from all_members(shape.member)


def test_every_answer_is_the_models(answers):
    assert {operation for operation, _ in answers} == set(MODEL.operation_names)
    for operation, answer in answers:
        shape = MODEL.operation_model(operation).output_shape
        if shape is None:
            assert answer is None, operation
        else:
            assert list(members_of(shape, answer, operation)), operation


def test_every_member_of_the_models_answers_is_answered(answers):
    known, answered = set(), set()
    for operation, answer in answers:
        shape = MODEL.operation_model(operation).output_shape
        if shape is not None:
            known |= set(all_members(shape))
            answered |= set(members_of(shape, answer, operation))
    failures = {name for name in known if name.startswith("PutRecordsResultEntry.Error")}  # of throttled entries
    assert known - answered == {*NEVER, *failures}


def test_every_member_of_the_models_requests_is_read():
    def compare(shape, kind, where):
        ours = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        # DescribeStream and others accept a name in addition to the members in the model of these two.
        assert set(ours) - set(shape.members) <= {"StreamName"}, where
        assert set(shape.members) - set(ours) <= {"StreamARN"}, where
        for name in shape.required_members:
            assert ours[name].required or name == "StreamARN", f"{where}.{name}"
        for name, member in shape.members.items():
            inner = member.member if member.type_name == "list" else member
            if name in ours and inner.type_name == "structure":
                compare(inner, struct_in(ours[name].type), f"{where}.{name}")

    def struct_in(kind):
        for one in (kind, *getattr(kind, "__args__", ()), *getattr(getattr(kind, "__origin__", None), "__args__", ())):
            if isinstance(one, type) and issubclass(one, msgspec.Struct):
                return one
            if one is not kind and (found := struct_in(one)) is not None:
                return found
        return None

    for operation in MODEL.operation_names:
        shape = MODEL.operation_model(operation).input_shape
        if shape is not None:
            compare(shape, INPUTS[operation], operation)
