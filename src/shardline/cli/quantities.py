"""Formats counts and sizes.

This module is separate from ``terminal``, which imports rich: a command that prints plain lines starts faster without
rich.
"""


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
