"""Decides how long to wait before a retry.

Invariants:

- The n-th delay in a row is between half of ``min(longest, first * 2**(n - 1))`` and all of it. The jitter keeps many
  callers from retrying together, and the lower bound keeps each caller from retrying immediately.
- After a success, the delays start over.
- A longer delay that the service requests is respected up to ``longest``, so that no answer makes us wait for an hour.
"""

from typing import Protocol, final


class Chance(Protocol):
    """The methods of ``random.Random`` that the machines use. The shell passes in an object with these methods."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...


@final
class Backoff:
    """Counts failures in a row and draws the delays between them."""

    __slots__ = ("_first", "_longest", "_rng", "failures")

    def __init__(self, first: float, longest: float, rng: Chance) -> None:
        assert 0 < first <= longest
        self._first: float = first
        self._longest: float = longest
        self._rng: Chance = rng
        self.failures: int = 0
        """The number of failures since the last success."""

    def next_delay(self, asked: float | None = None) -> float:
        """Count one more failure and return the delay before the next attempt.

        Args:
            asked: the delay that the service requested, if it requested one.
        """
        # The exponent is bounded, because a float overflows at 2**1024.
        ceiling = min(self._longest, self._first * 2.0 ** min(self.failures, 64))
        self.failures += 1
        drawn = ceiling * (0.5 + 0.5 * self._rng.random())
        # A longer delay that the service requests replaces the drawn one. A shorter one would undo the jitter.
        return drawn if asked is None else max(drawn, min(asked, self._longest))

    def reset(self) -> None:
        """Start over with the first delay, after a success."""
        self.failures = 0
