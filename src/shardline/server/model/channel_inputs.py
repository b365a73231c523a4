"""The requests about channels: their members and the constraints on them.

A channel delivers a stream's records to a bucket or to tables. The constraints come from the service model [MODEL].
The same structs are part of a channel's description, so they omit members that the request did not contain.
"""

from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct, field

from shardline.server.model.member_types import ChannelArn, Int, KeyId, StreamArn, TagMap, Token, matching

ChannelName: TypeAlias = Annotated[str, matching(r"[a-zA-Z0-9_.-]+", 128)]
RoleArn: TypeAlias = Annotated[str, matching(r"arn:aws[-a-z0-9]*:iam::\d{12}:role/[a-zA-Z_0-9+=,.@\-_/]+", 512)]
SchemaArn: TypeAlias = Annotated[
    str, matching(r"arn:aws[-a-z0-9]*:glue:[-a-z0-9]+:\d{12}:schema/[-a-zA-Z0-9_$#.]+/[-a-zA-Z0-9_$#.]+", 512)
]
BucketArn: TypeAlias = Annotated[str, matching(r"arn:aws[-a-z0-9]*:s3:::[a-z0-9._-]{3,63}", 2048)]
BucketOwner: TypeAlias = Annotated[str, matching(r"\d{12}", 12, 12)]
ErrorPrefix: TypeAlias = Annotated[str, matching(r"[0-9A-Za-z!\-_'.*()\/]+", 512)]
KeyTemplate: TypeAlias = Annotated[str, matching(r"[0-9A-Za-z!\-_'.*()\/=:{}]+", 1024)]
TableBucketArn: TypeAlias = Annotated[
    str, matching(r"arn:aws[-a-z0-9]*:s3tables:[-a-z0-9]+:\d{12}:bucket/[a-z0-9_-]{3,63}", 2048)
]
TableName: TypeAlias = Annotated[str, matching(r"[0-9a-z_]+", 255)]
ColumnName: TypeAlias = Annotated[str, matching(r"[a-zA-Z0-9\.\_]+", 255)]
LogGroupName: TypeAlias = Annotated[str, matching(r"[\.\-_/#A-Za-z0-9]+", 512)]
LogStreamName: TypeAlias = Annotated[str, matching(r"[^:*]*", 512)]


class _Part(Struct, rename="pascal", omit_defaults=True):
    """The base of the structs that describe parts of a channel's configuration."""


class RecordConfiguration(_Part):
    record_format_type: Literal["GSR_JSON", "JSON", "STRING", "BYTE_ARRAY"]
    schema_arn: SchemaArn | None = field(name="GSRSchemaARN", default=None)


class ChannelStreamConfiguration(_Part):
    stream_arn: StreamArn = field(name="StreamARN")
    record_configuration: RecordConfiguration


class DeadLetterQueue(_Part):
    bucket_arn: BucketArn = field(name="BucketARN")
    expected_bucket_owner: BucketOwner
    error_output_prefix: ErrorPrefix | None = None


class S3Storage(_Part):
    bucket_arn: BucketArn = field(name="BucketARN")
    expected_bucket_owner: BucketOwner
    compression_type: Literal["NONE", "GZIP", "ZSTD"]
    output_key_template: KeyTemplate | None = None
    storage_class: Literal["STANDARD", "INTELLIGENT_TIERING", "GLACIER_IR"] | None = None


class S3Destination(_Part):
    storage_configuration: S3Storage
    data_freshness: Int | None = field(name="DataFreshnessInSeconds", default=None)
    dead_letter_queue: DeadLetterQueue | None = field(name="DeadLetterQueueS3Configuration", default=None)


class PartitionField(_Part):
    transform: Literal["TIME_HOUR"]
    source_name: ColumnName


class PartitionSpec(_Part):
    partition_fields: Annotated[list[PartitionField], Meta(min_length=1, max_length=10)]


class S3TablesConfiguration(_Part):
    table_bucket_arn: TableBucketArn = field(name="TableBucketARN")
    namespace: TableName
    table_name: TableName
    compression_type: Literal["NONE", "ZSTD", "SNAPPY"]
    partition_spec: PartitionSpec | None = None


class S3TablesDestination(_Part):
    dead_letter_queue: DeadLetterQueue = field(name="DeadLetterQueueS3Configuration")
    tables: Annotated[list[S3TablesConfiguration], Meta(min_length=1, max_length=10_000)] = field(
        name="S3TablesConfigurationList"
    )
    data_freshness: Int | None = field(name="DataFreshnessInSeconds", default=None)


Destination = TypeVar("Destination", S3Destination, S3TablesDestination)


class ChannelEncryption(_Part):
    encryption_type: Literal["KMS"]
    key_id: KeyId


class CloudWatchLogs(_Part):
    enabled: bool
    log_group_name: LogGroupName | None = None
    log_stream_name: LogStreamName | None = None


class ChannelLogging(_Part):
    cloud_watch_logs: CloudWatchLogs


class CreateChannel(Struct, rename="pascal"):
    channel_name: ChannelName
    role_arn: RoleArn = field(name="ServiceExecutionRoleARN")
    streams: Annotated[list[ChannelStreamConfiguration], Meta(min_length=1, max_length=10_000)] = field(
        name="StreamConfigurationList"
    )
    s3: S3Destination | None = field(name="S3DestinationConfiguration", default=None)
    s3_tables: S3TablesDestination | None = field(name="S3TablesDestinationConfiguration", default=None)
    encryption: ChannelEncryption | None = field(name="EncryptionConfiguration", default=None)
    tags: TagMap | None = None
    logging: ChannelLogging | None = field(name="LoggingConfiguration", default=None)


class ChannelInput(Struct, rename="pascal"):
    channel_arn: ChannelArn = field(name="ChannelARN")


class StreamFilter(Struct, rename="pascal"):
    stream_arn: StreamArn = field(name="StreamARN")
    stream_creation_timestamp: float | None = None


class ListChannels(Struct, rename="pascal"):
    stream_filter: Annotated[list[StreamFilter], Meta(min_length=1, max_length=10_000)] | None = None
    max_results: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    next_token: Token | None = None


class FreshnessUpdate(Struct, rename="pascal"):
    data_freshness: Int = field(name="DataFreshnessInSeconds")


class UpdateChannel(ChannelInput):
    s3: FreshnessUpdate | None = field(name="S3DestinationConfiguration", default=None)
    s3_tables: FreshnessUpdate | None = field(name="S3TablesDestinationConfiguration", default=None)
    logging: ChannelLogging | None = field(name="LoggingConfiguration", default=None)
