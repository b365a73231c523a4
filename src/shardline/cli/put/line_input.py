"""How is input read line by line, without stopping everything else?

Invariants:

- Reading happens in a thread of its own, which nobody waits for: a terminal or a pipe that says nothing holds up
  neither the event loop nor the end of the program.
- What is read ahead is bounded: a few blocks, and one line that has no end is cut at ``LINE_MAX_BYTES``.
- A line is what stands between two newlines, byte for byte, whatever it holds. The last needs no newline.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from typing import Final, final

from shardline.model.limits import RECORD_HIGHEST_MAX_BYTES

BLOCK_BYTES: Final = 256 * 1024
LINE_MAX_BYTES: Final = RECORD_HIGHEST_MAX_BYTES
_AHEAD: Final = 2


@final
class BlockReader:
    """Blocks of bytes from a file descriptor, as they come."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = threading.Semaphore(_AHEAD)
        self._blocks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self.read_bytes = 0
        """How much was handed out."""
        threading.Thread(target=self._read, name="shardline input", daemon=True).start()

    def _read(self) -> None:
        """A block that comes after the loop has ended goes nowhere: nobody would put it."""
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
        """Until the end of the input.

        Raises:
            OSError: it cannot be read.
        """
        while not self._is_over:
            block = await self._blocks.get()
            self._room.release()
            if isinstance(block, OSError):
                raise block
            self.read_bytes += len(block)
            self._is_over = not block
            if block:
                yield block

    def read_ahead(self) -> bytes:
        """What was read and not handed out, when nobody wants more."""
        blocks: list[bytes] = []
        while not self._blocks.empty():
            block = self._blocks.get_nowait()
            if isinstance(block, bytes):
                blocks.append(block)
        return b"".join(blocks)


@final
class LineSplitter:
    """Makes lines of blocks. A line that is too long is ``None``."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._is_cut = False

    @property
    def unfinished_bytes(self) -> int:
        """How long the line is whose end has not come."""
        return self._size

    def feed(self, block: bytes) -> list[bytes | None]:
        """The lines that this block ends."""
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
        """The last line, if the input did not end with a newline."""
        return [self._take()] if self._size else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > LINE_MAX_BYTES:
            self._is_cut = True
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _take(self) -> bytes | None:
        line = None if self._is_cut else b"".join(self._parts)
        self._parts, self._size, self._is_cut = [], 0, False
        return line
