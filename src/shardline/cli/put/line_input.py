"""Reads the input line by line, without blocking the event loop.

Invariants:

- A daemon thread reads the input, and nothing waits for this thread: a silent terminal or pipe holds up neither the
  event loop nor the end of the program.
- Read-ahead is bounded to a few blocks. A line longer than ``LINE_MAX_BYTES`` is dropped, not buffered.
- A line consists of the bytes between two newlines, whatever those bytes are. The last line needs no newline.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from typing import Final, final

from shardline.model.limits import RECORD_HIGHEST_MAX_BYTES

BLOCK_BYTES: Final = 256 * 1024
LINE_MAX_BYTES: Final = RECORD_HIGHEST_MAX_BYTES
_BLOCKS_AHEAD: Final = 2


@final
class BlockReader:
    """Reads blocks of bytes from a file descriptor in a thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = threading.Semaphore(_BLOCKS_AHEAD)
        self._blocks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._is_at_end = False
        self.read_bytes = 0
        """The number of bytes that ``blocks`` has yielded."""
        threading.Thread(target=self._read, name="shardline input", daemon=True).start()

    def _read(self) -> None:
        """Read blocks until the end of the input. A block that arrives after the loop was closed is dropped."""
        block: bytes | OSError = b"not yet"
        while block and not isinstance(block, OSError) and not self._loop.is_closed():
            self._room.acquire()
            try:
                block = os.read(self._descriptor, BLOCK_BYTES)
            except OSError as error:
                block = error
            try:
                self._loop.call_soon_threadsafe(self._blocks.put_nowait, block)
            except RuntimeError:
                return

    async def blocks(self) -> AsyncGenerator[bytes]:
        """Yield blocks until the end of the input.

        Raises:
            OSError: the input cannot be read.
        """
        while not self._is_at_end:
            block = await self._blocks.get()
            self._room.release()
            if isinstance(block, OSError):
                raise block
            self.read_bytes += len(block)
            self._is_at_end = not block
            if block:
                yield block

    def read_ahead(self) -> bytes:
        """Return the bytes that were read but not yielded. Call this when no more blocks will be requested."""
        blocks: list[bytes] = []
        while not self._blocks.empty():
            block = self._blocks.get_nowait()
            if isinstance(block, bytes):
                blocks.append(block)
        return b"".join(blocks)


@final
class LineSplitter:
    """Splits blocks into lines. A line that is too long becomes ``None``."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._is_too_long = False

    @property
    def unfinished_bytes(self) -> int:
        """The number of bytes so far in the line that is not complete yet."""
        return self._size

    def feed(self, block: bytes) -> list[bytes | None]:
        """Return the lines that this block completes."""
        first, newline, rest = block.partition(b"\n")
        self._keep(first)
        if not newline:
            return []
        lines: list[bytes | None] = [self._take()]
        if rest:
            more = rest.split(b"\n")
            self._keep(more.pop())
            lines += more
        return lines

    def end(self) -> list[bytes | None]:
        """Return the last line, if the input did not end with a newline."""
        return [self._take()] if self._size else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > LINE_MAX_BYTES:
            self._is_too_long = True
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _take(self) -> bytes | None:
        line = None if self._is_too_long else b"".join(self._parts)
        self._parts, self._size, self._is_too_long = [], 0, False
        return line
