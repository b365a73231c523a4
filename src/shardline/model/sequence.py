"""Sequence numbers, which give the order of the records in a shard.

Invariants:

- Sequence numbers compare as numbers, never as text ("9" is before "10").
- Records of one aggregate share its sequence number and are ordered by sub-sequence, from 0.
- A plain record has sub-sequence 0.
- The sub-sequence ``BEFORE_FIRST`` is before all records of an aggregate, and before a plain record. A checkpoint at
  this position means that all records before the sequence number are done, but no record with this number is done.
- The high bits of AWS's numbers are the second in which the shard was created (observed since 2014, but not
  documented). If a stream was deleted and re-created at least a second later, this distinguishes two shards with the
  same id.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Self, final

from shardline.errors import UsageError
from shardline.model.limits import SEQUENCE_NUMBER_MAX_DIGITS

BEFORE_FIRST: Final = -1
_LIFE_SHIFT: Final = 148  # the higher bits contain the digit 2 and the second in which the shard was created
_LIFE_LEAD: Final = 2 << 36
_LIFE_DIGITS: Final = 56
_DIGITS: Final = frozenset("0123456789")


@final
@dataclass(frozen=True, slots=True, order=True)
class SequenceNumber:
    """The position of a record in its shard: the service's number, then the index inside the aggregate."""

    number: int
    sub_sequence: int = 0

    def __post_init__(self) -> None:
        if self.number < 0 or self.sub_sequence < BEFORE_FIRST:
            raise UsageError(f"sequence numbers are not negative: {self.number}, sub-sequence {self.sub_sequence}")

    @classmethod
    def parse(cls, text: str, sub_sequence: int = 0) -> Self:
        """Parse the decimal number that the service sends.

        Raises:
            UsageError: the text is not 1 to 129 decimal digits.
        """
        if not isinstance(text, str):
            raise UsageError(f"a sequence number is a str of decimal digits, not {type(text).__name__}")
        if not 0 < len(text) <= SEQUENCE_NUMBER_MAX_DIGITS or not _DIGITS.issuperset(text):
            raise UsageError(f"a sequence number is 1 to 129 decimal digits, not {text[:140]!r}")
        return cls(int(text), sub_sequence)

    def __str__(self) -> str:
        """Return the service's sequence number, without the sub-sequence."""
        return str(self.number)


@final
class NumberRange(NamedTuple):
    """The sequence numbers that a shard can assign, as text: at least ``first``, and less than ``limit``."""

    first: str
    limit: str


ANY_NUMBER: Final = NumberRange("", ":")  # in ASCII, ":" follows the digits


def numbers_of_shard(starting_number: str) -> NumberRange:
    """Return the range of a shard's sequence numbers, given the first of them. If this number does not have AWS's
    layout, return ``ANY_NUMBER``.

    All numbers of AWS's layout have the same length, so their order as text is their order as numbers.
    """
    if len(starting_number) != _LIFE_DIGITS or not _DIGITS.issuperset(starting_number):
        return ANY_NUMBER
    life = int(starting_number) >> _LIFE_SHIFT
    if not _LIFE_LEAD <= life < _LIFE_LEAD + (1 << 36):
        return ANY_NUMBER
    return NumberRange(str(life << _LIFE_SHIFT), str(life + 1 << _LIFE_SHIFT))
