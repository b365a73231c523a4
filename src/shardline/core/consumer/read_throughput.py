"""Measures the throughput at which a shard is read, in KiB per second, as the KCL does.

Invariants:

- The value is a moving average: each new measurement counts half.
- A measurement covers the time since the last one. It is taken when the lease is renewed.
"""

from typing import Final, final

from shardline.core.clock import Instant

_WEIGHT: Final = 0.5
_KIB: Final = 1_024


@final
class ReadThroughput:
    """The throughput of one shard, measured from ``now`` on."""

    def __init__(self, now: Instant, average: float | None = None) -> None:
        self._since: Instant = now
        self._average: float | None = average
        self._bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """Count bytes that were read."""
        self._bytes += size_bytes

    def measure(self, now: Instant) -> float:
        """End a measurement and return the moving average, in KiB per second."""
        if now > self._since:
            latest = self._bytes / _KIB / (now - self._since)
            average = latest if self._average is None else self._average
            self._average = _WEIGHT * latest + (1 - _WEIGHT) * average
            self._since, self._bytes = now, 0
        return self._average or 0.0
