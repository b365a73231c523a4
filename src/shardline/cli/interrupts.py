"""Lets Ctrl-C and SIGTERM cancel a command one stage at a time.

Invariants:

- Ctrl-C and SIGTERM cancel only the stage that is running. The stages after it run normally.
- Each signal cancels one stage: in ``put``, for example, the first Ctrl-C starts the draining, and a second one ends
  the draining.
"""

import asyncio
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final, final

import anyio

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SIGNAL_EXIT_BASE: Final = 128  # shells report "ended by signal N" as exit code 128 + N


@final
class Interrupts:
    """The signals that the command has received, and the stage that the next signal cancels."""

    def __init__(self) -> None:
        self.first: int | None = None
        """The number of the first signal, or ``None`` before any signal. The signal handler sets it."""
        self._stage: anyio.CancelScope | None = None

    @contextmanager
    def stage(self) -> Generator[anyio.CancelScope]:
        """Run a block that the next signal cancels."""
        with anyio.CancelScope() as scope:
            self._stage = scope
            try:
                yield scope
            finally:
                self._stage = None

    @property
    def exit_code(self) -> int:
        """The exit code that shells expect after a signal: 130 for Ctrl-C, 143 for SIGTERM."""
        assert self.first is not None, "read only after a signal"
        return _SIGNAL_EXIT_BASE + self.first

    def cancel_stage(self) -> None:
        """Cancel the stage that is running, if there is one."""
        if self._stage is not None:
            self._stage.cancel()


@contextmanager
def interrupts(numbers: Sequence[signal.Signals] = _SIGNALS) -> Generator[Interrupts]:
    """Replace Python's handlers for these signals while an event loop is running."""
    received = Interrupts()
    loop = asyncio.get_running_loop()

    def handle_signal(number: int, frame: FrameType | None) -> None:
        del frame
        received.first = received.first or number
        loop.call_soon_threadsafe(received.cancel_stage)

    try:
        for number in numbers:
            signal.signal(number, handle_signal)
        yield received
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)  # a late signal must not interrupt the clean-up
