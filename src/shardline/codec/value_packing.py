"""Packs several values into one record, in a format that other readers know.

There are four formats. JSON lines, JSON lists and netstrings are the formats that async-kinesis uses.

===================  ===============================================================  ===================
name                 bytes                                                            values
===================  ===============================================================  ===================
``json-lines``       each value, followed by a newline                                JSON on one line
``json-list``        ``[``, the values with commas between them, ``]``                JSON
``netstrings``       for each value: its decimal length, a colon, its bytes, a comma  bytes
``length-prefixed``  for each value: its length (four bytes, big-endian), its bytes   bytes
===================  ===============================================================  ===================

Invariants:

- The size of a pack is known before it is encoded: ``base_bytes``, and ``value_bytes(length)`` for each value. A value
  never changes the size of another.
- A reader gets back exactly the values that were packed, in their order.
- No pack starts with the magic bytes of an aggregate, so no reader opens it as one (P12). JSON and netstrings start
  with an ASCII character. As a length prefix, the magic bytes would mean 4,085,881,538 bytes, and the largest record
  of Kinesis is 10 MiB.
- Splitting takes time linear in the size of the data, whatever lengths the data claims.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, final

import msgspec

from shardline.errors import UsageError

PackingName: TypeAlias = Literal["json-lines", "json-list", "netstrings", "length-prefixed"]

_PREFIX_BYTES: Final = 4
_DIGITS_MAX: Final = 11  # digits in the length of a netstring; no record needs this many
_json_syntax: Final = msgspec.json.Decoder(msgspec.Raw)  # checks the syntax without building values


@final
class Packing(NamedTuple):
    """One format: how values are sized, packed and checked."""

    name: PackingName
    base_bytes: int
    """The size in bytes of a pack without its values."""
    value_bytes: Callable[[int], int]
    """Returns the number of bytes that a value of this length adds to a pack."""
    encode: Callable[[Sequence[bytes]], bytes]
    """Returns the pack of these values. There must be at least one value."""
    check: Callable[[bytes], None] | None
    """Raises a ``UsageError`` if a value is invalid for the format. ``None`` means that all bytes are valid."""


def _separated_bytes(length: int) -> int:
    return length + 1  # one more byte, for the newline or the comma


def _netstring_bytes(length: int) -> int:
    return length + len(str(length)) + 2


def _prefixed_bytes(length: int) -> int:
    return length + _PREFIX_BYTES


def _encode_lines(values: Sequence[bytes]) -> bytes:
    return b"\n".join([*values, b""])


def _encode_list(values: Sequence[bytes]) -> bytes:
    return b"[%b]" % b",".join(values)


def _encode_netstrings(values: Sequence[bytes]) -> bytes:
    return b"".join([b"%d:%b," % (len(value), value) for value in values])


def _encode_length_prefixed(values: Sequence[bytes]) -> bytes:
    return b"".join([len(value).to_bytes(_PREFIX_BYTES, "big") + value for value in values])


def check_json(data: bytes) -> None:
    """Check that a value is one JSON text, in UTF-8.

    Raises:
        UsageError: the value is not one JSON text in UTF-8.
    """
    try:
        _json_syntax.decode(data)
        if not data.isascii():
            data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the data must be one JSON text in UTF-8: {error}") from None
    except RecursionError:
        raise UsageError("the data must be one JSON text in UTF-8: this one is nested too deeply") from None


def check_json_line(data: bytes) -> None:
    """Check that a value is one JSON text, in UTF-8, without a newline.

    Raises:
        UsageError: the value is not one JSON text in UTF-8, or contains a newline.
    """
    check_json(data)
    if b"\n" in data:
        raise UsageError("a value of JSON lines must not contain a newline: serialize it without indentation")


PACKINGS: Final[dict[str, Packing]] = {
    packing.name: packing
    for packing in (
        Packing("json-lines", 0, _separated_bytes, _encode_lines, check_json_line),
        Packing("json-list", 1, _separated_bytes, _encode_list, check_json),
        Packing("netstrings", 0, _netstring_bytes, _encode_netstrings, None),
        Packing("length-prefixed", 0, _prefixed_bytes, _encode_length_prefixed, None),
    )
}


def packing_named(name: PackingName | None) -> Packing | None:
    """Return the format with this name, or ``None`` for the name ``None``, which stands for the KPL's aggregates."""
    return None if name is None else PACKINGS[name]


def split_netstrings(data: bytes) -> list[bytes]:
    """Return the values of a record that holds netstrings.

    Raises:
        ValueError: the data is not a sequence of netstrings. The message names the position.
    """
    values: list[bytes] = []
    at = 0
    while at < len(data):
        colon = data.find(b":", at, at + _DIGITS_MAX + 1)
        digits = data[at:colon] if colon > at else b""
        if not digits.isdigit():
            raise ValueError(f"invalid netstring at byte {at}: expected a length and a colon")
        end = colon + 1 + int(digits)
        if data[end : end + 1] != b",":
            raise ValueError(f"invalid netstring at byte {at}: no comma after its {int(digits)} bytes")
        values.append(data[colon + 1 : end])
        at = end + 1
    return values


def split_length_prefixed(data: bytes) -> list[bytes]:
    """Return the values of a record that holds length-prefixed values.

    Raises:
        ValueError: a prefix is cut off, or a value is shorter than its prefix says. The message names the position.
    """
    values: list[bytes] = []
    at = 0
    while at < len(data):
        start = at + _PREFIX_BYTES
        if start > len(data):
            raise ValueError(f"invalid length prefix at byte {at}: {len(data) - at} of its {_PREFIX_BYTES} bytes")
        length = int.from_bytes(data[at:start], "big")
        if start + length > len(data):
            raise ValueError(f"invalid value at byte {at}: {length} bytes announced, {len(data) - start} found")
        values.append(data[start : start + length])
        at = start + length
    return values
