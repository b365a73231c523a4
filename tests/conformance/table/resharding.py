"""Scenarios of splitting, merging and scaling, of the listings that show it, and of reading across it."""

from tests.conformance.expectation import ANY_TEXT, Some
from tests.conformance.scenario import Call, Pause, Read, Scenario, Stream, Wait, invalid, ok, refused
from tests.conformance.table.reading import record
from tests.conformance.table.streams import BELOW_HALF, HALF, LAST_KEY, SHARD_0, SHARD_1, closed, shard

ID = "shardId-{:012d}".format
QUARTER, BELOW_QUARTER = str(1 << 126), str((1 << 126) - 1)


def put(data, hash_key):
    members = {"StreamName": "$a", "Data": data, "PartitionKey": "k", "ExplicitHashKey": hash_key}
    return Call("PutRecord", members, ok(Some({})))


def ids(*numbers):
    return [Some({"ShardId": ID(number)}) for number in numbers]


def child(number, parents, start, end):
    return {
        "ShardId": ID(number),
        "ParentShards": [ID(parent) for parent in parents],
        "HashKeyRange": {"StartingHashKey": start, "EndingHashKey": end},
    }


def split(shard_id, at, expect):
    return Call("SplitShard", {"StreamName": "$a", "ShardToSplit": shard_id, "NewStartingHashKey": at}, expect)


def merge(shard_id, adjacent, expect):
    return Call("MergeShards", {"StreamName": "$a", "ShardToMerge": shard_id, "AdjacentShardToMerge": adjacent}, expect)


def scale(target, expect):
    return Call(
        "UpdateShardCount", {"StreamName": "$a", "TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}, expect
    )


def not_both(at, start="0", end=LAST_KEY):
    return invalid(
        f"NewStartingHashKey {at} used in SplitShard() on shard {SHARD_0} in stream $a under account $account is not both "
        f"greater than one plus the shard's StartingHashKey {start} and less than the shard's EndingHashKey {end}."
    )


SCENARIOS = (
    Scenario(
        "split-and-merge",
        "A shard is split, its children are merged, and every shard is read to its end",
        streams={"a": Stream(1)},
        shards_at_most=2,
        seconds=150,
        steps=(
            put(b"1", "0"),
            split(SHARD_0, HALF, ok()),
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a"},
                ok({"StreamDescriptionSummary": Some({"StreamStatus": "UPDATING"})}),
            ),
            merge(
                SHARD_0,
                SHARD_1,
                refused(
                    "ResourceInUseException", "Stream $a under account $account not ACTIVE, instead in state UPDATING"
                ),
            ),
            Wait("a"),
            Call(
                "ListShards",
                {"StreamName": "$a"},
                ok(
                    {
                        "Shards": [
                            closed(SHARD_0),
                            shard(ID(1), "0", BELOW_HALF, ParentShardId=SHARD_0),
                            shard(ID(2), HALF, LAST_KEY, ParentShardId=SHARD_0),
                        ]
                    }
                ),
            ),
            put(b"2", "0"),
            put(b"3", HALF),
            Read(
                {"StreamName": "$a", "ShardId": SHARD_0, "ShardIteratorType": "TRIM_HORIZON"},
                {
                    "records": [record("MQ==")],
                    "ended": True,
                    "children": [child(1, [0], "0", BELOW_HALF), child(2, [0], HALF, LAST_KEY)],
                },
            ),
            split(SHARD_0, QUARTER, invalid(ANY_TEXT)),
            merge(ID(1), ID(2), ok()),
            Wait("a"),
            Call(
                "ListShards",
                {"StreamName": "$a", "ExclusiveStartShardId": ID(2)},
                ok({"Shards": [shard(ID(3), "0", LAST_KEY, ParentShardId=ID(1), AdjacentParentShardId=ID(2))]}),
            ),
            put(b"4", HALF),
            Read(
                {"StreamName": "$a", "ShardId": ID(2), "ShardIteratorType": "TRIM_HORIZON"},
                {"records": [record("Mw==")], "ended": True, "children": [child(3, [1, 2], "0", LAST_KEY)]},
            ),
            Read(
                {"StreamName": "$a", "ShardId": ID(3), "ShardIteratorType": "TRIM_HORIZON"},
                {"records": [record("NA==")], "ended": False},
                records=1,
            ),
        ),
    ),
    Scenario(
        "split-refused",
        "A split that would leave a child without hash keys is refused, and so is a merge of shards that are not adjacent",
        streams={"a": Stream(3)},
        steps=(
            split(SHARD_0, "0", not_both("0", end=str((1 << 128) // 3 - 1))),
            split(SHARD_0, "1", not_both("1", end=str((1 << 128) // 3 - 1))),
            split(SHARD_0, str((1 << 128) // 3 - 1), not_both(str((1 << 128) // 3 - 1), end=str((1 << 128) // 3 - 1))),
            split(
                ID(9),
                "9",
                refused(
                    "ResourceNotFoundException", f"Could not find shard {ID(9)} in stream $a under account $account."
                ),
            ),
            merge(
                SHARD_0,
                ID(2),
                invalid(
                    f"Shards {SHARD_0} and {ID(2)} in stream $a under account $account are not an adjacent pair of shards "
                    "eligible for merging"
                ),
            ),
            merge(
                SHARD_1,
                SHARD_0,
                invalid(
                    f"Shards {SHARD_1} and {SHARD_0} in stream $a under account $account are not an adjacent pair of shards "
                    "eligible for merging"
                ),
            ),
            merge(
                SHARD_0,
                ID(9),
                refused(
                    "ResourceNotFoundException", f"Could not find shard {ID(9)} in stream $a under account $account."
                ),
            ),
        ),
    ),
    Scenario(
        "scale",
        "UpdateShardCount can at most double or halve the number of shards",
        streams={"a": Stream(2)},
        shards_at_most=4,
        seconds=120,
        steps=(
            scale(
                5,
                invalid(
                    "UpdateShardCount cannot scale up over double your current open shard count. Current open shard count: 2 "
                    "Target shard count: 5"
                ),
            ),
            scale(
                4,
                ok({"StreamName": "$a", "StreamARN": "$a_arn", "CurrentShardCount": 2, "TargetShardCount": 4}),
            ),
            Wait("a"),
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a"},
                ok({"StreamDescriptionSummary": Some({"OpenShardCount": 4, "StreamStatus": "ACTIVE"})}),
            ),
            Call(
                "ListShards",
                {"StreamName": "$a", "ShardFilter": {"Type": "AT_LATEST"}},
                ok({"Shards": ids(2, 3, 4, 5)}),
            ),
            scale(
                1,
                invalid(
                    "UpdateShardCount cannot scale down below half your current open shard count. Current open shard count: 4 "
                    "Target shard count: 1"
                ),
            ),
            scale(2, ok(Some({"CurrentShardCount": 4, "TargetShardCount": 2}))),
            Wait("a"),
            Call(
                "ListShards",
                {"StreamName": "$a", "ShardFilter": {"Type": "AT_LATEST"}},
                ok(
                    {
                        "Shards": [
                            shard(ID(6), "0", BELOW_HALF, ParentShardId=ID(2), AdjacentParentShardId=ID(3)),
                            shard(ID(7), HALF, LAST_KEY, ParentShardId=ID(4), AdjacentParentShardId=ID(5)),
                        ]
                    }
                ),
            ),
        ),
    ),
    Scenario(
        "scale-limit",
        "UpdateShardCount is allowed ten times in 24 hours",
        streams={"a": Stream(1)},
        shards_at_most=2,
        not_on_aws="ten changes take many minutes",
        steps=(
            *(
                step
                for number in range(10)
                for step in (scale(2 - number % 2, ok(Some({"StreamName": "$a"}))), Wait("a"))
            ),
            scale(2, refused("LimitExceededException")),
        ),
    ),
    Scenario(
        "list-filters",
        "ListShards filters shards by the time at which they were open",
        streams={"a": Stream(1)},
        shards_at_most=2,
        seconds=90,
        steps=(
            split(SHARD_0, HALF, ok()),
            Wait("a"),
            Pause(2),
            Call(
                "ListShards", {"StreamName": "$a", "ShardFilter": {"Type": "AT_TRIM_HORIZON"}}, ok({"Shards": ids(0)})
            ),
            Call(
                "ListShards",
                {"StreamName": "$a", "ShardFilter": {"Type": "FROM_TRIM_HORIZON"}},
                ok({"Shards": ids(0, 1, 2)}),
            ),
            Call("ListShards", {"StreamName": "$a", "ShardFilter": {"Type": "AT_LATEST"}}, ok({"Shards": ids(1, 2)})),
            Call(
                "ListShards",
                {"StreamName": "$a", "ShardFilter": {"Type": "AFTER_SHARD_ID", "ShardId": ID(1)}},
                ok({"Shards": ids(2)}),
            ),
            Call(
                "ListShards",
                {"StreamName": "$a", "ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": 1_500_000_000}},
                ok({"Shards": ids(0)}),
            ),
            Call("ListShards", {"StreamName": "$a", "ShardFilter": {"Type": "AFTER_SHARD_ID"}}, invalid(ANY_TEXT)),
            Call("ListShards", {"StreamName": "$a", "ShardFilter": {"Type": "AT_TIMESTAMP"}}, invalid(ANY_TEXT)),
            Call(
                "ListShards",
                {"StreamName": "$a", "StreamCreationTimestamp": 1_500_000_000},
                refused("ResourceNotFoundException"),
            ),
        ),
    ),
)
