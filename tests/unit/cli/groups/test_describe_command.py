"""When is a group behind?"""

import pytest

from shardline.cli.groups.describe_command import Description, find_delay
from shardline.cli.groups.group_lag import Lag
from shardline.cli.groups.group_store import Watch
from shardline.core.consumer.kcl_fleet import FleetMember
from shardline.core.error_codes import Failure, FailureKind
from shardline.ports import GroupOnStream


def described(lags, **more):
    return Description(GroupOnStream("billing", "orders"), Watch({}), 0.0, {}, lags, **more)


@pytest.mark.parametrize(
    ("lags", "sentence"),
    [
        ({}, None),
        ({"s0": Lag(0), "s1": Lag(300_000)}, None),
        ({"s0": Lag(0), "s1": Lag(300_001)}, "s1 is behind by 5 min, more than 5 min"),
        (
            {"s0": Lag(400_000), "s1": Lag(9_000_000), "s2": Lag(1)},
            "s1 is behind by 2 h, more than 5 min, and 1 other shard too",
        ),
        (
            {"s0": Lag(9_000_000), "s1": Lag(problem="GetRecords: denied")},
            "the lag of s1 is unknown: GetRecords: denied",
        ),
        ({"s0": Lag()}, "the lag of s0 is unknown: Kinesis did not report it"),
    ],
)
def test_the_worst_shard_is_named(lags, sentence):
    assert find_delay(described(lags), 300) == sentence


def test_a_recreated_stream_has_no_known_lag():
    assert find_delay(described({}, is_recreated=True), 300) == (
        "the stream orders was deleted and re-created: the lag of the group is unknown"
    )


def test_the_workers_of_a_kcl_fleet_are_among_the_notices():
    java, ours = FleetMember("java", "leader", "KCL 3.0 to 3.4"), FleetMember("ours", "follower", "Shardline 0.1.0")
    assert described({}).notices == []
    assert described({}, members=[java, ours]).notices == [
        "java (KCL 3.0 to 3.4) leads; the followers: ours (Shardline 0.1.0)"
    ]
    denied = Failure(FailureKind.DENIED, "AccessDeniedException", "not allowed", maybe_received=False)
    assert described({}, members=denied).notices == ["it is unknown whether KCL workers share the group: not allowed"]
