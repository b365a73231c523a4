"""Did retention remove records before they were read?

Each page shows how far back its reader stood, and how old the first thing is that came. What lay between the two was
either never written, or removed by retention before it was read: a *gap*. Whether retention can have reached into a gap
depends on how long the stream keeps its records, and an operator may have changed that a moment ago. So a gap is judged
by a stream summary that was requested after the gap was seen, never by an older one.

Invariants:

- A loss is reported. A gap is kept until it is judged. Where no summary can be had, and when the worker closes, it
  is judged by the last retention that was known. What an earlier retention had removed when it was last seen stays
  removed, however far it was raised since. (What it removed between then and the raise cannot be known.)
- Nothing else is reported. A page that begins with a record older than the retention shows that retention has not
  reached its reader's place; neither has it where the place itself is younger. One uncertainty is left: a gap that
  retention reached into may have been empty. That cannot be known any more, and it is reported.
- A worker that is less behind than the shortest retention that a stream can have costs nothing here, and one
  that is further behind at most one summary in 5 seconds.
"""

from typing import Final, NamedTuple, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import RecordsTrimmed
from shardline.model.limits import RETENTION_MIN_HOURS

SECONDS_PER_HOUR: Final = 3600.0
LEAST_RETENTION: float = RETENTION_MIN_HOURS * SECONDS_PER_HOUR
"""What a stream keeps at least, in seconds. (A simulated day is shorter.)"""
_SUMMARY_DISTANCE: Final = 5.0  # seconds between two summaries that gaps ask for
_UNSUSPICIOUS_WAIT: Final = 10.0  # how soon a gap is judged that the retention known so far does not explain
_GAPS_MAX: Final = 1_000


class _Gap(NamedTuple):
    """Ages are seconds, at the time when the page was made."""

    shard_id: str
    youngest: float
    """The age of the first thing after the gap."""
    oldest: float
    """The age that the oldest unread record had, at most."""
    seen_at: Instant

    def reached_by(self, retention: float) -> bool:
        """Whether retention ends inside the gap."""
        return self.youngest <= retention < self.oldest


@final
class TrimWatch:
    """The gaps of all shards that a worker reads."""

    def __init__(self) -> None:
        self._gaps: list[_Gap] = []
        self._events: list[RecordsTrimmed] = []
        self._retention: float | None = None
        self._removed_until: Instant = -NEVER  # records that arrived before this were removed, whatever came since
        self._has_no_summary: bool = False
        self._not_before: Instant = -NEVER
        self.summary_by: Instant = NEVER
        """When a summary should be requested, for there are gaps to judge."""

    # ---- inputs

    def handle_page(self, shard_id: str, youngest: float, oldest: float, now: Instant) -> None:
        """A page of this shard came: see ``_Gap``."""
        if oldest <= LEAST_RETENTION or youngest >= oldest:
            return
        gap = _Gap(shard_id, youngest, oldest, now)
        if self._has_no_summary:
            self._judge(gap)
            return
        self._gaps.append(gap)
        if len(self._gaps) > _GAPS_MAX:
            self._judge(self._gaps.pop(0))
        is_suspicious = self._retention is None or gap.reached_by(self._retention)
        wanted_at = now if is_suspicious else now + _UNSUSPICIOUS_WAIT
        self.summary_by = min(self.summary_by, max(wanted_at, self._not_before))

    def handle_requested(self, now: Instant) -> None:
        """A summary is requested: it will judge the gaps that were seen so far."""
        self.summary_by = NEVER
        self._not_before = now + _SUMMARY_DISTANCE

    def handle_summary(self, retention_hours: float, requested_at: Instant) -> None:
        """The summary came: so long does the stream keep its records."""
        self._retention = retention_hours * SECONDS_PER_HOUR
        self._has_no_summary = False
        gaps, self._gaps = self._gaps, []
        for gap in gaps:
            if gap.seen_at <= requested_at:
                self._judge(gap)
            else:
                self.handle_page(*gap)
        self._removed_until = max(self._removed_until, requested_at - self._retention)

    def handle_no_summary(self) -> None:
        """There will be none any more, or nobody waits for it."""
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
        kept = min(self._retention, gap.seen_at - self._removed_until)
        if gap.reached_by(kept):
            why = f"unread records were up to {gap.oldest:.0f} s old, and records older than {kept:.0f} s are gone"
            self._events.append(RecordsTrimmed(gap.shard_id, why))
