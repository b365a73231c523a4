"""Handles Ctrl-C and SIGTERM stage by stage.

Invariants:

- Ctrl-C and SIGTERM cancel the stage that runs, and nothing else: what comes after it is done in good order.
- Each stage is cancelled by a signal of its own: a second Ctrl-C ends the draining that the first one began.
"""

import asyncio
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final, final

import anyio

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_BEYOND_SIGNALS: Final = 128


@final
class Interrupts:
    """The signals that came."""

    def __init__(self) -> None:
        self.first: int | None = None
        """The number of the first signal."""
        self._stage: anyio.CancelScope | None = None

    @contextmanager
    def stage(self) -> Generator[anyio.CancelScope]:
        """What the next signal cancels."""
        with anyio.CancelScope() as scope:
            self._stage = scope
            try:
                yield scope
            finally:
                self._stage = None

    @property
    def exit_code(self) -> int:
        """What shells expect of a command that a signal broke off: 130 for Ctrl-C, 143 for SIGTERM."""
        assert self.first is not None, "only asked after a signal"
        return _BEYOND_SIGNALS + self.first

    def cancel_stage(self) -> None:
        if self._stage is not None:
            self._stage.cancel()


@contextmanager
def interrupts(numbers: Sequence[signal.Signals] = _SIGNALS) -> Generator[Interrupts]:
    """Take these signals over from Python, inside of a running event loop."""
    heard = Interrupts()
    loop = asyncio.get_running_loop()

    def hear(number: int, frame: FrameType | None) -> None:
        del frame
        heard.first = heard.first or number
        loop.call_soon_threadsafe(heard.cancel_stage)

    try:
        for one in numbers:
            signal.signal(one, hear)
        yield heard
    finally:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)  # what still comes would only break off the end
