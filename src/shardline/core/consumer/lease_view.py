"""What do we know of every lease, and how old is that?

The rows as they were last seen, and when each last changed, by our own clock. No clock of a store or of another worker
is ever compared with ours: an owner whose counter stood still for its lease duration, as *we* saw it, is dead.

Invariants:

- A row's age runs from the moment when we *received* the first sight of its counter. The holder sent that write
  before, so its own right (lease duration from when it was sent, L2) ends before we call it expired. Each holder is
  judged by the lease duration that it states in the row; one that states none by ours, on a KCL's table by the KCL's.
- What we wrote ourselves is newer than a scan that was begun before the answer came.
- A row that is new to us is fresh if someone holds it, and available if nobody does.
- It is told when a row goes that was not finished: while a stream stays the same, such rows are given up only with
  their shards.
- A store that lost all rows of the group is noticed, whether a scan or refused writes show it first.
- Since when rows at LATEST are read is remembered when they have gone on: a group begins once (L6).
"""

import math
from collections.abc import Iterable
from typing import final

from shardline.core.clock import Instant
from shardline.model.lease import Lease


@final
class LeaseView:
    """All rows of a group, as one worker sees them."""

    def __init__(self, unstated_duration: float) -> None:
        self._unstated_duration: float = unstated_duration  # for holders that state none
        self.rows: dict[str, Lease] = {}
        self._changed_at: dict[str, Instant] = {}
        self._written_at: dict[str, Instant] = {}
        self._available_since: dict[str, Instant] = {}
        self._has_lost: bool = False
        self._gone: int = 0  # rows that were not finished and went, since a scan last found a row
        self.begun_at: float = math.inf
        """The earliest time, in seconds since 1970, that a row at LATEST was seen to be read from."""

    # ---- inputs

    def handle_rows(self, rows: Iterable[Lease], sent_at: Instant, now: Instant) -> None:
        """A scan that was begun at ``sent_at`` was answered."""
        found = {row.shard_id: row for row in rows}
        for shard_id, row in found.items():
            if not self._is_ours_newer(shard_id, sent_at):
                self._see(row, now)
        for shard_id in [*self.rows]:
            if shard_id not in found and not self._is_ours_newer(shard_id, sent_at):
                self._forget(shard_id)
        for shard_id, row in self.rows.items():
            if self.is_available(row, now):
                self._available_since.setdefault(shard_id, now)
            else:
                self._available_since.pop(shard_id, None)
        self._written_at = {shard_id: at for shard_id, at in self._written_at.items() if at > sent_at}

    def take_emptied(self) -> int:
        """How many rows that were not finished went, if the last scan found none at all; once."""
        gone = 0 if self.rows else self._gone
        self._gone = 0
        return gone

    def handle_written(self, shard_id: str, row: Lease | None, now: Instant) -> None:
        """The answer to a write of ours: the row as it stands (``None``: there is none)."""
        self._written_at[shard_id] = now
        if row is None:
            self._forget(shard_id)
        else:
            self._see(row, now)

    def take_loss(self) -> bool:
        """Whether a row that was not finished went since the last call."""
        loss, self._has_lost = self._has_lost, False
        return loss

    # ---- what is so

    def is_expired(self, shard_id: str, now: Instant) -> bool:
        """Whether its holder, if there is one, has been silent for longer than it may."""
        return now - self._changed_at[shard_id] > self.duration_of(self.rows[shard_id])

    def duration_of(self, row: Lease) -> float:
        """How long its holder may be silent."""
        stated = row.incarnation_of(row.holder)
        return self._unstated_duration if stated is None else stated.lease_duration

    def is_available(self, row: Lease, now: Instant) -> bool:
        """Whether anyone may take it: nobody holds it, or its holder is dead."""
        return not row.checkpoint.is_finished and (row.holder is None or self.is_expired(row.shard_id, now))

    def available_for(self, shard_id: str, now: Instant) -> float:
        """For how long it has been so, as far as scans told."""
        return now - self._available_since.get(shard_id, now)

    def age(self, shard_id: str, now: Instant) -> float:
        """Since when its counter stands still."""
        return now - self._changed_at[shard_id]

    # ---- within

    def _is_ours_newer(self, shard_id: str, sent_at: Instant) -> bool:
        return self._written_at.get(shard_id, sent_at) > sent_at

    def _see(self, row: Lease, now: Instant) -> None:
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
            self._gone += 1
        self._changed_at.pop(shard_id, None)
        self._available_since.pop(shard_id, None)
