"""Defines structs for the service's responses.

The fields have our own names. ``awsjson`` and ``awscbor`` fill them from the members of a response, which have the
service's names. Unknown members are ignored, because the service may add some at any time. Members that are optional in
the service model, or that emulators send as null, may be ``None``.
"""

from typing import TypeAlias

import msgspec

from shardline.model.hashing import HashRange
from shardline.model.limits import KIB, RECORD_DEFAULT_MAX_BYTES
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import ChildShard, Shard

Timestamp: TypeAlias = float
"""A time, in seconds since 1970."""


class HashKeyRangeShape(msgspec.Struct, frozen=True, rename="pascal"):
    starting_hash_key: str
    ending_hash_key: str

    def to_range(self) -> HashRange:
        return HashRange.parse(self.starting_hash_key, self.ending_hash_key)


class SequenceNumberRangeShape(msgspec.Struct, frozen=True, rename="pascal"):
    starting_sequence_number: str
    ending_sequence_number: str | None = None


class ShardShape(msgspec.Struct, frozen=True, rename="pascal"):
    shard_id: str
    hash_key_range: HashKeyRangeShape
    sequence_number_range: SequenceNumberRangeShape
    parent_shard_id: str | None = None
    adjacent_parent_shard_id: str | None = None

    def to_shard(self) -> Shard:
        ending = self.sequence_number_range.ending_sequence_number
        return Shard(
            shard_id=self.shard_id,
            hash_range=self.hash_key_range.to_range(),
            starting_sequence_number=SequenceNumber.parse(self.sequence_number_range.starting_sequence_number),
            ending_sequence_number=None if ending is None else SequenceNumber.parse(ending),
            parent_id=self.parent_shard_id,
            adjacent_parent_id=self.adjacent_parent_shard_id,
        )


class ChildShardShape(msgspec.Struct, frozen=True, rename="pascal"):
    shard_id: str
    parent_shards: tuple[str, ...]
    hash_key_range: HashKeyRangeShape

    def to_child(self) -> ChildShard:
        return ChildShard(self.shard_id, self.parent_shards, self.hash_key_range.to_range())


class PutRecordsResult(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """The result of one entry: it was stored (``sequence_number``) or refused (``error_code``)."""

    sequence_number: str | None = None
    shard_id: str | None = None
    error_code: str | None = None
    error_message: str | None = None


class PutRecordsResponse(msgspec.Struct, frozen=True):
    """One result for each entry of the request, in the order of the entries."""

    records: list[PutRecordsResult] = msgspec.field(name="Records")
    failed_count: int | None = msgspec.field(name="FailedRecordCount", default=None)
    encryption_type: str | None = msgspec.field(name="EncryptionType", default=None)


class PutRecordResponse(msgspec.Struct, frozen=True, rename="pascal"):
    shard_id: str
    sequence_number: str
    encryption_type: str | None = None


class RawRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as the shard stores it: plain, or an aggregate that ``deaggregate`` unpacks."""

    data: bytes = msgspec.field(name="Data")
    sequence_number: str = msgspec.field(name="SequenceNumber")
    key: str | None = msgspec.field(name="PartitionKey", default=None)
    arrived_at: Timestamp | None = msgspec.field(name="ApproximateArrivalTimestamp", default=None)
    encryption_type: str | None = msgspec.field(name="EncryptionType", default=None)


class GetRecordsResponse(msgspec.Struct, frozen=True):
    """One page of a shard. At the end of a closed shard, ``next_iterator`` is ``None`` and ``child_shards`` is set."""

    records: list[RawRecord] = msgspec.field(name="Records")
    next_iterator: str | None = msgspec.field(name="NextShardIterator", default=None)
    millis_behind_latest: int | None = msgspec.field(name="MillisBehindLatest", default=None)
    child_shapes: tuple[ChildShardShape, ...] | None = msgspec.field(name="ChildShards", default=None)

    @property
    def child_shards(self) -> tuple[ChildShard, ...]:
        return tuple(child.to_child() for child in self.child_shapes or ())


class SubscribeToShardEvent(msgspec.Struct, frozen=True):
    """One event of an enhanced fan-out subscription. To continue, subscribe after ``continuation_sequence_number``."""

    records: list[RawRecord] = msgspec.field(name="Records")
    continuation_sequence_number: str | None = msgspec.field(name="ContinuationSequenceNumber", default=None)
    millis_behind_latest: int | None = msgspec.field(name="MillisBehindLatest", default=None)
    child_shapes: tuple[ChildShardShape, ...] | None = msgspec.field(name="ChildShards", default=None)

    @property
    def child_shards(self) -> tuple[ChildShard, ...]:
        return tuple(child.to_child() for child in self.child_shapes or ())


class GetShardIteratorResponse(msgspec.Struct, frozen=True, rename="pascal"):
    shard_iterator: str


class ListShardsResponse(msgspec.Struct, frozen=True, rename="pascal"):
    shards: list[ShardShape] | None = None
    next_token: str | None = None


class StreamModeShape(msgspec.Struct, frozen=True, rename="pascal"):
    stream_mode: str


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A stream, as DescribeStreamSummary describes it."""

    name: str = msgspec.field(name="StreamName")
    arn: str = msgspec.field(name="StreamARN")
    status: str = msgspec.field(name="StreamStatus")
    retention_hours: int = msgspec.field(name="RetentionPeriodHours", default=24)
    open_shard_count: int | None = msgspec.field(name="OpenShardCount", default=None)
    consumer_count: int | None = msgspec.field(name="ConsumerCount", default=None)
    created_at: Timestamp | None = msgspec.field(name="StreamCreationTimestamp", default=None)
    encryption_type: str | None = msgspec.field(name="EncryptionType", default=None)
    key_id: str | None = msgspec.field(name="KeyId", default=None)
    mode_shape: StreamModeShape | None = msgspec.field(name="StreamModeDetails", default=None)
    max_record_kib: int | None = msgspec.field(name="MaxRecordSizeInKiB", default=None)
    record_distribution: str | None = msgspec.field(name="RecordDistributionStrategy", default=None)
    channels_shape: int | None = msgspec.field(name="ChannelCount", default=None)

    @property
    def channel_count(self) -> int:
        """The number of channels, which read the stream's records by schema, or 0 if the service does not report it."""
        return max(self.channels_shape or 0, 0)

    @property
    def mode(self) -> str:
        """The capacity mode of the stream: ``PROVISIONED`` or ``ON_DEMAND``."""
        return self.mode_shape.stream_mode if self.mode_shape is not None else "PROVISIONED"

    @property
    def max_record_bytes(self) -> int:
        """The size of the largest record (data and key) that the stream accepts, or the default if it is unknown."""
        return max(self.max_record_kib or 0, 0) * KIB or RECORD_DEFAULT_MAX_BYTES


class DescribeStreamSummaryResponse(msgspec.Struct, frozen=True, rename="pascal"):
    stream_description_summary: StreamSummary


class StreamListing(msgspec.Struct, frozen=True, kw_only=True):
    """A stream, as ListStreams describes it. Emulators and old endpoints return only the name."""

    name: str = msgspec.field(name="StreamName")
    arn: str | None = msgspec.field(name="StreamARN", default=None)
    status: str | None = msgspec.field(name="StreamStatus", default=None)
    created_at: Timestamp | None = msgspec.field(name="StreamCreationTimestamp", default=None)


class ListStreamsResponse(msgspec.Struct, frozen=True, rename="pascal"):
    stream_names: list[str]
    has_more_streams: bool = False
    next_token: str | None = None
    stream_summaries: list[StreamListing] | None = None


class StreamConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A registered consumer (enhanced fan-out)."""

    name: str = msgspec.field(name="ConsumerName")
    arn: str = msgspec.field(name="ConsumerARN")
    status: str = msgspec.field(name="ConsumerStatus")
    created_at: Timestamp | None = msgspec.field(name="ConsumerCreationTimestamp", default=None)
    stream_arn: str | None = msgspec.field(name="StreamARN", default=None)


class RegisterStreamConsumerResponse(msgspec.Struct, frozen=True, rename="pascal"):
    consumer: StreamConsumer


class DescribeStreamConsumerResponse(msgspec.Struct, frozen=True, rename="pascal"):
    consumer_description: StreamConsumer


class ListStreamConsumersResponse(msgspec.Struct, frozen=True, rename="pascal"):
    consumers: list[StreamConsumer] = msgspec.field(default_factory=list[StreamConsumer])
    next_token: str | None = None


class ShardCountUpdate(msgspec.Struct, frozen=True, rename="pascal"):
    """The response to UpdateShardCount."""

    current_shard_count: int | None = None
    target_shard_count: int | None = None


class TagShape(msgspec.Struct, frozen=True, rename="pascal"):
    key: str
    value: str | None = None


class ListTagsForStreamResponse(msgspec.Struct, frozen=True, rename="pascal"):
    tags: list[TagShape]
    has_more_tags: bool = False
