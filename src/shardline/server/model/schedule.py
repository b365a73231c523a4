"""Schedules keys and returns those that are due.

Invariants:

- Each key has at most one time. A new time replaces the old one, whether it is earlier or later.
- Setting a time, or taking a key that is due, takes time that grows with the logarithm of the number of keys.
"""

from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, final

_STALE_MAX: Final = 64


@final
class Schedule:
    """A priority queue of keys, ordered by due time."""

    def __init__(self) -> None:
        self.due_at = inf
        """The earliest time at which a key is due, or infinity if there are no keys."""
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # may contain stale times, which have been replaced

    def set(self, key: str, at: float) -> None:
        """Set the time at which a key is due. An infinite time removes the key."""
        if self._times.get(key, inf) == at:
            return
        if at == inf:
            del self._times[key]
        else:
            self._times[key] = at
            heappush(self._heap, (at, key))
            if len(self._heap) > 2 * len(self._times) + _STALE_MAX:
                self._heap = [(time, known_key) for known_key, time in self._times.items()]
                heapify(self._heap)
        self._find_earliest()

    def take_due(self, now: float) -> list[str]:
        """Remove the keys that are due, and return them, earliest first."""
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
