"""Which time, duration or place in a stream does the user mean?

Invariants:

- A time without a zone is one of the machine's own zone, as its clock on the wall says.
- A duration is one of the past (``15m``: a quarter of an hour ago); with a plus it lies ahead (``+30s``).
- Digits are seconds since 1970, unless there are too many of them: then they are a sequence number.
"""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from shardline.codec import record_lines
from shardline.errors import UsageError
from shardline.model.position import LATEST, TRIM_HORIZON, Position, at_sequence_number, at_timestamp

FC = TypeVar("FC", bound=Callable[..., Any])

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_NAMED: Final = {"TRIM_HORIZON": TRIM_HORIZON, "LATEST": LATEST}
_TIME_DIGITS_MAX: Final = 12
_TIMES: Final = "a time such as 2026-03-01T09:30Z, an age such as 15m"


def parse_duration(text: str) -> float:
    """Seconds, from ``90s``, ``1h30m``, ``2d`` or a plain number of seconds.

    Raises:
        UsageError: it is none.
    """
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    if not text or _DURATION.sub("", text):
        raise UsageError(f"a duration is written as 500ms, 90s, 15m, 1h30m, 2d or 1w, not {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))


def parse_moment(text: str, now: float) -> float:
    """Seconds since 1970 of a time, or of a duration before ``now``.

    Raises:
        UsageError: it is neither.
    """
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]+)?", text):
        return float(text)
    try:
        if text.startswith("+"):
            return now + parse_duration(text[1:])
        if _DURATION.match(text) and not _DURATION.sub("", text):
            return now - parse_duration(text)
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"neither {_TIMES}, nor one ahead such as +30s: {text!r}") from None


def parse_start(text: str, now: float) -> Position:
    """Where to begin: a name, a time, an age or a sequence number.

    Raises:
        UsageError: it is none of them.
    """
    named = _NAMED.get(text.upper())
    if named is not None:
        return named
    if text.isascii() and text.isdigit() and len(text) > _TIME_DIGITS_MAX:
        return at_sequence_number(text)
    try:
        return at_timestamp(parse_moment(text, now))
    except UsageError:
        raise UsageError(f"neither TRIM_HORIZON, LATEST, {_TIMES}, nor a sequence number: {text!r}") from None


def shown_time(seconds: float | None) -> str:
    """A time for people and machines: ISO 8601, in UTC, to the millisecond."""
    return "-" if seconds is None else record_lines.shown_time(seconds)


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def duration_option(name: str, default: str, text: str, metavar: str = "TIME") -> Callable[[FC], FC]:
    """An option that takes a duration."""
    return click.option(name, type=_duration, default=default, show_default=True, metavar=metavar, help=text)
