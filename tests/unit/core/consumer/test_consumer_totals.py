"""Tests of ``shardline.core.consumer.consumer_totals``."""

import pytest

from shardline.core.consumer.consumer_events import (
    Committed,
    DedupWindowOverflowed,
    HandlerRetried,
    LeaseGained,
    LeaseHandedOver,
    LeaseLost,
    LeaseReleased,
    ReadFailed,
    RecordsFiltered,
    RepeatsDropped,
    Stalled,
    StoreFailed,
)
from shardline.core.consumer.consumer_totals import ConsumerRates, ConsumerTotals, ReadCounts, WorkCounts
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.handling_lag import HandlingCounts
from shardline.core.error_codes import Failure, FailureKind
from shardline.model.lease import Checkpoint
from shardline.model.position import TRIM_HORIZON
from shardline.model.record import Record

THROTTLED = Failure(FailureKind.THROTTLED, "ProvisionedThroughputExceededException", "slow down", 400)


def test_events_are_counted_by_their_kinds():
    work = WorkCounts(ReadCounts(), HandlingCounts())
    work.handle_events(
        [
            LeaseGained("a", Grant("a", 1, 1.0), TRIM_HORIZON, Checkpoint(TRIM_HORIZON), None),
            Committed("a", TRIM_HORIZON, 0.25),
            Committed("a", TRIM_HORIZON, 0.5),
            ReadFailed("a", "GetRecords", THROTTLED, 1.0),
            ReadFailed("a", "GetRecords", THROTTLED, 2.0),
            LeaseLost("a", "why"),
            LeaseReleased("b", finished=False),
            LeaseHandedOver("b", "other", 1.0),
            StoreFailed(THROTTLED, 1),
            Stalled(3.0),
            DedupWindowOverflowed("a", 3),
        ]
    )
    assert work.totals() == ConsumerTotals(
        stamps_forgotten=3,
        commits=2,
        commit_time=0.75,
        leases_gained=1,
        leases_lost=1,
        leases_released=1,
        hand_overs=1,
        read_failures={"ProvisionedThroughputExceededException": 2},
        store_failures=1,
    )


def test_the_totals_have_what_readers_and_handlers_counted():
    reads, handling = ReadCounts(), HandlingCounts()
    work = WorkCounts(reads, handling)
    reads.pages, reads.records, reads.size_bytes = 2, 30, 400
    handling.handle_events([HandlerRetried("a", "1", 0, 1, 1, "E", "m", "p", 1.0)])
    cursor = Cursor([Record(b"", "k")] * 20)
    work.note_handed_out(("s", "a"), cursor, 1.0)
    work.count_handled(("s", "a"), cursor, 10, 2.5)
    assert work.totals() == ConsumerTotals(
        pages=2,
        records_read=30,
        bytes_read=400,
        records_handed_out=20,
        records_handled=10,
        handling_time=1.5,
        handler_retries=1,
    )


def test_records_that_were_left_out_are_counted_and_reported_only_if_there_are_sinks():
    work = WorkCounts(ReadCounts(), HandlingCounts())
    work.count_filtered(("s", "a"), 1)
    work.count_repeated(("s", "a"), 2)
    assert work.take_events() == []
    work.observe(0.0)
    work.count_filtered(("s", "b"), 3)
    work.count_repeated(("s", "b"), 4)
    assert work.take_events() == [("s", RecordsFiltered("b", 3)), ("s", RepeatsDropped("b", 4))]
    assert work.totals() == ConsumerTotals(records_filtered=4, records_repeated=6)


def test_totals_are_a_moment_that_does_not_change():
    work = WorkCounts(ReadCounts(), HandlingCounts())
    before = work.totals()
    work.handle_events([ReadFailed("a", "GetRecords", THROTTLED, 1.0)])
    assert before.read_failures == {}


def test_rates_are_averages_since_the_first_look():
    reads = ReadCounts()
    work = WorkCounts(reads, HandlingCounts())
    assert work.rates(50.0) == ConsumerRates(0.0, 0.0, 0.0)
    for second in range(1, 31):
        reads.records, reads.size_bytes = 4 * second, 400 * second
        work.count_handled(("s", "a"), Cursor([Record(b"", "k")] * 2), 2, 50.0 + second)
        work.handle_time(50.0 + second)
    rates = work.rates(80.0)
    assert (rates.records_read, rates.bytes_read, rates.records_handled) == pytest.approx((4, 400, 2), rel=0.1)


def test_the_readers_learn_the_offset_of_the_wall_clock():
    reads = ReadCounts()
    WorkCounts(reads, HandlingCounts()).set_wall_offset(1_700_000_000.0)
    assert reads.wall_offset == 1_700_000_000.0
