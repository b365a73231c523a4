"""May this worker act as the owner of a lease right now?

A grant stands for one uninterrupted period of holding a lease. Records refer to the grant that they were read under, so
that user code can check it (``record.lease.held``) and fence its own writes with it (``record.lease.token``).

Invariants:

- A grant is in force until one lease duration after the last confirmed renewal was *sent* (L2). Once it has ended, it
  is never in force again.
- The token is the counter that the lease had when it was taken. Every later holder has a greater token.
"""

from collections.abc import Callable
from typing import final

from shardline.core.clock import Instant


@final
class Grant:
    """One period of holding a lease.

    ``clock`` is the shell's clock. Machines do not call it. The user's threads need it: they may check a grant after
    the lease has expired and before the shell gets to run.
    """

    __slots__ = ("_clock", "_revoked", "held_until", "shard_id", "token")

    def __init__(
        self, shard_id: str, token: int, held_until: Instant, clock: Callable[[], Instant] | None = None
    ) -> None:
        self.shard_id: str = shard_id
        self.token: int = token
        """The fencing token."""
        self.held_until: Instant = held_until
        self._revoked: bool = False
        self._clock: Callable[[], Instant] | None = clock

    def in_force(self, now: Instant) -> bool:
        """Whether we may act as the owner."""
        return not self._revoked and now < self.held_until

    @property
    def held(self) -> bool:
        """Like ``in_force``, for user code: the time is read from the clock."""
        # Without a clock, as in tests and simulations, only a revocation ends the grant for user code.
        return not self._revoked if self._clock is None else self.in_force(self._clock())

    def extend(self, held_until: Instant) -> None:
        """Extend the grant after a confirmed renewal. Responses may come out of order, so the end never goes back."""
        self.held_until = max(self.held_until, held_until)

    def revoke(self) -> None:
        """End the grant, because the lease was lost or released."""
        self._revoked = True
