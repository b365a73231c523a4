"""Tests of ``shardline.core.consumer.trim_watch``."""

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import RecordsTrimmed
from shardline.core.consumer.trim_watch import TrimWatch

HOUR = 3600.0
LOST = RecordsTrimmed("a", "unread records were up to 108000 s old, and records older than 86400 s are gone")


def watch(hours=24):
    trims = TrimWatch()
    trims.handle_requested(0.0)
    trims.handle_summary(hours, 0.0)
    return trims


def summarize(trims, hours, now):
    trims.handle_requested(now)
    trims.handle_summary(hours, now)
    return trims.take_events()


def test_before_the_first_summary_every_gap_is_urgent():
    trims = TrimWatch()
    trims.handle_page("a", 23 * HOUR, 30 * HOUR, 100.0)
    assert trims.summary_by == 100.0


def test_a_summary_that_was_requested_before_the_gap_does_not_judge_it():
    trims = watch(24)
    trims.handle_requested(99.0)
    trims.handle_page("a", 23 * HOUR, 30 * HOUR, 100.0)
    trims.handle_summary(24, 99.0)
    assert trims.take_events() == []
    assert trims.summary_by == 104.0
    assert summarize(trims, 24, 104.0) == [LOST]


def test_what_a_retention_had_removed_stays_removed_when_it_is_raised():
    trims = watch(24)
    trims.handle_page("a", 23 * HOUR, 30 * HOUR, 5 * HOUR)  # records that were older than 24 hours 5 hours ago are gone
    trims.handle_page("b", 28 * HOUR, 30 * HOUR, 5 * HOUR)
    trims.handle_page("c", 29.5 * HOUR, 30 * HOUR, 5 * HOUR)  # its first record is older than that, and exists
    trims.handle_page("d", 20 * HOUR, 28 * HOUR, 5 * HOUR)  # raised in time
    assert summarize(trims, 168, 5 * HOUR) == [
        RecordsTrimmed(shard_id, "unread records were up to 108000 s old, and records older than 104400 s are gone")
        for shard_id in "ab"
    ]
    trims.handle_page("a", 20 * HOUR, 29 * HOUR, 6 * HOUR)
    assert summarize(trims, 168, 6 * HOUR) == []


def test_without_a_summary_the_known_retention_decides_at_once():
    trims = watch(24)
    trims.handle_page("a", 23 * HOUR, 30 * HOUR, 100.0)
    trims.handle_no_summary()
    assert trims.take_events() == [LOST]
    assert trims.summary_by == NEVER
    trims.handle_page("a", 23 * HOUR, 30 * HOUR, 101.0)
    assert trims.take_events() == [LOST]
    assert trims.summary_by == NEVER


def test_where_no_retention_was_ever_known_nothing_can_be_said():
    trims = TrimWatch()
    trims.handle_page("a", 23 * HOUR, 30 * HOUR, 100.0)
    trims.handle_no_summary()
    assert trims.take_events() == []


def test_of_too_many_gaps_the_oldest_is_judged_by_what_is_known():
    trims = watch(24)
    for number in range(1_001):
        assert trims.take_events() == []
        trims.handle_page("a", 23 * HOUR, 30 * HOUR, 100.0 + number)
    assert trims.take_events() == [LOST]
    assert len(summarize(trims, 24, 9_999.0)) == 1_000


def test_both_edges_of_a_gap():
    trims = watch(24)
    trims.handle_page("a", 24 * HOUR, 30 * HOUR, 100.0)
    assert len(summarize(trims, 24, 200.0)) == 1  # the next record may be the oldest that is left
    trims.handle_page("a", 24 * HOUR + 1, 30 * HOUR, 300.0)
    assert summarize(trims, 24, 300.0) == []  # the record is older than the retention: nothing before it was removed
    trims = watch(30)
    trims.handle_page("a", 20 * HOUR, 30 * HOUR, 400.0)
    assert summarize(trims, 30, 400.0) == []


def test_a_reader_that_is_less_behind_than_any_retention_costs_nothing():
    trims = watch(24)
    trims.handle_page("a", 0.0, 24 * HOUR, 100.0)
    trims.handle_page("a", 30 * HOUR, 30 * HOUR, 100.0)
    assert trims.summary_by == NEVER


def test_summaries_keep_their_distance():
    trims = watch(24)
    trims.handle_page("a", 23 * HOUR, 30 * HOUR, 100.0)
    trims.handle_requested(100.0)
    trims.handle_page("a", 23 * HOUR, 30 * HOUR, 101.0)
    assert trims.summary_by == 105.0
