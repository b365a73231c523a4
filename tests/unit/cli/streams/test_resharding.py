"""Do the steps of a reshard lead to the target, and are impossible changes refused?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline import UsageError
from shardline.cli.streams.resharding import merge_of, shard_id_of, split_of, steps_to
from shardline.model.hashing import HashRange
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard

END = 2**128 - 1


@pytest.mark.parametrize(
    ("current", "target", "steps"),
    [
        (2, 2, []),
        (2, 3, [3]),
        (2, 4, [4]),
        (2, 5, [4, 5]),
        (5, 3, [3]),
        (5, 2, [3, 2]),
        (9, 2, [5, 3, 2]),
        (1, 1024, [2**power for power in range(1, 11)]),
    ],
)
def test_steps(current, target, steps):
    assert steps_to(current, target) == steps


@given(st.integers(1, 500), st.integers(1, 500))
def test_each_step_at_most_doubles_and_at_least_halves(current, target):
    steps = steps_to(current, target)
    for before, after in zip([current, *steps], steps, strict=False):
        assert before <= 2 * after
        assert after <= 2 * before
        assert before != after
    assert (steps or [current])[-1] == target


def test_too_many_steps():
    with pytest.raises(
        UsageError, match=r"that takes 11 steps that at most double or halve the shards, but the service allows only 10"
    ):
        steps_to(1, 1025)


def test_a_number_is_a_shard():
    assert shard_id_of("3") == "shardId-000000000003"
    assert shard_id_of("shardId-000000000003") == "shardId-000000000003"
    assert shard_id_of("٣") == "٣"


def shard(number, start, end, *, closed=False):
    ending = SequenceNumber(9) if closed else None
    return Shard(f"s{number}", HashRange(start, end), SequenceNumber(number), ending)


SHARDS = [shard(0, 0, 99), shard(1, 100, 199), shard(2, 200, END), shard(3, 0, END, closed=True), shard(4, 7, 7)]


def test_a_split():
    assert split_of(SHARDS, "s1", None).after == (HashRange(100, 149), HashRange(150, 199))
    assert split_of(SHARDS, "s1", "101").after == (HashRange(100, 100), HashRange(101, 199))
    for at in ("100", "200", "x", "-1"):
        with pytest.raises(UsageError):
            split_of(SHARDS, "s1", at)
    with pytest.raises(UsageError, match="s3 is closed"):
        split_of(SHARDS, "s3", None)
    with pytest.raises(UsageError, match="has no shard s9"):
        split_of(SHARDS, "s9", None)
    with pytest.raises(UsageError, match="a single key cannot be split"):
        split_of(SHARDS, "s4", None)


def test_a_merge():
    for pair in (("s0", "s1"), ("s1", "s0")):
        change = merge_of(SHARDS, *pair)
        assert [one.shard_id for one in change.before] == ["s0", "s1"]
        assert change.after == (HashRange(0, 199),)
    for pair in (("s0", "s2"), ("s0", "s0"), ("s0", "s3"), ("s0", "s9")):
        with pytest.raises(UsageError):
            merge_of(SHARDS, *pair)
