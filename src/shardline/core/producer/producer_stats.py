"""The statistics of a producer.

The counters start at 0 when the producer starts. The other values describe the current state. All values are updated
per aggregate and per request, so they cost nothing per record.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from shardline.core.producer_events import LaneStats


@final
@dataclass(frozen=True, slots=True)
class ProducerStats:
    """The statistics of a producer at one moment."""

    outstanding: int
    """The number of records that were put and have neither been delivered nor failed."""
    buffered_bytes: int
    """The size in bytes of the data, keys and headers of the outstanding records."""
    delivered_records: int
    delivered_bytes: int
    failed_records: int
    retried_records: int
    """The number of records that were sent again. A record counts once per retry."""
    requests: int
    """The number of PutRecords requests that were sent."""
    requests_in_flight: int
    entries: int
    """The number of entries in the PutRecords requests. An entry is an aggregate or a single record."""
    map_state: str
    map_requests: int
    """The number of ListShards requests that were sent."""
    oldest_waiting: float
    """How long the oldest record that is not in flight has waited, in seconds."""
    lanes: tuple[LaneStats, ...]
    put_records: int = 0
    """The number of records that were put and accepted."""
    put_bytes: int = 0
    """The size in bytes of the data, keys and headers of all records that were put and accepted."""
    failed_requests: int = 0
    """The number of PutRecords requests that failed as a whole."""
    request_bytes: int = 0
    """The size in bytes of the data and keys in the requests that were sent."""
    retries_by_code: dict[str, int] = field(default_factory=dict[str, int])
    """The number of retried records by error code. ``ProvisionedThroughputExceededException`` means throttling."""
    failures_by_code: dict[str, int] = field(default_factory=dict[str, int])
    """The number of failed records by error code."""
    put_records_per_second: float = 0.0
    """The rate of puts. This and the following rates are moving averages over about the last 10 seconds."""
    delivered_records_per_second: float = 0.0
    delivered_bytes_per_second: float = 0.0
    requests_per_second: float = 0.0


_NOT_SUMMED: Final = frozenset({"map_state", "oldest_waiting", "lanes", "retries_by_code", "failures_by_code"})


def sum_of_stats(stats: Sequence[ProducerStats]) -> ProducerStats:
    """Return the combined statistics of several streams. The state of the shard map is taken from the first stream."""
    first, *others = stats
    if not others:
        return first
    names = [name for name in ProducerStats.__dataclass_fields__ if name not in _NOT_SUMMED]
    sums: dict[str, Any] = {name: sum(getattr(each, name) for each in stats) for name in names}
    return replace(
        first,
        **sums,
        oldest_waiting=max(each.oldest_waiting for each in stats),
        lanes=tuple(lane for each in stats for lane in each.lanes),
        retries_by_code=dict(sum((Counter(each.retries_by_code) for each in stats), Counter[str]())),
        failures_by_code=dict(sum((Counter(each.failures_by_code) for each in stats), Counter[str]())),
    )
