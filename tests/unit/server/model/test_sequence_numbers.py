"""Tests of ``server.model.sequence_numbers``."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.server.model.sequence_numbers import LAST, LAYOUT, STEP, WITHOUT_DIGIT, Numbering, parse

shards = st.integers(0, 2**31 - 1)
seconds = st.integers(1_000_000_000, 16_025_174_000)
numbers = st.integers(0, LAST)
layouts = st.sampled_from([WITHOUT_DIGIT, LAYOUT])

# AWS's own numbers, from https://brandur.org/kinesis-by-example: one shard is split, its children are merged.
ROOT = (
    "49548859072970256769156879668947671610661756289899560962",
    "49548859072981407141756144980517230543978492779512725506",
)
LOWER = (
    "49548859213219643322715968606065803827347328807764754450",
    "49548859213230793695315233917635362760664090379986927634",
)
UPPER = (
    "49548859213241944067914499229207339545619977169270734882",
    "49548859213253094440513764540776898478936738741492908066",
)
MERGED = "49548859483727682580892427312894066474572005964670566450"


@given(shards, seconds, numbers, seconds, layouts)
def test_what_it_says_is_read_back(shard, began, number, second, layout):
    numbering = Numbering(shard, began, layout)
    text = str(numbering.make(number, second))
    parts = parse(text)
    at_least = began if layout == LAYOUT else 0
    assert parts == (2, shard, began, numbering.digit, number, max(second, at_least))
    assert numbering.covers(parts)
    assert not Numbering(shard, began + 1, layout).covers(parts)
    assert not Numbering(shard ^ 1, began, layout).covers(parts)
    assert len(text) == 56


@given(shards, seconds, st.integers(0, LAST - 1), seconds, st.integers(0, 1000), layouts)
def test_they_grow_by_a_step_within_a_shard(shard, began, number, second, pause, layout):
    make = Numbering(shard, began, layout).make
    assert make(number + 1, second + pause) - make(number, second) >= STEP


@given(st.tuples(shards, shards), seconds, numbers, st.tuples(seconds, seconds), layouts)
def test_a_childs_are_greater_than_its_parents(indexes, began, number, times, layout):
    child = Numbering(indexes[1], began + 1).make(0, times[1])
    assert child > Numbering(indexes[0], began, layout).make(number, times[0])


@pytest.mark.parametrize(("shard", "pair"), [(0, ROOT), (1, LOWER), (2, UPPER), (3, (MERGED,))])
def test_the_numbers_of_aws_are_made_and_read(shard, pair):
    start = parse(pair[0])
    numbering = Numbering(shard, start.began)
    assert start == (2, shard, start.began, shard, 0, start.began)
    assert str(numbering.make(0, 0)) == pair[0]
    for end in pair[1:]:
        assert parse(end).number == LAST
        assert str(numbering.make(LAST, parse(end).second)) == end


def test_on_aws_children_begin_a_second_after_the_ending_number_of_their_parents():
    assert parse(LOWER[0]).began == parse(UPPER[0]).began == parse(ROOT[1]).second + 1
    assert parse(MERGED).began == parse(LOWER[1]).second + 1 == parse(UPPER[1]).second + 1


def test_the_start_numbers_of_a_streams_shards_are_as_far_apart_as_on_aws():
    """Recorded in kinesalite's createStream.js."""
    starts = [Numbering(shard, 1_700_000_000).make(0, 0) for shard in range(16)]
    assert {after - before for before, after in pairwise(starts)} == {22300745198530623141535718272648361505980432}


def test_the_digit_is_that_of_the_shard_modulo_16():
    assert [Numbering(shard, 5).digit for shard in (0, 1, 15, 16, 31)] == [0, 1, 15, 0, 15]
    assert Numbering(17, 5, WITHOUT_DIGIT).digit == 0


@pytest.mark.parametrize(
    "text", ["", "-1", "x", "1.5", "9" * 56, "9" * 129, "9" * 130, "\u0661" * 56, " 1", str(2**125), str(2**184)]
)
def test_a_foreign_number_is_not_recognized(text):
    assert parse(text) is None


@pytest.mark.parametrize(
    "digits",
    [
        "20000000000000000000000000000000000000000000000",
        "20000000000000000000000000000000000000000000003",
        "20000000000000000000000000000000000000000000004",
        "30000000000000000000000000000000000000000000001",
        "1ffffffffff7fffffffffffffff000000000007fffffff2",
        "20000000000800000000000000000000000000000000002",
        "13bb2cc3d80000000000000000000000",
        "2ffffffffff7fffffffffffffff000000000007fffffff2",
    ],
)
def test_what_aws_cannot_read(digits):
    """Recorded in kinesalite's putRecord.js and getShardIterator.js."""
    assert parse(str(int(digits, 16))) is None


@pytest.mark.parametrize(
    ("digits", "version", "shard"),
    [
        ("20000000000000000000000000000000000000000000002", 2, 0),
        ("20000000000000000000000000000000000000000000001", 1, 0),
        ("20000000000000000000000000000000000000800000002", 2, -(2**31)),
        ("0", 0, 0),
        ("5", 0, 5),
    ],
)
def test_what_aws_can_read(digits, version, shard):
    """Recorded in kinesalite's putRecord.js and getShardIterator.js."""
    assert parse(str(int(digits, 16)))[:2] == (version, shard)


def test_a_number_of_version_1_says_when_it_arrived():
    digits = "2" + "065a00000" + "3" + "00" + "065a00001" + "a" * 14 + "0c" + "00000003" + "1"
    assert parse(str(int(digits, 16))) == (1, 3, 0x65A00000, 3, 12, 0x65A00001)
