"""Writes to a pipe that may be slow or closed, without blocking the event loop.

Invariants:

- The event loop never blocks in a write: a slow reader does not hold up other tasks, and Ctrl-C works.
- Output is written immediately: it never waits in a buffer of this process.
- A closed pipe is noticed even while there is nothing to write.
"""

import asyncio
import os
import select
import stat
import sys
from typing import Final, final

_SAFE_BYTES: Final = 512  # POSIX: a pipe that is ready accepts at least PIPE_BUF bytes (4096 on Linux)


@final
class PipeOutput:
    """Standard output, written from an event loop."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = sys.stdout.fileno()
        self._loop = asyncio.get_running_loop()
        mode = os.fstat(self._descriptor).st_mode
        self._is_pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._never_blocks = stat.S_ISREG(mode) or sys.platform == "win32"  # on Windows, select handles only sockets
        self._slice_bytes = getattr(select, "PIPE_BUF", _SAFE_BYTES)
        self.is_closed = asyncio.Event()
        """An event that is set when the read end of the pipe was closed."""
        if self._is_pipe and not self._never_blocks:
            self._loop.add_reader(self._descriptor, self._handle_closed_pipe)

    async def write(self, data: bytes) -> None:
        """Write all of the data.

        Raises:
            BrokenPipeError: the read end of the pipe was closed.
            OSError: standard output cannot be written.
        """
        view = memoryview(data)
        while view:
            if not self._never_blocks:
                await self._wait_for_room()
            view = view[self._write(view if self._never_blocks else view[: self._slice_bytes]) :]

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._descriptor, data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, f"cannot be written: {error.strerror}", "standard output") from None

    def close(self) -> None:
        """Stop watching the pipe. The descriptor stays open."""
        if self._is_pipe and not self._never_blocks:
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

    def _handle_closed_pipe(self) -> None:
        """Note that the pipe was closed. Only then does the event loop report the write end of a pipe as readable."""
        self._loop.remove_reader(self._descriptor)
        self._is_pipe = False
        self.is_closed.set()
