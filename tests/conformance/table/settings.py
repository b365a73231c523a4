"""Scenarios of the settings of a stream: tags, retention, encryption, metrics, sizes, modes."""

from tests.conformance.expectation import SEQUENCE_NUMBER, Matching, Some
from tests.conformance.scenario import Call, Read, Scenario, Stream, Wait, invalid, ok, refused
from tests.conformance.table.reading import record
from tests.conformance.table.streams import SHARD_0

KEY = "alias/aws/kinesis"
OWN_TAG = {"Key": "shardline-conformance", "Value": "$run"}
METRICS = [
    "IncomingBytes", "IncomingRecords", "OutgoingBytes", "OutgoingRecords", "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded", "IteratorAgeMilliseconds",
]  # fmt: skip
ILLEGAL = (
    "Some tags contain invalid characters. Valid characters: Unicode letters, digits, white space, _ . / = + - % @."
)


def summary(**members):
    return Call("DescribeStreamSummary", {"StreamName": "$a"}, ok({"StreamDescriptionSummary": Some(members)}))


def retention(way, hours, expect):
    return Call(f"{way}StreamRetentionPeriod", {"StreamName": "$a", "RetentionPeriodHours": hours}, expect)


def tags(*pairs):
    return [*({"Key": key, "Value": value} for key, value in pairs), OWN_TAG]


SCENARIOS = (
    Scenario(
        "tags",
        "A stream's tags are added, listed page by page, and removed",
        streams={"a": Stream(1)},
        steps=(
            Call("ListTagsForStream", {"StreamName": "$a"}, ok({"Tags": tags(), "HasMoreTags": False})),
            Call("AddTagsToStream", {"StreamName": "$a", "Tags": {"a": "1", "b": ""}}, ok()),
            Call(
                "ListTagsForStream",
                {"StreamName": "$a"},
                ok({"Tags": tags(("a", "1"), ("b", "")), "HasMoreTags": False}),
            ),
            Call(
                "ListTagsForStream",
                {"StreamName": "$a", "Limit": 1},
                ok({"Tags": [{"Key": "a", "Value": "1"}], "HasMoreTags": True}),
            ),
            Call(
                "ListTagsForStream",
                {"StreamName": "$a", "ExclusiveStartTagKey": "a"},
                ok({"Tags": tags(("b", "")), "HasMoreTags": False}),
            ),
            Call("AddTagsToStream", {"StreamName": "$a", "Tags": {"a": "2"}}, ok()),
            Call("RemoveTagsFromStream", {"StreamName": "$a", "TagKeys": ["b", "not there"]}, ok()),
            Call("ListTagsForStream", {"StreamName": "$a"}, ok({"Tags": tags(("a", "2")), "HasMoreTags": False})),
            Call("AddTagsToStream", {"StreamName": "$a", "Tags": {"abc;def": "1"}}, invalid(ILLEGAL)),
            Call("AddTagsToStream", {"StreamName": "$a", "Tags": {"a": "abc,def"}}, invalid(ILLEGAL)),
            Call("AddTagsToStream", {"StreamName": "$a", "Tags": {"aws:reserved": "1"}}, invalid()),
            Call("AddTagsToStream", {"StreamName": "$a", "Tags": {f"k{at}": "v" for at in range(51)}}, invalid()),
        ),
    ),
    Scenario(
        "tags-by-arn",
        "Tags are added, listed and removed by the ARN of a resource",
        streams={"a": Stream(1)},
        consumer_shards=1,
        seconds=60,
        steps=(
            Call("TagResource", {"ResourceARN": "$a_arn", "Tags": {"a": "1"}}, ok()),
            Call("ListTagsForResource", {"ResourceARN": "$a_arn"}, ok({"Tags": tags(("a", "1"))})),
            Call("UntagResource", {"ResourceARN": "$a_arn", "TagKeys": ["a"]}, ok()),
            Call("ListTagsForResource", {"ResourceARN": "$a_arn"}, ok({"Tags": tags()})),
            Call(
                "RegisterStreamConsumer",
                {"StreamARN": "$a_arn", "ConsumerName": "one", "Tags": {"c": "1"}},
                ok({"Consumer": Some({"ConsumerName": "one"})}),
                keep={"consumer": "Consumer.ConsumerARN"},
            ),
            Wait("a", consumer="one"),
            Call("TagResource", {"ResourceARN": "$consumer", "Tags": {"d": "2"}}, ok()),
            Call(
                "ListTagsForResource",
                {"ResourceARN": "$consumer"},
                ok({"Tags": [{"Key": "c", "Value": "1"}, {"Key": "d", "Value": "2"}]}),
            ),
        ),
    ),
    Scenario(
        "retention",
        "The retention period can be changed, from one day to one year",
        streams={"a": Stream(1)},
        extended_retention_shards=1,
        seconds=90,
        steps=(
            retention("Increase", 48, ok()),
            Wait("a"),
            summary(RetentionPeriodHours=48),
            retention(
                "Increase",
                24,
                invalid(
                    "Requested retention period (24 hours) for stream $a can not be shorter than existing retention period "
                    "(48 hours). Use DecreaseRetentionPeriod API."
                ),
            ),
            retention(
                "Decrease",
                72,
                invalid(
                    "Requested retention period (72 hours) for stream $a can not be longer than existing retention period "
                    "(48 hours). Use IncreaseRetentionPeriod API."
                ),
            ),
            retention(
                "Increase",
                8761,
                invalid(
                    "Maximum allowed retention period is 8760 hours. Requested retention period (8761 hours) is too long."
                ),
            ),
            retention(
                "Decrease",
                23,
                invalid(
                    "Minimum allowed retention period is 24 hours. Requested retention period (23 hours) is too short."
                ),
            ),
            retention("Decrease", 24, ok()),
            Wait("a"),
            summary(RetentionPeriodHours=24),
        ),
    ),
    Scenario(
        "encryption",
        "Encryption with a KMS key is started and stopped, and answers name the encryption",
        streams={"a": Stream(1)},
        seconds=120,
        steps=(
            Call("StartStreamEncryption", {"StreamName": "$a", "EncryptionType": "NONE", "KeyId": KEY}, invalid()),
            Call("StartStreamEncryption", {"StreamName": "$a", "EncryptionType": "KMS", "KeyId": KEY}, ok()),
            Wait("a"),
            summary(EncryptionType="KMS", KeyId=KEY),
            Call(
                "PutRecord",
                {"StreamName": "$a", "Data": b"1", "PartitionKey": "k"},
                ok({"ShardId": SHARD_0, "SequenceNumber": SEQUENCE_NUMBER, "EncryptionType": "KMS"}),
            ),
            Call(
                "PutRecords",
                {"StreamName": "$a", "Records": [{"Data": b"2", "PartitionKey": "k"}]},
                ok(Some({"FailedRecordCount": 0, "EncryptionType": "KMS"})),
            ),
            Read(
                {"StreamName": "$a", "ShardId": SHARD_0, "ShardIteratorType": "TRIM_HORIZON"},
                {
                    "records": [record("MQ==") | {"EncryptionType": "KMS"}, record("Mg==") | {"EncryptionType": "KMS"}],
                    "ended": False,
                },
                records=2,
            ),
            Call("StopStreamEncryption", {"StreamName": "$a", "EncryptionType": "KMS", "KeyId": KEY}, ok()),
            Wait("a"),
            summary(EncryptionType="NONE"),
        ),
    ),
    Scenario(
        "metrics",
        "Metrics per shard are switched on and off",
        streams={"a": Stream(1)},
        seconds=60,
        steps=(
            Call(
                "EnableEnhancedMonitoring",
                {"StreamName": "$a", "ShardLevelMetrics": ["IncomingBytes"]},
                ok(
                    {
                        "StreamName": "$a",
                        "StreamARN": "$a_arn",
                        "CurrentShardLevelMetrics": [],
                        "DesiredShardLevelMetrics": ["IncomingBytes"],
                    }
                ),
            ),
            Wait("a"),
            summary(EnhancedMonitoring=[{"ShardLevelMetrics": ["IncomingBytes"]}]),
            Call(
                "DisableEnhancedMonitoring",
                {"StreamName": "$a", "ShardLevelMetrics": ["ALL"]},
                ok(
                    {
                        "StreamName": "$a",
                        "StreamARN": "$a_arn",
                        "CurrentShardLevelMetrics": ["IncomingBytes"],
                        "DesiredShardLevelMetrics": [],
                    }
                ),
            ),
            Wait("a"),
            summary(EnhancedMonitoring=[{"ShardLevelMetrics": []}]),
        ),
    ),
    Scenario(
        "record-size",
        "A stream accepts larger records after UpdateMaxRecordSize",
        streams={"a": Stream(1)},
        put_units=100,
        seconds=60,
        steps=(
            Call("UpdateMaxRecordSize", {"StreamARN": "$a_arn", "MaxRecordSizeInKiB": 2048}, ok()),
            Wait("a"),
            summary(MaxRecordSizeInKiB=2048),
            Call(
                "PutRecord",
                {"StreamName": "$a", "Data": b"x" * 1_500_000, "PartitionKey": "k"},
                ok({"ShardId": SHARD_0, "SequenceNumber": SEQUENCE_NUMBER}),
            ),
            Call(
                "PutRecord",
                {"StreamName": "$a", "Data": b"x" * 2_200_000, "PartitionKey": "k"},
                refused("ValidationException"),
            ),
        ),
    ),
    Scenario(
        "record-distribution",
        "An on-demand stream distributes records by key, or chooses the shards itself",
        streams={"a": Stream(4, on_demand=True)},
        seconds=90,
        steps=(
            summary(RecordDistributionStrategy="USER_PARTITION_KEY"),
            Call(
                "UpdateStreamRecordDistributionStrategy",
                {"StreamARN": "$a_arn", "RecordDistributionStrategy": "AUTO"},
                ok(),
            ),
            Wait("a"),
            summary(RecordDistributionStrategy="AUTO"),
            Call(
                "PutRecord",
                {"StreamName": "$a", "Data": b"x"},
                ok({"ShardId": Matching(r"shardId-\d{12}"), "SequenceNumber": SEQUENCE_NUMBER}),
            ),
        ),
    ),
)
