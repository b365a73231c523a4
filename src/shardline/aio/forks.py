"""Which consumers does a fork leave behind in the child?

Invariants:

- FK1: after a fork the child's copy of a started consumer refuses to work: event loop, threads and connections are the
  parent's, and so are the leases. Whatever the child does with its copy, its exit included, the parent keeps them.
- FK2: one that was not started yet is the child's own, under a new name: two workers of one name would each take the
  other's leases for its own.
"""

import os
from typing import Final, Protocol
from weakref import WeakSet

FORKED: Final = "this Consumer was made before a fork: make a new one in the child"


class Forkable(Protocol):
    """A consumer of either kind."""

    def handle_fork(self) -> None:
        """We are in the child."""
        ...


_alive: Final[WeakSet[Forkable]] = WeakSet()


def watch_forks(consumer: Forkable) -> None:
    """From now on it is told when it finds itself in a child."""
    _alive.add(consumer)


def _tell() -> None:
    for consumer in list(_alive):
        consumer.handle_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell)
