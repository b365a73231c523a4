"""Removes the client's GOAWAY frames from the bytes of an HTTP/2 connection.

GOAWAY means that its sender will open no more streams; open streams continue (RFC 9113, 6.8). But the library ``h2``
closes the whole connection when it receives a GOAWAY, and the AWS SDK for JavaScript sends one as soon as it has
established a subscription.

Invariants:

- All bytes except whole GOAWAY frames are passed on unchanged and in order, however the input is split.
- At most the nine bytes of a frame header are held back. A malformed GOAWAY is passed on, so that ``h2`` refuses it.
"""

from typing import Final, final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_HEAD: Final = 9
_GOAWAY: Final = 0x7
_GOAWAY_SIZES: Final = range(8, 16_385)


@final
class GoawayFilter:
    """Filters the bytes of one connection, starting with its preface."""

    def __init__(self) -> None:
        self.saw_goaway = False
        self._held: bytes = b""  # the first bytes of an incomplete frame header
        self._to_pass = len(PREFACE)
        self._to_drop = 0

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to pass to ``h2``."""
        if self._to_pass >= len(data) and not self._held:  # all of the data belongs to the payload of one frame
            self._to_pass -= len(data)
            return data
        data = self._held + data
        self._held = b""
        kept: list[bytes] = []
        at = 0
        while at < len(data):
            if self._to_drop:
                size = min(self._to_drop, len(data) - at)
                self._to_drop -= size
            elif self._to_pass:
                size = min(self._to_pass, len(data) - at)
                self._to_pass -= size
                kept.append(data[at : at + size])
            else:
                size = 0
                head = data[at : at + _HEAD]
                if len(head) < _HEAD:
                    self._held = head
                    break
                self._begin(head)
            at += size
        return b"".join(kept)

    def _begin(self, head: bytes) -> None:
        """Decide whether a frame is passed on or dropped.

        The first three bytes of the frame's header are the length of the payload, and the fourth byte is the type.
        """
        length = int.from_bytes(head[:3], "big")
        if head[3] == _GOAWAY and length in _GOAWAY_SIZES and head[5:] == bytes(4):
            self._to_drop = _HEAD + length
            self.saw_goaway = True
        else:
            self._to_pass = _HEAD + length
