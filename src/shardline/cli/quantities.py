"""How do counts and sizes read?

Apart from ``terminal``, which needs rich: a command that prints plain lines starts without it.
"""


def counted(count: int, noun: str) -> str:
    """``1 record``, ``1,234 records``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def in_units(count: float) -> str:
    """A number of bytes, short."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":  # noqa: PLR2004
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"  # noqa: PLR2004
