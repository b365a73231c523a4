"""Tests of ``shardline.core.consumer.hash_coverage``. The stream is drawn in ``conftest``."""

from dataclasses import replace

import pytest

from shardline.core.consumer.consumer_events import HashRangesCovered, HashRangesUncovered
from shardline.core.consumer.hash_coverage import CoverageAudit, find_holes, find_uncovered, percentage_of
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.model.hashing import HASH_KEY_COUNT, HASH_KEY_MAX, HashRange

ALL = HashRange(0, HASH_KEY_MAX)


@pytest.fixture
def graph(stream):
    """The stream, whose last shards reach up to the last hash key: a sixth of all hash keys is no whole number."""
    shards = [_up_to_the_end(shard) for shard in stream.all]
    found = ShardGraph()
    found.handle_listing(shards, {}, 0.0, 0.0)
    return found


def _up_to_the_end(shard):
    is_last = shard.hash_range.end > HASH_KEY_MAX - 6
    return replace(shard, hash_range=HashRange(shard.hash_range.start, HASH_KEY_MAX)) if is_last else shard


@pytest.mark.parametrize(
    ("ranges", "holes"),
    [
        ([], [ALL]),
        ([ALL], []),
        ([HashRange(0, 9), HashRange(10, HASH_KEY_MAX)], []),
        ([HashRange(10, HASH_KEY_MAX), HashRange(0, 9)], []),
        ([HashRange(0, 9), HashRange(11, HASH_KEY_MAX)], [HashRange(10, 10)]),
        ([HashRange(1, HASH_KEY_MAX)], [HashRange(0, 0)]),
        ([HashRange(0, HASH_KEY_MAX - 1)], [HashRange(HASH_KEY_MAX, HASH_KEY_MAX)]),
        ([HashRange(0, 99), HashRange(10, 20), HashRange(50, HASH_KEY_MAX)], []),
        ([HashRange(5, 6), HashRange(20, 30)], [HashRange(0, 4), HashRange(7, 19), HashRange(31, HASH_KEY_MAX)]),
    ],
)
def test_holes_are_what_no_range_covers(ranges, holes):
    assert find_holes(ranges) == tuple(holes)


def test_a_share_is_written_for_people():
    assert percentage_of([HashRange(0, HASH_KEY_COUNT // 8 - 1)]) == "12.5 %"
    assert percentage_of([HashRange(0, 7)]) == "less than 0.001 %"


def test_finished_rows_cover_nothing(graph, stream):
    assert find_uncovered(stream.rows(4, 8, 9, 10), graph) == ()
    assert find_uncovered(stream.rows(4, 6, 7, 5, finished=[0, 1, 2, 3]), graph) == ()
    assert find_uncovered(stream.rows(4, 9, 10, finished=[8]), graph) == (stream.shard(8).hash_range,)


def test_an_unknown_range_gives_no_result(stream):
    rows = stream.rows(4, 8)
    assert find_uncovered(rows, ShardGraph()) is None
    assert find_uncovered({}, ShardGraph()) is None
    first = next(iter(rows))
    assert find_uncovered({first: replace(rows[first], hash_range=ALL)}, ShardGraph()) == ()


def test_a_hole_is_reported_once_after_two_audits_and_once_when_it_is_gone(graph, stream):
    audit, holed, whole = CoverageAudit(60.0), stream.rows(4, 8, 9), stream.rows(4, 8, 9, 10)
    audit.handle_rows(holed, graph, 100.0)
    audit.handle_rows(holed, graph, 159.0)  # not due yet
    assert audit.take_events() == []
    audit.handle_rows(holed, graph, 160.0)
    assert audit.take_events() == [HashRangesUncovered((graph.hash_range(stream.name(10)),))]
    audit.handle_rows(holed, graph, 220.0)
    assert audit.take_events() == []
    audit.handle_rows(whole, graph, 280.0)
    assert audit.take_events() == [HashRangesCovered(180.0)]
    audit.handle_rows(whole, graph, 340.0)
    assert audit.take_events() == []


def test_a_hole_that_is_gone_at_the_next_audit_is_not_reported(graph, stream):
    audit = CoverageAudit(60.0)
    for now, rows in [(0.0, (4, 8, 9)), (60.0, (4, 8, 9, 10)), (120.0, (4, 8, 9)), (180.0, (4, 8, 9, 10))]:
        audit.handle_rows(stream.rows(*rows), graph, now)
    assert audit.take_events() == []


def test_rows_with_unknown_ranges_change_nothing(graph, stream):
    audit, holed = CoverageAudit(60.0), stream.rows(4, 8, 9)
    audit.handle_rows(holed, graph, 0.0)
    audit.handle_rows(stream.rows(4, 8), ShardGraph(), 60.0)
    assert audit.take_events() == []
    audit.handle_rows(holed, graph, 120.0)
    assert len(audit.take_events()) == 1
