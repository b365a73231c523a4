"""What does a worker count of the failures of its handlers?"""

from shardline.core.clock import NEVER
from shardline.core.consumer.events import DeadLetterFailed, HandlerRetried, HandlingStopped, RecordsDeadLettered
from shardline.core.consumer.handling import HandlingCounts

ABOUT = ("shard", "7", 0, 3, 2, "ValueError", "why", "")


def test_calls_that_are_repeated_and_records_that_failed_for_good_are_counted():
    counts = HandlingCounts()
    counts.handle_events([HandlerRetried(*ABOUT, 1.0), HandlerRetried(*ABOUT, 2.0)])
    assert (counts.retries, counts.dead_letters, counts.failed_records) == (2, 0, 0)
    counts.handle_events([DeadLetterFailed(*ABOUT, 3.0), RecordsDeadLettered(*ABOUT)])
    assert (counts.retries, counts.dead_letters, counts.failed_records) == (2, 3, 0)
    counts.handle_events([DeadLetterFailed(*ABOUT, NEVER), HandlingStopped(*ABOUT)])
    assert (counts.retries, counts.dead_letters, counts.failed_records) == (2, 3, 6)
