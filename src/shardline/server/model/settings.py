"""The limits and the delays of the emulated service.

Every limit can be changed or switched off (``None``). The defaults are AWS's quotas (``shardline.model.limits``).
"""

from dataclasses import dataclass, field, fields
from typing import Final, Self, final

from shardline.model import limits

CLOCK_END: Final = 7_258_118_400.0
"""2200-01-01: the server's clock cannot be moved further.

Dates, sequence numbers and the timestamps of all clients can represent that year. The smallest range is that of 64-bit
nanoseconds, which end in 2262.
"""


def _control_rates() -> dict[str, float]:
    """Return the calls per second of each control operation.

    The rates of ListShards and of the operations on one stream's consumers are per stream; the others are per account.
    """
    changes = ("CreateStream", "DeleteStream", "SplitShard", "MergeShards", "AddTagsToStream", "RemoveTagsFromStream")
    account = ("DescribeAccountSettings", "UpdateAccountSettings", "UpdateStreamWarmThroughput")
    channels = ("CreateChannel", "DescribeChannel", "ListChannels", "UpdateChannel", "DeleteChannel")
    return {
        **dict.fromkeys(changes, limits.STREAM_CHANGES_PER_SECOND),
        **dict.fromkeys((*account, *channels), limits.ACCOUNT_AND_CHANNEL_CALLS_PER_SECOND),
        "DescribeStream": limits.DESCRIBE_STREAM_PER_SECOND,
        "DescribeStreamSummary": limits.DESCRIBE_STREAM_SUMMARY_PER_SECOND,
        "DescribeLimits": limits.DESCRIBE_LIMITS_PER_SECOND,
        "ListShards": limits.LIST_SHARDS_PER_SECOND,
        "ListStreams": limits.LIST_STREAMS_PER_SECOND,
        "ListTagsForStream": limits.STREAM_CHANGES_PER_SECOND,
        "UpdateShardCount": limits.UPDATE_SHARD_COUNT_PER_SECOND,
        "RegisterStreamConsumer": limits.REGISTER_CONSUMER_PER_SECOND,
        "DeregisterStreamConsumer": limits.REGISTER_CONSUMER_PER_SECOND,
        "DescribeStreamConsumer": limits.DESCRIBE_CONSUMER_PER_SECOND,
        "ListStreamConsumers": limits.LIST_CONSUMERS_PER_SECOND,
    }


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that the service enforces.

    ``None`` means no limit, and so does a missing entry in the control rates.
    """

    write_records_per_second: float | None = limits.SHARD_WRITE_RECORDS_PER_SECOND
    write_bytes_per_second: float | None = limits.SHARD_WRITE_BYTES_PER_SECOND
    read_calls_per_second: float | None = limits.SHARD_READ_CALLS_PER_SECOND
    read_bytes_per_second: float | None = limits.SHARD_READ_BYTES_PER_SECOND
    iterator_calls_per_second: float | None = limits.SHARD_ITERATOR_CALLS_PER_SECOND
    fan_out_bytes_per_second: float | None = limits.FAN_OUT_BYTES_PER_SECOND
    subscribe_calls_per_second: float | None = limits.SUBSCRIBE_PER_SECOND
    control_calls_per_second: dict[str, float] = field(default_factory=_control_rates)
    request_max_bytes: int | None = limits.PUT_RECORDS_MAX_BYTES
    page_max_records: int = limits.GET_RECORDS_MAX_RECORDS
    page_max_bytes: int = limits.GET_RECORDS_MAX_BYTES
    iterator_life: float | None = limits.ITERATOR_LIFE
    token_life: float | None = limits.LIST_TOKEN_LIFE
    subscription_life: float | None = limits.SUBSCRIPTION_LIFE
    subscription_takeover_wait: float | None = limits.SUBSCRIPTION_TAKEOVER_WAIT
    consumers_per_stream: int | None = limits.CONSUMERS_PER_STREAM
    consumers_per_advantage_stream: int | None = limits.CONSUMERS_PER_ADVANTAGE_STREAM
    consumers_creating_at_once: int | None = limits.CONSUMERS_CREATING_AT_ONCE
    streams_creating_at_once: int | None = 5  # [API] CreateStream
    shards_per_account: int | None = 20_000
    on_demand_streams: int | None = 50
    channels_per_account: int | None = 100  # [GUIDE] data-delivery-quotas: two for each on-demand stream
    update_shard_count_per_day: int | None = limits.UPDATE_SHARD_COUNT_PER_DAY
    update_stream_mode_per_day: int | None = limits.UPDATE_STREAM_MODE_PER_DAY

    @classmethod
    def without_rates(cls) -> Self:
        """Return limits without rates. Sizes, lifetimes and counts are still limited."""
        rates = {limit.name: None for limit in fields(cls) if limit.name.endswith("_per_second")}
        rates.pop("control_calls_per_second")
        daily = {limit.name: None for limit in fields(cls) if limit.name.endswith("_per_day")}
        return cls(**rates, **daily, control_calls_per_second={})  # type: ignore[arg-type]


@final
@dataclass(frozen=True, slots=True)
class Delays:
    """How many seconds the service takes to carry out each kind of change that it has accepted."""

    create: float = 0.0
    delete: float = 0.0
    update: float = 0.0
    register: float = 0.0
    deregister: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class ServiceSettings:
    region: str = "us-east-1"
    account_id: str = "000000000000"
    limits: Limits = field(default_factory=Limits)
    delays: Delays = field(default_factory=Delays)
    on_demand_shards: int = 4
    empty_page_chance: float = 0.0
    """The probability that GetRecords returns an empty page although there are more records, as AWS sometimes does."""
