"""Scenarios of reading: iterators of every kind, pages, lag, expiry, limits."""

from tests.conformance.expectation import ANY_TEXT, COUNT, ITERATOR, SEQUENCE_NUMBER, TIME, TOKEN, Matching, Some
from tests.conformance.scenario import Call, Flood, Pause, Read, Scenario, Stream, invalid, ok, refused
from tests.conformance.table.streams import HALF, SHARD_0, SHARD_1
from tests.conformance.table.writing import LATE, stored

LONG_AGO = 1_500_000_000
EXPIRED = (
    r"Iterator expired\. The iterator was created at time \w{3} \w{3} \d{2} \d{2}:\d{2}:\d{2} UTC \d{4} while right now it "
    r"is \w{3} \w{3} \d{2} \d{2}:\d{2}:\d{2} UTC \d{4} which is further in the future than the tolerated delay of 300000 "
    r"milliseconds\."
)


def record(data, key="k"):
    """A record that was read. ``data`` is in base64."""
    return {"SequenceNumber": SEQUENCE_NUMBER, "ApproximateArrivalTimestamp": TIME, "Data": data, "PartitionKey": key}


def at(kind, **more):
    return {"StreamName": "$a", "ShardId": SHARD_0, "ShardIteratorType": kind, **more}


def iterate(kind, expect, **more):
    return Call("GetShardIterator", at(kind, **more), expect)


def encodes(shard):
    """The message about a sequence number of another shard."""
    return invalid(
        f"Invalid StartingSequenceNumber. It encodes {shard}, while it was used in a call to a shard with {SHARD_0}"
    )


# The stream is shared, so its content depends on the other scenarios.
READ_ON = Some({"NextShardIterator": ITERATOR}, ignored=("Records",))
ONE, TWO, THREE = record("MQ=="), record("Mg=="), record("Mw==")
PUT = Call(
    "PutRecords",
    {
        "StreamName": "$a",
        "Records": [{"Data": data, "PartitionKey": "k", "ExplicitHashKey": "0"} for data in (b"1", b"2", b"3")],
    },
    ok({"FailedRecordCount": 0, "Records": [stored()] * 3}),
    keep={"first": "Records[0].SequenceNumber", "second": "Records[1].SequenceNumber"},
)
ELSEWHERE = Call(
    "PutRecord",
    {"StreamName": "$a", "Data": b"x", "PartitionKey": "k", "ExplicitHashKey": HALF},
    ok(stored(SHARD_1)),
    keep={"other": "SequenceNumber"},
)
NEITHER = (
    "Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and StartingSequenceNumber or (2) TRIM_HORIZON or "
    "LATEST and no StartingSequenceNumber. Request specified {} and {}."
)

SCENARIOS = (
    Scenario(
        "read-positions",
        "Records are read from every kind of position",
        streams={"a": Stream(2)},
        seconds=60,
        steps=(
            iterate("LATEST", ok({"ShardIterator": ITERATOR})),
            PUT,
            ELSEWHERE,
            # Only the number in a shard's id counts, however the id is written.
            Call("GetShardIterator", at("TRIM_HORIZON") | {"ShardId": "shardId-1"}, ok({"ShardIterator": ITERATOR})),
            Call("GetShardIterator", at("TRIM_HORIZON") | {"ShardId": "shard-0"}, ok({"ShardIterator": ITERATOR})),
            Read(at("TRIM_HORIZON"), {"records": [ONE, TWO, THREE], "ended": False}, records=3),
            Read(
                at("AT_SEQUENCE_NUMBER", StartingSequenceNumber="$second"),
                {"records": [TWO, THREE], "ended": False},
                records=2,
            ),
            Read(
                at("AFTER_SEQUENCE_NUMBER", StartingSequenceNumber="$first"),
                {"records": [TWO, THREE], "ended": False},
                records=2,
            ),
            Read(at("AT_TIMESTAMP", Timestamp=LONG_AGO), {"records": [ONE, TWO, THREE], "ended": False}, records=3),
            Read(at("TRIM_HORIZON") | {"ShardId": SHARD_1}, {"records": [record("eA==")], "ended": False}, records=1),
            Call("GetShardIterator", at("TRIM_HORIZON"), ok({"ShardIterator": ITERATOR}), keep={"it": "ShardIterator"}),
            Call(
                "GetRecords",
                {"ShardIterator": "$it", "Limit": 2},
                ok({"Records": [ONE, TWO], "NextShardIterator": ITERATOR, "MillisBehindLatest": COUNT}),
                keep={"it": "NextShardIterator"},
                eventually=20,
            ),
            Call(
                "GetRecords",
                {"ShardIterator": "$it"},
                ok({"Records": [THREE], "NextShardIterator": ITERATOR, "MillisBehindLatest": 0}),
                keep={"it": "NextShardIterator"},
                eventually=20,
            ),
            Call(
                "GetRecords",
                {"ShardIterator": "$it"},
                ok({"Records": [], "NextShardIterator": ITERATOR, "MillisBehindLatest": 0}),
            ),
        ),
    ),
    Scenario(
        "read-wrong-positions",
        "Positions that do not exist are refused",
        streams={"a": Stream(2, shared=True)},
        steps=(
            PUT,
            ELSEWHERE,
            iterate("AT_SEQUENCE_NUMBER", invalid(NEITHER.format("AT_SEQUENCE_NUMBER", "no StartingSequenceNumber"))),
            iterate(
                "AFTER_SEQUENCE_NUMBER", invalid(NEITHER.format("AFTER_SEQUENCE_NUMBER", "no StartingSequenceNumber"))
            ),
            iterate(
                "LATEST",
                invalid(NEITHER.format("LATEST", "also a StartingSequenceNumber")),
                StartingSequenceNumber="$first",
            ),
            iterate(
                "TRIM_HORIZON",
                invalid(NEITHER.format("TRIM_HORIZON", "also a StartingSequenceNumber")),
                StartingSequenceNumber="$first",
            ),
            iterate("AT_SEQUENCE_NUMBER", encodes("shardId-000000000005"), StartingSequenceNumber="5"),
            iterate(
                "AT_SEQUENCE_NUMBER",
                invalid(
                    f"StartingSequenceNumber {LATE} used in GetShardIterator on shard {SHARD_0} in stream $a under account "
                    "$account is invalid."
                ),
                StartingSequenceNumber=LATE,
            ),
            iterate("AT_SEQUENCE_NUMBER", encodes(SHARD_1), StartingSequenceNumber="$other"),
            iterate(
                "AT_TIMESTAMP",
                invalid(
                    "Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP. Current request has no timestamp parameter."
                ),
            ),
            iterate(
                "AT_TIMESTAMP",
                invalid(
                    Matching(
                        r"The timestampInMillis parameter cannot be greater than the currentTimestampInMillis\. "
                        r"timestampInMillis: \d+, currentTimestampInMillis: \d+"
                    )
                ),
                Timestamp=4_000_000_000,
            ),
            Call(
                "GetShardIterator",
                at("LATEST") | {"ShardId": "shardId-000000000009"},
                refused(
                    "ResourceNotFoundException",
                    "Shard shardId-000000000009 in stream $a under account $account does not exist",
                ),
            ),
            Call("GetRecords", {"ShardIterator": "AAAA" * 30}, invalid("Invalid ShardIterator.")),
            Call("GetShardIterator", at("TRIM_HORIZON"), ok({"ShardIterator": ITERATOR}), keep={"it": "ShardIterator"}),
            # In quotes, as users of shells pass it: AWS accepts it.
            Call("GetRecords", {"ShardIterator": '"$it"'}, ok(READ_ON)),
            Call("GetRecords", {"ShardIterator": "$it", "StreamARN": "$a_arn"}, ok(READ_ON)),
            Call("GetRecords", {"ShardIterator": "$it", "StreamARN": "$nothing_arn"}, invalid()),
        ),
    ),
    Scenario(
        "iterator-expired",
        "An iterator expires after five minutes",
        streams={"a": Stream(1, shared=True)},
        seconds=330,
        slow="an iterator lives for five minutes",
        steps=(
            Call("GetShardIterator", at("LATEST"), ok({"ShardIterator": ITERATOR}), keep={"it": "ShardIterator"}),
            Pause(305),
            Call("GetRecords", {"ShardIterator": "$it"}, refused("ExpiredIteratorException", Matching(EXPIRED))),
        ),
    ),
    Scenario(
        "list-token-expired",
        "The NextToken of a listing expires after five minutes",
        streams={"a": Stream(2, shared=True)},
        seconds=330,
        slow="a token lives for five minutes",
        steps=(
            Call(
                "ListShards",
                {"StreamName": "$a", "MaxResults": 1},
                ok({"Shards": [Some({"ShardId": SHARD_0})], "NextToken": TOKEN}),
                keep={"token": "NextToken"},
            ),
            Call("ListShards", {"NextToken": "$token"}, ok({"Shards": [Some({"ShardId": SHARD_1})]})),
            Call(
                "ListShards",
                {"StreamName": "$a", "NextToken": "$token"},
                invalid("NextToken and StreamName cannot be provided together."),
            ),
            Call("ListShards", {"StreamARN": "$a_arn", "NextToken": "$token"}, invalid(ANY_TEXT)),
            Pause(305),
            Call("ListShards", {"NextToken": "$token"}, refused("ExpiredNextTokenException")),
        ),
    ),
    Scenario(
        "read-dry-run",
        "A dry run of GetRecords reads nothing",
        streams={"a": Stream(1, shared=True)},
        steps=(
            Call("GetShardIterator", at("TRIM_HORIZON"), ok({"ShardIterator": ITERATOR}), keep={"it": "ShardIterator"}),
            Call("GetRecords", {"ShardIterator": "$it", "DryRun": True}, refused("DryRunOperationException")),
        ),
    ),
    Scenario(
        "throttled-reads",
        "A shard allows five GetRecords calls per second",
        streams={"a": Stream(1)},
        seconds=45,
        steps=(
            Call("GetShardIterator", at("TRIM_HORIZON"), ok({"ShardIterator": ITERATOR}), keep={"it": "ShardIterator"}),
            Flood(
                "GetRecords",
                {"ShardIterator": "$it"},
                refused(
                    "ProvisionedThroughputExceededException",
                    f"Rate exceeded for Shard - $account/$a/{SHARD_0}",
                ),
            ),
            Pause(2),
            Call(
                "GetRecords",
                {"ShardIterator": "$it"},
                ok({"Records": [], "NextShardIterator": ITERATOR, "MillisBehindLatest": 0}),
            ),
        ),
    ),
)
