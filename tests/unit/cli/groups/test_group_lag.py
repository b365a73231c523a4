"""Which shards does a group still have to read?"""

from shardline.cli.groups.group_lag import rows_to_come
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard


def shard(name, start, *parents):
    return Shard(name, HashRange(0, 9), SequenceNumber(start), None, *(*parents, None, None)[:2])


STREAM = {one.shard_id: one for one in (shard("s3", 3, "s2"), shard("s2", 2, "s0"), shard("s1", 1), shard("s0", 1))}


def test_descendants_of_an_unfinished_shard_are_still_to_come():
    rows = {"s0": Lease("s0"), "s1": Lease("s1")}
    assert rows_to_come(rows, STREAM) == [Lease("s2"), Lease("s3")]
    assert rows_to_come(rows | {"s2": Lease("s2")}, STREAM) == [Lease("s3")]


def test_shards_of_a_finished_line_and_unrelated_shards_are_not():
    finished = Lease("s0", checkpoint=Checkpoint(SHARD_END))
    assert rows_to_come({"s0": finished}, STREAM) == []
    assert rows_to_come({"s3": Lease("s3")}, STREAM) == []
