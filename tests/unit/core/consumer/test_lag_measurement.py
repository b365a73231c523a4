"""Tests of ``shardline.core.consumer.lag_measurement``."""

import pytest
from tests.harness.hand_out import Desk

from shardline.core.consumer.consumer_events import LagMeasured, ShardLag
from shardline.core.consumer.lag_measurement import measure_lag, shard_lag


def test_a_shard_without_records_is_as_far_behind_as_its_reader():
    desk = Desk()
    shard = desk.gain()
    shard.reader.lag, shard.reader.age = 3.0, 4.0
    assert shard_lag(desk.hand_out, shard, desk.now, 1_000.0) == ShardLag("a", 3.0, 4.0, 0, 0)


def test_the_oldest_record_that_is_not_done_is_the_lag_of_handling():
    desk = Desk()
    shard = desk.gain()
    desk.bring(5)  # they arrived at 1 to 5
    desk.take(desk.iterate(), 2)
    assert shard_lag(desk.hand_out, shard, desk.now, 10.0) == ShardLag("a", None, 8.0, 3, 1)


def test_a_record_that_waits_counts_from_its_arrival():
    desk = Desk()
    shard = desk.gain()
    desk.bring(2)
    assert shard_lag(desk.hand_out, shard, desk.now, 10.0) == ShardLag("a", None, 9.0, 2, 0)


def test_with_manual_acknowledgements_the_oldest_unacknowledged_record_counts():
    desk = Desk(ack="manual")
    shard = desk.gain()
    records = desk.bring(4)
    taker = desk.iterate()
    desk.take(taker, 2)
    assert shard.unreported == 2
    desk.poll()  # reports them
    assert shard.unreported == 0
    assert shard_lag(desk.hand_out, shard, desk.now, 10.0) == ShardLag("a", None, 9.0, 2, 2)
    desk.hand_out.ack(records[0], desk.now)
    assert shard_lag(desk.hand_out, shard, desk.now, 10.0) == ShardLag("a", None, 8.0, 2, 1)


def test_a_lease_that_is_gone_has_no_tracker():
    desk = Desk(ack="manual")
    shard = desk.gain()
    desk.bring(2)
    desk.take(desk.iterate(), 1)
    desk.groups["s"].held.lose("a", "test")
    assert shard_lag(desk.hand_out, shard, desk.now, 10.0).in_hand == 1


def test_all_held_shards_of_a_stream_are_measured():
    desk = Desk()
    desk.gain("a")
    desk.gain("b", "t")
    desk.gain("c")
    measured = measure_lag(desk.hand_out, "s", desk.now, 10.0)
    assert measured == LagMeasured((ShardLag("a", None, None, 0, 0), ShardLag("c", None, None, 0, 0)))
    assert measure_lag(desk.hand_out, "t", desk.now, 10.0) == LagMeasured((ShardLag("b", None, None, 0, 0),))


def test_the_lag_is_to_be_measured_every_five_seconds_if_somebody_listens():
    desk = Desk()
    assert not desk.hand_out.work.take_measure_due(1e9)
    desk.hand_out.work.observe(desk.now)
    assert desk.hand_out.next_deadline() == pytest.approx(desk.now + 5.0)
    assert not desk.hand_out.work.take_measure_due(desk.now + 4.9)
    assert desk.hand_out.work.take_measure_due(desk.now + 5.0)
    assert not desk.hand_out.work.take_measure_due(desk.now + 9.9)
    assert desk.hand_out.work.take_measure_due(desk.now + 10.0)
