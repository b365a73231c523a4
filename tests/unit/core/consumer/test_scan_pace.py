"""How often a worker scans depends on the number of rows."""

from collections import Counter

import pytest

from shardline.core.consumer.scan_pace import ROWS_PER_INTERVAL, ScanPace
from shardline.core.leases import WHOLE
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END


@pytest.mark.parametrize(
    ("rows", "interval"),
    [(0, 0.5), (1, 0.5), (ROWS_PER_INTERVAL, 0.5), (2 * ROWS_PER_INTERVAL, 1.0), (1_000, 2.0), (10_000, 5.0)],
)
def test_a_large_group_is_scanned_less_often(rows, interval):
    assert ScanPace(0.5, longest=5.0).interval(rows) == interval


@pytest.mark.parametrize("rows", [0, 1_000, 100_000])
def test_an_interval_of_the_user_stays(rows):
    assert ScanPace(0.5, longest=0.0).interval(rows) == 0.5


def fleet(size, watchers=4):
    """Return the pace of each worker of a fleet whose members all see each other."""
    rows = [Lease(f"s{number}", owner=f"w{number}") for number in range(size)]
    paces = {row.owner: ScanPace(2.0, longest=5.0, watchers=watchers) for row in rows}
    for name, pace in paces.items():
        pace.handle_rows(rows, name)
    return paces


@pytest.mark.parametrize(("workers", "parts"), [(1, 1), (7, 1), (8, 2), (15, 2), (16, 4), (200, 32), (1_000, 128)])
def test_a_large_fleet_divides_the_rows(workers, parts):
    paces = fleet(workers)
    assert {pace.part.count for pace in paces.values()} == {parts}
    assert all(pace.is_partial == (parts > 1) for pace in paces.values())
    assert {pace.round_time(0) for pace in paces.values()} == {2.0 * parts}


@pytest.mark.parametrize("workers", [8, 13, 50, 200, 333])
def test_each_part_has_enough_watchers_who_know_each_other(workers):
    paces = fleet(workers)
    watchers = Counter(pace.part.number for pace in paces.values())
    assert min(watchers.values()) >= 4
    assert max(watchers.values()) < 9
    assert watchers.keys() == set(range(next(iter(paces.values())).part.count))
    for pace in paces.values():
        assert pace.co_watchers == {name for name, other in paces.items() if other.part == pace.part}


def test_a_member_more_moves_a_worker_by_one_part_at_most():
    before, after = fleet(200), fleet(201)
    moves = [abs(before[name].part.number - after[name].part.number) for name in before]
    assert max(moves) == 1
    assert sum(moves) < 30


def test_the_parts_do_not_follow_the_order_of_the_names():
    paces = fleet(200)
    assert len({paces[f"w{number}"].part for number in range(8)}) > 4


def test_a_worker_without_leases_also_has_a_part():
    pace = ScanPace(2.0, longest=5.0, watchers=1)
    pace.handle_rows([Lease("a", owner="x"), Lease("b"), Lease("c", owner="y", checkpoint=Checkpoint(SHARD_END))], "me")
    assert pace.part.count == 2  # an owner of a finished lease is no member
    assert pace.co_watchers == {"me"}


def test_a_store_without_parts_is_always_read_whole():
    pace = ScanPace(2.0, longest=5.0)
    pace.handle_rows([Lease(f"s{number}", owner=f"w{number}") for number in range(100)], "me")
    assert (pace.part, pace.next_part(), pace.is_partial) == (WHOLE, WHOLE, False)


def test_all_rows_are_read_once_in_as_many_scans_as_there_are_parts():
    turns = Counter()
    for pace in fleet(64).values():
        read = []
        for _ in range(32):
            read.append(pace.next_part())
            pace.handle_scanned(read[-1])
        assert {*read} == {pace.part, WHOLE}
        assert read[:16] == read[16:]
        assert read[:16].count(WHOLE) == 1
        turns[read.index(WHOLE)] += 1
    assert max(turns.values()) < 12  # the workers take turns, although they started together


def test_a_scan_of_all_rows_can_be_requested():
    pace = fleet(64)["w0"]
    while pace.next_part() != WHOLE:
        pace.handle_scanned(pace.part)
    pace.handle_scanned(WHOLE)
    assert pace.next_part() == pace.part
    pace.request_whole()
    pace.handle_scanned(pace.part)  # it was under way
    assert pace.next_part() == WHOLE
    pace.handle_scanned(WHOLE)
    assert pace.next_part() == pace.part
