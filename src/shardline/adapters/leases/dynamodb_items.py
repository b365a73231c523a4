"""Encodes leases as rows of a KCL lease table, and decodes them.

The attributes are those that the Kinesis Client Library (KCL, 1.x to 3.x) writes, so that an application can switch
between the KCL and Shardline without converting its table.

Invariants:

- Every row that we create has all attributes that a Java reader needs. Without ``leaseCounter`` or
  ``ownerSwitchesSinceCheckpoint``, the reader throws. ``parentShardId`` is a set, in spite of its name, and absent when
  empty.
- Our own attributes begin with ``shardline``, and Java ignores and keeps them. They store the group and the stream of a
  row (KCL tables do not name them), the time to which a checkpoint at LATEST is pinned, the stamps that belong to the
  checkpoint (``dedup``), the handling time of the shard, and the process that took the lease: its owner name, its
  random id and its lease duration. Because Java keeps the latter when it takes a lease, they include the owner name,
  and count only while this name equals ``leaseOwner``. Likewise, the stamps name their checkpoint.
- In a table of several streams, a row has the KCL's identifier of its stream (``stream_identifier``) in its key and in
  ``streamName``, and the id of its shard in ``shardId``. The ids of parents and children are shard ids, as in other
  tables.
- A row that cannot be read raises ``RowError`` and nothing else.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

from shardline.adapters.leases.lease_rows import CheckpointText, RowError, read_checkpoint, write_checkpoint
from shardline.errors import UsageError
from shardline.model.hashing import HashRange
from shardline.model.lease import Incarnation, Lease

Attribute: TypeAlias = dict[str, Any]
Item: TypeAlias = dict[str, Attribute]

KEY: Final = "leaseKey"
GROUP: Final = "shardlineGroup"
STREAM: Final = "shardlineStream"
START_AT: Final = "shardlineStartAt"
OWNER: Final = "shardlineOwner"
INCARNATION: Final = "shardlineIncarnation"
LEASE_DURATION: Final = "shardlineLeaseDuration"
READ_BY: Final = "shardlineReadBy"
WINDOW: Final = "shardlineDedupWindow"
HANDLING: Final = "shardlineHandling"
STREAM_NAME: Final = "streamName"
SHARD_ID: Final = "shardId"
SHARD_END: Final = "SHARD_END"
_ENTITY: Final = "entityType"
_LEASE: Final = "LEASE"


def text(value: str) -> Attribute:
    return {"S": value}


def number(value: float) -> Attribute:
    return {"N": repr(value)}


def texts(values: frozenset[str]) -> Attribute:
    return {"SS": sorted(values)}


def stream_identifier(account_id: str, stream: str, created_at: float) -> str:
    """Return the KCL's identifier of a stream in a table of several streams. A re-created stream has another one."""
    return f"{account_id}:{stream}:{int(created_at)}"


def key_of(shard_id: str, identifier: str | None = None) -> Item:
    """Return the key of a row. ``identifier`` is the stream's, in a table of several streams."""
    return {KEY: text(shard_id if identifier is None else f"{identifier}:{shard_id}")}


def identifier_of(item: Mapping[str, Attribute]) -> str | None:
    """Return the identifier of the row's stream, or ``None`` if the table has one stream."""
    return _text(item, STREAM_NAME)


def names_stream(identifier: str, stream: str) -> bool:
    """Return whether this is the identifier of a stream of this name."""
    return identifier.split(":")[1:2] == [stream]


def is_lease(item: Mapping[str, Attribute]) -> bool:
    """Return whether a row is a lease. KCL 3.5 keeps rows of other types in the same table, and marks their type."""
    return _ENTITY not in item or item[_ENTITY].get("S") == _LEASE


def group_and_stream(item: Mapping[str, Attribute]) -> tuple[str | None, str | None]:
    """Return the group and the stream that a row names, with ``None`` for a name that is missing."""
    identifier = identifier_of(item)
    named = None if identifier is None else next(iter(identifier.split(":")[1:2]), None)
    return _text(item, GROUP), _text(item, STREAM) or named


def foreign_user(item: Mapping[str, Attribute], group: str, stream: str, *, is_shared: bool = False) -> str | None:
    """Describe the application that a row belongs to, or return ``None`` if it belongs to this group and stream.

    In a table of several streams (``is_shared``), only rows of this stream are passed.
    """
    key = _text(item, KEY) or ""
    if not is_shared and (STREAM_NAME in item or ":" in key):
        return f"an application of several streams (row {key!r})"
    if is_shared and STREAM_NAME not in item:
        return f"an application of one stream (row {key!r})"
    user = group_and_stream(item)
    return (
        None if user in {(None, None), (None, stream), (group, stream)} else f"group {user[0]!r} on stream {user[1]!r}"
    )


def checkpoint_attributes(checkpoint: CheckpointText) -> Item:
    item = {"checkpoint": text(checkpoint.text), "checkpointSubSequenceNumber": number(checkpoint.sub_sequence)}
    if checkpoint.at is not None:
        item[START_AT] = number(checkpoint.at)
    return item


def incarnation_attributes(incarnation: Incarnation) -> Item:
    item = {
        OWNER: text(incarnation.owner),
        INCARNATION: text(incarnation.id),
        LEASE_DURATION: number(incarnation.lease_duration),
    }
    return item if incarnation.read_by is None else item | {READ_BY: text(incarnation.read_by)}


def encode_item(lease: Lease, group: str, stream: str, identifier: str | None = None) -> Item:
    """Return a new row for a lease."""
    item = key_of(lease.shard_id, identifier)
    if identifier is not None:
        item |= {STREAM_NAME: text(identifier), SHARD_ID: text(lease.shard_id)}
    item |= {"leaseCounter": number(lease.counter), "ownerSwitchesSinceCheckpoint": number(lease.owner_switches)}
    item |= checkpoint_attributes(write_checkpoint(lease.checkpoint, lease.latest_at))
    item |= {_ENTITY: text(_LEASE), GROUP: text(group), STREAM: text(stream)}
    pending = None if lease.pending_checkpoint is None else write_checkpoint(lease.pending_checkpoint)
    optional = {
        "leaseOwner": None if lease.owner is None else text(lease.owner),
        "checkpointOwner": None if lease.checkpoint_owner is None else text(lease.checkpoint_owner),
        "parentShardId": lease.parent_ids and texts(lease.parent_ids),
        "childShardIds": lease.child_ids and texts(lease.child_ids),
        "startingHashKey": lease.hash_range and text(str(lease.hash_range.start)),
        "endingHashKey": lease.hash_range and text(str(lease.hash_range.end)),
        "pendingCheckpoint": pending and text(pending.text),
        "pendingCheckpointSubSequenceNumber": pending and number(pending.sub_sequence),
        "throughputKBps": None if lease.throughput is None else number(lease.throughput),
        HANDLING: None if lease.handling is None else number(lease.handling),
        WINDOW: text(lease.window) if lease.window else None,
    }
    item |= {name: attribute for name, attribute in optional.items() if isinstance(attribute, dict)}
    return item if lease.incarnation is None else item | incarnation_attributes(lease.incarnation)


def decode_item(item: Mapping[str, Attribute]) -> Lease:
    """Return the lease in a row that we or a KCL wrote.

    Raises:
        RowError: the row cannot be read.
    """
    key = _text(item, KEY)
    try:
        # KCLs before 2.3 write no shardId.
        return _decode(item, _text(item, SHARD_ID) or _required(key, KEY).rpartition(":")[2])
    except (UsageError, RowError, TypeError, ValueError, OverflowError) as error:
        raise RowError(f"the row {key!r}: {error}") from None


def _decode(item: Mapping[str, Attribute], shard_id: str) -> Lease:
    text_ = _required(_text(item, "checkpoint"), "checkpoint")
    checkpoint, latest_at = read_checkpoint(
        text_, _whole(item, "checkpointSubSequenceNumber") or 0, _real(item, START_AT)
    )
    pending = _text(item, "pendingCheckpoint")
    throughput, handling = _real(item, "throughputKBps"), _real(item, HANDLING)
    start, end = _text(item, "startingHashKey"), _text(item, "endingHashKey")
    return Lease(
        shard_id,
        counter=_required(_whole(item, "leaseCounter"), "leaseCounter"),
        owner=_text(item, "leaseOwner"),
        checkpoint=checkpoint,
        parent_ids=_set(item, "parentShardId"),
        child_ids=_set(item, "childShardIds"),
        hash_range=None if start is None or end is None else HashRange.parse(start, end),
        owner_switches=_whole(item, "ownerSwitchesSinceCheckpoint") or 0,
        checkpoint_owner=_text(item, "checkpointOwner"),
        latest_at=latest_at,
        pending_checkpoint=None
        if pending is None
        else read_checkpoint(pending, _whole(item, "pendingCheckpointSubSequenceNumber") or 0, None)[0],
        throughput=throughput if throughput is None or throughput >= 0 else None,
        handling=handling,
        incarnation=_incarnation(item),
        window=_text(item, WINDOW) or "",
    )


def _incarnation(item: Mapping[str, Attribute]) -> Incarnation | None:
    owner, identity, duration = _text(item, OWNER), _text(item, INCARNATION), _real(item, LEASE_DURATION)
    if owner is None or identity is None or duration is None:
        return None
    return Incarnation(owner, identity, duration, _text(item, READ_BY))


def _required(value: Any, name: str) -> Any:
    if value is None:
        raise RowError(f"it has no {name}")
    return value


def _member(item: Mapping[str, Attribute], name: str, kind: str) -> Any:
    attribute = item.get(name)
    if attribute is None:
        return None
    if kind not in attribute:
        raise RowError(f"{name} is {attribute}, not of type {kind}")
    return attribute[kind]


def _text(item: Mapping[str, Attribute], name: str) -> str | None:
    value = _member(item, name, "S")
    return None if value is None else str(value)


def _whole(item: Mapping[str, Attribute], name: str) -> int | None:
    value = _member(item, name, "N")
    return None if value is None else int(value)


def _real(item: Mapping[str, Attribute], name: str) -> float | None:
    value = _member(item, name, "N")
    return None if value is None else float(value)


def _set(item: Mapping[str, Attribute], name: str) -> frozenset[str]:
    return frozenset(cast("list[str]", _member(item, name, "SS") or []))
