"""When may a shard be asked again?

Invariants:

- Calls keep their distance: 5 a second by default. After throttling the distance doubles (up to a second) and
  shrinks back with every page: the limit is the shard's, and other applications read it too.
- A page of n bytes is paid for before the next call: 2 MiB a second by default, so that after the 10 MiB that a
  page may have, 5 s pass, and the service has no reason to refuse.
- Behind the end of the shard nothing else is waited for. At its end the wait grows with every page that brings
  nothing, up to the idle interval; the first record makes it short again.
- After a failure the wait is drawn (jitter) and grows up to 10 s, and is within that never shorter than what the
  service asked for.
- Idle waits end on a common beat, ten times a second: shards that have nothing are asked in small groups, for to
  wake up costs more than to ask. Short waits keep their own time.
"""

from typing import Final, final

from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import Instant
from shardline.core.failures import Failure, FailureKind

_BACKOFF_FIRST: Final = 0.25
_BACKOFF_LONGEST: Final = 10.0
_WIDEST: Final = 1.0  # a call a second is what five applications on one shard can have each
_RECOVERY: Final = 0.9
_BEAT: Final = 0.1  # seconds
_LONG_WAIT: Final = 0.5  # where half a beat more or less is little


@final
class ReadPace:
    """The clock of one reader."""

    def __init__(
        self, calls_per_second: float, bytes_per_second: float, idle_interval: float, chance: Chance, now: Instant
    ) -> None:
        self._least: float = 1.0 / calls_per_second
        self._distance: float = self._least
        self._bytes_per_second: float = bytes_per_second
        self._idle_longest: float = max(idle_interval, self._least)
        self._idle: float = self._least
        self._chance: Chance = chance
        self._backoff: Backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LONGEST, chance)
        self._sent_at: Instant = now
        self.next_at: Instant = now
        """When the next call may go out."""

    def handle_sent(self, now: Instant) -> None:
        """A call goes out."""
        self._sent_at = now
        self.next_at = now + self._distance

    def handle_iterator(self) -> None:
        """An iterator came: it can be used at once."""
        self._backoff.reset()
        self.next_at = self._sent_at

    def handle_page(self, size_bytes: int, *, empty: bool, behind: bool, now: Instant) -> None:
        """A page came."""
        self._backoff.reset()
        self._distance = max(self._least, self._distance * _RECOVERY)
        idle_at = now
        if behind:
            self._idle = self._least
        else:
            self._idle = min(self._idle * 2, self._idle_longest) if empty else self._least
            wait = self._idle * (0.9 + 0.1 * self._chance.random())
            idle_at = self._sent_at + wait
            if wait >= _LONG_WAIT:
                idle_at = round(idle_at / _BEAT) * _BEAT
        self.next_at = max(idle_at, self._sent_at + self._distance, now + size_bytes / self._bytes_per_second)

    def handle_failure(self, failure: Failure, now: Instant) -> None:
        """A call failed, and will be made again."""
        if failure.kind is FailureKind.THROTTLED:
            self._distance = min(self._distance * 2, max(_WIDEST, self._least))
        delay = self._backoff.next_delay(failure.retry_after)
        self.next_at = max(now + delay, self._sent_at + self._distance)
