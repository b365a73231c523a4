"""The requests of all operations: their members and the values that are allowed.

msgspec decodes requests into these structs, which declare the constraints of the service model [MODEL]. For an invalid
member, ``constraints`` produces AWS's answer: SerializationException for a wrong type, ValidationException for a
violated constraint. The structs in lists have the names of the service model, because AWS's messages show them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from shardline.model.limits import PUT_RECORDS_MAX_ENTRIES
from shardline.server.model.channel_inputs import ChannelInput, CreateChannel, ListChannels, UpdateChannel
from shardline.server.model.constraints import reread
from shardline.server.model.member_types import (
    ConsumerArn,
    ConsumerName,
    Data,
    Distribution,
    HashKey,
    Int,
    KeyId,
    MetricsName,
    NaturalInt,
    PartitionKey,
    PositionType,
    PositiveInt,
    ResourceArn,
    SequenceNumber,
    ShardId,
    StreamArn,
    StreamId,
    StreamName,
    TagKey,
    TagKeys,
    TagMap,
    Token,
)
from shardline.server.model.refusals import serialization


class StreamInput(Struct, rename="pascal", kw_only=True):
    """The members that name a stream, by its name or its ARN.

    ``stream_id`` has no effect: the reference calls it "Not Implemented. Reserved for future use."
    """

    stream_name: StreamName | None = None
    stream_arn: StreamArn | None = field(name="StreamARN", default=None)
    stream_id: StreamId | None = None


class StreamArnInput(Struct, rename="pascal", kw_only=True):
    """The stream of a request that accepts only an ARN."""

    stream_arn: StreamArn = field(name="StreamARN")
    stream_id: StreamId | None = None


class ModeDetails(Struct, rename="pascal"):
    stream_mode: Literal["PROVISIONED", "ON_DEMAND"]


class PutRecordsRequestEntry(Struct, rename="pascal", gc=False):
    data: Data
    partition_key: PartitionKey | UnsetType = UNSET
    explicit_hash_key: HashKey | None = None


class PutRecords(StreamInput):
    records: Annotated[list[PutRecordsRequestEntry], Meta(min_length=1, max_length=PUT_RECORDS_MAX_ENTRIES)]
    dry_run: bool | None = None


class PutRecord(StreamInput):
    data: Data
    partition_key: PartitionKey | UnsetType = UNSET
    explicit_hash_key: HashKey | None = None
    sequence_number_for_ordering: SequenceNumber | None = None
    dry_run: bool | None = None


class GetRecords(Struct, rename="pascal"):
    shard_iterator: Annotated[str, Meta(min_length=1, max_length=512)]
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    stream_arn: StreamArn | None = field(name="StreamARN", default=None)
    stream_id: StreamId | None = None
    dry_run: bool | None = None


class GetShardIterator(StreamInput):
    shard_id: ShardId
    shard_iterator_type: PositionType
    starting_sequence_number: SequenceNumber | None = None
    timestamp: float | None = None
    dry_run: bool | None = None


class ShardFilterInput(Struct, rename="pascal"):
    type: Literal[
        "AFTER_SHARD_ID", "AT_TRIM_HORIZON", "FROM_TRIM_HORIZON", "AT_LATEST", "AT_TIMESTAMP", "FROM_TIMESTAMP"
    ]
    shard_id: ShardId | None = None
    timestamp: float | None = None


class ListShards(StreamInput):
    next_token: Token | None = None
    exclusive_start_shard_id: ShardId | None = None
    max_results: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    stream_creation_timestamp: float | None = None
    shard_filter: ShardFilterInput | None = None


class CreateStream(Struct, rename="pascal"):
    stream_name: StreamName
    shard_count: PositiveInt | None = None
    stream_mode_details: ModeDetails | None = None
    tags: TagMap | None = None
    max_record_size: Annotated[int, Meta(ge=1024, le=10_240)] | None = field(name="MaxRecordSizeInKiB", default=None)
    record_distribution_strategy: Distribution | None = None
    warm_throughput: NaturalInt | None = field(name="WarmThroughputMiBps", default=None)


class DeleteStream(StreamInput):
    enforce_consumer_deletion: bool | None = None


class DescribeStream(StreamInput):
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    exclusive_start_shard_id: ShardId | None = None


class DescribeStreamSummary(StreamInput):
    pass


class ListStreams(Struct, rename="pascal"):
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    exclusive_start_stream_name: StreamName | None = None
    next_token: Token | None = None


class SplitShard(StreamInput):
    shard_to_split: ShardId
    new_starting_hash_key: HashKey


class MergeShards(StreamInput):
    shard_to_merge: ShardId
    adjacent_shard_to_merge: ShardId


class UpdateShardCount(StreamInput):
    target_shard_count: PositiveInt
    scaling_type: Literal["UNIFORM_SCALING"]


class RegisterStreamConsumer(StreamArnInput):
    consumer_name: ConsumerName
    tags: TagMap | None = None


class ConsumerInput(Struct, rename="pascal"):
    stream_arn: StreamArn | None = field(name="StreamARN", default=None)
    consumer_name: ConsumerName | None = None
    consumer_arn: ConsumerArn | None = field(name="ConsumerARN", default=None)
    stream_id: StreamId | None = None


class ListStreamConsumers(StreamArnInput):
    next_token: Token | None = None
    max_results: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    stream_creation_timestamp: float | None = None


class StartingPosition(Struct, rename="pascal"):
    type: PositionType
    sequence_number: SequenceNumber | None = None
    timestamp: float | None = None


class SubscribeToShard(Struct, rename="pascal"):
    consumer_arn: ConsumerArn = field(name="ConsumerARN")
    shard_id: ShardId
    starting_position: StartingPosition
    stream_id: StreamId | None = None
    dry_run: bool | None = None


class RetentionInput(StreamInput):
    retention_period_hours: Int


class AddTagsToStream(StreamInput):
    tags: TagMap


class RemoveTagsFromStream(StreamInput):
    tag_keys: TagKeys


class ListTagsForStream(StreamInput):
    exclusive_start_tag_key: TagKey | None = None
    limit: Annotated[int, Meta(ge=1, le=50)] | None = None


class ResourceInput(Struct, rename="pascal", kw_only=True):
    """The members that name a resource: a stream, a consumer or a channel."""

    resource_arn: ResourceArn = field(name="ResourceARN")
    stream_id: StreamId | None = None


class TagResource(ResourceInput):
    tags: TagMap


class UntagResource(ResourceInput):
    tag_keys: TagKeys


class PutResourcePolicy(ResourceInput):
    policy: str


class EncryptionInput(StreamInput):
    encryption_type: Literal["NONE", "KMS"]
    key_id: KeyId


class MonitoringInput(StreamInput):
    shard_level_metrics: Annotated[list[MetricsName], Meta(min_length=1, max_length=7)]


class UpdateStreamMode(StreamArnInput):
    stream_mode_details: ModeDetails
    warm_throughput: NaturalInt | None = field(name="WarmThroughputMiBps", default=None)


class UpdateStreamWarmThroughput(StreamInput):
    warm_throughput: NaturalInt = field(name="WarmThroughputMiBps")


class UpdateMaxRecordSize(Struct, rename="pascal"):
    max_record_size: Annotated[int, Meta(ge=1024, le=10_240)] = field(name="MaxRecordSizeInKiB")
    stream_arn: StreamArn | None = field(name="StreamARN", default=None)
    stream_id: StreamId | None = None


class UpdateStreamRecordDistributionStrategy(StreamArnInput):
    record_distribution_strategy: Distribution


class CommitmentInput(Struct, rename="pascal"):
    status: Literal["ENABLED", "DISABLED"]


class UpdateAccountSettings(Struct, rename="pascal"):
    minimum_throughput_billing_commitment: CommitmentInput


class Nothing(Struct):
    """The input of operations without members."""


DATA_PLANE: Final = frozenset({"PutRecords", "PutRecord", "GetRecords", "GetShardIterator", "SubscribeToShard"})
"""The operations that AWS limits per shard. Every other operation has a limit of calls per second."""

INPUTS: Final[Mapping[str, type[Struct]]] = {
    **{
        kind.__name__: kind
        for kind in (
            *(PutRecords, PutRecord, GetRecords, GetShardIterator, ListShards, CreateStream, DeleteStream),
            *(DescribeStream, DescribeStreamSummary, ListStreams, SplitShard, MergeShards, UpdateShardCount),
            *(RegisterStreamConsumer, ListStreamConsumers, SubscribeToShard, AddTagsToStream, RemoveTagsFromStream),
            *(ListTagsForStream, TagResource, UntagResource, UpdateStreamMode, PutResourcePolicy),
            *(UpdateMaxRecordSize, UpdateStreamRecordDistributionStrategy, UpdateStreamWarmThroughput),
            *(UpdateAccountSettings, CreateChannel, ListChannels, UpdateChannel),
        )
    },
    "DescribeStreamConsumer": ConsumerInput,
    "DeregisterStreamConsumer": ConsumerInput,
    "IncreaseStreamRetentionPeriod": RetentionInput,
    "DecreaseStreamRetentionPeriod": RetentionInput,
    "StartStreamEncryption": EncryptionInput,
    "StopStreamEncryption": EncryptionInput,
    "EnableEnhancedMonitoring": MonitoringInput,
    "DisableEnhancedMonitoring": MonitoringInput,
    "ListTagsForResource": ResourceInput,
    "GetResourcePolicy": ResourceInput,
    "DeleteResourcePolicy": ResourceInput,
    "DescribeChannel": ChannelInput,
    "DeleteChannel": ChannelInput,
    "DescribeLimits": Nothing,
    "DescribeAccountSettings": Nothing,
}

# Matches base64 whose last character has surplus bits that belong to no byte. AWS refuses such base64, but msgspec
# accepts it. A partition key may look the same, so after a match, `reread` decides.
_LOOSE_BASE64: Final = re.compile(rb'="(?:(?<![AEIMQUYcgkosw048=]=")|(?<=[^AQgw]=="))')


def _strict(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode_strictly(body: bytes) -> object:
        members: object = decode(body)
        if b"=" in body and _LOOSE_BASE64.search(body) is not None:
            raise msgspec.ValidationError
        return members

    return decode_strictly


_decoders: Final[dict[str, Callable[[bytes], Any]]] = {
    name: msgspec.json.Decoder(kind).decode for name, kind in INPUTS.items()
}
for _operation in ("PutRecord", "PutRecords"):
    _decoders[_operation] = _strict(_decoders[_operation])


def read_json(operation: str, body: bytes) -> Struct:
    """Read the members of a request from JSON.

    Raises:
        Refused: the body is not valid JSON, or a member is invalid.
    """
    try:
        return _decoders[operation](body)  # type: ignore[no-any-return]
    except msgspec.ValidationError:
        return _read_again(operation, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise serialization() from None


def _read_again(operation: str, body: bytes) -> Struct:
    """Read a body with an invalid member, as AWS does. The rest of the body may not even be valid JSON."""
    try:
        members: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise serialization() from None
    return reread(INPUTS[operation], members)


def read_values(operation: str, params: object) -> Struct:
    """Read the members of a request from Python values, which come from CBOR or from a caller of the model.

    Raises:
        Refused: a member is invalid.
    """
    try:
        return msgspec.convert(params, INPUTS[operation])
    except msgspec.ValidationError:
        return reread(INPUTS[operation], params)
