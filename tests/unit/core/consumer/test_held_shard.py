"""Which records of a shard wait, which are in hand, and which does the coordinator count as done?"""

import pytest
from tests.harness.hand_out import Desk

from shardline.core.consumer.key_lanes import KeyLanes


@pytest.fixture
def desk():
    return Desk()


def open_all(shard, limit=None, *, whole=False, room=10):
    return list(shard.open(limit, whole=whole, room=room).records)


def test_the_next_record_is_the_first_that_was_not_taken(desk):
    shard = desk.gain()
    first, second = desk.bring(2), desk.bring(1)
    cursor = shard.open(None, whole=False, room=10)
    cursor.take(desk.now)
    assert shard.next_record == first[1]
    cursor.take(desk.now)
    assert shard.next_record == second[0]


@pytest.mark.parametrize(("limit", "expected"), [(2, 2), (3, 3), (4, 4), (9, 6)])
def test_a_limit_reaches_over_pages(desk, limit, expected):
    shard = desk.gain()
    records = desk.bring(3) + desk.bring(1) + desk.bring(2)
    assert open_all(shard, limit) == records[:expected]
    through = shard.close(expected)
    assert shard.records == 6 - expected
    assert sum(len(page.records) for page in through) + shard.offset == expected


def test_the_shard_ends_when_the_user_is_done_with_its_last_record(desk):
    shard = desk.gain()
    desk.bring(2, last=True, children=("c",))
    assert shard.has_last_page
    cursor = shard.open(None, whole=False, room=10)
    assert cursor.is_last
    shard.close(1)
    assert (shard.has_ended, desk.groups["s"].ended) == (False, [])
    shard.open(None, whole=False, room=10)
    shard.close(1)
    assert (shard.has_ended, desk.groups["s"].ended) == (True, [])
    shard.report_end(desk.now)
    assert (shard.has_ended, desk.groups["s"].ended) == (True, [("a", ("c",))])
    assert (shard.next_record, shard.has_last_page) == (None, False)


def test_the_shard_ends_with_a_page_that_came_later_and_is_empty(desk):
    shard = desk.gain()
    desk.bring(2)
    assert not shard.open(None, whole=False, room=10).is_last
    desk.bring(0, last=True)
    assert len(shard.close(2)) == 2
    assert shard.has_ended


def test_the_end_of_a_shard_that_is_not_ours_any_more_is_ignored(desk):
    shard = desk.gain()
    desk.bring(1, last=True)
    shard.open(None, whole=False, room=10)
    desk.groups["s"].held.lose("a", "test")
    shard.close(1)
    assert (shard.holding, desk.groups["s"].ended) == (None, [])


def test_the_end_of_a_lost_lease_is_not_reported(desk):
    shard = desk.gain()
    desk.bring(1, last=True)
    shard.open(None, whole=False, room=10)
    desk.groups["s"].held.lose("a", "test")
    shard.close(1)
    shard.report_end(desk.now)
    assert (shard.has_ended, desk.groups["s"].ended) == (True, [])


def test_an_empty_page_in_the_middle_of_a_shard_changes_nothing(desk):
    shard = desk.gain()
    records = desk.bring(1)
    desk.bring(0)
    assert (shard.records, shard.has_ended) == (1, False)
    assert open_all(shard) == records


def test_the_grant_shows_that_records_are_handled_in_order(desk):
    shard = desk.gain()
    desk.bring(1)
    assert not shard.grant.is_in_order
    shard.open(None, whole=False, room=10)
    assert shard.grant.is_in_order
    assert shard.grant.done_through is None


class Indexed(list):
    """Records that may be looked up, and not walked over: a page may have 10,000 records."""

    def __iter__(self):
        raise AssertionError("the cost of a record must not depend on the size of its page")


def test_the_watermark_moves_in_constant_time_over_the_records_of_a_page(desk):
    shard = desk.gain()
    desk.bring(3)
    desk.bring(3)
    shard.use_lanes(KeyLanes(), by_key=False)
    cursors = [shard.open_lanes(1, whole=False, room=10) for _ in range(6)]
    for place, queued in enumerate(shard.pages):
        page = queued.page._replace(records=Indexed(queued.page.records))
        shard.pages[place] = queued._replace(page=page)
    numbers = []
    for place in (1, 0, 2, 4, 5, 3):
        shard.close_placed(cursors[place], 1)
        shard.acknowledge_passed(desk.now)
        through = shard.grant.done_through
        numbers.append(None if through is None else through.number)
    assert numbers == [None, 2, 3, 3, 3, 6]
    assert not shard.pages
