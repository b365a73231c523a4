"""Logs a warning while user code blocks the event loop.

A blocked event loop renews no leases, and cannot report in time that it is blocked. So a thread checks whether the host
task has woken up when it was expected to.

Invariants:

- A loop that is late by a quarter of the lease duration is reported while it is still blocked, once per stall, with
  the line of code that blocks it. No values are logged, because values may be the user's data.
- The thread ends with the consumer, and does not keep the program from exiting.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final, final

_log: Final = logging.getLogger("shardline.consumer")
_MAX_DELAY: Final = 0.25  # as a share of the lease duration
_FRAMES: Final = 3


@final
class StallWatchdog:
    """Watches the event loop of the thread that creates it."""

    def __init__(self, name: str, lease_duration: float, clock: Callable[[], float]) -> None:
        self._name = name
        self._max_delay = lease_duration * _MAX_DELAY
        self._clock = clock
        self._watched_thread = threading.get_ident()
        self._expected_at = clock()
        self._reported: float | None = None  # the value of _expected_at that was reported last
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardline stall watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop, without waiting for it."""
        self._stopped.set()

    def expect(self, at: float) -> None:
        """Expect the host to run again at this time. The host calls this before it sleeps."""
        self._expected_at = at

    def check(self) -> None:
        """Log a warning if the event loop is late."""
        expected_at = self._expected_at
        late = self._clock() - expected_at
        if late > self._max_delay and self._reported != expected_at:
            self._reported = expected_at
            place = "unknown"
            # sys documents this function for debugging deadlocks in other threads.
            frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            frame = frames.get(self._watched_thread)
            if frame is not None:
                stack = traceback.extract_stack(frame)[-_FRAMES:]
                place = " < ".join(f"{caller.name} ({caller.filename}:{caller.lineno})" for caller in reversed(stack))
            message = "%s: the event loop has been blocked for %.1f s and renews no leases; it is at %s"
            _log.warning(message, self._name, late, place)

    def _run(self) -> None:
        while not self._stopped.wait(self._max_delay / 2):
            self.check()
