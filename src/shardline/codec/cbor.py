"""Encodes and decodes values in AWS's CBOR (``application/x-amz-cbor-1.1``).

This is the subset of RFC 8949 that the AWS SDK for Java uses for Kinesis, with one quirk: a timestamp is tag 1 with
*milliseconds* since 1970, although the RFC says seconds.

Invariants:

- ``decode`` returns the values that ``encode`` accepted: byte strings as ``bytes``, sequences as lists, mappings as
  dicts.
- An aware datetime is written as tag 1 and whole milliseconds, rounded down. Tag 1 is read as float seconds since 1970.
  Any other tag is dropped and its content kept, except that big numbers (tags 2 and 3) become ints.
- Definite and indefinite lengths, and floats of all three widths, are accepted. Of two equal keys, the last one counts.
- For any bytes, ``decode`` returns a value or raises ``CborError``, and nothing else. It raises for truncated or
  trailing input, reserved heads, unassigned simple values, keys that are not text, broken UTF-8, and more than
  ``MAX_DEPTH`` levels.
- Time and memory are linear in the input: a declared length that exceeds the rest of the input is refused immediately.
- ``encode`` raises ``CborError`` for values that it cannot represent. The message names the type and never the value.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from struct import Struct
from struct import error as StructError  # noqa: N812 - the class that struct calls "error"
from typing import Final, TypeAlias, cast, final

CborValue: TypeAlias = "bool | int | float | str | bytes | list[CborValue] | dict[str, CborValue] | None"
"""The values that ``decode`` returns."""
_Input: TypeAlias = "CborValue | bytearray | memoryview | datetime | Sequence[_Input] | Mapping[object, _Input]"

MAX_DEPTH: Final = 64
"""The deepest nesting of arrays, maps and tags. Kinesis needs five levels."""

UNSIGNED: Final = 0
NEGATIVE: Final = 1
BYTES: Final = 2
TEXT: Final = 3
ARRAY: Final = 4
MAP: Final = 5
TAG: Final = 6

_INT_LIMIT: Final = 1 << 64
_ONE_BYTE: Final = 24  # additional information below 24 is the argument itself; 24 or more gives its width
_EIGHT_BYTES: Final = 27
_INDEFINITE: Final = 31
_BREAK: Final = 0xFF
_EPOCH_TAG: Final = 1
_BIG_TAGS: Final = (2, 3)

_SIMPLE: Final = {0xF4: False, 0xF5: True, 0xF6: None, 0xF7: None}  # 0xF7 is JavaScript's undefined
_FLOATS: Final = {0xF9: Struct(">e"), 0xFA: Struct(">f"), 0xFB: Struct(">d")}

# The heads that ``_map`` reads without a call:
_SHORT_TEXT: Final = 0x60  # text of up to 23 bytes
_BEFORE_TEXT: Final = 0x5F  # the head of such a text, minus this, is the length of the head and the text
_TEXT_8: Final = 0x78  # text of up to 255 bytes
_BYTES_8: Final = 0x58  # byte string of up to 255 bytes
_EPOCH: Final = 0xC1  # the tag of a timestamp
_UNSIGNED_64: Final = 0x1B  # an integer of eight bytes

_HEAD_16: Final = Struct(">BH")
_HEAD_32: Final = Struct(">BI")
_HEAD_64: Final = Struct(">BQ")
_DOUBLE: Final = Struct(">Bd")

_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@final
class CborError(ValueError):
    """The bytes are not AWS's CBOR, or a value cannot be represented in it."""


# ---- values to bytes


def encode(value: object) -> bytes:
    """Return the encoded bytes of a value.

    Args:
        value: None, bool, int (-2**64 to 2**64 - 1), float, str, bytes-like, list, tuple, a mapping with str keys, or
            an aware datetime.

    Raises:
        CborError: the value has another type, an int is out of range, the nesting is too deep, or a text contains a
            lone surrogate.
    """
    parts: list[bytes] = []
    _append(parts, cast("_Input", value), MAX_DEPTH, {})
    return b"".join(parts)


def head(major: int, length: int) -> bytes:
    """Return the head of a CBOR item, in its shortest form.

    Args:
        major: the major type (``BYTES``, ``MAP``, ...).
        length: the argument: a length, a value or a tag number.

    Raises:
        CborError: the major type is not 0 to 6, or the length is not 0 to 2**64 - 1.
    """
    if not (UNSIGNED <= major <= TAG and 0 <= length < _INT_LIMIT):
        raise CborError(f"no CBOR head has major type {major} and an argument of {length.bit_length()} bits")
    first = major << 5
    if length < _ONE_BYTE:
        return bytes((first | length,))
    if length < 1 << 8:
        return bytes((first | 24, length))
    if length < 1 << 16:
        return _HEAD_16.pack(first | 25, length)
    if length < 1 << 32:
        return _HEAD_32.pack(first | 26, length)
    return _HEAD_64.pack(first | 27, length)


def _append(parts: list[bytes], value: _Input, levels: int, keys: dict[str, bytes]) -> None:
    """Append the encoded bytes of a value to ``parts``.

    Args:
        parts: the bytes so far.
        value: the value.
        levels: how many levels of nesting are still allowed.
        keys: a cache of the encoded keys, because the same few keys occur many times.
    """
    if isinstance(value, str):
        parts.append(text(value))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        parts.append(head(BYTES, len(raw)))
        parts.append(raw)
    elif isinstance(value, (dict, Mapping)):  # dict first, because a check against the abstract class is slow
        _check_levels(levels)
        parts.append(head(MAP, len(value)))
        for key, item in value.items():
            if not isinstance(key, str):
                raise CborError(f"a CBOR map of AWS has str keys, not {type(key).__name__}")
            known = keys.get(key)
            if known is None:
                known = keys[key] = text(key)
            parts.append(known)
            _append(parts, item, levels - 1, keys)
    elif isinstance(value, (list, tuple)):
        _check_levels(levels)
        parts.append(head(ARRAY, len(value)))
        for item in value:
            _append(parts, item, levels - 1, keys)
    elif isinstance(value, datetime):
        _check_levels(levels)
        parts.append(_timestamp(value))
    else:
        parts.append(_scalar(value))


def text(value: str) -> bytes:
    """Return a text as a CBOR text string, with its head."""
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise CborError("a str with a lone surrogate cannot be written as CBOR text") from None
    return head(TEXT, len(raw)) + raw


def _scalar(value: _Input) -> bytes:
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _DOUBLE.pack(0xFB, value)
    raise CborError(f"AWS's CBOR cannot represent a value of type {type(value).__name__}")


def _timestamp(when: datetime) -> bytes:
    if when.utcoffset() is None:
        raise CborError("a datetime needs a time zone to be written as CBOR: this one has none")
    return head(TAG, _EPOCH_TAG) + _integer((when - _1970) // _MILLISECOND)


def _integer(value: int) -> bytes:
    return head(UNSIGNED, value) if value >= 0 else head(NEGATIVE, -1 - value)


# ---- bytes to values


def decode(data: bytes | bytearray | memoryview) -> CborValue:
    """Return the value of the single item in ``data``.

    Raises:
        CborError: the bytes are not exactly one well-formed item of this subset.
    """
    if not isinstance(data, bytes):
        data = bytes(data)
    try:
        value, end = _item(data, 0, MAX_DEPTH, {})
    except (IndexError, StructError):  # a read past the end: catching it here is cheaper than checking each read
        raise _truncated() from None
    except UnicodeDecodeError:
        raise CborError("a CBOR text is not valid UTF-8") from None
    if end > len(data):
        raise _truncated()
    if end < len(data):
        raise CborError(f"{len(data) - end} bytes follow the CBOR item")
    return value


def _item(data: bytes, at: int, levels: int, keys: dict[bytes, str]) -> tuple[CborValue, int]:
    """Return the value of the item at ``at`` and the position of its end.

    Args:
        data: the input.
        at: where the item starts.
        levels: how many levels of nesting are still allowed.
        keys: the decoded keys so far, so that equal keys share one object.
    """
    first = data[at]
    at += 1
    major = first >> 5
    if major > TAG:
        return _simple(data, at, first)
    length = first & 31
    if length >= _ONE_BYTE:
        if length == _INDEFINITE:
            return _indefinite(data, at, major, levels, keys)
        length, at = _argument(data, at, length)
    if BYTES <= major <= TEXT:
        end = at + length
        if end > len(data):
            raise _truncated()
        raw = data[at:end]
        return (raw if major == BYTES else raw.decode()), end
    if major <= NEGATIVE:
        return (length if major == UNSIGNED else -1 - length), at
    _check_levels(levels)
    if major == TAG:
        return _tagged(data, at, length, levels - 1, keys)
    # Each item has at least one byte, and each entry of a map at least two. A count that needs more bytes than are left
    # is refused at once.
    if length * (major - ARRAY + 1) > len(data) - at:
        raise _truncated()
    if major == ARRAY:
        return _array(data, at, length, levels - 1, keys)
    return _map(data, at, length, levels - 1, keys)


def _argument(data: bytes, at: int, information: int) -> tuple[int, int]:
    """Return the argument of a CBOR head (a length, a value or a tag number), and the position of its end."""
    if information == _ONE_BYTE:
        return data[at], at + 1
    if information > _EIGHT_BYTES:
        raise CborError(f"a CBOR head with the reserved additional information {information}")
    end = at + (1 << (information - _ONE_BYTE))
    if end > len(data):
        raise _truncated()
    return int.from_bytes(data[at:end], "big"), end


def _simple(data: bytes, at: int, first: int) -> tuple[CborValue, int]:
    if first in _SIMPLE:
        return _SIMPLE[first], at
    form = _FLOATS.get(first)
    if form is None:
        raise CborError("a CBOR break without a beginning" if first == _BREAK else "an unassigned CBOR simple value")
    number: float = form.unpack_from(data, at)[0]
    return number, at + form.size


def _array(data: bytes, at: int, left: int, levels: int, keys: dict[bytes, str]) -> tuple[CborValue, int]:
    """Return the array of the next ``left`` items, or of all items up to a break if ``left`` is negative."""
    items: list[CborValue] = []
    while left:
        if left < 0 and data[at] == _BREAK:
            return items, at + 1
        item, at = _item(data, at, levels, keys)
        items.append(item)
        left -= 1
    return items, at


def _map(data: bytes, at: int, left: int, levels: int, keys: dict[bytes, str]) -> tuple[CborValue, int]:
    """Return the map of the next ``left`` entries, or of all entries up to a break if ``left`` is negative.

    Most bytes of every response are read here, so short keys, strings and timestamps are read without a call, which
    would cost more than the work itself. Their lengths need no check: a slice stops at the end of ``data``, and a
    position beyond the end is detected by the next read or by ``decode``.
    """
    entries: dict[str, CborValue] = {}
    while left:
        first = data[at]
        if _SHORT_TEXT <= first < _TEXT_8:
            end = at + first - _BEFORE_TEXT
            raw = data[at + 1 : end]
            key = keys.get(raw)
            if key is None:
                key = keys[raw] = raw.decode()
        elif first == _BREAK and left < 0:
            return entries, at + 1
        else:
            key, end = _key(data, at, levels, keys)
        first = data[end]
        if _SHORT_TEXT <= first < _TEXT_8:
            at = end + first - _BEFORE_TEXT
            entries[key] = data[end + 1 : at].decode()
        elif first == _TEXT_8:
            at = end + 2 + data[end + 1]
            entries[key] = data[end + 2 : at].decode()
        elif first == _BYTES_8:
            at = end + 2 + data[end + 1]
            entries[key] = data[end + 2 : at]
        elif first == _EPOCH and levels and data[end + 1] == _UNSIGNED_64:
            at = end + 10
            entries[key] = int.from_bytes(data[end + 2 : at], "big") / 1000.0
        else:
            entries[key], at = _item(data, end, levels, keys)
        left -= 1
    return entries, at


def _key(data: bytes, at: int, levels: int, keys: dict[bytes, str]) -> tuple[str, int]:
    key, end = _item(data, at, levels, keys)
    if not isinstance(key, str):
        raise CborError(f"a CBOR map of AWS has text keys, not {type(key).__name__}")
    return key, end


def _tagged(data: bytes, at: int, tag: int, levels: int, keys: dict[bytes, str]) -> tuple[CborValue, int]:
    value, end = _item(data, at, levels, keys)
    if tag == _EPOCH_TAG:
        return _seconds(value), end
    if tag in _BIG_TAGS:
        if not isinstance(value, bytes):
            raise CborError(f"a big number in CBOR is a byte string, not {type(value).__name__}")
        number = int.from_bytes(value, "big")
        return (number if tag == _BIG_TAGS[0] else -1 - number), end
    return value, end


def _seconds(milliseconds: CborValue) -> float:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)):
        raise CborError(f"a timestamp in CBOR is a number, not {type(milliseconds).__name__}")
    try:
        seconds = milliseconds / 1000.0
    except OverflowError:  # a timestamp can also be a big number
        raise CborError("a timestamp in CBOR is too large") from None
    if not isfinite(seconds):
        raise CborError("a timestamp in CBOR is not a finite number")
    return seconds


def _indefinite(data: bytes, at: int, major: int, levels: int, keys: dict[bytes, str]) -> tuple[CborValue, int]:
    if ARRAY <= major <= MAP:
        _check_levels(levels)
        return (_array if major == ARRAY else _map)(data, at, -1, levels - 1, keys)
    if major == BYTES:
        chunks, at = _chunks(data, at, major)
        return b"".join(chunks), at
    if major == TEXT:
        chunks, at = _chunks(data, at, major)
        return "".join([chunk.decode() for chunk in chunks]), at  # no character may be split between two chunks
    raise CborError("a CBOR number or tag of indefinite length")


def _chunks(data: bytes, at: int, major: int) -> tuple[list[bytes], int]:
    chunks: list[bytes] = []
    while data[at] != _BREAK:
        first = data[at]
        length = first & 31
        if first >> 5 != major or length == _INDEFINITE:
            raise CborError("a CBOR string of indefinite length with a chunk of another kind")
        at += 1
        if length >= _ONE_BYTE:
            length, at = _argument(data, at, length)
        end = at + length
        if end > len(data):
            raise _truncated()
        chunks.append(data[at:end])
        at = end
    return chunks, at + 1


def _check_levels(levels: int) -> None:
    if not levels:
        raise CborError(f"CBOR nested deeper than {MAX_DEPTH} levels")


def _truncated() -> CborError:
    return CborError("the input ends inside a CBOR item")
