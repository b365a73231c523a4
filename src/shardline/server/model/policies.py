"""Emulates the resource policies of streams and consumers.

A policy is stored and returned, but not enforced: the server has only one account.
"""

from typing import Final, Literal

import msgspec

from shardline.server.model import inputs
from shardline.server.model.refusals import in_use, invalid, not_found
from shardline.server.model.state import ServerChannel, ServerConsumer, ServiceState
from shardline.server.model.streams import ServerStream

_NO_POLICY: Final = "{}"


def put_policy(state: ServiceState, request: inputs.PutResourcePolicy) -> None:
    resource = _resource(state, request)
    if isinstance(resource, ServerConsumer):
        _check_consumer(state, resource)
    else:
        state.check_active(resource)
    _check_policy(request.policy)
    resource.policy = request.policy
    state.changed.add(resource.stream_name)


def get_policy(state: ServiceState, request: inputs.ResourceInput) -> dict[str, object]:
    """Return the policy. Without one, AWS returns an empty object (LocalStack's tests, docs/tested/differences.md)."""
    return {"Policy": _resource(state, request).policy or _NO_POLICY}


def delete_policy(state: ServiceState, request: inputs.ResourceInput) -> None:
    resource = _resource(state, request)
    if resource.policy is None:
        raise not_found(f"No resource policy found for resource ARN {request.resource_arn}.")
    resource.policy = None
    state.changed.add(resource.stream_name)


def _resource(state: ServiceState, request: inputs.ResourceInput) -> ServerStream | ServerConsumer:
    resource = state.resource(request.resource_arn)
    if isinstance(resource, ServerChannel):
        raise invalid(f"{request.resource_arn} is a channel: only streams and consumers have resource policies.")
    return resource


def _check_consumer(state: ServiceState, consumer: ServerConsumer) -> None:
    """Refuse a consumer that is not ACTIVE.

    AWS's text was reported in aws-cloudformation/cloudformation-coverage-roadmap#2442.
    """
    if consumer.status != "ACTIVE":
        raise in_use(
            f"Consumer {consumer.name} with creation timestamp {int(consumer.created_at)} under stream "
            f"{consumer.stream_name} and account {state.settings.account_id} is not in ACTIVE status."
        )


class _Statement(msgspec.Struct, rename="pascal"):
    effect: Literal["Allow", "Deny"]
    principal: str | dict[str, object]
    action: str | list[str] | None = None
    not_action: str | list[str] | None = None


class _Policy(msgspec.Struct, rename="pascal"):
    statement: _Statement | list[_Statement]


def _check_policy(text: str) -> None:
    """Refuse a policy without principals or without actions [API]. Nothing else is checked."""
    try:
        policy = msgspec.json.decode(text, type=_Policy)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(f"The policy cannot be used: {error}.") from None
    statements = policy.statement if isinstance(policy.statement, list) else [policy.statement]
    if not statements or not all(statement.action or statement.not_action for statement in statements):
        raise invalid("The policy cannot be used: a statement has no Action.")
