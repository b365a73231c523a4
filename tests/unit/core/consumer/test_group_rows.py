"""Tests of ``shardline.core.consumer.group_rows``. The stream is drawn in ``conftest``.

The tables have the scenarios of the KCL's shard syncer: start positions with all rows, some rows or no rows.
"""

import math
from dataclasses import replace

import pytest

from shardline.core.consumer.group_rows import (
    GroupStart,
    child_rows,
    deletable_rows,
    foreign_rows,
    missing_rows,
    unrowed_children,
)
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.model.lease import Checkpoint
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_sequence_number, at_timestamp
from shardline.model.sequence import SequenceNumber

TIME = at_timestamp(1000.0)
MIDDLE = (6, 7, 4, 5)  # the shards that were open at that time


@pytest.fixture
def graph(stream):
    graph = ShardGraph()
    graph.handle_listing(stream.all, {}, 100.0, 100.0)
    return graph


def start_at(position, stream):
    return GroupStart(position, 50.0, frozenset(stream.names(*MIDDLE) if position == TIME else ()))


def created(graph, rows, position, stream):
    return {int(row.shard_id[-3:]): row for row in missing_rows(graph, rows, start_at(position, stream))}


# shards with a row | finished | new at LATEST | new at TRIM_HORIZON | new at a time
MATRIX = [
    ((), (), {4, 8, 9, 10}, {0, 1, 2, 3, 4, 5}, {4, 5, 6, 7}),
    (tuple(range(11)), (), set(), set(), set()),
    ((4, 8, 9, 10), (), set(), set(), set()),
    ((0, 1, 2, 3, 4, 5), (), set(), set(), set()),
    ((3, 4, 5), (), {2, 6}, {0, 1, 2}, {2, 6}),
    ((4, 5, 7), (), {6}, {0, 1}, {6}),
    ((4, 5, 6), (), {7}, {2, 3}, {7}),
    ((4, 5), (), {8}, {0, 1, 2, 3}, {6, 7}),
    ((5,), (), {4, 8}, {0, 1, 2, 3, 4}, {4, 6, 7}),
    ((8,), (), {4, 9, 10}, {4, 5}, {4, 5}),
    ((9,), (), {4, 8, 10}, {0, 1, 2, 3, 4, 10}, {4, 6, 7, 10}),  # the sibling's row makes 5 count as finished
    ((4, 6, 7, 9, 10), (), set(), set(), set()),
    ((4, 8), (5,), {9, 10}, {9, 10}, {9, 10}),
    ((4, 9, 10), (6, 7), {8}, {8}, {8}),
    ((4, 9, 10, 7), (6,), set(), set(), set()),
]


@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_rows_that_are_missing(graph, stream, case):
    unfinished, finished, latest, horizon, time = case
    rows = stream.rows(*unfinished, finished=finished)
    assert set(created(graph, rows, LATEST, stream)) == latest
    assert set(created(graph, rows, TRIM_HORIZON, stream)) == horizon
    assert set(created(graph, rows, TIME, stream)) == time
    if rows:  # a group at LATEST that began at that time
        begun = GroupStart(LATEST, 50.0, frozenset(stream.names(*MIDDLE)), 40.0)
        new = {int(row.shard_id[-3:]): row.latest_at for row in missing_rows(graph, rows, begun)}
        heirs = {
            number for number, row in created(graph, rows, TIME, stream).items() if row.checkpoint.position != TIME
        }
        assert new == {number: None if number in heirs else 40.0 for number in time}


@pytest.mark.parametrize(("rows", "new"), [((4,), {9, 10}), ((), set())])
def test_a_line_of_shards_that_came_and_went_unseen_is_read_from_the_start_time(stream, rows, new):
    """The parent of 9 and 10 is gone, and no row names it: it was created after the request for the shards that were
    open at that time.
    """
    graph = ShardGraph()
    graph.handle_listing([stream.shard(number) for number in (4, 9, 10)], {}, 100.0, 100.0)
    start = GroupStart(TIME, 50.0, frozenset(stream.names(4)))
    found = {int(row.shard_id[-3:]): row for row in missing_rows(graph, stream.rows(*rows), start)}
    assert found.keys() - {4} == new
    assert all(row.checkpoint.position == TIME for row in found.values())


@pytest.mark.parametrize(("begun_at", "position"), [(math.inf, TRIM_HORIZON), (40.0, LATEST)])
def test_a_line_that_came_and_went_unseen_is_read_from_its_beginning_or_from_that_of_the_group(
    stream, begun_at, position
):
    graph = ShardGraph()
    graph.handle_listing([stream.shard(number) for number in (4, 9, 10)], {}, 100.0, 100.0)
    new = missing_rows(graph, stream.rows(4), GroupStart(LATEST, 50.0, frozenset(), begun_at))
    assert [row.shard_id for row in new] == [stream.name(9), stream.name(10)]
    assert {row.checkpoint.position for row in new} == {position}
    assert {row.latest_at for row in new} == {40.0 if position == LATEST else None}


def test_a_new_row_has_the_start_the_parents_and_the_hash_range(graph, stream):
    new = created(graph, {}, LATEST, stream)
    assert {row.checkpoint.position for row in new.values()} == {LATEST}
    assert {row.latest_at for row in new.values()} == {50.0}
    assert new[8].parent_ids == stream.names(6, 7)
    assert new[8].hash_range == stream.span(8)
    assert (new[8].counter, new[8].owner) == (0, None)
    assert {row.checkpoint.position for row in created(graph, {}, TIME, stream).values()} == {TIME}


def test_the_other_side_of_a_merge_starts_where_the_group_does(graph, stream):
    new = created(graph, stream.rows(3, 4, 5), LATEST, stream)
    assert {row.checkpoint.position for row in new.values()} == {LATEST}


def test_the_oldest_are_created_first(graph, stream):
    rows = stream.rows(3, 4)
    assert [int(row.shard_id[-3:]) for row in missing_rows(graph, rows, start_at(LATEST, stream))] == [2, 6, 9, 10]


def test_a_crash_in_the_middle_of_creating_leaves_what_can_be_completed(graph, stream):
    for position in (LATEST, TRIM_HORIZON, TIME):
        new = missing_rows(graph, {}, start_at(position, stream))
        for count in range(len(new)):
            rows = {row.shard_id: row for row in new[:count]}
            rest = missing_rows(graph, rows, start_at(position, stream))
            assert {row.shard_id for row in new[count:]} == {row.shard_id for row in rest}, (position, count)


def test_announced_shards_count_as_open_and_come_last(stream):
    graph = ShardGraph()
    graph.handle_listing([stream.shard(4), stream.shard(5)], {}, 100.0, 100.0)
    graph.handle_children([stream.child(9)])
    assert [row.shard_id for row in missing_rows(graph, {}, start_at(LATEST, stream))] == [
        stream.name(4),
        stream.name(9),
    ]


def test_an_announced_shard_of_unknown_parents_waits(stream):
    graph = ShardGraph()
    graph.handle_listing([stream.shard(number) for number in (4, 5, 6)], {}, 100.0, 100.0)
    graph.handle_children([stream.child(8)])
    rows = stream.rows(4, 5, finished=[6])
    assert missing_rows(graph, rows, start_at(LATEST, stream)) == []
    assert child_rows(graph, stream.name(6), rows) == []
    assert unrowed_children(graph, stream.name(6), rows) == stream.names(8)


# ---- at the end of a shard


@pytest.mark.parametrize(
    "case",
    [
        (5, (5,), (), {9, 10}),
        (5, (5, 9), (), {10}),
        (5, (5, 9, 10), (), set()),
        (6, (6, 7), (), {8}),  # the other parent has a row: the child waits until it is read, and no row is created
        (6, (6,), (7,), {8}),
        (6, (6,), (), set()),  # the other parent is new: its row comes first
        (6, (6, 2), (), set()),
        (0, (0, 1), (), {6}),
        (0, (0, 1, 8), (), {6}),  # 8 has not begun, so 6 was never read
        (0, (0, 1), (8,), set()),  # so old that the child's row is gone
        (8, (8,), (), set()),
    ],
)
def test_l3_children_get_rows_before_the_end_of_their_parent(graph, stream, case):
    ended, unfinished, finished, expected = case
    rows = stream.rows(*unfinished, finished=finished)
    new = child_rows(graph, stream.name(ended), rows)
    assert {int(row.shard_id[-3:]) for row in new} == expected
    assert {row.checkpoint.position for row in new} <= {TRIM_HORIZON}


def test_l3_the_other_side_may_be_trimmed(stream):
    graph = ShardGraph()
    graph.handle_listing([stream.shard(number) for number in (6, 8)], {}, 100.0, 100.0)
    assert [row.shard_id for row in child_rows(graph, stream.name(6), stream.rows(6))] == [stream.name(8)]


# ---- rows that can be deleted


@pytest.mark.parametrize(
    ("rows", "deletable"),
    [
        ({"finished": [5], "at": {9: 250, 10: 260}}, {5}),
        ({"finished": [5], "at": {9: 250, 10: TRIM_HORIZON}}, set()),  # a child that has not begun
        ({"finished": [5], "at": {9: 250}}, set()),  # a child without a row
        ({"finished": [5, 9], "at": {10: 260}}, {5}),
        ({"finished": [0, 1, 6], "at": {8: 250}}, {0, 1}),  # parents first
        ({"finished": [6], "at": {8: 250}}, {6}),
        ({"finished": [6], "at": {8: LATEST}}, set()),
        ({"finished": [6], "at": {}}, set()),
        ({"finished": [0], "at": {8: 250}}, {0}),  # the child's row is gone, but its descendant has one
        ({"finished": [10], "at": {}}, set()),  # its children are not known yet
        ({"finished": [], "at": {5: 50, 9: 250, 10: 260}}, set()),
    ],
)
def test_finished_rows_go_when_their_children_have_begun(graph, stream, rows, deletable):
    found = {stream.name(number): stream.row(number, SHARD_END) for number in rows["finished"]}
    found |= {stream.name(number): stream.row(number, at) for number, at in rows["at"].items()}
    assert {int(row.shard_id[-3:]) for row in deletable_rows(graph, found)} == deletable


def test_the_children_that_the_row_names_count_too(stream):
    graph = ShardGraph()
    graph.handle_listing([stream.shard(5), stream.shard(9)], {}, 100.0, 100.0)
    finished = replace(stream.row(5, SHARD_END), child_ids=frozenset(stream.names(9)))
    rows = {finished.shard_id: finished, stream.name(9): stream.row(9)}
    assert deletable_rows(graph, rows) == []


def test_what_is_gone_from_the_stream_and_has_no_children_goes(stream):
    graph = ShardGraph()
    rows = stream.rows(finished=[5])
    graph.handle_listing([stream.shard(4)], rows, 100.0, 100.0)
    assert deletable_rows(graph, rows) == [*rows.values()]


def test_a_trimmed_row_goes_when_its_children_have_begun(stream):
    graph = ShardGraph()
    rows = {**stream.rows(5), stream.name(9): stream.row(9, 250)}
    for now in (100.0, 101.0):
        graph.handle_listing([stream.shard(9), stream.shard(4)], rows, now, now)
    assert [row.shard_id for row in deletable_rows(graph, rows)] == [stream.name(5)]


# ---- another stream of the same name


@pytest.mark.parametrize(
    ("number", "at", "words"),
    [
        (8, 150, "it is at 150, but the shard begins at 200"),
        (5, 101, "it is at 101, but the shard ends at 100"),
        (8, SHARD_END, "it is at SHARD_END, but the shard is open"),
    ],
)
def test_a_row_of_another_stream_is_recognised(graph, stream, number, at, words):
    rows = {stream.name(number): stream.row(number, at), stream.name(4): stream.row(4, 5)}
    ((row, why),) = foreign_rows(graph, rows)
    assert row.shard_id == stream.name(number)
    assert why == f"the checkpoint of {stream.name(number)} does not belong to this stream: {words}"


def test_another_hash_range_is_another_stream(graph, stream):
    row = replace(stream.row(8), hash_range=stream.span(4))
    ((_, why),) = foreign_rows(graph, {row.shard_id: row})
    assert why.endswith("its hash range differs from the shard's")


def test_another_parent_is_another_stream(graph, stream):
    row = replace(stream.row(8), parent_ids=frozenset(stream.names(4)))
    ((_, why),) = foreign_rows(graph, {row.shard_id: row})
    assert why.endswith("its parents differ from the shard's")
    gone = replace(row, parent_ids=frozenset({"gone"}))  # a service may leave out parents that it does not list
    assert foreign_rows(graph, {row.shard_id: gone}) == []


def test_rows_of_this_stream_are_not(graph, stream):
    rows = stream.rows(0, 1, 4, finished=[5]) | {stream.name(8): stream.row(8, 200), "gone": stream.row(3, 7)}
    rows[stream.name(4)] = replace(rows[stream.name(4)], hash_range=stream.span(4))
    assert foreign_rows(graph, rows) == []
    edge = replace(stream.row(5), checkpoint=Checkpoint(at_sequence_number(SequenceNumber(100, 5))))
    assert foreign_rows(graph, {edge.shard_id: edge}) == []


def test_an_end_before_the_beginning_says_nothing(stream):
    """kinesis-local gives every closed shard the end 2^63 - 1, which is less than all of its sequence numbers."""
    graph = ShardGraph()
    closed = replace(stream.shard(6), ending_sequence_number=SequenceNumber(7))
    graph.handle_listing([closed], {}, 100.0, 100.0)
    row = stream.row(6, 150)
    assert foreign_rows(graph, {row.shard_id: row}) == []
