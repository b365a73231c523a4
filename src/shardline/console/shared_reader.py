"""Runs the reader of a live page for as long as a page is open.

Several pages share one reader. It starts with the first page and ends after the last.

Invariants:

- A page that opens while the reader is ending gets a new reader.
- A reader that ends with an unexpected error says so in ``problem``, until the next reader starts.
- The calls of a reader are background calls: they must not delay a page that a person waits for.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Final, final

is_background: Final[ContextVar[bool]] = ContextVar("is_background", default=False)
"""Whether the current task is a reader, and not the answer to a request of a page."""

_log: Final = logging.getLogger(__name__)


@final
class SharedReader:
    """A task that runs while at least one page is open."""

    def __init__(self, read: Callable[[], Awaitable[None]], on_end: Callable[[], None]) -> None:
        """Create a reader that does not run yet.

        Args:
            read: reads until it is cancelled.
            on_end: called when the last page is closed, before the reader is cancelled.
        """
        self._read = read
        self._on_end = on_end
        self._pages = 0
        self._task: asyncio.Task[None] | None = None
        self.problem: str | None = None
        """Why the reader ended although pages are open, or ``None`` if it did not."""

    @property
    def has_pages(self) -> bool:
        return self._pages > 0

    @asynccontextmanager
    async def page(self) -> AsyncGenerator[None]:
        """Count a page as open during the block."""
        self._pages += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._pages -= 1
            if not self._pages:
                await self._stop()

    async def _run(self) -> None:
        is_background.set(True)
        self.problem = None
        try:
            await self._read()
        except Exception as error:  # noqa: BLE001 - a bug: the pages must not wait for a reader that has ended
            _log.error("the reader of a page failed", exc_info=error)
            self.problem = f"internal error: {type(error).__name__}. Start the console with -v to see more."

    async def _stop(self) -> None:
        task, self._task = self._task, None
        self._on_end()
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
