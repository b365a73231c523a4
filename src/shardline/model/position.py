"""Positions in a shard: where a reader starts, or how far it has come.

Invariants:

- A position has exactly one of six kinds. It has a sequence number or a time only if its kind needs one.
- ``SHARD_END`` is the checkpoint of a finished shard. A reader cannot start at this position.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, final

from shardline.errors import UsageError
from shardline.model.sequence import SequenceNumber


@final
class PositionKind(StrEnum):
    """The kinds of positions, under the service's names (``ShardIteratorType``) and, for the end of a finished shard,
    the KCL's.
    """

    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    AT_SEQUENCE_NUMBER = "AT_SEQUENCE_NUMBER"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"
    SHARD_END = "SHARD_END"


_LATEST_TIME: Final = 253_402_300_799  # 9999-12-31T23:59:59Z: the last second that a datetime can represent
_SEQUENCED: Final = frozenset({PositionKind.AT_SEQUENCE_NUMBER, PositionKind.AFTER_SEQUENCE_NUMBER})


@final
@dataclass(frozen=True, slots=True)
class Position:
    """A position in a shard. Use the constants and the functions below rather than the constructor."""

    kind: PositionKind
    sequence_number: SequenceNumber | None = None
    timestamp: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, PositionKind):
            raise UsageError(f"a position's kind is a PositionKind, not {self.kind!r}")
        if (self.sequence_number is not None) != (self.kind in _SEQUENCED):
            raise UsageError(
                f"a position {self.kind} {'needs a' if self.kind in _SEQUENCED else 'takes no'} sequence number"
            )
        if (self.timestamp is not None) != (self.kind is PositionKind.AT_TIMESTAMP):
            needs = "needs a" if self.kind is PositionKind.AT_TIMESTAMP else "takes no"
            raise UsageError(f"a position {self.kind} {needs} timestamp")

    @property
    def can_start(self) -> bool:
        """Whether a reader can start at this position."""
        return self.kind is not PositionKind.SHARD_END

    def __str__(self) -> str:
        if self.sequence_number is not None:
            return f"{self.kind}({self.sequence_number})"
        return self.kind.value if self.timestamp is None else f"{self.kind}({self.timestamp})"


TRIM_HORIZON: Final = Position(PositionKind.TRIM_HORIZON)
LATEST: Final = Position(PositionKind.LATEST)
SHARD_END: Final = Position(PositionKind.SHARD_END)

_NAMED: Final = {position.kind.value: position for position in (TRIM_HORIZON, LATEST, SHARD_END)}


def at_timestamp(when: datetime | float) -> Position:
    """Return the position of the first record that arrived at or after a time.

    Args:
        when: an aware datetime, or seconds since 1970.

    Raises:
        UsageError: the datetime has no time zone, or the number is out of range.
    """
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise UsageError(f"a start time needs a time zone: {when!r} has none (for example, add tzinfo=UTC)")
        when = when.timestamp()
    if not isinstance(when, (int, float)) or isinstance(when, bool):
        raise UsageError(f"a start time is an aware datetime or seconds since 1970, not {type(when).__name__}")
    try:
        seconds = float(when)
    except OverflowError:
        seconds = math.inf
    if not 0 <= seconds <= _LATEST_TIME:  # also true for NaN
        raise UsageError(f"a start time is 0 to {_LATEST_TIME} seconds since 1970 (the year 9999), not {seconds}")
    return Position(PositionKind.AT_TIMESTAMP, timestamp=seconds)


def at_sequence_number(number: str | SequenceNumber) -> Position:
    """Return the position of the record with this sequence number."""
    return Position(PositionKind.AT_SEQUENCE_NUMBER, _sequence(number))


def after_sequence_number(number: str | SequenceNumber) -> Position:
    """Return the position right after the record with this sequence number."""
    return Position(PositionKind.AFTER_SEQUENCE_NUMBER, _sequence(number))


def parse_position(text: str) -> Position:
    """Return the position with this name: ``TRIM_HORIZON``, ``LATEST`` or ``SHARD_END``.

    Raises:
        UsageError: no position has this name.
    """
    try:
        return _NAMED[text]
    except KeyError:
        raise UsageError(f"a position is one of {', '.join(_NAMED)}, not {text!r}") from None


def as_position(value: object) -> Position:
    """Return the position that a ``Position``, a name or a time represents.

    Raises:
        UsageError: the value has another type or is not a position.
    """
    if isinstance(value, Position):
        return value
    if isinstance(value, str):
        return parse_position(value)
    if isinstance(value, (datetime, int, float)):
        return at_timestamp(value)
    raise UsageError(f"a position is a Position, TRIM_HORIZON, LATEST or a time, not {value!r}")


def _sequence(number: str | SequenceNumber) -> SequenceNumber:
    return number if isinstance(number, SequenceNumber) else SequenceNumber.parse(number)
