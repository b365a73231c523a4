"""How is a KPL properties file translated?"""

import pytest

from shardline.core.producer.kpl_properties import _EXPLAINED, _SETTINGS, translate
from shardline.core.producer.producer_config import ProducerConfig
from shardline.errors import UsageError
from shardline.model.limits import MIB

# KinesisProducerConfiguration 1.0.7: name, default, and the setting here (None: explained, not translated).
OF_THE_KPL = {
    "AggregationEnabled": ("true", {"aggregation": True}),
    "AggregationMaxCount": ("4294967295", {"aggregate_max_count": None}),
    "AggregationMaxSize": ("51200", {"aggregate_max_bytes": 51_200}),
    "CaCertFile": ("", None),
    "CaCertPath": ("", None),
    "CloudwatchEndpoint": ("", None),
    "CloudwatchPort": ("443", None),
    "CollectionMaxCount": ("500", {"request_max_entries": 500}),
    "CollectionMaxSize": ("5242880", {"request_max_bytes": 5 * MIB}),
    "ConnectTimeout": ("6000", None),
    "CredentialsRefreshDelay": ("5000", None),
    "DaemonHealthCheckTimeoutMs": ("30000", None),
    "EnableCoreDumps": ("false", None),
    "EnableDaemonHealthCheck": ("false", None),
    "EnableOldestFutureTracker": ("true", None),
    "FailIfThrottled": ("false", {"fail_if_throttled": False}),
    "GlueSchemaRegistryPropertiesFilePath": ("", None),
    "KinesisEndpoint": ("", None),
    "KinesisPort": ("443", None),
    "LogLevel": ("info", None),
    "MaxConnections": ("24", {"max_in_flight": 24}),
    "MaxUserRecordSize": ("1048576", {"record_max_bytes": MIB}),
    "MetricsGranularity": ("shard", None),
    "MetricsLevel": ("detailed", None),
    "MetricsNamespace": ("KinesisProducerLibrary", None),
    "MetricsUploadDelay": ("60000", None),
    "MinConnections": ("1", None),
    "NativeExecutable": ("", None),
    "ProxyHost": ("", None),
    "ProxyPassword": ("", None),
    "ProxyPort": ("443", None),
    "ProxyUserName": ("", None),
    "RateLimit": ("150", {"records_per_second": 1_500.0, "bytes_per_second": 1.5 * MIB}),
    "RecordMaxBufferedTime": ("100", {"linger": 0.1}),
    "RecordTtl": ("30000", {"record_ttl": 30.0}),
    "Region": ("", None),
    "RequestTimeout": ("6000", None),
    "ReturnUserRecordOnFailure": ("false", None),
    "StsEndpoint": ("", None),
    "StsPort": ("443", None),
    "TempDirectory": ("", None),
    "ThreadPoolSize": ("0", None),
    "ThreadingModel": ("PER_REQUEST", None),
    "UserRecordTimeoutInMillis": ("0", None),
    "VerifyCertificate": ("true", None),
}


def refusal(text):
    with pytest.raises(UsageError) as caught:
        translate(text)
    return str(caught.value)


def test_all_properties_of_the_kpl_and_no_others_are_known():
    assert set(_SETTINGS) | set(_EXPLAINED) | {"RateLimit"} == set(OF_THE_KPL)
    assert not set(_SETTINGS) & set(_EXPLAINED)


@pytest.mark.parametrize("name", OF_THE_KPL)
def test_every_property_is_translated_or_explained(name):
    default, expected = OF_THE_KPL[name]
    settings, untranslated = translate(f"{name} = {default}")
    if expected is None:
        assert settings == {}
        (sentence,) = untranslated
        assert sentence.startswith(f"{name} ")
        assert any(words in sentence for words in ("has no counterpart", "belongs to the", "is always on"))
    else:
        assert settings == expected
        assert untranslated == ()


def test_the_defaults_of_the_kpl_are_together_a_valid_config():
    settings, untranslated = translate("\n".join(f"{name}={default}" for name, (default, _) in OF_THE_KPL.items()))
    assert ProducerConfig(**settings).request_max_bytes == 5 * MIB
    assert len(untranslated) == sum(expected is None for _, expected in OF_THE_KPL.values())


@pytest.mark.parametrize("name", ["recordTtl", "RecordTTL", "MaxOutstandingRecords", "hello"])
def test_a_property_that_the_kpl_does_not_know_is_an_error(name):
    assert refusal(f"{name} = 1") == f"the KPL has no property {name!r}"


def test_the_value_of_a_property_that_is_only_explained_is_not_shown():
    _, untranslated = translate("ProxyPassword = hunter2")
    assert "hunter2" not in "".join(untranslated)


def test_milliseconds_become_seconds():
    assert translate("RecordTtl = 1500\nRecordMaxBufferedTime = 0")[0] == {"record_ttl": 1.5, "linger": 0.0}


@pytest.mark.parametrize(
    ("percent", "records", "size"), [(100, 1_000.0, MIB), (50, 500.0, MIB / 2), (1, 10.0, 10_485.76)]
)
def test_per_cent_become_rates_of_a_shard(percent, records, size):
    settings, _ = translate(f"RateLimit = {percent}")
    assert settings == {"records_per_second": records, "bytes_per_second": size}


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("4294967294", 4_294_967_294), ("9223372036854775807", None)])
def test_the_largest_kpl_count_means_no_limit(text, count):
    assert translate(f"AggregationMaxCount={text}")[0] == {"aggregate_max_count": count}


def test_sizes_beyond_what_the_service_takes_are_cut_to_it():
    settings, _ = translate("AggregationMaxSize = 10485760\nCollectionMaxSize = 9223372036854775807")
    assert settings == {"aggregate_max_bytes": 10 * MIB - 1024, "request_max_bytes": 10 * MIB}
    assert ProducerConfig(**settings).aggregate_max_bytes == 10 * MIB - 1024


@pytest.mark.parametrize(
    ("text", "request_max_bytes"),
    [
        ("AggregationMaxSize = 2000000", 2_000_000),
        ("AggregationMaxSize = 2000000\nCollectionMaxSize = 60000", 2_000_000),
        ("AggregationMaxSize = 2000000\nCollectionMaxSize = 3000000", 3_000_000),
        ("AggregationMaxSize = 1048576", None),
    ],
)
def test_a_request_is_made_to_hold_at_least_one_full_aggregate(text, request_max_bytes):
    settings, _ = translate(text)
    assert settings.get("request_max_bytes") == request_max_bytes
    config = ProducerConfig(**settings)
    assert config.aggregate_max_bytes <= config.request_max_bytes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MaxUserRecordSize", "1048576;"),  # as in the KPL's own sample file, where it cannot be read either
        ("RecordTtl", "30 s"),
        ("RecordTtl", "1.5"),
        ("RecordTtl", ""),
        ("RateLimit", "150%"),
        ("AggregationEnabled", "yes"),
        ("AggregationEnabled", ""),
        ("FailIfThrottled", "1"),
        ("AggregationMaxCount", "many"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_by_name_and_value(name, value):
    assert refusal(f"{name} = {value}") == f"the property {name} has a value that cannot be read: {value!r}"


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("False", False)])
def test_flags_are_read_in_any_case_as_java_does(text, value):
    assert translate(f"AggregationEnabled={text}")[0] == {"aggregation": value}


# ---- the form of the file


@pytest.mark.parametrize(
    "text",
    [
        "RecordTtl=60000",
        "RecordTtl = 60000",
        "RecordTtl:60000",
        "RecordTtl : 60000",
        "RecordTtl 60000",
        "RecordTtl\t60000",
        "   RecordTtl=60000   ",
        "\n\n  \nRecordTtl=60000\n\n",
        "RecordTtl=60000\r\n",
        "RecordTtl=60000\r",
        "# a comment\n! another\n   # and one\nRecordTtl=60000",
        "RecordTtl=\\\n    60000",
        "RecordTtl=\\\r\n    60000",
        "RecordTtl\\\n=\\\n600\\\n  00",
        "RecordTtl=60000\\",
        "RecordTtl=1\nRecordTtl=60000",
    ],
)
def test_every_way_to_write_a_property_is_read(text):
    assert translate(text) == ({"record_ttl": 60.0}, ())


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n! comments"])
def test_a_file_without_properties_changes_nothing(text):
    assert translate(text) == ({}, ())


@pytest.mark.parametrize("text", ["RecordTtl", "=5", ":"])
def test_a_line_that_is_no_property_is_refused(text):
    assert refusal(text) == f"not a property: {text!r}"


def test_a_very_long_line_is_shown_cut():
    assert len(refusal("x" * 5_000)) < 120


def test_a_comment_that_ends_in_a_backslash_does_not_swallow_the_next_line():
    """Regression: the property after it was dropped silently."""
    assert translate("# see C:\\kpl\\\nRecordTtl=60000")[0] == {"record_ttl": 60.0}


def test_an_even_number_of_backslashes_does_not_continue_a_line_an_odd_one_does():
    text = "TempDirectory=C:\\\\kpl\\\\\nRecordTtl=60000"
    assert translate(text)[0] == {"record_ttl": 60.0}
    settings, untranslated = translate("TempDirectory=C:\\\\\\\nRecordTtl=60000")
    assert settings == {}
    assert len(untranslated) == 1


@pytest.mark.parametrize("character", ["Å", "…", "\x0b", "\x0c", "\x1c", "\x85"])
def test_a_comment_in_any_encoding_stays_one_line(character):
    """Regression: bytes of UTF-8, read as Latin-1, passed for line ends, and the rest of the comment for a property."""
    text = f"# before {character} after\nRecordTtl=60000".encode().decode("latin-1")
    assert translate(text) == ({"record_ttl": 60.0}, ())


@pytest.mark.parametrize("digits", [400, 5_000])
def test_a_number_out_of_range_is_reported_and_not_shown_in_full(digits):
    """Regression: it raised an OverflowError."""
    with pytest.raises(UsageError, match="RecordTtl has a value that cannot be read") as caught:
        translate(f"RecordTtl={'9' * digits}")
    assert len(str(caught.value)) < 200
