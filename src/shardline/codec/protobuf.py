"""Which part of the protobuf wire format does the aggregate format need?

Varints, length-delimited fields, and a way around fields that we do not know: no more, so no dependency either.

Invariants:

- A varint is written in as few bytes as it needs, and read with at most 10 bytes and 64 bits, padded or not.
- An unknown field of wire type 0, 1, 2 or 5 is stepped over in constant memory. Groups (3 and 4) count as broken:
  they were deprecated before the KPL was born, no writer of aggregates has any, and they are the only nesting of a
  format that can otherwise be stepped over without a stack.
- A reader either advances or raises ``WireError`` or ``IndexError``. A declared length only moves the position, it
  allocates nothing; whoever called compares the position with the end, once.
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
    """These bytes are no message: an expected verdict on foreign bytes, never seen outside the codec."""


def encode_varint(value: int) -> bytes:
    """``value`` (0 or more) in groups of seven bits, lowest first."""
    encoded = bytearray()
    while value > ONE_BYTE_MAX:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint_size(value: int) -> int:
    """The length of ``encode_varint(value)``."""
    return (value.bit_length() + 6) // 7 or 1


def read_varint(buffer: bytes, at: int) -> tuple[int, int]:
    """The varint that starts at ``at``, and where the next byte after it is.

    Raises:
        WireError: it is longer than 10 bytes, or does not fit into 64 bits.
        IndexError: the buffer ends inside it.
    """
    first = buffer[at]
    if first <= ONE_BYTE_MAX:
        return first, at + 1
    second = buffer[at + 1]
    if second <= ONE_BYTE_MAX:  # most lengths are below 16,384: three times as fast as the loop
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
    """Step over the field whose tag starts at ``at``: where the next one starts, which may be past the end.

    A field number from 1 to ``known`` is refused. Its reader looked for the one byte that starts it and found another:
    the wire type is wrong, or the tag is padded.

    Raises:
        WireError: a known field, no valid tag, a group.
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
