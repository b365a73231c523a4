"""How far behind is handling, and how does a worker count the failures of its handlers?"""

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import (
    DeadLetterFailed,
    HandlerRetried,
    HandlingStopped,
    RecordsDeadLettered,
)
from shardline.core.consumer.handling_lag import HandlingCounts, HandlingState, handling_lag, service_now

ABOUT = ("shard", "7", 0, 3, 2, "ValueError", "why", "")


def test_calls_that_are_repeated_and_records_that_failed_for_good_are_counted():
    counts = HandlingCounts()
    counts.handle_events([HandlerRetried(*ABOUT, 1.0), HandlerRetried(*ABOUT, 2.0)])
    assert (counts.retries, counts.dead_letters, counts.failed_records) == (2, 0, 0)
    counts.handle_events([DeadLetterFailed(*ABOUT, 3.0), RecordsDeadLettered(*ABOUT)])
    assert (counts.retries, counts.dead_letters, counts.failed_records) == (2, 3, 0)
    counts.handle_events([DeadLetterFailed(*ABOUT, NEVER), HandlingStopped(*ABOUT)])
    assert (counts.retries, counts.dead_letters, counts.failed_records) == (2, 3, 6)


@pytest.mark.parametrize(
    ("arrivals", "unread_age", "reading_lag", "lag"),
    [
        ([40.0, 60.0], 0.0, 0.0, 60.0),  # in hand and prefetched: the oldest counts
        ([60.0, 40.0], 0.0, 0.0, 60.0),
        ([None, 70.0], 0.0, 0.0, 30.0),
        ([100.5], 0.0, 0.0, 0.0),  # our clock is a little behind
        ([], 0.0, 0.0, 0.0),
        ([], 7.0, 5.0, 7.0),  # nothing was read although there are records
        ([], None, None, None),
        ([None], 0.0, 5.0, 5.0),  # the service reports no arrival times
        ([None], 0.0, None, None),
    ],
)
def test_handling_is_as_late_as_its_oldest_record(arrivals, unread_age, reading_lag, lag):
    assert handling_lag(iter(arrivals), unread_age, reading_lag, 100.0) == lag


@pytest.mark.parametrize(
    ("wall_time", "now"),
    [
        (1000.0, 1000.0),
        (1000.9, 1000.9),  # the Date header has whole seconds
        (1001.4, 1001.4),
        (1001.5, 1000.0),  # our clock is ahead
        (999.9, 1000.0),  # it is behind
        (1100.0, 1000.0),
    ],
)
def test_the_services_time_is_ours_where_ours_may_be_right(wall_time, now):
    assert service_now(1000.0, wall_time) == now


def test_a_user_without_records_has_nothing():
    assert HandlingState() == (None, 0, 0, None)
