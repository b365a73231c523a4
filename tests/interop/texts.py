"""Lists AWS's messages for refused requests, where each was seen, and the request that gets the message here.

This module contains only data: ``tests/unit/server/model/test_texts.py`` sends each request to the server's model and compares code and
text, and ``docs/tested/differences.md`` shows the table. A text without a source is our own, because AWS's text is not known.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardline.server.model.settings import Delays, Limits

KINESALITE = "https://github.com/mhart/kinesalite/blob/c76689da192ab96c87c5db8f95c1e3fba1985433/test"
MOTO = (
    "https://github.com/getmoto/moto/blob/0af643a5dbfc98797f08ee64f5be3ef8002d56ff/tests/test_kinesis/test_kinesis.py"
)
ACCOUNT = "000000000000"
ARN = f"arn:aws:kinesis:us-east-1:{ACCOUNT}:stream/s"
CONSUMER = f"{ARN}/consumer/c:1700000000"
IN_S = f"in stream s under account {ACCOUNT}"
FIRST = "shardId-000000000000"
CREATE = {"StreamName": "s", "ShardCount": 1}
POSITION = {"StreamName": "s", "ShardId": FIRST}
KINDS = "[AFTER_SEQUENCE_NUMBER, LATEST, AT_TIMESTAMP, AT_SEQUENCE_NUMBER, TRIM_HORIZON]"
PAIRS = (
    "Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and StartingSequenceNumber or (2) TRIM_HORIZON "
    "or LATEST and no StartingSequenceNumber. Request specified"
)
NUMBER = "class com.amazon.coral.value.json.numbers.TruncatingBigNumber can not be converted to an String"
QUOTED_X, NO_ITEMS = "'X'", "'[]'"
VALIDATION, SERIALIZATION = "ValidationException", "SerializationException"
INVALID, MISSING = "InvalidArgumentException", "ResourceNotFoundException"
IN_USE, LIMIT = "ResourceInUseException", "LimitExceededException"
THROTTLED = "ProvisionedThroughputExceededException"


@dataclass(frozen=True)
class Text:
    """One refused request and its message. The request is the last of ``calls``; the earlier calls succeed."""

    when: str
    code: str
    text: str
    seen: tuple[str, ...]
    calls: tuple[tuple[str, dict[str, Any]], ...]
    settings: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[Any], dict[str, Any]] | None = None
    """The members of the last call that are taken from the answers to earlier calls."""


def recorded(*names: str) -> tuple[str, ...]:
    return tuple(f"{KINESALITE}/{name}.js" for name in names)


def issue(repository: str, number: int) -> str:
    return f"https://github.com/{repository}/issues/{number}"


def created(*calls: tuple[str, dict[str, Any]], **members: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return the calls, preceded by a call that creates their stream."""
    return (("CreateStream", CREATE | members), *calls)


def problem(value: str, member: str, constraint: str) -> str:
    return f"Value {value} at '{member}' failed to satisfy constraint: {constraint}"


def used_iterator(server: Any) -> dict[str, Any]:
    members = {"ShardIterator": server.iterator()}
    server.call("GetRecords", **members)
    return members


def old_iterator(server: Any) -> dict[str, Any]:
    members = {"ShardIterator": server.iterator()}
    server.pass_time(301)
    return members


REGISTERED = (("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c"}),)
SUBSCRIBE = ("SubscribeToShard", {"ConsumerARN": CONSUMER, "ShardId": FIRST, "StartingPosition": {"Type": "LATEST"}})
SHARD_LIMIT = (
    f"This request would exceed the shard limit for the account {ACCOUNT} in us-east-1. Current shard count for the "
    "account: {0}. Limit: {1}. Number of additional shards that would have resulted from this request: {2}. Refer to the AWS "
    "Service Limits page (http://docs.aws.amazon.com/general/latest/gr/aws_service_limits.html) for current limits and how "
    "to request higher limits."
).format
ON_DEMAND = {"StreamName": "s", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
IS_ON_DEMAND = f"Request is invalid. Stream s under account {ACCOUNT} is in On-Demand mode."

TEXTS = (
    # ---- broken constraints
    Text("a required member is missing", VALIDATION,
         f"1 validation error detected: {problem('null', 'shardToSplit', 'Member must not be null')}",
         recorded("splitShard"), (("SplitShard", {"StreamName": "s", "NewStartingHashKey": "5"}),)),
    Text("several constraints are broken; the order of the errors varies on AWS", VALIDATION,
         "3 validation errors detected: "
         + problem("'0'", "shardCount", "Member must have value greater than or equal to 1") + "; "
         + problem("''", "streamName", "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+") + "; "
         + problem("''", "streamName", "Member must have length greater than or equal to 1"),
         recorded("createStream"), (("CreateStream", {"StreamName": "", "ShardCount": 0}),)),
    Text("a value outside of its set of values", VALIDATION,
         f"1 validation error detected: {problem(QUOTED_X, 'shardIteratorType', f'Member must satisfy enum value set: {KINDS}')}",
         recorded("getShardIterator"), (("GetShardIterator", POSITION | {"ShardIteratorType": "X"}),)),
    Text("a member of an entry", VALIDATION,
         "2 validation errors detected: "
         + problem("''", "records.1.member.partitionKey", "Member must have length greater than or equal to 1") + "; "
         + problem("''", "records.1.member.explicitHashKey", r"Member must satisfy regular expression pattern: 0|([1-9]\d{0,38})"),
         recorded("putRecords"),
         (("PutRecords", {"StreamName": "s", "Records": [{"Data": b"", "PartitionKey": "", "ExplicitHashKey": ""}]}),)),
    Text("the data of a record is too long", VALIDATION,
         "1 validation error detected: "
         + problem("'java.nio.HeapByteBuffer[pos=0 lim=1048577 cap=1048577]'", "data",
                   "Member must have length less than or equal to 1048576"),
         recorded("putRecord"),
         created(("PutRecord", {"StreamName": "s", "PartitionKey": "k", "Data": bytes(1_048_577)}))),
    Text("an empty list", VALIDATION,
         f"1 validation error detected: {problem(NO_ITEMS, 'tagKeys', 'Member must have length greater than or equal to 1')}",
         recorded("removeTagsFromStream"), (("RemoveTagsFromStream", {"StreamName": "s", "TagKeys": []}),)),
    Text("an item of a list", VALIDATION,
         "1 validation error detected: " + problem("'[a, ]'", "tagKeys",
         "Member must satisfy constraint: [Member must have length less than or equal to 128, Member must have length "
         "greater than or equal to 1]"),
         recorded("removeTagsFromStream"), (("RemoveTagsFromStream", {"StreamName": "s", "TagKeys": ["a", ""]}),)),
    Text("a key of a map", VALIDATION,
         "1 validation error detected: " + problem("'{=1}'", "tags",
         "Map keys must satisfy constraint: [Member must have length less than or equal to 128, Member must have length "
         "greater than or equal to 1]"),
         recorded("addTagsToStream"), (("AddTagsToStream", {"StreamName": "s", "Tags": {"": "1"}}),)),
    # ---- wrong types: the member of the answer is called Message
    Text("a number for a string", SERIALIZATION, NUMBER, recorded("helpers"), (("DescribeStream", {"StreamName": 23}),)),
    Text("a string for a number", SERIALIZATION, "class java.lang.String can not be converted to an Integer",
         recorded("helpers"), (("ListStreams", {"Limit": "23"}),)),
    Text("a boolean for a time", SERIALIZATION, "class java.lang.Boolean can not be converted to milliseconds since epoch",
         recorded("helpers"), (("GetShardIterator", {"Timestamp": True}),)),
    Text("a string for a boolean", SERIALIZATION, "'MAYBE' can not be converted to an Boolean", recorded("helpers"),
         (("GetRecords", {"DryRun": "maybe"}),)),
    Text("a list for a scalar", SERIALIZATION, "Start of list found where not expected", recorded("helpers"),
         (("DescribeStream", {"StreamName": []}),)),
    Text("a structure for a scalar", SERIALIZATION, "Start of structure or map found where not expected.",
         recorded("helpers"), (("DescribeStream", {"StreamName": {}}),)),
    Text("a scalar for a list", SERIALIZATION, "Expected list or null", recorded("helpers"),
         (("PutRecords", {"Records": "23"}),)),
    Text("a scalar for a map", SERIALIZATION, "Expected map or null", recorded("helpers"),
         (("AddTagsToStream", {"Tags": "23"}),)),
    Text("a scalar for a structure", SERIALIZATION, "Expected null", recorded("helpers"),
         (("PutRecords", {"Records": ["23"]}),)),
    Text("base64 of a wrong length", SERIALIZATION,
         "'23456' can not be converted to a Blob: Base64 encoded length is expected a multiple of 4 bytes but found: 5",
         recorded("helpers"), (("PutRecord", {"Data": "23456"}),)),
    Text("base64 with a foreign character", SERIALIZATION,
         "'=+/=' can not be converted to a Blob: Invalid Base64 character: '='", recorded("helpers"),
         (("PutRecord", {"Data": "=+/="}),)),
    # ---- streams
    Text("the stream is not there", MISSING, f"Stream s under account {ACCOUNT} not found.", recorded("describeStream"),
         (("DescribeStream", {"StreamName": "s"}),)),
    Text("the stream's ARN is of another account", MISSING, "Stream t under account 111111111111 not found.",
         ("https://github.com/localstack/localstack/blob/8b9a79f05846835cf4dff63ab7eefdde9df83783/tests/aws/services/kinesis/test_kinesis.snapshot.json",),
         (("DescribeStream", {"StreamARN": "arn:aws:kinesis:us-east-1:111111111111:stream/t"}),)),
    Text("the stream is there already", IN_USE, f"Stream s under account {ACCOUNT} already exists.",
         recorded("createStream"), created(("CreateStream", CREATE))),
    Text("the stream is being changed", IN_USE, f"Stream s under account {ACCOUNT} not ACTIVE, instead in state CREATING",
         recorded("createStream"),
         created(("SplitShard", {"StreamName": "s", "ShardToSplit": FIRST, "NewStartingHashKey": "2"})),
         {"delays": Delays(create=5)}),
    Text("more shards than the account may have", LIMIT, SHARD_LIMIT(1, 3, 1000), recorded("createStream", "splitShard"),
         created(("CreateStream", {"StreamName": "t", "ShardCount": 1000})), {"limits": Limits(shards_per_account=3)}),
    Text("more streams are being created than may be", LIMIT,
         "This request would have exceed the limit on the number  of streams that can simultaneously be in CREATING or "
         f"DELETING for the account {ACCOUNT}. Limit: 1.",
         (issue("hashicorp/terraform-provider-aws", 1339),), created(("CreateStream", {"StreamName": "t", "ShardCount": 1})),
         {"delays": Delays(create=5), "limits": Limits(streams_creating_at_once=1)}),
    Text("a stream with consumers is deleted", IN_USE,
         f"DeleteStream can\u2019t delete {ACCOUNT}:s because there are consumers associated with this data stream. To delete "
         "s anyway, set the EnforceConsumerDeletion parameter to true to force the deletion of all the consumers that are "
         "associated with it.",
         (issue("hashicorp/terraform-provider-aws", 8420), issue("rebuy-de/aws-nuke", 497)),
         created(*REGISTERED, ("DeleteStream", {"StreamName": "s"}))),
    Text("an operation of provisioned streams", VALIDATION, IS_ON_DEMAND, (MOTO,),
         (("CreateStream", ON_DEMAND),
          ("UpdateShardCount", {"StreamName": "s", "TargetShardCount": 2, "ScalingType": "UNIFORM_SCALING"}))),
    Text("a retention period that is too short", INVALID,
         "Minimum allowed retention period is 24 hours. Requested retention period (23 hours) is too short.",
         recorded("increaseStreamRetentionPeriod"),
         created(("IncreaseStreamRetentionPeriod", {"StreamName": "s", "RetentionPeriodHours": 23}))),
    Text("a retention period that is too long", INVALID,
         "Maximum allowed retention period is 8760 hours. Requested retention period (9999 hours) is too long.", (MOTO,),
         created(("IncreaseStreamRetentionPeriod", {"StreamName": "s", "RetentionPeriodHours": 9999}))),
    Text("a longer retention period by DecreaseStreamRetentionPeriod", INVALID,
         "Requested retention period (25 hours) for stream s can not be longer than existing retention period (24 hours). "
         "Use IncreaseRetentionPeriod API.", recorded("decreaseStreamRetentionPeriod"),
         created(("DecreaseStreamRetentionPeriod", {"StreamName": "s", "RetentionPeriodHours": 25}))),
    Text("a shorter retention period by IncreaseStreamRetentionPeriod", INVALID,
         "Requested retention period (24 hours) for stream s can not be shorter than existing retention period (25 hours). "
         "Use DecreaseRetentionPeriod API.", recorded("increaseStreamRetentionPeriod"),
         created(("IncreaseStreamRetentionPeriod", {"StreamName": "s", "RetentionPeriodHours": 25}),
                 ("IncreaseStreamRetentionPeriod", {"StreamName": "s", "RetentionPeriodHours": 24}))),
    Text("UpdateShardCount to more than double", INVALID,
         "UpdateShardCount cannot scale up over double your current open shard count. Current open shard count: 1 Target "
         "shard count: 4",
         (("https://github.com/awslabs/landing-zone-accelerator-on-aws/blob/main/source/packages/@aws-accelerator/config/lib/"
          "models/global-config.ts"),),
         created(("UpdateShardCount", {"StreamName": "s", "TargetShardCount": 4, "ScalingType": "UNIFORM_SCALING"}))),
    Text("a tag with a character that no tag has", INVALID,
         "Some tags contain invalid characters. Valid characters: Unicode letters, digits, white space, _ . / = + - % @.",
         recorded("addTagsToStream"), created(("AddTagsToStream", {"StreamName": "s", "Tags": {"abc;def": "1"}}))),
    Text("a tag with a per cent sign", INVALID,
         f"Failed to add tags to stream s under account {ACCOUNT} because some tags contained illegal characters. The allowed "
         "characters are Unicode letters, white-spaces, '_',',','/','=','+','-','@'.",
         recorded("addTagsToStream"), created(("AddTagsToStream", {"StreamName": "s", "Tags": {"abc%def": "1"}}))),
    Text("more than 50 tags; the text kept an older limit", INVALID,
         f"Failed to add tags to stream s under account {ACCOUNT} because a given stream cannot have more than 10 tags "
         "associated with it.",
         recorded("addTagsToStream"),
         created(("AddTagsToStream", {"StreamName": "s", "Tags": {f"t{number}": "" for number in range(51)}}))),
    Text("a resource without a policy", MISSING, f"No resource policy found for resource ARN {ARN}.",
         (f"{MOTO.rpartition('/')[0]}/test_kinesis_resource_policy.py",),
         created(("DeleteResourcePolicy", {"ResourceARN": ARN}))),
    # ---- shards
    Text("a shard that was split already", INVALID,
         f"Shard {FIRST} {IN_S} has already been merged or split, and thus is not eligible for merging or splitting.",
         (f"{MOTO.rpartition('/')[0]}/test_kinesis_boto3.py",),
         created(*[("SplitShard", {"StreamName": "s", "ShardToSplit": FIRST, "NewStartingHashKey": "5"})] * 2)),
    Text("the shard to split is not there", MISSING, f"Could not find shard shardId-000000000005 {IN_S}.",
         recorded("splitShard"),
         created(("SplitShard", {"StreamName": "s", "ShardToSplit": "shardId-5", "NewStartingHashKey": "5"}))),
    Text("the shard to read is not there", MISSING, f"Shard shardId-000000000005 {IN_S} does not exist",
         recorded("getShardIterator"),
         created(("GetShardIterator", {"StreamName": "s", "ShardId": "shardId-5", "ShardIteratorType": "LATEST"}))),
    Text("a split that leaves no keys to a child", INVALID,
         f"NewStartingHashKey 1 used in SplitShard() on shard {FIRST} {IN_S} is not both greater than one plus the shard's "
         "StartingHashKey 0 and less than the shard's EndingHashKey 340282366920938463463374607431768211455.",
         recorded("splitShard"),
         created(("SplitShard", {"StreamName": "s", "ShardToSplit": FIRST, "NewStartingHashKey": "1"}))),
    Text("shards that are not adjacent", INVALID,
         f"Shards {FIRST} and shardId-000000000002 {IN_S} are not an adjacent pair of shards eligible for merging",
         recorded("mergeShards"),
         created(("MergeShards", {"StreamName": "s", "ShardToMerge": FIRST, "AdjacentShardToMerge": "shardId-2"}),
                 ShardCount=3)),
    # ---- records
    Text("more data than a request may have (5 MB when it was seen)", INVALID, "Records size exceeds 10 MB limit",
         (f"{MOTO.rpartition('/')[0]}/test_kinesis_stream_limits.py",),
         created(("PutRecords", {"StreamName": "s", "Records": [{"PartitionKey": "k", "Data": bytes(1_000_000)}] * 11}))),
    Text("an ExplicitHashKey that is too large", INVALID,
         "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was "
         f"{1 << 128}", recorded("putRecord"),
         created(("PutRecord", {"StreamName": "s", "PartitionKey": "k", "Data": b"", "ExplicitHashKey": str(1 << 128)}))),
    Text("a SequenceNumberForOrdering that cannot be used", INVALID,
         f"ExclusiveMinimumSequenceNumber 99999999999999999999999999999999999999999999999999999999999 used in PutRecord on stream s under account {ACCOUNT} is invalid.",
         recorded("putRecord"),
         created(("PutRecord", {"StreamName": "s", "PartitionKey": "k", "Data": b"", "SequenceNumberForOrdering": "9" * 59}))),
    Text("a write to a shard at its limit", THROTTLED, f"Rate exceeded for shard {FIRST} {IN_S}.",
         ("https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html",),
         created(*[("PutRecord", {"StreamName": "s", "PartitionKey": "k", "Data": b""})] * 2),
         {"limits": Limits(write_records_per_second=1)}),
    Text("a read from a shard at its limit", THROTTLED, f"Rate exceeded for Shard - {ACCOUNT}/s/{FIRST}",
         (issue("awslabs/amazon-kinesis-client", 1521), issue("risingwavelabs/risingwave", 7453)),
         created(("GetRecords", {})), {"limits": Limits(read_calls_per_second=1)}, prepare=used_iterator),
    Text("a position with a number that it must not have", INVALID,
         f"{PAIRS} LATEST and also a StartingSequenceNumber.", recorded("getShardIterator"),
         created(("GetShardIterator", POSITION | {"ShardIteratorType": "LATEST", "StartingSequenceNumber": "5"}))),
    Text("a position without the number that it must have", INVALID,
         f"{PAIRS} AT_SEQUENCE_NUMBER and no StartingSequenceNumber.", recorded("getShardIterator"),
         created(("GetShardIterator", POSITION | {"ShardIteratorType": "AT_SEQUENCE_NUMBER"}))),
    Text("a position without the time that it must have", INVALID,
         "Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP. Current request has no timestamp "
         "parameter.", recorded("getShardIterator"),
         created(("GetShardIterator", POSITION | {"ShardIteratorType": "AT_TIMESTAMP"}))),
    Text("a time in the future", INVALID,
         "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. timestampInMillis: "
         "1700000002000, currentTimestampInMillis: 1700000000000", recorded("getShardIterator"),
         created(("GetShardIterator", POSITION | {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1_700_000_002.0}))),
    Text("a sequence number of another shard", INVALID,
         f"Invalid StartingSequenceNumber. It encodes shardId-000000000005, while it was used in a call to a shard with {FIRST}",
         recorded("getShardIterator"),
         created(("GetShardIterator", POSITION | {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "5"}))),
    Text("text that is not an iterator", INVALID, "Invalid ShardIterator.", recorded("getRecords"),
         (("GetRecords", {"ShardIterator": "x"}),)),
    Text("an iterator of more than five minutes", "ExpiredIteratorException",
         "Iterator expired. The iterator was created at time Tue Nov 14 22:13:20 UTC 2023 while right now it is Tue Nov 14 "
         "22:18:21 UTC 2023 which is further in the future than the tolerated delay of 300000 milliseconds.",
         recorded("getRecords"), created(("GetRecords", {})), prepare=old_iterator),
    # ---- calls and consumers
    Text("a control call beyond its rate", LIMIT, f"Rate exceeded for stream s under account {ACCOUNT}.",
         (issue("hashicorp/terraform-provider-aws", 3108), issue("awslabs/amazon-kinesis-producer", 257)),
         created(*[("DescribeStream", {"StreamName": "s"})] * 2),
         {"limits": Limits(control_calls_per_second={"DescribeStream": 1})}),
    Text("a control call beyond its rate that names no stream", LIMIT, f"Rate exceeded for account {ACCOUNT}.",
         (issue("Graylog2/graylog-plugin-integrations", 341),), (("ListStreams", {}),) * 2,
         {"limits": Limits(control_calls_per_second={"ListStreams": 1})}),
    Text("NextToken beside the stream's name", INVALID, "NextToken and StreamName cannot be provided together.",
         recorded("listShards"), created(("ListShards", {"StreamName": "s", "NextToken": "x"}))),
    Text("the consumer's ARN is of none", MISSING, f"Consumer {CONSUMER}, account {ACCOUNT} not found.",
         (MOTO.replace("test_kinesis.py", "test_kinesis_stream_consumers.py"),),
         created(("DescribeStreamConsumer", {"ConsumerARN": CONSUMER}))),
    Text("a subscription of a consumer that is being registered", IN_USE,
         f"Consumer c with creation timestamp 1700000000 under stream: s , account {ACCOUNT} is not in ACTIVE status.",
         (issue("awslabs/kinesis-hot-shard-advisor", 37),), created(*REGISTERED, SUBSCRIBE), {"delays": Delays(register=5)}),
    Text("a second subscription within five seconds", IN_USE,
         f"Another active subscription exists for this consumer: {ACCOUNT}:s:{FIRST}:c",
         (issue("awslabs/amazon-kinesis-client", 391),), created(*REGISTERED, SUBSCRIBE, SUBSCRIBE),
         {"limits": Limits(subscribe_calls_per_second=None)}),
    # ---- our own texts: AWS's are not known
    Text("neither StreamName nor StreamARN", INVALID, "Either StreamName or StreamARN must be provided.", (),
         (("DescribeStream", {}),)),
    Text("a consumer of that name is there already", IN_USE,
         f"Consumer c under stream s already exists for account {ACCOUNT}.", (), created(*REGISTERED, *REGISTERED)),
)  # fmt: skip


def table() -> str:
    """Return the text of docs/tested/differences-texts.tsv."""
    rows = ["\t".join((entry.when, entry.code, entry.text, " ".join(entry.seen) or "ours")) for entry in TEXTS]
    return "\n".join(["When\tCode\tText\tSeen in", *rows]) + "\n"
