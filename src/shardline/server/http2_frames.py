"""Takes the client's GOAWAY out of the bytes of an HTTP/2 connection.

GOAWAY says that its sender will open no more streams; those that are open go on (RFC 9113, 6.8). The library ``h2``
closes the whole connection on it. The AWS SDK for JavaScript sends it as soon as a subscription is established.

Invariants:

- Bytes are passed on unchanged and in order, however they are cut, but for whole GOAWAY frames.
- At most the nine bytes of a frame's head are held back. A malformed GOAWAY is passed on: ``h2`` refuses it.
"""

from typing import Final, final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_HEAD: Final = 9
_GOAWAY: Final = 0x7
_GOAWAY_SIZES: Final = range(8, 16_385)


@final
class GoawayFilter:
    """The bytes of one connection, from its preface on."""

    def __init__(self) -> None:
        self.saw_goaway = False
        self._held: bytes = b""  # of a frame's head, which is not complete
        self._to_pass = len(PREFACE)
        self._to_drop = 0

    def feed(self, data: bytes) -> bytes:
        """What of it is for ``h2``."""
        if self._to_pass >= len(data) and not self._held:  # inside of a payload
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
        """A frame begins: the length of its payload is in the first three bytes, its type is the fourth."""
        length = int.from_bytes(head[:3], "big")
        if head[3] == _GOAWAY and length in _GOAWAY_SIZES and head[5:] == bytes(4):
            self._to_drop = _HEAD + length
            self.saw_goaway = True
        else:
            self._to_pass = _HEAD + length
