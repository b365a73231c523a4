"""How is what comes in storms logged in a few lines?

For the reporters of producer and consumer: failures that are alike are counted, and what of the user's fails is told.

Invariants:

- SL1: failures are logged once per distinct (what, code, message) and period, with a count, and with an example where
  there is one. So many different ones that they are a storm themselves are counted as one.
- SL2: a sink or a hook that raises harms nothing: it is logged, at most once a minute.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple, final

from shardline.aio.user_code import Contained

_PERIOD: Final = 10.0  # seconds in which the same failure is logged once
_COMPLAINT_PERIOD: Final = 60.0
_DISTINCT_MAX: Final = 100  # different failures remembered in a period


class _Failures(NamedTuple):
    """Failures that are alike. ``what`` may have a place for their number: ``%d records``."""

    level: int
    what: str
    code: str
    message: str


@final
class StormLog:
    """The log of one producer or consumer.

    Args:
        log: where to.
        name: how each line begins.
        goes_on: how a complaint about the user's code ends.
        clock: the time.
    """

    def __init__(self, log: logging.Logger, name: str, goes_on: str, clock: Callable[[], float]) -> None:
        self._log = log
        self._name = name
        self._goes_on = goes_on
        self._clock = clock
        self._counts: dict[_Failures, int] = {}
        self._examples: dict[_Failures, str] = {}  # of those that are counted
        self._logged_at: dict[_Failures, float] = {}
        self._complained_at: dict[str, float] = {}

    def count(
        self, what: str, code: str, message: str, times: int = 1, *, level: int = logging.WARNING, example: str = ""
    ) -> None:
        """SL1. It is logged by ``log_due``, with the last ``example``."""
        key = _Failures(level, what, code, message)
        if key not in self._counts and key not in self._logged_at and len(self._logged_at) >= _DISTINCT_MAX:
            now = self._clock()
            self._logged_at = {old: at for old, at in self._logged_at.items() if now - at < _PERIOD}
            if len(self._logged_at) >= _DISTINCT_MAX:
                key = _Failures(level, what, "and others", f"more than {_DISTINCT_MAX} different failures")
        self._counts[key] = self._counts.get(key, 0) + times
        self._examples[key] = example

    def log_due(self) -> None:
        """What was not logged lately."""
        if self._counts:
            now = self._clock()
            self._write([key for key in self._counts if now - self._logged_at.get(key, -_PERIOD) >= _PERIOD], now)

    def log_rest(self) -> None:
        """What was counted and not logged yet."""
        self._write(list(self._counts), self._clock())

    def hand_on(self, sink: Callable[[Any], object] | None, event: object) -> None:
        """Call the user's sink (SL2)."""
        if sink is not None:
            with Contained(lambda error: self.complain("the sink", error)):
                sink(event)

    def complain(self, what: str, error: BaseException) -> None:
        """Something of the user's failed, and nobody else is told (SL2)."""
        now = self._clock()
        if now - self._complained_at.get(what, -_COMPLAINT_PERIOD) >= _COMPLAINT_PERIOD:
            self._complained_at[what] = now
            self._log.error("%s: %s failed; %s", self._name, what, self._goes_on, exc_info=error)

    def _write(self, keys: list[_Failures], now: float) -> None:
        for key in keys:
            times = self._counts.pop(key)
            example = self._examples.pop(key)
            self._logged_at[key] = now
            why = ": ".join(filter(None, (key.code, key.message))) + (f" ({example})" if example else "")
            if "%d" in key.what:
                what = key.what.replace("%d records", "%d record") if times == 1 else key.what
                self._log.log(key.level, f"%s: {what}: %s", self._name, times, why)
            else:
                what = key.what if times == 1 else f"{key.what} ({times} times)"
                self._log.log(key.level, "%s: %s: %s", self._name, what, why)
