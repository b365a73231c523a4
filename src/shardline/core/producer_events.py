"""What happens inside that an operator may want to know?

Machines emit events as values, per request or per change, never per record; shells log them and hand them to the sink
that the user gave. None of them carries data, keys or credentials.
"""

from typing import NamedTuple, TypeAlias, final

from shardline.core.failures import Failure


@final
class RequestAnswered(NamedTuple):
    """A PutRecords request came to its end."""

    entries: int
    records: int
    size_bytes: int
    duration: float
    refused_entries: int
    """Entries that the service refused; all of them if the request failed."""
    code: str | None
    """Why the request failed as a whole; ``None`` if it did not."""


@final
class RecordsDelivered(NamedTuple):
    """Records that are in the stream, where they belong."""

    records: int
    payload_bytes: int


@final
class RecordsRetried(NamedTuple):
    """Records that are sent again."""

    records: int
    shard_id: str | None
    code: str
    message: str


@final
class RecordsFailed(NamedTuple):
    """Records that were given up."""

    records: int
    code: str
    message: str


@final
class ShardsChanged(NamedTuple):
    """The shard map is new."""

    open_shards: int
    opened: tuple[str, ...]
    vanished: tuple[str, ...]


@final
class ShardMapFailed(NamedTuple):
    """The shard map could not be read; it is tried again."""

    failure: Failure


@final
class StreamUnknown(NamedTuple):
    """DescribeStreamSummary failed for good: the stream's record limit is taken to be the default."""

    failure: Failure


@final
class DistributionChanged(NamedTuple):
    """Whether the service chooses the shards itself (AUTO record distribution): then nothing is aggregated."""

    auto: bool


@final
class AggregationStopped(NamedTuple):
    """Entries land outside their ranges and the stream cannot be asked why: nothing is aggregated any more."""

    failure: Failure


Event: TypeAlias = (
    RequestAnswered
    | RecordsDelivered
    | RecordsRetried
    | RecordsFailed
    | ShardsChanged
    | ShardMapFailed
    | StreamUnknown
    | DistributionChanged
    | AggregationStopped
)
