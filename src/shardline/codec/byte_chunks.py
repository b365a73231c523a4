"""Collects bytes that arrive in pieces, until they are needed in one piece.

Invariants:

- A large piece is copied at most once, when the pieces are joined. One growing buffer would be copied several times
  (measured for events of 1.9 MB: 1.1 us per record of 200 B, against 0.2 us).
- A large ``memoryview`` is kept without being copied, so its buffer must not change, and stays in memory until the
  piece is taken.
- Small pieces are merged when they arrive, so the memory in use is proportional to the number of bytes.
"""

from collections import deque
from typing import Final, final

_SMALL: Final = 4_096


@final
class ByteChunks:
    """A queue of bytes. Its length is the number of bytes."""

    __slots__ = ("_large", "_size", "_small")

    def __init__(self) -> None:
        self._large: deque[bytes | memoryview] = deque()
        self._small = bytearray()  # the bytes after the large pieces
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, piece: bytes | memoryview) -> None:
        """Add bytes at the end."""
        self._size += len(piece)
        if len(piece) < _SMALL:
            self._small += piece
            return
        if self._small:
            self._large.append(bytes(self._small))
            self._small.clear()
        self._large.append(piece)

    def take_some(self) -> bytes | memoryview:
        """Remove and return as many of the first bytes as possible without a copy, or nothing if the queue is empty."""
        some: bytes | memoryview
        if self._large:
            some = self._large.popleft()
        else:
            some = bytes(self._small)
            self._small.clear()
        self._size -= len(some)
        return some

    def take(self) -> bytes:
        """Remove and return all bytes."""
        pieces = self.take_pieces()
        first = pieces[0] if len(pieces) == 1 else None
        return first if isinstance(first, bytes) else b"".join(pieces)

    def take_pieces(self) -> list[bytes | memoryview]:
        """Remove and return all bytes, in pieces that are not copied."""
        if self._small:
            self._large.append(bytes(self._small))
            self._small.clear()
        pieces = list(self._large)
        self._large.clear()
        self._size = 0
        return pieces
