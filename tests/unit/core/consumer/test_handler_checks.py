"""Tests of ``shardline.core.consumer.handler_checks``."""

from functools import partial

import pytest

from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handler_checks import (
    check_handler,
    check_policy,
    check_processes,
    check_side_by_side,
    is_async_callable,
)
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


def test_handlers_work_side_by_side_in_an_order():
    assert check_side_by_side(None, "shard", ack="manual") == (None, "shard")
    assert check_side_by_side(3, "shard", ack="manual") == (3, "shard")
    assert check_side_by_side(10_000, "key", ack="auto") == (10_000, "key")


@pytest.mark.parametrize(
    ("concurrency", "order", "message"),
    [
        (0, "shard", "concurrency must be a whole number from 1 to 10,000, or None, not 0"),
        (10_001, "key", "concurrency must be"),
        (-1, "key", "concurrency must be"),
        (2.0, "key", "concurrency must be"),
        (float("nan"), "key", "concurrency must be"),
        (4, ["key"], "order must be"),
        (4, True, "order must be"),
        (True, "key", "concurrency must be"),
        ("4", "key", "concurrency must be"),
        (4, "key ", "order must be 'shard' or 'key' or 'none', not 'key '"),
        (4, None, "order must be"),
        (None, "key", "order='key' needs concurrency="),
        (None, "none", "order='none' needs concurrency="),
    ],
)
def test_a_wrong_concurrency_or_order_is_refused(concurrency, order, message):
    with pytest.raises(UsageError, match=message):
        check_side_by_side(concurrency, order, ack="auto")


def test_manual_acknowledgements_need_the_order_of_the_shard():
    with pytest.raises(UsageError, match="order='none' needs ack='auto'"):
        check_side_by_side(4, "none", ack="manual")


@pytest.mark.parametrize(
    ("processes", "timeout", "found"),
    [(None, None, (None, None)), (4, None, (4, 300.0)), (1, 2.5, (1, 2.5))],
)
def test_a_handler_in_a_process_may_take_as_long_as_its_timeout_says(processes, timeout, found):
    assert check_processes(processes, timeout, None, ack="auto", stuck_after=300.0) == found


@pytest.mark.parametrize(
    ("processes", "timeout", "concurrency", "ack", "named"),
    [
        (0, None, None, "auto", "processes must be"),
        (1.5, None, None, "auto", "processes must be"),
        (-1, None, None, "auto", "processes must be"),
        (True, None, None, "auto", "processes must be"),
        (float("nan"), None, None, "auto", "processes must be"),
        (10**9, None, None, "auto", "processes must be"),
        ("2", None, None, "auto", "processes must be"),
        (2, 0, None, "auto", "handler_timeout must be"),
        (2, float("nan"), None, "auto", "handler_timeout must be"),
        (2, float("inf"), None, "auto", "handler_timeout must be"),
        (2, True, None, "auto", "handler_timeout must be"),
        (None, 5.0, None, "auto", "needs processes="),
        (2, None, 4, "auto", "leave out concurrency="),
        (2, None, None, "manual", "needs ack='auto'"),
    ],
)
def test_wrong_settings_of_processes_are_refused(processes, timeout, concurrency, ack, named):
    with pytest.raises(UsageError, match=named):
        check_processes(processes, timeout, concurrency, ack=ack, stuck_after=None)
