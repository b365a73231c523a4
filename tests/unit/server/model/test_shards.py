"""Tests of ``server.model.shards``."""

import pytest

from shardline.model.hashing import WHOLE_RING
from shardline.server.model.settings import Limits
from shardline.server.model.shards import ServerShard, full_shard_id, shard_id_of


def shard(**limits):
    return ServerShard(3, WHOLE_RING, Limits(**limits), 100.0, began=100, parent_id="a", adjacent_parent_id="b")


def test_it_has_an_id_and_parents():
    one = shard()
    assert one.shard_id == shard_id_of(3) == "shardId-000000000003"
    assert one.parent_ids == ["a", "b"]


@pytest.mark.internal_error
def test_it_is_closed_once():
    one = shard()
    assert one.is_open
    assert one.ending_sequence_number is None
    one.close(200.0)
    assert not one.is_open
    assert one.ending_sequence_number > one.starting_sequence_number
    with pytest.raises(AssertionError):
        one.close(300.0)


def test_both_rates_or_none():
    one = shard(write_records_per_second=2, write_bytes_per_second=10)
    assert one.may_write(8, 100.0)
    assert not one.may_write(3, 100.0)  # no bytes left: and no record is charged
    assert one.may_write(2, 100.0)
    assert not one.may_write(0, 100.0)  # no records left: and no byte is charged
    assert one.may_write(5, 100.5)
    assert not one.is_unlimited


def test_asking_what_would_pass_charges_nothing():
    one = shard(
        write_records_per_second=1,
        write_bytes_per_second=10,
        read_calls_per_second=1,
        read_bytes_per_second=10,
        iterator_calls_per_second=1,
    )
    for _ in range(3):
        assert one.may_write(10, 100.0, is_dry=True)
        assert one.may_read(100.0, is_dry=True)
        assert one.may_iterate(100.0, is_dry=True)
    assert one.may_write(4, 100.0)
    assert one.may_read(100.0)
    assert one.may_iterate(100.0)
    assert not one.may_write(0, 100.0, is_dry=True)  # no records left
    assert not one.may_read(100.0, is_dry=True)
    assert not one.may_iterate(100.0, is_dry=True)
    one.charge_read(30)
    assert one.may_write(10, 101.0, is_dry=True)
    assert one.may_write(9, 101.0)
    assert not one.may_write(8, 101.5, is_dry=True)  # no bytes left
    assert not one.may_read(102.0, is_dry=True)  # no bytes left, but calls
    assert one.may_iterate(101.0, is_dry=True)


def test_without_limits_everything_passes():
    one = ServerShard(0, WHOLE_RING, Limits.without_rates(), 0.0, began=0)
    assert one.is_unlimited
    one.charge_read(10**9)
    assert all(one.may_write(10**9, 0.0) and one.may_read(0.0) and one.may_iterate(0.0) for _ in range(100))
    assert one.may_write(10**9, 0.0, is_dry=True)
    assert one.may_read(0.0, is_dry=True)
    assert one.may_iterate(0.0, is_dry=True)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("0", 0),
        ("shardId-0", 0),
        ("shardId-000000000000000000", 0),
        ("shardId-000000000017", 17),
        ("shard-3", 3),
        ("a-00002147483647", 2147483647),
        ("-00002147483647", 2147483647),
        ("2147483647", 2147483647),
    ],
)
def test_a_short_shard_id_is_read_as_aws_reads_it(text, index):
    """Recorded in kinesalite's getShardIterator.js and splitShard.js."""
    assert full_shard_id(text) == shard_id_of(index)


@pytest.mark.parametrize(
    "text", ["2147483648", "shardId-002147483648", "ABKLFD8", "2.14E4", "shardId-", "-", "a-b-3", "a--1"]
)
def test_text_that_names_no_shard_has_no_shard_id(text):
    assert full_shard_id(text) is None
