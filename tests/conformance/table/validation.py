"""Scenarios of requests that violate a constraint: a member is missing, too long, too short, or out of range.

The texts, and the order of the errors in them, are those that kinesalite's tests recorded from AWS.
"""

from tests.conformance.expectation import ANY_TEXT
from tests.conformance.scenario import Call, Scenario, broken, invalid, refused, violation

NOT_NULL = "not be null"
NAME = "satisfy regular expression pattern: [a-zA-Z0-9_.-]+"
AT_LEAST_1 = "have length greater than or equal to 1"
AT_MOST_128 = "have length less than or equal to 128"
LONG = "x" * 129


def value(least):
    return f"have value greater than or equal to {least}"


def at_most(most):
    return f"have value less than or equal to {most}"


def null(*members):
    return violation(*(broken("null", member, NOT_NULL) for member in members))


SCENARIOS = (
    Scenario(
        "validation-streams",
        "Requests about streams are refused if a member violates a constraint",
        seconds=15,
        steps=(
            Call("CreateStream", {"ShardCount": 1}, null("streamName")),
            Call(
                "CreateStream",
                {"StreamName": "", "ShardCount": 0},
                violation(
                    broken("0", "shardCount", value(1)),
                    broken("", "streamName", NAME),
                    broken("", "streamName", AT_LEAST_1),
                ),
            ),
            Call(
                "CreateStream",
                {"StreamName": LONG, "ShardCount": 1},
                violation(broken(LONG, "streamName", AT_MOST_128)),
            ),
            Call(
                "CreateStream",
                {"StreamName": "a name", "ShardCount": 1},
                violation(broken("a name", "streamName", NAME)),
            ),
            Call(
                "CreateStream",
                {"StreamName": "$nothing", "StreamModeDetails": {"StreamMode": "NONE"}},
                refused("ValidationException"),
            ),
            Call(
                "CreateStream",
                {"StreamName": "$nothing", "ShardCount": 1, "MaxRecordSizeInKiB": 1023},
                refused("ValidationException"),
            ),
            Call("DeleteStream", {"StreamName": LONG}, violation(broken(LONG, "streamName", AT_MOST_128))),
            Call("DescribeStream", {"StreamName": "$nothing", "Limit": 0}, violation(broken("0", "limit", value(1)))),
            Call(
                "DescribeStream",
                {"StreamName": "$nothing", "Limit": 10001},
                violation(broken("10001", "limit", at_most(10000))),
            ),
            Call(
                "DescribeStream",
                {"StreamName": "$nothing", "ExclusiveStartShardId": ""},
                refused("ValidationException"),
            ),
            Call("ListStreams", {"Limit": 0}, violation(broken("0", "limit", value(1)))),
            Call("ListStreams", {"Limit": 10001}, violation(broken("10001", "limit", at_most(10000)))),
            Call(
                "ListStreams",
                {"ExclusiveStartStreamName": "a name"},
                violation(broken("a name", "exclusiveStartStreamName", NAME)),
            ),
            Call("ListShards", {}, invalid()),
            Call(
                "ListShards",
                {"StreamName": "$nothing", "MaxResults": 0},
                violation(broken("0", "maxResults", value(1))),
            ),
            Call(
                "ListShards",
                {"StreamName": "$nothing", "NextToken": "x"},
                invalid("NextToken and StreamName cannot be provided together."),
            ),
            Call("ListShards", {"NextToken": "nonsense"}, invalid()),
            Call(
                "ListShards",
                {"StreamName": "$nothing", "ShardFilter": {"Type": "AT_NOON"}},
                refused("ValidationException"),
            ),
            Call("DescribeStreamSummary", {"StreamName": "a name"}, violation(broken("a name", "streamName", NAME))),
            Call("DescribeStreamSummary", {"StreamARN": "no ARN"}, refused("ValidationException")),
        ),
    ),
    Scenario(
        "validation-records",
        "Requests to put and read records are refused if a member violates a constraint",
        seconds=15,
        steps=(
            Call("PutRecord", {"StreamName": "$nothing", "PartitionKey": "k"}, null("data")),
            Call(
                "PutRecord",
                {"StreamName": "$nothing", "Data": b"x", "PartitionKey": ""},
                violation(broken("", "partitionKey", AT_LEAST_1)),
            ),
            Call(
                "PutRecord",
                {"StreamName": "$nothing", "Data": b"x", "PartitionKey": "k" * 257},
                violation(broken("k" * 257, "partitionKey", "have length less than or equal to 256")),
            ),
            Call(
                "PutRecord",
                {"StreamName": "$nothing", "Data": b"x", "PartitionKey": "k", "ExplicitHashKey": "01"},
                violation(broken("01", "explicitHashKey", r"satisfy regular expression pattern: 0|([1-9]\d{0,38})")),
            ),
            Call(
                "PutRecord",
                {"StreamName": "$nothing", "Data": b"x", "PartitionKey": "k", "SequenceNumberForOrdering": "x"},
                violation(
                    broken("x", "sequenceNumberForOrdering", r"satisfy regular expression pattern: 0|([1-9]\d{0,128})")
                ),
            ),
            Call("PutRecords", {"StreamName": "$nothing"}, null("records")),
            Call("PutRecords", {"StreamName": "$nothing", "Records": []}, refused("ValidationException")),
            Call(
                "PutRecords",
                {"StreamName": "$nothing", "Records": [{"Data": b"", "PartitionKey": "k"}] * 501},
                refused("ValidationException"),
            ),
            Call(
                "PutRecords",
                {"StreamName": "$nothing", "Records": [{"PartitionKey": "k"}]},
                null("records.1.member.data"),
            ),
            Call("GetRecords", {}, null("shardIterator")),
            Call(
                "GetRecords",
                {"ShardIterator": "", "Limit": 0},
                violation(broken("0", "limit", value(1)), broken("", "shardIterator", AT_LEAST_1)),
            ),
            Call(
                "GetRecords",
                {"ShardIterator": "x", "Limit": 10001},
                violation(broken("10001", "limit", at_most(10000))),
            ),
            Call(
                "GetRecords",
                {"ShardIterator": "x" * 513},
                violation(broken("x" * 513, "shardIterator", "have length less than or equal to 512")),
            ),
            Call("GetRecords", {"ShardIterator": "nonsense"}, invalid("Invalid ShardIterator.")),
            Call("GetShardIterator", {"StreamName": "$nothing", "ShardIteratorType": "LATEST"}, null("shardId")),
            Call(
                "GetShardIterator",
                {"StreamName": "$nothing", "ShardId": "s", "ShardIteratorType": "AT_NOON"},
                refused("ValidationException"),
            ),
            Call("GetShardIterator", {"StreamName": "$nothing", "ShardId": "s"}, null("shardIteratorType")),
            Call(
                "SubscribeToShard",
                {"ConsumerARN": "no ARN", "ShardId": "s", "StartingPosition": {"Type": "LATEST"}},
                refused("ValidationException"),
            ),
        ),
    ),
    Scenario(
        "validation-changes",
        "Requests to change a stream are refused if a member violates a constraint",
        seconds=15,
        steps=(
            Call("SplitShard", {"StreamName": "$nothing", "NewStartingHashKey": "1"}, null("shardToSplit")),
            Call(
                "SplitShard",
                {"StreamName": "$nothing", "ShardToSplit": "s", "NewStartingHashKey": "x"},
                violation(broken("x", "newStartingHashKey", r"satisfy regular expression pattern: 0|([1-9]\d{0,38})")),
            ),
            Call("MergeShards", {"StreamName": "$nothing", "ShardToMerge": "s"}, null("adjacentShardToMerge")),
            Call(
                "UpdateShardCount",
                {"StreamName": "$nothing", "TargetShardCount": 0, "ScalingType": "UNIFORM_SCALING"},
                refused("ValidationException"),
            ),
            Call(
                "UpdateShardCount",
                {"StreamName": "$nothing", "TargetShardCount": 1, "ScalingType": "ODD"},
                refused("ValidationException"),
            ),
            Call("IncreaseStreamRetentionPeriod", {"StreamName": "$nothing"}, null("retentionPeriodHours")),
            Call("AddTagsToStream", {"StreamName": "$nothing", "Tags": {}}, refused("ValidationException")),
            Call(
                "AddTagsToStream", {"StreamName": "$nothing", "Tags": {"k" * 129: "v"}}, refused("ValidationException")
            ),
            Call("RemoveTagsFromStream", {"StreamName": "$nothing", "TagKeys": []}, refused("ValidationException")),
            Call("ListTagsForStream", {"StreamName": "$nothing", "Limit": 51}, refused("ValidationException")),
            Call(
                "EnableEnhancedMonitoring",
                {"StreamName": "$nothing", "ShardLevelMetrics": ["Odd"]},
                refused("ValidationException"),
            ),
            Call("StartStreamEncryption", {"StreamName": "$nothing", "EncryptionType": "KMS"}, null("keyId")),
            Call(
                "StartStreamEncryption",
                {"StreamName": "$nothing", "EncryptionType": "ROT13", "KeyId": "k"},
                refused("ValidationException"),
            ),
            Call(
                "UpdateMaxRecordSize",
                {"StreamARN": "$nothing_arn", "MaxRecordSizeInKiB": 1023},
                refused("ValidationException"),
            ),
            Call(
                "UpdateMaxRecordSize",
                {"StreamARN": "$nothing_arn", "MaxRecordSizeInKiB": 10241},
                refused("ValidationException"),
            ),
            Call(
                "RegisterStreamConsumer",
                {"StreamARN": "$nothing_arn", "ConsumerName": ""},
                refused("ValidationException"),
            ),
            Call("ListStreamConsumers", {"StreamARN": "$nothing_arn", "MaxResults": 0}, refused("ValidationException")),
            Call("DescribeStreamConsumer", {}, refused("InvalidArgumentException", ANY_TEXT)),
        ),
    ),
)
