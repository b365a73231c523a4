"""Which producers outlive what they should: the program's end, or a fork?

Invariants:

- SV1: a producer that is left at exit with undelivered records says so, loudly.
- SV2: after a fork the child's copy refuses to work: its event loop, threads and connections are the parent's. Records
  under way are the parent's too: in the child their deliveries end, so that nobody there waits for ever.
"""

import atexit
import logging
import os
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakSet, ref

from shardline.core.producer.record import BufferedRecord, Undelivered

FORKED: Final = "this Producer was made before a fork: make a new one in the child"
_log: Final = logging.getLogger("shardline.producer")


class Watched(Protocol):
    """A producer of either kind."""

    @property
    def outstanding(self) -> int: ...
    def refuse_after_fork(self) -> None: ...
    def refuse_after_end(self, reason: str) -> None: ...


_alive: Final[WeakSet[Watched]] = WeakSet()


def weakly(producer: Watched) -> Callable[[str], None]:
    """How a host tells its producer that it has ended, without keeping it alive."""
    reference = ref(producer)

    def tell(reason: str) -> None:
        alive = reference()
        if alive is not None:
            alive.refuse_after_end(reason)

    return tell


def disown(records: list[BufferedRecord]) -> None:
    """In the child: these are delivered by the parent, or not (SV2)."""
    for record in records:
        if record.ending is None:
            record.ending = Undelivered("Forked", "it is the parent process that delivers it", maybe_stored=True)


def watch(producer: Watched) -> None:
    """From now on it is told of a fork, and looked at at exit."""
    _alive.add(producer)


def _report_at_exit() -> None:
    for producer in list(_alive):
        if producer.outstanding:
            _log.critical("%r was never closed: its undelivered records are lost with this process", producer)


def _refuse_in_child() -> None:
    for producer in list(_alive):
        producer.refuse_after_fork()
    _alive.clear()


atexit.register(_report_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_in_child)
