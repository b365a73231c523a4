"""Measures how fast a total grows.

Invariants:

- A rate is a moving average: the longer ago an increase happened, the less it counts. The time constant is
  ``SPAN``, so a rate shows roughly the last 10 seconds.
- From the first second on, the average covers only the time since the start, so a new rate is not too low.
- A rate is updated once per request or page, so it costs nothing per record.
"""

from math import exp
from typing import Final, final

from shardline.core.clock import Instant

SPAN: Final = 10.0
"""The time constant of the average, in seconds."""
MEASURE_INTERVAL: Final = 5.0
"""How often the state of a producer or consumer is emitted to sinks, in seconds."""
_FIRST_SPAN: Final = 1.0  # the shortest time to average over, in seconds


@final
class Rate:
    """The rate at which one total grows. The total is 0 at the time ``now`` that is passed to the constructor."""

    __slots__ = ("_began_at", "_noted_at", "_total", "_weighted")

    def __init__(self, now: Instant) -> None:
        self._began_at: Instant = now
        self._noted_at: Instant = now
        self._total: float = 0.0
        self._weighted: float = 0.0  # the increases, each weighted by its age

    def note(self, total: float, now: Instant) -> None:
        """Update the rate with the current total."""
        self._weighted = self._weighted * exp((self._noted_at - now) / SPAN) + total - self._total
        self._total, self._noted_at = total, now

    def per_second(self, total: float, now: Instant) -> float:
        """Return the rate, given the current total."""
        self.note(total, now)
        observed = max(now - self._began_at, _FIRST_SPAN)
        return self._weighted / (SPAN * (1.0 - exp(-observed / SPAN)))
