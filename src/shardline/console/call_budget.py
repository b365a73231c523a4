"""Limits the calls to AWS per minute, and counts them by operation.

Invariants:

- In any 60 seconds, at most ``per_minute`` calls are sent. A call over the budget waits; it is never dropped.
- Nothing here reads a clock: the time is an argument.
"""

from collections import Counter, deque
from typing import Any, Final, final

_MINUTE: Final = 60.0


@final
class CallBudget:
    """The calls of the last minute."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.total = 0
        self._calls: deque[tuple[float, str]] = deque()

    def reserve(self, operation: str, now: float) -> float:
        """Reserve the next free place for a call, and return the time when the call may be sent."""
        self._forget(now)
        at = now
        if len(self._calls) >= self.per_minute:
            at = max(now, self._calls[-self.per_minute][0] + _MINUTE)
        self._calls.append((at, operation))
        self.total += 1
        return at

    def to_json(self, now: float) -> dict[str, Any]:
        """Return the budget and the calls of the last minute as a JSON object."""
        self._forget(now)
        sent = [operation for at, operation in self._calls if at <= now]
        return {
            "per_minute": self.per_minute,
            "last_minute": len(sent),
            "waiting": len(self._calls) - len(sent),
            "total": self.total,
            "operations": dict(sorted(Counter(sent).items())),
        }

    def _forget(self, now: float) -> None:
        while self._calls and self._calls[0][0] <= now - _MINUTE:
            self._calls.popleft()
