"""Scenarios of streams: created, described, listed, named by ARN, deleted; their states, modes and limits."""

from tests.conformance.expectation import (
    A_BOOL,
    COUNT,
    SEQUENCE_NUMBER,
    TIME,
    TOKEN,
    WHOLE_SECOND,
    Matching,
    Some,
    one_of,
)
from tests.conformance.scenario import Call, Flood, Scenario, Stream, Wait, invalid, not_found, ok, refused

SHARD_0, SHARD_1 = "shardId-000000000000", "shardId-000000000001"
LAST_KEY = str((1 << 128) - 1)
HALF = str(1 << 127)
BELOW_HALF = str((1 << 127) - 1)
MISSING = {
    "AddTagsToStream": {"Tags": {"a": "b"}},
    "DecreaseStreamRetentionPeriod": {"RetentionPeriodHours": 24},
    "DeleteStream": {},
    "DescribeStream": {},
    "DescribeStreamSummary": {},
    "DisableEnhancedMonitoring": {"ShardLevelMetrics": ["ALL"]},
    "EnableEnhancedMonitoring": {"ShardLevelMetrics": ["ALL"]},
    "IncreaseStreamRetentionPeriod": {"RetentionPeriodHours": 48},
    "ListShards": {},
    "ListTagsForStream": {},
    "MergeShards": {"ShardToMerge": SHARD_0, "AdjacentShardToMerge": SHARD_1},
    "PutRecord": {"Data": b"x", "PartitionKey": "k"},
    "PutRecords": {"Records": [{"Data": b"x", "PartitionKey": "k"}]},
    "RemoveTagsFromStream": {"TagKeys": ["a"]},
    "SplitShard": {"ShardToSplit": SHARD_0, "NewStartingHashKey": "100"},
    "StartStreamEncryption": {"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"},
    "StopStreamEncryption": {"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"},
    "UpdateShardCount": {"TargetShardCount": 2, "ScalingType": "UNIFORM_SCALING"},
}
MISSING_BY_ARN = {
    "ListStreamConsumers": {},
    "RegisterStreamConsumer": {"ConsumerName": "c"},
    "DescribeStreamConsumer": {"ConsumerName": "c"},
    "DeregisterStreamConsumer": {"ConsumerName": "c"},
    "UpdateStreamMode": {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}},
    "UpdateMaxRecordSize": {"MaxRecordSizeInKiB": 1024},
    "UpdateStreamRecordDistributionStrategy": {"RecordDistributionStrategy": "AUTO"},
}


def shard(shard_id, start="0", end=LAST_KEY, **more):
    """An open shard, as it is described."""
    return {
        "ShardId": shard_id,
        "HashKeyRange": {"StartingHashKey": start, "EndingHashKey": end},
        "SequenceNumberRange": {"StartingSequenceNumber": SEQUENCE_NUMBER},
        **more,
    }


def closed(shard_id, start="0", end=LAST_KEY, **more):
    numbers = {"StartingSequenceNumber": SEQUENCE_NUMBER, "EndingSequenceNumber": SEQUENCE_NUMBER}
    return shard(shard_id, start, end, **more) | {"SequenceNumberRange": numbers}


DESCRIBED = {
    "StreamName": "$a",
    "StreamARN": "$a_arn",
    "StreamStatus": "ACTIVE",
    "StreamModeDetails": {"StreamMode": "PROVISIONED"},
    "RetentionPeriodHours": 24,
    "StreamCreationTimestamp": WHOLE_SECOND,
    "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
    "EncryptionType": "NONE",
}
SUMMARY = DESCRIBED | {
    "OpenShardCount": 2,
    "ConsumerCount": 0,
    "MaxRecordSizeInKiB": 1024,
    "ChannelCount": 0,
    "StreamId": TOKEN,
}
LIMITS = {
    "ShardLimit": COUNT,
    "OpenShardCount": COUNT,
    "OnDemandStreamCount": COUNT,
    "OnDemandStreamCountLimit": COUNT,
    "ChannelCount": COUNT,
    "ChannelCountLimit": COUNT,
}
TWO_SHARDS = [shard(SHARD_0, "0", BELOW_HALF), shard(SHARD_1, HALF, LAST_KEY)]

SCENARIOS = (
    Scenario(
        "stream-life",
        "A stream is created, described, listed and deleted",
        makes={"a": Stream(2)},
        seconds=60,
        steps=(
            Call("CreateStream", {"StreamName": "$a", "ShardCount": 2}, ok()),
            Call(
                "CreateStream",
                {"StreamName": "$a", "ShardCount": 1},
                refused("ResourceInUseException", "Stream $a under account $account already exists."),
            ),
            Wait("a"),
            Call(
                "DescribeStream",
                {"StreamName": "$a"},
                ok({"StreamDescription": DESCRIBED | {"Shards": TWO_SHARDS, "HasMoreShards": False}}),
            ),
            Call("DescribeStreamSummary", {"StreamName": "$a"}, ok({"StreamDescriptionSummary": SUMMARY})),
            Call(
                "DescribeStream",
                {"StreamName": "$a", "Limit": 1},
                ok({"StreamDescription": DESCRIBED | {"Shards": TWO_SHARDS[:1], "HasMoreShards": True}}),
            ),
            Call(
                "DescribeStream",
                {"StreamName": "$a", "ExclusiveStartShardId": SHARD_0},
                ok({"StreamDescription": DESCRIBED | {"Shards": TWO_SHARDS[1:], "HasMoreShards": False}}),
            ),
            Call("ListShards", {"StreamName": "$a"}, ok({"Shards": TWO_SHARDS})),
            Call(
                "ListStreams",
                {"ExclusiveStartStreamName": "$before", "Limit": 1},
                ok(
                    Some(
                        {
                            "StreamNames": ["$a"],
                            "HasMoreStreams": A_BOOL,
                            "StreamSummaries": [
                                {
                                    "StreamName": "$a",
                                    "StreamARN": "$a_arn",
                                    "StreamStatus": "ACTIVE",
                                    "StreamModeDetails": {"StreamMode": "PROVISIONED"},
                                    "StreamCreationTimestamp": TIME,
                                }
                            ],
                        },
                        ignored=("NextToken",),  # it depends on the other streams of the account
                    )
                ),
                eventually=30,
            ),
            Call("DeleteStream", {"StreamName": "$a"}, ok()),
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a"},
                ok({"StreamDescriptionSummary": Some({"StreamName": "$a", "StreamStatus": "DELETING"})}),
            ),
            Call("PutRecord", {"StreamName": "$a", "Data": b"x", "PartitionKey": "k"}, not_found("$a"), eventually=10),
            Wait("a", "gone"),
            Call("DescribeStream", {"StreamName": "$a"}, not_found("$a")),
        ),
    ),
    Scenario(
        "stream-creating",
        "While a stream is being created, some operations are refused",
        makes={"a": Stream(1)},
        steps=(
            Call("CreateStream", {"StreamName": "$a", "ShardCount": 1}, ok()),
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a"},
                ok({"StreamDescriptionSummary": Some({"StreamStatus": "CREATING", "OpenShardCount": 0})}),
            ),
            Call(
                "DescribeStream",
                {"StreamName": "$a"},
                ok({"StreamDescription": Some({"StreamStatus": "CREATING", "Shards": [], "HasMoreShards": False})}),
            ),
            Call("PutRecord", {"StreamName": "$a", "Data": b"x", "PartitionKey": "k"}, not_found("$a")),
            Call("PutRecords", {"StreamName": "$a", "Records": [{"Data": b"x", "PartitionKey": "k"}]}, not_found("$a")),
            Call(
                "GetShardIterator",
                {"StreamName": "$a", "ShardId": SHARD_0, "ShardIteratorType": "LATEST"},
                refused(
                    "ResourceNotFoundException",
                    f"Shard {SHARD_0} in stream $a under account $account does not exist",
                ),
            ),
            Call(
                "SplitShard",
                {"StreamName": "$a", "ShardToSplit": SHARD_0, "NewStartingHashKey": "2"},
                refused(
                    "ResourceInUseException", "Stream $a under account $account not ACTIVE, instead in state CREATING"
                ),
            ),
            Call(
                "MergeShards",
                {"StreamName": "$a", "ShardToMerge": SHARD_0, "AdjacentShardToMerge": SHARD_1},
                refused(
                    "ResourceInUseException", "Stream $a under account $account not ACTIVE, instead in state CREATING"
                ),
            ),
            Call("DeleteStream", {"StreamName": "$a"}, ok()),
            Wait("a", "gone"),
        ),
    ),
    Scenario(
        "stream-missing",
        "Every operation reports a missing stream, whether it is named by its name or its ARN",
        seconds=20,
        steps=(
            *(Call(name, {"StreamName": "$nothing", **more}, not_found()) for name, more in MISSING.items()),
            *(Call(name, {"StreamARN": "$nothing_arn", **more}, not_found()) for name, more in MISSING_BY_ARN.items()),
            Call("DescribeStreamSummary", {"StreamARN": "$nothing_arn"}, not_found()),
            Call("TagResource", {"ResourceARN": "$nothing_arn", "Tags": {"a": "b"}}, not_found()),
            Call("UntagResource", {"ResourceARN": "$nothing_arn", "TagKeys": ["a"]}, not_found()),
            Call("ListTagsForResource", {"ResourceARN": "$nothing_arn"}, not_found()),
            Call(
                "GetShardIterator",
                {"StreamName": "$nothing", "ShardId": SHARD_0, "ShardIteratorType": "LATEST"},
                refused("ResourceNotFoundException"),
            ),
        ),
    ),
    Scenario(
        "stream-of-another-account",
        "A missing stream of another account, named by its ARN, is reported",
        seconds=5,
        steps=(
            Call(
                "DescribeStreamSummary",
                {"StreamARN": "arn:$partition:kinesis:$region:111111111111:stream/$nothing"},
                refused("ResourceNotFoundException", "Stream $nothing under account 111111111111 not found."),
            ),
        ),
    ),
    Scenario(
        "stream-by-arn",
        "A request may name a stream by its ARN, or by name and ARN, if both mean the same stream",
        streams={"a": Stream(1, shared=True)},
        steps=(
            Call(
                "DescribeStreamSummary",
                {"StreamARN": "$a_arn"},
                ok({"StreamDescriptionSummary": Some({"StreamName": "$a"})}),
            ),
            Call("ListShards", {"StreamARN": "$a_arn"}, ok({"Shards": [shard(SHARD_0)]})),
            Call(
                "PutRecord",
                {"StreamARN": "$a_arn", "Data": b"x", "PartitionKey": "k"},
                ok({"ShardId": SHARD_0, "SequenceNumber": SEQUENCE_NUMBER}),
            ),
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a", "StreamARN": "$a_arn"},
                ok({"StreamDescriptionSummary": Some({})}),
            ),
            Call("DescribeStreamSummary", {"StreamName": "$nothing", "StreamARN": "$a_arn"}, invalid()),
            Call("DescribeStreamSummary", {}, invalid()),
        ),
    ),
    Scenario(
        "stream-on-demand",
        "An on-demand stream manages its shards itself; its mode can be changed",
        makes={"a": Stream(4, on_demand=True)},
        shards_at_most=4,
        seconds=90,
        steps=(
            Call("CreateStream", {"StreamName": "$a", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}}, ok()),
            Wait("a"),
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a"},
                ok(
                    {
                        "StreamDescriptionSummary": Some(
                            {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}, "OpenShardCount": 4}
                        )
                    }
                ),
            ),
            *(
                Call(
                    name,
                    {"StreamName": "$a", **more},
                    refused(
                        "ValidationException",
                        "Request is invalid. Stream $a under account $account is in On-Demand mode.",
                    ),
                )
                for name, more in MISSING.items()
                if name in {"SplitShard", "MergeShards", "UpdateShardCount"}
            ),
            Call("UpdateStreamMode", {"StreamARN": "$a_arn", "StreamModeDetails": {"StreamMode": "PROVISIONED"}}, ok()),
            Wait("a"),
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a"},
                ok(
                    {
                        "StreamDescriptionSummary": Some(
                            {"StreamModeDetails": {"StreamMode": "PROVISIONED"}, "OpenShardCount": 4}
                        )
                    }
                ),
            ),
            Call(
                "UpdateStreamMode",
                {"StreamARN": "$a_arn", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}},
                ok(),
            ),
            Wait("a"),
            Call(
                "UpdateStreamMode",
                {"StreamARN": "$a_arn", "StreamModeDetails": {"StreamMode": "PROVISIONED"}},
                refused("LimitExceededException"),
            ),
        ),
    ),
    Scenario(
        "creating-limit",
        "At most five streams can be created at the same time",
        makes={f"s{number}": Stream(1) for number in range(6)},
        not_on_aws="other scenarios create streams at the same time",
        steps=(
            *(Call("CreateStream", {"StreamName": f"$s{number}", "ShardCount": 1}, ok()) for number in range(5)),
            Call(
                "CreateStream",
                {"StreamName": "$s5", "ShardCount": 1},
                refused(
                    "LimitExceededException",
                    "This request would have exceed the limit on the number  of streams that can simultaneously be in "
                    "CREATING or DELETING for the account $account. Limit: 5.",
                ),
            ),
        ),
    ),
    Scenario(
        "throttled-control",
        "DescribeLimits is allowed once per second",
        seconds=10,
        steps=(Flood("DescribeLimits", {}, refused("LimitExceededException"), at_most=30),),
    ),
    Scenario(
        "account-limits",
        "DescribeLimits returns the account's limits, and a stream that would exceed them is refused",
        streams={"a": Stream(1, shared=True)},
        steps=(
            Call(
                "DescribeLimits",
                {},
                ok(LIMITS),
                keep={"limit": "ShardLimit"},
            ),
            # As many as the account may have in total, and there is one already, so it can never be granted.
            Call(
                "CreateStream",
                {"StreamName": "$nothing", "ShardCount": "$limit"},
                refused(
                    "LimitExceededException",
                    Matching(
                        r"This request would exceed the shard limit for the account $account in $region\. "
                        r"Current shard count for the account: \d+\. Limit: \d+\. Number of additional shards that would have "
                        r"resulted from this request: \d+\. Refer to the AWS Service Limits page "
                        r"\(http://docs\.aws\.amazon\.com/general/latest/gr/aws_service_limits\.html\) for current limits "
                        r"and how to request higher limits\."
                    ),
                ),
            ),
            Call(
                "DescribeAccountSettings",
                {},
                ok(
                    {
                        "MinimumThroughputBillingCommitment": Some(
                            {"Status": one_of("DISABLED", "ENABLED", "ENABLED_UNTIL_EARLIEST_ALLOWED_END")}
                        )
                    }
                ),
            ),
        ),
    ),
)
