"""Tracks what this worker knows about every lease and how old that knowledge is.

The view holds the rows as they were last seen, and the time on our own clock at which each row last changed. It never
compares the clock of a store or of another worker with ours: an owner is dead if *we* saw that its counter did not
change for its lease duration.

Invariants:

- The age of a row counts from the moment when we *received* its counter for the first time. The holder sent that write
  earlier, so its right to the lease (one lease duration after sending, L2) ends before we consider the row expired.
  Each holder is judged by the lease duration that it states in the row. A holder that states no lease duration is
  judged by ours, or on a KCL table by a duration that follows from the KCL's failover time.
- A row that we wrote is newer than a scan that began before the response to the write.
- A row that is new to us counts as fresh if it has a holder, and as available if it has no holder.
- The view reports when an unfinished row disappears: while a stream stays the same, such rows are deleted only with
  their shards.
- The view notices when the store has lost all rows of the group, whether a scan or refused writes first show the loss.
- The view remembers the time to which rows at LATEST are pinned, even after those rows have moved on, because a group
  begins only once (L6).
"""

import math
from collections.abc import Iterable
from typing import final

from shardline.core.clock import Instant
from shardline.model.lease import Lease


@final
class LeaseView:
    """All rows of a group, as one worker last saw them."""

    def __init__(self, unstated_duration: float) -> None:
        self._unstated_duration: float = unstated_duration  # for holders that state no lease duration
        self.rows: dict[str, Lease] = {}
        self._changed_at: dict[str, Instant] = {}
        self._written_at: dict[str, Instant] = {}
        self._available_since: dict[str, Instant] = {}
        self._has_lost: bool = False
        self._lost_rows: int = 0  # how many unfinished rows disappeared since a scan last found a row
        self.begun_at: float = math.inf
        """The earliest time, in seconds since 1970, to which a row at LATEST was pinned."""

    # ---- inputs

    def handle_rows(self, rows: Iterable[Lease], sent_at: Instant, now: Instant) -> None:
        """Handle the rows of a scan that was sent at ``sent_at``."""
        found = {row.shard_id: row for row in rows}
        for shard_id, row in found.items():
            if not self._is_ours_newer(shard_id, sent_at):
                self._update(row, now)
        for shard_id in [*self.rows]:
            if shard_id not in found and not self._is_ours_newer(shard_id, sent_at):
                self._forget(shard_id)
        for shard_id, row in self.rows.items():
            if self.is_available(row, now):
                self._available_since.setdefault(shard_id, now)
            else:
                self._available_since.pop(shard_id, None)
        # Keep only the times of writes that are newer than this scan. Every later scan is newer than the other writes.
        self._written_at = {shard_id: at for shard_id, at in self._written_at.items() if at > sent_at}

    def take_emptied(self) -> int:
        """Return how many unfinished rows were lost if the last scan found no row at all. If it found one, return 0."""
        # A few lost rows are normal when a stream is re-created. A store without any row has lost the group.
        gone = 0 if self.rows else self._lost_rows
        self._lost_rows = 0
        return gone

    def handle_written(self, shard_id: str, row: Lease | None, now: Instant) -> None:
        """Handle the response to one of our writes: the current row, or ``None`` if there is no row."""
        self._written_at[shard_id] = now
        if row is None:
            self._forget(shard_id)
        else:
            self._update(row, now)

    def take_loss(self) -> bool:
        """Return whether an unfinished row disappeared since the last call."""
        loss, self._has_lost = self._has_lost, False
        return loss

    # ---- queries

    def is_expired(self, shard_id: str, now: Instant) -> bool:
        """Return whether the row's counter has not changed for longer than the holder's lease duration."""
        return now - self._changed_at[shard_id] > self.duration_of(self.rows[shard_id])

    def duration_of(self, row: Lease) -> float:
        """Return how long the row's holder may be silent before it counts as dead."""
        stated = row.incarnation_of(row.holder)
        return self._unstated_duration if stated is None else stated.lease_duration

    def is_available(self, row: Lease, now: Instant) -> bool:
        """Return whether any worker may take the lease: it has no holder, or its holder is dead."""
        return not row.checkpoint.is_finished and (row.holder is None or self.is_expired(row.shard_id, now))

    def available_for(self, shard_id: str, now: Instant) -> float:
        """Return how long the lease has been available, as far as the scans show."""
        return now - self._available_since.get(shard_id, now)

    def age(self, shard_id: str, now: Instant) -> float:
        """Return the time for which the row's counter has not changed."""
        return now - self._changed_at[shard_id]

    # ---- internal

    def _is_ours_newer(self, shard_id: str, sent_at: Instant) -> bool:
        return self._written_at.get(shard_id, sent_at) > sent_at

    def _update(self, row: Lease, now: Instant) -> None:
        known = self.rows.get(row.shard_id)
        self.rows[row.shard_id] = row
        if row.latest_at is not None:
            self.begun_at = min(self.begun_at, row.latest_at)
        if known is None or known.counter != row.counter:
            self._changed_at[row.shard_id] = now

    def _forget(self, shard_id: str) -> None:
        row = self.rows.pop(shard_id, None)
        if row is not None and not row.checkpoint.is_finished:
            self._has_lost = True
            self._lost_rows += 1
        self._changed_at.pop(shard_id, None)
        self._available_since.pop(shard_id, None)
