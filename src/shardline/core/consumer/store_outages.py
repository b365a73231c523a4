"""Decides when a worker gives up on a failing lease store.

Invariants:

- An unreachable or overloaded store is retried forever, because network outages end.
- If the store is gone (the table or the file was deleted, replaced or damaged), the worker gives up after one lease
  duration. By then, other workers may hold every lease, in a store that this worker will never see.
- If the store denies access (no permission, no credentials, or a certificate that cannot be verified), the worker gives
  up after ``store_patience``, because permissions are often wrong for only a few minutes.
- Listing and writing are judged separately. For each of the two, the time counts from the first failure after the last
  success. A write whose condition the store rejects counts as a success.
- The worker gives up only once. After that, it sends nothing to the store.
"""

from enum import Enum, auto
from typing import Final, final

from shardline.core.clock import NEVER, Instant
from shardline.core.error_codes import Failure, FailureKind

LIST: Final = "ListLeases"
WRITE: Final = "WriteLease"
STORE_OPERATIONS: Final = frozenset({LIST, WRITE})
"""The operations of a lease store, as ``ConsumerFailed`` names them."""


@final
class StoreTrouble(Enum):
    """The kinds of store failures that the worker handles differently."""

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
    """Tracks the failures of a worker's store."""

    def __init__(self, lease_duration: float, store_patience: float) -> None:
        self._limits: dict[StoreTrouble, float] = {
            StoreTrouble.UNREACHABLE: NEVER,
            StoreTrouble.GONE: lease_duration,
            StoreTrouble.REFUSED: store_patience,
        }
        self._since: dict[tuple[str, StoreTrouble], Instant] = {}  # the first failure, by operation and kind
        self.is_given_up: bool = False

    def handle_answer(self, operation: str) -> None:
        if self._since:
            self._since = {key: at for key, at in self._since.items() if key[0] != operation}

    def handle_failure(self, operation: str, failure: Failure, now: Instant) -> Instant:
        """Called when the operation failed. Return the time at which the consumer gives up if the failures continue."""
        trouble = trouble_of(failure)
        # Different kinds of trouble are timed separately: a network outage must not count against the limit for denied
        # access.
        return self._since.setdefault((operation, trouble), now) + self._limits[trouble]

    def give_up(self, gives_up_at: Instant, now: Instant) -> bool:
        """Give up on the store if the time ``gives_up_at`` has come. Return True only for the call that gives up."""
        if self.is_given_up or now < gives_up_at:
            return False
        self.is_given_up = True
        return True
