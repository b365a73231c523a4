"""Did retention remove records before they were read?

Each page shows how far back its reader was, and the age of the first record that came. The time between the two is a
*gap*: records of that time were either never written, or removed by retention before they were read. Whether retention
can have reached into a gap depends on the stream's retention period, which an operator may have changed a moment ago.
So a gap is judged by a stream summary that was requested after the gap was seen, never by an older one.

Invariants:

- Every loss is reported. A gap is kept until it is judged. If no summary is available, and when the worker closes, it
  is judged by the last known retention. Records that an earlier retention had removed when it was last seen stay
  removed, even if the retention was raised later. (How much was removed between that summary and the raise cannot be
  known.)
- Nothing else is reported. If a page begins with a record older than the retention, retention has not reached the
  reader's position. The same holds if the position itself is younger than the retention. One uncertainty remains: a gap
  that retention reached may have held no records. This cannot be known, so the gap is reported.
- A worker that is less behind than the minimum retention of a stream costs nothing here. A worker that is further
  behind costs at most one summary per 5 seconds.
"""

from typing import Final, NamedTuple, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import RecordsTrimmed
from shardline.model.limits import RETENTION_MIN_HOURS

SECONDS_PER_HOUR: Final = 3600.0
LEAST_RETENTION: float = RETENTION_MIN_HOURS * SECONDS_PER_HOUR
"""The minimum retention of a stream, in seconds. (The simulation shortens it.)"""
_SUMMARY_DISTANCE: Final = 5.0  # seconds between two summaries that are requested because of gaps
_UNSUSPICIOUS_WAIT: Final = 10.0  # seconds until a gap is judged if the last known retention did not reach into it
_GAPS_MAX: Final = 1_000


class _Gap(NamedTuple):
    """A time from which no record was read. Ages are in seconds, at the time when the page came."""

    shard_id: str
    youngest: float
    """The age of the first record after the gap, or of the end of an empty page."""
    oldest: float
    """The maximum age of the oldest unread record."""
    seen_at: Instant

    def reached_by(self, retention: float) -> bool:
        """Whether the retention period ends inside the gap."""
        return self.youngest <= retention < self.oldest


@final
class TrimWatch:
    """The gaps of all shards that a worker reads."""

    def __init__(self) -> None:
        self._gaps: list[_Gap] = []
        self._events: list[RecordsTrimmed] = []
        self._retention: float | None = None
        self._removed_until: Instant = -NEVER  # records that arrived before this time were removed
        self._has_no_summary: bool = False
        self._not_before: Instant = -NEVER
        self.summary_by: Instant = NEVER
        """When a summary should be requested to judge the gaps. NEVER: there are no new gaps."""

    # ---- inputs

    def handle_page(self, shard_id: str, youngest: float, oldest: float, now: Instant) -> None:
        """Note the gap before a page of this shard, if there is one. ``_Gap`` explains the arguments."""
        # No retention can reach into a gap this young. If the first record is as old as the reader's position, there is
        # no gap.
        if oldest <= LEAST_RETENTION or youngest >= oldest:
            return
        gap = _Gap(shard_id, youngest, oldest, now)
        if self._has_no_summary:
            self._judge(gap)
            return
        self._gaps.append(gap)
        # Bound the memory: judge the oldest gap by the retention that is known now.
        if len(self._gaps) > _GAPS_MAX:
            self._judge(self._gaps.pop(0))
        is_suspicious = self._retention is None or gap.reached_by(self._retention)
        wanted_at = now if is_suspicious else now + _UNSUSPICIOUS_WAIT
        self.summary_by = min(self.summary_by, max(wanted_at, self._not_before))

    def handle_requested(self, now: Instant) -> None:
        """Note that a summary is requested. It will judge the gaps that were seen so far."""
        self.summary_by = NEVER
        self._not_before = now + _SUMMARY_DISTANCE

    def handle_summary(self, retention_hours: float, requested_at: Instant) -> None:
        """Judge the gaps by the retention of a new summary."""
        self._retention = retention_hours * SECONDS_PER_HOUR
        self._has_no_summary = False
        gaps, self._gaps = self._gaps, []
        for gap in gaps:
            # The summary is older than this gap otherwise, and the retention may have changed between the two.
            if gap.seen_at <= requested_at:
                self._judge(gap)
            else:
                self.handle_page(*gap)
        self._removed_until = max(self._removed_until, requested_at - self._retention)

    def handle_no_summary(self) -> None:
        """Judge all gaps by the last known retention, because no further summary will arrive or the worker is
        closing.
        """
        self._has_no_summary = True
        self.summary_by = NEVER
        gaps, self._gaps = self._gaps, []
        for gap in gaps:
            self._judge(gap)

    # ---- outputs

    def take_events(self) -> list[RecordsTrimmed]:
        events, self._events = self._events, []
        return events

    def _judge(self, gap: _Gap) -> None:
        if self._retention is None:
            return
        # Raising the retention does not bring removed records back.
        kept = min(self._retention, gap.seen_at - self._removed_until)
        if gap.reached_by(kept):
            why = f"unread records were up to {gap.oldest:.0f} s old, and records older than {kept:.0f} s are gone"
            self._events.append(RecordsTrimmed(gap.shard_id, why))
