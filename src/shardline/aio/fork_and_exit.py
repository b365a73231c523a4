"""Tells producers and consumers of a fork, and reports producers that are left at exit.

Invariants:

- A producer that is left at exit with undelivered records is logged at CRITICAL.
- After a fork the child's copy of a started producer or consumer refuses to work: its event loop, threads, connections
  and leases are the parent's, and the parent keeps them, whatever the child does with its copy.
- Records under way are the parent's too: in the child their deliveries end, so that nothing there waits for them.
- A consumer that was not started before the fork is the child's own, under a new name: two workers of one name would
  each take the other's leases for its own.
- A fork waits until no other thread is in the middle of a change that the child will look at, and holds it off until it
  is done. It waits a second at most: the thread that forks may itself be the one that it waits for, interrupted by a
  signal.
"""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakKeyDictionary, WeakSet, ref

from shardline.core.producer.record import BufferedRecord, Undelivered

PRODUCER_FORKED: Final = "this Producer was made before a fork: make a new one in the child"
CONSUMER_FORKED: Final = "this Consumer was made before a fork: make a new one in the child"
_FORK_TIMEOUT: Final = 1.0  # seconds: locks are held for a few milliseconds at most
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


class ForkLock(Protocol):
    """Held by whoever is in the middle of something."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...
    def release(self) -> None: ...


_alive: Final[WeakKeyDictionary[Watched, ForkLock | None]] = WeakKeyDictionary()
_consumers: Final[WeakSet[Forkable]] = WeakSet()
_forking: Final = threading.Lock()  # one fork at a time: two would each hold what the other waits for
_shared: Final[list[ForkLock]] = [_forking]  # held at every fork
_held: Final[dict[int, list[ForkLock]]] = {}  # by each thread that forks


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


def watch(producer: Watched, lock: ForkLock | None = None) -> None:
    """From now on the producer is told of a fork, and checked at exit. ``lock`` is held while the producer changes."""
    _alive[producer] = lock


def hold_at_fork(lock: ForkLock) -> None:
    """No thread may hold this lock while another forks."""
    _shared.append(lock)


def watch_forks(consumer: Forkable) -> None:
    """From now on the consumer is told when it finds itself in a child."""
    _consumers.add(consumer)


def _watched() -> list[tuple[Watched, ForkLock | None]]:
    while True:
        with suppress(RuntimeError):  # another thread started one meanwhile
            return list(_alive.items())


def _report_at_exit() -> None:
    for producer, _ in _watched():
        if producer.outstanding:
            _log.critical("%r was never closed: its undelivered records are lost with this process", producer)


def _hold() -> None:
    held = _held[threading.get_ident()] = []
    until = time.monotonic() + _FORK_TIMEOUT
    for lock in [*_shared, *(lock for _, lock in _watched())]:
        left = max(0.0, until - time.monotonic())
        if lock is not None and lock.acquire(timeout=left):
            held.append(lock)


def _let_go() -> None:
    for lock in reversed(_held.pop(threading.get_ident(), [])):
        lock.release()


def _refuse_in_child() -> None:
    _let_go()
    _held.clear()
    for producer, _ in _watched():
        try:
            producer.refuse_after_fork()
        except Exception:  # noqa: BLE001 - the others are told all the same
            _log.exception("a producer was forked while it was at work")
    _alive.clear()
    for consumer in list(_consumers):
        consumer.handle_fork()


atexit.register(_report_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_refuse_in_child)
