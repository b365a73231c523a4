"""Events are values: they compare, and say what they are."""

from typing import get_args

from shardline.core.consumer.events import Event, LeaseLost, ShardTrimmed


def test_every_event_is_a_named_tuple():
    kinds = get_args(Event)
    assert len(kinds) == len(set(kinds)) == 15
    assert all(issubclass(kind, tuple) and kind._fields for kind in kinds)


def test_events_compare_by_value():
    assert LeaseLost("s", "why") == LeaseLost("s", "why")
    assert ShardTrimmed("s") != ShardTrimmed("t")
