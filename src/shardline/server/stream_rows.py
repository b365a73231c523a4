"""What of a stream is written down, and how does it come back?

Invariant:

- What is written says all that the service knows of a stream, its consumers and its channels, except its records
  and its rate limits, which start full again.
"""

from typing import Final

import msgspec

from shardline.model.hashing import HashRange
from shardline.server.model.sequence_numbers import WITHOUT_DIGIT
from shardline.server.model.shards import ServerShard
from shardline.server.model.state import ServerChannel, ServerConsumer, ServiceState
from shardline.server.model.streams import Change, ServerStream


class WrittenShard(msgspec.Struct, frozen=True):
    index: int
    start: str
    end: str
    created_at: float
    closed_at: float | None
    began: int
    parent_id: str | None
    adjacent_parent_id: str | None
    first: int
    """The number of the oldest record left: rows may still hold older ones, which stay trimmed."""
    layout: int = WITHOUT_DIGIT
    """Of its sequence numbers. Files of schema 1 do not have it."""


class WrittenChange(msgspec.Struct, frozen=True):
    ready_at: float
    kind: str
    shard_id: str
    other_id: str
    number: str
    """As text: a hash key is larger than the numbers of JSON."""


class WrittenStream(msgspec.Struct, frozen=True):
    """A stream as it is written."""

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
    pending: WrittenChange | None
    shards: list[WrittenShard]
    consumers: list[ServerConsumer]
    policy: str | None = None
    channels: list[ServerChannel] = []
    mode_updates: list[float] = []
    creation_second: int | None = None
    """Files of schema 1 have neither this nor what follows: both are as for a new stream."""
    numbers_begin: int | None = None


_PLAIN: Final = tuple(
    name for name in WrittenStream.__struct_fields__ if name not in {"pending", "shards", "consumers", "channels"}
)
"""Members that are written as they are."""


def write_stream(state: ServiceState, stream: ServerStream) -> WrittenStream:
    pending = stream.pending
    return WrittenStream(
        **{member: getattr(stream, member) for member in _PLAIN},
        pending=None if pending is None else WrittenChange(*pending[:-1], str(pending.number)),
        shards=[
            WrittenShard(
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


def _shard(told: WrittenShard, state: ServiceState) -> ServerShard:
    shard = ServerShard(
        told.index,
        HashRange(int(told.start), int(told.end)),
        state.settings.limits,
        state.now,
        began=told.began,
        layout=told.layout,
        parent_id=told.parent_id,
        adjacent_parent_id=told.adjacent_parent_id,
        record_count=state.records_held,
    )
    shard.created_at, shard.closed_at = told.created_at, told.closed_at
    shard.log.restore(told.first)
    return shard


def restore_stream(state: ServiceState, told: WrittenStream) -> ServerStream:
    """Put a stream and its consumers back; its shards are empty, and begin where they began."""
    limits, arn = state.settings.limits, state.arn_of(told.name)
    stream = ServerStream(told.name, arn, limits, told.created_at, state.records_held)
    for member in _PLAIN:
        if (value := getattr(told, member)) is not None:
            setattr(stream, member, value)
    if told.pending is not None:
        due = told.pending
        stream.pending = Change(due.ready_at, due.kind, due.shard_id, due.other_id, int(due.number))
    for shard in told.shards:
        stream.restore_shard(_shard(shard, state))
    stream.reindex()
    state.streams[stream.name] = stream
    state.consumers |= {one.arn: one for one in told.consumers}
    state.channels |= {one.arn: one for one in told.channels}
    for one in (*told.consumers, *told.channels):
        one.stream_name = stream.name  # an earlier version left it out
        state.reschedule(one)
    state.reschedule(stream)
    return stream
