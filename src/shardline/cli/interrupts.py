"""Handles Ctrl-C and SIGTERM stage by stage.

Invariants:

- IN1: Ctrl-C and SIGTERM cancel the stage that runs, and nothing else: what comes after it is done in good order.
- IN2: each stage is cancelled by a signal of its own: a second Ctrl-C ends the draining that the first one began.
"""

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager
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

    def handle_signal(self, number: int) -> None:
        if self.first is None:
            self.first = number
        if self._stage is not None:
            self._stage.cancel()


@contextmanager
def interrupts() -> Generator[Interrupts]:
    """Take Ctrl-C and SIGTERM over from Python, inside of a running event loop."""
    heard = Interrupts()
    loop = asyncio.get_running_loop()
    taken: list[signal.Signals] = []
    try:
        for one in _SIGNALS:
            try:
                loop.add_signal_handler(one, heard.handle_signal, one)
            except NotImplementedError:  # Windows: Ctrl-C then breaks the command off
                break
            taken.append(one)
        yield heard
    finally:
        for one in taken:
            loop.remove_signal_handler(one)
            signal.signal(one, signal.SIG_IGN)  # what still comes would only break off the end
