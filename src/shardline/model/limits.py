"""The limits of Kinesis Data Streams and the producer's default limits for aggregates.

Each limit is defined only here, with its source:

- [API] is the operation's page in the Kinesis API reference.
- [QUOTAS] is the page "Quotas and limits" of the developer guide, [LARGE] is its page "Large records", and [GUIDE]
  names another page of it.
- [MODEL] is the service model 2013-12-02, as shipped with botocore.
- [KPL] is a property of the KPL's ``KinesisProducerConfiguration``, with its default.

Sizes are in bytes, times in seconds, and rates per second.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * 1024

# ---- one request
PUT_RECORDS_MAX_ENTRIES: Final = 500  # [API] PutRecords: "up to 500 records"
PUT_RECORDS_MAX_BYTES: Final = 10 * MIB  # [API] PutRecords: 10 MiB for the entire request, partition keys included
GET_RECORDS_MAX_RECORDS: Final = 10_000  # [API] GetRecords, Limit
GET_RECORDS_MAX_BYTES: Final = 10 * MIB  # [API] GetRecords: "up to 10 MiB" per call
LIST_SHARDS_MAX_RESULTS: Final = 1_000  # [API] ListShards, MaxResults: at most 1,000 are returned at a time

# ---- one record (data + partition key; the limit is a property of the stream: MaxRecordSizeInKiB)
RECORD_DEFAULT_MAX_BYTES: Final = 1 * MIB  # [LARGE] default of every stream
RECORD_HIGHEST_MAX_BYTES: Final = 10 * MIB  # [MODEL] MaxRecordSizeInKiB: 1,024 to 10,240
PARTITION_KEY_MIN_LENGTH: Final = 1  # [MODEL] PartitionKey, in characters
PARTITION_KEY_MAX_LENGTH: Final = 256  # [MODEL] PartitionKey, in characters

# ---- one aggregate (a convention of the KPL: Kinesis limits only the record that contains the aggregate)
AGGREGATE_DEFAULT_MAX_BYTES: Final = 51_200  # [KPL] AggregationMaxSize
AGGREGATE_DEFAULT_MAX_COUNT: Final = None  # [KPL] AggregationMaxCount: 4,294,967,295, which never applies
AGGREGATE_LOWEST_MAX_BYTES: Final = 64  # [KPL] AggregationMaxSize, lowest value
AGGREGATE_HIGHEST_MAX_BYTES: Final = RECORD_HIGHEST_MAX_BYTES - KIB  # 1 KiB for a key of 256 characters of 4 bytes

# ---- the rates of one shard
SHARD_WRITE_RECORDS_PER_SECOND: Final = 1_000.0  # [QUOTAS] per shard, in both capacity modes
SHARD_WRITE_BYTES_PER_SECOND: Final = float(1 * MIB)  # [QUOTAS] per shard, in both capacity modes
SHARD_READ_BYTES_PER_SECOND: Final = float(2 * MIB)  # [QUOTAS] per shard, shared by all polling readers
SHARD_READ_CALLS_PER_SECOND: Final = 5.0  # [API] GetRecords: 5 transactions per second per shard
SHARD_ITERATOR_CALLS_PER_SECOND: Final = 5.0  # [API] GetShardIterator: 5 per second per open shard
FAN_OUT_BYTES_PER_SECOND: Final = float(2 * MIB)  # [QUOTAS] per shard and registered consumer

# ---- lifetimes
ITERATOR_LIFE: Final = 300.0  # [API] GetShardIterator: expires 5 minutes after it is returned
ITERATOR_MAX_LENGTH: Final = 512  # [MODEL] ShardIterator
LIST_TOKEN_LIFE: Final = 300.0  # [API] ListShards, NextToken: 300 seconds
SUBSCRIPTION_LIFE: Final = 300.0  # [API] SubscribeToShard: up to 5 minutes
SUBSCRIPTION_TAKEOVER_WAIT: Final = 5.0  # [API] SubscribeToShard: ResourceInUse within 5 s of a successful call
RETENTION_MIN_HOURS: Final = 24  # [API] DecreaseStreamRetentionPeriod
RETENTION_MAX_HOURS: Final = 8_760  # [API] IncreaseStreamRetentionPeriod: 365 days

# ---- control-plane calls per second, per account unless stated otherwise
DESCRIBE_STREAM_PER_SECOND: Final = 10.0  # [API] DescribeStream
DESCRIBE_STREAM_SUMMARY_PER_SECOND: Final = 20.0  # [API] DescribeStreamSummary
LIST_SHARDS_PER_SECOND: Final = 1_000.0  # [API] ListShards, per stream
LIST_STREAMS_PER_SECOND: Final = 5.0  # [API] ListStreams
DESCRIBE_LIMITS_PER_SECOND: Final = 1.0  # [API] DescribeLimits
STREAM_CHANGES_PER_SECOND: Final = 5.0  # [API] CreateStream, DeleteStream, SplitShard, MergeShards, tags
UPDATE_SHARD_COUNT_PER_SECOND: Final = 10.0  # [API] UpdateShardCount
DESCRIBE_CONSUMER_PER_SECOND: Final = 20.0  # [API] DescribeStreamConsumer, per stream
LIST_CONSUMERS_PER_SECOND: Final = 5.0  # [API] ListStreamConsumers, per stream
REGISTER_CONSUMER_PER_SECOND: Final = 5.0  # [API] RegisterStreamConsumer
ACCOUNT_AND_CHANNEL_CALLS_PER_SECOND: Final = 5.0  # [API] UpdateAccountSettings, UpdateStreamWarmThroughput, channels
SUBSCRIBE_PER_SECOND: Final = 1.0  # [API] SubscribeToShard, per consumer and shard

# ---- counts
CONSUMERS_PER_STREAM: Final = 20  # [API] RegisterStreamConsumer
CONSUMERS_PER_ADVANTAGE_STREAM: Final = 50  # [API] RegisterStreamConsumer: with On-demand Advantage
CONSUMERS_CREATING_AT_ONCE: Final = 5  # [API] RegisterStreamConsumer
TAGS_PER_STREAM: Final = 50  # [API] AddTagsToStream
UPDATE_SHARD_COUNT_PER_DAY: Final = 10  # [API] UpdateShardCount: per rolling 24 hours and stream
UPDATE_STREAM_MODE_PER_DAY: Final = 2  # [GUIDE] how-do-i-size-a-stream: twice within 24 hours for each stream
SHARDS_PER_STREAM_BY_UPDATE: Final = 10_000  # [API] UpdateShardCount
WARM_THROUGHPUT_MAX_MIBPS: Final = 10_240  # [API] UpdateStreamWarmThroughput: 10 GiBps
DATA_FRESHNESS_MIN: Final = 300  # [GUIDE] data-delivery-concepts: in seconds; also the default
DATA_FRESHNESS_MAX: Final = 900  # [GUIDE] data-delivery-concepts

# ---- names
STREAM_NAME_MAX_LENGTH: Final = 128  # [MODEL] StreamName: [a-zA-Z0-9_.-]+
SEQUENCE_NUMBER_MAX_DIGITS: Final = 129  # [MODEL] SequenceNumber: 0|([1-9]\d{0,128})
EXPLICIT_HASH_KEY_MAX_DIGITS: Final = 39  # [MODEL] HashKey: 0|([1-9]\d{0,38})
