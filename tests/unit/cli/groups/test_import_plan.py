"""Which rows does an import write, and which files does it refuse?"""

import click
import pytest

from shardline.cli.groups.import_plan import plan_import
from shardline.cli.groups.reset_plan import operations
from shardline.core.leases import Refused, apply_to
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END, TRIM_HORIZON, at_sequence_number
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard


def shard(name, start, *parents, end=None, hashes=(0, 9)):
    ending = None if end is None else SequenceNumber(end)
    return Shard(name, HashRange(*hashes), SequenceNumber(start), ending, *(*parents, None, None)[:2])


# s0 was split into s2 and s3, which were merged into s4; s1 is unchanged.
S0, S1 = shard("s0", 100, end=199, hashes=(0, 4)), shard("s1", 100, hashes=(5, 9))
S2, S3 = shard("s2", 200, "s0", end=299, hashes=(0, 1)), shard("s3", 200, "s0", end=299, hashes=(2, 4))
S4 = shard("s4", 300, "s2", "s3", hashes=(0, 4))
STREAM = [S4, S3, S2, S1, S0]


def at(name, position, **more):
    position = at_sequence_number(SequenceNumber(position)) if isinstance(position, int) else position
    return Lease(name, checkpoint=Checkpoint(position), **more)


def by_shard(*rows):
    return {row.shard_id: row for row in rows}


def imported(rows, wanted):
    """Return the rows after the import, as in the store."""
    after = dict(rows)
    for step in plan_import(STREAM, rows, wanted):
        for operation in operations(after.get(step.shard_id), step.after):
            assert not isinstance(apply_to(after, operation), Refused)
    return {name: (row.checkpoint.position, row.holder) for name, row in after.items()}


FILE = by_shard(at("s0", 150), at("s1", 120))


@pytest.mark.parametrize(
    "rows",
    [
        {},
        by_shard(at("s0", 150), at("s1", 120)),
        by_shard(at("s0", SHARD_END, counter=5), at("s1", 140, owner="ghost"), at("s2", 250), at("s3", TRIM_HORIZON)),
        by_shard(at("s1", 140), at("s4", 350, owner="ghost", counter=7), at("gone", SHARD_END)),
    ],
    ids=["new group", "same", "resharded", "far ahead"],
)
def test_the_group_has_the_rows_of_the_file_and_no_others(rows):
    wanted = {name: (row.checkpoint.position, None) for name, row in FILE.items()}
    assert imported(rows, FILE) == wanted


def test_parents_are_written_first_and_get_the_facts_of_the_stream():
    rows = by_shard(at("s4", 350), at("s2", SHARD_END))
    steps = plan_import(STREAM, rows, by_shard(at("s2", 250), at("s1", 120), at("s4", 320)))
    assert [(step.shard_id, step.action.value) for step in steps] == [
        ("s1", "create"),
        ("s2", "reset"),
        ("s4", "reset"),
    ]
    assert steps[1].after.parent_ids == {"s0"}
    assert steps[1].after.hash_range == S2.hash_range


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ([at("x", 150)], "the stream has none of the shards in the file"),
        ([at("s0", 150)], "the file has no position for s1, nor for a parent or a child of it"),
        ([at("s1", 120)], "the file has no position for s0, s2, s3, s4, "),
        ([at("s0", 99), at("s1", 120)], "the checkpoint of s0 does not belong to this stream: it is at 99"),
        ([at("s0", 200), at("s1", 120)], "but the shard ends at 199"),
        ([at("s0", 150), at("s1", SHARD_END)], "it is at SHARD_END, but the shard is open"),
        ([at("s0", 150, hash_range=HashRange(0, 5)), at("s1", 120)], "its hash range differs from the shard's"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(wanted, words):
    with pytest.raises(click.ClickException) as refused:
        plan_import(STREAM, {}, by_shard(*wanted))
    assert words in refused.value.message


def test_children_whose_parents_have_left_the_stream_are_read_from_their_beginning():
    left = [S4, S1]
    steps = plan_import(left, {}, FILE)
    assert [(step.shard_id, step.action.value) for step in steps] == [("s1", "create")]
    steps = plan_import(left, by_shard(at("s4", 320)), FILE)
    assert [(step.shard_id, step.action.value) for step in steps] == [("s1", "create"), ("s4", "delete")]
