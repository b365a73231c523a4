"""Limits how many entries and bytes are sent per second.

A token bucket has two balances, one for entries and one for bytes. The balances are updated when they are used.

Invariants:

- ``try_take`` debits both balances or neither.
- A balance grows at its rate, up to its capacity, which is the amount that it gains in one second.
- ``try_take`` succeeds when both balances reach ``min(cost, capacity)``, and may leave a debt (P6). So an entry that
  costs more than the capacity can still be sent, and the entries after it wait until the debt is paid.
- ``try_take`` succeeds at ``ready_at`` and not earlier, with a tolerance of a nanosecond or of the clock's resolution.
"""

from math import ulp
from typing import Final, final

from shardline.core.clock import Instant

_GRAIN: Final = 1e-9  # the tolerance in seconds, so that a rounding error does not make a wake-up come too early


@final
class TokenBucket:
    """Limits entries and bytes per second. The bucket starts full."""

    __slots__ = ("_byte_rate", "_bytes", "_entries", "_entry_rate", "_updated_at")

    def __init__(self, entry_rate: float, byte_rate: float, now: Instant) -> None:
        assert entry_rate > 0 and byte_rate > 0  # noqa: PT018 - one condition
        self._entry_rate: float = entry_rate
        self._byte_rate: float = byte_rate
        self._entries: float = entry_rate
        self._bytes: float = byte_rate
        self._updated_at: Instant = now

    def set_rates(self, entry_rate: float, byte_rate: float, now: Instant) -> None:
        """Change the rates. A balance above the new capacity is reduced to the capacity. A debt remains."""
        self._grow(now)
        self._entry_rate, self._byte_rate = entry_rate, byte_rate
        self._entries = min(self._entries, entry_rate)
        self._bytes = min(self._bytes, byte_rate)

    def try_take(self, entries: float, size: float, now: Instant) -> bool:
        """Debit both balances, or neither. Return whether they were debited."""
        if now > self._updated_at:
            self._grow(now)
        left, left_bytes = self._entries - entries, self._bytes - size
        if left < 0 or left_bytes < 0:
            slack = max(_GRAIN, ulp(now))  # after months of uptime, floats are coarser than a nanosecond
            # At least one balance is less than the cost. The cost can still be debited if that balance is full. A debt
            # then remains (P6).
            if self._entries < min(entries, self._entry_rate) - self._entry_rate * slack:
                return False
            if self._bytes < min(size, self._byte_rate) - self._byte_rate * slack:
                return False
        self._entries, self._bytes = left, left_bytes
        return True

    def covers(self, entries: float, size: float) -> bool:
        """Return whether a full bucket could pay this cost without a debt."""
        return entries <= self._entry_rate and size <= self._byte_rate

    def ready_at(self, entries: float, size: float, now: Instant) -> Instant:
        """Return the time at which ``try_take`` will succeed for this cost, if no other entry is sent earlier."""
        self._grow(now)
        missing = (min(entries, self._entry_rate) - self._entries) / self._entry_rate
        missing_bytes = (min(size, self._byte_rate) - self._bytes) / self._byte_rate
        return now + max(0.0, missing, missing_bytes)

    def _grow(self, now: Instant) -> None:
        elapsed = now - self._updated_at
        if elapsed > 0:
            self._updated_at = now
            entry_rate, byte_rate = self._entry_rate, self._byte_rate
            entries = self._entries + entry_rate * elapsed
            size = self._bytes + byte_rate * elapsed
            self._entries = entries if entries < entry_rate else entry_rate  # noqa: FURB136 - min() takes three times as long
            self._bytes = size if size < byte_rate else byte_rate  # noqa: FURB136
