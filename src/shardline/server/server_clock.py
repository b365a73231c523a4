"""What time is it for the server?

Invariants:

- The server's time never goes back, whatever the machine's clock does.
- Frozen, it moves by ``advance`` alone; ``advance`` also moves a running clock ahead.
- It is never moved beyond ``CLOCK_END``, and an ``advance`` that is refused changes nothing.
"""

import time
from collections.abc import Callable
from typing import final

from shardline.errors import UsageError
from shardline.server.model.settings import CLOCK_END


@final
class ServerClock:
    """A clock that tests can freeze and move. Seconds since 1970."""

    def __init__(self, source: Callable[[], float] = time.time) -> None:
        self._source = source
        self._offset = 0.0
        self._frozen_at: float | None = None
        self._latest = 0.0
        self.on_move: Callable[[], None] = lambda: None
        """Called whenever the clock was moved or runs on: a task that sleeps until some time looks again."""

    def now(self) -> float:
        """The time that it is."""
        frozen_at = self._frozen_at  # read once: another thread may let the clock run on
        current = self._source() + self._offset if frozen_at is None else frozen_at
        self._latest = max(self._latest, current)
        return self._latest

    def machine_now(self) -> float:
        """The machine's own time, wherever this clock was moved to."""
        return self._source()

    def freeze(self) -> None:
        """Stop the clock where it is."""
        self._frozen_at = self.now()

    def resume(self) -> None:
        """Let the clock run on from where it is."""
        if self._frozen_at is not None:
            self._offset = self._frozen_at - self._source()
            self._frozen_at = None
            self.on_move()

    def check_advance(self, seconds: object) -> float:
        """By how much ``advance`` would move it, if it can.

        Raises:
            UsageError: it is no number, or a negative one, for time does not go back; or it is too large.
        """
        left = max(0.0, CLOCK_END - self.now())
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds <= left:
            # A whole number may have so many digits that Python refuses to write them.
            shown = repr(seconds) if not isinstance(seconds, int) or abs(seconds) < 10**30 else "a larger one"
            allowed = f"a number of seconds from 0 to {int(left)}, when it ends (2200-01-01)"
            raise UsageError(f"a clock advances by {allowed}, not {shown}")
        return float(seconds)

    def advance(self, seconds: float) -> None:
        """Move ahead by that much, at once.

        Raises:
            UsageError: see ``check_advance``.
        """
        seconds = self.check_advance(seconds)
        if self._frozen_at is not None:
            self._frozen_at = self.now() + seconds
        else:
            # From what was told last: where the machine's clock was set back, adding to the offset would move nothing.
            self._offset = self.now() + seconds - self._source()
        self.on_move()

    @property
    def is_frozen(self) -> bool:
        return self._frozen_at is not None
