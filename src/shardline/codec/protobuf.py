"""Encodes and decodes the part of the protobuf wire format that the aggregate format needs.

The aggregate format needs only varints, length-delimited fields, and skipping unknown fields, so a
dependency is not worthwhile.

Invariants:

- A varint is written in as few bytes as possible. A varint that is read has at most 10 bytes and 64 bits, and may be
  padded.
- Unknown fields of wire type 0, 1, 2 or 5 are skipped in constant memory. Groups (types 3 and 4) are refused: they were
  deprecated before the KPL existed, no writer of aggregates uses them, and skipping them would need a stack.
- A function that reads either advances or raises ``WireError`` or ``IndexError``. A declared length only moves the
  position, and allocates nothing. The caller compares the final position with the end, once.
"""

from typing import Final, final

WIRE_VARINT: Final = 0
WIRE_FIXED64: Final = 1
WIRE_LENGTH: Final = 2
WIRE_FIXED32: Final = 5

ONE_BYTE_MAX: Final = 0x7F  # the largest number whose varint is one byte
_VARINT_MAX_BYTES: Final = 10
_UINT64_COUNT: Final = 1 << 64
_TAG_COUNT: Final = 1 << 32


@final
class WireError(ValueError):
    """The bytes are not a valid message. The codec catches this exception and treats the data as a plain record."""


def encode_varint(value: int) -> bytes:
    """Return a number (0 or more) as a varint: groups of seven bits, the lowest first."""
    encoded = bytearray()
    while value > ONE_BYTE_MAX:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint_size(value: int) -> int:
    """Return the length of ``encode_varint(value)``."""
    return (value.bit_length() + 6) // 7 or 1


def read_varint(buffer: bytes, at: int) -> tuple[int, int]:
    """Return the varint that starts at ``at`` and the position after it.

    Raises:
        WireError: the varint has more than 10 bytes or more than 64 bits.
        IndexError: the buffer ends inside the varint.
    """
    first = buffer[at]
    if first <= ONE_BYTE_MAX:
        return first, at + 1
    second = buffer[at + 1]
    if second <= ONE_BYTE_MAX:  # most lengths are below 16,384, and this is three times as fast as the loop
        return first + (second - 1 << 7), at + 2
    value = 0
    for place in range(_VARINT_MAX_BYTES):
        byte = buffer[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte <= ONE_BYTE_MAX:
            if value >= _UINT64_COUNT:
                raise WireError("a varint of more than 64 bits")
            return value, at + place + 1
    raise WireError("a varint of more than 10 bytes")


def skip_unknown(buffer: bytes, at: int, known: int) -> int:
    """Skip the field whose tag starts at ``at``. Return the position of the next field, which may be past the end.

    A field with a number from 1 to ``known`` is refused: the caller would have recognised it by its tag byte, so the
    wire type is wrong or the tag is padded.

    Raises:
        WireError: the field is known, or the tag is invalid, or the field is a group.
        IndexError: the buffer ends inside the tag or a varint.
    """
    tag, at = read_varint(buffer, at)
    if tag >> 3 <= known or tag >= _TAG_COUNT:
        raise WireError("a bad tag")
    wire_type = tag & 7
    if wire_type == WIRE_VARINT:
        return read_varint(buffer, at)[1]
    if wire_type == WIRE_LENGTH:
        size, at = read_varint(buffer, at)
        return at + size
    if wire_type == WIRE_FIXED64:
        return at + 8
    if wire_type == WIRE_FIXED32:
        return at + 4
    raise WireError("a group, or no wire type at all")
