"""Converts streams to rows of the data file, and back.

Invariant:

- A stream's row contains everything that the service knows about the stream, its consumers and its channels, except
  the records (which have their own rows) and the state of its rate limits: after a restart, all buckets are full.
"""

from typing import Final

import msgspec

from shardline.model.hashing import HashRange
from shardline.server.model.sequence_numbers import WITHOUT_DIGIT
from shardline.server.model.shards import ServerShard
from shardline.server.model.state import ServerChannel, ServerConsumer, ServiceState
from shardline.server.model.streams import Change, ServerStream


class ShardRow(msgspec.Struct, frozen=True):
    """The part of a stream's row about one shard."""

    index: int
    start: str
    end: str
    created_at: float
    closed_at: float | None
    began: int
    parent_id: str | None
    adjacent_parent_id: str | None
    first: int
    """The number of the oldest record that was not trimmed. The file may still contain older records."""
    layout: int = WITHOUT_DIGIT
    """The layout of the shard's sequence numbers. Files of schema 1 lack it: their shards have the default."""


class ChangeRow(msgspec.Struct, frozen=True):
    """The part of a stream's row about its pending change."""

    ready_at: float
    kind: str
    shard_id: str
    other_id: str
    number: str
    """The number of the change. It is written as text, because a hash key does not fit into a JSON number."""


class StreamRow(msgspec.Struct, frozen=True):
    """A stream with its shards, consumers and channels, as one row of the data file."""

    name: str
    created_at: float
    status: str
    mode: str
    retention_hours: int
    max_record_kib: int
    record_distribution: str | None
    encryption_type: str
    key_id: str | None
    tags: dict[str, str]
    shard_level_metrics: list[str]
    warm_mibps: int | None
    next_index: int
    count_updates: list[float]
    pending: ChangeRow | None
    shards: list[ShardRow]
    consumers: list[ServerConsumer]
    policy: str | None = None
    channels: list[ServerChannel] = []
    mode_updates: list[float] = []
    creation_second: int | None = None
    """Files of schema 1 lack this member and the next one. Both are then computed as for a new stream."""
    numbers_begin: int | None = None


_PLAIN: Final = tuple(
    name for name in StreamRow.__struct_fields__ if name not in {"pending", "shards", "consumers", "channels"}
)
"""The names of the members that are copied unchanged between a stream and its row."""


def make_stream_row(state: ServiceState, stream: ServerStream) -> StreamRow:
    pending = stream.pending
    return StreamRow(
        **{member: getattr(stream, member) for member in _PLAIN},
        pending=None if pending is None else ChangeRow(*pending[:-1], str(pending.number)),
        shards=[
            ShardRow(
                shard.index,
                str(shard.hash_range.start),
                str(shard.hash_range.end),
                shard.created_at,
                shard.closed_at,
                shard.numbering.began,
                shard.parent_id,
                shard.adjacent_parent_id,
                shard.log.first,
                shard.numbering.layout,
            )
            for shard in stream.shards.values()
        ],
        consumers=state.consumers_of(stream),
        channels=state.channels_of(stream),
    )


def _restore_shard(row: ShardRow, state: ServiceState) -> ServerShard:
    shard = ServerShard(
        row.index,
        HashRange(int(row.start), int(row.end)),
        state.settings.limits,
        state.now,
        began=row.began,
        layout=row.layout,
        parent_id=row.parent_id,
        adjacent_parent_id=row.adjacent_parent_id,
        record_count=state.records_held,
    )
    shard.created_at, shard.closed_at = row.created_at, row.closed_at
    shard.log.restore(row.first)
    return shard


def restore_stream(state: ServiceState, row: StreamRow) -> ServerStream:
    """Restore a stream, its consumers and its channels. The restored shards are empty: the storage then adds their
    records.
    """
    limits, arn = state.settings.limits, state.arn_of(row.name)
    stream = ServerStream(row.name, arn, limits, row.created_at, state.records_held)
    for member in _PLAIN:
        if (value := getattr(row, member)) is not None:
            setattr(stream, member, value)
    if row.pending is not None:
        change = row.pending
        stream.pending = Change(change.ready_at, change.kind, change.shard_id, change.other_id, int(change.number))
    for shard_row in row.shards:
        stream.restore_shard(_restore_shard(shard_row, state))
    stream.reindex()
    state.streams[stream.name] = stream
    state.consumers |= {consumer.arn: consumer for consumer in row.consumers}
    state.channels |= {channel.arn: channel for channel in row.channels}
    for resource in (*row.consumers, *row.channels):
        resource.stream_name = stream.name  # files of an earlier version lack this name
        state.reschedule(resource)
    state.reschedule(stream)
    return stream
