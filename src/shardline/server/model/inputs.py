"""Which members may each operation's request have, and what may stand in them?

Decoded by msgspec, straight into structs with the constraints of the service model [MODEL]. What does not fit becomes
the refusal that AWS answers: SerializationException for a wrong type, ValidationException for a broken constraint.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from shardline.server.model.member_types import (
    Arn,
    ConsumerName,
    Data,
    Distribution,
    HashKey,
    MetricsName,
    NaturalInt,
    PartitionKey,
    PositionType,
    PositiveInt,
    SequenceNumber,
    ShardId,
    StreamName,
    TagMap,
    Token,
)
from shardline.server.model.refusals import Refused, serialization, validation


class StreamInput(Struct, rename="pascal", kw_only=True):
    """What names a stream in every request that has one."""

    stream_name: StreamName | None = None
    stream_arn: Arn | None = field(name="StreamARN", default=None)


class ModeDetails(Struct, rename="pascal"):
    stream_mode: Literal["PROVISIONED", "ON_DEMAND"]


class EntryInput(Struct, rename="pascal", gc=False):
    data: Data
    partition_key: PartitionKey | UnsetType = UNSET
    explicit_hash_key: HashKey | None = None


class PutRecords(StreamInput):
    records: Annotated[list[EntryInput], Meta(min_length=1)]
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


class RegisterStreamConsumer(Struct, rename="pascal"):
    stream_arn: Arn = field(name="StreamARN")
    consumer_name: ConsumerName
    tags: TagMap | None = None


class ConsumerInput(Struct, rename="pascal"):
    stream_arn: Arn | None = field(name="StreamARN", default=None)
    consumer_name: ConsumerName | None = None
    consumer_arn: Arn | None = field(name="ConsumerARN", default=None)


class ListStreamConsumers(Struct, rename="pascal"):
    stream_arn: Arn = field(name="StreamARN")
    next_token: Token | None = None
    max_results: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    stream_creation_timestamp: float | None = None


class StartingPosition(Struct, rename="pascal"):
    type: PositionType
    sequence_number: SequenceNumber | None = None
    timestamp: float | None = None


class SubscribeToShard(Struct, rename="pascal"):
    consumer_arn: Arn = field(name="ConsumerARN")
    shard_id: ShardId
    starting_position: StartingPosition
    dry_run: bool | None = None


class RetentionInput(StreamInput):
    retention_period_hours: int


class AddTagsToStream(StreamInput):
    tags: Annotated[TagMap, Meta(min_length=1, max_length=200)]


class RemoveTagsFromStream(StreamInput):
    tag_keys: Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(min_length=1, max_length=50)]


class ListTagsForStream(StreamInput):
    exclusive_start_tag_key: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    limit: Annotated[int, Meta(ge=1, le=50)] | None = None


class TagResource(Struct, rename="pascal"):
    resource_arn: Arn = field(name="ResourceARN")
    tags: Annotated[TagMap, Meta(min_length=1, max_length=200)]


class UntagResource(Struct, rename="pascal"):
    resource_arn: Arn = field(name="ResourceARN")
    tag_keys: Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(min_length=1, max_length=50)]


class ListTagsForResource(Struct, rename="pascal"):
    resource_arn: Arn = field(name="ResourceARN")


class EncryptionInput(StreamInput):
    encryption_type: Literal["NONE", "KMS"]
    key_id: Annotated[str, Meta(min_length=1, max_length=2048)]


class MonitoringInput(StreamInput):
    shard_level_metrics: Annotated[list[MetricsName], Meta(min_length=1, max_length=7)]


class UpdateStreamMode(Struct, rename="pascal"):
    stream_arn: Arn = field(name="StreamARN")
    stream_mode_details: ModeDetails
    warm_throughput: NaturalInt | None = field(name="WarmThroughputMiBps", default=None)


class UpdateMaxRecordSize(StreamInput):
    max_record_size: Annotated[int, Meta(ge=1024, le=10_240)] = field(name="MaxRecordSizeInKiB")


class UpdateStreamRecordDistributionStrategy(StreamInput):
    record_distribution_strategy: Distribution


class Nothing(Struct):
    """The input of operations that take none."""


INPUTS: Final[Mapping[str, type[Struct]]] = {
    **{
        kind.__name__: kind
        for kind in (
            *(PutRecords, PutRecord, GetRecords, GetShardIterator, ListShards, CreateStream, DeleteStream),
            *(DescribeStream, DescribeStreamSummary, ListStreams, SplitShard, MergeShards, UpdateShardCount),
            *(RegisterStreamConsumer, ListStreamConsumers, SubscribeToShard, AddTagsToStream, RemoveTagsFromStream),
            *(ListTagsForStream, TagResource, UntagResource, ListTagsForResource, UpdateStreamMode),
            *(UpdateMaxRecordSize, UpdateStreamRecordDistributionStrategy),
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
    "DescribeLimits": Nothing,
    "DescribeAccountSettings": Nothing,
}

_decoders: Final[dict[str, Callable[[bytes], Any]]] = {
    name: msgspec.json.Decoder(kind).decode for name, kind in INPUTS.items()
}
_NULL: Final = re.compile(r"Expected `[^`]*`, got `null`(?: - at `\$\.?(.*)`)?$")
_INDEX: Final = re.compile(r"\[([0-9]+)\]")
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`(?: - at `\$\.?(.*)`)?")
_BROKEN: Final = re.compile(r"Expected `(?:str|bytes|int|array|object)` (.*?)(?: - at `\$\.?(.*)`)?$")
_ENUM: Final = re.compile(r"Invalid enum value (.*?)(?: - at `\$\.?(.*)`)?$")


def read_json(operation: str, body: bytes) -> Struct:
    """A request's members from JSON.

    Raises:
        Refused: they do not fit.
    """
    try:
        return _decoders[operation](body or b"{}")  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise refusal_of(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise serialization("the body is no JSON object") from None


def read_values(operation: str, params: object) -> Struct:
    """A request's members from values, as CBOR or a Python caller gives them.

    Raises:
        Refused: they do not fit.
    """
    try:
        return msgspec.convert(params, INPUTS[operation])
    except msgspec.ValidationError as error:
        raise refusal_of(str(error)) from None


def refusal_of(problem: str) -> Refused:
    """What AWS says where msgspec says ``problem``."""
    if missing := _MISSING.match(problem):
        where = ".".join(part for part in (missing[2], missing[1]) if part)
        return validation(_member(where), None, "Member must not be null")
    if null := _NULL.match(problem):  # as good as missing
        return validation(_member(null[1] or ""), None, "Member must not be null")
    if enum := _ENUM.match(problem):
        return validation(_member(enum[2] or ""), enum[1].strip("'"), "Member must satisfy enum value set")
    if broken := _BROKEN.match(problem):
        return validation(_member(broken[2] or ""), None, _constraint(broken[1]))
    return serialization(problem)


def _constraint(words: str) -> str:
    """``of length >= 1``, ``<= 5``, ``matching regex '...'``: as AWS says it."""
    if words.startswith("matching regex "):
        pattern = words.removeprefix("matching regex ").strip("'").removeprefix("^").rstrip("Z").rstrip("\\")
        return f"Member must satisfy regular expression pattern: {pattern}"
    what = words.replace("of length ", "length ") if "length" in words else f"value {words}"
    return "Member must have " + what.replace(">=", "greater than or equal to").replace("<=", "less than or equal to")


def _member(path: str) -> str:
    """``StreamName`` as AWS writes it in messages: ``streamName``; ``Records[0].Data``: ``records.1.member.data``."""
    path = _INDEX.sub(lambda index: f".{int(index[1]) + 1}.member", path)
    return ".".join(part[:1].lower() + part[1:] for part in path.split("."))
