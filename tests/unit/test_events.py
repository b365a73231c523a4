"""The public events: all of them, under unique names."""

from typing import get_args

import shardline
from shardline import events
from shardline.core import producer_events
from shardline.core.consumer import consumer_events


def test_every_event_is_public_under_its_own_name():
    kinds = [*get_args(producer_events.Event), *get_args(consumer_events.Event)]
    assert len({kind.__name__ for kind in kinds}) == len(kinds) == 44
    for kind in kinds:
        assert getattr(events, kind.__name__) is kind
        assert kind.__name__ in events.__all__


def test_no_event_has_the_name_of_another_public_thing():
    assert {kind.__name__ for kind in get_args(events.Event)}.isdisjoint(shardline.__all__)


def test_the_union_holds_both():
    assert events.ProducerEvent == producer_events.Event
    assert events.ConsumerEvent == consumer_events.Event
    assert set(get_args(events.Event)) == {*get_args(producer_events.Event), *get_args(consumer_events.Event)}


def test_the_names_can_be_had_once():
    assert len(set(events.__all__)) == len(events.__all__)
    assert all(hasattr(events, name) for name in events.__all__)
