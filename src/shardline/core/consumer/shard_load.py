"""Measures how much work a shard causes, and expresses it as one number, the load of its lease.

The load is in seconds of work per second: the time for which user code has the shard's records, plus a cost for each
byte that is read and a small cost for the lease itself. The worker that holds a lease writes the measurements into the
row, so that all workers compute the same loads.

Invariants:

- The measurements are moving averages. Work that was done one half-life ago counts half as much as work that is done
  now, however often the averages are measured. At first, the averages of a new shard cover only the time that was
  observed, so that they are not too low.
- A new holder continues the averages of the row.
- A lease without measurements has no known load. Every known load is above 0.
- If several pieces of user code have records of a shard, their times are added up.
"""

import math
from typing import Final, final

from shardline.core.clock import Instant
from shardline.model.lease import Lease

_KIB: Final = 1_024
_HALF_LIFE_LEASES: Final = 6  # the half-life of the averages, in lease durations
_SECONDS_PER_KIB: Final = 20e-6  # reading and opening aggregates, at about 50 MiB per second
# An idle shard costs a tenth of this (docs/tested/drill-results.md, idle-shards). The larger value makes small loads
# count as equal, so that leases of shards with little traffic are shared by their number.
_SECONDS_PER_LEASE: Final = 0.002


@final
class LoadMeter:
    """Measures the load of one shard from ``now`` on.

    Args:
        now: the current time.
        row: the lease, whose averages are continued.
        lease_duration: the lease duration of the holder.
    """

    def __init__(self, now: Instant, row: Lease, lease_duration: float) -> None:
        self._since: Instant = now
        self._half_life: float = _HALF_LIFE_LEASES * lease_duration
        self._bytes: int = 0
        self._handling: float = 0.0
        self._observed: float = 0.0 if load_of(row) is None else math.inf
        self._throughput_average: float = row.throughput or 0.0
        self._handling_average: float = row.handling or 0.0

    def add_bytes(self, size_bytes: int) -> None:
        """Count bytes that were read."""
        self._bytes += size_bytes

    def add_handling(self, duration: float) -> None:
        """Count seconds for which user code had records of the shard."""
        self._handling += duration

    def measure(self, now: Instant) -> tuple[float, float]:
        """Return the moving averages: the KiB read per second, and the seconds of handling per second."""
        elapsed = now - self._since
        if elapsed > 0:
            kept = 0.5 ** (elapsed / self._half_life)
            if self._observed < math.inf:
                kept = min(kept, self._observed / (self._observed + elapsed))
            throughput, handling = self._bytes / _KIB / elapsed, self._handling / elapsed
            self._throughput_average += (1 - kept) * (throughput - self._throughput_average)
            self._handling_average += (1 - kept) * (handling - self._handling_average)
            self._observed += elapsed
            self._since, self._bytes, self._handling = now, 0, 0.0
        return self._throughput_average, self._handling_average


def load_of(row: Lease) -> float | None:
    """Return the load of a lease, or ``None`` if nothing was measured."""
    if row.throughput is None and row.handling is None:
        return None
    return _SECONDS_PER_LEASE + _SECONDS_PER_KIB * (row.throughput or 0.0) + (row.handling or 0.0)
