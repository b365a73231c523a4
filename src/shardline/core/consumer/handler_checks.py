"""Checks the handler and the failure policy that a user passes.

An invalid argument raises a ``UsageError`` that names the argument, its value and the allowed values.
"""

import inspect
from dataclasses import replace
from typing import Final, NamedTuple, cast, final

from shardline.core.consumer.consumer_config import Ack, Order
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.setting_checks import check_choice, check_number
from shardline.errors import UsageError

CONCURRENCY_MAX: Final = 10_000
PROCESSES_MAX: Final = 1_000


@final
class SideBySide(NamedTuple):
    """The settings for handlers that run concurrently."""

    concurrency: int | None = None
    """How many handlers may work at the same time. ``None`` means one for each shard."""
    order: Order = "shard"
    """Which records are handled one after the other: those of one shard (``shard``), those with one key (``key``), or
    ``none``.
    """


def check_side_by_side(concurrency: object, order: object, *, ack: Ack) -> SideBySide:
    """Check the settings for handlers that run concurrently, and return them."""
    check_number("concurrency", concurrency, 1, CONCURRENCY_MAX, whole=True, optional=True)
    check_choice("order", order, "shard", "key", "none")
    if concurrency is None and order != "shard":
        raise UsageError(f"order={order!r} needs concurrency=, the number of handlers that may work at the same time")
    if order != "shard" and ack == "manual":
        raise UsageError(
            f"order={order!r} needs ack='auto': a record is done when its handler returns. Await the work in the "
            "handler, instead of acknowledging the record later"
        )
    return SideBySide(cast("int | None", concurrency), cast("Order", order))


def check_processes(
    processes: object, handler_timeout: object, concurrency: object, *, ack: Ack, stuck_after: float | None
) -> tuple[int | None, float | None]:
    """Check the settings for handlers in processes. Return the number of processes (or ``None``), and how long a
    handler may take in a process.
    """
    check_number("processes", processes, 1, PROCESSES_MAX, whole=True, optional=True)
    check_number("handler_timeout", handler_timeout, 0.01, 86_400.0, optional=True)
    if processes is None:
        if handler_timeout is not None:
            raise UsageError("handler_timeout= needs processes=: only a process can be ended while its handler runs")
        return None, None
    if concurrency is not None:
        raise UsageError("processes= is the number of handlers that work at the same time: leave out concurrency=")
    if ack == "manual":
        raise UsageError(
            "processes= needs ack='auto': a record is done when its handler returns, and a handler in another process "
            "cannot acknowledge it"
        )
    timeout = stuck_after if handler_timeout is None else handler_timeout
    return cast("int", processes), cast("float | None", timeout)


def check_handler(handler: object, policy: object, *, has_dead_letter: bool) -> FailurePolicy:
    """Check the handler and the policy, and return the policy. If there is a target for dead letters, the returned
    policy uses it.
    """
    if not callable(handler):
        raise UsageError(f"handler must be callable, not {type(handler).__name__}")
    if _is_generator_function(handler):
        raise UsageError("handler must not be a generator function, because calling it runs no code: remove the yield")
    return check_policy(policy, has_dead_letter=has_dead_letter)


def check_policy(policy: object, *, has_dead_letter: bool) -> FailurePolicy:
    """Check the policy and return it. If there is a target for dead letters, the returned policy uses it."""
    if policy is None:
        policy = FailurePolicy()
    if not isinstance(policy, FailurePolicy):
        raise UsageError(f"policy must be a FailurePolicy, not {type(policy).__name__}")
    if policy.finally_ == "dead-letter" and not has_dead_letter:
        raise UsageError("a policy that ends with dead letters needs dead_letter=, the target to write them to")
    return replace(policy, finally_="dead-letter") if has_dead_letter else policy


def is_async_callable(handler: object) -> bool:
    """Return whether calling the handler returns a coroutine."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - it matters what __call__ is, not that it exists
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _is_generator_function(handler: object) -> bool:
    """Return whether calling the handler only creates a generator, plain or async."""
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(each) for is_kind in kinds for each in (handler, getattr(handler, "__call__", None)))  # noqa: B004 - as above
