"""The events that a producer emits for its operator.

The producer's machine emits events as values, per request or per change, never per record. The shell logs them and
passes them to the user's sink. No event contains data, keys or credentials.
"""

from typing import NamedTuple, TypeAlias, final

from shardline.core.failures import Failure


@final
class RequestAnswered(NamedTuple):
    """A PutRecords request succeeded or failed."""

    entries: int
    records: int
    size_bytes: int
    duration: float
    refused_entries: int
    """The number of entries that the service refused. If the request failed, this is the number of all entries."""
    code: str | None
    """Why the request failed as a whole. ``None`` if it did not."""


@final
class RecordsDelivered(NamedTuple):
    """Records were delivered."""

    records: int
    payload_bytes: int


@final
class RecordsRetried(NamedTuple):
    """Records will be sent again."""

    records: int
    shard_id: str | None
    code: str
    message: str


@final
class RecordsFailed(NamedTuple):
    """Records have failed for good."""

    records: int
    code: str
    message: str


@final
class ShardsChanged(NamedTuple):
    """The producer has a new shard map."""

    open_shards: int
    opened: tuple[str, ...]
    vanished: tuple[str, ...]


@final
class ShardMapFailed(NamedTuple):
    """Listing the shards failed. The producer will try again."""

    failure: Failure


@final
class StreamUnknown(NamedTuple):
    """DescribeStreamSummary failed for good. The producer assumes the default record limit."""

    failure: Failure


@final
class DistributionChanged(NamedTuple):
    """The stream's record distribution changed. Under AUTO, the service chooses the shards: nothing is aggregated."""

    auto: bool


@final
class AggregationStopped(NamedTuple):
    """The producer stopped aggregating: entries landed outside their ranges, and DescribeStreamSummary failed."""

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
