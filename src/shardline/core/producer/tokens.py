"""May this go now, and if not, when?

A bucket of several streams (records a second and bytes a second, say) that grow by themselves, on query.

Invariants:

- K1: a take debits all streams or none.
- K2: a stream is never above its capacity, which is one second of its rate, and grows by its rate while time passes.
- K3: a take is admitted when every balance reaches ``min(cost, capacity)``, and may leave a debt (P6): a record that
  costs more than the capacity still goes out, and what follows it waits for the debt to be paid.
- K4: at ``ready_at`` the take is admitted; before it is not, but for a nanosecond, or what the clock can tell apart.
"""

from collections.abc import Sequence
from math import ulp
from typing import Final, final

from shardline.core.clock import Instant

_COARSE: Final = 2.0**23  # seconds: from here on floats are further apart than the grain
_GRAIN: Final = 1e-9  # seconds: what floating point may lose of a balance must not make a wake-up come too early


@final
class TokenBucket:
    """Starts full."""

    __slots__ = ("_balances", "_rates", "_slack", "_updated_at")

    def __init__(self, rates: Sequence[float], now: Instant) -> None:
        assert all(rate > 0 for rate in rates)
        self._rates: list[float] = list(rates)
        self._balances: list[float] = list(rates)
        self._updated_at: Instant = now
        self._slack: list[float] = self._slack_at(now)

    def set_rates(self, rates: Sequence[float], now: Instant) -> None:
        """Change the rates. What was saved above the new capacity is gone; a debt stays."""
        self._grow(now)
        self._rates = list(rates)
        self._slack = self._slack_at(now)
        self._balances = [min(balance, rate) for balance, rate in zip(self._balances, rates, strict=True)]

    def try_take(self, costs: Sequence[float], now: Instant) -> bool:
        """Debit all streams, or none (K1, K3)."""
        if now > self._updated_at:
            self._grow(now)
        balances = self._balances
        for balance, cost, rate, slack in zip(balances, costs, self._rates, self._slack, strict=True):
            if balance < (cost if cost < rate else rate) - slack:  # noqa: FURB136 - min() takes three times as long
                return False
        for place, cost in enumerate(costs):
            balances[place] -= cost
        return True

    def covers(self, costs: Sequence[float]) -> bool:
        """Whether a full bucket would pay that without a debt."""
        for cost, rate in zip(costs, self._rates, strict=True):  # noqa: SIM110 - all() takes three times as long
            if cost > rate:
                return False
        return True

    def ready_at(self, costs: Sequence[float], now: Instant) -> Instant:
        """When a take of ``costs`` will be admitted, if nothing is taken until then (K4)."""
        self._grow(now)
        streams = zip(self._balances, costs, self._rates, strict=True)
        return now + max(0.0, *((min(cost, rate) - balance) / rate for balance, cost, rate in streams))

    def _grow(self, now: Instant) -> None:
        elapsed = now - self._updated_at
        if elapsed > 0:
            self._updated_at = now
            if now >= _COARSE:
                self._slack = self._slack_at(now)
            balances = self._balances
            for place, rate in enumerate(self._rates):
                grown = balances[place] + rate * elapsed
                balances[place] = grown if grown < rate else rate  # noqa: FURB136 - min() takes three times as long

    def _slack_at(self, now: Instant) -> list[float]:
        """What each balance may lack: after months of uptime a float cannot tell nanoseconds apart."""
        grain = max(_GRAIN, ulp(now))
        return [rate * grain for rate in self._rates]
