"""Tests of ``shardline.core.consumer.handler_checks``."""

from functools import partial

import pytest

from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handler_checks import check_handler, check_policy, is_async_callable
from shardline.errors import UsageError


def plain(record):
    return record


async def waiting(record):
    return record


def yielding(record):
    yield record


async def yielding_too(record):
    yield record


class Plain:
    def __call__(self, record):
        return record


class Waiting:
    async def __call__(self, record):
        return record


class Yielding:
    def __call__(self, record):
        yield record


@pytest.mark.parametrize(
    ("handler", "is_async"), [(plain, False), (waiting, True), (Plain(), False), (Waiting(), True)]
)
def test_a_handler_is_plain_or_async(handler, is_async):
    assert check_handler(handler, None, has_dead_letter=False) == FailurePolicy()
    assert is_async_callable(handler) is is_async
    assert is_async_callable(partial(handler)) is (is_async and handler is waiting)


@pytest.mark.parametrize("handler", [yielding, yielding_too, Yielding(), partial(yielding)])
def test_a_generator_function_is_refused(handler):
    with pytest.raises(UsageError, match="must not be a generator function"):
        check_handler(handler, None, has_dead_letter=False)


def test_a_handler_that_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match="handler must be callable, not int"):
        check_handler(7, None, has_dead_letter=False)


def test_a_target_of_dead_letters_decides_how_the_policy_ends():
    assert check_policy(None, has_dead_letter=False).finally_ == "stop"
    assert check_policy(FailurePolicy(attempts=2), has_dead_letter=True) == FailurePolicy(
        attempts=2, finally_="dead-letter"
    )
    with pytest.raises(UsageError, match="needs dead_letter="):
        check_policy(FailurePolicy(finally_="dead-letter"), has_dead_letter=False)
    with pytest.raises(UsageError, match="policy must be a FailurePolicy, not str"):
        check_policy("stop", has_dead_letter=False)
