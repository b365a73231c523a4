"""Tests of ``shardline.core.consumer.shard_graph`` (L3). The stream is drawn in ``conftest``."""

from dataclasses import replace

import pytest

from shardline.core.consumer.shard_graph import ShardGraph
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON


@pytest.fixture
def graph(stream):
    graph = ShardGraph()
    graph.handle_listing(stream.all, {}, 100.0, 100.0)
    return graph


def test_the_topology_is_known_in_both_directions(graph, stream):
    assert set(graph.parents(stream.name(8))) == stream.names(6, 7)
    assert graph.children(stream.name(5)) == stream.names(9, 10)
    assert set(graph.ancestors(stream.name(8))) == stream.names(0, 1, 2, 3, 6, 7)
    assert set(graph.descendants(stream.name(2))) == stream.names(7, 8)
    assert graph.parents("nobody") == ()
    assert graph.children(stream.name(8)) == frozenset()
    assert graph.shard(stream.name(8)) == stream.shard(8)
    assert graph.shard("nobody") is None
    assert graph.hash_range(stream.name(8)) == stream.span(8)
    assert len(graph.shard_ids) == 11


@pytest.mark.parametrize(
    "case",
    [
        (0, [0], [], True),  # no parent
        (0, [], [0], False),  # finished itself
        (9, [9, 5], [], False),  # its parent is not finished
        (9, [9], [5], True),
        (9, [9], [], True),  # the parent's row was deleted, or never made
        (8, [8, 6], [7], False),  # one side of a merge
        (8, [8, 7], [6], False),  # the other
        (8, [8, 7, 6], [], False),
        (8, [8], [6, 7], True),
        (8, [8], [6], True),
        (8, [8, 0], [], False),  # every generation: a grandparent is not finished, the parent has no row
        (8, [8, 0], [6, 7], True),  # a finished parent implies finished ancestors
        (8, [8], [0, 1, 2, 3], True),
    ],
)
def test_l3_a_shard_is_readable_when_its_parents_are_finished(graph, stream, case):
    number, unfinished, finished, readable = case
    assert graph.is_readable(stream.name(number), stream.rows(*unfinished, finished=finished)) == readable


def test_a_shard_between_an_older_row_and_one_that_has_not_begun_was_never_read(graph, stream):
    middle, young = stream.name(6), stream.name(8)
    for at, left_out in ((TRIM_HORIZON, True), (LATEST, True), (205, False), (SHARD_END, False)):
        rows = {**stream.rows(0), young: stream.row(8, at)}
        assert graph.is_left_out(middle, rows) == left_out
        assert not graph.is_left_out(middle, rows | stream.rows(finished=[0]))  # then its row would be there
    assert not graph.is_left_out(middle, stream.rows(8))  # at the beginning of a group, older shards count as finished
    assert not graph.is_left_out(middle, stream.rows(0, 6, 8))
    assert not graph.is_left_out("nobody", stream.rows(0, 8))


def test_who_does_not_know_a_row_s_shard_believes_nothing_of_parents_without_rows(stream):
    """The parents may be younger than the listing, and not gone."""
    graph = ShardGraph()
    graph.handle_listing([stream.shard(number, is_open=True) for number in range(6)], {}, 100.0, 100.0)
    assert not graph.is_readable(stream.name(8), stream.rows(8, 4))
    assert not graph.is_readable(stream.name(8), stream.rows(8, finished=[6]))
    assert graph.is_readable(stream.name(8), stream.rows(8, finished=[6, 7]))
    graph.handle_listing([stream.shard(number) for number in (4, 8, 9, 10)], {}, 100.0, 100.0)
    assert graph.is_readable(stream.name(8), stream.rows(8, 4))


def test_l3_before_the_first_listing_nothing_is_readable(stream):
    assert not ShardGraph().is_readable(stream.name(0), stream.rows(0))


def test_l3_the_parents_that_a_row_names_count_where_the_listing_names_none(stream):
    graph = ShardGraph()
    graph.handle_listing([stream.shard(5)], {}, 100.0, 100.0)
    rows = stream.rows(9, 5)
    assert not graph.is_readable(stream.name(9), rows)
    assert graph.is_readable(stream.name(9), stream.rows(9, finished=[5]))


def test_l3_sg1_a_parent_that_is_gone_from_two_listings_is_finished(stream):
    graph = ShardGraph()
    rows = stream.rows(5, 9)
    left = [stream.shard(number) for number in (4, 8, 9, 10)]
    for begun_at, now in ((99.0, 100.0), (100.1, 100.2), (100.9, 109.0)):  # the others may be as outdated as the first
        graph.handle_listing(left, rows, begun_at, now)
        assert graph.has_doubts
        assert not graph.is_trimmed(stream.name(5))
        assert not graph.is_readable(stream.name(9), rows)
    graph.handle_listing(left, rows, 101.0, 101.0)
    assert not graph.has_doubts
    assert graph.is_trimmed(stream.name(5))
    assert graph.is_readable(stream.name(9), rows)
    assert not graph.is_readable(stream.name(5), rows)


def test_they_are_forgotten_when_their_parents_are_gone_too(stream):
    graph = ShardGraph()
    graph.handle_listing([stream.shard(5)], {}, 100.0, 100.0)
    graph.handle_children([stream.child(9)])
    graph.handle_listing([stream.shard(4)], {}, 100.0, 100.0)
    assert not graph.is_present(stream.name(9))


def test_the_child_of_a_merge_is_forgotten_once_one_of_its_parents_is_surely_gone(stream):
    """An earlier stream of this name had the child: the new stream has a shard with the id of the other parent."""
    graph = ShardGraph()
    rows = stream.rows(6)
    graph.handle_listing([stream.shard(7)], rows, 100.0, 100.0)
    graph.handle_children([stream.child(8)])
    for begun_at in (100.5, 101.0):  # the second one shows that the shard 6 is gone
        graph.handle_listing([stream.shard(7)], rows, begun_at, begun_at)
        assert graph.is_present(stream.name(8))
    graph.handle_listing([stream.shard(7)], rows, 101.1, 101.1)
    assert not graph.is_present(stream.name(8))


def test_what_a_shard_of_a_stream_that_is_gone_named_is_forgotten(stream):
    """The new stream has a shard with the same id, which seems to confirm the child."""
    graph = ShardGraph()
    graph.handle_listing([stream.shard(5)], {}, 100.0, 100.0)
    graph.handle_children([stream.child(9)])
    graph.handle_listing([stream.shard(5, is_open=True)], {}, 100.0, 100.0)
    assert graph.is_present(stream.name(9))
    graph.reset()
    assert not graph.is_present(stream.name(9))
    assert graph.children(stream.name(5)) == frozenset()
    assert graph.is_present(stream.name(5))


def test_the_place_of_an_announced_shard_is_known_when_its_parents_are(stream):
    graph = ShardGraph()
    graph.handle_listing([stream.shard(number) for number in range(6)], {}, 100.0, 100.0)
    graph.handle_children([stream.child(8)])
    assert not graph.is_placed(stream.name(8))  # 6 and 7 are younger than the listing
    graph.handle_children([stream.child(6), stream.child(7)])
    assert graph.is_placed(stream.name(8))
    assert not graph.is_placed("nobody")


def test_a_graph_that_is_older_than_the_rows_is_seen(graph, stream):
    assert graph.covers(stream.rows(0, 8))
    stranger = {"stranger": stream.row(0)}
    assert not graph.covers(stranger)
    graph.handle_listing(stream.all, stranger, 100.0, 100.0)  # requested later: there is no such shard
    assert graph.covers(stranger)


def test_l3_a_shard_that_was_split_and_merged_again_has_its_ancestor_once(stream):
    graph = ShardGraph()
    whole, low, high, again = (stream.shard(number) for number in (0, 1, 2, 3))
    low, high = replace(low, parent_id=whole.shard_id), replace(high, parent_id=whole.shard_id)
    again = replace(again, parent_id=low.shard_id, adjacent_parent_id=high.shard_id)
    graph.handle_listing([whole, low, high, again], {}, 100.0, 100.0)
    assert sorted(graph.ancestors(again.shard_id)) == sorted([whole.shard_id, low.shard_id, high.shard_id])
    assert sorted(graph.descendants(whole.shard_id)) == sorted([again.shard_id, low.shard_id, high.shard_id])
    assert graph.is_finished(again.shard_id, {})
