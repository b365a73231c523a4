"""When is a group behind?"""

import pytest

from shardline.cli.groups.describe_command import Description, find_delay
from shardline.cli.groups.group_lag import Lag
from shardline.cli.groups.group_store import Watch
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
