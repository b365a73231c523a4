"""Is every lineage drawn, even if parts of it are missing?"""

from hypothesis import given
from hypothesis import strategies as st

from shardline.cli.streams.shard_tree import PLAIN, draw, short_id
from shardline.model.hashing import HashRange
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard

END = 2**128 - 1


def shard(number, start, end, *parents, closed=False):
    ids = [f"shardId-{parent:012}" for parent in parents] + [None, None]
    ending = SequenceNumber(number + 1000) if closed else None
    return Shard(f"shardId-{number:012}", HashRange(start, end), SequenceNumber(number), ending, ids[0], ids[1])


def drawn(*shards):
    return [(line.branches + short_id(line.shard.shard_id), line.note) for line in draw(shards, PLAIN)]


def test_splits_stand_in_the_order_of_their_ranges():
    half = 2**127
    assert drawn(shard(0, 0, END, closed=True), shard(1, half, END, 0), shard(2, 0, half - 1, 0)) == [
        ("0", "split"),
        ("|- 2", ""),
        ("`- 1", ""),
    ]


def test_a_merge_stands_below_its_first_parent_and_the_other_says_where_it_went():
    assert drawn(shard(0, 0, 9, closed=True), shard(1, 10, END, closed=True), shard(2, 0, END, 0, 1)) == [
        ("0", "merged"),
        ("`- 2", "of 0 and 1"),
        ("1", "merged into 2"),
    ]


def test_a_child_whose_parents_are_gone_is_a_root():
    assert drawn(shard(7, 0, 9, 3), shard(8, 10, END, 4, 5)) == [("7", "of 3, which is gone"), ("8", "of 4 and 5")]


def test_a_merge_of_which_one_parent_is_gone_stands_below_the_other():
    assert drawn(shard(1, 10, END, closed=True), shard(2, 0, END, 0, 1)) == [
        ("1", "merged into 2"),
        ("`- 2", "of 0 and 1"),
    ]


def test_branches_go_on_beside_what_is_deeper():
    lines = drawn(
        shard(0, 0, END, closed=True),
        shard(1, 0, 9, 0, closed=True),
        shard(2, 10, END, 0),
        shard(3, 0, 4, 1),
        shard(4, 5, 9, 1),
    )
    assert [name for name, _ in lines] == ["0", "|- 1", "|  |- 3", "|  `- 4", "`- 2"]


def test_a_thousand_generations_are_drawn():
    chain = [shard(0, 0, END)] + [shard(number, 0, END, number - 1) for number in range(1, 3000)]
    assert len(drawn(*chain)) == 3000


@given(st.data())
def test_every_shard_is_drawn_once(data):
    shards = []
    for number in range(data.draw(st.integers(0, 20))):
        parents = data.draw(
            st.lists(st.integers(-2, number - 1).filter(lambda one: one != -1), max_size=2, unique=True)
        )
        shards.append(shard(number, 0, END, *[abs(parent) if parent >= 0 else 900 for parent in parents]))
    kept = [one for one in shards if data.draw(st.booleans())]
    assert sorted(line.shard.shard_id for line in draw(kept)) == sorted(one.shard_id for one in kept)


def test_short_ids():
    assert [short_id(one) for one in ("shardId-000000000012", "shardId-x", "other")] == ["12", "shardId-x", "other"]
