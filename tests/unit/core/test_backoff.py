"""How long is the delay after failures in a row?"""

from random import Random

import pytest

from shardline.core.backoff import Backoff


class Fixed:
    """A random generator that always returns the same number."""

    def __init__(self, drawn):
        self.drawn = drawn

    def random(self):
        return self.drawn


ALMOST_ONE = 1.0 - 2.0**-53


def delays(backoff, count):
    return [backoff.next_delay() for _ in range(count)]


def test_with_the_lowest_draw_each_delay_is_half_of_its_ceiling():
    assert delays(Backoff(1.0, 30.0, Fixed(0.0)), 7) == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


def test_with_the_highest_draw_each_delay_is_all_of_its_ceiling():
    assert delays(Backoff(1.0, 30.0, Fixed(ALMOST_ONE)), 7) == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0])


def test_the_ceiling_is_never_passed_however_many_fail():
    backoff = Backoff(0.001, 5.0, Fixed(ALMOST_ONE))
    drawn = delays(backoff, 3_000)
    assert max(drawn) <= 5.0
    assert drawn[-1] == pytest.approx(5.0)


def test_two_waiters_do_not_return_together():
    first, second = (Backoff(1.0, 30.0, Random(seed)) for seed in (1, 2))
    assert all(one != other for one, other in zip(delays(first, 20), delays(second, 20), strict=True))


def test_the_same_chance_gives_the_same_delays():
    assert delays(Backoff(1.0, 30.0, Random(7)), 20) == delays(Backoff(1.0, 30.0, Random(7)), 20)


def test_the_delays_start_over_after_a_success():
    backoff = Backoff(1.0, 30.0, Fixed(0.0))
    assert delays(backoff, 3) == [0.5, 1.0, 2.0]
    assert backoff.failures == 3
    backoff.reset()
    assert backoff.failures == 0
    assert delays(backoff, 2) == [0.5, 1.0]


@pytest.mark.parametrize(
    ("asked", "delay"), [(None, 0.5), (0.0, 0.5), (0.4, 0.5), (7.0, 7.0), (30.0, 30.0), (3600.0, 30.0)]
)
def test_what_the_service_asks_for_is_kept_up_to_the_longest_delay(asked, delay):
    backoff = Backoff(1.0, 30.0, Fixed(0.0))
    assert backoff.next_delay(asked) == delay
    assert backoff.failures == 1


def test_a_constant_backoff_is_one_too():
    assert delays(Backoff(2.0, 2.0, Fixed(0.5)), 3) == [1.5, 1.5, 1.5]


@pytest.mark.internal_error
@pytest.mark.parametrize(("first", "longest"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0)])
def test_a_backoff_that_would_not_wait_or_not_grow_is_an_internal_error(first, longest):
    with pytest.raises(AssertionError):
        Backoff(first, longest, Fixed(0.0))
