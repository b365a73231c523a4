"""Tests of ``shardline.core.consumer.stuck_handlers``."""

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import HandlerRecovered, HandlerStuck
from shardline.core.consumer.stuck_handlers import HandlerWatch, Work


def work(number, since, *, records=1):
    return Work(str(number), 0, records, since)


def test_a_stuck_spell_is_reported_once_when_noticed_and_once_when_over():
    watch = HandlerWatch(10.0)
    watch.handle_work({("s", "shard"): work(7, 100.0, records=3)}, 101.0)
    assert (watch.is_stuck, watch.next_deadline(), watch.since(("s", "shard"))) == (False, 110.0, 100.0)
    watch.handle_work({("s", "shard"): work(7, 100.0, records=3)}, 109.9)
    assert watch.take_events() == []
    watch.handle_work({("s", "shard"): work(7, 100.0, records=3)}, 110.0)
    assert watch.take_events() == [("s", HandlerStuck("shard", "7", 0, 3, 10.0))]
    assert (watch.is_stuck, watch.next_deadline()) == (True, NEVER)
    watch.handle_work({("s", "shard"): work(7, 100.0, records=3)}, 500.0)
    assert watch.take_events() == []
    watch.handle_work({}, 510.0)
    assert watch.take_events() == [("s", HandlerRecovered("shard", 410.0))]
    assert (watch.is_stuck, watch.since(("s", "shard"))) == (False, None)
    watch.handle_work({}, 511.0)
    assert watch.take_events() == []


def test_what_is_not_acknowledged_counts_from_when_it_became_the_oldest():
    watch = HandlerWatch(10.0)
    watch.handle_work({("s", "shard"): work(7, None, records=2)}, 100.0)
    watch.handle_work({("s", "shard"): work(7, None, records=5)}, 108.0)
    assert watch.since(("s", "shard")) == 100.0
    watch.handle_work({("s", "shard"): work(8, None)}, 109.0)
    assert (watch.since(("s", "shard")), watch.next_deadline()) == (109.0, 119.0)
    watch.handle_work({("s", "shard"): work(8, None)}, 119.0)
    assert watch.take_events() == [("s", HandlerStuck("shard", "8", 0, 1, 10.0))]


def test_without_a_threshold_nothing_is_stuck():
    watch = HandlerWatch(None)
    watch.handle_work({("s", "shard"): work(7, 0.0)}, 1e9)
    assert (watch.take_events(), watch.is_stuck, watch.next_deadline()) == ([], False, NEVER)
    assert watch.since(("s", "shard")) == 0.0
