"""Moving averages: ``shardline.core.rates``."""

import pytest

from shardline.core.rates import SPAN, Rate


def test_a_steady_increase_is_its_own_rate_from_the_first_seconds_on():
    rate = Rate(100.0)
    for second in range(1, 61):
        rate.note(7 * second, 100.0 + second)
        if second >= 3:
            assert rate.per_second(7 * second, 100.0 + second) == pytest.approx(7, rel=0.25)
    assert rate.per_second(7 * 60, 160.0) == pytest.approx(7, rel=0.06)


def test_a_rate_falls_when_nothing_happens_any_more():
    rate = Rate(0.0)
    rate.note(1_000, 50.0)
    busy = rate.per_second(1_000, 50.0)
    assert rate.per_second(1_000, 50.0 + SPAN) == pytest.approx(busy / 2.718, rel=0.01)
    assert rate.per_second(1_000, 50.0 + 20 * SPAN) == pytest.approx(0.0, abs=1e-4)


def test_what_was_not_noted_yet_counts_when_the_rate_is_read():
    rate = Rate(0.0)
    assert rate.per_second(0, 0.0) == 0.0
    assert rate.per_second(10, 0.0) == pytest.approx(10, rel=0.06)  # as over a second
