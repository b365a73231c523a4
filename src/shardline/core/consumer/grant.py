"""May we act as the owner of this lease right now?

A grant is one uninterrupted time of holding a lease. Records refer to the grant that they were read under, so that the
user's code can ask it (``record.lease.held``) and fence its own writes with it (``record.lease.token``).

Invariants:

- A grant is in force until lease duration after the last confirmed renewal was *sent* (L2), and never again.
- Its token is the counter that the lease had when it was taken: a later holder's is greater.
"""

from collections.abc import Callable
from typing import final

from shardline.core.clock import Instant


@final
class Grant:
    """One time of holding a lease.

    ``clock`` is the shell's: no machine calls it. It is there for the user's threads, which may ask between the moment
    when a lease lapses and the moment when the shell gets to run.
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
        """The same, for the user's code."""
        return not self._revoked if self._clock is None else self.in_force(self._clock())

    def extend(self, held_until: Instant) -> None:
        """A renewal was confirmed. Answers may come out of order: the end never goes back."""
        self.held_until = max(self.held_until, held_until)

    def revoke(self) -> None:
        """The lease was lost or let go."""
        self._revoked = True
