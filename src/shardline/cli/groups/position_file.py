"""Writes the positions of a group as JSON and reads them back.

``groups export`` writes this format and ``groups import`` reads it. docs/reference/cli/group-positions.md describes
it::

    {"version": 1, "group": "billing", "stream": "orders", "exported_at": "2026-03-01T09:30:00.000Z", "shards": [
      {"shard_id": "shardId-000000000000", "position": "AT_SEQUENCE_NUMBER", "sequence_number": "4959...",
       "sub_sequence": 2, "parent_ids": [], "hash_range": ["0", "340..."]}]}

Invariants:

- The positions that are read are exactly those that were written, sub-sequences and times included. Owners, counters
  and fencing tokens are not written: they belong to a store.
- A file with an unknown member is refused, so that a misspelled name is not ignored.
- A refusal names the shard and the member.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, final

import msgspec

from shardline.codec.record_lines import shown_time
from shardline.errors import UsageError
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Position,
    PositionKind,
    at_sequence_number,
    at_timestamp,
)
from shardline.model.sequence import SequenceNumber
from shardline.ports import GroupOnStream

VERSION: Final = 1
_FIXED: Final = {position.kind.value: position for position in (TRIM_HORIZON, LATEST, SHARD_END)}
_KINDS: Final = (*_FIXED, PositionKind.AT_TIMESTAMP.value, PositionKind.AT_SEQUENCE_NUMBER.value)


class _Version(msgspec.Struct):
    version: int


class _Shard(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    shard_id: str
    position: str
    sequence_number: str | None = None
    sub_sequence: int | None = None
    timestamp: float | None = None
    parent_ids: list[str] | None = None
    hash_range: tuple[str, str] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    version: int
    group: str
    stream: str
    exported_at: str | None = None
    shards: list[_Shard]


@final
class GroupPositions(NamedTuple):
    """The positions of a group, as leases without owners."""

    name: GroupOnStream
    rows: dict[str, Lease]


def encode_positions(name: GroupOnStream, rows: Iterable[Lease], now: float) -> bytes:
    """Return the positions of a group as indented JSON. ``now`` is the time, in seconds since 1970."""
    shards = [_shard_of(row) for row in sorted(rows, key=lambda row: row.shard_id)]
    file = _File(
        version=VERSION, group=str(name.group), stream=str(name.stream), exported_at=shown_time(now), shards=shards
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def _shard_of(row: Lease) -> _Shard:
    position, number, hashes = row.checkpoint.position, row.checkpoint.sequence_number, row.hash_range
    return _Shard(
        row.shard_id,
        position.kind.value,
        sequence_number=None if number is None else str(number),
        sub_sequence=None if number is None else number.sub_sequence,
        timestamp=row.latest_at if position.timestamp is None else position.timestamp,
        parent_ids=sorted(row.parent_ids),
        hash_range=None if hashes is None else (str(hashes.start), str(hashes.end)),
    )


def decode_positions(data: bytes) -> GroupPositions:
    """Return the positions in a file.

    Raises:
        UsageError: the data is not in this format, or a position is invalid.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise UsageError(f"the positions are in version {version} of the format: this Shardline reads {VERSION}")
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not the positions of a group as JSON: {error}") from None
    if not file.shards:
        raise UsageError("the file has no shards")
    rows: dict[str, Lease] = {}
    for shard in file.shards:
        if shard.shard_id in rows:
            raise UsageError(f"the file has the shard {shard.shard_id} twice")
        try:
            rows[shard.shard_id] = _row_of(shard)
        except UsageError as error:
            raise UsageError(f"the position of {shard.shard_id} is invalid: {error}") from None
    return GroupPositions(GroupOnStream(file.group, file.stream), rows)


def _row_of(shard: _Shard) -> Lease:
    position = _position_of(shard)
    hashes = shard.hash_range
    return Lease(
        shard.shard_id,
        checkpoint=Checkpoint(position),
        parent_ids=frozenset(shard.parent_ids or ()),
        hash_range=None if hashes is None else HashRange.parse(*hashes),
        latest_at=shard.timestamp if position == LATEST else None,
    )


def _position_of(shard: _Shard) -> Position:
    kind, number, timestamp = shard.position, shard.sequence_number, shard.timestamp
    if kind not in _KINDS:
        raise UsageError(f"position must be one of {', '.join(_KINDS)}, not {kind!r}")
    if (number is not None) != (kind == PositionKind.AT_SEQUENCE_NUMBER):
        raise UsageError(f"{kind} {'takes no' if number is not None else 'needs a'} sequence_number")
    if shard.sub_sequence is not None and number is None:
        raise UsageError("sub_sequence needs a sequence_number")
    if timestamp is not None and kind not in (PositionKind.AT_TIMESTAMP, PositionKind.LATEST):
        raise UsageError(f"{kind} takes no timestamp")
    if number is not None:
        return at_sequence_number(SequenceNumber.parse(number, shard.sub_sequence or 0))
    if kind != PositionKind.AT_TIMESTAMP:
        return _FIXED[kind]
    if timestamp is None:
        raise UsageError(f"{kind} needs a timestamp, in seconds since 1970")
    return at_timestamp(timestamp)
