"""Fencing tokens grow, whatever the store has forgotten and whatever the clocks say."""

import pytest

from shardline.core.consumer.token_floor import TokenFloor
from shardline.model.lease import Lease

START = 1_700_000_000.0


@pytest.fixture
def tokens():
    return TokenFloor(START, 50.0)


def test_the_floor_is_the_services_time_in_milliseconds(tokens):
    assert tokens.floor("s", 50.0) == 1_700_000_000_000
    assert tokens.floor("s", 51.5) == 1_700_000_001_500


def test_what_the_service_says_later_counts(tokens):
    tokens.handle_service_time(START + 3_600.0, 60.0)
    assert tokens.floor("s", 60.25) == 1_700_003_600_250
    tokens.handle_service_time(START, 61.0)
    assert tokens.floor("s", 61.0) == 1_700_000_000_000


def test_it_lies_above_every_counter_that_was_seen(tokens):
    far = 1_900_000_000_000
    tokens.handle_row(Lease("s", far))
    tokens.handle_row(Lease("s", 5))  # a store that was set back
    assert tokens.floor("s", 50.0) == far + 1
    assert tokens.floor("t", 50.0) == 1_700_000_000_000


def test_an_unset_clock_is_no_floor():
    assert TokenFloor(0.0, 50.0).floor("s", 50.0) == 1


def test_the_services_time_is_estimated(tokens):
    assert tokens.service_time(51.5) == START + 1.5
