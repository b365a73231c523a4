"""Detects records that retention removed before they were read.

Each page shows the age of the reader's position and the age of the first record on the page. The time between the two
is a *gap*: records of that time were either never written, or removed by retention before they were read. Whether
retention can have reached into a gap depends on the stream's retention period, which an operator may have changed a
moment ago. So a gap is judged by a stream summary that was requested after the gap was seen, never by an older summary.

Invariants:

- Every loss is reported. A gap is kept until it is judged. If no summary is available, or when the worker closes, the
  gap is judged by the last known retention. Raising the retention brings no records back: records that the earlier
  retention had removed by the time of its last summary count as lost. (Records that were removed after that summary and
  before the retention was raised cannot be detected.)
- Nothing else is reported. If a page begins with a record older than the retention, retention has not reached the
  reader's position. The same holds if the position itself is younger than the retention. In two cases, the watch cannot
  know, and reports the gap: retention reached into a gap that may have contained no records; or the retention may have
  been raised after the worker's last summary, and the worker closes or may no longer read summaries.
- While a worker is less far behind than the minimum retention of a stream, the watch costs nothing. For a worker that
  is further behind, it costs at most one summary per 5 seconds.
"""

from typing import Final, NamedTuple, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import RecordsTrimmed
from shardline.model.limits import RETENTION_MIN_HOURS

SECONDS_PER_HOUR: Final = 3600.0
LEAST_RETENTION: float = RETENTION_MIN_HOURS * SECONDS_PER_HOUR
"""The minimum retention of a stream, in seconds. (The simulation shortens this time.)"""
_SUMMARY_DISTANCE: Final = 5.0  # the shortest time in seconds between two summaries that are requested because of gaps
_UNSUSPICIOUS_WAIT: Final = 10.0  # if the last known retention did not reach into a gap, it is judged after this time
_GAPS_MAX: Final = 1_000


class _Gap(NamedTuple):
    """A span of time from which no record was read. Ages are in seconds, as of the arrival of the page."""

    shard_id: str
    youngest: float
    """The age of the first record after the gap, or of the end of an empty page."""
    oldest: float
    """The maximum age of the oldest unread record."""
    seen_at: Instant

    def reached_by(self, retention: float) -> bool:
        """Return whether the retention period ends inside the gap."""
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
        """When a summary should be requested to judge the gaps, or NEVER if there are no new gaps."""

    # ---- inputs

    def handle_page(self, shard_id: str, youngest: float, oldest: float, now: Instant) -> None:
        """Remember the gap before a page of this shard, if there is one. ``_Gap`` explains the arguments."""
        # No retention can reach into a gap that is younger than the minimum retention. If the first record is as old as
        # the reader's position, there is no gap.
        if oldest <= LEAST_RETENTION or youngest >= oldest:
            return
        gap = _Gap(shard_id, youngest, oldest, now)
        if self._has_no_summary:
            self._judge(gap)
            return
        self._gaps.append(gap)
        # To bound the memory, judge the oldest gap by the retention that is known now.
        if len(self._gaps) > _GAPS_MAX:
            self._judge(self._gaps.pop(0))
        is_suspicious = self._retention is None or gap.reached_by(self._retention)
        wanted_at = now if is_suspicious else now + _UNSUSPICIOUS_WAIT
        self.summary_by = min(self.summary_by, max(wanted_at, self._not_before))

    def handle_requested(self, now: Instant) -> None:
        """Called when a summary has been requested. This summary will decide about the gaps seen so far."""
        self.summary_by = NEVER
        self._not_before = now + _SUMMARY_DISTANCE

    def handle_summary(self, retention_hours: float, requested_at: Instant) -> None:
        """Judge the gaps by the retention of a new summary."""
        self._retention = retention_hours * SECONDS_PER_HOUR
        self._has_no_summary = False
        gaps, self._gaps = self._gaps, []
        for gap in gaps:
            # If the summary was requested before the gap was seen, the retention may have changed between the two.
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
