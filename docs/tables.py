"""Writes the tables that are generated from the code: ``python docs/tables.py``.

In a page, a table is between ``<!-- table: NAME -->`` and ``<!-- end -->``. ``tests/docs/test_tables.py`` fails if a
table is out of date. Another script, ``settings.py``, writes the settings pages.
"""

# ruff: noqa: E501, SLF001 - rows of tables; some tables are private to their modules

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from settings import shown, table  # noqa: E402 - in this directory, which is not a package

from shardline import ConsumerConfig, ProducerConfig  # noqa: E402
from shardline.adapters.sinks import metric_table  # noqa: E402
from shardline.adapters.sinks.cloudwatch_names import own_name  # noqa: E402
from shardline.adapters.sinks.otel_metric_table import METRICS  # noqa: E402
from shardline.adapters.sinks.prometheus_sink import full_name  # noqa: E402
from shardline.core import producer_events  # noqa: E402
from shardline.core.consumer import consumer_events  # noqa: E402
from shardline.core.producer import kpl_properties  # noqa: E402
from shardline.core.producer.verdicts import Rules  # noqa: E402

REGION = re.compile(r"(?<=<!-- table: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
PRODUCER_DEFAULTS = {
    setting.name: shown(setting.name, setting.default) for setting in fields(ProducerConfig) if setting.metadata
}
CONSUMER_DEFAULTS = {setting.name: shown(setting.name, setting.default) for setting in fields(ConsumerConfig)}

PRODUCER_EVENTS = {
    "RequestAnswered": "A PutRecords request has ended.",
    "RecordsDelivered": "Records of one request were stored. `shards` holds a `ShardDelivery` for each shard: `shard_id`, `records`, `payload_bytes`, `latency`.",
    "RecordsRetried": "Records are sent again.",
    "RecordsFailed": "Records failed.",
    "ShardsChanged": "The producer has a new shard map.",
    "ShardMapFailed": "Listing the shards failed. The producer retries.",
    "StreamUnknown": "DescribeStreamSummary failed. The producer assumes the default limit for records.",
    "DistributionChanged": "AUTO record distribution is now on or off. While AUTO is on, nothing is aggregated.",
    "AggregationStopped": "Records are stored in unexpected shards, and DescribeStreamSummary failed. The producer stops aggregating.",
    "ChannelsFound": "The stream has channels, which cannot read aggregates. While the stream has channels, the producer does not aggregate.",
    "ProducerReconfigured": "Your code changed settings of the running producer (`reconfigure`). The event contains the new values.",
    "ProducerMeasured": "The state of the producer. The event is emitted every 5 seconds.",
}
CONSUMER_EVENTS = {
    "LeaseGained": "This worker owns the shard and reads it from `start`.",
    "ShardSought": "The store has written the position to which your code moved the shard with `seek`. The shard is read from `start`.",
    "HandOverAsked": "Another worker asked for the shard. You have until `until` to finish the records in hand.",
    "LeaseSurplus": "This worker has more leases than `max_leases` allows, and releases this one. You have until `until` to finish the records in hand.",
    "HandOverOverdue": "Your code did not finish in time. Your handler for the shard was cancelled, and the lease is released.",
    "LeaseLost": "The lease is lost, and your handler for the shard was cancelled. Another worker may be reading the shard.",
    "LeaseReleased": "The worker released the lease, because the worker ended, because of a hand-over, or because the shard is finished.",
    "StreamReplaced": "The stream was deleted and re-created. The consumer stops reading.",
    "ConsumerFailed": "The consumer cannot continue: access is denied, or the stream does not exist.",
    "StreamMissing": 'The stream was deleted. With `if_recreated="restart"`, the consumer waits for a new stream.',
    "PositionLost": "The service rejected the position. Reading continues at TRIM_HORIZON; records may be lost.",
    "RecordsTrimmed": "The position is older than the retention. Records after the position may be lost.",
    "ShardTrimmed": "The retention of a whole shard ended before it was finished.",
    "TooManyUnacknowledged": "`max_unacknowledged` is reached. The shard pauses until you acknowledge records.",
    "ShardsPaused": "Your code paused shards. If `is_all` is true, all shards are paused, including those that the worker gains later.",
    "ShardsResumed": "Your code resumed shards.",
    "MaxLeasesChanged": "Your code changed `max_leases` of the running consumer (`reconfigure`).",
    "ReadFailed": "A call to a shard failed. The worker retries at `retry_at` (NEVER means that it does not retry).",
    "Subscribed": "A subscription to the shard began at `position` (enhanced fan-out).",
    "SubscriptionEnded": "A subscription ended, or was refused once. The worker subscribes again at `retry_at`.",
    "StoreFailed": "The lease store failed. Reading continues until the leases expire.",
    "StoreRecovered": "The lease store answers again.",
    "ProgressLost": "The lease store came back empty. The group begins again at `start`.",
    "ListingFailed": "Listing the shards, or describing the stream, failed. The worker retries at `retry_at`.",
    "WorkerIdShared": "Another live process has the same `worker_id`. That process owns this shard.",
    "Stalled": "The event loop was blocked, or the machine was suspended, for so long that leases may expire.",
    "HandlerRetried": "Your handler failed. The handler gets the records, or a part of the batch, again at `retry_at`.",
    "RecordsDeadLettered": "Your handler failed for the last time. The records are dead letters; handling continues.",
    "DeadLetterFailed": "A dead letter could not be written. The worker retries at `retry_at` (NEVER means that `run` ends).",
    "HandlingStopped": "Your handler failed for the last time, without `dead_letter=`. `run` ends with `HandlerFailed`.",
    "HandlerStuck": "Your code has had these records for longer than `stuck_after`.",
    "HandlerRecovered": "Code that was stuck has continued, or its shard was released.",
    "PageRead": "A page of a shard was read, and all its records are unpacked. The page may be empty.",
    "RecordsFiltered": "Records of a page did not pass your filter. These records count as done.",
    "RepeatsDropped": "Records of a page are copies that a producer's retries stored. These records count as done.",
    "DedupWindowOverflowed": "With `dedup`, there was no room to remember all stamps. Some copies will be handed out.",
    "RecordsHandedOut": "A page, a part of a page or a batch was handed to your code.",
    "RecordsHandled": "Your code is done with records: you asked for the next ones, or your handler returned. A long page is reported in parts, about every second.",
    "Committed": "The lease store confirmed a checkpoint.",
    "LeaseHandedOver": "The lease was released to the worker that asked for it. `duration` counts from when this worker saw the request.",
    "HashRangesUncovered": "Two audits in a row found hash ranges that no lease of the group covers. Audits are `list_interval` apart.",
    "HashRangesCovered": "An audit found that the leases cover all hash keys again.",
    "LagMeasured": "The lag of all shards that this worker holds. The event is emitted every 5 seconds.",
}

# The KPL's default of each property that Shardline has, too.
KPL_DEFAULTS = {
    "AggregationEnabled": "true",
    "AggregationMaxCount": "4,294,967,295",
    "AggregationMaxSize": "51,200",
    "CollectionMaxCount": "500",
    "CollectionMaxSize": "5 MiB",
    "FailIfThrottled": "false",
    "MaxConnections": "24",
    "MaxUserRecordSize": "1 MiB",
    "RateLimit": "150 %",
    "RecordMaxBufferedTime": "100 ms",
    "RecordTtl": "30,000 ms",
}
# Settings that the KPL does not have, and its behaviour.
NOT_IN_THE_KPL = {
    "packing": "none: always its own format",
    "shard_burst_bytes": "fixed at 256 KiB",
    "buffer_max_bytes": "none: memory is not bounded",
    "buffer_max_records": "none: memory is not bounded",
    "ordered": "none",
    "dedup": "none: readers get the copies that its retries store",
    "max_attempts": "none: records are retried until the TTL",
    "retry_backoff": "always half of RecordMaxBufferedTime",
    "retry_backoff_max": "the same",
    "isolation_calls_per_second": "none: the whole request is retried until the TTL",
    "closed_shard_ttl": "fixed at 60 s",
}
SINK = "belongs to the sinks: CloudWatchSink can send the KPL's metrics"
CREDENTIALS = "belongs to the client: the AWS chain, or pass it to Producer or Client as credentials="
# Settings that the KPL takes in code only.
KPL_IN_CODE = {
    "CredentialsProvider": CREDENTIALS,
    "MetricsCredentialsProvider": SINK,
    "addAdditionalMetricsDimension": SINK,
    "GlueSchemaRegistryConfiguration": "has no counterpart: encode with serializer=",
    "GlueSchemaRegistryCredentialsProvider": "has no counterpart: encode with serializer=",
}
AIOKPL = {
    "aggregation_enabled": "`aggregation`",
    "aggregation_max_count": "`aggregate_max_count`",
    "aggregation_max_size": "`aggregate_max_bytes`",
    "collection_max_count": "`request_max_entries`",
    "collection_max_size": "`request_max_bytes`",
    "fail_if_throttled": "`fail_if_throttled`",
    "rate_limit_records_per_sec_per_shard": "`records_per_second`",
    "rate_limit_bytes_per_sec_per_shard": "`bytes_per_second`",
    "record_max_buffered_time_ms": "`linger`, in seconds",
    "record_ttl_ms": "`record_ttl`, in seconds",
    "max_outstanding_records": "`buffer_max_records`, and `buffer_max_bytes`",
    "retry_deadline_ms": "`retry_backoff`, in seconds",
    "region": "`region=` of `Producer` or `Client`",
    "endpoint_url": "`endpoint_url=` of `Producer` or `Client`",
    "verify_ssl": "`verify=` of `Producer` or `Client`",
    "aws_access_key_id, aws_secret_access_key, aws_session_token": "`credentials=` of `Producer` or `Client`, or the AWS chain",
    "metrics_level, metrics_upload_interval_ms, metrics_sink": "`sinks=` of `Producer`",
    "drain_interval_ms": "none: nothing is polled",
}  # fmt: skip
# The KCL 3's setting, its default, and the counterpart in Shardline.
KCL = [
    ("applicationName", "", '`group=`, and the name of the table in `store="dynamodb://..."`'),
    ("streamName, StreamTracker", "", "the first argument: a stream, a list, or a mapping from each stream to its start"),
    ("workerIdentifier", "", "`worker_id`"),
    ("initialPositionInStream", "LATEST", "`start=`, by default TRIM_HORIZON"),
    ("failoverTimeMillis", "10,000", "`lease_duration`"),
    ("leaseAssignmentIntervalMillis", "20,000", "`scan_interval`"),
    ("maxLeasesForWorker", "no limit", "`max_leases`"),
    ("maxLeasesToStealAtOneTime", "1", "none: as many as the worker has, up to 32"),
    ("gracefulLeaseHandoff timeoutMillis", "30,000", "`hand_over_timeout`"),
    ("shardSyncIntervalMillis", "60,000", "`list_interval`"),
    ("maxRecords", "10,000", "`page_max_records`"),
    ("idleTimeBetweenReadsInMillis", "1,500", "`idle_poll_interval`; no pause while behind"),
    ("maxByteSize, maxRecordsCount, maxPendingProcessRecordsInput", "8 MiB, 30,000, 4 per shard", "`prefetch_max_bytes`, over all shards"),
    ("parentShardPollIntervalMillis", "10,000", "none: children start when their parents are finished"),
    ("checkpoint() in processRecords", "", 'automatic, every `checkpoint_interval`; or `ack="manual"`'),
    ("cleanupLeasesUponShardCompletion", "true", "always"),
    ("callProcessRecordsEvenForEmptyRecordList", "false", "never"),
    ("billingMode", "PAY_PER_REQUEST", "the same, if Shardline creates the table"),
    ("retrievalMode FANOUT", "the default", "`fan_out=`; by default, records are polled"),
    ("logWarningForTaskAfterMillis", "none", "`stuck_after`"),
    ("metricsLevel", "DETAILED", "`sinks=`, `status()`"),
    ("none: 5 calls and 2 MiB/s per shard", "", "`calls_per_second`, `bytes_per_second`"),
    ("none: an aggregate with a misplaced record is dropped", "", "`out_of_range`"),
    ("none: copies that retries stored are delivered", "", "`dedup`"),
    ("none: a restarted worker is assigned shards again", "", "`keep_leases`"),
    ("leases by CPU and throughput", "always", "`assign_by`; by default, workers share the shards by number"),
    ("none", "", "`if_recreated`"),
    ("none", "", "`store_patience`"),
    ("none", "", "`max_unacknowledged`"),
]  # fmt: skip
# async-kinesis' argument, its default, and the counterpart in Shardline.
ASYNC_KINESIS = [
    ("stream_name", "", "the first argument"),
    ("session", "None", "`session=`, of botocore or boto3"),
    ("endpoint_url, region_name", "None", "`endpoint_url=`, `region=`"),
    ("retry_limit, expo_backoff, expo_backoff_limit", "5, None, 120", "none: retryable errors are retried with growing pauses"),
    ("describe_timeout, skip_describe_stream, use_list_shards", "60, False, False", "none: all shards are listed"),
    ("create_stream, create_stream_shards", "False, 1", "`Client.create_stream`"),
    ("max_queue_size", "10,000 records", "`prefetch_max_bytes`, in bytes"),
    ("max_shard_consumers", "None", "`max_leases=`"),
    ("record_limit", "10,000", "`page_max_records`"),
    ("sleep_time_no_records", "2", "`idle_poll_interval`"),
    ("iterator_type, timestamp", "TRIM_HORIZON", "`start=`: TRIM_HORIZON, LATEST or a time"),
    ("shard_fetch_rate", "1", "`calls_per_second`"),
    ("checkpointer=MemoryCheckPointer()", "the default", "none; or a group on `memory:`"),
    ("checkpointer=RedisCheckPointer(name)", "REDIS_HOST, ...", '`group=name, store="redis://host/0"`'),
    ("checkpointer=DynamoDBCheckPointer(name)", "", '`group=name, store="dynamodb://table"`'),
    ("id", "the PID", "`worker_id=`, unique by default"),
    ("session_timeout, heartbeat_frequency", "60, 15", "`lease_duration`, with three renewals"),
    ("auto_checkpoint=False, manual_checkpoint()", "", '`ack="manual"`, `consumer.ack(record)`'),
    ("checkpoint_interval", "None", "`checkpoint_interval`"),
    ("processor=JsonProcessor()", "the default", "`deserializer=json.loads`; without it, bytes"),
    ("processor=JsonLineProcessor(), JsonListProcessor()", "", "`deserializer=deserializers.json_lines`, `json_list`"),
    ("NetstringAggregator", "", "`deserializer=deserializers.netstrings`"),
    ("processor=MsgpackProcessor(), StringProcessor()", "", "`deserializer=msgpack.unpackb`, `bytes.decode`"),
    ("processor=KPLJsonProcessor()", "", "`deserializer=json.loads`: aggregates are always opened"),
    ("idle_timeout", "2.0", "`idle_timeout=`, by default none"),
    ("metrics_collector", "", "`sinks=`, `status()`"),
]  # fmt: skip

# The metrics of the KPL that CloudWatchSink sends, and where their values come from.
KPL_METRICS = {
    "UserRecordsReceived": "records that were put, counted every 5 seconds",
    "UserRecordsPending": "records that were put and are not resolved yet",
    "UserRecordsPut": "records that were stored",
    "UserRecordsDataPut": "bytes of data in these records",
    "KinesisRecordsPut": "entries that were stored",
    "KinesisRecordsDataPut": "bytes of these entries",
    "ErrorsByCode": "records that were sent again or failed, with the dimension `ErrorCode`",
    "AllErrors": "the sum of `ErrorsByCode` over all codes",
    "RetriesPerRecord": "retries divided by delivered records, so its maximum is not the number of retries of a single record",
    "UserRecordExpired": "records that were not delivered before their TTL had expired",
    "BufferingTime": "how long the oldest record of a request had waited when the request was sent",
    "RequestTime": "duration of PutRecords requests",
    "UserRecordsPerKinesisRecord": "records per entry",
    "KinesisRecordsPerPutRecordsRequest": "entries per request",
    "UserRecordsPerPutRecordsRequest": "records per request",
}
# The metrics of the KCL that CloudWatchSink sends: their dimensions besides Operation, and where they come from.
KCL_METRICS = [
    ("RecordsProcessed", "ProcessTask", "ShardId", "records that your code is done with"),
    ("DataBytesProcessed", "ProcessTask", "ShardId", "bytes of data that were read"),
    ("MillisBehindLatest", "ProcessTask", "ShardId", "the reading lag"),
    ("MillisBehindLatest", "ApplicationTracker", "", "the highest reading lag of this worker's shards"),
    ("ExpiredIterator", "ProcessTask", "ShardId", "expired shard iterators"),
    (
        "RecordProcessor.processRecords.Time",
        "ProcessTask",
        "ShardId",
        "how long your code worked on a page, a slice of a page, or a batch",
    ),
    (
        "RecordProcessor.processRecords.Success",
        "ProcessTask",
        "ShardId",
        "1 for each page, slice or batch, 0 for each failure",
    ),
    ("KinesisDataFetcher.getRecords.Time", "ProcessTask", "ShardId", "duration of GetRecords requests"),
    ("KinesisDataFetcher.getRecords.Success", "ProcessTask", "ShardId", "1 for each page, 0 for each failed request"),
    ("CurrentLeases", "RenewAllLeases", "WorkerIdentifier", "leases that this worker holds"),
    ("LostLeases", "RenewAllLeases", "WorkerIdentifier", "leases that this worker lost"),
    ("UpdateLease.Time", "RenewAllLeases", "WorkerIdentifier", "how long commits took"),
]


def metrics_table(metrics: tuple[metric_table.Metric, ...]) -> str:
    rows = [
        (
            f"`{full_name(metric)}`",
            f"`{own_name(metric)}`",
            metric.kind,
            named([*metric.labels, *(["shard_id"] if metric.has_shards else [])]),
            metric.help,
        )
        for metric in metrics
    ]
    return table(("Prometheus", "CloudWatch", "type", "labels", "meaning"), rows)


def producer_metrics_table() -> str:
    return metrics_table(metric_table.PRODUCER_METRICS)


def consumer_metrics_table() -> str:
    return metrics_table(metric_table.CONSUMER_METRICS)


def kpl_metrics_table() -> str:
    return table(("KPL metric", "its value here"), [(f"`{name}`", text) for name, text in KPL_METRICS.items()])


def kcl_metrics_table() -> str:
    rows = [
        (f"`{name}`", f"`{operation}`", f"`{dimension}`" if dimension else "", text)
        for name, operation, dimension, text in KCL_METRICS
    ]
    return table(("KCL metric", "`Operation`", "further dimension", "its value here"), rows)


def retry_table() -> str:
    rows = [
        (rule.when, rule.action.value, "yes" if rule.throttled else "", "yes" if rule.stale_map else "")
        for rule in Rules.ALL
    ]
    return table(("outcome", "the records are", "rate drops", "shards are listed again"), rows)


def events_table(kinds: tuple[type, ...], about: dict[str, str]) -> str:
    rows = [
        (f"`{kind.__name__}`", about[kind.__name__], ", ".join(f"`{name}`" for name in vars(kind)["_fields"]))
        for kind in kinds
    ]
    return table(("event", "meaning", "fields"), rows)


def producer_events_table() -> str:
    return events_table(get_args(producer_events.Event), PRODUCER_EVENTS)


def consumer_events_table() -> str:
    return events_table(get_args(consumer_events.Event), CONSUMER_EVENTS)


def named(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def kpl_table() -> str:
    """Return the table of the properties that are translated, then of the settings that the KPL does not have."""
    settings: dict[str, tuple[str, ...]] = {name: (ours,) for name, (ours, _) in kpl_properties._SETTINGS.items()}
    settings["RateLimit"] = ("records_per_second", "bytes_per_second")
    rows = [
        (f"`{name}`", KPL_DEFAULTS[name], named(ours), ", ".join(PRODUCER_DEFAULTS[setting] for setting in ours))
        for name, ours in sorted(settings.items())
    ]
    rows += [(instead, "", f"`{name}`", PRODUCER_DEFAULTS[name]) for name, instead in NOT_IN_THE_KPL.items()]
    return table(("KPL", "its default", "Shardline", "default"), rows)


def kpl_elsewhere_table() -> str:
    by_reason: dict[str, list[str]] = {}
    for name, reason in [*sorted(kpl_properties._EXPLAINED.items()), *KPL_IN_CODE.items()]:
        by_reason.setdefault(reason, []).append(name)
    return table(("KPL", "Shardline"), [(named(names), reason) for reason, names in by_reason.items()])


def aiokpl_table() -> str:
    rows = [(named(names.split(", ")), with_defaults(here, PRODUCER_DEFAULTS)) for names, here in AIOKPL.items()]
    return table(("aiokpl", "Shardline (default)"), rows)


def with_defaults(text: str, defaults: dict[str, str]) -> str:
    """Return the text, with the default after the name of each setting."""
    return re.sub(r"`(\w+)`", lambda name: f"{name[0]} ({defaults[name[1]]})" if name[1] in defaults else name[0], text)


def moved_table(heads: tuple[str, ...], rows: list[tuple[str, str, str]]) -> str:
    return table(
        heads,
        [
            (theirs if theirs.startswith("none") else f"`{theirs}`", default, with_defaults(here, CONSUMER_DEFAULTS))
            for theirs, default, here in rows
        ],
    )


def kcl_table() -> str:
    return moved_table(("KCL", "its default", "Shardline (default)"), KCL)


def async_kinesis_table() -> str:
    return moved_table(("async-kinesis, `Consumer`", "its default", "Shardline (default)"), ASYNC_KINESIS)


def otel_metrics_table() -> str:
    rows = [(f"`{name}`", kind, f"`{unit}`", description) for name, kind, unit, description in METRICS]
    return table(("metric", "kind", "unit", "meaning"), rows)


TABLES = {
    "retries": retry_table,
    "producer_events": producer_events_table,
    "consumer_events": consumer_events_table,
    "kpl": kpl_table,
    "kpl_elsewhere": kpl_elsewhere_table,
    "aiokpl": aiokpl_table,
    "kcl": kcl_table,
    "async_kinesis": async_kinesis_table,
    "otel_metrics": otel_metrics_table,
    "producer_metrics": producer_metrics_table,
    "consumer_metrics": consumer_metrics_table,
    "kpl_metrics": kpl_metrics_table,
    "kcl_metrics": kcl_metrics_table,
}
PAGES = {
    "guides/producer/retries.md": ["retries"],
    "reference/events.md": ["producer_events", "consumer_events"],
    "migration/kpl.md": ["kpl", "kpl_elsewhere"],
    "migration/aiokpl.md": ["aiokpl"],
    "migration/kcl.md": ["kcl"],
    "migration/async-kinesis.md": ["async_kinesis"],
    "reference/opentelemetry.md": ["otel_metrics"],
    "reference/metrics.md": ["producer_metrics", "consumer_metrics"],
    "guides/sinks/cloudwatch.md": ["kpl_metrics", "kcl_metrics"],
}


def written(page: str) -> str:
    """Return the page, with up-to-date tables."""
    return REGION.sub(lambda found: f"{found[1]}{found[2]}{TABLES[found[1]]()}", page)


if __name__ == "__main__":
    for name in PAGES:
        (HERE / name).write_text(written((HERE / name).read_text()))
