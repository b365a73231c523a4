"""What of a shard waits, what is in hand, and what is the coordinator told?"""

import pytest
from tests.harness.hand_out import Desk

from shardline.core.consumer.reader import ReaderState
from shardline.core.consumer.run_bounds import ShardFacts


@pytest.fixture
def desk():
    return Desk()


def open_all(shard, limit=None, *, whole=False, room=10):
    return list(shard.open(limit, whole=whole, room=room).records)


def test_without_a_limit_the_rest_of_one_page_is_opened(desk):
    shard = desk.gain()
    first, second = desk.bring(3), desk.bring(2)
    assert open_all(shard) == first
    assert shard.close(2, desk.now) == []
    assert (shard.next_record, shard.records) == (first[2], 3)
    assert open_all(shard) == first[2:]
    (page,) = shard.close(1, desk.now)
    assert page.records == first
    assert open_all(shard) == second


def test_the_next_record_is_the_first_that_nobody_has_taken(desk):
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
    through = shard.close(expected, desk.now)
    assert shard.records == 6 - expected
    assert sum(len(page.records) for page in through) + shard.offset == expected


def test_the_oldest_page_counts_from_when_it_came(desk):
    shard = desk.gain()
    desk.bring(1)
    desk.now += 5
    desk.bring(1)
    assert shard.oldest_at == 100.0
    open_all(shard)
    shard.close(1, desk.now)
    assert shard.oldest_at == 105.0


def test_the_shard_ends_when_the_user_is_done_with_its_last_record(desk):
    shard = desk.gain()
    desk.bring(2, last=True, children=("c",))
    assert shard.has_last_page
    cursor = shard.open(None, whole=False, room=10)
    assert cursor.is_last
    shard.close(1, desk.now)
    assert (shard.has_ended, desk.groups["s"].ended) == (False, [])
    shard.open(None, whole=False, room=10)
    shard.close(1, desk.now)
    assert (shard.has_ended, desk.groups["s"].ended) == (True, [("a", ("c",))])
    assert (shard.next_record, shard.has_last_page) == (None, False)


def test_the_shard_ends_with_a_page_that_came_later_and_is_empty(desk):
    shard = desk.gain()
    desk.bring(2)
    assert not shard.open(None, whole=False, room=10).is_last
    desk.bring(0, last=True)
    assert len(shard.close(2, desk.now)) == 2
    assert desk.groups["s"].ended == [("a", ())]


@pytest.mark.parametrize(("done", "ended"), [(2, True), (1, False)])
def test_a_shard_that_stops_ends_if_all_of_it_is_done(desk, done, ended):
    shard = desk.gain()
    desk.bring(2, last=True)
    shard.open(None, whole=False, room=10)
    shard.is_stopping = True
    shard.drop_pages()
    assert shard.close(done, desk.now) == []
    assert shard.has_ended is ended


def test_the_end_of_a_shard_that_is_not_ours_any_more_is_nobodys_business(desk):
    shard = desk.gain()
    desk.bring(1, last=True)
    shard.open(None, whole=False, room=10)
    desk.groups["s"].held.lose("a", "test")
    shard.close(1, desk.now)
    assert (shard.holding, desk.groups["s"].ended) == (None, [])


def test_of_a_lease_that_is_gone_nothing_is_left(desk):
    shard = desk.gain()
    desk.bring(1, last=True)
    shard.open(None, whole=False, room=10)
    shard.is_over = True
    assert shard.close(1, desk.now) == []
    assert (shard.cursor, shard.has_ended) == (None, False)


def test_done_records_are_acknowledged_once_and_only_under_a_grant_in_force(desk):
    shard = desk.gain()
    records = desk.bring(3)
    shard.open(None, whole=False, room=10)
    assert shard.report(0, desk.now) is False
    assert shard.report(1, desk.now) is True, "the coordinator has something new to write"
    assert desk.watermark() == int(records[0].sequence_number)
    assert shard.report(1, desk.now) is False
    assert shard.report(2, desk.now) is False, "a commit is arranged"
    shard.report(3, shard.grant.held_until)
    assert desk.watermark() == int(records[1].sequence_number), "L4: the grant was not in force any more"


def test_with_manual_acknowledgements_taken_records_are_delivered():
    desk = Desk(ack="manual", max_unacknowledged=3)
    shard = desk.gain()
    records = desk.bring(5)
    cursor = shard.open(None, whole=False, room=3)
    assert len(cursor.records) == 3, "no more may be unacknowledged"
    tracker = shard.holding.tracker
    assert tracker.unacknowledged == 0
    cursor.take(desk.now)
    cursor.take(desk.now)
    assert shard.report(1, desk.now) is False
    assert (tracker.unacknowledged, cursor.reported) == (2, 2)
    shard.report(1, desk.now)
    assert tracker.unacknowledged == 2
    shard.acknowledge(records[1], desk.now, through=False)
    assert tracker.unacknowledged == 1
    cursor.take(desk.now)
    shard.report(2, desk.now)
    assert shard.is_full
    shard.close(3, desk.now)
    assert len(shard.open(5, whole=True, room=3).records) == 2, "a batch may exceed it"
    desk.lose()
    assert not shard.is_full


def test_what_was_taken_after_the_lease_was_lost_is_delivered_to_nobody():
    desk = Desk(ack="manual")
    shard = desk.gain()
    records = desk.bring(2)
    cursor = shard.open(1, whole=False, room=3)
    cursor.take(desk.now)
    desk.groups["s"].held.lose("a", "test")
    shard.report(1, desk.now)
    assert cursor.reported == 1
    assert shard.acknowledge(records[0], desk.now, through=True) is False
    shard.close(1, desk.now)
    assert len(shard.open(None, whole=False, room=3).records) == 1


def test_a_lease_is_let_go_when_it_is_asked_for_and_the_user_has_nothing(desk):
    shard = desk.gain()
    desk.bring(2)
    assert not shard.leave_if_done(), "nobody asked for it"
    shard.open(None, whole=False, room=10)
    shard.is_stopping = True
    assert not shard.leave_if_done(), "the user has records"
    shard.close(0, desk.now)
    assert shard.leave_if_done()
    assert desk.phase() == "LEAVING"
    desk.groups["s"].held.lose("a", "test")
    assert not shard.leave_if_done(), "it is not ours any more"


def test_with_manual_acknowledgements_a_lease_is_kept_until_all_is_acknowledged():
    desk = Desk(ack="manual")
    shard = desk.gain()
    (record,) = desk.bring(1)
    shard.open(None, whole=False, room=10).take(desk.now)
    shard.report(0, desk.now)
    shard.is_stopping = True
    shard.close(1, desk.now)
    assert not shard.leave_if_done()
    shard.acknowledge(record, desk.now, through=False)
    assert shard.leave_if_done()


def test_a_shard_that_the_service_does_not_know_is_looked_after_once_it_is_through(desk):
    shard = desk.gain()
    desk.bring(1)
    assert not shard.look_after(desk.now)
    shard.reader.state = ReaderState.GONE
    assert not shard.look_after(desk.now), "there is a page"
    shard.open(None, whole=False, room=10)
    shard.close(1, desk.now)
    assert shard.look_after(desk.now)
    assert desk.groups["s"].unseen == ["a"]
    desk.groups["s"].held.lose("a", "test")
    assert not shard.look_after(desk.now)


def facts(*true):
    return ShardFacts(**{name: name in true for name in ShardFacts._fields})


def test_the_facts_for_the_bounds_of_a_run(desk):
    shard = desk.gain()
    assert shard.facts == facts("has_iterator")
    shard.reader.has_unopened = shard.reader.has_caught_up = True
    shard.reader.state = ReaderState.STARTING
    assert shard.facts == facts("has_records", "has_caught_up")
    shard.is_stopping = shard.has_ended = True
    shard.reader.has_unopened = False
    assert shard.facts == facts("has_iterator", "has_caught_up", "has_ended")
    shard.is_stopping = False
    desk.bring(1)
    assert shard.facts.has_records
    shard.open(None, whole=False, room=10)
    shard.drop_pages()
    assert shard.facts.has_records


def test_with_manual_acknowledgements_too_a_cursor_without_a_limit_shows_one_page():
    desk = Desk(ack="manual", max_unacknowledged=10)
    shard = desk.gain()
    first = desk.bring(2)
    desk.bring(2)
    assert list(shard.open(None, whole=False, room=10).records) == first
