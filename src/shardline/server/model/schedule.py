"""When is something due next, and for what?

Invariants:

- Each key has at most one time: a new one replaces the old one, earlier or later.
- Setting a time and taking what is due cost the logarithm of the number of keys, not the number.
"""

from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, final

_STALE_MAX: Final = 64


@final
class Schedule:
    """Times by key."""

    def __init__(self) -> None:
        self.due_at = inf
        """The earliest time that is set."""
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # also with times that were replaced since

    def set(self, key: str, at: float) -> None:
        """Make a key due at this time; never, if it is infinite."""
        if self._times.get(key, inf) == at:
            return
        if at == inf:
            del self._times[key]
        else:
            self._times[key] = at
            heappush(self._heap, (at, key))
            if len(self._heap) > 2 * len(self._times) + _STALE_MAX:
                self._heap = [(time, one) for one, time in self._times.items()]
                heapify(self._heap)
        self._find_earliest()

    def take_due(self, now: float) -> list[str]:
        """The keys that are due, earliest first; each of them is due no more."""
        due: list[str] = []
        while self._heap and self.due_at <= now:
            key = heappop(self._heap)[1]
            del self._times[key]
            due.append(key)
            self._find_earliest()
        return due

    def _find_earliest(self) -> None:
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        self.due_at = self._heap[0][0] if self._heap else inf
