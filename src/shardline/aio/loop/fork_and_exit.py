"""Tells producers and consumers of a fork, and reports producers that are left at exit.

Invariants:

- A producer that is left at exit with undelivered records is logged at CRITICAL.
- After a fork the child's copy of a started producer or consumer refuses to work: its event loop, threads, connections
  and leases are the parent's, and the parent keeps them, whatever the child does with its copy.
- Records under way are the parent's too: in the child their deliveries end, so that nothing there waits for them.
- A consumer that was not started before the fork is the child's own, under a new name: two workers of one name would
  each take the other's leases for its own.
- A fork takes no lock: it may come while other threads are in the middle of anything. The child's copy makes its locks
  anew, and finds the records of its intake whatever the host was doing (``shardline.core.producer.intake``).
"""

import atexit
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet, ref

from shardline.core.producer.producer_record import BufferedRecord, Undelivered

PRODUCER_FORKED: Final = "this Producer was made before a fork: make a new one in the child"
CONSUMER_FORKED: Final = "this Consumer was made before a fork: make a new one in the child"
_log: Final = logging.getLogger("shardline.producer")


class Watched(Protocol):
    """A producer of either kind."""

    @property
    def outstanding(self) -> int: ...
    def refuse_after_fork(self) -> None: ...
    def refuse_after_end(self, reason: str) -> None: ...


class Forkable(Protocol):
    """A consumer of either kind."""

    def handle_fork(self) -> None:
        """We are in the child."""
        ...


_alive: Final[WeakSet[Watched]] = WeakSet()
_consumers: Final[WeakSet[Forkable]] = WeakSet()


def weakly(producer: Watched) -> Callable[[str], None]:
    """How a host tells its producer that it has ended, without keeping it alive."""
    reference = ref(producer)

    def tell(reason: str) -> None:
        alive = reference()
        if alive is not None:
            alive.refuse_after_end(reason)

    return tell


def disown(records: list[BufferedRecord]) -> None:
    """In the child: the parent delivers these records, or fails to."""
    for record in records:
        if record.ending is None:
            record.ending = Undelivered("Forked", "it is the parent process that delivers it", maybe_stored=True)


def watch(producer: Watched) -> None:
    """Notify this producer of forks, and check it at exit."""
    _alive.add(producer)


def watch_forks(consumer: Forkable) -> None:
    """Notify this consumer when it is in the child of a fork."""
    _consumers.add(consumer)


def _watched() -> list[Watched]:
    while True:
        with suppress(RuntimeError):  # another thread started one meanwhile
            return list(_alive)


def _report_at_exit() -> None:
    for producer in _watched():
        if producer.outstanding:
            _log.critical("%r was never closed: its undelivered records are lost with this process", producer)


def _refuse_in_child() -> None:
    for producer in _watched():
        try:
            producer.refuse_after_fork()
        except Exception:  # noqa: BLE001 - the others are notified all the same
            _log.exception("a producer was forked while it was at work")
    _alive.clear()
    for consumer in list(_consumers):
        consumer.handle_fork()


atexit.register(_report_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_in_child)
