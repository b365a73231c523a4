"""Ensures that a new fencing token is greater than every earlier one.

Tokens have to grow even if the lease store loses them: the store may be emptied, or restored from an old backup. So a
new token is at least the time in milliseconds since 1970, by the service's clock, and greater than every counter of the
shard that this worker has seen.

Invariants:

- A worker that has seen a token takes the lease only with a greater token, whatever the clocks show.
- A worker that has not seen the earlier token takes the lease with a greater token if the two workers' estimates of the
  time differ by less than the time that passed after the other worker took the lease. The estimates come from the
  service's Date header, which counts whole seconds.
"""

from typing import Final, final

from shardline.core.clock import Instant
from shardline.model.lease import Lease

_MILLISECONDS: Final = 1_000


@final
class TokenFloor:
    """Computes the lowest allowed fencing token for one worker.

    Args:
        service_time: the service's time at ``now``, in seconds since 1970.
        now: the current time.
    """

    def __init__(self, service_time: float, now: Instant) -> None:
        self._offset: float = service_time - now
        self._highest: dict[str, int] = {}  # the highest counter seen, by shard; kept when the row is gone

    def handle_service_time(self, service_time: float, now: Instant) -> None:
        """Correct the estimate of the service's time after a response."""
        self._offset = service_time - now

    def handle_row(self, row: Lease) -> None:
        """Note the counter of a row that was read or written."""
        self._highest[row.shard_id] = max(row.counter, self._highest.get(row.shard_id, 0))

    def service_time(self, now: Instant) -> float:
        """Return the estimate of the service's time, in seconds since 1970."""
        return self._offset + now

    def floor(self, shard_id: str, now: Instant) -> int:
        """Return the lowest allowed value of a new token."""
        # With the counter alone, tokens would repeat after the store lost its rows. With the time alone, tokens would
        # grow only if all clocks agree.
        return max(self._highest.get(shard_id, 0) + 1, int((self._offset + now) * _MILLISECONDS))
