"""Translates lease operations into conditional writes of DynamoDB.

The conditions of ``core.leases`` are written as DynamoDB expressions. These expressions include the KCL's conditions
and, in addition, check the holder's name.

Invariants:

- A row is updated attribute by attribute and never replaced, so attributes that we do not know are kept.
- Every write also requires that the row belongs to our group and stream, or names no group. Taking a lease writes our
  group and stream to its row.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never, final

from shardline.adapters.leases.dynamodb_items import (
    GROUP,
    HANDLING,
    INCARNATION,
    KEY,
    LEASE_DURATION,
    OWNER,
    READ_BY,
    SHARD_END,
    START_AT,
    STREAM,
    WINDOW,
    Attribute,
    checkpoint_attributes,
    encode_item,
    incarnation_attributes,
    key_of,
    number,
    text,
    texts,
)
from shardline.adapters.leases.lease_rows import CheckpointText, write_checkpoint
from shardline.core.leases import (
    LOAD_DECIMALS,
    AskHandOver,
    CancelHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    FinishHandOver,
    LeaseOperation,
    ReleaseLease,
    RenewLease,
    ResetLease,
    TakeLease,
    WriteChildren,
)
from shardline.model.lease import Fence

_NAMES: Final = re.compile(r"#(\w+)")
_OURS: Final = f"(attribute_not_exists(#{GROUP}) OR (#{GROUP} = :group AND #{STREAM} = :stream))"
_HELD: Final = (
    "#leaseCounter = :counter AND "
    "(#checkpointOwner = :by OR (attribute_not_exists(#checkpointOwner) AND #leaseOwner = :by))"
)
_UNFINISHED: Final = "#checkpoint <> :end"
_END: Final = {":end": text(SHARD_END)}
_NEXT: Final = "#leaseCounter :one"
_ONE: Final = {":one": number(1)}
_INCARNATION: Final = f"#{OWNER}, #{INCARNATION}, #{LEASE_DURATION}, #{READ_BY}"
_PENDING: Final = "#pendingCheckpoint, #pendingCheckpointSubSequenceNumber, #pendingCheckpointState"


@final
@dataclass(frozen=True, slots=True)
class _Change:
    """The condition and the parts of an UpdateItem expression."""

    condition: str
    sets: str = ""
    removes: str = ""
    adds: str = ""
    values: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])

    @property
    def expression(self) -> str:
        clauses = (("SET", self.sets), ("REMOVE", self.removes), ("ADD", self.adds))
        return " ".join(f"{verb} {actions}" for verb, actions in clauses if actions)


def request_of(
    operation: LeaseOperation, table: str, group: str, stream: str, identifier: str | None = None
) -> tuple[str, dict[str, object]]:
    """Return the DynamoDB operation that carries out a lease operation, and the members of its request.

    ``identifier`` is the KCL's identifier of the stream, in a table of several streams.
    """
    ours = {":group": text(group), ":stream": text(stream)}
    always: dict[str, object] = {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if isinstance(operation, CreateLease):
        item = encode_item(operation.lease, group, stream, identifier)
        condition = f"attribute_not_exists(#{KEY})"
        return "PutItem", always | {"Item": item, "ConditionExpression": condition} | _names(condition)
    always["Key"] = key_of(operation.shard_id, identifier)
    if isinstance(operation, DeleteLease):
        condition = f"attribute_not_exists(#{KEY}) OR (#leaseCounter = :counter AND {_OURS})"
        values = ours | {":counter": number(operation.counter)}
        members = {"ConditionExpression": condition, "ExpressionAttributeValues": values}
        return "DeleteItem", always | members | _names(condition)
    change = _change(operation)
    condition = f"{change.condition} AND {_OURS}"
    return "UpdateItem", always | {
        "ReturnValues": "ALL_NEW",
        "ConditionExpression": condition,
        "UpdateExpression": change.expression,
        "ExpressionAttributeValues": {**ours, **change.values},
    } | _names(condition + change.expression)


def _names(expressions: str) -> dict[str, object]:
    """Map the placeholders in expressions to attribute names, which may be reserved words of DynamoDB."""
    return {"ExpressionAttributeNames": {f"#{name}": name for name in _NAMES.findall(expressions)}}


def _change(
    operation: RenewLease
    | TakeLease
    | AskHandOver
    | CancelHandOver
    | FinishHandOver
    | ReleaseLease
    | CommitCheckpoint
    | WriteChildren
    | ResetLease,
) -> _Change:
    match operation:
        case RenewLease():
            return _renewal(operation)
        case TakeLease():
            return _taking(operation)
        case AskHandOver():
            return _Change(
                f"#leaseOwner = :owner AND attribute_not_exists(#checkpointOwner) AND {_UNFINISHED}",
                sets="#leaseOwner = :by, #checkpointOwner = :owner",
                values={":by": text(operation.by), ":owner": text(operation.owner), **_END},
            )
        case CancelHandOver():
            return _Change(
                "#leaseOwner = :by AND #checkpointOwner = :owner",
                sets="#leaseOwner = :owner",
                removes="#checkpointOwner",
                values={":by": text(operation.by), ":owner": text(operation.owner)},
            )
        case FinishHandOver():
            return _Change(
                "#leaseCounter = :counter AND #checkpointOwner = :by",
                removes=f"#checkpointOwner, {_INCARNATION}",
                adds=f"{_NEXT}, #ownerSwitchesSinceCheckpoint :one",
                values=_held(operation) | _ONE,
            )
        case ReleaseLease():
            return _Change(
                "#leaseCounter = :counter AND #leaseOwner = :by AND attribute_not_exists(#checkpointOwner)",
                removes=f"#leaseOwner, {_INCARNATION}",
                adds=_NEXT,
                values=_held(operation) | _ONE,
            )
        case CommitCheckpoint():
            return _commit(operation)
        case WriteChildren():
            return _Change(
                f"attribute_exists(#{KEY})",
                sets="#childShardIds = :children",
                values={":children": texts(operation.child_ids)},
            )
        case ResetLease():
            return _reset(operation)
        case _:
            assert_never(operation)


def _held(operation: RenewLease | FinishHandOver | ReleaseLease | CommitCheckpoint) -> dict[str, Attribute]:
    return {":by": text(operation.by), ":counter": number(operation.counter)}


def _renewal(operation: RenewLease) -> _Change:
    measured = {"throughputKBps": operation.throughput, HANDLING: operation.handling}
    written = {name: number(round(value, LOAD_DECIMALS)) for name, value in measured.items() if value is not None}
    sets = ", ".join(f"#{name} = :{name}" for name in written)
    values = {**_held(operation), **_ONE, **{f":{name}": value for name, value in written.items()}}
    return _Change(_HELD, sets=sets, adds=_NEXT, values=values)


def _taking(operation: TakeLease) -> _Change:
    seen = operation.seen
    switches = number(int((seen.owner if seen.checkpoint_owner is None else seen.checkpoint_owner) != operation.by))
    condition, fence = _fenced(seen)
    incarnation = {} if operation.incarnation is None else incarnation_attributes(operation.incarnation)
    # If this owner does not say how it reads, remove what the earlier owner may have written.
    is_silent = operation.incarnation is not None and READ_BY not in incarnation
    sets = [f"#leaseOwner = :by, #leaseCounter = :token, #{GROUP} = :group, #{STREAM} = :stream"]
    return _Change(
        f"{condition} AND {_UNFINISHED}",
        sets=", ".join([*sets, *(f"#{name} = :{name}" for name in incarnation)]),
        removes=f"#checkpointOwner, #{READ_BY}" if is_silent else "#checkpointOwner",
        adds="#ownerSwitchesSinceCheckpoint :switches",
        values={
            ":by": text(operation.by),
            ":token": number(operation.token),
            ":switches": switches,
            **{f":{name}": value for name, value in incarnation.items()},
            **fence,
            **_END,
        },
    )


def _fenced(seen: Fence) -> tuple[str, dict[str, Attribute]]:
    """Return the condition that the row has not changed since it was read, and the values in that condition."""
    conditions, values = ["#leaseCounter = :counter"], {":counter": number(seen.counter)}
    for name, value, expected in (
        ("leaseOwner", ":owner", seen.owner),
        ("checkpointOwner", ":drain", seen.checkpoint_owner),
    ):
        conditions.append(f"attribute_not_exists(#{name})" if expected is None else f"#{name} = {value}")
        if expected is not None:
            values[value] = text(expected)
    return " AND ".join(conditions), values


def _commit(operation: CommitCheckpoint) -> _Change:
    sets, removes, values = _checkpoint(write_checkpoint(operation.checkpoint))
    if operation.window:
        sets, values[f":{WINDOW}"] = f"{sets}, #{WINDOW} = :{WINDOW}", text(operation.window)
    elif operation.window is not None:
        removes = f"{removes}, #{WINDOW}"
    return _Change(
        f"{_HELD} AND {_UNFINISHED}",
        sets=sets,
        removes=removes,
        adds=_NEXT,
        values={**_held(operation), **_END, **_ONE, **values},
    )


def _reset(operation: ResetLease) -> _Change:
    """Return the change for a reset.

    The change writes no group to a row of a KCL, because the operator may use another name for the group than its
    workers.
    """
    condition, fence = _fenced(operation.seen)
    sets, removes, values = _checkpoint(write_checkpoint(operation.checkpoint, operation.latest_at))
    return _Change(
        condition,
        sets=sets,
        removes=f"{removes}, #leaseOwner, #checkpointOwner, #{WINDOW}, {_INCARNATION}",
        adds=_NEXT,
        values={**fence, **_ONE, **values},
    )


def _checkpoint(written: CheckpointText) -> tuple[str, str, dict[str, Attribute]]:
    """Return the SET clause, the REMOVE clause and the values that replace the checkpoint."""
    attributes = checkpoint_attributes(written)
    sets = ", ".join(f"#{name} = :{name}" for name in attributes)
    values = {f":{name}": value for name, value in attributes.items()} | {":zero": number(0)}
    removes = _PENDING if START_AT in attributes else f"{_PENDING}, #{START_AT}"
    return f"{sets}, #ownerSwitchesSinceCheckpoint = :zero", removes, values
