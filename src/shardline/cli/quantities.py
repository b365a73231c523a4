"""Formats counts and sizes, and parses sizes.

This module is separate from ``terminal``, which imports rich: a command that prints plain lines starts faster without
rich.
"""

import re
from typing import Final

from shardline.errors import UsageError

_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(b|kib|mib|gib)", re.IGNORECASE)
_UNIT_BYTES: Final = {"b": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}


def parse_size(text: str) -> int:
    """Return the number of bytes in a size such as ``512KiB``, ``5MiB`` or ``1.5MiB``.

    Raises:
        UsageError: the text is not a size, or not a whole number of bytes.
    """
    matched = _SIZE.fullmatch(text)
    size = float(matched[1]) * _UNIT_BYTES[matched[2].lower()] if matched is not None else 0.5
    if size != int(size):
        raise UsageError(f"a size is written as 512KiB, 5MiB or 1.5MiB, not {text!r}")
    return int(size)


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: ``1 record``, ``1,234 records``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def in_units(count: float) -> str:
    """Return a number of bytes in the largest unit that fits: ``2.0 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":  # noqa: PLR2004
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"  # noqa: PLR2004
