"""Checks the values of settings.

An invalid value raises a ``UsageError`` that names the setting, its value and the allowed values.
"""

from math import inf

from shardline.errors import UsageError


def check_number(
    name: str, value: object, lowest: float, highest: float, *, whole: bool = False, optional: bool = False
) -> None:
    """Check that a value is a number in a closed range, or ``None`` if the setting is ``optional``."""
    if value is None and optional:
        return
    kinds = (int,) if whole else (int, float)
    # bool is a subclass of int, and NaN fails every comparison.
    if not isinstance(value, kinds) or isinstance(value, bool) or not lowest <= value <= highest:
        low, high = (f"{bound:,}".removesuffix(".0") for bound in (lowest, highest))
        noun = "a whole number" if whole else "a number"
        allowed = f"{noun}, {low} or more" if highest == inf else f"{noun} from {low} to {high}"
        raise UsageError(f"{name} must be {allowed}{', or None' if optional else ''}, not {value!r}")


def check_choice(name: str, value: object, *allowed: str | None) -> None:
    """Check that a value is one of the allowed words, or ``None`` if ``None`` is allowed."""
    if value not in allowed:
        raise UsageError(f"{name} must be {' or '.join(map(repr, allowed))}, not {value!r}")
