"""Parses the times, durations and stream positions of command-line arguments.

Invariants:

- A time without a zone is in the machine's local time zone.
- If a duration is given as a time, it counts back from now (``15m``), or ahead if it has a plus sign (``+30s``).
- Up to 12 digits are seconds since 1970; more digits are a sequence number.
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
    """Return the seconds in a duration such as ``90s``, ``1h30m`` or ``2d``, or in a plain number of seconds.

    Raises:
        UsageError: the text is not a duration.
    """
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    if not text or _DURATION.sub("", text):
        raise UsageError(f"a duration is written as 500ms, 90s, 15m, 1h30m, 2d or 1w, not {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))


def parse_moment(text: str, now: float) -> float:
    """Return a time in seconds since 1970. A duration counts back from ``now``, or ahead if it has a plus sign.

    Raises:
        UsageError: the text is neither a time nor a duration.
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
        raise UsageError(f"neither {_TIMES}, nor a time ahead such as +30s: {text!r}") from None


def parse_start(text: str, now: float) -> Position:
    """Return the position that a text describes: ``TRIM_HORIZON``, ``LATEST``, a time, an age or a sequence number.

    Raises:
        UsageError: the text is not a position.
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
    """Format a time as ISO 8601, in UTC, to the millisecond; ``-`` stands for ``None``."""
    return "-" if seconds is None else record_lines.shown_time(seconds)


def duration_value(text: str) -> float:
    """Parse the value of a click option that is a duration."""
    try:
        return parse_duration(text)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def duration_option(name: str, default: str, text: str, metavar: str = "TIME") -> Callable[[FC], FC]:
    """Return a decorator that adds an option whose value is a duration."""
    return click.option(name, type=duration_value, default=default, show_default=True, metavar=metavar, help=text)
