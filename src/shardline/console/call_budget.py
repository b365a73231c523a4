"""Limits the calls to AWS per minute, and counts them by operation.

A page that a person is waiting for goes first. The calls of the readers behind the live charts are *background* calls.
They get at most three quarters of the budget and are evenly spaced, so that a stream with a thousand shards does not
delay a click.

Invariants:

- In any 60 seconds, at most ``per_minute`` calls are sent. A call over the budget waits; it is never dropped.
- Background calls leave at least a quarter of the budget for other calls.
- Nothing here reads a clock: the time is an argument.
"""

from collections import Counter, deque
from typing import Any, Final, final

_MINUTE: Final = 60.0
_BACKGROUND: Final = 0.75
_BURST: Final = 0.5  # the share of their budget that background calls may spend at once


@final
class CallBudget:
    """The budget of calls per minute, and the calls of the last minute."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.total = 0
        self.waiting = 0
        """How many calls are waiting for the budget. The server sets this number, because the calls wait there."""
        self._calls: deque[tuple[float, str]] = deque()
        self._background_max = max(1, int(per_minute * _BACKGROUND))
        self._next_background_at = 0.0

    @property
    def background_per_second(self) -> float:
        """How many background calls per second the budget allows in the long run."""
        return self._background_max / _MINUTE

    def take(self, operation: str, now: float, *, background: bool = False) -> float:
        """Count a call and return 0, or return how many seconds to wait before the next attempt."""
        self._forget(now)
        limit = self._background_max if background else self.per_minute
        if len(self._calls) >= limit:
            return max(0.001, self._calls[len(self._calls) - limit][0] + _MINUTE - now)
        if background and len(self._calls) >= limit * _BURST:
            if now < self._next_background_at:
                return self._next_background_at - now
            self._next_background_at = now + 1 / self.background_per_second
        self._calls.append((now, operation))
        self.total += 1
        return 0.0

    def to_json(self, now: float) -> dict[str, Any]:
        """Return the budget and the calls of the last minute as a JSON object."""
        self._forget(now)
        return {
            "per_minute": self.per_minute,
            "last_minute": len(self._calls),
            "waiting": self.waiting,
            "total": self.total,
            "operations": dict(sorted(Counter(operation for _, operation in self._calls).items())),
        }

    def _forget(self, now: float) -> None:
        while self._calls and self._calls[0][0] <= now - _MINUTE:
            self._calls.popleft()
