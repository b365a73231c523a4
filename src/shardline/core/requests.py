"""The requests that a machine may send to the service.

The classes are named after the AWS operations. Control-plane calls, which no machine makes, go through
``KinesisApi.call``.
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
    """The stream, of which only the ARN is used. If the ARN is known, the call goes to the endpoint of its account."""


@final
@dataclass(frozen=True, slots=True)
class ShardFilter:
    """Selects the shards that ListShards returns.

    ``kind`` is the service's name for the filter, such as ``AT_LATEST`` or ``FROM_TIMESTAMP``.
    """

    kind: str
    shard_id: str | None = None
    timestamp: float | None = None


@final
@dataclass(frozen=True, slots=True)
class ListShards:
    """A request for one page of shards. The service requires that later pages are requested by the token alone."""

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
