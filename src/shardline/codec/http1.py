"""Encodes HTTP/1.1 requests and decodes responses.

This is the part of RFC 9112 that a client of a single service needs: requests with a body of known length, and
responses whose body has a declared length, comes in chunks, or ends with the connection.

Invariants:

- The result does not depend on how the bytes of a response were split into pieces.
- An invalid response raises ``HttpError``, and nothing else is raised.
- The head is at most 64 KiB long, and at most 64 MiB of a body are buffered. A server cannot make us store more.
- ``keep_alive`` is true only if the connection can carry another request: the length of the response was known and all
  of it has arrived, neither side asked to close, and no bytes followed the response.
"""

import re
from collections.abc import Mapping
from typing import Final, final

HEAD_MAX_BYTES: Final = 64 * 1024
BODY_MAX_BYTES: Final = 64 * 1024 * 1024
_LINE_MAX_BYTES: Final = 4 * 1024
_VERSIONS: Final = {b"HTTP/1.1": True, b"HTTP/1.0": False}
_OK: Final = 200
_BODILESS: Final = frozenset({204, 304})
_STATUS: Final = re.compile(rb"[1-9][0-9]{2}")
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


class HttpError(ValueError):
    """The response is invalid, or a request cannot be encoded."""


class CutShortError(HttpError):
    """The connection ended in the middle of the response."""


def encode_request(
    target: str, host: str, headers: Mapping[str, str], length: int | None, method: str = "POST"
) -> bytes:
    """Return the head of a request.

    Args:
        target: the path and query, or the authority for CONNECT.
        host: the value of the Host header.
        headers: the other headers.
        length: the length of the body, or ``None`` if there is no body.
        method: the HTTP method.

    Raises:
        HttpError: a header contains a line end or a character that HTTP does not allow.
    """
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or "\x00" in text:
        raise HttpError("a header contains a line end")
    try:
        return f"{text}\r\n\r\n".encode("latin-1")
    except UnicodeEncodeError:
        raise HttpError("a header contains a character outside Latin-1, which HTTP cannot carry") from None


@final
class ResponseReader:
    """Decodes one HTTP response."""

    __slots__ = (
        "_after_data", "_buffer", "_chunked", "_left", "_of_connect", "_parts", "_trailing", "_waiting_bytes",
        "complete", "headers", "keep_alive", "status",
    )  # fmt: skip

    def __init__(self, *, of_connect: bool = False) -> None:
        self._of_connect = of_connect  # the response to a CONNECT has no body: the bytes after it belong to the tunnel
        self.status = 0
        """The HTTP status. It is 0 until the whole head has arrived."""
        self.headers: dict[str, str] = {}
        """The headers, by lower-case names. The values of repeated headers are joined by a comma."""
        self.complete = False
        self.keep_alive = False
        self._buffer = b""
        self._parts: list[bytes] = []
        self._waiting_bytes = 0
        self._left: int | None = None  # bytes left of the body or chunk; None: the body ends with the connection
        self._chunked = False
        self._after_data = False
        self._trailing = False

    def feed(self, data: bytes) -> None:
        """Decode bytes of the response that have just arrived.

        Raises:
            HttpError: the response is invalid.
        """
        if self.complete:
            self.keep_alive = self.keep_alive and not data  # the server sent bytes that no request asked for
            return
        if self.status:
            self._feed_body(data)
            return
        buffer = self._buffer + data if self._buffer else data
        while not self.status:
            end = buffer.find(b"\r\n\r\n")
            if end < 0 or end > HEAD_MAX_BYTES:
                if len(buffer) > HEAD_MAX_BYTES:
                    raise HttpError("the head of the answer is too long")
                self._buffer = buffer
                return
            self._read_head(buffer[:end])
            buffer = buffer[end + 4 :]
        self._buffer = b""
        if self._left == 0 and not self._chunked:
            self._finish(buffer)
        elif buffer:
            self._feed_body(buffer)

    def feed_end(self) -> None:
        """Handle the end of the connection.

        Raises:
            CutShortError: the response is not complete.
        """
        if not self.complete:
            if not self.status or self._left is not None or self._chunked:
                raise CutShortError("the answer was cut short")
            self.complete = True
        self.keep_alive = False

    def take(self) -> bytes:
        """Return the part of the body that arrived since the last call."""
        parts = self._parts
        self._parts = []
        self._waiting_bytes = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, rest = first.partition(b" ")
        code = rest[:3]
        if version not in _VERSIONS or not _STATUS.fullmatch(code) or rest[3:4] not in {b"", b" "}:
            raise HttpError(f"the answer begins with {first[:40]!r}, not with HTTP/1.1 and a status")
        status = int(code)
        if 100 <= status < 200:  # noqa: PLR2004 - an interim response: the final one follows
            return
        headers: dict[str, str] = {}
        for line in lines:
            raw_name, colon, value = line.partition(b":")
            if not colon or not raw_name or raw_name != raw_name.strip() or line[:1] in b" \t":
                raise HttpError(f"a header has no valid name: {line[:40]!r}")
            name = raw_name.decode("latin-1").lower()
            text = value.strip(b" \t").decode("latin-1")
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
        self.headers = headers
        self.status = status
        self._read_framing(persistent=_VERSIONS[version])

    def _read_framing(self, *, persistent: bool) -> None:
        connection = {word.strip() for word in self.headers.get("connection", "").lower().split(",")}
        self.keep_alive = "close" not in connection and (persistent or "keep-alive" in connection)
        encoding = self.headers.get("transfer-encoding")
        if self.status in _BODILESS or (self._of_connect and self.status == _OK):
            self._left = 0
        elif encoding is not None:
            if encoding.strip().lower() != "chunked":
                raise HttpError(f"unknown transfer encoding {encoding[:40]!r}")
            self._chunked = True
            self._left = 0
        elif "content-length" in self.headers:
            self._left = parse_length(self.headers["content-length"])
        else:
            self.keep_alive = False

    def _feed_body(self, data: bytes) -> None:
        if self._chunked:
            self._feed_chunks(data)
        elif self._left is None:
            self._keep(data)
        elif len(data) < self._left:
            self._left -= len(data)
            self._keep(data)
        else:
            self._keep(data[: self._left] if len(data) > self._left else data)
            self._finish(data[self._left :])

    def _feed_chunks(self, data: bytes) -> None:
        """Decode the chunks of a body.

        A chunk consists of a line with its size, the data, and a line end. The last chunk has the size 0; trailers and
        an empty line follow it.
        """
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while not self.complete and at < len(buffer):
            if self._left:
                piece = buffer[at : at + self._left]
                self._keep(piece)
                at += len(piece)
                self._left -= len(piece)
                self._after_data = self._left == 0
                continue
            end = buffer.find(b"\r\n", at)
            if end < 0:
                if len(buffer) - at > _LINE_MAX_BYTES:
                    raise HttpError("a line between chunks is too long")
                break
            self._read_chunk_line(buffer[at:end])
            at = end + 2
        rest = buffer[at:]
        if self.complete:
            self._finish(rest)
        else:
            self._buffer = rest

    def _read_chunk_line(self, line: bytes) -> None:
        if self._after_data:
            if line:
                raise HttpError("a chunk is longer than its declared size")
            self._after_data = False
        elif self._trailing:
            self.complete = not line
        else:
            size = line.partition(b";")[0].strip()
            if not size or len(size) > 16 or not _HEX.issuperset(size):  # noqa: PLR2004 - 64 bits
                raise HttpError(f"invalid chunk size {line[:40]!r}")
            self._left = int(size, 16)
            self._trailing = self._left == 0

    def _keep(self, piece: bytes) -> None:
        self._waiting_bytes += len(piece)
        if self._waiting_bytes > BODY_MAX_BYTES:
            raise HttpError("the body of the answer is too long")
        self._parts.append(piece)

    def _finish(self, after: bytes) -> None:
        self.complete = True
        self._buffer = b""
        if after:
            self.keep_alive = False


def parse_length(text: str) -> int:
    """Parse a Content-Length. The value may be repeated if all repetitions are equal."""
    values = {value.strip() for value in text.split(",")}
    value = values.pop()
    if values or not value.isascii() or not value.isdigit() or len(value) > 18:  # noqa: PLR2004 - fits 64 bits
        raise HttpError(f"invalid content length {text[:40]!r}")
    length = int(value)
    if length > BODY_MAX_BYTES:
        raise HttpError("the body of the answer is too long")
    return length
