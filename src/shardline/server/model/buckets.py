"""May this much pass now?

Invariants:

- A bucket holds at most one second of its rate, and is full at first.
- What costs more than a full bucket passes when the bucket is full, and leaves a debt: large records and pages
  pass, and block what follows for as long as they cost.
- A refused request costs nothing.
"""

from math import inf
from typing import final


@final
class Bucket:
    """One rate per second; ``None`` is no limit."""

    __slots__ = ("_balance", "_filled_at", "rate")

    def __init__(self, rate: float | None, now: float) -> None:
        self.rate = inf if rate is None else rate
        self._balance = self.rate
        self._filled_at = now

    def balance(self, now: float) -> float:
        """What is in it now; negative while in debt."""
        if now > self._filled_at:
            self._balance = min(self.rate, self._balance + (now - self._filled_at) * self.rate)
            self._filled_at = now
        return self._balance

    def allows(self, cost: float, now: float) -> bool:
        """Whether ``cost`` may pass."""
        # Times near 2e9 are exact to 0.24 us: what comes in within less decides nothing.
        return self.balance(now) >= min(cost, self.rate) - self.rate * 4e-7

    def positive_at(self, now: float) -> float:
        """When the last debt is paid: now, if there is none."""
        return now + max(0.0, -self.balance(now)) / self.rate

    def take(self, cost: float, now: float, *, is_dry: bool = False) -> bool:
        """Take ``cost`` if it may pass; in a dry run, only tell whether it may."""
        if not self.allows(cost, now):
            return False
        self._balance -= 0.0 if is_dry else cost
        return True

    def spend(self, cost: float) -> None:
        """Charge a page: one of more than a second's worth uses up what was saved, and blocks for all that it cost.

        [API] GetRecords: a page of 10 MiB, at 2 MiB a second, blocks the next 5 seconds.
        """
        if cost > self.rate:
            self._balance = min(self._balance, 0.0)
        self._balance -= cost

    def charge(self, cost: float) -> None:
        """Take what turned out to be the cost of something that was let through."""
        self._balance -= cost
