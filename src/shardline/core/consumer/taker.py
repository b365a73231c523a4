"""Where user code and the host meet: user code asks, and the host leaves the answer.

A taker is the mailbox of one iterator, of one handler's task, or of one run. ``Questions`` is the host's list of the
takers that wait for an answer.

Invariants:

- User code writes ``asked``, ``caller`` and ``waiting``, the host writes all other fields. No lock is needed: each
  write is one store, or one call of a ``deque``.
- One caller at a time: a second task or thread that asks while the first one waits is refused.
- A wait that was interrupted or cancelled has taken nothing. The cursor that comes later stays with the taker for the
  next one who asks, and an interrupted caller blocks nobody, itself included.
- A question is answered once. An answer covers every question that was asked before it: user code may then be at work
  on the answer, and an older question that arrives later must not say that this work is done.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.held_shard import HeldShard


class Waiting(Protocol):
    """A task or thread that waits for the answer. The shell makes one for each wait."""

    @property
    def caller(self) -> object: ...
    def wake(self) -> None: ...


class Taker(ABC):
    """An iteration, the task of a handler, or a run, which takes shards for its handlers.

    User code asks like this::

        if not taker.enter(mine, has_ended):
            raise UsageError(...)
        try:
            have the host call ask(taker, number, now) with number = taker.asked
            wait until taker.answered >= number
        finally:
            taker.leave(mine)

    The answer is in ``cursor``, or ``is_over`` is true.
    """

    def __init__(
        self, number: int = 0, *, limit: int | None = None, max_wait: float = 0.0, whole: bool = False
    ) -> None:
        self.number: int = number
        """Later iterations and runs of a consumer have greater numbers."""
        self.limit: int | None = limit
        """How many records one cursor has at most. ``None``: the rest of one page."""
        self.max_wait: float = max_wait
        """How long to wait for ``limit`` records, once there is one."""
        self.whole: bool = whole
        """Whether the records of a cursor are taken at once, as a batch."""
        self.shard: HeldShard | None = None
        """The only shard that it takes from. ``None``: all shards take turns."""
        self.cursor: Cursor = Cursor()
        """The last answer that had records."""
        self.is_over: bool = False
        """Whether there will be no more."""
        self.is_at_work: bool = False
        """Whether the handler of its shard runs."""
        self.answered: int = 0
        """The number of the last question that is answered."""
        self.asked: int = 0
        """The number of the last question."""
        self.caller: object = None
        """The task or thread that asked last."""
        self.waiting: deque[Waiting] = deque()
        """The first is the one who asks."""

    # ---- user code

    @property
    def has_records(self) -> bool:
        """Whether user code has records that are not known to be done."""
        return self.cursor.place > 0 and self.cursor.end > 0

    def enter(self, mine: Waiting, has_ended: Callable[[object], bool]) -> bool:
        """Become the one who asks, and count the question. False: another caller waits in here, and is alive."""
        waiting = self.waiting
        waiting.append(mine)
        while (first := waiting[0]) is not mine:
            if first.caller is not mine.caller and not has_ended(first.caller):
                self.leave(mine)
                return False
            self.leave(first)  # an interrupt, or the end of its task, kept it from leaving by itself
        self.caller = mine.caller
        self.asked += 1
        return True

    def leave(self, mine: Waiting) -> None:
        """The wait is over, however it ended. Harmless when done before."""
        with suppress(ValueError):
            self.waiting.remove(mine)

    def is_awaited(self, caller: object, has_ended: Callable[[object], bool]) -> bool:
        """Whether a living caller other than this one waits in here."""
        return any(one.caller is not caller and not has_ended(one.caller) for one in [*self.waiting])

    # ---- the host

    @abstractmethod
    def serve(self, now: Instant) -> Instant | None:
        """Look for the answer. Returns ``None`` when it is there, else until when to wait if nothing happens before."""

    def handle_gained(self, shard: HeldShard) -> None:  # noqa: B027 - only a run follows that
        """We hold this lease now."""

    def wake(self) -> None:
        """Wake the callers: the answer is there."""
        for one in [*self.waiting]:
            one.wake()


@final
class Questions:
    """The takers that wait for an answer."""

    def __init__(self) -> None:
        self._waiting: dict[Taker, Instant] = {}  # until when, if nothing happens before
        self._due: dict[Taker, None] = {}  # of these, whose answer may have come
        self._answered: list[Taker] = []
        self._is_serving: bool = False
        self.is_sooner: bool = False
        """Whether ``next_deadline`` has come closer. Whoever reads it sets it back."""

    def ask(self, taker: Taker, number: int) -> None:
        """The taker waits, unless the question was answered before it arrived."""
        if number > taker.answered:
            self._waiting[taker] = NEVER
            self._due[taker] = None

    def withdraw(self, taker: Taker) -> None:
        """The taker waits no more."""
        self._waiting.pop(taker, None)

    def look_again(self, takers: Iterable[Taker] | None = None) -> None:
        """Something has changed for these takers; ``None``: for all. Those among them that wait are served next."""
        self._due.update(dict.fromkeys(self._waiting if takers is None else takers))

    def handle_time(self, now: Instant) -> None:
        self.look_again(taker for taker, until in self._waiting.items() if until <= now)

    def serve(self, now: Instant) -> None:
        """Answer those who can be answered. Serving one may be news for others: they are served in the same round."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._due:
                taker = next(iter(self._due))
                del self._due[taker]
                if taker in self._waiting:
                    self._serve(taker, now)
        finally:
            self._is_serving = False

    def _serve(self, taker: Taker, now: Instant) -> None:
        until = taker.serve(now)
        if until is None:
            self.withdraw(taker)
            taker.answered = taker.asked
            self._answered.append(taker)
        else:
            self.is_sooner = self.is_sooner or until < self._waiting[taker]
            self._waiting[taker] = until

    def take_answered(self) -> list[Taker]:
        answered, self._answered = self._answered, []
        return answered

    def next_deadline(self) -> Instant:
        return min(self._waiting.values(), default=NEVER)
