"""Tests of ``server.model.schedule``."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from shardline.server.model.schedule import Schedule


def test_nothing_is_due_until_something_is_set():
    schedule = Schedule()
    assert (schedule.due_at, schedule.take_due(inf)) == (inf, [])


def test_what_is_due_comes_earliest_first_and_once():
    schedule = Schedule()
    for key, at in {"c": 3.0, "a": 1.0, "b": 2.0}.items():
        schedule.set(key, at)
    assert schedule.due_at == 1.0
    assert schedule.take_due(2.0) == ["a", "b"]
    assert (schedule.take_due(2.0), schedule.due_at) == ([], 3.0)


def test_a_new_time_replaces_the_old_one():
    schedule = Schedule()
    schedule.set("a", 5.0)
    schedule.set("a", 9.0)
    assert schedule.take_due(8.0) == []
    schedule.set("a", 2.0)
    assert (schedule.due_at, schedule.take_due(9.0), schedule.due_at) == (2.0, ["a"], inf)
    schedule.set("a", -inf)
    schedule.set("a", inf)
    schedule.set("never", inf)
    assert schedule.take_due(inf) == []


def test_times_that_were_replaced_do_not_pile_up():
    schedule = Schedule()
    schedule.set("first", 0.0)  # so that none of the others reaches the top
    for at in range(1, 10_000):
        schedule.set("a", float(10_000 - at % 7))
    assert len(schedule._heap) < 100
    assert schedule.take_due(inf) == ["first", "a"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9) | st.just(inf), st.booleans())))
def test_it_agrees_with_a_plain_dict(steps):
    schedule, times = Schedule(), {}
    for key, at, takes in steps:
        if takes and at != inf:
            due = sorted((time, one) for one, time in times.items() if time <= at)
            assert schedule.take_due(at) == [one for _, one in due]
            times = {one: time for one, time in times.items() if time > at}
        else:
            schedule.set(key, at)
            times = {one: time for one, time in (times | {key: at}).items() if time != inf}
        assert schedule.due_at == min(times.values(), default=inf)
