"""Every quota is pinned: an accidental change fails here, and a deliberate one is made in both places."""

import re

import pytest
from botocore.loaders import Loader

from shardline.model import limits

PINNED = {
    "KIB": 1024,
    "MIB": 1_048_576,
    "PUT_RECORDS_MAX_ENTRIES": 500,
    "PUT_RECORDS_MAX_BYTES": 10_485_760,
    "GET_RECORDS_MAX_RECORDS": 10_000,
    "GET_RECORDS_MAX_BYTES": 10_485_760,
    "LIST_SHARDS_MAX_RESULTS": 1_000,
    "RECORD_DEFAULT_MAX_BYTES": 1_048_576,
    "RECORD_HIGHEST_MAX_BYTES": 10_485_760,
    "PARTITION_KEY_MIN_LENGTH": 1,
    "PARTITION_KEY_MAX_LENGTH": 256,
    "AGGREGATE_DEFAULT_MAX_BYTES": 51_200,
    "AGGREGATE_DEFAULT_MAX_COUNT": None,
    "AGGREGATE_LOWEST_MAX_BYTES": 64,
    "AGGREGATE_HIGHEST_MAX_BYTES": 10_484_736,
    "SHARD_WRITE_RECORDS_PER_SECOND": 1_000.0,
    "SHARD_WRITE_BYTES_PER_SECOND": 1_048_576.0,
    "SHARD_READ_BYTES_PER_SECOND": 2_097_152.0,
    "SHARD_READ_CALLS_PER_SECOND": 5.0,
    "SHARD_ITERATOR_CALLS_PER_SECOND": 5.0,
    "FAN_OUT_BYTES_PER_SECOND": 2_097_152.0,
    "ITERATOR_LIFE": 300.0,
    "ITERATOR_MAX_LENGTH": 512,
    "LIST_TOKEN_LIFE": 300.0,
    "SUBSCRIPTION_LIFE": 300.0,
    "SUBSCRIPTION_TAKEOVER_WAIT": 5.0,
    "RETENTION_MIN_HOURS": 24,
    "RETENTION_MAX_HOURS": 8_760,
    "DESCRIBE_STREAM_PER_SECOND": 10.0,
    "DESCRIBE_STREAM_SUMMARY_PER_SECOND": 20.0,
    "LIST_SHARDS_PER_SECOND": 1_000.0,
    "LIST_STREAMS_PER_SECOND": 5.0,
    "DESCRIBE_LIMITS_PER_SECOND": 1.0,
    "STREAM_CHANGES_PER_SECOND": 5.0,
    "UPDATE_SHARD_COUNT_PER_SECOND": 10.0,
    "DESCRIBE_CONSUMER_PER_SECOND": 20.0,
    "LIST_CONSUMERS_PER_SECOND": 5.0,
    "REGISTER_CONSUMER_PER_SECOND": 5.0,
    "ACCOUNT_AND_CHANNEL_CALLS_PER_SECOND": 5.0,
    "SUBSCRIBE_PER_SECOND": 1.0,
    "CONSUMERS_PER_STREAM": 20,
    "CONSUMERS_PER_ADVANTAGE_STREAM": 50,
    "CONSUMERS_CREATING_AT_ONCE": 5,
    "TAGS_PER_STREAM": 50,
    "UPDATE_SHARD_COUNT_PER_DAY": 10,
    "UPDATE_STREAM_MODE_PER_DAY": 2,
    "SHARDS_PER_STREAM_BY_UPDATE": 10_000,
    "WARM_THROUGHPUT_MAX_MIBPS": 10_240,
    "DATA_FRESHNESS_MIN": 300,
    "DATA_FRESHNESS_MAX": 900,
    "STREAM_NAME_MAX_LENGTH": 128,
    "SEQUENCE_NUMBER_MAX_DIGITS": 129,
    "EXPLICIT_HASH_KEY_MAX_DIGITS": 39,
}


def test_every_number_is_pinned_with_its_type():
    found = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert found == PINNED
    assert {name: type(value) for name, value in found.items()} == {k: type(v) for k, v in PINNED.items()}


@pytest.fixture(scope="module")
def shapes():
    return Loader().load_service_model("kinesis", "service-2")["shapes"]


@pytest.mark.parametrize(
    ("shape", "bound", "name"),
    [
        ("PutRecordsRequestEntryList", "max", "PUT_RECORDS_MAX_ENTRIES"),
        ("GetRecordsInputLimit", "max", "GET_RECORDS_MAX_RECORDS"),
        ("Data", "max", "RECORD_HIGHEST_MAX_BYTES"),
        ("PartitionKey", "min", "PARTITION_KEY_MIN_LENGTH"),
        ("PartitionKey", "max", "PARTITION_KEY_MAX_LENGTH"),
        ("ShardIterator", "max", "ITERATOR_MAX_LENGTH"),
        ("StreamName", "max", "STREAM_NAME_MAX_LENGTH"),
    ],
)
def test_what_the_service_model_bounds_is_bounded_alike(shapes, shape, bound, name):
    assert shapes[shape][bound] == getattr(limits, name)


@pytest.mark.parametrize(
    ("shape", "name"), [("SequenceNumber", "SEQUENCE_NUMBER_MAX_DIGITS"), ("HashKey", "EXPLICIT_HASH_KEY_MAX_DIGITS")]
)
def test_what_the_service_model_counts_in_digits_is_counted_alike(shapes, shape, name):
    digits = getattr(limits, name)
    assert re.fullmatch(shapes[shape]["pattern"], "1" * digits)
    assert not re.fullmatch(shapes[shape]["pattern"], "1" * (digits + 1))


def test_the_record_sizes_are_those_that_the_service_model_lets_a_stream_have(shapes):
    kib = shapes["MaxRecordSizeInKiB"]
    assert kib["min"] * limits.KIB == limits.RECORD_DEFAULT_MAX_BYTES
    assert kib["max"] * limits.KIB == limits.RECORD_HIGHEST_MAX_BYTES
