"""Which tables of ``docs/consumer.md`` are made from the code?

Those between ``<!-- table: NAME -->`` and ``<!-- end -->``. ``python tests/docs/consumer_tables.py`` writes them anew;
``test_consumer_page.py`` fails when the page says something else than the code.
"""

import ast
import re
from dataclasses import fields
from inspect import getsource
from pathlib import Path
from typing import get_args

from shardline import ConsumerConfig, FailurePolicy, UsageError
from shardline.core.consumer.config import _CHECKS
from shardline.core.consumer.events import Event
from shardline.model.limits import KIB, MIB

PAGE = Path(__file__).parents[2] / "docs" / "consumer.md"
REGION = re.compile(r"(?<=<!-- table: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)

SETTINGS = {field.name: field for field in fields(ConsumerConfig)}

# Of the KCL 3: its setting, its default, ours.
KCL = [
    ("applicationName", "", "`group=`, and the table's name in `store=\"dynamodb://...\"`"),
    ("streamName, StreamTracker", "", "the first argument: one consumer a stream"),
    ("workerIdentifier", "", "`worker_id`"),
    ("initialPositionInStream", "LATEST", "`start=`, by default TRIM_HORIZON"),
    ("failoverTimeMillis", "10,000", "`lease_duration`"),
    ("leaseAssignmentIntervalMillis", "20,000", "`scan_interval`"),
    ("maxLeasesForWorker", "no limit", "`max_leases`"),
    ("maxLeasesToStealAtOneTime", "1", "as many as it has, up to 32"),
    ("gracefulLeaseHandoff timeoutMillis", "30,000", "`hand_over_timeout`"),
    ("shardSyncIntervalMillis", "60,000", "`list_interval`"),
    ("maxRecords", "10,000", "`page_max_records`"),
    ("idleTimeBetweenReadsInMillis", "1,500", "`idle_poll_interval`, and no pause while behind"),
    ("maxByteSize, maxRecordsCount, maxPendingProcessRecordsInput", "8 MiB, 30,000, 4 a shard", "`prefetch_max_bytes`, of all shards together"),
    ("parentShardPollIntervalMillis", "10,000", "nothing: children begin when their parents are finished"),
    ("checkpoint() in processRecords", "", 'by itself, every `checkpoint_interval`; or `ack="manual"`'),
    ("cleanupLeasesUponShardCompletion", "true", "always"),
    ("callProcessRecordsEvenForEmptyRecordList", "false", "never"),
    ("billingMode", "PAY_PER_REQUEST", "the same, for a table that is made here"),
    ("retrievalMode FANOUT", "the default", "not yet: records are polled"),
    ("logWarningForTaskAfterMillis", "none", "`stuck_after`"),
    ("metricsLevel", "DETAILED", "`sink=`, `status()`"),
    ("nothing: within 5 calls and 2 MiB/s a shard", "", "`calls_per_second`, `bytes_per_second`"),
    ("nothing: an aggregate with a misplaced record is dropped", "", "`out_of_range`"),
    ("nothing", "", "`if_recreated`"),
    ("nothing", "", "`store_patience`"),
    ("nothing", "", "`max_unacknowledged`"),
]  # fmt: skip

# Of async-kinesis: its argument, its default, what is here.
ASYNC_KINESIS = [
    ("stream_name", "", "the first argument"),
    ("session", "None", "`session=`, of botocore or boto3"),
    ("endpoint_url, region_name", "None", "`endpoint_url=`, `region=`"),
    ("retry_limit, expo_backoff, expo_backoff_limit", "5, None, 120", "nothing: what may succeed later is tried again, with growing pauses"),
    ("describe_timeout, skip_describe_stream, use_list_shards", "60, False, False", "nothing: shards are listed, all of them"),
    ("create_stream, create_stream_shards", "False, 1", "`Client.create_stream`"),
    ("max_queue_size", "10,000 records", "`prefetch_max_bytes`, in bytes; a slow handler loses nothing"),
    ("max_shard_consumers", "None", "`max_leases=`"),
    ("record_limit", "10,000", "`page_max_records`"),
    ("sleep_time_no_records", "2", "`idle_poll_interval`"),
    ("iterator_type, timestamp", "TRIM_HORIZON", "`start=`: TRIM_HORIZON, LATEST or a time"),
    ("shard_fetch_rate", "1", "`calls_per_second`"),
    ("checkpointer=MemoryCheckPointer()", "the default", "nothing; or a group on `memory:`"),
    ("checkpointer=RedisCheckPointer(name)", "REDIS_HOST, ...", '`group=name, store="redis://host/0"`'),
    ("checkpointer=DynamoDBCheckPointer(name)", "", '`group=name, store="dynamodb://table"`'),
    ("id", "the PID", "`worker_id=`, unique if not given"),
    ("session_timeout, heartbeat_frequency", "60, 15", "`lease_duration`; renewed three times in it"),
    ("auto_checkpoint=False, manual_checkpoint()", "", '`ack="manual"`, `consumer.ack(record)`'),
    ("checkpoint_interval", "None", "`checkpoint_interval`"),
    ("processor=JsonProcessor()", "the default", "`deserializer=json.loads`; without one there are bytes"),
    ("processor=JsonLineProcessor(), JsonListProcessor()", "", "`deserializer=deserializers.json_lines`, `json_list`"),
    ("NetstringAggregator", "", "`deserializer=deserializers.netstrings`"),
    ("processor=MsgpackProcessor(), StringProcessor()", "", "`deserializer=msgpack.unpackb`, `bytes.decode`"),
    ("processor=KPLJsonProcessor()", "", "`deserializer=json.loads`: aggregates are always opened"),
    ("idle_timeout", "2.0", "`idle_timeout=`, by default none: the loop goes on"),
    ("metrics_collector", "", "`sink=`, `status()`"),
]  # fmt: skip


def table(heads, rows):
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def shown(name, value):
    """A value as people write it."""
    if value is None or isinstance(value, (bool, str)):
        return f"`{value}`" if not isinstance(value, str) else f'`"{value}"`'
    if "bytes" in name and value >= KIB and value % KIB == 0:
        return f"{value // MIB:.0f} MiB" if value % MIB == 0 else f"{value / KIB:,.0f} KiB"
    return f"{value:,g}" if value < KIB**2 else f"{value:,}"


def allowed(name):
    """What its own check says of a wrong value."""
    try:
        _CHECKS[name](name, b"")
    except UsageError as error:
        words = re.fullmatch(r"\w+ must be (.+), not b''", str(error))[1]
    told = re.sub(r"'(\w+)'", r'`"\1"`', words.removesuffix(", or None"))
    return told + (", or `None`" if is_allowed(name, None) else "")


def is_allowed(name, value):
    try:
        _CHECKS[name](name, value)
    except UsageError:
        return False
    return True


def meanings(kind):
    """The words under each field of a dataclass."""
    body = ast.parse(getsource(kind)).body[0].body
    found = {}
    for one, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign):
            told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            found[one.target.id] = " ".join(following.value.value.split()) if told else ""
    return found


PLAIN = {
    "calls_per_second": "GetRecords calls to a shard.",
    "bytes_per_second": "Bytes read of a shard.",
    "attempts": "How often a record, or a whole batch, is tried.",
    "backoff_max": "The longest wait.",
    "finally_": "`stop`, or `dead-letter`, which `dead_letter=` says by itself.",
}


def settings_table():
    words = meanings(ConsumerConfig)
    rows = [
        (f"`{name}`", shown(name, field.default), allowed(name), (words[name] or PLAIN[name]).replace("``", "`"))
        for name, field in SETTINGS.items()
    ]
    return table(("setting", "default", "allowed", "meaning"), rows)


def policy_table():
    words = meanings(FailurePolicy)
    rows = [
        (
            f"`{field.name}`",
            shown(field.name, field.default),
            (words[field.name] or PLAIN[field.name]).replace("``", "`"),
        )
        for field in fields(FailurePolicy)
    ]
    return table(("of a `FailurePolicy`", "default", "meaning"), rows)


# The code says of these what its shell must do.
TOLD = {
    "LeaseGained": "A shard is ours: it is read from `start`.",
    "HandOverAsked": "Another worker asked for the shard: what you have of it is finished, until `until`, and committed.",
    "HandOverOverdue": "You were not done in time: your handler for the shard was cancelled, and the lease goes.",
    "LeaseLost": "The lease is gone: your handler for the shard was cancelled, someone else may be reading it.",
}


def events_table():
    rows = []
    for kind in get_args(Event):
        meaning = " ".join(kind.__doc__.split("\n\n")[0].split()).replace("``", "`")
        meaning = TOLD.get(kind.__name__, meaning)
        rows.append((f"`{kind.__name__}`", ", ".join(f"`{name}`" for name in kind._fields), meaning))
    return table(("event", "fields", "what it says"), rows)


def moving(rows):
    def ours(text):
        """What is here, with the default of a setting."""
        return re.sub(
            r"`(\w+)`",
            lambda found: (
                f"`{found[1]}` ({shown(found[1], SETTINGS[found[1]].default)})" if found[1] in SETTINGS else found[0]
            ),
            text,
        )

    return [
        (f"`{theirs}`" if not theirs.startswith("nothing") else theirs, default, ours(here))
        for theirs, default, here in rows
    ]


def kcl_table():
    return table(("KCL", "its default", "here (default)"), moving(KCL))


def async_kinesis_table():
    return table(("async-kinesis", "its default", "here (default)"), moving(ASYNC_KINESIS))


TABLES = {
    "settings": settings_table,
    "policy": policy_table,
    "events": events_table,
    "kcl": kcl_table,
    "asynckinesis": async_kinesis_table,
}


def written(page):
    """The page, with every table as the code has it."""
    return REGION.sub(lambda found: f"{found[1]}{found[2]}{TABLES[found[1]]()}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
