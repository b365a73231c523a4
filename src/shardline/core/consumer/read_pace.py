"""Decides when the next call to a shard may be sent.

Invariants:

- There is a minimum time between two calls, which allows 5 calls per second by default. Throttling doubles this time
  (up to a second), because the limit applies to the shard, and other applications may read the same shard. Every page
  shortens the time again.
- The next call waits as long as it takes to read the bytes of the last page at the allowed rate, which is 2 MiB per
  second by default. After a page of 10 MiB, the maximum, the reader waits 5 s, so that the service has no reason to
  throttle.
- While the reader is behind the end of the shard, there is no other wait. At the end of the shard, the wait grows with
  every empty page, up to the idle interval. The first record that arrives makes the wait short again.
- After a failure, the wait has jitter and grows to at most 10 s. It is never shorter than the delay that the service
  requested, up to the same 10 s.
- Idle waits end at common ticks, ten per second. So idle shards are polled in small groups, which saves CPU time
  because waking up costs more than polling. Short waits are not rounded.
"""

from typing import Final, final

from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import Instant
from shardline.core.error_codes import Failure, FailureKind

_BACKOFF_FIRST: Final = 0.25
_BACKOFF_LONGEST: Final = 10.0
_DISTANCE_MAX: Final = 1.0  # in seconds: five applications that read one shard can each make one call per second
_RECOVERY: Final = 0.9
_BEAT: Final = 0.1  # seconds
_LONG_WAIT: Final = 0.5  # in seconds: for longer waits, rounding to a beat matters little


@final
class ReadPace:
    """Schedules the calls of one reader."""

    def __init__(
        self, calls_per_second: float, bytes_per_second: float, idle_interval: float, rng: Chance, now: Instant
    ) -> None:
        self._least: float = 1.0 / calls_per_second
        self._distance: float = self._least
        self._bytes_per_second: float = bytes_per_second
        self._idle_longest: float = max(idle_interval, self._least)
        self._idle: float = self._least
        self._rng: Chance = rng
        self._backoff: Backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LONGEST, rng)
        self._sent_at: Instant = now
        self.next_at: Instant = now
        """When the next call may be sent."""

    def handle_sent(self, now: Instant) -> None:
        self._sent_at = now
        self.next_at = now + self._distance

    def handle_iterator(self) -> None:
        """Allow the next call immediately, because the last call returned an iterator."""
        self._backoff.reset()
        self.next_at = self._sent_at

    def handle_page(self, size_bytes: int, *, empty: bool, behind: bool, now: Instant) -> None:
        """Schedule the next call after a page."""
        self._backoff.reset()
        self._distance = max(self._least, self._distance * _RECOVERY)
        idle_at = now
        if behind:
            self._idle = self._least
        else:
            self._idle = min(self._idle * 2, self._idle_longest) if empty else self._least
            wait = self._idle * (0.9 + 0.1 * self._rng.random())
            idle_at = self._sent_at + wait
            if wait >= _LONG_WAIT:
                idle_at = round(idle_at / _BEAT) * _BEAT
        # All three limits hold: the idle wait, the minimum time between calls, and the limit in bytes per second.
        self.next_at = max(idle_at, self._sent_at + self._distance, now + size_bytes / self._bytes_per_second)

    def handle_failure(self, failure: Failure, now: Instant) -> None:
        """Schedule the retry of a failed call."""
        if failure.kind is FailureKind.THROTTLED:
            # Other applications may read the same shard. A longer time between calls leaves them their share of the
            # calls.
            self._distance = min(self._distance * 2, max(_DISTANCE_MAX, self._least))
        delay = self._backoff.next_delay(failure.retry_after)
        self.next_at = max(now + delay, self._sent_at + self._distance)
