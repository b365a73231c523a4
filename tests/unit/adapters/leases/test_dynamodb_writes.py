"""Lease operations as DynamoDB requests.

``tests/contract`` checks against servers that the conditions match ``core.leases``.
"""

import re

import pytest

from shardline.adapters.leases.dynamodb_writes import request_of
from shardline.core.leases import (
    AskHandOver,
    CancelHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    FinishHandOver,
    ReleaseLease,
    RenewLease,
    ResetLease,
    TakeLease,
    WriteChildren,
)
from shardline.model.lease import Checkpoint, Fence, Incarnation, Lease
from shardline.model.position import LATEST, TRIM_HORIZON, at_timestamp

OPERATIONS = [
    CreateLease(Lease("s")),
    RenewLease("s", "a", 1),
    RenewLease("s", "a", 1, 2.5),
    TakeLease("s", "a", Fence(1, None, None)),
    TakeLease("s", "a", Fence(1, "b", "c")),
    TakeLease("s", "a", Fence(1, "b", None), Incarnation("a", "1f", 10.0), floor=1_000),
    AskHandOver("s", "a", "b"),
    CancelHandOver("s", "a", "b"),
    FinishHandOver("s", "a", 1),
    ReleaseLease("s", "a", 1),
    CommitCheckpoint("s", "a", 1, Checkpoint(TRIM_HORIZON)),
    CommitCheckpoint("s", "a", 1, Checkpoint(at_timestamp(5))),
    CommitCheckpoint("s", "a", 1, Checkpoint(TRIM_HORIZON), ""),
    CommitCheckpoint("s", "a", 1, Checkpoint(TRIM_HORIZON), "stamps"),
    WriteChildren("s", frozenset("xy")),
    ResetLease("s", Fence(1, None, None), Checkpoint(TRIM_HORIZON)),
    ResetLease("s", Fence(1, "b", "c"), Checkpoint(LATEST), 5.0),
    DeleteLease("s", 1),
]
requests = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: type(one).__name__)


def sent(operation):
    return request_of(operation, "table", "group", "stream")


@requests
def test_every_name_and_value_that_is_used_is_given_and_no_other(operation):
    """DynamoDB refuses a request with a missing or an unused one."""
    _, members = sent(operation)
    expressions = members["ConditionExpression"] + members.get("UpdateExpression", "")
    assert set(re.findall(r"#\w+", expressions)) == set(members["ExpressionAttributeNames"])
    assert set(re.findall(r":\w+", expressions)) == set(members.get("ExpressionAttributeValues", {}))
    assert all(name == f"#{attribute}" for name, attribute in members["ExpressionAttributeNames"].items())


@requests
def test_only_a_row_that_is_not_there_is_put(operation):
    name, members = sent(operation)
    assert (name == "PutItem") == isinstance(operation, CreateLease)
    if name == "PutItem":
        assert members["ConditionExpression"] == "attribute_not_exists(#leaseKey)"
    assert members["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"


@requests
def test_every_write_is_conditional_on_whom_the_row_serves(operation):
    name, members = sent(operation)
    if name != "PutItem":
        assert "#shardlineGroup = :group AND #shardlineStream = :stream" in members["ConditionExpression"]


@requests
def test_no_attribute_is_changed_twice(operation):
    """DynamoDB refuses overlapping paths."""
    update = sent(operation)[1].get("UpdateExpression", "")
    changed = re.findall(r"(?:SET|REMOVE|ADD|,) (#\w+)", update)
    assert len(changed) == len(set(changed))


def test_a_release_removes_the_owner_and_bumps_the_counter():
    _, members = sent(ReleaseLease("s", "a", 1))
    assert members["UpdateExpression"] == (
        "REMOVE #leaseOwner, #shardlineOwner, #shardlineIncarnation, #shardlineLeaseDuration, "
        "#shardlineReadBy ADD #leaseCounter :one"
    )


def test_a_take_sets_the_token_and_says_which_process_it_is():
    _, members = sent(TakeLease("s", "a", Fence(1, "b", None), Incarnation("a", "1f", 10.0), floor=1_000))
    values = members["ExpressionAttributeValues"]
    assert values[":token"] == {"N": "1000"}
    assert values[":counter"] == {"N": "1"}
    assert values[":shardlineLeaseDuration"] == {"N": "10.0"}
    assert "#leaseCounter = :token" in members["UpdateExpression"]
    _, members = sent(TakeLease("s", "a", Fence(7, "b", None), floor=3))
    assert members["ExpressionAttributeValues"][":token"] == {"N": "8"}
    assert "shardlineIncarnation" not in str(members)


@pytest.mark.parametrize("operation", [AskHandOver("s", "a", "b"), CancelHandOver("s", "a", "b")])
def test_asking_and_calling_off_leave_the_counter_alone(operation):
    _, members = sent(operation)
    assert "leaseCounter" not in str(members)
