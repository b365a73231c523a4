"""Tests of ``server.model.buckets``."""

from hypothesis import given
from hypothesis import strategies as st

from shardline.server.model.buckets import Bucket


def test_it_is_full_at_first_and_holds_one_second():
    bucket = Bucket(10, 0.0)
    assert [bucket.take(1, 0.0) for _ in range(11)] == [True] * 10 + [False]
    assert bucket.balance(5.0) == 10


def test_it_fills_with_time_and_time_does_not_go_back():
    bucket = Bucket(10, 100.0)
    assert bucket.take(10, 100.0)
    assert bucket.balance(100.5) == 5
    assert bucket.balance(99.0) == 5


def test_what_is_larger_than_it_passes_when_it_is_full_and_leaves_a_debt():
    bucket = Bucket(10, 0.0)
    assert bucket.take(100, 0.0)
    assert bucket.balance(0.0) == -90
    assert not bucket.take(1, 9.0)
    assert bucket.take(1, 9.1)
    assert not bucket.take(100, 9.9)


def test_a_refused_request_costs_nothing():
    bucket = Bucket(10, 0.0)
    assert bucket.take(8, 0.0)
    assert not bucket.take(3, 0.0)
    assert bucket.take(2, 0.0)


def test_a_large_page_uses_up_what_was_saved():
    bucket = Bucket(2, 0.0)
    bucket.spend(10)
    assert bucket.balance(0.0) == -10
    small = Bucket(2, 0.0)
    small.spend(2)
    small.spend(1)
    assert small.balance(0.0) == -1
    small.charge(1)
    assert small.balance(0.0) == -2


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 5)), max_size=40))
def test_no_window_lets_more_through_than_a_second_more_than_its_length(steps):
    bucket, now, passed = Bucket(5, 0.0), 0.0, 0.0
    for pause, cost in steps:
        now += pause
        passed += cost if bucket.take(cost, now) else 0.0
        assert passed <= 5 * (now + 1) + 1e-6
