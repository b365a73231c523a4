"""Tests of ``shardline.core.consumer.read_pace``."""

from random import Random

import pytest

from shardline.core.consumer.read_pace import ReadPace
from shardline.core.error_codes import Failure, FailureKind
from shardline.model.limits import MIB

THROTTLED = Failure(FailureKind.THROTTLED, "ProvisionedThroughputExceededException", "slow down", 400)
TRANSIENT = Failure(FailureKind.TRANSIENT, "InternalFailure", "oh", 500)


@pytest.fixture
def pace():
    return ReadPace(5.0, 2.0 * MIB, 1.0, Random(0), 100.0)


def test_the_first_call_goes_at_once(pace):
    assert pace.next_at == 100.0


def test_calls_keep_their_distance(pace):
    pace.handle_sent(100.0)
    assert pace.next_at == pytest.approx(100.2)


def test_an_iterator_is_used_at_once(pace):
    pace.handle_sent(100.0)
    pace.handle_iterator()
    assert pace.next_at == 100.0


@pytest.mark.parametrize(("size", "wait"), [(0, 0.2), (MIB // 10, 0.2), (MIB, 0.5), (2 * MIB, 1.0)])
def test_behind_only_the_limits_of_the_shard_are_waited_for(pace, size, wait):
    pace.handle_sent(100.0)
    pace.handle_page(size, empty=size == 0, behind=True, now=100.0)
    assert pace.next_at == pytest.approx(100.0 + wait)


def test_at_the_end_the_wait_grows_up_to_the_idle_interval_and_a_record_makes_it_short(pace):
    now, waits = 100.0, []
    for empty in [True, True, True, True, True, False, True]:
        pace.handle_sent(now)
        pace.handle_page(0, empty=empty, behind=False, now=now)
        waits.append(pace.next_at - now)
        now = pace.next_at
    longest = [0.4, 0.8, 1.0, 1.0, 1.0, 0.2, 0.4]
    beat = 0.05 + 1e-9  # Half of it earlier or later
    assert all(0.9 * most - beat <= wait <= max(most, 0.2) + beat for wait, most in zip(waits, longest, strict=True))


def test_being_behind_makes_the_next_wait_short(pace):
    for behind in (False, False, True, False):
        pace.handle_sent(100.0)
        pace.handle_page(0, empty=True, behind=behind, now=100.0)
    assert pace.next_at <= 100.4


def test_idle_shards_are_asked_together_and_not_all_at_once():
    beats = set()
    for seed in range(100):
        pace, now = ReadPace(5.0, 2.0 * MIB, 1.0, Random(seed), 100.0), 100.0 + seed / 977
        for _ in range(8):
            pace.handle_sent(now)
            pace.handle_page(0, empty=True, behind=False, now=now)
            now = pace.next_at
        beats.add(round(now, 6))
    assert all(beat == pytest.approx(round(beat, 1)) for beat in beats)
    assert 3 <= len(beats) <= 20


def test_the_beat_shortens_no_distance_that_must_be_kept():
    pace = ReadPace(1.0 / 0.97, 2.0 * MIB, 1.0, Random(0), 100.0)
    for _ in range(20):
        pace.handle_sent(100.02)
        pace.handle_page(0, empty=True, behind=False, now=100.03)
        assert pace.next_at >= 100.02 + 0.97


def test_waits_after_failures_grow_with_jitter(pace):
    ceilings = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    for ceiling in ceilings:
        pace.handle_sent(100.0)
        pace.handle_failure(TRANSIENT, 100.0)
        assert ceiling / 2 <= pace.next_at - 100.0 <= max(ceiling, 0.2)
    pace.handle_page(0, empty=False, behind=True, now=100.0)
    pace.handle_sent(100.0)
    pace.handle_failure(TRANSIENT, 100.0)
    assert pace.next_at - 100.0 <= 0.25, "a page ends the row of failures"


@pytest.mark.parametrize(("asked", "wait"), [(7.0, 7.0), (3600.0, 10.0)])
def test_the_service_may_ask_for_more_within_reason(pace, asked, wait):
    pace.handle_sent(100.0)
    pace.handle_failure(TRANSIENT._replace(retry_after=asked), 100.0)
    assert pace.next_at == 100.0 + wait


def test_a_slow_rate_is_not_made_faster_by_anything():
    pace = ReadPace(0.5, 2.0 * MIB, 1.0, Random(0), 100.0)
    pace.handle_sent(100.0)
    pace.handle_failure(THROTTLED, 100.0)
    assert pace.next_at >= 102.0
    pace.handle_page(0, empty=True, behind=False, now=100.0)
    assert pace.next_at >= 101.8
