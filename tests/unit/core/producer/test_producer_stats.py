"""Tests of ``shardline.core.producer.producer_stats``."""

from dataclasses import FrozenInstanceError, asdict, replace

import pytest

from shardline.core.producer.producer_stats import ProducerStats, sum_of_stats
from shardline.core.producer_events import LaneStats

LANE = LaneStats(
    shard_id="shardId-000000000000", queued_entries=2, queued_bytes=700, in_flight=1, rate_share=0.7, tripped=False
)
STATS = ProducerStats(
    outstanding=10,
    buffered_bytes=1_000,
    delivered_records=90,
    delivered_bytes=9_000,
    failed_records=1,
    retried_records=5,
    requests=4,
    requests_in_flight=1,
    entries=9,
    map_state="ready",
    map_requests=1,
    oldest_waiting=0.25,
    lanes=(LANE,),
    retries_by_code={"InternalFailure": 5},
)


def test_stats_are_a_moment_that_does_not_change():
    with pytest.raises(FrozenInstanceError):
        STATS.outstanding = 0
    with pytest.raises(FrozenInstanceError):
        LANE.in_flight = 0


def test_stats_are_plain_numbers_that_can_be_sent_anywhere():
    flat = asdict(STATS)
    lanes = flat.pop("lanes")
    assert flat.pop("retries_by_code") == {"InternalFailure": 5}
    assert flat.pop("failures_by_code") == {}
    assert all(type(value) in {int, float, str} for value in flat.values())
    assert lanes == (
        {
            "shard_id": "shardId-000000000000",
            "queued_entries": 2,
            "queued_bytes": 700,
            "in_flight": 1,
            "rate_share": 0.7,
            "tripped": False,
        },
    )


def test_two_moments_that_are_alike_are_equal():
    assert ProducerStats(**{**asdict(STATS), "lanes": (LANE,)}) == STATS
    assert not hasattr(STATS, "__dict__")


def test_the_statistics_of_several_streams_add_up():
    other = replace(
        STATS, outstanding=2, oldest_waiting=0.5, map_state="loading", retries_by_code={"InternalFailure": 1, "X": 2}
    )
    both = sum_of_stats([STATS, other])
    assert (both.outstanding, both.delivered_records, both.oldest_waiting) == (12, 180, 0.5)
    assert (both.map_state, both.lanes) == ("ready", (LANE, LANE))
    assert both.retries_by_code == {"InternalFailure": 6, "X": 2}
    assert sum_of_stats([STATS]) is STATS
