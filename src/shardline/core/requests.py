"""What may a machine ask of the service?

The closed set of data-plane requests, under AWS's own operation names. Control-plane calls that no machine makes go
through ``KinesisApi.call``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from shardline.model.position import Position
from shardline.model.record import Entry
from shardline.model.stream import StreamRef


@final
@dataclass(frozen=True, slots=True)
class PutRecords:
    stream: StreamRef
    entries: Sequence[Entry]


@final
@dataclass(frozen=True, slots=True)
class GetShardIterator:
    stream: StreamRef
    shard_id: str
    position: Position


@final
@dataclass(frozen=True, slots=True)
class GetRecords:
    iterator: str
    limit: int | None = None
    stream: StreamRef | None = None
    """Only its ARN matters: with it the call goes to the stream's account endpoint."""


@final
@dataclass(frozen=True, slots=True)
class ShardFilter:
    """Which shards ListShards tells of, in the service's words: ``AT_LATEST``, ``FROM_TIMESTAMP``, ..."""

    kind: str
    shard_id: str | None = None
    timestamp: float | None = None


@final
@dataclass(frozen=True, slots=True)
class ListShards:
    """One page. Later pages go by the token alone, as the service demands."""

    stream: StreamRef
    shard_filter: ShardFilter | None = None
    next_token: str | None = None
    max_results: int | None = None


@final
@dataclass(frozen=True, slots=True)
class DescribeStreamSummary:
    stream: StreamRef


@final
@dataclass(frozen=True, slots=True)
class SubscribeToShard:
    consumer_arn: str
    shard_id: str
    position: Position
