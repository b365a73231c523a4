"""Are the tables that come from the code current on every page?"""

import re
from collections import Counter
from dataclasses import fields

import pytest
from tests.docs import pages

from shardline import ConsumerConfig, ProducerConfig

TABLES = pages.script("docs/tables.py")


@pytest.mark.parametrize("page", TABLES.PAGES)
def test_the_tables_of_a_page_are_those_of_the_code(page):
    text = pages.text_of(f"docs/{page}")
    assert re.findall(r"<!-- table: (\w+) -->\n\|", text) == TABLES.PAGES[page]
    assert TABLES.written(text) == text, "run: python docs/tables.py"


def test_every_table_is_on_one_page():
    assert sorted(name for names in TABLES.PAGES.values() for name in names) == sorted(TABLES.TABLES)


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("guides/producer/retries.md", "| sent again unchanged,", "| failed,"),
        ("reference/events.md", "`open_shards`, ", ""),
        ("migration/kcl.md", "`lease_duration` (10)", "`lease_duration` (9)"),
    ],
)
def test_a_stale_table_is_seen(page, old, new):
    text = pages.text_of(f"docs/{page}")
    assert old in text
    assert TABLES.written(text.replace(old, new)) == text


def test_every_event_has_its_meaning():
    for kinds, about in (
        (TABLES.producer_events.Event, TABLES.PRODUCER_EVENTS),
        (TABLES.consumer_events.Event, TABLES.CONSUMER_EVENTS),
    ):
        assert {kind.__name__ for kind in TABLES.get_args(kinds)} == about.keys()


def test_every_setting_is_in_the_table_of_the_kpl():
    words = Counter(re.findall(r"`(\w+)`", TABLES.kpl_table()))
    assert [one.name for one in fields(ProducerConfig) if one.metadata and not words[one.name]] == []


# The settings of aiokpl 0.2.0.
AIOKPL = set(
    re.findall(
        r"\w+",
        """
    region aggregation_enabled aggregation_max_count aggregation_max_size record_max_buffered_time_ms record_ttl_ms
    collection_max_count collection_max_size rate_limit_records_per_sec_per_shard rate_limit_bytes_per_sec_per_shard
    fail_if_throttled retry_deadline_ms max_outstanding_records endpoint_url verify_ssl aws_access_key_id
    aws_secret_access_key aws_session_token metrics_level metrics_sink metrics_upload_interval_ms drain_interval_ms
""",
    )
)


def test_every_setting_of_aiokpl_is_in_its_table():
    shown = set(re.findall(r"`(\w+)`", TABLES.aiokpl_table()))
    assert len(AIOKPL) == 22
    assert AIOKPL - shown == set()


def test_every_setting_is_in_the_table_of_the_kcl():
    shown = TABLES.kcl_table()
    names = {field.name for field in fields(ConsumerConfig)}
    assert {name for name in names if f"`{name}" not in shown} == set()


# The arguments of async-kinesis 3.0.1's Consumer, and of its checkpointers.
ASYNC_KINESIS = [
    "stream_name",
    "session",
    "endpoint_url",
    "region_name",
    "retry_limit",
    "expo_backoff",
    "expo_backoff_limit",
    "skip_describe_stream",
    "use_list_shards",
    "create_stream",
    "create_stream_shards",
    "describe_timeout",
    "max_queue_size",
    "max_shard_consumers",
    "record_limit",
    "sleep_time_no_records",
    "iterator_type",
    "timestamp",
    "shard_fetch_rate",
    "checkpointer",
    "processor",
    "idle_timeout",
    "checkpoint_interval",
    "metrics_collector",
    "id",
    "session_timeout",
    "heartbeat_frequency",
    "auto_checkpoint",
]


def test_every_argument_of_async_kinesis_is_in_its_table():
    shown = set(re.findall(r"\w+", TABLES.async_kinesis_table()))
    assert len(ASYNC_KINESIS) == 28
    assert set(ASYNC_KINESIS) - shown == set()
