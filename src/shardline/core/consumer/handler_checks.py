"""Checks the handler and the failure policy that a user passes.

A wrong argument raises a ``UsageError`` that names the argument, its value and the allowed values.
"""

import inspect
from dataclasses import replace

from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.errors import UsageError


def check_handler(handler: object, policy: object, *, has_dead_letter: bool) -> FailurePolicy:
    """Return the policy, which ends with dead letters if there is a target for them."""
    if not callable(handler):
        raise UsageError(f"handler must be callable, not {type(handler).__name__}")
    if _is_generator_function(handler):
        raise UsageError("handler must not be a generator function, because calling it runs no code: remove the yield")
    return check_policy(policy, has_dead_letter=has_dead_letter)


def check_policy(policy: object, *, has_dead_letter: bool) -> FailurePolicy:
    """Return the policy, which ends with dead letters if there is a target for them."""
    if policy is None:
        policy = FailurePolicy()
    if not isinstance(policy, FailurePolicy):
        raise UsageError(f"policy must be a FailurePolicy, not {type(policy).__name__}")
    if policy.finally_ == "dead-letter" and not has_dead_letter:
        raise UsageError("a policy that ends with dead letters needs dead_letter=, the target to write them to")
    return replace(policy, finally_="dead-letter") if has_dead_letter else policy


def is_async_callable(handler: object) -> bool:
    """Whether a call of the handler returns a coroutine."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - its kind matters, not its existence
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _is_generator_function(handler: object) -> bool:
    """Whether a call of the handler only creates a generator, plain or async."""
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(each) for is_kind in kinds for each in (handler, getattr(handler, "__call__", None)))  # noqa: B004 - as above
