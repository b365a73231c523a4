"""Tests of ``server.model.management``."""

import pytest

from shardline.model.hashing import HASH_KEY_COUNT
from shardline.server.model.settings import Delays, Limits

DAY = 86_400.0
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
ON_DEMAND = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}


# ---- states over time


def test_a_stream_is_created_over_time(make_server):
    server = make_server(delays=Delays(create=5, delete=3)).create(shards=3)
    assert server.status() == "CREATING"
    assert server.call("DescribeStream", StreamName="s")["StreamDescription"]["Shards"] == []
    entry = {"Data": b"x", "PartitionKey": "k"}
    assert server.refused("PutRecord", StreamName="s", **entry) == "ResourceNotFoundException"
    assert server.refused("ListShards", StreamName="s") == "ResourceInUseException"
    server.pass_time(4.999)
    assert server.status() == "CREATING"
    server.pass_time(0.001)
    assert server.status() == "ACTIVE"
    assert server.ids() == [0, 1, 2]


def test_a_stream_is_deleted_over_time(make_server):
    server = make_server(delays=Delays(delete=3)).create()
    server.call("DeleteStream", StreamName="s")
    assert server.status() == "DELETING"
    assert server.refused("CreateStream", StreamName="s", ShardCount=1) == "ResourceInUseException"
    assert server.refused("DeleteStream", StreamName="s") == "ResourceInUseException"
    server.pass_time(3)
    assert server.refused("DescribeStreamSummary", StreamName="s") == "ResourceNotFoundException"
    assert server.refused("DeleteStream", StreamName="s") == "ResourceNotFoundException"
    server.create(shards=2)
    assert server.ids() == [0, 1]


def test_a_stream_may_be_deleted_while_it_is_created(make_server):
    """Recorded in kinesalite's deleteStream.js."""
    server = make_server(delays=Delays(create=5, delete=3)).create(shards=3)
    server.call("DeleteStream", StreamName="s")
    described = server.call("DescribeStream", StreamName="s")["StreamDescription"]
    assert (described["StreamStatus"], described["Shards"]) == ("DELETING", [])
    assert server.call("DescribeLimits")["OpenShardCount"] == 0
    server.pass_time(3)
    assert server.refused("DescribeStream", StreamName="s") == "ResourceNotFoundException"
    server.create(shards=2).pass_time(5)
    assert server.ids() == [0, 1]


CHANGES = [
    ("SplitShard", {"ShardToSplit": FIRST, "NewStartingHashKey": "5"}),
    ("MergeShards", {"ShardToMerge": FIRST, "AdjacentShardToMerge": SECOND}),
    ("UpdateShardCount", {"TargetShardCount": 4, "ScalingType": "UNIFORM_SCALING"}),
    ("StartStreamEncryption", {"EncryptionType": "KMS", "KeyId": "k"}),
    ("StopStreamEncryption", {"EncryptionType": "KMS", "KeyId": "k"}),
    ("UpdateMaxRecordSize", {"MaxRecordSizeInKiB": 2048}),
    ("IncreaseStreamRetentionPeriod", {"RetentionPeriodHours": 48}),
    ("DecreaseStreamRetentionPeriod", {"RetentionPeriodHours": 24}),
    ("UpdateStreamMode", ON_DEMAND),
    ("DeleteStream", {}),
]
BY_ARN = {"UpdateStreamMode", "UpdateMaxRecordSize"}


@pytest.mark.parametrize(("operation", "members"), CHANGES)
def test_one_change_at_a_time(make_server, operation, members):
    server = make_server(delays=Delays(update=5)).create(shards=2)
    name = {"StreamARN": server.arn()} if operation in BY_ARN else {"StreamName": "s"}
    server.call("UpdateShardCount", StreamName="s", TargetShardCount=3, ScalingType="UNIFORM_SCALING")
    assert server.refused(operation, **name, **members) == "ResourceInUseException"
    server.pass_time(5)
    assert server.ids(ShardFilter={"Type": "AT_LATEST"}) != [0, 1]
    assert server.status() == "ACTIVE"


def test_two_streams_change_side_by_side(make_server):
    server = make_server(delays=Delays(update=5)).create().create("t")
    server.split()
    server.split(name="t")
    server.pass_time(5)
    assert server.ids("t") == [0, 1, 2]


# ---- creating


def test_a_provisioned_stream_needs_a_count_and_an_on_demand_one_has_none(server):
    provisioned = {"StreamModeDetails": {"StreamMode": "PROVISIONED"}}
    assert server.refused("CreateStream", StreamName="s", **provisioned) == "InvalidArgumentException"
    assert server.refused("CreateStream", StreamName="s", ShardCount=1, **ON_DEMAND) == "InvalidArgumentException"
    server.call("CreateStream", StreamName="s", **ON_DEMAND)
    summary = server.summary()
    assert summary["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}
    assert summary["OpenShardCount"] == 4
    assert summary["RecordDistributionStrategy"] == "USER_PARTITION_KEY"


def test_without_mode_and_count_a_stream_is_on_demand(server):
    server.call("CreateStream", StreamName="s")
    summary = server.summary()
    assert summary["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}
    assert summary["OpenShardCount"] == 4


def test_the_accounts_shards_are_limited(make_server):
    server = make_server(limits=Limits(shards_per_account=5), delays=Delays(create=1))
    server.create("a", 3)
    assert server.refused("CreateStream", StreamName="b", ShardCount=3) == "LimitExceededException"
    server.create("b", 2).pass_time(1)
    assert server.refused("CreateStream", StreamName="c", ShardCount=1) == "LimitExceededException"
    split = {"StreamName": "a", "ShardToSplit": FIRST, "NewStartingHashKey": "5"}
    assert server.refused("SplitShard", **split) == "LimitExceededException"
    scale = {"StreamName": "b", "TargetShardCount": 3, "ScalingType": "UNIFORM_SCALING"}
    assert server.refused("UpdateShardCount", **scale) == "LimitExceededException"
    server.call("DeleteStream", StreamName="b")
    server.call("SplitShard", **split)


def test_five_streams_are_created_at_once(make_server):
    server = make_server(delays=Delays(create=1))
    for number in range(5):
        server.create(f"s{number}")
    assert server.refused("CreateStream", StreamName="s5", ShardCount=1) == "LimitExceededException"
    server.pass_time(1).create("s5")


def test_on_demand_streams_are_limited(make_server):
    server = make_server(limits=Limits(on_demand_streams=1)).create("p")
    server.call("CreateStream", StreamName="s", **ON_DEMAND)
    assert server.refused("CreateStream", StreamName="t", **ON_DEMAND) == "LimitExceededException"
    assert server.refused("UpdateStreamMode", StreamARN=server.arn("p"), **ON_DEMAND) == "LimitExceededException"
    server.call("UpdateStreamMode", StreamARN=server.arn(), **ON_DEMAND)  # it is one already


# ---- shards


@pytest.mark.parametrize("at", [0, 1, HASH_KEY_COUNT // 2 - 1, HASH_KEY_COUNT // 2, HASH_KEY_COUNT - 1, HASH_KEY_COUNT])
def test_a_split_outside_the_shard_or_at_its_edges_is_an_invalid_argument(server, at):
    server.create(shards=2)
    members = {"StreamName": "s", "ShardToSplit": FIRST, "NewStartingHashKey": str(at)}
    assert server.refused("SplitShard", **members) == "InvalidArgumentException"


@pytest.mark.parametrize("at", [2, HASH_KEY_COUNT // 2 - 2])
def test_a_split_just_inside_the_edges_works(server, at):
    server.create(shards=2)
    server.split(at=at)
    assert str(at) in {one["HashKeyRange"]["StartingHashKey"] for one in server.open_shards()}


@pytest.mark.parametrize(("one", "other"), [(0, 2), (2, 0), (0, 0), (1, 0), (2, 1)])
def test_only_a_shard_and_the_one_above_it_are_merged(server, one, other):
    server.create(shards=3)
    members = {"ShardToMerge": f"shardId-{one:012d}", "AdjacentShardToMerge": f"shardId-{other:012d}"}
    assert server.refused("MergeShards", StreamName="s", **members) == "InvalidArgumentException"


@pytest.mark.parametrize(("current", "target", "good"), [(1, 2, True), (1, 3, False), (4, 8, True), (4, 9, False), (4, 2, True), (4, 1, False), (5, 3, True), (5, 2, False), (3, 3, True), (4, 3, True), (2, 3, True)])  # fmt: skip
def test_a_count_is_not_more_than_doubled_or_less_than_halved(server, current, target, good):
    server.create(shards=current)
    members = {"StreamName": "s", "TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}
    if not good:
        assert server.refused("UpdateShardCount", **members) == "InvalidArgumentException"
        return
    answer = server.call("UpdateShardCount", **members)
    assert answer == {
        "StreamName": "s",
        "CurrentShardCount": current,
        "TargetShardCount": target,
        "StreamARN": server.arn(),
    }
    starts = sorted(int(one["HashKeyRange"]["StartingHashKey"]) for one in server.open_shards())
    assert starts == [HASH_KEY_COUNT // target * part for part in range(target)]


def test_a_count_is_updated_ten_times_a_day(server, make_server):
    server = make_server(limits=Limits(control_calls_per_second={})).create()
    for number in range(10):
        members = {"StreamName": "s", "TargetShardCount": 2 - number % 2, "ScalingType": "UNIFORM_SCALING"}
        server.call("UpdateShardCount", **members)
    members["TargetShardCount"] = 2
    assert server.refused("UpdateShardCount", **members) == "LimitExceededException"
    server.pass_time(DAY)
    server.call("UpdateShardCount", **members)


def test_a_count_has_an_upper_end(make_server):
    server = make_server().create(shards=6000)
    members = {"StreamName": "s", "TargetShardCount": 10_001, "ScalingType": "UNIFORM_SCALING"}
    assert server.refused("UpdateShardCount", **members) == "LimitExceededException"


# ---- settings of a stream


def test_retention(server):
    server.create()
    change = {"StreamName": "s", "RetentionPeriodHours": 48}
    assert server.refused("DecreaseStreamRetentionPeriod", **change) == "InvalidArgumentException"
    server.call("IncreaseStreamRetentionPeriod", **change)
    assert server.summary()["RetentionPeriodHours"] == 48
    for hours in (23, 8761, 0, -1):
        for operation in ("IncreaseStreamRetentionPeriod", "DecreaseStreamRetentionPeriod"):
            assert server.refused(operation, StreamName="s", RetentionPeriodHours=hours) == "InvalidArgumentException"
    assert (
        server.refused("IncreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=47)
        == "InvalidArgumentException"
    )
    server.call("IncreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=8760)
    server.call("DecreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=24)
    assert server.summary()["RetentionPeriodHours"] == 24


def test_encryption(make_server):
    server = make_server(delays=Delays(update=2)).create()
    server.call("StartStreamEncryption", StreamName="s", EncryptionType="KMS", KeyId="alias/aws/kinesis")
    assert server.status() == "UPDATING"
    server.pass_time(2)
    assert (server.summary()["EncryptionType"], server.summary()["KeyId"]) == ("KMS", "alias/aws/kinesis")
    server.call("StopStreamEncryption", StreamName="s", EncryptionType="KMS", KeyId="alias/aws/kinesis")
    server.pass_time(2)
    assert server.summary()["EncryptionType"] == "NONE"
    assert "KeyId" not in server.summary()
    none = {"StreamName": "s", "EncryptionType": "NONE", "KeyId": "k"}
    assert server.refused("StartStreamEncryption", **none) == "InvalidArgumentException"


@pytest.mark.parametrize(("limit", "switches"), [(2, 2), (3, 3)])
def test_the_mode_is_changed_twice_a_day(make_server, limit, switches):
    server = make_server(limits=Limits(update_stream_mode_per_day=limit)).create()
    modes = ["ON_DEMAND", "PROVISIONED"] * 2
    update = [{"StreamARN": server.arn(), "StreamModeDetails": {"StreamMode": mode}} for mode in modes]
    for members in update[:switches]:
        server.call("UpdateStreamMode", **members)
        server.call("UpdateStreamMode", **members)  # changes nothing, and does not count
    assert server.refused("UpdateStreamMode", **update[switches]) == "LimitExceededException"
    assert server.summary()["StreamModeDetails"] == {"StreamMode": modes[switches - 1]}
    server.pass_time(DAY)
    server.call("UpdateStreamMode", **update[switches])
    assert server.summary()["StreamModeDetails"] == {"StreamMode": modes[switches]}


def test_mode_and_distribution(server):
    server.create()
    auto = {"StreamARN": server.arn(), "RecordDistributionStrategy": "AUTO"}
    assert "RecordDistributionStrategy" not in server.summary()
    assert server.refused("UpdateStreamRecordDistributionStrategy", **auto) == "InvalidArgumentException"
    members = {"StreamName": "t", "ShardCount": 1, "RecordDistributionStrategy": "AUTO"}
    assert server.refused("CreateStream", **members) == "InvalidArgumentException"
    server.call("UpdateStreamMode", StreamARN=server.arn(), **ON_DEMAND)
    assert server.summary()["RecordDistributionStrategy"] == "USER_PARTITION_KEY"
    server.call("UpdateStreamRecordDistributionStrategy", **auto)
    assert server.summary()["RecordDistributionStrategy"] == "AUTO"
    server.call("UpdateStreamMode", StreamARN=server.arn(), StreamModeDetails={"StreamMode": "PROVISIONED"})
    assert "RecordDistributionStrategy" not in server.summary()


def test_enhanced_monitoring(server):
    server.create()
    metrics = {"StreamName": "s", "ShardLevelMetrics": ["OutgoingBytes", "IncomingBytes"]}
    answer = server.call("EnableEnhancedMonitoring", **metrics)
    assert answer["CurrentShardLevelMetrics"] == []
    assert answer["DesiredShardLevelMetrics"] == ["IncomingBytes", "OutgoingBytes"]
    assert server.summary()["EnhancedMonitoring"] == [{"ShardLevelMetrics": ["IncomingBytes", "OutgoingBytes"]}]
    answer = server.call("DisableEnhancedMonitoring", StreamName="s", ShardLevelMetrics=["OutgoingBytes"])
    assert answer["DesiredShardLevelMetrics"] == ["IncomingBytes"]
    answer = server.call("DisableEnhancedMonitoring", StreamName="s", ShardLevelMetrics=["ALL"])
    assert answer["DesiredShardLevelMetrics"] == []
    assert server.refused("EnableEnhancedMonitoring", StreamName="s", ShardLevelMetrics=["No"]) == "ValidationException"


def test_all_stands_for_each_shard_level_metric_and_one_of_them_can_go(server):
    server.create()
    answer = server.call("EnableEnhancedMonitoring", StreamName="s", ShardLevelMetrics=["ALL"])
    every = answer["DesiredShardLevelMetrics"]
    assert len(every) == 7
    assert "ALL" not in every
    answer = server.call("DisableEnhancedMonitoring", StreamName="s", ShardLevelMetrics=["IncomingBytes"])
    assert answer["CurrentShardLevelMetrics"] == every
    assert answer["DesiredShardLevelMetrics"] == [metric for metric in every if metric != "IncomingBytes"]


def test_a_shard_that_was_split_can_be_neither_split_nor_merged(server):
    server.create(shards=2)
    server.split(0, at=1000)
    split = {"StreamName": "s", "ShardToSplit": "shardId-000000000000", "NewStartingHashKey": "2000"}
    merge = {"StreamName": "s", "ShardToMerge": "shardId-000000000000", "AdjacentShardToMerge": "shardId-000000000001"}
    for operation, members in (("SplitShard", split), ("MergeShards", merge)):
        assert server.refused(operation, **members) == "InvalidArgumentException"
        assert "has already been merged or split" in server.why(operation, **members)


# ---- deleting with consumers


def test_a_stream_with_consumers_is_deleted_only_on_purpose(server):
    server.create()
    arn = server.register()
    assert server.refused("DeleteStream", StreamName="s") == "ResourceInUseException"
    server.call("DeleteStream", StreamName="s", EnforceConsumerDeletion=True)
    assert server.refused("DescribeStreamConsumer", ConsumerARN=arn) == "ResourceNotFoundException"
    server.create()
    assert server.call("ListStreamConsumers", StreamARN=server.arn()) == {"Consumers": []}


def test_shards_are_split_and_merged_by_short_ids_too(server):
    """Recorded in kinesalite's splitShard.js and mergeShards.js."""
    server.create(shards=2)
    server.call("SplitShard", StreamName="s", ShardToSplit="shard-0", NewStartingHashKey="5")
    server.call("MergeShards", StreamName="s", ShardToMerge="3", AdjacentShardToMerge="anything-1")
    assert server.ids(ShardFilter={"Type": "AT_LATEST"}) == [2, 4]
