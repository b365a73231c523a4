"""Events are values: they compare equal, and have a readable repr."""

from typing import get_args

from shardline.core.consumer import consumer_events as events
from shardline.core.consumer.consumer_events import Event, LeaseLost, ShardLag, ShardTrimmed


def test_every_event_is_a_named_tuple():
    kinds = get_args(Event)
    defined = [kind for kind in vars(events).values() if getattr(kind, "__module__", "") == events.__name__]
    values = {ShardLag}  # a part of an event
    assert {*kinds} | values == {kind for kind in defined if isinstance(kind, type)}
    assert all(issubclass(kind, tuple) and kind._fields for kind in kinds)


def test_events_compare_by_value():
    assert LeaseLost("s", "why") == LeaseLost("s", "why")
    assert ShardTrimmed("s") != ShardTrimmed("t")
