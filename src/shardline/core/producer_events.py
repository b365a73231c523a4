"""The events that a producer emits for its operator.

The producer's machine emits events as values, per request or per change, never per record. The shell logs them and
passes them to the user's sink. No event contains data, keys or credentials.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

from shardline.core.error_codes import Failure


@final
@dataclass(frozen=True, slots=True)
class LaneStats:
    """The statistics of one shard."""

    shard_id: str
    queued_entries: int
    queued_bytes: int
    in_flight: int
    rate_share: float
    """The share of the configured rates that is left after throttling. 1 means the full rates."""
    tripped: bool
    """Whether the circuit is open: after several failures in a row, the lane sends one entry at a time."""


@final
class RequestAnswered(NamedTuple):
    """A PutRecords request succeeded or failed."""

    entries: int
    records: int
    size_bytes: int
    duration: float
    refused_entries: int
    """The number of entries that the service refused. If the whole request failed, all entries count as refused."""
    code: str | None
    """The error code if the whole request failed, otherwise ``None``."""
    started_at: float = 0.0
    """When the request was sent, in seconds since 1970."""


@final
class ShardDelivery(NamedTuple):
    """The records of one request that were stored in one shard."""

    shard_id: str
    records: int
    payload_bytes: int
    latency: float
    """The time from the put of the oldest of these records to the answer, in seconds."""


@final
class RecordsDelivered(NamedTuple):
    """Records of one request were delivered."""

    records: int
    payload_bytes: int
    latency: float
    """The time from the put of the oldest of these records to the answer, in seconds."""
    shards: tuple[ShardDelivery, ...]
    """The shards in which these records were stored."""


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
    """The stream's record distribution changed. Under AUTO, the service chooses shards, and nothing is aggregated."""

    auto: bool


@final
class AggregationStopped(NamedTuple):
    """The producer stopped aggregating: entries landed outside their ranges, and DescribeStreamSummary failed."""

    failure: Failure


@final
class ChannelsFound(NamedTuple):
    """The stream has channels, which cannot read aggregates. The producer does not aggregate while channels exist."""

    channels: int


@final
class ProducerReconfigured(NamedTuple):
    """Your code changed settings of the running producer. The event contains the values that apply from now on."""

    linger: float
    records_per_second: float
    bytes_per_second: float


@final
class ProducerMeasured(NamedTuple):
    """The state of the producer. This event is emitted every 5 seconds."""

    outstanding: int
    """The number of records that were put and have neither been delivered nor failed."""
    buffered_bytes: int
    buffer_max_bytes: int
    oldest_waiting: float
    """How long the oldest record that is not in flight has waited, in seconds."""
    requests_in_flight: int
    lanes: tuple[LaneStats, ...]


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
    | ChannelsFound
    | ProducerReconfigured
    | ProducerMeasured
)
