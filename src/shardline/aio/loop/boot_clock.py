"""The clock that leases are measured with.

Invariants:

- Where the system supports CLOCK_BOOTTIME, the clock includes the time during which the machine was suspended, unlike
  Python's monotonic clock. So a lease lapses even while a laptop sleeps (L2 of docs/guarantees.md).
- The clock never goes back.
"""

import sys
import time

if sys.platform == "linux":

    def boot_time() -> float:
        """Return the seconds since the machine was started, including the time during which it was suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    boot_time = time.monotonic
