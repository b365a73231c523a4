"""Connects the coordinators of one consumer, so that the worker's share is computed over the leases of all its streams.

Each stream has a coordinator of its own, which plans the leases of that stream alone. Before it plans, it asks here for
the leases of the other streams.

Invariants:

- A consumer of one stream plans as if this module did not exist.
- A lease that the worker is about to get in another stream counts as the worker's, so the plans of two streams never
  add up to more than one share, or to more than ``max_leases``.
- A stream whose coordinator gives it up no longer counts.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, final

from shardline.core.clock import Instant
from shardline.core.consumer.assignment import ReadableLease


@final
class KnownLeases(NamedTuple):
    """The leases of one or more streams, as the worker knows them."""

    readable: Sequence[ReadableLease] = ()
    """Every lease whose shard can be read now. The leases that the worker is about to get count as its own."""
    unreadable: int = 0
    """How many leases the worker holds whose shards cannot be read."""


class PlannedStream(Protocol):
    """A stream whose leases count: its coordinator."""

    def known_leases(self, now: Instant) -> KnownLeases: ...
    @property
    def kept_leases(self) -> int:
        """How many leases the worker holds and is not releasing."""
        ...


@final
class StreamShares:
    """The streams of one consumer."""

    def __init__(self) -> None:
        self._streams: list[PlannedStream] = []

    @property
    def is_shared(self) -> bool:
        """Whether there is more than one stream."""
        return len(self._streams) > 1

    def join(self, stream: PlannedStream) -> None:
        """Count the leases of this stream from now on."""
        self._streams.append(stream)

    def leave(self, stream: PlannedStream) -> None:
        """Count the leases of this stream no more. Leaving twice is harmless."""
        if stream in self._streams:
            self._streams.remove(stream)

    def others(self, stream: PlannedStream, now: Instant) -> KnownLeases:
        """Return the leases of all streams except this one."""
        readable: list[ReadableLease] = []
        unreadable = 0
        for other in self._streams:
            if other is not stream:
                known = other.known_leases(now)
                readable += known.readable
                unreadable += known.unreadable
        return KnownLeases(readable, unreadable)

    def kept_by_others(self, stream: PlannedStream) -> int:
        """Return how many leases the worker holds in the other streams and is not releasing."""
        return sum(other.kept_leases for other in self._streams if other is not stream)
