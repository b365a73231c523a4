"""Generates and parses the service's sequence numbers.

The numbers have the layout of AWS's recorded numbers (kinesalite reads and writes it: ``parseSequence`` and
``stringifySequence`` in https://github.com/mhart/kinesalite/blob/master/db/index.js). A number has 47 hexadecimal
digits, or 56 decimal digits:

    2 | second the shard began (9) | shard & 15 | number in the shard (16) | 00 | second of arrival (9) | shard (8) | 2

The last digit is the version. AWS still reads numbers of two older versions, 0 and 1, and so does ``parse``.

Invariants:

- Within a shard, the numbers grow by at least 2^80. All numbers of a child are greater than those of its parents.
- A number contains the index of its shard, so that a number from another shard is recognised.
- A shard keeps the layout of its first number: shards that an earlier version stored keep their numbers.
"""

from typing import Final, NamedTuple, final

_LEAD: Final = 2 << 184
_VERSION: Final = 2
STEP: Final = 1 << 80
LAST: Final = 0x7FFFFFFFFFFFFFFF
"""The part "number in the shard" of an ending sequence number."""
WITHOUT_DIGIT: Final = 1
"""The earlier layout: the digit ``shard & 15`` is 0, and a record's second may lie before the second in which its shard
began."""
LAYOUT: Final = 2
"""The layout of the sequence numbers of new shards."""
_OLD_LEAD: Final = 1 << 124
_FIRST_IMPOSSIBLE_SECOND: Final = 16_025_175_000  # recorded: AWS refuses numbers of shards that began then or later


@final
class Numbering(NamedTuple):
    """How one shard numbers its records."""

    shard_index: int
    began: int
    """The second in which the shard's sequence numbers begin."""
    layout: int = LAYOUT

    @property
    def digit(self) -> int:
        return self.shard_index & 15 if self.layout == LAYOUT else 0

    def make(self, number: int, second: int) -> int:
        """Return a sequence number. ``number`` counts the shard's records from 1; 0 gives the starting number."""
        if self.layout == LAYOUT:
            second = max(second, self.began)
        head = _LEAD | self.began << 148 | self.digit << 144
        return head | number << 80 | second << 36 | self.shard_index << 4 | _VERSION

    def covers(self, parts: "Parts") -> bool:
        """Return whether a number is from this shard, and not from a deleted stream's shard with the same index."""
        return parts[:4] == (_VERSION, self.shard_index, self.began, self.digit)


@final
class Parts(NamedTuple):
    version: int
    shard_index: int
    began: int
    digit: int
    number: int
    second: int


def parse(text: str) -> Parts | None:
    """Return the parts of a sequence number, or ``None`` if the service can never have issued such a number."""
    if not text.isascii() or not text.isdigit() or not 0 < len(text) <= 129:  # noqa: PLR2004 - [MODEL] SequenceNumber
        return None
    value = int(text)
    if value < 2 * _OLD_LEAD:
        return _parse_oldest(value)
    if not _LEAD < value < _LEAD + (1 << 184):
        return None
    version, began, shard_index = value & 15, value >> 148 & 0xFFFFFFFFF, _signed(value >> 4 & 0xFFFFFFFF)
    digit = value >> 144 & 15
    if version == 1:
        # Instead of the number and the second, version 1 has: 00 | second of arrival (9) | random (14) | number (2)
        return Parts(1, shard_index, began, digit, value >> 36 & 0xFF, value >> 100 & 0xFFFFFFFFF)
    number, second = value >> 80 & 0xFFFFFFFFFFFFFFFF, value >> 36 & 0xFFFFFFFFF
    if version != _VERSION or number > LAST or began >= _FIRST_IMPOSSIBLE_SECOND:
        return None
    return Parts(version, shard_index, began, digit, number, second)


def _parse_oldest(value: int) -> Parts | None:
    """Parse a number of version 0: 1 | second the shard began (9) | unknown (18) | shard (4).

    A smaller number, without the leading 1, is read in the same way.
    """
    began = value >> 88 & 0xFFFFFFFFF
    return None if began >= _FIRST_IMPOSSIBLE_SECOND else Parts(0, value & 0xFFFF, began, 0, 0, 0)


def _signed(index: int) -> int:
    """Return the index as a signed 32-bit number, as AWS reads it: AWS names a shard ``shardId--02147483648``."""
    return index - (1 << 32) if index >> 31 else index
