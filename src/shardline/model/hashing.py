"""Computes hash keys, and describes ranges of them.

Invariants:

- A partition key's hash key is the MD5 of its UTF-8 bytes, read as a big-endian integer.
- An explicit hash key is a canonical decimal, 0 to 2^128 - 1: no sign, space, leading zero or underscore.
- A ``HashRange`` is closed at both ends, and never empty.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

from shardline._speedups import twin
from shardline.errors import UsageError
from shardline.model.limits import EXPLICIT_HASH_KEY_MAX_DIGITS, PARTITION_KEY_MAX_LENGTH, PARTITION_KEY_MIN_LENGTH

if TYPE_CHECKING:
    from hashlib import md5
else:
    try:
        # OpenSSL's MD5 spends most of its time on set-up. CPython's own MD5 takes 0.2 us per key instead of 0.45 us.
        from _md5 import md5
    except ImportError:  # this build of Python has no _md5
        import functools
        import hashlib

        md5 = functools.partial(hashlib.md5, usedforsecurity=False)

md5_of_key: Final = md5  # for hot loops, where even a call to ``hash_digest_of`` would cost too much
HASH_KEY_COUNT: Final = 1 << 128
HASH_KEY_MAX: Final = HASH_KEY_COUNT - 1

KNOWN_KEYS_MAX: Final = 20_000

_DIGITS: Final = frozenset("0123456789")


def check_partition_key(key: object) -> str:
    """Return ``key`` as a plain ``str`` if it is a valid partition key. A subclass of ``str`` is converted.

    Raises:
        UsageError: the key is not a string, is empty or longer than 256 characters, or cannot be encoded as UTF-8.
    """
    if not isinstance(key, str):
        raise UsageError(f"a partition key must be a str, not {type(key).__name__}")
    key = str.__str__(key)
    if not PARTITION_KEY_MIN_LENGTH <= len(key) <= PARTITION_KEY_MAX_LENGTH:
        raise UsageError(f"a partition key must have 1 to 256 characters, this one has {len(key)}")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise UsageError("a partition key must be valid Unicode: this one contains a lone surrogate") from None
    return key


def hash_digest_of(key: str) -> bytes:
    """Return the hash key of a partition key as 16 big-endian bytes, which sort in the same order as the numbers."""
    return md5(key.encode()).digest()


def hash_key_of(key: str) -> int:
    """Return the hash key of a partition key."""
    return int.from_bytes(hash_digest_of(key), "big")


@twin
def keys_in_range(keys: list[str], start: bytes, end: bytes, known: dict[str, bool]) -> list[bool]:
    """Return, for each partition key, whether its hash key is in the range. ``start`` and ``end`` are 16 bytes each.

    ``known`` caches the results for this range, because an MD5 takes ten times as long as a lookup, and keys recur. The
    compiled form leaves ``known`` empty, because it computes sixteen MD5s in the time that one takes.
    """
    # A stream may have unlimited different keys. Emptying the cache is cheaper than tracking which keys are used most.
    if len(known) > KNOWN_KEYS_MAX:
        known.clear()
    for key in set(keys).difference(known):
        known[key] = start <= hash_digest_of(key) <= end
    return list(map(known.__getitem__, keys))


def parse_explicit_hash_key(text: object) -> int:
    """Return an explicit hash key as a number.

    Raises:
        UsageError: the text is not the canonical decimal of a number from 0 to 2^128 - 1.
    """
    if not isinstance(text, str):
        raise UsageError(f"an explicit hash key must be a str of decimal digits, not {type(text).__name__}")
    text = str.__str__(text)
    canonical = (
        0 < len(text) <= EXPLICIT_HASH_KEY_MAX_DIGITS
        and _DIGITS.issuperset(text)
        and (text[0] != "0" or len(text) == 1)
    )
    value = int(text) if canonical else HASH_KEY_COUNT
    if value > HASH_KEY_MAX:
        shown = text if len(text) <= EXPLICIT_HASH_KEY_MAX_DIGITS + 1 else f"{text[:40]}..."
        raise UsageError(f"an explicit hash key must be a plain decimal from 0 to 2**128 - 1, not {shown!r}")
    return value


@final
@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """A closed, non-empty range of hash keys."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= HASH_KEY_MAX:
            raise UsageError(f"a hash range needs 0 <= start <= end < 2**128, not {self.start}..{self.end}")

    @classmethod
    def parse(cls, start: str, end: str) -> Self:
        """Return the range between the two decimal numbers that the service sends."""
        return cls(parse_explicit_hash_key(start), parse_explicit_hash_key(end))

    def __contains__(self, hash_key: int) -> bool:
        return self.start <= hash_key <= self.end

    def overlaps(self, other: "HashRange") -> bool:
        return self.start <= other.end and other.start <= self.end

    @property
    def digests(self) -> tuple[bytes, bytes]:
        """The start and the end as 16 big-endian bytes each, which sort in the same order as the numbers."""
        return self.start.to_bytes(16, "big"), self.end.to_bytes(16, "big")

    @property
    def size(self) -> int:
        return self.end - self.start + 1

    @property
    def share(self) -> float:
        """The fraction of all hash keys that lie in this range, from 0 to 1."""
        return self.size / HASH_KEY_COUNT

    @property
    def middle(self) -> int:
        """The first hash key of the upper half, at which the range can be split evenly.

        Raises:
            UsageError: the range contains a single hash key.
        """
        if self.start == self.end:
            raise UsageError("a hash range of a single key cannot be split")
        return self.start + self.size // 2


WHOLE_RING: Final = HashRange(0, HASH_KEY_MAX)
