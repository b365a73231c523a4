"""Audits whether the leases of a group cover all hash keys.

No worker reads a record whose hash key lies in a *hole*. A hole appears if a program or an operator deletes rows, or
marks an unread shard as finished. Workers create missing rows again after the next listing.

Invariants:

- A finished row covers nothing. The rows of its children cover its range, because they are written before SHARD_END.
- If the range of an unfinished row is unknown, the audit has no result, and nothing is reported.
- A hole is reported if two audits in a row, an interval apart, find one. In between, a worker may create rows.
- There is one event when holes are found, and one when no hole is left.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, final

from shardline.core.clock import Instant
from shardline.core.consumer.consumer_events import HashRangesCovered, HashRangesUncovered
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.model.hashing import HASH_KEY_COUNT, HashRange
from shardline.model.lease import Lease

_SMALLEST_SHARE: Final = 0.001  # per cent: smaller shares are shown as "less than" this

CoverageEvent: TypeAlias = HashRangesUncovered | HashRangesCovered


def find_holes(ranges: Iterable[HashRange]) -> tuple[HashRange, ...]:
    """Return the parts of the space of hash keys that none of the ranges covers, in order."""
    holes: list[HashRange] = []
    covered = 0  # the first hash key that no range so far covers
    for found in sorted(ranges):
        if found.start > covered:
            holes.append(HashRange(covered, found.start - 1))
        covered = max(covered, found.end + 1)
    if covered < HASH_KEY_COUNT:
        holes.append(HashRange(covered, HASH_KEY_COUNT - 1))
    return tuple(holes)


def percentage_of(ranges: Iterable[HashRange]) -> str:
    """Return the percentage of all hash keys that the ranges cover, as text: ``"12.5 %"``."""
    share = 100 * sum(found.end - found.start + 1 for found in ranges) / HASH_KEY_COUNT
    return f"{share:.3g} %" if share >= _SMALLEST_SHARE else f"less than {_SMALLEST_SHARE} %"


def find_uncovered(rows: Mapping[str, Lease], graph: ShardGraph) -> tuple[HashRange, ...] | None:
    """Return the hash ranges that no unfinished row covers, or ``None`` if the range of a row is unknown, or if there
    are no rows yet.
    """
    unfinished = [row for row in rows.values() if not row.checkpoint.is_finished]
    ranges = [graph.hash_range(row.shard_id) or row.hash_range for row in unfinished]
    known = [found for found in ranges if found is not None]
    return find_holes(known) if rows and len(known) == len(ranges) else None


@final
class CoverageAudit:
    """The regular audit of one group. ``interval`` is the time between two audits, in seconds."""

    def __init__(self, interval: float) -> None:
        self._interval: float = interval
        self._due_at: Instant = 0.0
        self._hole_since: Instant | None = None
        self._is_reported: bool = False
        self._events: list[CoverageEvent] = []

    def handle_rows(self, rows: Mapping[str, Lease], graph: ShardGraph, now: Instant) -> None:
        """Audit the rows of a scan, if an audit is due. The graph must be from a complete listing."""
        if now < self._due_at:
            return
        self._due_at = now + self._interval
        holes = find_uncovered(rows, graph)
        if holes:
            if self._hole_since is None:
                self._hole_since = now
            elif not self._is_reported:
                self._is_reported = True
                self._events.append(HashRangesUncovered(holes))
        elif holes is not None:
            if self._is_reported and self._hole_since is not None:
                self._events.append(HashRangesCovered(now - self._hole_since))
            self._hole_since, self._is_reported = None, False

    def take_events(self) -> list[CoverageEvent]:
        events, self._events = self._events, []
        return events
