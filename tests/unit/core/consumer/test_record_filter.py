"""Which records of a page pass the filter, and when do the others count as done?"""

import pytest
from tests.harness.hand_out import Desk

from shardline.core.consumer.consumer_events import RecordsFiltered, RepeatsDropped
from shardline.core.consumer.prefetch import RECORD_BYTES
from shardline.core.consumer.reader import Page
from shardline.core.consumer.record_filter import leave_out
from shardline.model.record import Record


@pytest.fixture
def desk():
    return Desk()


def page(count, held_bytes=10_000):
    records = [Record(b"12345", "k", sequence_number=str(number)) for number in range(count)]
    return Page("a", records, held_bytes, 0.0, is_last=False, child_shards=())


def test_a_page_whose_records_all_pass_is_unchanged():
    whole = page(3)
    assert leave_out(whole, [True, 1, "yes"]) is whole


def test_records_that_do_not_pass_free_their_memory():
    whole = page(4)
    left = leave_out(whole, [True, False, True, None])
    assert left.records == [whole.records[0], whole.records[2]]
    assert (left.filtered, left.through) == (2, whole.records[3])
    assert left.held_bytes == 2 * (5 + RECORD_BYTES)
    assert left.freed_bytes == 10_000 - left.held_bytes


def test_the_last_record_is_kept_only_if_it_did_not_pass():
    assert leave_out(page(2), [False, True]).through is None
    assert leave_out(page(2, held_bytes=7), [False, True]).held_bytes == 7, "no more is released than was held"


# ---- the hand-out


def test_the_records_behind_the_last_one_are_done_with_it(desk):
    desk.gain()
    first, second = desk.bring(3, passed=[True, True, False])[:2]
    taker = desk.iterate()
    assert desk.take(taker) == [first, second]
    desk.poll()
    assert desk.watermark() == 1, "the second record is in hand"
    assert not desk.ask(taker)
    assert desk.watermark() == 3
    assert desk.shards["a"].filtered == 1
    assert desk.hand_out.work.totals().records_filtered == 1
    assert desk.hand_out.budget.total_bytes == 0


def test_a_page_without_a_record_that_passes_is_done_at_once(desk):
    desk.gain()
    taker = desk.iterate()
    desk.ask(taker)
    desk.bring(3, passed=[False] * 3)
    assert desk.hand_out.take_answered() == []
    assert desk.watermark() == 3
    assert desk.hand_out.take_pump_due()
    assert desk.hand_out.budget.total_bytes == 0


def test_a_page_without_a_record_that_passes_waits_for_the_page_before_it(desk):
    desk.gain()
    desk.bring(1)
    desk.bring(2, passed=[False, False])
    desk.bring(2, passed=[False, False])
    taker = desk.iterate()
    assert len(desk.take(taker)) == 1
    assert desk.watermark() == 0
    assert not desk.ask(taker)
    assert desk.watermark() == 5


def test_the_end_of_a_shard_whose_last_records_do_not_pass(desk):
    desk.gain()
    taker = desk.iterate()
    desk.ask(taker)
    desk.bring(2, passed=[False, False], last=True)
    assert desk.watermark() == 2
    assert desk.groups["s"].ended == [("a", ())]


def test_with_manual_acknowledgements_earlier_records_hold_back_the_checkpoint():
    desk = Desk(ack="manual")
    desk.gain()
    (first, *_) = desk.bring(3, passed=[True, False, False])
    taker = desk.iterate()
    desk.take(taker)
    assert not desk.ask(taker)
    assert desk.watermark() == 0
    desk.hand_out.ack(first, desk.now)
    assert desk.watermark() == 3


def test_nothing_counts_after_the_lease_is_lost(desk):
    shard = desk.gain()
    records = desk.bring(1)
    desk.lose()
    assert not shard.skip(records[0], desk.now)


def test_a_consumer_that_filters_is_not_idle():
    desk = Desk(idle_timeout=5.0)
    desk.gain()
    taker = desk.iterate()
    desk.poll()
    desk.ask(taker)
    desk.now += 4.0
    desk.bring(1, passed=[False])
    assert desk.poll(4.0) == []
    assert desk.poll(2.0) == [taker]


def test_sinks_hear_of_it(desk):
    desk.hand_out.work.observe(desk.now)
    desk.gain()
    desk.bring(3, passed=[False, True, False])
    assert RecordsFiltered("a", 2) in desk.hand_out.take_events()


def test_a_copy_behind_the_last_record_is_done_whatever_passes(desk):
    copy = Record(b"12345", "k", sequence_number="9")
    whole = page(2)._replace(through=copy, repeated=1)
    assert leave_out(whole, [False, True]).through is copy
    assert leave_out(whole, [True, False]).through is copy
    alone = page(0)._replace(through=copy, repeated=1)
    assert leave_out(alone, []) is alone
    desk.hand_out.work.observe(desk.now)
    shard = desk.gain()
    desk.hand_out.handle_pages(shard, [alone._replace(shard_id="a")], desk.now)
    assert desk.hand_out.work.totals().records_repeated == 1
    assert RepeatsDropped("a", 1) in desk.hand_out.take_events()
    assert desk.watermark() == 9
