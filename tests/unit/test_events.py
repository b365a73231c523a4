"""The public events: all of them, under unique names."""

from typing import get_args

import pytest

import shardline
from shardline import events
from shardline.core import producer_events
from shardline.core.consumer import consumer_events


def test_every_event_is_public_under_its_own_name():
    kinds = [*get_args(producer_events.Event), *get_args(consumer_events.Event)]
    assert len({kind.__name__ for kind in kinds}) == len(kinds) == 55
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


# ---- sinks


class Opens:
    def open(self, _):
        return print


@pytest.mark.parametrize("sinks", [[], (), [print], [Opens()], iter([print, Opens()])])
def test_sinks_are_callables_and_objects_that_can_be_opened(sinks):
    assert isinstance(events.check_sinks(sinks), tuple)


@pytest.mark.parametrize(
    ("sinks", "problem"),
    [
        (print, r"not a single builtin_function_or_method: pass sinks=\[...\]"),
        (Opens(), r"not a single Opens: pass sinks=\[...\]"),
        (None, "not NoneType"),
        ("log", "not str"),
        ([print, 5], "one of them is of the type int"),
        ([Opens], r"not the class Opens: pass Opens\(...\)"),
    ],
)
def test_anything_else_is_refused(sinks, problem):
    with pytest.raises(shardline.UsageError, match=f"^sinks must be a list of callables and of sinks.*{problem}$"):
        events.check_sinks(sinks)


def test_instrumented_sinks_are_kept_until_they_are_removed():
    before = events.instrumented_sinks()
    sink = Opens()
    with events.instrument(print, sink) as installed:
        assert events.instrumented_sinks() == [*before, print, sink]
        other = events.instrument(len)
    assert events.instrumented_sinks() == [*before, len]
    installed.remove()
    other.remove()
    assert events.instrumented_sinks() == before
    with pytest.raises(shardline.UsageError, match="the type int"):
        events.instrument(5)
