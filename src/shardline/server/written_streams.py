"""What of a stream is written down, and how does it come back?

Invariant:

- WS1: what is written says all that the service knows of a stream, its consumers and its channels, except its records
  and its rate limits, which start full again.
"""

from typing import Final

import msgspec

from shardline.model.hashing import HashRange
from shardline.server.model.sequence_numbers import WITHOUT_DIGIT
from shardline.server.model.shards import ServerShard
from shardline.server.model.state import ChannelSettings, ServerChannel, ServerConsumer, ServiceState
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


class WrittenConsumer(msgspec.Struct, frozen=True):
    name: str
    arn: str
    created_at: float
    status: str
    ready_at: float
    tags: dict[str, str]
    policy: str | None = None


class WrittenChannel(msgspec.Struct, frozen=True):
    name: str
    arn: str
    created_at: float
    status: str
    ready_at: float
    tags: dict[str, str]
    settings: ChannelSettings


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
    consumers: list[WrittenConsumer]
    policy: str | None = None
    channels: list[WrittenChannel] = []
    mode_updates: list[float] = []
    creation_second: int | None = None
    """Files of schema 1 have neither this nor what follows: both are as for a new stream."""
    numbers_begin: int | None = None


_PLAIN: Final = (
    *("name", "created_at", "status", "mode", "retention_hours", "max_record_kib", "record_distribution"),
    *("encryption_type", "key_id", "tags", "shard_level_metrics", "warm_mibps", "next_index", "count_updates"),
    "policy",
    *("mode_updates", "creation_second", "numbers_begin"),
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
        consumers=[
            WrittenConsumer(one.name, one.arn, one.created_at, one.status, one.ready_at, one.tags, one.policy)
            for one in state.consumers_of(stream)
        ],
        channels=[
            WrittenChannel(one.name, one.arn, one.created_at, one.status, one.ready_at, one.tags, one.settings)
            for one in state.channels_of(stream)
        ],
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
    for one in told.consumers:
        consumer = ServerConsumer(one.name, one.arn, stream.name, one.created_at, one.ready_at)
        consumer.status, consumer.tags, consumer.policy = one.status, one.tags, one.policy
        state.consumers[one.arn] = consumer
        state.reschedule(consumer)
    for each in told.channels:
        channel = ServerChannel(
            each.name, each.arn, stream.name, now=each.created_at, ready_at=each.ready_at, settings=each.settings
        )
        channel.status, channel.tags = each.status, each.tags
        state.channels[each.arn] = channel
        state.reschedule(channel)
    state.reschedule(stream)
    return stream
