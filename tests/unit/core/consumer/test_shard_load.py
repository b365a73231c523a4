"""Tests of ``shardline.core.consumer.shard_load``."""

import pytest

from shardline.core.consumer.shard_load import LoadMeter, load_of
from shardline.model.lease import Lease

HALF_LIFE = 60.0  # six lease durations


def meter(**facts):
    return LoadMeter(100.0, Lease("s", **facts), 10.0)


def test_a_new_shard_is_averaged_over_the_time_that_was_observed():
    found = meter()
    assert found.measure(100.0) == (0.0, 0.0)
    found.add_bytes(20 * 1_024)
    found.add_handling(4.0)
    assert found.measure(104.0) == (5.0, 1.0)
    found.add_handling(1.0)
    assert found.measure(110.0) == pytest.approx((2.0, 0.5))


def test_what_happened_a_half_life_ago_counts_half():
    found = meter(throughput=8.0, handling=0.5)
    assert found.measure(100.0 + HALF_LIFE) == (4.0, 0.25)
    found.add_bytes(int(HALF_LIFE * 4 * 1_024))
    found.add_handling(HALF_LIFE * 0.25)
    assert found.measure(100.0 + 2 * HALF_LIFE) == (4.0, 0.25)


def test_it_does_not_matter_how_often_it_is_measured():
    found = meter(throughput=8.0, handling=0.5)
    for second in range(1, 61):
        found.measure(100.0 + second)
    assert found.measure(100.0 + HALF_LIFE) == pytest.approx((4.0, 0.25))


def test_the_load_is_in_seconds_per_second():
    assert load_of(Lease("s")) is None
    assert load_of(Lease("s", throughput=0.0)) == pytest.approx(0.002)
    assert load_of(Lease("s", handling=0.5)) == pytest.approx(0.502)
    assert load_of(Lease("s", throughput=1_024.0, handling=0.1)) == pytest.approx(0.002 + 0.02048 + 0.1)
