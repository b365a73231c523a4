"""What is logged about a producer or consumer, in which words and how often, and which events does its sink get?"""

import asyncio
import logging

import pytest

from shardline.aio.reporting import CLOSED, ConsumerReporter, ProducerReporter, RateLimitedLog
from shardline.core import producer_events as produced
from shardline.core.clock import NEVER
from shardline.core.consumer import consumer_events as consumed
from shardline.core.consumer.grant import Grant
from shardline.core.error_codes import Failure, FailureKind
from shardline.events import EventSource
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint
from shardline.model.position import TRIM_HORIZON, at_timestamp

SOURCE = EventSource("consumer", "orders", "billing", "worker-1")
DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "not you")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(clock):
    return RateLimitedLog(logging.getLogger("shardline.test"), "s", SOURCE, "life goes on", clock)


@pytest.fixture
def lines(caplog):
    """Return the log records, as (level, text)."""
    caplog.set_level(logging.DEBUG, "shardline")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


# ---- the rate-limited log


def test_failures_that_are_alike_are_counted_and_logged_once_a_period(log, clock, lines):
    for _ in range(5):
        log.count("a read failed", "Code", "why")
        log.log_due()
    assert lines() == [("WARNING", "s: a read failed: Code: why")]
    clock.now += 9.9
    log.log_due()
    assert len(lines()) == 1
    clock.now += 0.2
    log.log_due()
    assert lines()[1:] == [("WARNING", "s: a read failed (4 times): Code: why")]
    log.log_rest()
    assert len(lines()) == 2


def test_the_count_is_put_into_the_text_that_has_a_place_for_it(log, lines):
    log.count("%d records given up", "Code", "100% full", 3, level=logging.ERROR)
    log.count("%d records sent again", "Code", "", 1, example="at x.py")
    log.log_rest()
    assert lines() == [
        ("ERROR", "s: 3 records given up: Code: 100% full"),
        ("WARNING", "s: 1 record sent again: Code (at x.py)"),
    ]


def test_the_failures_beyond_a_hundred_different_ones_share_a_line(log, clock, lines):
    for number in range(1000):
        log.count("a read failed", "Code", f"number {number}")
        log.log_due()
    log.log_rest()
    assert len(lines()) == 102
    assert lines()[-1][1] == "s: a read failed (899 times): and others: more than 100 different failures"
    clock.now += 11
    log.count("a read failed", "Code", "number 1000")
    log.log_due()
    assert "number 1000" in lines()[-1][1]


@pytest.mark.parametrize("error", [ValueError("mine"), asyncio.CancelledError(), SystemExit(3), GeneratorExit()])
def test_a_hook_that_raises_is_logged_once_a_minute(log, clock, lines, error):
    for _ in range(3):
        log.log_user_error("the hook", error)
    log.log_user_error("another hook", error)
    assert lines() == [
        ("ERROR", "s: the hook failed; life goes on"),
        ("ERROR", "s: another hook failed; life goes on"),
    ]
    clock.now += 61
    log.log_user_error("the hook", error)
    assert len(lines()) == 3


# ---- events


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (produced.RecordsFailed(2, "B", "b"), "ERROR", "2 records given up: B: b"),
        (produced.RecordsRetried(5, None, "A", "a"), "WARNING", "5 records sent again: A: a"),
        (produced.ShardMapFailed(DENIED), "WARNING", "listing shards failed; aggregation is paused until it succeeds"),
        (produced.ShardsChanged(4, ("a", "b"), ("c",)), "INFO", "4 open shards (2 new, 1 gone)"),
        (produced.StreamUnknown(DENIED), "WARNING", "set record_max_bytes"),
        (produced.DistributionChanged(auto=True), "WARNING", "by AUTO record distribution: nothing is aggregated"),
        (produced.DistributionChanged(auto=False), "WARNING", "by partition key"),
        (produced.ChannelsFound(1), "WARNING", "the stream has 1 channel, which reads records by schema: nothing is"),
        (
            produced.ProducerReconfigured(0.5, 200.0, 1e6),
            "INFO",
            "linger 0.5 s, 200 records/s and 1e+06 bytes/s a shard",
        ),
        (produced.ChannelsFound(2), "WARNING", "2 channels, which read records by schema"),
        (produced.AggregationStopped(DENIED), "WARNING", "(AccessDeniedException: not you): aggregation stops"),
        (produced.RecordsDelivered(1, 1, 0.1, ()), None, ""),
        (produced.ProducerMeasured(1, 1, 2, 0.1, 1, ()), None, ""),
        (
            consumed.LeaseGained("s-1", Grant("s-1", 1, NEVER), TRIM_HORIZON, Checkpoint(TRIM_HORIZON), None),
            "INFO",
            "s-1",
        ),
        (consumed.LeaseReleased("s-1", finished=True), "INFO", "s-1 is finished"),
        (consumed.LeaseReleased("s-1", finished=False), "INFO", "s-1 was released"),
        (consumed.LeaseLost("s-1", "it lapsed"), "WARNING", "s-1 was lost: it lapsed"),
        (consumed.LeaseSurplus("s-1", 1.0), "INFO", "releasing s-1, because"),
        (consumed.MaxLeasesChanged(2, None), "INFO", "max_leases changed from None to 2"),
        (consumed.HandOverAsked("s-1", "other", 1.0), "INFO", "other asks for s-1"),
        (consumed.HandOverOverdue("s-1"), "WARNING", "before its handler has finished: the handler is cancelled"),
        (consumed.TooManyUnacknowledged("s-1", 7), "WARNING", "7 records of s-1 are not acknowledged"),
        (
            consumed.ShardSought(
                "s-1", Grant("s-1", 1, NEVER), TRIM_HORIZON, Checkpoint(TRIM_HORIZON), None, at_timestamp(7)
            ),
            "WARNING",
            "seek moved s-1 from AT_TIMESTAMP(7.0) to TRIM_HORIZON",
        ),
        (consumed.ShardsPaused(("s-1", "s-2"), is_all=False), "INFO", "paused: s-1, s-2"),
        (consumed.ShardsPaused((), is_all=True), "INFO", "paused: no shards, and every shard that is gained later"),
        (consumed.ShardsResumed(("s-1",), is_all=False), "INFO", "resumed: s-1"),
        (consumed.DedupWindowOverflowed("s-1", 2), "WARNING", "s-1 has more producers or gaps than dedup can remember"),
        (consumed.HandlerStuck("s-1", "49", 2, 9, 3.14), "WARNING", "s-1 has had record 49/2 for 3.1 s"),
        (consumed.HandlerRecovered("s-1", 3.14), "WARNING", "the handler of s-1 continues, after 3.1 s"),
        (consumed.ReadFailed("s-1", "GetRecords", DENIED, 1.0), "WARNING", "GetRecords of s-1 failed: AccessDenied"),
        (consumed.ReadFailed("s-1", "GetRecords", DENIED, NEVER), "WARNING", "failed and is not retried"),
        (consumed.Subscribed("s-1", TRIM_HORIZON), "DEBUG", "subscribed to s-1 at TRIM_HORIZON"),
        (consumed.SubscriptionEnded("s-1", None, 1.0), "DEBUG", "to s-1 is over: the service ended it"),
        (consumed.SubscriptionEnded("s-1", DENIED, 1.0), "DEBUG", "is over: AccessDeniedException: not you"),
        (consumed.StoreFailed(DENIED, 1), "ERROR", "the lease store denies access"),
        (consumed.StoreRecovered(3), "WARNING", "answers again, after 3 failures"),
        (consumed.ListingFailed("ListShards", DENIED, 1.0), "WARNING", "ListShards failed: AccessDenied"),
        (consumed.RecordsTrimmed("s-1", "too old"), "ERROR", "may have removed records of s-1"),
        (consumed.ShardTrimmed("s-1"), "ERROR", "its unread records are lost"),
        (consumed.PositionLost("s-1", TRIM_HORIZON, DENIED), "ERROR", "reading restarts at TRIM_HORIZON"),
        (consumed.ProgressLost(1), "ERROR", "the checkpoints of 1 shard;"),
        (consumed.ProgressLost(2), "ERROR", "the checkpoints of 2 shards;"),
        (consumed.StreamMissing(DENIED), "ERROR", "waits until it is re-created"),
        (consumed.StreamReplaced("other shards"), "ERROR", "deleted and re-created: other shards"),
        (consumed.ConsumerFailed("ListShards", DENIED), "ERROR", "ListShards failed for good"),
        (consumed.Stalled(12.0), "WARNING", "for 12.0 s: leases may lapse"),
        (consumed.WorkerIdShared("s-1", "w"), "ERROR", "uses the worker_id 'w' and holds s-1"),
        (consumed.HandlerRetried("s-1", "4", 0, 1, 1, "E", "m", "x.py:1", 2.0), "WARNING", "retrying 1 record: E: m"),
        (consumed.RecordsDeadLettered("s-1", "4", 0, 3, 2, "E", "m", "x"), "ERROR", "wrote 3 records as dead letters"),
        (consumed.DeadLetterFailed("s-1", "4", 0, 3, 2, "E", "m", "x", 2.0), "WARNING", "could not write 3 records"),
        (consumed.DeadLetterFailed("s-1", "4", 0, 3, 2, "E", "m", "x", NEVER), "ERROR", "cannot be written; stopping"),
        (consumed.HandlingStopped("s-1", "4", 0, 3, 2, "E", "m", "x"), "ERROR", "4/0 of s-1, tried 2 times"),
        (consumed.PageRead("s-1", 1, 10, 0.1, 0.0, "polling"), None, ""),
        (consumed.RecordsHandedOut("s-1", 1), None, ""),
        (consumed.RecordsHandled("s-1", 1, 0.1), None, ""),
        (consumed.Committed("s-1", TRIM_HORIZON, 0.1), None, ""),
        (consumed.LeaseHandedOver("s-1", "other", 0.1), None, ""),
        (consumed.HashRangesUncovered((HashRange(0, 2**125 - 1),)), "ERROR", "no lease of the group covers 12.5 % of"),
        (consumed.HashRangesCovered(61.0), "INFO", "cover all hash keys again, after 61 s"),
        (consumed.LagMeasured((consumed.ShardLag("s-1", 0.0, None, 0, 0),)), None, ""),
    ],
)
def test_each_event_is_logged_in_words_and_passed_to_the_sink(clock, lines, event, level, text):
    seen = []
    make = ProducerReporter if isinstance(event, produced.Event) else ConsumerReporter
    reporter = make("s", SOURCE, [seen.append], clock)
    reporter.sinks.start()
    reporter.report([event])
    reporter.sinks.wait_blocking()
    assert seen == [event]
    assert [found_level for found_level, _ in lines()] == ([] if level is None else [level])
    assert all(line.startswith("s: ") and text in line for _, line in lines())


@pytest.mark.parametrize("event", [consumed.StoreFailed(CLOSED, 1), consumed.ListingFailed("ListShards", CLOSED, 0.0)])
def test_a_request_that_close_cut_short_is_no_failure(clock, lines, event):
    seen = []
    reporter = ConsumerReporter("s", SOURCE, [seen.append], clock)
    reporter.sinks.start()
    reporter.report([event])
    reporter.log_rest()
    reporter.sinks.wait_blocking()
    assert lines() == [("DEBUG", f"s: {CLOSED.message}")]
    assert not seen


CONTEXT = ("stream", "group", "worker", "shard_id", "code")


@pytest.mark.parametrize(
    ("event", "shard_id", "code"),
    [
        (consumed.LeaseLost("s-1", "it lapsed"), "s-1", None),
        (consumed.ReadFailed("s-1", "GetRecords", DENIED, 1.0), "s-1", "AccessDeniedException"),
        (consumed.PositionLost("s-1", TRIM_HORIZON, DENIED), "s-1", "AccessDeniedException"),
        (consumed.Subscribed("s-1", TRIM_HORIZON), "s-1", None),
        (consumed.SubscriptionEnded("s-1", DENIED, 1.0), "s-1", "AccessDeniedException"),
        (consumed.StreamMissing(DENIED), None, "AccessDeniedException"),
        (consumed.StoreFailed(DENIED, 1), None, "AccessDeniedException"),
        (consumed.HandlingStopped("s-1", "4", 0, 3, 2, "KeyError", "m", "x"), "s-1", "KeyError"),
        (consumed.Stalled(12.0), None, None),
        (produced.RecordsRetried(5, "s-1", "Throttled", "a"), "s-1", "Throttled"),
        (produced.RecordsFailed(2, "Expired", "b"), None, "Expired"),
        (produced.StreamUnknown(DENIED), None, "AccessDeniedException"),
    ],
)
def test_each_line_has_the_context_as_extra(clock, caplog, event, shard_id, code):
    caplog.set_level(logging.DEBUG, "shardline")
    make = ProducerReporter if isinstance(event, produced.Event) else ConsumerReporter
    make("s", SOURCE, [], clock).report([event])
    (record,) = caplog.records
    assert [getattr(record, name) for name in CONTEXT] == ["orders", "billing", "worker-1", shard_id, code]


def test_the_line_about_a_hook_has_the_context_too(log, caplog):
    log.log_user_error("the hook", ValueError("mine"))
    assert [getattr(caplog.records[0], name) for name in CONTEXT] == ["orders", "billing", "worker-1", None, None]
