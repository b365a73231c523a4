"""What time is it, for leases?

Invariants:

- It counts the time that the machine was suspended, where the system can tell (CLOCK_BOOTTIME): a lease that
  lapsed while a laptop slept has lapsed (L2 of docs/guarantees.md). Python's monotonic clock stands still then.
- It never goes back.
"""

import sys
import time

if sys.platform == "linux":

    def boot_time() -> float:
        """Seconds since the machine was started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    boot_time = time.monotonic
