"""Shards and their parents."""

from dataclasses import FrozenInstanceError

import pytest

from shardline.model.hashing import WHOLE_RING
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import ChildShard, Shard


def shard(**changes):
    return Shard("shardId-000000000002", WHOLE_RING, SequenceNumber(5), **changes)


@pytest.mark.parametrize(
    ("parent", "adjacent", "parents"),
    [
        (None, None, ()),
        ("shardId-000000000000", None, ("shardId-000000000000",)),
        ("shardId-000000000000", "shardId-000000000001", ("shardId-000000000000", "shardId-000000000001")),
        (None, "shardId-000000000001", ("shardId-000000000001",)),
    ],
)
def test_a_shard_has_no_parent_or_one_or_two(parent, adjacent, parents):
    assert shard(parent_id=parent, adjacent_parent_id=adjacent).parent_ids == parents


def test_a_shard_is_open_until_it_has_an_ending_sequence_number():
    assert shard().is_open
    assert not shard(ending_sequence_number=SequenceNumber(9)).is_open


def test_shards_are_values():
    assert shard() == shard()
    assert hash(shard()) == hash(shard())
    with pytest.raises(FrozenInstanceError):
        shard().shard_id = "another"


def test_a_child_names_its_parents_and_its_range():
    child = ChildShard("shardId-000000000003", ("shardId-000000000002",), WHOLE_RING)
    assert child.parent_ids == ("shardId-000000000002",)
    assert child.hash_range is WHOLE_RING
