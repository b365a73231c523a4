"""The server's clock, which tests can freeze and move.

Invariants:

- The server's time never goes back, even if the machine's clock does.
- A frozen clock moves only by ``advance``. ``advance`` also moves a running clock ahead.
- The clock cannot be moved beyond ``CLOCK_END``. An ``advance`` that is refused changes nothing.
"""

import time
from collections.abc import Callable
from typing import final

from shardline.errors import UsageError
from shardline.server.model.settings import CLOCK_END


@final
class ServerClock:
    """A clock that tests can freeze and move, in seconds since 1970."""

    def __init__(self, source: Callable[[], float] = time.time) -> None:
        self._source = source
        self._offset = 0.0
        self._frozen_at: float | None = None
        self._latest = 0.0
        self.on_move: Callable[[], None] = lambda: None
        """Called after the clock was moved or resumed, so that tasks that wait for a time wake up and check it again.

        ``RunningServer`` sets it.
        """

    def now(self) -> float:
        """Return the server's current time."""
        frozen_at = self._frozen_at  # read once, because another thread may resume the clock
        current = self._source() + self._offset if frozen_at is None else frozen_at
        self._latest = max(self._latest, current)
        return self._latest

    def machine_now(self) -> float:
        """Return the machine's current time, which does not depend on how this clock was moved."""
        return self._source()

    def freeze(self) -> None:
        """Stop the clock at its current time."""
        self._frozen_at = self.now()

    def resume(self) -> None:
        """Let a frozen clock run again, from the time that it shows."""
        if self._frozen_at is not None:
            self._offset = self._frozen_at - self._source()
            self._frozen_at = None
            self.on_move()

    def check_advance(self, seconds: object) -> float:
        """Return ``seconds`` as a float if ``advance`` accepts this number.

        Raises:
            UsageError: ``seconds`` is not a number, is negative, or would move the clock beyond ``CLOCK_END``.
        """
        left = max(0.0, CLOCK_END - self.now())
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds <= left:
            # A huge number is not shown: Python refuses to convert an int of more than 4,300 digits to text.
            shown = repr(seconds) if not isinstance(seconds, int) or abs(seconds) < 10**30 else "a huge number"
            allowed = f"a number of seconds from 0 to {int(left)} (the clock ends at 2200-01-01)"
            raise UsageError(f"the clock can advance by {allowed}, not {shown}")
        return float(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock ahead, immediately.

        Raises:
            UsageError: see ``check_advance``.
        """
        seconds = self.check_advance(seconds)
        if self._frozen_at is not None:
            self._frozen_at = self.now() + seconds
        else:
            # The new time is relative to the last time returned. If the machine's clock was set back, adding to the
            # offset would not move the server's time, which never goes back.
            self._offset = self.now() + seconds - self._source()
        self.on_move()

    @property
    def is_frozen(self) -> bool:
        return self._frozen_at is not None
