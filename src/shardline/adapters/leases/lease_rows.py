"""How does a lease look in a store of ours (SQLite, Redis)?

As a JSON object. DynamoDB's rows are the KCL's and stand in ``dynamodb_items``.

Invariants:

- What ``encode_row`` writes, ``decode_row`` reads back as an equal lease.
- Members that this version does not know survive every write: a newer version may run beside it.
- A row that cannot be read raises ``RowError`` and nothing else.
- Rows of earlier versions, which say nothing of an owner's incarnation, are read like any other.
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
"""AT_TIMESTAMP in a row that does not say which: the oldest, so that nothing is skipped."""


class RowError(ValueError):
    """A row that is no lease."""


@final
class CheckpointText(NamedTuple):
    """A checkpoint as the KCL writes it, and the time that it leaves out."""

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
    """The checkpoint, and since when it is LATEST.

    Raises:
        UsageError: it is none.
    """
    if text[:1].isdigit():
        return Checkpoint(at_sequence_number(SequenceNumber.parse(text, sub_sequence))), None
    if text == PositionKind.AT_TIMESTAMP:
        return Checkpoint(at_timestamp(UNKNOWN_TIME if at is None else at)), None
    position: Position = parse_position(text)
    return Checkpoint(position), at if position == LATEST else None


class _Incarnation(msgspec.Struct):
    owner: str
    id: str
    lease_duration: float


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
    incarnation: _Incarnation | None = None


_MEMBERS: Final = frozenset(_Row.__struct_fields__)
_COUNTER: Final = re.compile(rb'"counter":[0-9]+')
_encode: Final = msgspec.json.Encoder().encode


def encode_row(lease: Lease, previous: bytes | None = None) -> bytes:
    """The row of ``lease``, with what is unknown in ``previous``, the row that it replaces."""
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
        incarnation=None if incarnation is None else _Incarnation(*incarnation),
    )
    unknown = {} if previous is None else {k: v for k, v in _members(previous).items() if k not in _MEMBERS}
    return _encode({**cast("dict[str, object]", msgspec.to_builtins(row)), **unknown}) if unknown else _encode(row)


def split_at_counter(row: bytes) -> tuple[bytes, bytes]:
    """What comes before and after the counter in a row that ``encode_row`` wrote: for a store that puts in another."""
    found = _COUNTER.search(row)  # the first: quotes are escaped in the shard id, the only text before it
    assert found is not None, "every row has a counter"
    begin = found.start() + len(b'"counter":')
    return row[:begin], row[found.end() :]


def decode_row(row: bytes) -> Lease:
    """The lease in a row.

    Raises:
        RowError: there is none.
    """
    members = _members(row)
    try:
        read = msgspec.convert(members, _Row)
        checkpoint, latest_at = read_checkpoint(read.checkpoint, read.sub_sequence, read.checkpoint_at)
        said = read.incarnation
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
            incarnation=None if said is None else Incarnation(said.owner, said.id, said.lease_duration),
        )
    except (msgspec.ValidationError, UsageError) as error:
        raise RowError(str(error)) from None


def decode_rows(rows: Iterable[bytes], known: Mapping[bytes, Lease]) -> dict[bytes, Lease]:
    """The leases in rows, by row. Those that are ``known`` from the last time are not decoded again: most stand still.

    Raises:
        RowError: one is none.
    """
    return {row: known.get(row) or decode_row(row) for row in rows}


def _members(row: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(row, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RowError(f"it is no JSON object: {error}") from None
