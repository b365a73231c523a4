"""Which of a thousand leases needs attention now?

Invariants:

- AG1: each name has one appointment, the last that was made.
- AG2: making one and finding what is due takes logarithmic time, however many there are.
"""

from heapq import heappop, heappush
from typing import final

from shardline.core.clock import NEVER, Instant


@final
class Agenda:
    """One appointment a name."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[str, Instant] = {}
        self._heap: list[tuple[Instant, str]] = []

    def schedule(self, name: str, at: Instant) -> None:
        """Make or move its appointment; NEVER cancels it (AG1)."""
        if at == NEVER:
            self._at.pop(name, None)
        elif self._at.get(name) != at:
            heappush(self._heap, (at, name))  # first: what is in the heap alone is passed over
            self._at[name] = at

    def pop_due(self, now: Instant) -> str | None:
        """A name whose time has come; its appointment is over."""
        if self.next_at() > now:
            return None
        _, name = heappop(self._heap)
        del self._at[name]
        return name

    def next_at(self) -> Instant:
        """When the next one is due."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:  # moved or cancelled
            heappop(heap)
        return heap[0][0] if heap else NEVER
