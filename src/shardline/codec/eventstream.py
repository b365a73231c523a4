"""Encodes and decodes the messages of an AWS event stream (``application/vnd.amazon.eventstream``).

SubscribeToShard responds in this format. A frame consists of its total length, the length of its headers, the CRC-32 of
these two, the headers, the payload, and the CRC-32 of all preceding bytes. Lengths are big-endian.

Invariants:

- The messages do not depend on how the bytes were cut into chunks, even if a broken frame follows them.
- A message is returned only if its checksums, lengths and headers are right. Two equal header names, an unknown type, a
  value that extends beyond the headers, broken UTF-8 and a time outside the years 1 to 9999 make a frame invalid.
- A frame whose prelude declares excessive lengths (headers over 128 KiB, payload over 24 MiB) is refused as soon as its
  twelfth byte arrives.
- For any bytes, ``feed`` and ``close`` return or raise ``FrameError``, and nothing else. After the first error every
  call raises, because the start of the next frame is unknown.
- Each byte is copied a fixed number of times, whatever the sizes of chunks and frames.
- ``encode_message`` writes only frames that AWS's decoders accept: names have 1 to 127 bytes, and strings and byte
  strings have up to 32,767 bytes (the AWS C runtime holds lengths in signed integers). Its errors name types, never
  values.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, final
from zlib import crc32

from shardline._speedups import twin
from shardline.codec.byte_chunks import ByteChunks

HeaderValue: TypeAlias = bool | int | str | bytes | datetime
"""A string, a boolean, an integer of any of the four widths, bytes (a UUID is 16 bytes), or a time in UTC."""

HEADERS_MAX_BYTES: Final = 128 * 1024  # the limit of botocore and the AWS C runtime
PAYLOAD_MAX_BYTES: Final = 24 * 1024 * 1024  # the limit of botocore

_PRELUDE: Final = Struct(">III")
_LENGTHS: Final = Struct(">II")
_CRC: Final = Struct(">I")
_LONG: Final = Struct(">q")
_PRELUDE_BYTES: Final = 12
_OVERHEAD_BYTES: Final = 16

_TRUE: Final = 0
_FALSE: Final = 1
_INTEGER: Final = 4
_LONG_INTEGER: Final = 5
_BYTES: Final = 6
_STRING: Final = 7
_TIMESTAMP: Final = 8
# The width of a value by its type: true, false, byte, short, integer, long, bytes and string (-1: the value starts with
# its length), timestamp, uuid.
_WIDTHS: Final = (0, 0, 1, 2, 4, 8, -1, -1, 8, 16)

_NAME_MAX_BYTES: Final = 127
_VALUE_MAX_BYTES: Final = 32_767
_INT32_LIMIT: Final = 1 << 31
_INT64_LIMIT: Final = 1 << 63

_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@final
class FrameError(ValueError):
    """The bytes are not a valid event stream, or a message cannot be encoded."""


class Message(NamedTuple):
    """A message: headers such as ``:event-type``, and the payload that they describe. The payload is a view of the
    frame.
    """

    headers: dict[str, HeaderValue]
    payload: memoryview


# ---- messages to bytes


def encode_message(headers: Mapping[str, HeaderValue], payload: bytes | memoryview) -> bytes:
    """Return the frame of one message.

    An int is written in four bytes if it fits, otherwise in eight. An aware datetime is written as whole milliseconds,
    rounded down.

    Raises:
        FrameError: a name, a value or the whole message is too long, or an event stream has no type for a value.
    """
    return frame_message(encode_headers(headers), payload)


def encode_headers(headers: Mapping[str, HeaderValue]) -> bytes:
    """Return the encoded headers. A sender of many messages with the same headers can encode them once.

    Raises:
        FrameError: a name or a value is too long, or an event stream has no type for a value.
    """
    parts: list[bytes] = []
    for name, value in headers.items():
        raw = _utf8(name)
        if not 1 <= len(raw) <= _NAME_MAX_BYTES:
            raise FrameError(f"a header name has 1 to {_NAME_MAX_BYTES} bytes, not {len(raw)}")
        parts.append(bytes((len(raw),)))
        parts.append(raw)
        parts.append(_encode_value(value))
    return b"".join(parts)


def frame_message(header: bytes, payload: bytes | memoryview) -> bytes:
    """Return the frame of encoded headers and a payload.

    Raises:
        FrameError: the headers or the payload are too long.
    """
    _check_sizes(len(header), len(payload))
    lengths = _LENGTHS.pack(_OVERHEAD_BYTES + len(header) + len(payload), len(header))
    frame = b"".join((lengths, _CRC.pack(crc32(lengths)), header, payload))
    return frame + _CRC.pack(crc32(frame))


def _encode_value(value: HeaderValue) -> bytes:
    if isinstance(value, str):
        return _sized(_STRING, _utf8(value))
    if isinstance(value, bool):
        return bytes((_TRUE if value else _FALSE,))
    if isinstance(value, int):
        if -_INT32_LIMIT <= value < _INT32_LIMIT:
            return bytes((_INTEGER,)) + value.to_bytes(4, "big", signed=True)
        if -_INT64_LIMIT <= value < _INT64_LIMIT:
            return bytes((_LONG_INTEGER,)) + _LONG.pack(value)
        raise FrameError(f"an int in a header has at most 64 bits, not {value.bit_length() + 1}")
    if isinstance(value, bytes):
        return _sized(_BYTES, value)
    if not isinstance(value, datetime):
        raise FrameError(f"a header cannot hold a value of type {type(value).__name__}")
    if value.utcoffset() is None:
        raise FrameError("a datetime in a header needs a time zone: this one has none")
    return bytes((_TIMESTAMP,)) + _LONG.pack((value - _1970) // _MILLISECOND)


def _sized(kind: int, raw: bytes) -> bytes:
    if len(raw) > _VALUE_MAX_BYTES:
        raise FrameError(f"a string or bytes in a header has at most {_VALUE_MAX_BYTES} bytes, not {len(raw)}")
    return bytes((kind,)) + len(raw).to_bytes(2, "big") + raw


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FrameError("a str with a lone surrogate cannot be written in a header") from None


# ---- bytes to messages


@twin
def join_frame(pieces: list[bytes | memoryview], /) -> tuple[bytes, int]:
    """Return the frame that these pieces make, and the CRC-32 of all but its last four bytes."""
    frame = b"".join(pieces)
    return frame, crc32(memoryview(frame)[:-4])


@final
class MessageDecoder:
    """Splits a stream of bytes into messages while the bytes arrive."""

    __slots__ = ("_failure", "_header_block", "_headers", "_headers_bytes", "_needed", "_unread")

    def __init__(self) -> None:
        self._unread = ByteChunks()
        """The beginning of the next frame. It is shorter than ``_needed`` between two calls."""
        self._needed = _PRELUDE_BYTES
        self._headers_bytes = 0  # if ``_needed`` is a whole frame: the length of its headers
        self._failure: str | None = None
        # The headers of the last message, because the headers of the next message are nearly always the same bytes.
        self._header_block = b""
        self._headers: dict[str, HeaderValue] = {}

    @property
    def missing(self) -> int:
        """How many bytes of the next frame have not arrived, as far as its length is known."""
        return self._needed - len(self._unread)

    def feed(self, chunk: bytes | memoryview) -> list[Message]:
        """Return the messages that ``chunk`` completes.

        If a broken frame follows valid ones in the same chunk, the valid ones are returned, and the next call raises.

        Raises:
            FrameError: this frame or an earlier one is broken.
        """
        if self._failure is not None:
            raise FrameError(self._failure)
        if not memoryview(chunk).readonly:
            chunk = bytes(chunk)
        messages: list[Message] = []
        try:
            at = self._complete_frame(chunk, messages) if self._unread else 0
            if at < len(chunk):
                at = self._cut(chunk, at, messages)
        except FrameError as error:
            self._fail(str(error))
            if not messages:
                raise
            return messages
        if at < len(chunk):
            self._unread.append(chunk[at:])
        return messages

    def _complete_frame(self, chunk: bytes | memoryview, messages: list[Message]) -> int:
        """Read the frame whose first part arrived earlier. Return the position of the next frame in ``chunk``.

        Only this frame is joined. Joining it with the rest of the chunk would copy the bytes of the next frame twice.
        """
        at, unread = 0, self._unread
        while at < len(chunk):
            missing = self.missing
            if missing > len(chunk) - at:
                unread.append(chunk[at:] if at else chunk)
                return len(chunk)
            unread.append(chunk[at : at + missing])
            at += missing
            if self._needed == _PRELUDE_BYTES:
                prelude = unread.take()
                self._needed, self._headers_bytes = _read_prelude(prelude, 0)
                unread.append(prelude)
            else:
                messages.append(self._read_message(unread.take_pieces(), self._headers_bytes))
                self._needed = _PRELUDE_BYTES
                break
        return at

    def close(self) -> None:
        """Check that the stream ended properly.

        Raises:
            FrameError: the stream ended inside a frame, or a frame was broken.
        """
        if self._failure is None and self._unread:
            self._fail(f"the event stream ended inside a frame, after {len(self._unread)} bytes of it")
        if self._failure is not None:
            raise FrameError(self._failure)

    def _cut(self, data: bytes | memoryview, at: int, messages: list[Message]) -> int:
        """Append all complete messages from ``at`` on to ``messages``, and set ``_needed``. Return the position of the
        first incomplete frame.
        """
        self._needed = _PRELUDE_BYTES
        view = memoryview(data)
        while len(data) - at >= _PRELUDE_BYTES:
            total, headers_bytes = _read_prelude(data, at)
            if len(data) - at < total:
                self._needed, self._headers_bytes = total, headers_bytes
                break
            messages.append(self._read_message([view[at : at + total]], headers_bytes))
            at += total
        return at

    def _read_message(self, pieces: list[bytes | memoryview], headers_bytes: int) -> Message:
        frame, crc = join_frame(pieces)
        end = len(frame) - 4
        if crc != _CRC.unpack_from(frame, end)[0]:
            raise FrameError("a frame does not match its checksum")
        payload_at = _PRELUDE_BYTES + headers_bytes
        block = frame[_PRELUDE_BYTES:payload_at]
        if block != self._header_block:
            self._headers = _read_headers(block)
            self._header_block = block
        return Message(self._headers.copy(), memoryview(frame)[payload_at:end])

    def _fail(self, why: str) -> None:
        self._failure = why
        self._unread = ByteChunks()


def _read_prelude(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the total length and the length of the headers of the frame at ``at``, after checking both."""
    total: int
    headers_bytes: int
    crc: int
    total, headers_bytes, crc = _PRELUDE.unpack_from(data, at)
    if crc32(data[at : at + 8]) != crc:
        raise FrameError("the prelude of a frame does not match its checksum")
    if total < _OVERHEAD_BYTES + headers_bytes:
        raise FrameError(f"a frame of {total} bytes cannot hold {headers_bytes} bytes of headers")
    _check_sizes(headers_bytes, total - headers_bytes - _OVERHEAD_BYTES)
    return total, headers_bytes


def _check_sizes(headers_bytes: int, payload_bytes: int) -> None:
    if headers_bytes > HEADERS_MAX_BYTES:
        raise FrameError(f"a frame has at most {HEADERS_MAX_BYTES} bytes of headers, not {headers_bytes}")
    if payload_bytes > PAYLOAD_MAX_BYTES:
        raise FrameError(f"a frame has at most {PAYLOAD_MAX_BYTES} bytes of payload, not {payload_bytes}")


def _read_headers(block: bytes) -> dict[str, HeaderValue]:
    headers: dict[str, HeaderValue] = {}
    at = 0
    try:
        while at < len(block):
            name_at = at + 1
            kind_at = name_at + block[at]
            name = block[name_at:kind_at].decode()
            if name in headers:
                raise FrameError("a frame has the same header twice")
            kind = block[kind_at]
            at = kind_at + 1
            if kind >= len(_WIDTHS):
                raise FrameError(f"a header has the unknown type {kind}")
            width = _WIDTHS[kind]
            if width < 0:
                width = block[at] << 8 | block[at + 1]
                at += 2
            if at + width > len(block):
                raise FrameError("a header is longer than the headers of its frame")
            headers[name] = _read_value(kind, block[at : at + width])
            at += width
    except IndexError:
        raise FrameError("a header is longer than the headers of its frame") from None
    except UnicodeDecodeError:
        raise FrameError("a header is not valid UTF-8") from None
    return headers


def _read_value(kind: int, raw: bytes) -> HeaderValue:
    if kind == _STRING:
        return raw.decode()
    if kind <= _FALSE:
        return kind == _TRUE
    if kind <= _LONG_INTEGER:
        return int.from_bytes(raw, "big", signed=True)
    if kind != _TIMESTAMP:
        return raw
    try:
        return _1970 + int.from_bytes(raw, "big", signed=True) * _MILLISECOND
    except OverflowError:
        raise FrameError("a header has a time outside the years 1 to 9999") from None
