"""How does the service number records?

The layout of the numbers that AWS gives out today, as far as it is known: 47 hexadecimal digits, 56 decimal ones.

    2 | second the shard began (9) | number in the shard (17) | 00 | second of arrival (9) | shard (8) | 2

Invariants:

- SN1: within a shard they grow, by 2^80 and more; those of a child are all greater than those of its parents.
- SN2: a number tells its shard: one from another shard is recognised.
"""

from typing import Final, NamedTuple, final

_LEAD: Final = 2 << 184
_VERSION: Final = 2
STEP: Final = 1 << 80
LAST: Final = 0x7FFFFFFFFFFFFFFF
"""The number in the shard that closes it."""


def make(shard_index: int, began: int, number: int, second: int) -> int:
    """The sequence number; ``number`` counts the records of the shard from 1, 0 is its start."""
    return _LEAD | began << 148 | number << 80 | second << 36 | shard_index << 4 | _VERSION


@final
class Parts(NamedTuple):
    shard_index: int
    began: int
    number: int
    second: int


def parse(text: str) -> Parts | None:
    """What a sequence number says, ``None`` if it is none of ours."""
    if not text.isascii() or not text.isdigit() or not 0 < len(text) <= 129:  # noqa: PLR2004 - [MODEL] SequenceNumber
        return None
    value = int(text)
    parts = Parts(
        value >> 4 & 0xFFFFFFFF, value >> 148 & 0xFFFFFFFFF, value >> 80 & (1 << 68) - 1, value >> 36 & 0xFFFFFFFFF
    )
    return parts if make(*parts) == value else None
