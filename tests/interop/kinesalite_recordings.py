"""AWS's answers to kinesalite's tests, as data.

kinesalite's tests ran against AWS: in https://github.com/mhart/kinesalite/commit/7d62e92 (2018-12-22) its author says
that all of them pass there. The cases are those of the directory ``test`` at the commit ``COMMIT``, in one file per
operation. ``known`` is a stream of three shards; no other stream exists.

AWS has changed since: StreamName and PartitionKey are optional now, so the rows here do not name them among the missing
members. ``recorded_differences.py`` has the recorded cases that are no longer true.
"""

from dataclasses import dataclass

COMMIT = "c76689da192ab96c87c5db8f95c1e3fba1985433"  # of 2020-10-06
ACCOUNT = "000000000000"
NAME = "a" * 129
ITERATOR = "a" * 513
TAG = "a" * 129
TAG_VALUE = "a" * 257

# ---- members of a wrong type: SerializationException

WRONG_TYPES = {
    "String": [
        (True, "class java.lang.Boolean can not be converted to an String"),
        (23, "class com.amazon.coral.value.json.numbers.TruncatingBigNumber can not be converted to an String"),
        (-(2**31), "class com.amazon.coral.value.json.numbers.TruncatingBigNumber can not be converted to an String"),
        (34.56, "class com.amazon.coral.value.json.numbers.TruncatingBigNumber can not be converted to an String"),
        ([], "Start of list found where not expected"),
        ({}, "Start of structure or map found where not expected."),
    ],
    "Integer": [
        ("23", "class java.lang.String can not be converted to an Integer"),
        (True, "class java.lang.Boolean can not be converted to an Integer"),
        ([], "Start of list found where not expected"),
        ({}, "Start of structure or map found where not expected."),
    ],
    "Blob": [
        (True, "class java.lang.Boolean can not be converted to a Blob"),
        (23, "class com.amazon.coral.value.json.numbers.TruncatingBigNumber can not be converted to a Blob"),
        (34.56, "class com.amazon.coral.value.json.numbers.TruncatingBigNumber can not be converted to a Blob"),
        ([], "Start of list found where not expected"),
        ({}, "Start of structure or map found where not expected."),
        (
            "23456",
            "'23456' can not be converted to a Blob: Base64 encoded length is expected a multiple of 4 bytes but found: 5",
        ),
        ("=+/=", "'=+/=' can not be converted to a Blob: Invalid Base64 character: '='"),
        ("+/+=", "'+/+=' can not be converted to a Blob: Invalid last non-pad Base64 character dectected"),
    ],
    "Timestamp": [
        ("23", "class java.lang.String can not be converted to milliseconds since epoch"),
        (True, "class java.lang.Boolean can not be converted to milliseconds since epoch"),
        ([], "Start of list found where not expected"),
        ({}, "Start of structure or map found where not expected."),
    ],
    "List": [
        ("23", "Expected list or null"),
        (True, "Expected list or null"),
        (34.56, "Expected list or null"),
        ({}, "Start of structure or map found where not expected."),
    ],
    "Map": [
        ("23", "Expected map or null"),
        (True, "Expected map or null"),
        (34.56, "Expected map or null"),
        ([], "Start of list found where not expected"),
    ],
    "Structure": [
        ("23", "Expected null"),
        (True, "Expected null"),
        (34.56, "Expected null"),
        ([], "Start of list found where not expected"),
    ],
}

MEMBER_TYPES = {
    "AddTagsToStream": {"Tags": "Map", "Tags.a": "String", "StreamName": "String"},
    "CreateStream": {"StreamName": "String", "ShardCount": "Integer"},
    "DecreaseStreamRetentionPeriod": {"StreamName": "String", "RetentionPeriodHours": "Integer"},
    "DeleteStream": {"StreamName": "String"},
    "DescribeStream": {"StreamName": "String", "Limit": "Integer", "ExclusiveStartShardId": "String"},
    "DescribeStreamSummary": {"StreamName": "String"},
    "GetRecords": {"Limit": "Integer", "ShardIterator": "String"},
    "GetShardIterator": {
        "ShardId": "String",
        "ShardIteratorType": "String",
        "StartingSequenceNumber": "String",
        "StreamName": "String",
        "Timestamp": "Timestamp",
    },
    "IncreaseStreamRetentionPeriod": {"StreamName": "String", "RetentionPeriodHours": "Integer"},
    "ListShards": {
        "StreamName": "String",
        "MaxResults": "Integer",
        "ExclusiveStartShardId": "String",
        "NextToken": "String",
        "StreamCreationTimestamp": "Timestamp",
    },
    "ListStreams": {"Limit": "Integer", "ExclusiveStartStreamName": "String"},
    "ListTagsForStream": {"Limit": "Integer", "ExclusiveStartTagKey": "String", "StreamName": "String"},
    "MergeShards": {"AdjacentShardToMerge": "String", "ShardToMerge": "String", "StreamName": "String"},
    "PutRecord": {
        "Data": "Blob",
        "ExplicitHashKey": "String",
        "PartitionKey": "String",
        "SequenceNumberForOrdering": "String",
        "StreamName": "String",
    },
    "PutRecords": {
        "Records": "List",
        "Records.0": "Structure",
        "Records.0.Data": "Blob",
        "Records.0.ExplicitHashKey": "String",
        "Records.0.PartitionKey": "String",
        "StreamName": "String",
    },
    "RemoveTagsFromStream": {"TagKeys": "List", "TagKeys.0": "String", "StreamName": "String"},
    "SplitShard": {"NewStartingHashKey": "String", "ShardToSplit": "String", "StreamName": "String"},
}

# ---- members that violate a constraint: ValidationException with every error, in any order

PATTERN = "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+"
HASH_KEY = r"Member must satisfy regular expression pattern: 0|([1-9]\d{0,38})"
NUMBER = r"Member must satisfy regular expression pattern: 0|([1-9]\d{0,128})"
MISSING = "Member must not be null"
SHORT = "Member must have length greater than or equal to 1"
ITERATOR_TYPES = (
    "Member must satisfy enum value set: "
    "[AFTER_SEQUENCE_NUMBER, LATEST, AT_TIMESTAMP, AT_SEQUENCE_NUMBER, TRIM_HORIZON]"
)


def longer(length):
    return f"Member must have length less than or equal to {length}"


def lengths(longest, shortest):
    return (
        f"[Member must have length less than or equal to {longest}, "
        f"Member must have length greater than or equal to {shortest}]"
    )


def above(number):
    return f"Member must have value less than or equal to {number}"


def below(number):
    return f"Member must have value greater than or equal to {number}"


def missing(*members):
    return [("null", member, MISSING) for member in members]


def empty(*members):
    return [("''", member, constraint) for member in members for constraint in (PATTERN, SHORT)]


def long(*members):
    return [(f"'{NAME}'", member, longer(128)) for member in members]


# For each error: the value, the member and the constraint.
INVALID_MEMBERS = [
    ("AddTagsToStream", {}, missing("tags")),
    ("AddTagsToStream", {"StreamName": "", "Tags": {}}, [("'{}'", "tags", SHORT), *empty("streamName")]),
    ("AddTagsToStream", {"StreamName": NAME, "Tags": {"a;b": "b"}}, long("streamName")),
    (
        "AddTagsToStream",
        {"StreamName": "absent", "Tags": {TAG: "3"}},
        [(f"'{{{TAG}=3}}'", "tags", f"Map keys must satisfy constraint: {lengths(128, 1)}")],
    ),
    (
        "AddTagsToStream",
        {"StreamName": "absent", "Tags": {"c": TAG_VALUE}},
        [(f"'{{c={TAG_VALUE}}}'", "tags", f"Map value must satisfy constraint: {lengths(256, 0)}")],
    ),
    ("CreateStream", {}, missing("streamName")),
    (
        "CreateStream",
        {"StreamName": "", "ShardCount": 0},
        [("'0'", "shardCount", below(1)), *empty("streamName")],
    ),
    ("DecreaseStreamRetentionPeriod", {}, missing("retentionPeriodHours")),
    ("DecreaseStreamRetentionPeriod", {"StreamName": NAME, "RetentionPeriodHours": 24}, long("streamName")),
    ("DeleteStream", {"StreamName": ""}, empty("streamName")),
    ("DeleteStream", {"StreamName": NAME}, long("streamName")),
    (
        "DescribeStream",
        {"StreamName": "", "Limit": 0, "ExclusiveStartShardId": ""},
        [("'0'", "limit", below(1)), *empty("exclusiveStartShardId", "streamName")],
    ),
    (
        "DescribeStream",
        {"StreamName": NAME, "Limit": 100_000, "ExclusiveStartShardId": NAME},
        [("'100000'", "limit", above(10_000)), *long("exclusiveStartShardId", "streamName")],
    ),
    ("DescribeStreamSummary", {"StreamName": ""}, empty("streamName")),
    ("DescribeStreamSummary", {"StreamName": NAME}, long("streamName")),
    ("GetRecords", {}, missing("shardIterator")),
    ("GetRecords", {"ShardIterator": "", "Limit": 0}, [("'0'", "limit", below(1)), ("''", "shardIterator", SHORT)]),
    (
        "GetRecords",
        {"ShardIterator": ITERATOR, "Limit": 100_000},
        [("'100000'", "limit", above(10_000)), (f"'{ITERATOR}'", "shardIterator", longer(512))],
    ),
    ("GetShardIterator", {}, missing("shardId", "shardIteratorType")),
    (
        "GetShardIterator",
        {"StreamName": "", "ShardIteratorType": "", "ShardId": "", "StartingSequenceNumber": ""},
        [
            ("''", "shardIteratorType", ITERATOR_TYPES),
            ("''", "startingSequenceNumber", NUMBER),
            *empty("shardId", "streamName"),
        ],
    ),
    (
        "GetShardIterator",
        {"StreamName": NAME, "ShardId": NAME, "ShardIteratorType": "LATEST"},
        long("shardId", "streamName"),
    ),
    ("IncreaseStreamRetentionPeriod", {}, missing("retentionPeriodHours")),
    ("IncreaseStreamRetentionPeriod", {"StreamName": NAME, "RetentionPeriodHours": 24}, long("streamName")),
    (
        "ListShards",
        {"StreamName": "", "NextToken": "", "MaxResults": 0, "ExclusiveStartShardId": ""},
        [
            ("'0'", "maxResults", below(1)),
            ("''", "nextToken", SHORT),
            *empty("exclusiveStartShardId", "streamName"),
        ],
    ),
    (
        "ListShards",
        {"StreamName": NAME, "MaxResults": 100_000, "ExclusiveStartShardId": NAME},
        [("'100000'", "maxResults", above(10_000)), *long("exclusiveStartShardId", "streamName")],
    ),
    (
        "ListStreams",
        {"ExclusiveStartStreamName": "", "Limit": 0},
        [("'0'", "limit", below(1)), *empty("exclusiveStartStreamName")],
    ),
    (
        "ListStreams",
        {"ExclusiveStartStreamName": NAME, "Limit": 1_000_000},
        [("'1000000'", "limit", above(10_000)), *long("exclusiveStartStreamName")],
    ),
    (
        "ListTagsForStream",
        {"StreamName": "", "ExclusiveStartTagKey": "", "Limit": 0},
        [("'0'", "limit", below(1)), ("''", "exclusiveStartTagKey", SHORT), *empty("streamName")],
    ),
    ("MergeShards", {}, missing("shardToMerge", "adjacentShardToMerge")),
    (
        "MergeShards",
        {"StreamName": "", "ShardToMerge": "", "AdjacentShardToMerge": ""},
        empty("shardToMerge", "adjacentShardToMerge", "streamName"),
    ),
    (
        "MergeShards",
        {"StreamName": NAME, "ShardToMerge": NAME, "AdjacentShardToMerge": NAME},
        long("shardToMerge", "adjacentShardToMerge", "streamName"),
    ),
    ("PutRecord", {}, missing("data")),
    (
        "PutRecord",
        {
            "StreamName": "",
            "PartitionKey": "",
            "Data": b"",
            "ExplicitHashKey": "",
            "SequenceNumberForOrdering": "",
        },
        [
            ("''", "sequenceNumberForOrdering", NUMBER),
            ("''", "partitionKey", SHORT),
            ("''", "explicitHashKey", HASH_KEY),
            *empty("streamName"),
        ],
    ),
    ("PutRecords", {}, missing("records")),
    ("PutRecords", {"StreamName": "", "Records": []}, [("'[]'", "records", SHORT), *empty("streamName")]),
    (
        "PutRecords",
        {"StreamName": "", "Records": [{"PartitionKey": "", "Data": b"", "ExplicitHashKey": ""}]},
        [
            ("''", "records.1.member.partitionKey", SHORT),
            ("''", "records.1.member.explicitHashKey", HASH_KEY),
            *empty("streamName"),
        ],
    ),
    ("RemoveTagsFromStream", {}, missing("tagKeys")),
    ("RemoveTagsFromStream", {"StreamName": "", "TagKeys": []}, [("'[]'", "tagKeys", SHORT), *empty("streamName")]),
    ("RemoveTagsFromStream", {"StreamName": NAME, "TagKeys": ["a"]}, long("streamName")),
    (
        "RemoveTagsFromStream",
        {"StreamName": "absent", "TagKeys": ["a", TAG, "b"]},
        [(f"'[a, {TAG}, b]'", "tagKeys", f"Member must satisfy constraint: {lengths(128, 1)}")],
    ),
    ("SplitShard", {}, missing("newStartingHashKey", "shardToSplit")),
    (
        "SplitShard",
        {"StreamName": "", "ShardToSplit": "", "NewStartingHashKey": ""},
        [("''", "newStartingHashKey", HASH_KEY), *empty("streamName", "shardToSplit")],
    ),
    (
        "SplitShard",
        {"StreamName": NAME, "ShardToSplit": NAME, "NewStartingHashKey": "0"},
        long("streamName", "shardToSplit"),
    ),
]

# ---- refusals of another kind


@dataclass(frozen=True)
class Refusal:
    operation: str
    parameters: dict
    code: str
    message: str | None
    status: int = 400


def invalid(operation, parameters, message):
    return Refusal(operation, {"StreamName": "known", **parameters}, "InvalidArgumentException", message)


def not_found(operation, parameters, message):
    return Refusal(operation, {"StreamName": "absent", **parameters}, "ResourceNotFoundException", message)


UNDER = f"under account {ACCOUNT}"
NO_STREAM = f"Stream absent {UNDER} not found."
TAG_CHARACTERS = (
    "Some tags contain invalid characters. Valid characters: Unicode letters, digits, white space, _ . / = + - % @."
)
# AWS's own check accepts these, although the list of characters in its text does not.
PERCENT = (
    "because some tags contained illegal characters. "
    "The allowed characters are Unicode letters, white-spaces, '_',',','/','=','+','-','@'."
)
EITHER = (
    "Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and StartingSequenceNumber or (2) TRIM_HORIZON or "
    "LATEST and no StartingSequenceNumber. Request specified"
)
PLACEMENT = {"PartitionKey": "a", "Data": b""}
FUTURE = "26227199374822427428162556223570313216"
INDEX_8 = "49039857307719593840066370180380661734935976090628259842"
BAD_ORDERINGS = (
    "49039857307708443467467104868809893875799651909875269632",  # version 0
    "49039857307708443467467104868809893875799651909875269635",  # version 3
    "49039857307708443467467104868809893875799651909875269636",  # version 4
    "73559785961562665201200657303214840813699477864812904449",  # starts with 3
    "49039857307697293094867839557237917090843713134307311602",  # starts with 1
    "73559785961551514828601391991642864028743539089244946418",  # all f
    INDEX_8,
    FUTURE,
)
BEYOND = "340282366920938463463374607431768211456"
OUT_OF_RANGE = (
    "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was "
    "340282366920938463463374607431768211456"
)
FIRST = {"ShardId": "shardId-0"}
AT = {**FIRST, "ShardIteratorType": "AT_SEQUENCE_NUMBER"}
# A shard's id may have any text before a hyphen, and then a number of 31 bits. Only then is the stream looked up.
GOOD_IDS = ("2147483647", "x-2147483647", "a-00002147483647", "-00002147483647")
BAD_IDS = ("2147483648", "shardId-002147483648", "ABKLFD8", "2.14E4")


def of_shard(operation, member, rest):
    """Return the same cases for every operation that takes a shard's id."""
    known = "Shard shardId-000000000005 in stream known" if operation == "GetShardIterator" else None
    return [
        *(
            not_found(
                operation,
                {**rest, member: one},
                f"Shard shardId-002147483647 in stream absent {UNDER} does not exist" if known else NO_STREAM,
            )
            for one in GOOD_IDS
        ),
        *(
            not_found(operation, {**rest, member: one}, f"Could not find shard {one} in stream absent {UNDER}.")
            for one in BAD_IDS
        ),
        not_found(
            operation,
            {**rest, "StreamName": "known", member: "shardId-5"},
            f"{known} {UNDER} does not exist"
            if known
            else f"Could not find shard shardId-000000000005 in stream known {UNDER}.",
        ),
    ]


def split_out_of_range(key, shard, start, end):
    return invalid(
        "SplitShard",
        {"NewStartingHashKey": key, "ShardToSplit": f"shard-{shard}"},
        f"NewStartingHashKey {key} used in SplitShard() on shard shardId-00000000000{shard} in stream known {UNDER} is not "
        f"both greater than one plus the shard's StartingHashKey {start} and less than the shard's EndingHashKey {end}.",
    )


REFUSALS = [
    # the stream does not exist
    not_found("AddTagsToStream", {"Tags": {"a": "b"}}, NO_STREAM),
    not_found("DecreaseStreamRetentionPeriod", {"RetentionPeriodHours": 25}, NO_STREAM),
    not_found("DeleteStream", {}, NO_STREAM),
    not_found("DescribeStream", {}, NO_STREAM),
    not_found("DescribeStreamSummary", {}, NO_STREAM),
    not_found("IncreaseStreamRetentionPeriod", {"RetentionPeriodHours": 25}, NO_STREAM),
    not_found("ListShards", {}, NO_STREAM),
    not_found("ListTagsForStream", {"ExclusiveStartTagKey": "a", "Limit": 1}, NO_STREAM),
    not_found("PutRecord", PLACEMENT, NO_STREAM),
    not_found("PutRecords", {"Records": [PLACEMENT]}, NO_STREAM),
    not_found("RemoveTagsFromStream", {"TagKeys": [";"]}, NO_STREAM),
    # the shard does not
    *of_shard("GetShardIterator", "ShardId", {"ShardIteratorType": "LATEST"}),
    *of_shard("MergeShards", "ShardToMerge", {"AdjacentShardToMerge": "x-0"}),
    *of_shard("MergeShards", "AdjacentShardToMerge", {"ShardToMerge": "x-0"}),
    *of_shard("SplitShard", "ShardToSplit", {"NewStartingHashKey": "0"}),
    # tags
    *(
        invalid("AddTagsToStream", {"Tags": tags}, TAG_CHARACTERS)
        for sign in ";\t\n,"
        for tags in ({f"abc{sign}def": "1"}, {"a": f"abc{sign}def"})
    ),
    *(invalid("RemoveTagsFromStream", {"TagKeys": [f"abc{sign}def"]}, TAG_CHARACTERS) for sign in ";\t\n,"),
    *(
        invalid("AddTagsToStream", {"Tags": tags}, f"Failed to add tags to stream known {UNDER} {PERCENT}")
        for tags in ({"abc%def": "1"}, {"a": "abc%def"})
    ),
    invalid(
        "RemoveTagsFromStream", {"TagKeys": ["abc%def"]}, f"Failed to remove tags from stream known {UNDER} {PERCENT}"
    ),
    # streams
    Refusal(
        "CreateStream",
        {"StreamName": "known", "ShardCount": 1},
        "ResourceInUseException",
        f"Stream known {UNDER} already exists.",
    ),
    # retention
    *(
        invalid(
            f"{change}StreamRetentionPeriod",
            {"RetentionPeriodHours": 23},
            "Minimum allowed retention period is 24 hours. Requested retention period (23 hours) is too short.",
        )
        for change in ("Decrease", "Increase")
    ),
    invalid(
        "DecreaseStreamRetentionPeriod",
        {"RetentionPeriodHours": 25},
        "Requested retention period (25 hours) for stream known can not be longer than existing retention period (24 hours). "
        "Use IncreaseRetentionPeriod API.",
    ),
    # positions in a shard
    *(
        invalid(
            "GetShardIterator",
            {**FIRST, "ShardIteratorType": kind},
            f"{EITHER} {kind} and no StartingSequenceNumber.",
        )
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER")
    ),
    *(
        invalid(
            "GetShardIterator",
            {**FIRST, "ShardIteratorType": kind, "StartingSequenceNumber": "5"},
            f"{EITHER} {kind} and also a StartingSequenceNumber.",
        )
        for kind in ("LATEST", "TRIM_HORIZON")
    ),
    invalid(
        "GetShardIterator",
        {**AT, "StartingSequenceNumber": "5"},
        "Invalid StartingSequenceNumber. It encodes shardId-000000000005, while it was used in a call to a shard with "
        "shardId-000000000000",
    ),
    invalid(
        "GetShardIterator",
        {**AT, "StartingSequenceNumber": "49039857307708443467467104868809893875799651944235008002"},
        "Invalid StartingSequenceNumber. It encodes shardId--02147483648, while it was used in a call to a shard with "
        "shardId-000000000000",
    ),
    *(
        invalid(
            "GetShardIterator",
            {**AT, "StartingSequenceNumber": number},
            f"StartingSequenceNumber {number} used in GetShardIterator on shard shardId-000000000000 in stream known {UNDER} "
            "is invalid.",
        )
        for number in (FUTURE, INDEX_8)
    ),
    Refusal(
        "GetShardIterator",
        {"StreamName": "known", **AT, "StartingSequenceNumber": "0"},
        "InternalFailure",
        None,
        500,
    ),
    invalid(
        "GetShardIterator",
        {**FIRST, "ShardIteratorType": "AT_TIMESTAMP"},
        "Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP. Current request has no timestamp "
        "parameter.",
    ),
    Refusal("GetRecords", {"ShardIterator": "absent"}, "InvalidArgumentException", "Invalid ShardIterator."),
    invalid("ListShards", {"NextToken": "absent"}, "NextToken and StreamName cannot be provided together."),
    # placement of a record
    invalid("PutRecord", {**PLACEMENT, "ExplicitHashKey": BEYOND}, OUT_OF_RANGE),
    invalid("PutRecords", {"Records": [{**PLACEMENT, "ExplicitHashKey": BEYOND}, PLACEMENT]}, OUT_OF_RANGE),
    *(
        invalid(
            "PutRecord",
            {**PLACEMENT, "SequenceNumberForOrdering": number},
            f"ExclusiveMinimumSequenceNumber {number} used in PutRecord on stream known {UNDER} is invalid.",
        )
        for number in BAD_ORDERINGS
    ),
    # resharding
    *(
        invalid(
            "MergeShards",
            {"ShardToMerge": f"x-{one}", "AdjacentShardToMerge": f"x-{other}"},
            f"Shards shardId-00000000000{one} and shardId-00000000000{other} in stream known {UNDER} are not an adjacent pair "
            "of shards eligible for merging",
        )
        for one, other in ((0, 2), (1, 0))
    ),
    split_out_of_range("1", 0, 0, "113427455640312821154458202477256070484"),
    split_out_of_range("113427455640312821154458202477256070484", 0, 0, "113427455640312821154458202477256070484"),
    split_out_of_range(
        "999999999999999999999999999999999999999",
        2,
        "226854911280625642308916404954512140970",
        "340282366920938463463374607431768211455",
    ),
]

# ---- streams that are not ACTIVE (createStream.js, splitShard.js, mergeShards.js, getRecords.js)

PASSING = {"StreamName": "passing"}
NOT_ACTIVE = f"Stream passing {UNDER} not ACTIVE, instead in state"
NO_SHARD = f"Shard shardId-000000000000 in stream passing {UNDER} does not exist"
SPLIT = ("SplitShard", {**PASSING, "ShardToSplit": "shard-0", "NewStartingHashKey": "2"})
MERGE = ("MergeShards", {**PASSING, "ShardToMerge": "shard-1", "AdjacentShardToMerge": "shard-2"})
LATEST = ("GetShardIterator", {**PASSING, "ShardId": "shardId-0", "ShardIteratorType": "LATEST"})


def in_state(state, change, operation, code, message):
    """Return a change that leaves a stream of three shards in a state, if any, and the refusals in that state."""
    return state, change, Refusal(*operation, code, message)


IN_STATES = [
    in_state("CREATING", None, SPLIT, "ResourceInUseException", f"{NOT_ACTIVE} CREATING"),
    in_state("CREATING", None, MERGE, "ResourceInUseException", f"{NOT_ACTIVE} CREATING"),
    in_state("CREATING", None, LATEST, "ResourceNotFoundException", NO_SHARD),
    *(
        in_state("CREATING", None, operation, "ResourceNotFoundException", f"Stream passing {UNDER} not found.")
        for operation in (
            ("PutRecord", {**PASSING, **PLACEMENT}),
            ("PutRecords", {**PASSING, "Records": [PLACEMENT]}),
        )
    ),
    in_state("UPDATING", SPLIT, SPLIT, "ResourceInUseException", f"{NOT_ACTIVE} UPDATING"),
    in_state("UPDATING", MERGE, MERGE, "ResourceInUseException", f"{NOT_ACTIVE} UPDATING"),
    # The iterator was created before.
    in_state("deleted", ("DeleteStream", PASSING), ("GetRecords", {}), "ResourceNotFoundException", NO_SHARD),
]
