"""Tests of ``shardline.core.clock``."""

from shardline.core.clock import NEVER, Instant


def test_never_is_after_every_instant_and_before_none():
    assert all(instant < NEVER for instant in (0.0, 1.7e9, 1e308))
    assert all(instant > -NEVER for instant in (0.0, -1e308))


def test_never_is_an_instant_and_stays_never_whatever_is_added():
    assert type(NEVER) is Instant
    assert NEVER + 30.0 == NEVER - 30.0 == NEVER


def test_the_earliest_of_deadlines_is_never_only_if_all_of_them_are():
    assert min(NEVER, 5.0) == 5.0
    assert min(NEVER, NEVER) == NEVER
