"""The statistics of a producer.

Counters count since the producer's start; the other values are current. They are updated per aggregate and per request,
so they cost nothing per record.
"""

from dataclasses import dataclass, field
from typing import final

from shardline.core.producer_events import LaneStats


@final
@dataclass(frozen=True, slots=True)
class ProducerStats:
    """The statistics of a producer at one moment."""

    outstanding: int
    """Records that were put and are neither delivered nor failed."""
    buffered_bytes: int
    """The bytes of data and keys of the outstanding records."""
    delivered_records: int
    delivered_bytes: int
    failed_records: int
    retried_records: int
    """Records that were sent again. A record counts once per retry."""
    requests: int
    """PutRecords requests sent."""
    requests_in_flight: int
    entries: int
    """Entries in these requests. An entry is an aggregate or a single record."""
    map_state: str
    map_requests: int
    """ListShards requests sent."""
    oldest_waiting: float
    """How long the oldest record that is not in flight has waited, in seconds."""
    lanes: tuple[LaneStats, ...]
    put_records: int = 0
    """Records that were put and accepted."""
    put_bytes: int = 0
    """The bytes of data and keys of these records."""
    failed_requests: int = 0
    """PutRecords requests that failed as a whole."""
    request_bytes: int = 0
    """The bytes of data and keys in the requests that were sent."""
    retries_by_code: dict[str, int] = field(default_factory=dict[str, int])
    """Retried records by the code of the error. ``ProvisionedThroughputExceededException`` is a throttle."""
    failures_by_code: dict[str, int] = field(default_factory=dict[str, int])
    """Failed records by the code of the error."""
    put_records_per_second: float = 0.0
    """This rate and those below are moving averages of about the last 10 seconds."""
    delivered_records_per_second: float = 0.0
    delivered_bytes_per_second: float = 0.0
    requests_per_second: float = 0.0
