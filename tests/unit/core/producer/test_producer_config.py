"""Are the settings of a producer checked?"""

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from shardline.core.producer.producer_config import ProducerConfig
from shardline.errors import UsageError
from shardline.model.limits import (
    KIB,
    MIB,
    RECORD_DEFAULT_MAX_BYTES,
    SHARD_WRITE_BYTES_PER_SECOND,
    SHARD_WRITE_RECORDS_PER_SECOND,
)

DEFAULTS = {
    "linger": 0.1,
    "record_ttl": 30.0,
    "aggregation": True,
    "packing": None,
    "aggregate_max_bytes": 51_200,
    "aggregate_max_count": None,
    "request_max_entries": 500,
    "request_max_bytes": MIB,
    "shard_burst_bytes": 256 * KIB,
    "records_per_second": 1_000.0,
    "bytes_per_second": 1_048_576.0,
    "max_in_flight": 24,
    "isolation_calls_per_second": 100,
    "buffer_max_bytes": 64 * MIB,
    "buffer_max_records": 100_000,
    "record_max_bytes": None,
    "ordered": False,
    "dedup": False,
    "fail_if_throttled": False,
    "max_attempts": None,
    "retry_backoff": 0.1,
    "retry_backoff_max": 5.0,
    "closed_shard_ttl": 60.0,
    "untranslated": (),
}
NUMBERS = {knob.name: knob.metadata for knob in fields(ProducerConfig) if "lowest" in knob.metadata}
CHOICES = [knob.name for knob in fields(ProducerConfig) if "choices" in knob.metadata]
SWITCHES = [
    knob.name
    for knob in fields(ProducerConfig)
    if knob.metadata and "lowest" not in knob.metadata and "choices" not in knob.metadata
]


def limited(name, value):
    """Return a config with that value, and with other settings that are consistent with it."""
    wide = {"record_ttl": 31_536_000.0, "retry_backoff_max": 3_600.0, "request_max_bytes": 10 * MIB}
    narrow = {"linger": 0.0, "retry_backoff": 0.001, "aggregate_max_bytes": 64}
    return ProducerConfig(**{**wide, **narrow, name: value})


def refusal(**settings):
    with pytest.raises(UsageError) as caught:
        ProducerConfig(**settings)
    return str(caught.value)


def test_the_defaults_are_those_of_the_architecture():
    assert {knob.name: getattr(ProducerConfig(), knob.name) for knob in fields(ProducerConfig)} == DEFAULTS


def test_the_defaults_keep_the_limits_of_a_shard():
    config = ProducerConfig()
    assert config.records_per_second == SHARD_WRITE_RECORDS_PER_SECOND
    assert config.bytes_per_second == SHARD_WRITE_BYTES_PER_SECOND


def test_every_setting_is_checked_and_named_in_the_error():
    assert set(NUMBERS) | set(SWITCHES) | set(CHOICES) | {"untranslated"} == set(DEFAULTS)
    assert all(knob.metadata["about"] for knob in fields(ProducerConfig) if knob.name != "untranslated")


@pytest.mark.parametrize("name", NUMBERS)
def test_both_ends_of_a_range_are_allowed(name):
    for edge in ("lowest", "highest"):
        value = NUMBERS[name][edge]
        assert getattr(limited(name, value), name) == value


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(("edge", "beyond"), [("lowest", -1), ("highest", 1)])
def test_beyond_them_a_value_is_refused_by_name_value_and_range(name, edge, beyond):
    rules = NUMBERS[name]
    value = rules[edge] + beyond
    with pytest.raises(UsageError) as caught:
        limited(name, value)
    noun = "a whole number" if rules["whole"] else "a number"
    tail = ", or None" if rules["optional"] else ""
    low, high = (f"{rules[edge]:,}".removesuffix(".0") for edge in ("lowest", "highest"))
    allowed = f"{noun} from {low} to {high}{tail}"
    assert str(caught.value) == f"{name} must be {allowed}, not {value!r}"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1", True, False, b"1", [1], float("nan"), float("inf"), -float("inf"), 1j])
def test_what_is_no_number_is_refused(name, value):
    assert refusal(**{name: value}).startswith(f"{name} must be ")


@pytest.mark.parametrize("name", NUMBERS)
def test_none_is_refused_where_it_means_nothing(name):
    if NUMBERS[name]["optional"]:
        assert getattr(ProducerConfig(**{name: None}), name) is None
    else:
        assert refusal(**{name: None}).endswith("not None")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_count_takes_no_fraction_and_a_time_or_rate_takes_whole_numbers_too(name):
    if NUMBERS[name]["whole"]:
        assert refusal(**{name: 100.0}).startswith(f"{name} must be a whole number")
    else:
        assert getattr(limited(name, 1), name) == 1


@pytest.mark.parametrize("value", [0, 1, None, "yes", "FORCE"])
def test_aggregation_is_true_false_or_forced(value):
    assert refusal(aggregation=value) == f"aggregation must be True, False or 'force', not {value!r}"
    assert [ProducerConfig(aggregation=good).aggregation for good in (True, False, "force")] == [True, False, "force"]


@pytest.mark.parametrize("name", ["ordered", "fail_if_throttled"])
@pytest.mark.parametrize("value", [0, 1, None, "yes", "false"])
def test_a_switch_is_true_or_false(name, value):
    assert name in SWITCHES
    assert refusal(**{name: value}) == f"{name} must be True or False, not {value!r}"


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_can_be_set_both_ways(name):
    assert [getattr(ProducerConfig(**{name: value}), name) for value in (True, False)] == [True, False]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"linger": 2.0, "record_ttl": 1.0}, "linger must be less than record_ttl: 2.0 is not less than 1.0"),
        ({"linger": 1.0, "record_ttl": 1.0}, "linger must be less than record_ttl: 1.0 is not less than 1.0"),
        ({"record_ttl": 0.05}, "linger must be less than record_ttl: 0.1 is not less than 0.05"),
        (
            {"retry_backoff": 2.0, "retry_backoff_max": 1.0},
            "retry_backoff must be at most retry_backoff_max: 2.0 is more than 1.0",
        ),
        (
            {"aggregate_max_bytes": 2_000, "request_max_bytes": 1_024},
            "aggregate_max_bytes must be at most request_max_bytes: 2000 is more than 1024",
        ),
    ],
)
def test_knobs_that_contradict_each_other_are_refused(settings, words):
    assert refusal(**settings) == words


def test_equal_knobs_do_not_contradict_each_other():
    config = ProducerConfig(linger=1.0, record_ttl=1.001, retry_backoff=5.0, aggregate_max_bytes=MIB)
    assert (config.linger, config.retry_backoff_max, config.request_max_bytes) == (1.0, 5.0, MIB)


def test_a_config_does_not_change():
    config = ProducerConfig()
    with pytest.raises(FrozenInstanceError):
        config.linger = 1.0
    assert not hasattr(config, "__dict__")


def test_a_changed_copy_is_checked_too():
    assert replace(ProducerConfig(), linger=0.0).linger == 0.0
    with pytest.raises(UsageError, match="linger must be"):
        replace(ProducerConfig(), linger=-1.0)


def test_an_unknown_knob_is_an_error_of_the_language():
    with pytest.raises(TypeError, match="lingers"):
        ProducerConfig(lingers=1.0)
    with pytest.raises(TypeError):
        ProducerConfig(0.1)


def test_configs_are_equal_by_their_knobs_wherever_they_came_from():
    assert ProducerConfig() == ProducerConfig(untranslated=("Region belongs to the client",))
    assert ProducerConfig() != ProducerConfig(linger=0.2)
    assert "untranslated" not in repr(ProducerConfig())


def test_the_record_limit_is_the_default_of_streams_until_one_is_asked():
    assert ProducerConfig().known_record_max_bytes == RECORD_DEFAULT_MAX_BYTES
    assert ProducerConfig(record_max_bytes=500).known_record_max_bytes == 500


# ---- migration from the KPL


def test_a_properties_file_of_the_kpl_becomes_a_config(tmp_path):
    path = tmp_path / "kpl.properties"
    path.write_bytes(b"# f\xc3\xbcr uns\r\nRecordTtl = 60000\r\nRecordMaxBufferedTime=250\r\nRegion: eu-west-1\r\n")
    for given in (path, str(path)):
        config = ProducerConfig.from_kpl_properties(given)
        assert config == ProducerConfig(record_ttl=60.0, linger=0.25)
        assert config.untranslated == ("Region belongs to the client: pass it to Producer or Client as region=",)


def test_further_settings_win_over_the_file(tmp_path):
    path = tmp_path / "kpl.properties"
    path.write_text("RecordTtl = 60000\n")
    assert ProducerConfig.from_kpl_properties(path, record_ttl=5.0, ordered=True) == ProducerConfig(
        record_ttl=5.0, ordered=True
    )


def test_a_value_that_no_setting_allows_is_refused(tmp_path):
    path = tmp_path / "kpl.properties"
    path.write_text("CollectionMaxCount = 501\n")
    with pytest.raises(UsageError, match="request_max_entries must be a whole number from 1 to 500, not 501"):
        ProducerConfig.from_kpl_properties(path)


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        ProducerConfig.from_kpl_properties(tmp_path / "none")


@pytest.mark.parametrize("name", ["json-lines", "json-list", "netstrings", "length-prefixed", None])
def test_packing_is_the_name_of_a_format(name):
    assert ProducerConfig(packing=name).packing == name


@pytest.mark.parametrize("value", ["json", "", False, 1, ["json-lines"]])
def test_another_packing_is_refused_and_the_formats_are_named(value):
    allowed = "'json-lines' or 'json-list' or 'netstrings' or 'length-prefixed' or None"
    assert refusal(packing=value) == f"packing must be {allowed}, not {value!r}"


def test_packing_without_aggregation_is_refused():
    assert "set aggregate_max_count=1" in refusal(packing="netstrings", aggregation=False)


def test_a_record_may_have_a_ttl_of_its_own():
    config = ProducerConfig(linger=0.5, record_ttl=10.0)
    assert [config.extra_ttl(ttl) for ttl in (None, 10, 10.0, 4.0, 100)] == [0.0, 0.0, 0.0, -6.0, 90.0]
    for wrong in (0, -1, "5", True, float("nan"), 1e9):
        with pytest.raises(UsageError, match="ttl must be a number from"):
            config.extra_ttl(wrong)
    with pytest.raises(UsageError, match=r"ttl must be more than linger: 0\.5 is not more than 0\.5"):
        config.extra_ttl(0.5)
