"""SN1 and SN2 are invariants of ``server.model.sequence_numbers``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.server.model import sequence_numbers
from shardline.server.model.sequence_numbers import LAST, STEP, make, parse

shards = st.integers(0, 2**32 - 1)
seconds = st.integers(1_000_000_000, 2**36 - 1)
numbers = st.integers(0, LAST)


@given(shards, seconds, numbers, seconds)
def test_sn2_what_it_says_is_read_back(shard, began, number, second):
    text = str(make(shard, began, number, second))
    assert parse(text) == (shard, began, number, second)
    assert len(text) == 56


@given(shards, seconds, st.integers(0, LAST - 1), seconds, st.integers(0, 1000))
def test_sn1_they_grow_by_a_step_within_a_shard(shard, began, number, second, pause):
    assert make(shard, began, number + 1, second + pause) - make(shard, began, number, second) >= STEP


@given(st.tuples(shards, shards), seconds, numbers, st.tuples(seconds, seconds))
def test_sn1_a_childs_are_greater_than_its_parents(indexes, began, number, times):
    assert make(indexes[1], began + 1, 0, times[1]) > make(indexes[0], began, number, times[0])


@pytest.mark.parametrize("text", ["", "0", "1", "-1", "x", "1.5", "9" * 56, "9" * 129, "9" * 130, "\u0661" * 56, " 1"])
def test_sn2_what_is_none_of_ours_is_none(text):
    assert parse(text) is None


def test_sn2_another_version_is_none_of_ours():
    assert sequence_numbers.parse(str(make(1, 1_700_000_000, 5, 1_700_000_000) + 1)) is None
