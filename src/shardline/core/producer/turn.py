"""Is somebody in the machine already?

The machine is entered by one at a time: the shells see to that. But whatever a program does as it goes can interrupt
the one that is in it and enter it once more, in the same thread: a signal handler, or a finalizer that the garbage
collector runs, and a logging handler that one of them logs to. That is no interrupt that ends a put (see
``whereabouts``): the one that was first goes on where it was.

Invariants:

- TU1: who enters while the turn is taken changes nothing but the intake, to which records are only ever appended.
- TU3: who takes the turn mends what an interrupted one left; it may be interrupted itself, and the next one mends.
- TU2: when the first leaves, what came meanwhile is armed (P11); it is sorted with the next round.
"""

from types import TracebackType
from typing import TYPE_CHECKING, final

from shardline.core.producer.intake import Intake, Put
from shardline.core.producer.record import BufferedRecord

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class Turn:
    """Taken while someone is in the machine: ``with turn:``."""

    __slots__ = ("_arm_joined", "_intake", "_mend", "is_taken")

    def __init__(self, intake: Intake, mend: "Callable[[], None]", arm_joined: "Callable[[], None]") -> None:
        self._intake = intake
        self._mend = mend
        self._arm_joined = arm_joined
        self.is_taken: bool = False

    def join(self, record: BufferedRecord, size: int) -> Put:
        """Put a record while the turn is another's (TU1)."""
        self._intake.add(record, size)
        return Put.PUMP

    def mend(self) -> None:
        """Take the turn, which mends, and give it back; unless it is another's."""
        if not self.is_taken:
            with self:
                return

    def __enter__(self) -> None:
        self.is_taken = True
        is_mended = False
        try:
            self._mend()
            is_mended = True
        finally:
            self.is_taken = is_mended

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_taken = False
        if self._intake.records:
            self._arm_joined()
