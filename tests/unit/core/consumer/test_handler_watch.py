"""HW1 to HW3 are the invariants of ``shardline.core.consumer.handler_watch``."""

from shardline.core.clock import NEVER
from shardline.core.consumer.events import HandlerRecovered, HandlerStuck
from shardline.core.consumer.handler_watch import HandlerWatch, Work


def work(number, since, *, records=1):
    return Work(str(number), 0, records, since)


def test_hw1_a_spell_is_told_once_when_it_is_noticed_and_once_when_it_is_over():
    watch = HandlerWatch(10.0)
    watch.handle_work({("s", "shard"): work(7, 100.0, records=3)}, 101.0)
    assert (watch.is_stuck, watch.next_deadline(), watch.since(("s", "shard"))) == (False, 110.0, 100.0)
    watch.handle_work({("s", "shard"): work(7, 100.0, records=3)}, 109.9)
    assert watch.take_events() == []
    watch.handle_work({("s", "shard"): work(7, 100.0, records=3)}, 110.0)
    assert watch.take_events() == [HandlerStuck("shard", "7", 0, 3, 10.0)]
    assert (watch.is_stuck, watch.next_deadline()) == (True, NEVER)
    watch.handle_work({("s", "shard"): work(7, 100.0, records=3)}, 500.0)
    assert watch.take_events() == []
    watch.handle_work({}, 510.0)
    assert watch.take_events() == [HandlerRecovered("shard", 410.0)]
    assert (watch.is_stuck, watch.since(("s", "shard"))) == (False, None)
    watch.handle_work({}, 511.0)
    assert watch.take_events() == []


def test_hw1_going_on_to_the_next_record_ends_a_spell_and_may_begin_another():
    watch = HandlerWatch(10.0)
    watch.handle_work({("s", "shard"): work(7, 100.0)}, 120.0)
    watch.take_events()
    watch.handle_work({("s", "shard"): work(8, 121.0)}, 122.0)
    assert watch.take_events() == [HandlerRecovered("shard", 22.0)]
    assert watch.next_deadline() == 131.0
    watch.handle_work({("s", "shard"): work(9, 140.0)}, 150.0)
    assert watch.take_events() == [HandlerStuck("shard", "9", 0, 1, 10.0)]


def test_shards_are_watched_apart():
    watch = HandlerWatch(10.0)
    watch.handle_work({("s", "a"): work(1, 100.0), ("s", "b"): work(1, 95.0)}, 106.0)
    assert watch.take_events() == [HandlerStuck("b", "1", 0, 1, 11.0)]
    assert watch.next_deadline() == 110.0
    watch.handle_work({("s", "a"): work(1, 100.0)}, 107.0)
    assert watch.take_events() == [HandlerRecovered("b", 12.0)]
    assert not watch.is_stuck


def test_what_is_not_acknowledged_counts_from_when_it_became_the_oldest():
    watch = HandlerWatch(10.0)
    watch.handle_work({("s", "shard"): work(7, None, records=2)}, 100.0)
    watch.handle_work({("s", "shard"): work(7, None, records=5)}, 108.0)
    assert watch.since(("s", "shard")) == 100.0
    watch.handle_work({("s", "shard"): work(8, None)}, 109.0)
    assert (watch.since(("s", "shard")), watch.next_deadline()) == (109.0, 119.0)
    watch.handle_work({("s", "shard"): work(8, None)}, 119.0)
    assert watch.take_events() == [HandlerStuck("shard", "8", 0, 1, 10.0)]


def test_hw3_without_a_threshold_nothing_is_stuck():
    watch = HandlerWatch(None)
    watch.handle_work({("s", "shard"): work(7, 0.0)}, 1e9)
    assert (watch.take_events(), watch.is_stuck, watch.next_deadline()) == ([], False, NEVER)
    assert watch.since(("s", "shard")) == 0.0
