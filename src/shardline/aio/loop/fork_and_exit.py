"""Notifies producers and consumers of a fork, and reports producers that were not closed before the program exits.

Invariants:

- A producer that has undelivered records when the program exits is logged at CRITICAL.
- After a fork, the child's copy of a started producer or consumer refuses to work. The event loop, threads, connections
  and leases belong to the parent, and stay intact whatever the child does with its copy.
- Outstanding records also belong to the parent. In the child, their deliveries fail, so that no caller in the child
  waits.
- A consumer that was not started before the fork works in the child, under a new name. If it kept its name, each of the
  two workers would regard the other's leases as its own.
- The code that runs after a fork acquires no lock, because another thread may have held the lock during the fork. The
  child's copy creates new locks, and finds the records of its intake whatever the host was doing
  (``shardline.core.producer.intake``).
"""

import atexit
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet, ref

from shardline.core.producer.producer_record import BufferedRecord, Undelivered

PRODUCER_FORKED: Final = "this Producer was created before a fork: create a new one in the child"
CONSUMER_FORKED: Final = "this Consumer was created before a fork: create a new one in the child"
_log: Final = logging.getLogger("shardline.producer")


class Watched(Protocol):
    """A producer, async or blocking, that is notified of forks and checked when the program exits."""

    @property
    def outstanding(self) -> int: ...
    def refuse_after_fork(self) -> None: ...
    def refuse_after_end(self, reason: str) -> None: ...


class Forkable(Protocol):
    """A consumer, async or blocking, that is notified of forks."""

    def handle_fork(self) -> None:
        """Handle a fork. This is called in the child process."""
        ...


_alive: Final[WeakSet[Watched]] = WeakSet()
_consumers: Final[WeakSet[Forkable]] = WeakSet()


def weakly(producer: Watched) -> Callable[[str], None]:
    """Return a function that calls ``producer.refuse_after_end``, but does not keep the producer alive."""
    reference = ref(producer)

    def refuse(reason: str) -> None:
        alive = reference()
        if alive is not None:
            alive.refuse_after_end(reason)

    return refuse


def disown(records: list[BufferedRecord]) -> None:
    """Fail the deliveries of these records, in the child. The parent still sends the records."""
    for record in records:
        if record.ending is None:
            record.ending = Undelivered("Forked", "only the parent process delivers this record", maybe_stored=True)


def watch(producer: Watched) -> None:
    """Notify this producer of forks and check it at exit."""
    _alive.add(producer)


def watch_forks(consumer: Forkable) -> None:
    """Notify this consumer when it is in the child of a fork."""
    _consumers.add(consumer)


def _watched() -> list[Watched]:
    while True:
        with suppress(RuntimeError):  # another thread added a producer in the meantime: try again
            return list(_alive)


def _report_at_exit() -> None:
    for producer in _watched():
        if producer.outstanding:
            _log.critical("%r was never closed: its undelivered records are lost with this process", producer)


def _refuse_in_child() -> None:
    for producer in _watched():
        try:
            producer.refuse_after_fork()
        except Exception:  # noqa: BLE001 - the other producers must be notified, too
            _log.exception("internal error in a producer after a fork")
    _alive.clear()
    for consumer in list(_consumers):
        consumer.handle_fork()


atexit.register(_report_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_in_child)
