"""In which order do the records of a shard stand?

Invariants:

- Sequence numbers compare as numbers, never as text ("9" is before "10").
- Records of one aggregate share its sequence number and follow each other by sub-sequence, from 0.
- A plain record has sub-sequence 0.
- AWS's numbers begin with the second in which their shard was created (seen since 2014, not documented). Two shards
  of the same id, of a stream that was deleted and re-created, can be told apart by that, if a second lies between them.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Self, final

from shardline.errors import UsageError
from shardline.model.limits import SEQUENCE_NUMBER_MAX_DIGITS

_LIFE_SHIFT: Final = 148  # what is left of a number: the digit 2, and the second in which the shard was created
_LIFE_LEAD: Final = 2 << 36
_LIFE_DIGITS: Final = 56
_DIGITS: Final = frozenset("0123456789")


@final
@dataclass(frozen=True, slots=True, order=True)
class SequenceNumber:
    """A record's place in its shard: the service's number, then the place inside the aggregate."""

    number: int
    sub_sequence: int = 0

    def __post_init__(self) -> None:
        if self.number < 0 or self.sub_sequence < 0:
            raise UsageError(f"sequence numbers are not negative: {self.number}, sub-sequence {self.sub_sequence}")

    @classmethod
    def parse(cls, text: str, sub_sequence: int = 0) -> Self:
        """From the decimal that the service sends.

        Raises:
            UsageError: it is not 1 to 129 decimal digits.
        """
        if not isinstance(text, str):
            raise UsageError(f"a sequence number is a str of decimal digits, not {type(text).__name__}")
        if not 0 < len(text) <= SEQUENCE_NUMBER_MAX_DIGITS or not _DIGITS.issuperset(text):
            raise UsageError(f"a sequence number is 1 to 129 decimal digits, not {text[:140]!r}")
        return cls(int(text), sub_sequence)

    def __str__(self) -> str:
        """The service's number alone, as it goes on the wire."""
        return str(self.number)


@final
class NumberRange(NamedTuple):
    """The numbers that one shard may give out, as the service writes them: from ``first``, before ``limit``."""

    first: str
    limit: str


ANY_NUMBER: Final = NumberRange("", ":")  # ":" follows the digits


def numbers_of_shard(starting_number: str) -> NumberRange:
    """The numbers of the shard that begins with this one; any, if it is not laid out as AWS's are.

    They are as long as each other, so that they compare as text as they do as numbers.
    """
    if len(starting_number) != _LIFE_DIGITS or not _DIGITS.issuperset(starting_number):
        return ANY_NUMBER
    life = int(starting_number) >> _LIFE_SHIFT
    if not _LIFE_LEAD <= life < _LIFE_LEAD + (1 << 36):
        return ANY_NUMBER
    return NumberRange(str(life << _LIFE_SHIFT), str(life + 1 << _LIFE_SHIFT))
