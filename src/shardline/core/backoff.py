"""How long to wait after failures in a row?

Invariants:

- The n-th delay in a row lies between half of and all of ``min(longest, first * 2**(n - 1))``: jitter keeps many
  waiters from returning together, and the lower half keeps any of them from returning at once.
- A success starts the row anew.
- A longer delay that the service asked for is kept, up to ``longest``: no answer may silence us for an hour.
"""

from typing import Protocol, final


class Chance(Protocol):
    """What a machine needs of a ``random.Random``; it is always passed in."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...


@final
class Backoff:
    """Counts failures in a row and draws the delays between them."""

    __slots__ = ("_chance", "_first", "_longest", "failures")

    def __init__(self, first: float, longest: float, chance: Chance) -> None:
        assert 0 < first <= longest
        self._first: float = first
        self._longest: float = longest
        self._chance: Chance = chance
        self.failures: int = 0
        """How many there were since the last success."""

    def next_delay(self, asked: float | None = None) -> float:
        """Count one more failure; the delay before the next try, with what the service ``asked`` for."""
        ceiling = min(self._longest, self._first * 2.0 ** min(self.failures, 64))
        self.failures += 1
        drawn = ceiling * (0.5 + 0.5 * self._chance.random())
        return drawn if asked is None else max(drawn, min(asked, self._longest))

    def reset(self) -> None:
        """It worked."""
        self.failures = 0
