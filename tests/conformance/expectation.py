"""Compares an answer with the expectation in the table, and removes varying values for a recording.

Answers and expectations are trees of dicts, lists and plain values. In place of a value, an expectation may have a
``Shape``: a rule for values that differ from run to run. ``$name`` in an expected text stands for a value of the run:
the name of a stream, the account, or a value of an earlier answer.

Invariants:

- A dict has exactly the expected keys, unless it is a ``Some``; a list has exactly the expected elements.
- A number is never equal to a bool, and 1 is equal to 1.0, because JSON does not distinguish them.
- ``masked`` hides varying values (ids, numbers, times, the account, the names of the run) and keeps everything else, so
  that the same behaviour gives the same recording for every user.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ABSENT = "absent"
_PLACEHOLDER = re.compile(r"\$(\w+)")
_LONG_NUMBER = re.compile(r"\b\d{45,}\b")  # sequence numbers have 56 digits, hash keys at most 39
_SHOWN_MAX = 300


@dataclass(frozen=True)
class Shape:
    """A rule for a value. ``varies``: the value differs from run to run, so that a recording has its name instead."""

    name: str
    accepts: Callable[[Any], bool] = field(repr=False, compare=False)
    varies: bool = True

    def __str__(self) -> str:
        return f"<{self.name}>"


@dataclass(frozen=True)
class Some:
    """A dict that has at least these members."""

    members: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    """Optional members, whatever the service does: a recording does not have them."""


@dataclass(frozen=True)
class Matching:
    """A text that matches a regular expression, in which ``$name`` is replaced by its value."""

    pattern: str
    source: str = field(default="", compare=False)
    """The pattern in the table, if ``$name`` was replaced: a recording must not have the value."""

    def __str__(self) -> str:
        return f"<text like {self.source or self.pattern}>"


@dataclass(frozen=True)
class Mismatch:
    """One field of one answer that differs from the expectation."""

    field: str
    expected: str
    got: str


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_digits(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit()


def text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


TIME = Shape("time", lambda value: _is_number(value) and value > 1_000_000_000)
WHOLE_SECOND = Shape("time in whole seconds", lambda value: TIME.accepts(value) and value == int(value))
SEQUENCE_NUMBER = Shape("sequence number", lambda value: _is_digits(value) and 50 <= len(value) <= 60)
ITERATOR = Shape("iterator", lambda value: text(value) and len(value) <= 512)
TOKEN = Shape("token", text)
COUNT = Shape("count", lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0)
CONSUMER_ARN = Shape(
    "consumer ARN", lambda value: text(value) and re.search(r"/consumer/[\w.-]+:\d{10}$", value) is not None
)
REQUEST_ID = Shape(
    "request id",
    lambda value: text(value) and re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", value) is not None,
)
EXTENDED_ID = Shape(
    "extended request id", lambda value: text(value) and re.fullmatch(r"[A-Za-z0-9+/]{60,}={0,2}", value) is not None
)
A_BOOL = Shape("true or false", lambda value: isinstance(value, bool))
# AWS's value is not known: any value of the type passes, and a recording keeps it.
ANY_TEXT = Shape("any text", text, varies=False)
ANYTHING = Shape("anything", lambda _: True, varies=False)


# The names of members that vary, for answers of which the table has only a part.
VARYING = {
    "StreamCreationTimestamp": TIME,
    "ConsumerCreationTimestamp": TIME,
    "ApproximateArrivalTimestamp": TIME,
    "SequenceNumber": SEQUENCE_NUMBER,
    "StartingSequenceNumber": SEQUENCE_NUMBER,
    "EndingSequenceNumber": SEQUENCE_NUMBER,
    "ContinuationSequenceNumber": SEQUENCE_NUMBER,
    "ShardIterator": ITERATOR,
    "NextShardIterator": ITERATOR,
    "NextToken": TOKEN,
    "ConsumerARN": CONSUMER_ARN,
    "StreamId": TOKEN,
    "MillisBehindLatest": COUNT,
}


def one_of(*values: Any) -> Shape:
    return Shape(" or ".join(map(str, values)), lambda value: value in values)


def filled(expected: Any, names: Mapping[str, Any]) -> Any:
    """Return ``expected`` (or a request's members) with every ``$name`` replaced."""
    if isinstance(expected, str):
        whole = _PLACEHOLDER.fullmatch(expected)
        if whole and whole[1] in names:
            return names[whole[1]]
        return _PLACEHOLDER.sub(lambda found: str(names.get(found[1], found[0])), expected)
    if isinstance(expected, dict):
        return {filled(key, names): filled(value, names) for key, value in expected.items()}
    if isinstance(expected, Some):
        return Some({key: filled(value, names) for key, value in expected.members.items()}, expected.ignored)
    if isinstance(expected, (list, tuple)):
        return [filled(value, names) for value in expected]
    if isinstance(expected, Matching):
        escaped = {name: re.escape(str(value)) for name, value in names.items()}
        pattern = _PLACEHOLDER.sub(lambda found: escaped.get(found[1], found[0]), expected.pattern)
        return Matching(pattern, expected.source or expected.pattern)
    return expected


def unfilled(expected: Any) -> set[str]:
    """Return the names that are still to be replaced in the result of ``filled``."""
    if isinstance(expected, str):
        return set(_PLACEHOLDER.findall(expected))
    if isinstance(expected, dict):
        return set().union(*(unfilled(value) for value in expected.values()))
    if isinstance(expected, list):
        return set().union(*(unfilled(value) for value in expected))
    return set()


def compare(expected: Any, got: Any, where: str = "") -> list[Mismatch]:
    """Return the mismatches between ``got`` and ``expected``, which has no ``$name`` left."""
    if isinstance(expected, (Shape, Matching)):
        return [] if fits(expected, got) else [_mismatch(where, expected, got)]
    if isinstance(expected, (dict, Some)):
        members = expected.members if isinstance(expected, Some) else expected
        if not isinstance(got, dict):
            return [_mismatch(where, members, got)]
        found = []
        for key in [*members, *(() if isinstance(expected, Some) else (key for key in got if key not in members))]:
            inner = f"{where}.{key}" if where else str(key)
            found += _compare_member(members.get(key, ABSENT), got.get(key, ABSENT), inner)
        return found
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return [_mismatch(where, expected, got)]
        return [
            one for at, pair in enumerate(zip(expected, got, strict=True)) for one in compare(*pair, f"{where}[{at}]")
        ]
    same = expected == got and isinstance(expected, bool) == isinstance(got, bool)
    return [] if same else [_mismatch(where, expected, got)]


def _compare_member(expected: Any, got: Any, where: str) -> list[Mismatch]:
    if expected is ABSENT or got is ABSENT:
        return [] if expected is got else [_mismatch(where, expected, got)]
    return compare(expected, got, where)


def fits(rule: Shape | Matching, value: Any) -> bool:
    if isinstance(rule, Shape):
        return value is not ABSENT and rule.accepts(value)
    return isinstance(value, str) and re.fullmatch(rule.pattern, value, re.DOTALL) is not None


def _mismatch(where: str, expected: Any, got: Any) -> Mismatch:
    return Mismatch(where or "the answer", shown(expected), shown(got))


def shown(value: Any) -> str:
    """Return a value on one line, shortened if it is long."""
    if isinstance(value, (Shape, Matching)):
        return str(value)
    if isinstance(value, Some):
        return f"at least {shown(dict(value.members))}"
    if isinstance(value, dict):
        line = "{" + ", ".join(f"{key}: {shown(inner)}" for key, inner in value.items()) + "}"
    elif isinstance(value, list):
        line = "[" + ", ".join(shown(inner) for inner in value) + "]"
    else:
        line = value if value is ABSENT else repr(value)
    return line if len(line) <= _SHOWN_MAX else f"{line[:_SHOWN_MAX]}... ({len(line)} characters)"


# ---- recordings


def masked(expected: Any, got: Any, names: Mapping[str, Any]) -> Any:
    """Return ``got`` as a recording has it. ``expected`` has no ``$name`` left; ``names`` has their values."""
    if isinstance(expected, Shape) and expected.varies and fits(expected, got):
        return str(expected)
    members = expected.members if isinstance(expected, Some) else expected
    if isinstance(got, dict):
        inner = members if isinstance(members, dict) else {}
        ignored = expected.ignored if isinstance(expected, Some) else ()
        return {
            _mask_text(key, names): masked(inner.get(key, VARYING.get(key)), value, names)
            for key, value in got.items()
            if key not in ignored
        }
    if isinstance(got, list):
        inner = expected if isinstance(expected, list) and len(expected) == len(got) else [None] * len(got)
        return [masked(one, value, names) for one, value in zip(inner, got, strict=True)]
    if isinstance(got, str):
        # A text with varying parts is kept as its pattern, after it was seen to match.
        return str(expected) if isinstance(expected, Matching) and fits(expected, got) else _mask_text(got, names)
    return got


def _mask_text(value: str, names: Mapping[str, Any]) -> str:
    stands_for = sorted(
        ((str(inner), name) for name, inner in names.items() if isinstance(inner, str) and len(inner) > 3),
        key=lambda pair: (-len(pair[0]), pair[1]),
    )
    for inner, name in stands_for:
        # The account of an emulator, 000000000000, is also the end of a shard's id.
        value = re.sub(rf"(?<!shardId-){re.escape(inner)}", f"${name}", value)
    return _LONG_NUMBER.sub("<number>", value)
