"""How does output reach a pipe that may be slow, or closed?

Invariants:

- The event loop never waits in a write: a reader that does not read holds up nothing, and Ctrl-C is heard.
- What is written is there at once: nothing waits in a buffer of ours.
- A reader that has gone away is noticed also while there is nothing to write.
"""

import asyncio
import os
import select
import stat
import sys
from typing import Final, final

_SURE_BYTES: Final = 512  # POSIX: a pipe that is ready takes at least so much (PIPE_BUF; 4096 on Linux)


@final
class PipeOutput:
    """Standard output, inside of a running event loop."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = sys.stdout.fileno()
        self._loop = asyncio.get_running_loop()
        mode = os.fstat(self._descriptor).st_mode
        self._is_pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._never_waits = stat.S_ISREG(mode) or sys.platform == "win32"  # there only sockets can be asked
        self._slice = getattr(select, "PIPE_BUF", _SURE_BYTES)
        self.is_closed = asyncio.Event()
        """Set when nobody reads any more."""
        if self._is_pipe and not self._never_waits:
            self._loop.add_reader(self._descriptor, self._reader_gone)

    async def write(self, data: bytes) -> None:
        """All of it.

        Raises:
            BrokenPipeError: nobody reads any more.
            OSError: it cannot be written.
        """
        view = memoryview(data)
        while view:
            if not self._never_waits:
                await self._wait_for_room()
            view = view[self._write(view if self._never_waits else view[: self._slice]) :]

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._descriptor, data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, f"cannot be written: {error.strerror}", "standard output") from None

    def close(self) -> None:
        """Leave the descriptor as it was."""
        if self._is_pipe and not self._never_waits:
            self._loop.remove_reader(self._descriptor)

    async def _wait_for_room(self) -> None:
        if select.select((), (self._descriptor,), (), 0)[1]:
            return
        ready = asyncio.Event()
        self._loop.add_writer(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_writer(self._descriptor)

    def _reader_gone(self) -> None:
        """The write end of a pipe is readable only when its read end was closed."""
        self._loop.remove_reader(self._descriptor)
        self._is_pipe = False
        self.is_closed.set()
