"""How does a producer do, in numbers?

Counted since its start, or as of now. They cost nothing per record: they are kept per aggregate and per request.
"""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class LaneStats:
    """One shard, as the producer sees it."""

    shard_id: str
    queued_entries: int
    queued_bytes: int
    in_flight: int
    rate_share: float
    """What is left of the configured rates after throttling: 1 is all."""
    tripped: bool
    """Its circuit is open: it is tried with one entry at a time."""


@final
@dataclass(frozen=True, slots=True)
class ProducerStats:
    """A producer at one moment."""

    outstanding: int
    """Records that were put and have not ended."""
    buffered_bytes: int
    """Their data and keys."""
    delivered_records: int
    delivered_bytes: int
    failed_records: int
    retried_records: int
    """Counted anew for every retry."""
    requests: int
    """PutRecords requests sent."""
    requests_in_flight: int
    entries: int
    """Entries in them: aggregates, and records that went alone."""
    map_state: str
    map_requests: int
    """ListShards requests sent."""
    oldest_waiting: float
    """For how many seconds the oldest record that is not under way has waited."""
    lanes: tuple[LaneStats, ...]
