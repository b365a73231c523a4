"""Tests of ``shardline.core.consumer.store_outages``."""

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer.store_outages import LIST, WRITE, StoreHealth, StoreTrouble, trouble_of
from shardline.core.error_codes import Failure, FailureKind


def failure(kind):
    return Failure(kind, "Code", "message")


DOWN, GONE, DENIED = map(failure, (FailureKind.TRANSIENT, FailureKind.NOT_FOUND, FailureKind.DENIED))


@pytest.mark.parametrize(
    ("kind", "trouble"),
    [
        (FailureKind.TRANSIENT, StoreTrouble.UNREACHABLE),
        (FailureKind.THROTTLED, StoreTrouble.UNREACHABLE),
        (FailureKind.LIMIT_EXCEEDED, StoreTrouble.UNREACHABLE),
        (FailureKind.EXPIRED_CREDENTIALS, StoreTrouble.UNREACHABLE),
        (FailureKind.NOT_FOUND, StoreTrouble.GONE),
        (FailureKind.INVALID, StoreTrouble.GONE),
        (FailureKind.DENIED, StoreTrouble.REFUSED),
        (FailureKind.NO_CREDENTIALS, StoreTrouble.REFUSED),
        (FailureKind.UNTRUSTED, StoreTrouble.REFUSED),
        (FailureKind.KMS, StoreTrouble.REFUSED),
    ],
)
def test_what_a_failure_of_the_store_means(kind, trouble):
    assert trouble_of(failure(kind)) is trouble


@pytest.mark.parametrize(("why", "limit"), [(DOWN, NEVER), (GONE, 10.0), (DENIED, 300.0)])
def test_to_sh3_how_long_each_is_waited_for(why, limit):
    health = StoreHealth(10.0, 300.0)
    assert health.handle_failure(LIST, why, 100.0) == 100.0 + limit
    assert health.handle_failure(LIST, why, 105.0) == 100.0 + limit


def test_what_worked_in_between_counts_from_the_beginning():
    health = StoreHealth(10.0, 300.0)
    health.handle_failure(LIST, GONE, 100.0)
    health.handle_answer(LIST)
    assert health.handle_failure(LIST, GONE, 109.0) == 119.0


def test_listing_and_writing_are_judged_apart():
    """A policy that allows Scan and denies UpdateItem makes a store useless, too."""
    health = StoreHealth(10.0, 300.0)
    health.handle_failure(WRITE, DENIED, 100.0)
    health.handle_answer(LIST)
    assert health.handle_failure(WRITE, DENIED, 200.0) == 400.0


def test_another_trouble_in_between_changes_nothing():
    health = StoreHealth(10.0, 300.0)
    health.handle_failure(LIST, GONE, 100.0)
    assert health.handle_failure(LIST, DOWN, 101.0) == NEVER
    assert health.handle_failure(LIST, DENIED, 102.0) == 402.0
    assert health.handle_failure(LIST, GONE, 103.0) == 110.0


def test_it_is_given_up_once():
    health = StoreHealth(10.0, 300.0)
    assert not health.give_up(110.0, 109.9)
    assert health.give_up(110.0, 110.0)
    assert not health.give_up(110.0, 111.0)
