"""Tests of ``shardline.core.consumer.consumer_config``."""

from dataclasses import FrozenInstanceError, fields

import pytest

from shardline.core.consumer.consumer_config import _CHECKS, ConsumerConfig
from shardline.errors import UsageError
from shardline.model.limits import MIB


def test_the_defaults_are_those_of_the_architecture():
    config = ConsumerConfig()
    assert (config.lease_duration, config.checkpoint_interval, config.max_leases) == (10.0, None, None)
    assert (config.prefetch_max_bytes, config.ack, config.out_of_range) == (64 * MIB, "auto", "deliver")
    assert (config.hand_over_timeout, config.list_interval, config.if_recreated) == (30.0, 60.0, "stop")
    assert config.stuck_after == 300.0
    assert (config.calls_per_second, config.bytes_per_second) == (5.0, 2.0 * MIB)


def test_every_field_is_checked():
    assert set(_CHECKS) == {field.name for field in fields(ConsumerConfig)}


def test_a_config_does_not_change():
    with pytest.raises(FrozenInstanceError):
        ConsumerConfig().ack = "manual"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_duration", 1),
        ("lease_duration", 3600.0),
        ("checkpoint_interval", 0),
        ("scan_interval", 0.05),
        ("max_leases", 1),
        ("hand_over_timeout", 0),
        ("list_interval", 1.0),
        ("prefetch_max_bytes", 65536),
        ("page_max_records", 1),
        ("idle_poll_interval", 60.0),
        ("calls_per_second", 0.1),
        ("bytes_per_second", 1024),
        ("ack", "manual"),
        ("out_of_range", "drop"),
        ("if_recreated", "restart"),
        ("dedup", True),
        ("stuck_after", 0.1),
        ("stuck_after", 86_400),
        ("stuck_after", None),
        ("worker_id", "w"),
        ("worker_id", None),
        ("keep_leases", True),
        ("assign_by", "load"),
    ],
)
def test_what_is_allowed_is_taken(name, value):
    assert getattr(ConsumerConfig(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("stuck_after", 0, "must be a number from 0.1 to 86,400, or None, not 0"),
        ("stuck_after", "5", "must be a number from 0.1 to 86,400, or None, not '5'"),
        ("stuck_after", float("nan"), "must be a number from 0.1 to 86,400, or None, not nan"),
        ("lease_duration", 0.5, "must be a number from 1 to 3,600, not 0.5"),
        ("lease_duration", float("nan"), "must be a number from 1 to 3,600, not nan"),
        ("lease_duration", True, "must be a number from 1 to 3,600, not True"),
        ("lease_duration", "10", "must be a number from 1 to 3,600, not '10'"),
        ("lease_duration", None, "must be a number from 1 to 3,600, not None"),
        ("checkpoint_interval", -1, "must be a number from 0 to 3,600, or None, not -1"),
        ("scan_interval", 0, "must be a number from 0.05 to 60, or None, not 0"),
        ("max_leases", 0, "must be a whole number, 1 or more, or None, not 0"),
        ("max_leases", 2.0, "must be a whole number, 1 or more, or None, not 2.0"),
        ("max_leases", True, "must be a whole number, 1 or more, or None, not True"),
        ("page_max_records", 10_001, "must be a whole number from 1 to 10,000, not 10001"),
        ("prefetch_max_bytes", 1, "must be a whole number, 65,536 or more, not 1"),
        ("ack", "never", "must be 'auto' or 'manual', not 'never'"),
        ("out_of_range", "skip", "must be 'deliver' or 'drop', not 'skip'"),
        ("dedup", 1, "must be True or False, not 1"),
        ("if_recreated", "ignore", "must be 'stop' or 'restart', not 'ignore'"),
        ("worker_id", "", "must be 1 to 255 printable characters, or None, not ''"),
        ("worker_id", "a\nb", "must be 1 to 255 printable characters"),
        ("worker_id", "x" * 256, "must be 1 to 255 printable characters"),
        ("assign_by", "bytes", "must be 'count' or 'load', not 'bytes'"),
        ("keep_leases", 1, "must be True or False, not 1"),
        ("worker_id", 7, "must be 1 to 255 printable characters, or None, not 7"),
    ],
)
def test_a_wrong_value_is_refused_by_name_value_and_range(name, value, words):
    with pytest.raises(UsageError) as caught:
        ConsumerConfig(**{name: value})
    assert str(caught.value).startswith(f"{name} {words}")
