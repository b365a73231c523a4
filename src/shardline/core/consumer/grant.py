"""Decides whether this worker may act as the owner of a lease right now.

A grant represents one uninterrupted period of holding a lease. A record refers to the grant that was in force when it
was read, so that user code can check the grant (``record.lease.held``) and fence its own writes
(``record.lease.token``).

Invariants:

- A grant is in force until one lease duration after the last confirmed renewal was *sent* (L2). A revoked grant is
  never in force again.
- The token is the counter that the lease had when it was taken. Every later holder has a greater token.
- While ``is_in_order`` is true, a handler gets a record only when all records before it are done.
- All records at or before ``done_through`` are done.
- A grant does not refer to records. Records refer to their grant, and the garbage collector does not track records.
"""

from collections.abc import Callable
from typing import final

from shardline.core.clock import Instant
from shardline.model.sequence import SequenceNumber


@final
class Grant:
    """One period of holding a lease.

    ``clock`` is the shell's clock. Machines do not call it. The user's threads need the clock, because they may check a
    grant after the lease has expired and before the shell runs.
    """

    __slots__ = ("_clock", "_revoked", "done_place", "held_until", "is_in_order", "shard_id", "token")

    def __init__(
        self, shard_id: str, token: int, held_until: Instant, clock: Callable[[], Instant] | None = None
    ) -> None:
        self.shard_id: str = shard_id
        self.token: int = token
        """The fencing token, which is greater than the token of every earlier holder."""
        self.held_until: Instant = held_until
        self.is_in_order: bool = False
        """Whether the records of the shard are handled one after the other. ``HeldShard`` writes this field."""
        self.done_place: tuple[str, int] | None = None
        """If records are not handled in order: all records through this sequence number and sub-sequence are done.
        ``HeldShard`` writes this field.
        """
        self._revoked: bool = False
        self._clock: Callable[[], Instant] | None = clock

    def in_force(self, now: Instant) -> bool:
        """Return whether we may act as the owner of the lease at the time ``now``."""
        return not self._revoked and now < self.held_until

    @property
    def done_through(self) -> SequenceNumber | None:
        """The position up to which all records of the shard are done, or ``None`` if records are handled in order."""
        # The number is parsed here, and not for each record that is done.
        return None if self.done_place is None else SequenceNumber.parse(*self.done_place)

    @property
    def held(self) -> bool:
        """Whether we may act as the owner now. Like ``in_force``, but for user code: the time comes from the clock."""
        # Without a clock, as in tests and simulations, only a revocation ends the grant for user code.
        return not self._revoked if self._clock is None else self.in_force(self._clock())

    def extend(self, held_until: Instant) -> None:
        """Extend the grant after a confirmed renewal. Responses may arrive out of order: an earlier end is ignored."""
        # The response to an earlier renewal may arrive after the response to a later one. It must not shorten the
        # grant.
        self.held_until = max(self.held_until, held_until)

    def revoke(self) -> None:
        """End the grant, because the lease was lost or released."""
        self._revoked = True
