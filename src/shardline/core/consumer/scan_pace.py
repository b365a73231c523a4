"""Decides how often a worker scans the rows of its group, and which part of them.

A scan costs CPU time and reads for each row (about 10 us per row, measured with 1,000 rows). A worker that scans 1,000
rows every half second spends 2 % of a core, even if nothing happens. So the interval grows with the number of rows. A
worker then notices the death of another worker a little later, which matters little compared with the lease duration.

If every worker of a large fleet scanned all rows, the load on the store would grow with the number of workers times the
number of rows. So a large fleet divides the rows into parts (ADR 11). In each interval, a worker scans its own part,
which it shares with a few other workers, its co-watchers. It scans all rows only once in as many intervals as there
are parts, or while it gets leases. No worker coordinates this: each worker derives its part from the members it sees.

Invariants:

- A group of up to ``ROWS_PER_INTERVAL`` rows is scanned at the interval of its store.
- The interval is at most half the lease duration.
- An interval that the user has set does not change.
- A fleet of fewer than ``2 * WATCHERS`` members does not divide its rows: every scan returns all rows.
- In a settled fleet, all workers together read at most ``4 * WATCHERS`` times all rows in an interval, however many
  workers there are.
- If all workers see the same members, each part has at least ``WATCHERS`` watchers. A worker that sees one member more
  or less than the others has the same part, or an adjacent part.
"""

from collections.abc import Iterable
from typing import Final, final

from shardline.core.leases import WHOLE, Part, spread
from shardline.model.lease import Lease

ROWS_PER_INTERVAL: Final = 250
WATCHERS: Final = 4
"""The minimum number of workers that watch each part of the rows."""


@final
class ScanPace:
    """The time between two scans, and the part that each scan reads.

    Args:
        shortest: the interval for a small group.
        longest: the interval grows up to this limit, or not at all if it is 0.
        watchers: the minimum number of watchers of each part, or ``None`` if every scan reads all rows.
    """

    def __init__(self, shortest: float, *, longest: float, watchers: int | None = None) -> None:
        self._shortest: float = shortest
        self._longest: float = max(shortest, longest)
        self._watchers: int | None = watchers
        self._scans: int = 0
        self._offset: int = 0  # a number that differs from worker to worker
        self._is_whole_due: bool = False
        self.part: Part = WHOLE
        """The part of the rows that this worker watches."""
        self.co_watchers: frozenset[str] = frozenset()
        """The workers that watch the same part, with this worker."""

    @property
    def is_partial(self) -> bool:
        """Whether the fleet has divided the rows into parts."""
        return self.part.count > 1

    def interval(self, rows: int) -> float:
        """Return the time between two scans of a group with this many rows."""
        # The interval grows in proportion to the rows, so the CPU time spent on scans stays the same.
        return min(max(self._shortest, self._shortest * rows / ROWS_PER_INTERVAL), self._longest)

    def round_time(self, rows: int) -> float:
        """Return the time between two scans of all rows by a worker that gets no leases."""
        return self.interval(rows) * self.part.count

    def next_part(self) -> Part:
        """Return what the next scan reads."""
        # Workers that start together, or that all scan after an outage of the store, must not scan all rows together.
        is_turn = (self._scans + self._offset) % self.part.count == 0
        return WHOLE if self._is_whole_due or is_turn else self.part

    def request_whole(self) -> None:
        """Let the next scan read all rows."""
        self._is_whole_due = True

    # ---- inputs

    def handle_scanned(self, part: Part) -> None:
        """Called when a scan was answered."""
        self._scans += 1
        self._is_whole_due = self._is_whole_due and part != WHOLE

    def handle_rows(self, rows: Iterable[Lease], me: str) -> None:
        """Divide the rows among the owners that a scan of all rows showed, and this worker."""
        if self._watchers is None:
            return
        # A dead owner counts until its leases are taken. Otherwise its death would give the other workers other parts,
        # at the very time when only those that have watched a part for a lease duration can tell that an owner is dead.
        members = {row.owner for row in rows if row.owner is not None and not row.checkpoint.is_finished}
        # Similar names often mean the same machine. The order of the hashes spreads the workers of a machine over the
        # parts, so that a part does not lose all its watchers with one machine.
        ranked = sorted(members | {me}, key=lambda name: (spread(name), name))
        count = 1 << max(0, (len(ranked) // self._watchers).bit_length() - 1)
        numbers = {name: rank * count // len(ranked) for rank, name in enumerate(ranked)}
        self.part, self._offset = Part(numbers[me], count), spread(me)
        self.co_watchers = frozenset(name for name, number in numbers.items() if number == self.part.number)
