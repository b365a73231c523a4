"""Is the event loop still turning?

A thread of its own looks whether the host task came back when it said it would. A loop that is blocked by the user's
code renews no lease, and cannot say so itself before it is too late.

Invariants:

- A loop that is late by a quarter of the lease duration is reported while it is still blocked, once each time,
  with the place in the code where it stands. No values: they may be the user's data.
- The thread ends with the consumer, and keeps no program from ending.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final, final

_log: Final = logging.getLogger("shardline.consumer")
_SHARE: Final = 0.25  # of a lease duration
_FRAMES: Final = 3


@final
class LoopWatch:
    """Watches the event loop of the thread that makes it."""

    def __init__(self, name: str, lease_duration: float, clock: Callable[[], float]) -> None:
        self._name = name
        self._patience = lease_duration * _SHARE
        self._clock = clock
        self._watched = threading.get_ident()
        self._expected_at = clock()
        self._told_at: float | None = None  # the appointment that was missed and reported
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardline loop watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for the thread."""
        self._over.set()

    def expect(self, at: float) -> None:
        """The host will be back by then."""
        self._expected_at = at

    def look(self) -> None:
        """Report the loop if it is late."""
        expected_at = self._expected_at
        late = self._clock() - expected_at
        if late > self._patience and self._told_at != expected_at:
            self._told_at = expected_at
            place = "unknown"
            # The documented way to see where another thread stands.
            frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            frame = frames.get(self._watched)
            if frame is not None:
                stack = traceback.extract_stack(frame)[-_FRAMES:]
                place = " < ".join(f"{one.name} ({one.filename}:{one.lineno})" for one in reversed(stack))
            told = "%s: the event loop is blocked for %.1f s, leases are in danger; at %s"
            _log.warning(told, self._name, late, place)

    def _run(self) -> None:
        while not self._over.wait(self._patience / 2):
            self.look()
