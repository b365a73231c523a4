"""Scenarios of putting records: their shards, refusals, and the rate limits of a shard."""

from tests.conformance.expectation import ANY_TEXT, SEQUENCE_NUMBER, Matching, one_of
from tests.conformance.scenario import Call, Flood, Pause, Scenario, Stream, invalid, ok, refused
from tests.conformance.table.streams import BELOW_HALF, HALF, LAST_KEY, SHARD_0, SHARD_1

MIB = 1024 * 1024
LATE = str(0x13BB2CC3D80000000000000000000000)  # a sequence number with a time in the far future


def stored(shard=SHARD_0):
    return {"SequenceNumber": SEQUENCE_NUMBER, "ShardId": shard}


def put(expect, stream="$a", **members):
    return Call("PutRecord", {"StreamName": stream, "Data": b"x", "PartitionKey": "k", **members}, expect)


SCENARIOS = (
    Scenario(
        "put-record",
        "A record goes to the shard of its key, or of its explicit hash key",
        streams={"a": Stream(2, shared=True)},
        steps=(
            # The MD5 of "0" begins with cf, that of "1" with c4, that of "2" with c8, that of "a" with 0c.
            put(ok(stored(SHARD_1)), PartitionKey="0"),
            put(ok(stored(SHARD_0)), PartitionKey="a"),
            put(ok(stored(SHARD_0)), ExplicitHashKey="0"),
            put(ok(stored(SHARD_0)), ExplicitHashKey=BELOW_HALF),
            put(ok(stored(SHARD_1)), ExplicitHashKey=HALF),
            put(ok(stored(SHARD_1)), ExplicitHashKey=LAST_KEY),
            put(ok(stored(one_of(SHARD_0, SHARD_1))), Data=b""),
            put(ok(stored(one_of(SHARD_0, SHARD_1))), PartitionKey="k" * 256),
            put(ok(stored(one_of(SHARD_0, SHARD_1))), PartitionKey="ä"),
            Call("PutRecord", {"StreamName": "$a", "Data": b"x"}, refused("ValidationException")),
            put(
                invalid(
                    "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. "
                    f"Specified value was {1 << 128}"
                ),
                ExplicitHashKey=str(1 << 128),
            ),
        ),
    ),
    Scenario(
        "put-record-order",
        "SequenceNumberForOrdering puts a record after another one",
        streams={"a": Stream(1, shared=True)},
        steps=(
            Call(
                "PutRecord",
                {"StreamName": "$a", "Data": b"1", "PartitionKey": "k"},
                ok(stored()),
                keep={"first": "SequenceNumber"},
            ),
            put(ok(stored()), SequenceNumberForOrdering="$first"),
            put(
                invalid(
                    f"ExclusiveMinimumSequenceNumber {LATE} used in PutRecord on stream $a under account $account is "
                    "invalid."
                ),
                SequenceNumberForOrdering=LATE,
            ),
        ),
    ),
    Scenario(
        "put-records",
        "The records of one request are stored in the shards of their keys, in order",
        streams={"a": Stream(2, shared=True)},
        steps=(
            Call(
                "PutRecords",
                {
                    "StreamName": "$a",
                    "Records": [
                        {"Data": b"1", "PartitionKey": "k", "ExplicitHashKey": "0"},
                        {"Data": b"2", "PartitionKey": "k", "ExplicitHashKey": HALF},
                        {"Data": b"", "PartitionKey": "ä", "ExplicitHashKey": "0"},
                    ],
                },
                ok({"FailedRecordCount": 0, "Records": [stored(SHARD_0), stored(SHARD_1), stored(SHARD_0)]}),
            ),
            Call(
                "PutRecords",
                {
                    "StreamName": "$a",
                    "Records": [{"Data": b"x", "PartitionKey": "k", "ExplicitHashKey": str(1 << 128)}],
                },
                invalid(ANY_TEXT),
            ),
        ),
    ),
    Scenario(
        "put-sizes",
        "A record with its key may be 1 MiB, unless the stream accepts more, and a request may be 10 MiB",
        streams={"a": Stream(1)},
        put_units=200,
        seconds=45,
        steps=(
            put(ok(stored()), Data=b"x" * (MIB - 1)),
            Pause(2),
            put(refused("ValidationException"), Data=b"x" * (MIB + 1)),
            Call(
                "PutRecords",
                {"StreamName": "$a", "Records": [{"Data": b"x" * (MIB + 1), "PartitionKey": "k"}]},
                refused("ValidationException"),
            ),
            Call(
                "PutRecords",
                {"StreamName": "$a", "Records": [{"Data": b"x" * (MIB - 8), "PartitionKey": "k"}] * 11},
                invalid(ANY_TEXT),
            ),
        ),
    ),
    Scenario(
        "put-dry-run",
        "A dry run is checked like any other request, and does nothing",
        streams={"a": Stream(1, shared=True)},
        steps=(
            put(refused("DryRunOperationException"), DryRun=True),
            Call(
                "PutRecords",
                {"StreamName": "$a", "DryRun": True, "Records": [{"Data": b"x", "PartitionKey": "k"}]},
                refused("DryRunOperationException"),
            ),
            put(refused("ResourceNotFoundException"), stream="$nothing", DryRun=True),
            Call(
                "GetShardIterator",
                {"StreamName": "$a", "ShardId": SHARD_0, "ShardIteratorType": "TRIM_HORIZON", "DryRun": True},
                refused("DryRunOperationException"),
            ),
        ),
    ),
    Scenario(
        "throttled-writes",
        "A shard accepts 1,000 records per second; further entries are refused one by one",
        streams={"a": Stream(1)},
        put_units=30_000,
        seconds=45,
        steps=(
            Flood(
                "PutRecords",
                {"StreamName": "$a", "Records": [{"Data": b"x", "PartitionKey": "k"}] * 500},
                {
                    "status": 200,
                    "entry": {
                        "ErrorCode": "ProvisionedThroughputExceededException",
                        "ErrorMessage": Matching(
                            f"Rate exceeded for shard {SHARD_0} in stream $a under account $account\\."
                        ),
                    },
                },
            ),
            Pause(2),
            put(ok(stored())),
        ),
    ),
    Scenario(
        "throttled-put-record",
        "A shard accepts 1 MiB per second; a PutRecord that exceeds this is refused",
        streams={"a": Stream(1)},
        put_units=900,
        seconds=45,
        steps=(
            Flood(
                "PutRecord",
                {"StreamName": "$a", "Data": b"x" * (MIB // 2), "PartitionKey": "k"},
                refused(
                    "ProvisionedThroughputExceededException",
                    f"Rate exceeded for shard {SHARD_0} in stream $a under account $account.",
                ),
                at_most=40,
            ),
            Pause(3),
            put(ok(stored())),
        ),
    ),
)
