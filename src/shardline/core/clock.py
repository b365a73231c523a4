"""The type that the machines use for times.

Machines read no clock: every input carries ``now``. All inputs of a machine use the same clock, and ``now`` never
decreases.
"""

from math import inf
from typing import Final, TypeAlias

Instant: TypeAlias = float
"""Seconds on a clock that never goes back. The shell chooses the clock's zero."""

NEVER: Final[Instant] = inf
"""The deadline of a machine that does not wait for any point in time."""
