"""Does every limit exist, equal AWS's, and can it be switched off?"""

from dataclasses import fields

from shardline.model import limits
from shardline.server.model.settings import Delays, Limits, ServiceSettings


def test_the_defaults_are_the_quotas_of_aws():
    ours = Limits()
    assert ours.write_records_per_second == limits.SHARD_WRITE_RECORDS_PER_SECOND
    assert ours.write_bytes_per_second == limits.SHARD_WRITE_BYTES_PER_SECOND
    assert ours.control_calls_per_second["DescribeLimits"] == limits.DESCRIBE_LIMITS_PER_SECOND
    assert ServiceSettings().limits == ours
    assert ServiceSettings().delays == Delays(0, 0, 0, 0, 0)


def test_without_rates_no_rate_is_left_and_every_size_is():
    free = Limits.without_rates()
    rates = {one.name for one in fields(Limits) if one.name.endswith("_per_second")}
    daily = {"update_shard_count_per_day", "update_stream_mode_per_day"}
    assert all(getattr(free, name) in (None, {}) for name in rates)
    unchanged = {one.name for one in fields(Limits)} - rates - daily
    assert all(getattr(free, name) is None for name in daily)
    assert all(getattr(free, name) == getattr(Limits(), name) for name in unchanged)
