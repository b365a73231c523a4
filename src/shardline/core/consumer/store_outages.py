"""Can the lease store still be used, and if not, how long is that worth waiting for?

Invariants:

- A store that cannot be reached, or is too busy, is tried without end: the network comes back.
- A store that is gone (the table or the file was deleted, replaced or damaged) is given up when it has been gone
  for longer than a lease: by then others may hold every lease, in a store that this worker will never see.
- A store that refuses us (access denied, no credentials, a certificate that cannot be verified) is given up after
  ``store_patience``: permissions are often wrong for a few minutes only.
- Listing and writing are judged apart, each from the first failure since it last worked. A write that the store
  refuses because its condition does not hold worked.
- The store is given up once, and then left alone.
"""

from enum import Enum, auto
from typing import Final, final

from shardline.core.clock import NEVER, Instant
from shardline.core.failures import Failure, FailureKind

LIST: Final = "ListLeases"
WRITE: Final = "WriteLease"
STORE_OPERATIONS: Final = frozenset({LIST, WRITE})
"""How ``ConsumerFailed`` names what the store failed to do."""


@final
class StoreTrouble(Enum):
    """What a failure of the store means."""

    UNREACHABLE = auto()
    GONE = auto()
    REFUSED = auto()


_GONE: Final = frozenset({FailureKind.NOT_FOUND, FailureKind.INVALID})


def trouble_of(failure: Failure) -> StoreTrouble:
    if failure.retryable:
        return StoreTrouble.UNREACHABLE
    return StoreTrouble.GONE if failure.kind in _GONE else StoreTrouble.REFUSED


@final
class StoreHealth:
    """What one worker knows of its store."""

    def __init__(self, lease_duration: float, store_patience: float) -> None:
        self._limits: dict[StoreTrouble, float] = {
            StoreTrouble.UNREACHABLE: NEVER,
            StoreTrouble.GONE: lease_duration,
            StoreTrouble.REFUSED: store_patience,
        }
        self._since: dict[tuple[str, StoreTrouble], Instant] = {}  # by what failed, and how: since when
        self.is_given_up: bool = False

    def handle_answer(self, operation: str) -> None:
        """The store did what it was asked to."""
        if self._since:
            self._since = {key: at for key, at in self._since.items() if key[0] != operation}

    def handle_failure(self, operation: str, failure: Failure, now: Instant) -> Instant:
        """It did not. Returns when it will be given up if it goes on so."""
        trouble = trouble_of(failure)
        return self._since.setdefault((operation, trouble), now) + self._limits[trouble]

    def give_up(self, gives_up_at: Instant, now: Instant) -> bool:
        """Whether the time has come, once."""
        if self.is_given_up or now < gives_up_at:
            return False
        self.is_given_up = True
        return True
