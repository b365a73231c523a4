"""From which number on is a fencing token greater than every earlier one?

Tokens have to grow even if the lease store does not remember them: it may come back empty, or as it was an hour ago. So
a new token is at least the time in milliseconds since 1970, by the service's clock, and lies above every counter of the
shard that this worker has seen.

Invariants:

- A worker that has seen a token takes the lease only with a greater one, whatever the clocks say.
- A worker that has not seen the earlier tokens takes the lease with a greater one if the clocks of the two floors
  differ by less than the time between the two takes. The service's Date counts whole seconds.
"""

from typing import Final, final

from shardline.core.clock import Instant
from shardline.model.lease import Lease

_MILLISECONDS: Final = 1_000


@final
class TokenFloor:
    """What one worker knows of tokens.

    Args:
        service_time: the service's time, in seconds since 1970.
        now: when it was that.
    """

    def __init__(self, service_time: float, now: Instant) -> None:
        self._offset: float = service_time - now
        self._highest: dict[str, int] = {}  # by shard; it outlives the rows

    def handle_service_time(self, service_time: float, now: Instant) -> None:
        """The service has answered, and so said what time it is."""
        self._offset = service_time - now

    def handle_row(self, row: Lease) -> None:
        """This row was seen, or written."""
        self._highest[row.shard_id] = max(row.counter, self._highest.get(row.shard_id, 0))

    def floor(self, shard_id: str, now: Instant) -> int:
        """The least that a new token may be."""
        return max(self._highest.get(shard_id, 0) + 1, int((self._offset + now) * _MILLISECONDS))
