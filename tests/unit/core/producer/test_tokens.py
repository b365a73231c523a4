"""May a record be sent now, and if not, when?"""

import pytest

from shardline.core.producer.tokens import TokenBucket


class Bucket:
    """A bucket with as many rates as a test passes. If it passes only one, the other is practically unlimited."""

    def __init__(self, rates, now):
        self._bucket = TokenBucket(*self._both(rates, 1e12), now)

    @staticmethod
    def _both(numbers, other):
        return numbers if len(numbers) == 2 else (*numbers, other)

    def set_rates(self, rates, now):
        self._bucket.set_rates(*self._both(rates, 1e12), now)

    def try_take(self, costs, now):
        return self._bucket.try_take(*self._both(costs, 0.0), now)

    def ready_at(self, costs, now):
        return self._bucket.ready_at(*self._both(costs, 0.0), now)

    def covers(self, costs):
        return self._bucket.covers(*costs)


def make(*rates, now=0.0):
    return Bucket(rates, now)


def left(bucket, now):
    """Return the balance of the first rate, to a thousandth."""
    taken = 0
    while bucket.try_take((0.001,), now):
        taken += 1
    return taken / 1000


def test_a_bucket_starts_full():
    bucket = make(3.0)
    assert [bucket.try_take((1.0,), 0.0) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("costs", [(1.0, 100.0), (10.0, 1.0)])
def test_a_take_that_one_stream_refuses_debits_none(costs):
    bucket = make(10.0, 100.0)
    assert bucket.try_take((1.0, 1.0), 0.0)
    assert not bucket.try_take(costs, 0.0)
    assert bucket.try_take((9.0, 99.0), 0.0)


def test_a_legal_record_larger_than_a_second_of_rate_does_not_starve():
    """Regression of the port of the KPL, which never sent one: its bucket could not hold the tokens."""
    bucket = make(1_000.0, 1_048_576.0)
    assert bucket.try_take((1.0, 1_048_580.0), 0.0)
    assert bucket.try_take((1.0, 10_485_760.0), 1.001)
    assert bucket.ready_at((1.0, 100.0), 1.001) == pytest.approx(10.0011, abs=1e-3)


@pytest.mark.parametrize("started_at", [0.0, 1e3, 1e5, 1e7, 1.7e9])
@pytest.mark.parametrize("share", [1.0, 0.7, 0.343, 0.02])
def test_at_ready_at_the_take_is_admitted_however_long_the_machine_is_up(started_at, share):
    """Regression: a share of the rate and a large clock lost more to rounding than was forgiven, so a caller whose
    wait was over was refused again and again, until the clock moved.
    """
    bucket = make(1_000.0, 1_048_576.0, now=started_at)
    now = started_at
    for number in range(200):
        costs = (1.0, 1_000.0 + 7_919.0 * number)
        now = bucket.ready_at(costs, now)
        assert bucket.try_take(costs, now), number
        bucket.set_rates((1_000.0 * share, 1_048_576.0 * share), now)


def test_what_is_forgiven_to_rounding_is_not_forgotten():
    """A thousand takes, each at the first time when it is admitted, do not exceed the rate."""
    bucket = make(1_000.0 * 0.7)
    assert bucket.try_take((700.0,), 0.0)
    now = 0.0
    for _ in range(7_000):
        now = bucket.ready_at((1.0,), now) - 0.5e-9
        assert bucket.try_take((1.0,), now)
    assert now == pytest.approx(10.0, abs=1e-8)


def test_new_rates_cut_what_was_saved():
    bucket = make(100.0)
    bucket.set_rates((10.0,), 0.0)
    assert left(bucket, 0.0) == 10.0


@pytest.mark.parametrize(
    ("costs", "covered"), [((10.0, 100.0), True), ((10.1, 1.0), False), ((1.0, 100.1), False), ((0.0, 0.0), True)]
)
def test_a_full_bucket_covers_what_it_pays_without_a_debt(costs, covered):
    bucket = make(10.0, 100.0)
    assert bucket.covers(costs) is covered
    assert bucket.try_take((10.0, 100.0), 0.0)
    assert bucket.covers(costs) is covered  # whatever its balance is now


@pytest.mark.internal_error
@pytest.mark.parametrize("rates", [(0.0, 1.0), (1.0, -1.0)])
def test_a_stream_that_never_grows_is_an_internal_error(rates):
    with pytest.raises(AssertionError):
        TokenBucket(*rates, 0.0)
