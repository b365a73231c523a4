"""How do the machines speak of time?

They read no clock: every input carries ``now``. One machine sees one clock, and ``now`` never decreases.
"""

from math import inf
from typing import Final, TypeAlias

Instant: TypeAlias = float
"""Seconds on a clock that never goes back. Where its zero lies is the shell's business."""

NEVER: Final[Instant] = inf
"""The deadline of a machine that waits for no time."""
