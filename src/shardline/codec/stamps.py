"""Stamps records, so that a consumer can recognise a second copy of a record.

A stamp is a producer id and a number, in a tag with the reserved name ``:``. No header can have this name
(``model.headers``), so a stamp is not among the headers of a record, and readers that do not know stamps ignore it::

    long    22 13  0A 01 ':'  12 0E  id (10 characters)  number (4 characters)    21 bytes
    short   22 09  0A 01 ':'  12 04  number (4 characters)                        11 bytes

Both parts are base64 text. A number has 24 bits. An id has 60 random bits, so two producers do not choose the same one.

Invariants:

- The stamp is the first tag of its record.
- The first stamped record of an aggregate has a long stamp. A short stamp contains no id: it has the same id as the
  stamp before it. So if the records of an aggregate were stamped by one lane, as is nearly always the case, the stamps
  of two or more records take at most 16 bytes per record, and 11 bytes in the long run.
- A tag that does not have exactly the form of a stamp is ignored, whichever writer it comes from: the record counts as
  unstamped.
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from typing import Final, NamedTuple, final

ID_CHARACTERS: Final = 10
ID_BITS: Final = 6 * ID_CHARACTERS
NUMBERS: Final = 1 << 24
"""How many different numbers a stamp with a given id can have."""
SHARED_BYTES: Final = ID_CHARACTERS
"""How many bytes shorter a short stamp is than a long stamp."""

_LONG: Final = b"\x22\x13\x0a\x01:\x12\x0e"
_SHORT: Final = b"\x22\x09\x0a\x01:\x12\x04"
_HEAD: Final = len(_LONG)
_ID_END: Final = _HEAD + ID_CHARACTERS
_LONG_END: Final = _ID_END + 4
_SHORT_END: Final = _HEAD + 4
_NUMBER_BYTES: Final = 3

STAMP_BYTES: Final = _LONG_END
"""The size of a long stamp."""
ANY_STAMP: Final = _LONG + b"A" * (ID_CHARACTERS + 4)
"""A stamp for computing the size of a record before it is stamped. All long stamps have the same size."""


@final
class StampRun(NamedTuple):
    """The stamps of adjacent records of an aggregate, with consecutive numbers. Nearly all aggregates have one run."""

    place: int
    """The index, in the aggregate, of the first record of the run."""
    producer: bytes
    """The producer id of the stamps, as base64 text."""
    first: int
    """The number in the stamp of the first record."""
    length: int
    """How many records the run has."""


def id_of_bits(bits: int) -> bytes:
    """Return the producer id that consists of these random bits."""
    return b2a_base64((bits << 4).to_bytes(8, "big"), newline=False)[:ID_CHARACTERS]


def encode_stamp(producer: bytes, number: int) -> bytes:
    """Return the long stamp with this producer id and number."""
    return _LONG + producer + b2a_base64(number.to_bytes(_NUMBER_BYTES, "big"), newline=False)


def stamped_by(tags: bytes) -> bytes:
    """Return the producer id in the long stamp with which ``tags`` begins. The result is empty if there is no stamp."""
    return tags[_HEAD:_ID_END] if tags.startswith(_LONG) else b""


def shorten(tags: bytes) -> bytes:
    """Replace the long stamp at the start of ``tags`` with a short one, and return the result."""
    return _SHORT + tags[_ID_END:]


def split_stamps(tags: Mapping[int, bytes]) -> tuple[list[StampRun], dict[int, bytes]]:
    """Separate the stamps of an aggregate from its other tags. Return both in the order of the records."""
    runs: list[StampRun] = []
    others: dict[int, bytes] = {}
    producer = known = b""
    begin = first = count = 0
    for place, own in tags.items():
        if own.startswith(_SHORT):
            at, end = _HEAD, _SHORT_END
        elif own.startswith(_LONG):
            at, end = _ID_END, _LONG_END
            known = own[_HEAD:_ID_END]
        else:
            others[place] = own
            continue
        if len(own) > end:
            others[place] = own[end:]
        try:
            read = a2b_base64(own[at:end])
        except ValueError:
            continue
        if len(read) != _NUMBER_BYTES or not known:
            continue
        number = int.from_bytes(read, "big")
        if number == first + count and place == begin + count and producer == known:
            count += 1
            continue
        if count:
            runs.append(StampRun(begin, producer, first, count))
        producer, begin, first, count = known, place, number, 1
    if count:
        runs.append(StampRun(begin, producer, first, count))
    return runs, others
