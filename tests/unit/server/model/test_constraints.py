"""AWS's conversions, and its messages about violated constraints, as kinesalite's tests recorded them."""

import math
from base64 import b64decode, b64encode
from random import Random
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.server.model import inputs
from shardline.server.model.constraints import full_match, reread
from shardline.server.model.inputs import INPUTS, read_json, read_values
from shardline.server.model.refusals import Refused

NULL = "Value null at '{}' failed to satisfy constraint: Member must not be null".format
NAME = "[a-zA-Z0-9_.-]+"
LONG = "a" * 129
LONGER = "a" * 257
TEN_FIRST_OF_501 = [
    (
        f"Value '[{', '.join(['com.amazonaws.kinesis.v20131202.PutRecordsRequestEntry@c965e310'] * 501)}]' at 'records' failed to "
        "satisfy constraint: Member must have length less than or equal to 500"
    ),
    *(
        f"Value '' at 'records.{number}.member.partitionKey' failed to satisfy constraint: Member must have length "
        "greater than or equal to 1"
        for number in range(1, 10)
    ),
]


def value(shown, member, constraint):
    return f"Value '{shown}' at '{member}' failed to satisfy constraint: Member must {constraint}"


def at_least(least, member, shown="", what="length"):
    return value(shown, member, f"have {what} greater than or equal to {least}")


def at_most(most, member, shown, what="length"):
    return value(shown, member, f"have {what} less than or equal to {most}")


def matching(pattern, member, shown=""):
    return value(shown, member, f"satisfy regular expression pattern: {pattern}")


def empty_name(member):
    return [matching(NAME, member), at_least(1, member)]


def refusal(operation, members):
    with pytest.raises(Refused) as caught:
        read_json(operation, msgspec.json.encode(members))
    assert caught.value.status == 400
    return caught.value


# ---- broken constraints: the order is that of the recordings until 2016 (since then it varies)

KINDS = "[AFTER_SEQUENCE_NUMBER, LATEST, AT_TIMESTAMP, AT_SEQUENCE_NUMBER, TRIM_HORIZON]"
BLOB = "java.nio.HeapByteBuffer[pos=0 lim=10485761 cap=10485761]"


@pytest.mark.parametrize(
    ("operation", "members", "problems"),
    [
        ("PutRecord", {}, [NULL("data")]),
        ("PutRecord", {"Data": None}, [NULL("data")]),
        (
            "PutRecord",
            {"StreamName": "", "PartitionKey": "", "Data": "", "ExplicitHashKey": "", "SequenceNumberForOrdering": ""},
            [
                matching(r"0|([1-9]\d{0,128})", "sequenceNumberForOrdering"),
                at_least(1, "partitionKey"),
                matching(r"0|([1-9]\d{0,38})", "explicitHashKey"),
                *empty_name("streamName"),
            ],
        ),
        ("PutRecords", {"StreamName": "", "Records": []}, [at_least(1, "records", "[]"), *empty_name("streamName")]),
        (
            "PutRecords",
            {"StreamName": LONG, "Records": [{"PartitionKey": LONGER, "Data": "AA" * 6_990_507 + "A=", "ExplicitHashKey": ""}]},
            [
                at_most(256, "records.1.member.partitionKey", LONGER),
                matching(r"0|([1-9]\d{0,38})", "records.1.member.explicitHashKey"),
                at_most(10_485_760, "records.1.member.data", BLOB),
                at_most(128, "streamName", LONG),
            ],
        ),
        ("PutRecords", {"StreamName": "", "Records": [{"PartitionKey": "", "Data": ""}] * 501}, TEN_FIRST_OF_501),
        ("PutRecords", {"Records": [{"Data": ""}, {}, None]}, [NULL("records.2.member.data"), NULL("records.3.member")]),
        ("GetShardIterator", {}, [NULL("shardId"), NULL("shardIteratorType")]),
        (
            "GetShardIterator",
            {"StreamName": "", "ShardIteratorType": "", "ShardId": "", "StartingSequenceNumber": ""},
            [
                *empty_name("shardId"),
                value("", "shardIteratorType", f"satisfy enum value set: {KINDS}"),
                *empty_name("streamName"),
                matching(r"0|([1-9]\d{0,128})", "startingSequenceNumber"),  # recorded before the stream's name
            ],
        ),
        ("SplitShard", {}, [NULL("newStartingHashKey"), NULL("shardToSplit")]),
        ("SplitShard", {"StreamName": LONG, "ShardToSplit": LONG, "NewStartingHashKey": "0"}, [at_most(128, "streamName", LONG), at_most(128, "shardToSplit", LONG)]),
        ("MergeShards", {"StreamName": "s"}, [NULL("shardToMerge"), NULL("adjacentShardToMerge")]),
        ("CreateStream", {"StreamName": "", "ShardCount": 0}, [at_least(1, "shardCount", "0", "value"), *empty_name("streamName")]),
        ("CreateStream", {"StreamName": "s", "StreamModeDetails": {"StreamMode": "X"}}, [value("X", "streamModeDetails.streamMode", "satisfy enum value set: [PROVISIONED, ON_DEMAND]")]),
        ("DescribeStream", {"StreamName": "", "Limit": 0, "ExclusiveStartShardId": ""}, [at_least(1, "limit", "0", "value"), *empty_name("exclusiveStartShardId"), *empty_name("streamName")]),
        ("GetRecords", {"ShardIterator": "x", "Limit": 100_000}, [at_most(10_000, "limit", "100000", "value")]),
        ("AddTagsToStream", {"StreamName": "", "Tags": {}}, [at_least(1, "tags", "{}"), *empty_name("streamName")]),
        ("AddTagsToStream", {"StreamName": "s", "Tags": {"a": "1", LONG: "3"}}, [f"Value '{{a=1, {LONG}=3}}' at 'tags' failed to satisfy constraint: Map keys must satisfy constraint: [Member must have length less than or equal to 128, Member must have length greater than or equal to 1]"]),
        ("AddTagsToStream", {"StreamName": "s", "Tags": {"c": LONGER}}, [f"Value '{{c={LONGER}}}' at 'tags' failed to satisfy constraint: Map value must satisfy constraint: [Member must have length less than or equal to 256, Member must have length greater than or equal to 0]"]),
        ("AddTagsToStream", {"StreamName": "s", "Tags": {"c": None}}, ["Value '{c=null}' at 'tags' failed to satisfy constraint: Map value must satisfy constraint: [Member must have length less than or equal to 256, Member must have length greater than or equal to 0]"]),
        ("RemoveTagsFromStream", {"StreamName": "s", "TagKeys": ["a", LONG, "b"]}, [value(f"[a, {LONG}, b]", "tagKeys", "satisfy constraint: [Member must have length less than or equal to 128, Member must have length greater than or equal to 1]")]),
        ("RemoveTagsFromStream", {"TagKeys": [None]}, [value("[null]", "tagKeys", "satisfy constraint: [Member must have length less than or equal to 128, Member must have length greater than or equal to 1]")]),
        ("ListShards", {"StreamName": "s", "ShardFilter": {}}, [NULL("shardFilter.type")]),
        ("DescribeStream", {"StreamARN": "x"}, [matching(r"arn:aws.*:kinesis:.*:\d{12}:stream/\S+", "streamARN", "x")]),
        ("CreateStream", {"StreamName": "a\n", "ShardCount": 1}, [matching(NAME, "streamName", "a\n")]),
    ],
)  # fmt: skip
def test_all_broken_constraints_are_named_in_the_words_of_aws(operation, members, problems):
    found = refusal(operation, members)
    count = "1 validation error" if len(problems) == 1 else f"{len(problems)} validation errors"
    assert (found.code, found.message) == ("ValidationException", f"{count} detected: {'; '.join(problems)}")


def test_a_pattern_is_about_the_whole_text_and_ascii_digits():
    kind = Annotated[str, msgspec.Meta(pattern=full_match(r"\d|12"))]
    assert msgspec.convert("12", type=kind) == "12"
    for wrong in ("1x", "x1", "\u0661", "1\n"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, type=kind)


# ---- types

NUMBER = "class com.amazon.coral.value.json.numbers.TruncatingBigNumber can not be converted to {}".format


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("23", "'23' can not be converted to an Boolean"),
        ("maybe", "'MAYBE' can not be converted to an Boolean"),
        *((number, NUMBER("an Boolean")) for number in (23, -2_147_483_648, 2_147_483_648)),
        ([], "Start of list found where not expected"),
        ({}, "Start of structure or map found where not expected."),
    ],
)
def test_a_wrong_type_is_reported_in_the_words_of_aws(given, message):
    """``kinesalite_recordings`` has all other types, with each member of each operation."""
    found = refusal("GetRecords", {"DryRun": given})
    assert (found.code, found.message) == ("SerializationException", message)


@pytest.mark.parametrize("text", ["", "YWJj", "YWI=", "YQ==", "/w==", "//8=", "////"])
def test_every_canonical_base64_is_read(text):
    record = {"Data": text, "PartitionKey": "b="}  # the key ends as loose base64 does
    assert read_json("PutRecord", msgspec.json.encode(record)).data == b64decode(text)
    (entry,) = read_json("PutRecords", msgspec.json.encode({"Records": [record]})).records
    assert (entry.data, entry.partition_key) == (b64decode(text), "b=")


NOT_STRICT = {
    "YWI": "Base64 encoded length is expected a multiple of 4 bytes but found: 3",
    "YWI=\n": "Base64 encoded length is expected a multiple of 4 bytes but found: 5",
    "YWJj\r\nYWJj": "Base64 encoded length is expected a multiple of 4 bytes but found: 10",
    "YWJj\r\n\r\nYWJj": "Invalid Base64 character: '\r'",
    "YWJj    ": "Invalid Base64 character: ' '",
    "_-_-": "Invalid Base64 character: '_'",
    "-_-_": "Invalid Base64 character: '-'",
    "YWI=YWI=": "Invalid Base64 character: '='",
    "====": "Invalid last non-pad Base64 character dectected",
    "a===": "Invalid last non-pad Base64 character dectected",
    "YWJja===": "Invalid last non-pad Base64 character dectected",
    "+/+=": "Invalid last non-pad Base64 character dectected",
    "YR==": "Invalid last non-pad Base64 character dectected",
    "YWI=YWJjYWK=": "Invalid Base64 character: '='",
    "\u00e9YWJ": "Invalid Base64 character: '\u00e9'",
}


@pytest.mark.parametrize(("text", "reason"), NOT_STRICT.items())
def test_base64_is_strict(text, reason):
    """Line breaks, white space, missing padding and the alphabet for URLs are refused, as kinesalite recorded it."""
    for operation, members in (
        ("PutRecord", {"Data": text, "PartitionKey": "k"}),
        ("PutRecords", {"Records": [{"Data": "YWI=", "PartitionKey": "k"}, {"Data": text, "PartitionKey": "k"}]}),
    ):
        found = refusal(operation, members)
        assert (found.code, found.message) == (
            "SerializationException",
            f"'{text}' can not be converted to a Blob: {reason}",
        )


@given(st.text("aAgw+/=-_ \n", max_size=12) | st.text(max_size=12))
def test_base64_is_read_or_refused_and_nothing_else(text):
    record = msgspec.json.encode({"Data": text, "PartitionKey": "k"})
    try:
        answer = b64encode(read_json("PutRecord", record).data).decode()
    except Refused as refused:
        answer = refused.code
    assert answer in {text, "SerializationException"}


def test_base64_of_any_length_is_read_without_a_second_look(monkeypatch):
    monkeypatch.setattr(inputs, "reread", None)
    for size in range(30):
        data = Random(size).randbytes(size)
        assert read_json("PutRecord", msgspec.json.encode({"Data": data, "PartitionKey": "k"})).data == data


def test_the_first_wrong_type_is_reported_before_any_broken_constraint():
    assert refusal(
        "PutRecord", {"Data": "", "PartitionKey": "", "StreamName": 5, "ExplicitHashKey": []}
    ).message == NUMBER("an String")


@pytest.mark.parametrize(
    "wrong",
    [
        {"Data": 5},
        {"Data": b"", "StreamName": 1},
        {"Data": b"", "StreamName": b"s"},
        {"Data": b"", "StreamName": math},
        [],
        None,
        5,
    ],
)
def test_values_of_a_wrong_type_are_refused_too(wrong):
    with pytest.raises(Refused) as caught:
        read_values("PutRecord", wrong)
    assert caught.value.code == "SerializationException"


def test_what_no_json_holds():
    for members, message in (
        ({"ShardIterator": "x", "Limit": math.inf}, NUMBER("an Integer")),
        ({"ShardIterator": b"x"}, "class java.nio.HeapByteBuffer can not be converted to an String"),
        ({"ShardIterator": math}, "class java.lang.Object can not be converted to an String"),
    ):
        with pytest.raises(Refused) as caught:
            read_values("GetRecords", members)
        assert caught.value.message == message
    with pytest.raises(Refused) as caught:
        read_values("AddTagsToStream", {"Tags": {5: "x"}})
    assert caught.value.message == NUMBER("an String")
    with pytest.raises(Refused) as caught:
        read_values("PutRecord", {5: "x", "Data": None})
    assert caught.value.message == f"1 validation error detected: {NULL('data')}"


@pytest.mark.parametrize(
    ("operation", "members", "member", "converted"),
    [
        ("CreateStream", {"StreamName": "s", "ShardCount": 1.5}, "shard_count", 1),
        ("CreateStream", {"StreamName": "s", "ShardCount": 1e12}, "shard_count", 2_147_483_647),
        ("CreateStream", {"StreamName": "s", "ShardCount": 10**40}, "shard_count", 2_147_483_647),
        ("IncreaseStreamRetentionPeriod", {"RetentionPeriodHours": -(10**12)}, "retention_period_hours", -2_147_483_648),
        ("GetRecords", {"ShardIterator": "x", "DryRun": "yes"}, "dry_run", True),
        ("GetRecords", {"ShardIterator": "x", "DryRun": "False"}, "dry_run", False),
        ("GetRecords", {"ShardIterator": "x", "DryRun": 34.56}, "dry_run", True),
        ("GetRecords", {"ShardIterator": "x", "Limit": 1.0, "New": [{}]}, "limit", 1),
        ("PutRecord", {"Data": "eA==", "DryRun": "yes", "PartitionKey": None}, "data", b"x"),
        ("PutRecord", {"Data": "eA==", "PartitionKey": None}, "partition_key", msgspec.UNSET),
        ("GetShardIterator", {"ShardId": "0", "ShardIteratorType": "LATEST", "DryRun": "no", "Timestamp": 5}, "timestamp", 5.0),
    ],
)  # fmt: skip
def test_what_aws_converts_is_no_mistake(operation, members, member, converted):
    read = read_json(operation, msgspec.json.encode(members))
    assert isinstance(read, INPUTS[operation])
    assert getattr(read, member) == converted


def test_numbers_that_no_float_holds():
    huge = b"1" + b"0" * 400
    assert read_json("CreateStream", b'{"StreamName": "s", "ShardCount": %s}' % huge).shard_count == 2_147_483_647
    with pytest.raises(Refused) as caught:
        read_json("ListShards", b'{"StreamName": "s", "StreamCreationTimestamp": %s}' % huge)
    assert caught.value.message == NUMBER("milliseconds since epoch")


def test_bytes_and_text_are_both_data():
    assert reread(inputs.PutRecord, {"Data": b"x"}) == reread(inputs.PutRecord, {"Data": "eA=="})
