"""Limits rates with token buckets.

Invariants:

- A bucket holds at most one second of its rate. It is full at first.
- A request that costs more than a full bucket holds passes if the bucket is full, and leaves a debt. So large records
  and pages pass, but then block the following requests until the debt is paid.
- A refused request costs nothing.
"""

from math import inf
from typing import final


@final
class Bucket:
    """A token bucket with a rate per second. The rate ``None`` means no limit."""

    __slots__ = ("_balance", "_filled_at", "rate")

    def __init__(self, rate: float | None, now: float) -> None:
        self.rate = inf if rate is None else rate
        self._balance = self.rate
        self._filled_at = now

    def balance(self, now: float) -> float:
        """Return the current balance. It is negative while the bucket is in debt."""
        if now > self._filled_at:
            self._balance = min(self.rate, self._balance + (now - self._filled_at) * self.rate)
            self._filled_at = now
        return self._balance

    def allows(self, cost: float, now: float) -> bool:
        """Return whether a request with this cost is within the limit."""
        # A float near 2e9 seconds is exact only to 0.24 us. The amount that flows in during 0.4 us must not matter.
        return self.balance(now) >= min(cost, self.rate) - self.rate * 4e-7

    def positive_at(self, now: float) -> float:
        """Return the time at which the debt is paid, or ``now`` if there is no debt."""
        return now + max(0.0, -self.balance(now)) / self.rate

    def take(self, cost: float, now: float, *, is_dry: bool = False) -> bool:
        """Take ``cost`` if the limit allows it, and return whether it does. A dry run takes nothing."""
        if not self.allows(cost, now):
            return False
        self._balance -= 0.0 if is_dry else cost
        return True

    def spend(self, cost: float) -> None:
        """Charge the size of a page in bytes.

        A page larger than one second of the rate also uses up a positive balance, so that it blocks for its full cost.
        At 2 MiB per second, a page of 10 MiB blocks the next 5 seconds ([API] GetRecords).
        """
        if cost > self.rate:
            self._balance = min(self._balance, 0.0)
        self._balance -= cost

    def charge(self, cost: float) -> None:
        """Charge a cost that is known only after the request has passed."""
        self._balance -= cost
