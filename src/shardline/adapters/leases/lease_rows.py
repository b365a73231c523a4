"""Encodes leases as JSON objects, for SQLite and Redis.

Rows in DynamoDB have the KCL's format: see ``dynamodb_items``.

Invariants:

- ``decode_row`` of a row that ``encode_row`` wrote returns an equal lease.
- Members that this version does not know survive every write, because a newer version may use the same store.
- A row that cannot be read raises ``RowError`` and nothing else.
- Rows of earlier versions, which have no incarnation, can be read.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast, final

import msgspec

from shardline.errors import UsageError
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint, Incarnation, Lease
from shardline.model.position import (
    LATEST,
    Position,
    PositionKind,
    at_sequence_number,
    at_timestamp,
    parse_position,
)
from shardline.model.sequence import SequenceNumber

UNKNOWN_TIME: Final = 0.0
"""The time for an AT_TIMESTAMP checkpoint whose row has no time: the earliest one, so that no record is skipped."""


class RowError(ValueError):
    """Raised for a row that cannot be read as a lease."""


@final
class CheckpointText(NamedTuple):
    """A checkpoint in the KCL's format, and the timestamp that this format leaves out."""

    text: str
    sub_sequence: int
    at: float | None


def write_checkpoint(checkpoint: Checkpoint, latest_at: float | None = None) -> CheckpointText:
    number = checkpoint.sequence_number
    if number is not None:
        return CheckpointText(str(number), number.sub_sequence, None)
    position = checkpoint.position
    return CheckpointText(position.kind.value, 0, position.timestamp if latest_at is None else latest_at)


def read_checkpoint(text: str, sub_sequence: int, at: float | None) -> tuple[Checkpoint, float | None]:
    """Return the checkpoint and, if it is LATEST, the time that it is pinned to.

    Raises:
        UsageError: the text is not a checkpoint.
    """
    if text[:1].isdigit():
        return Checkpoint(at_sequence_number(SequenceNumber.parse(text, sub_sequence))), None
    if text == PositionKind.AT_TIMESTAMP:
        return Checkpoint(at_timestamp(UNKNOWN_TIME if at is None else at)), None
    position: Position = parse_position(text)
    return Checkpoint(position), at if position == LATEST else None


class _Incarnation(msgspec.Struct, omit_defaults=True):
    owner: str
    id: str
    lease_duration: float
    read_by: str | None = None


class _Row(msgspec.Struct, omit_defaults=True):
    shard_id: str
    counter: int
    checkpoint: str
    sub_sequence: int = 0
    checkpoint_at: float | None = None
    owner: str | None = None
    checkpoint_owner: str | None = None
    owner_switches: int = 0
    parent_ids: list[str] = []
    child_ids: list[str] = []
    hash_range: tuple[str, str] | None = None
    pending: CheckpointText | None = None
    throughput: float | None = None
    handling: float | None = None
    incarnation: _Incarnation | None = None
    window: str = ""


_MEMBERS: Final = frozenset(_Row.__struct_fields__)
_COUNTER: Final = re.compile(rb'"counter":[0-9]+')
_encode: Final = msgspec.json.Encoder().encode


def encode_row(lease: Lease, previous: bytes | None = None) -> bytes:
    """Return the row of a lease. Unknown members of ``previous``, the row that is replaced, are kept."""
    checkpoint = write_checkpoint(lease.checkpoint, lease.latest_at)
    pending, incarnation = lease.pending_checkpoint, lease.incarnation
    row = _Row(
        shard_id=lease.shard_id,
        counter=lease.counter,
        checkpoint=checkpoint.text,
        sub_sequence=checkpoint.sub_sequence,
        checkpoint_at=checkpoint.at,
        owner=lease.owner,
        checkpoint_owner=lease.checkpoint_owner,
        owner_switches=lease.owner_switches,
        parent_ids=sorted(lease.parent_ids),
        child_ids=sorted(lease.child_ids),
        hash_range=None if lease.hash_range is None else (str(lease.hash_range.start), str(lease.hash_range.end)),
        pending=None if pending is None else write_checkpoint(pending),
        throughput=lease.throughput,
        handling=lease.handling,
        incarnation=None if incarnation is None else _Incarnation(*incarnation),
        window=lease.window,
    )
    unknown = {} if previous is None else {k: v for k, v in _members(previous).items() if k not in _MEMBERS}
    return _encode({**cast("dict[str, object]", msgspec.to_builtins(row)), **unknown}) if unknown else _encode(row)


def split_at_counter(row: bytes) -> tuple[bytes, bytes]:
    """Split a row of ``encode_row`` before and after its counter, so that a store can insert another counter."""
    found = _COUNTER.search(row)  # the first match: quotes are escaped in the shard id, the only text before it
    assert found is not None, "every row has a counter"
    begin = found.start() + len(b'"counter":')
    return row[:begin], row[found.end() :]


def decode_row(row: bytes) -> Lease:
    """Return the lease in a row.

    Raises:
        RowError: the row cannot be read.
    """
    members = _members(row)
    try:
        read = msgspec.convert(members, _Row)
        checkpoint, latest_at = read_checkpoint(read.checkpoint, read.sub_sequence, read.checkpoint_at)
        incarnation = read.incarnation
        return Lease(
            read.shard_id,
            counter=read.counter,
            owner=read.owner,
            checkpoint=checkpoint,
            parent_ids=frozenset(read.parent_ids),
            child_ids=frozenset(read.child_ids),
            hash_range=None if read.hash_range is None else HashRange.parse(*read.hash_range),
            owner_switches=read.owner_switches,
            checkpoint_owner=read.checkpoint_owner,
            latest_at=latest_at,
            pending_checkpoint=None if read.pending is None else read_checkpoint(*read.pending)[0],
            throughput=read.throughput,
            handling=read.handling,
            incarnation=None
            if incarnation is None
            else Incarnation(incarnation.owner, incarnation.id, incarnation.lease_duration, incarnation.read_by),
            window=read.window,
        )
    except (msgspec.ValidationError, UsageError) as error:
        raise RowError(str(error)) from None


def decode_rows(rows: Iterable[bytes], known: Mapping[bytes, Lease]) -> dict[bytes, Lease]:
    """Return a mapping from each row to its lease.

    Rows that are ``known`` from the last listing are not decoded again, because most rows do not change between two
    listings.

    Raises:
        RowError: a row cannot be read.
    """
    return {row: known.get(row) or decode_row(row) for row in rows}


def _members(row: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(row, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RowError(f"it is not a JSON object: {error}") from None
