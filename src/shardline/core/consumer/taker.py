"""The mailboxes between user code and the host: user code asks for records, and the host writes the answer.

A taker is the mailbox of one iterator, of one handler's task, or of one run. ``Questions`` is the host's list of the
takers that are waiting for an answer.

Invariants:

- User code writes ``asked``, ``caller`` and ``waiting``, and the host writes all other fields. No lock is needed,
  because each write is a single assignment or one call of a ``deque`` method.
- There is one caller at a time: a second task or thread that asks while the first one waits is refused.
- A caller whose wait was interrupted or cancelled takes no records. If the host opens a cursor later, the cursor stays
  with the taker for the next caller. An interrupted wait blocks neither other callers nor the same caller.
- Each question is answered once. An answer covers every question that was asked before it. User code may already work
  on the answer when an older question reaches the host, and that question must not mark this work as done.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_config import Order
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.held_shard import HeldShard


class Waiting(Protocol):
    """One wait of a task or thread for an answer. The shell creates an object for each wait."""

    @property
    def caller(self) -> object: ...
    def wake(self) -> None: ...


class Taker(ABC):
    """The mailbox of an iteration, of a handler's task, or of a run, which takes shards for its handlers.

    User code asks like this::

        if not taker.enter(mine, has_ended):
            raise UsageError(...)
        try:
            make the host call ask(taker, number, now), with number = taker.asked
            wait until taker.answered >= number
        finally:
            taker.leave(mine)

    The answer is in ``cursor``, or ``is_over`` is true.
    """

    def __init__(
        self,
        number: int = 0,
        *,
        limit: int | None = None,
        max_wait: float = 0.0,
        whole: bool = False,
        order: Order = "shard",
        is_pooled: bool = False,
    ) -> None:
        self.number: int = number
        """The number of the iteration or run. Later iterations and runs have greater numbers."""
        self.limit: int | None = limit
        """The maximum number of records in a cursor. ``None`` means the rest of one page."""
        self.max_wait: float = max_wait
        """How long to wait for ``limit`` records once there is at least one record, in seconds."""
        self.whole: bool = whole
        """Whether user code takes all records of a cursor at once, as a batch."""
        self.order: Order = order
        """Which records may be handed out to other takers of the run while this taker has records."""
        self.is_pooled: bool = is_pooled
        """Whether the taker belongs to a run with ``concurrency``: all shards take turns, and the taker is bound to a
        shard while it has records of that shard.
        """
        # The host writes the following six fields. User code reads them after it was woken.
        self.shard: HeldShard | None = None
        """The shard that the taker is bound to. A pooled taker is bound while it has records of the shard. Any other
        bound taker takes records from this shard only. ``None`` means that the taker is not bound.
        """
        self.cursor: Cursor = Cursor()
        """The last answer that contained records."""
        self.is_over: bool = False
        """Whether the taker will get no more records."""
        self.is_at_work: bool = False
        """Whether the taker's handler is running."""
        self.answered: int = 0
        """The number of the last answered question."""
        self.measured_at: Instant = -NEVER
        """The load of the shard already includes the time for which user code had its records, up to this instant."""
        # User code writes the following three fields. The host only reads them.
        self.asked: int = 0
        """The number of the last question."""
        self.caller: object = None
        """The task or thread that asked last."""
        self.waiting: deque[Waiting] = deque()
        """The waits in progress. The current caller's wait comes first."""

    @property
    def is_summed(self) -> bool:
        """Whether the taker gets single records. If so, one event counts the records of many takers."""
        return self.is_pooled and not self.whole

    # ---- user code

    @property
    def has_records(self) -> bool:
        """Whether user code has taken records that are possibly not done yet."""
        return self.cursor.place > 0 and self.cursor.end > 0

    def enter(self, mine: Waiting, has_ended: Callable[[object], bool]) -> bool:
        """Become the current caller and count the question. Return False if another live caller is already waiting."""
        waiting = self.waiting
        # Append first and then check for other callers, so that two callers that enter at the same time see each other,
        # whatever the order of their steps.
        waiting.append(mine)
        while (first := waiting[0]) is not mine:
            if first.caller is not mine.caller and not has_ended(first.caller):
                self.leave(mine)
                return False
            self.leave(first)  # an interrupt, or the end of its task, prevented the removal of this wait
        self.caller = mine.caller
        self.asked += 1
        return True

    def leave(self, mine: Waiting) -> None:
        """Remove the wait, however it ended. It is safe to call this twice."""
        # Another caller may have removed this wait in ``enter``, because it took the caller for dead.
        try:  # noqa: SIM105 - suppress() costs more than the rest, and this runs for each record
            self.waiting.remove(mine)
        except ValueError:
            pass

    def is_awaited(self, caller: object, has_ended: Callable[[object], bool]) -> bool:
        """Return whether a live caller other than ``caller`` is waiting for an answer."""
        # Copy the queue first: another thread may change it during the iteration.
        return any(wait.caller is not caller and not has_ended(wait.caller) for wait in [*self.waiting])

    # ---- the host

    @abstractmethod
    def serve(self, now: Instant) -> Instant | None:
        """Try to answer. Return ``None`` if the answer is ready, otherwise the time of the next attempt. An event may
        make an earlier attempt necessary.
        """

    def handle_gained(self, shard: HeldShard) -> None:  # noqa: B027 - only a run implements it
        """Called when the worker gained the lease of this shard."""

    def handle_rest(self) -> None:  # noqa: B027 - only the task of a handler implements it
        """Note that the taker's handler is no longer running."""

    def wake(self) -> None:
        """Wake the callers, because the answer is ready."""
        # Copy the queue first: a caller that is woken may leave it at once, in its own thread.
        for wait in [*self.waiting]:
            wait.wake()


@final
class Questions:
    """The takers that are waiting for an answer."""

    def __init__(self) -> None:
        self._waiting: dict[Taker, Instant] = {}  # when to serve each taker again at the latest
        self._due: dict[Taker, None] = {}  # the takers to serve next; those that are not waiting are ignored
        self._answered: list[Taker] = []
        self._is_serving: bool = False
        self.is_sooner: bool = False
        """Whether ``next_deadline`` has moved to an earlier time. The hand-out resets this field."""

    def ask(self, taker: Taker, number: int) -> None:
        """Add the taker's question, unless an answer has already covered it."""
        if number > taker.answered:
            self._waiting[taker] = NEVER
            self._due[taker] = None

    def withdraw(self, taker: Taker) -> None:
        """Remove the taker's question, so that it will not be answered."""
        self._waiting.pop(taker, None)

    def mark_due(self, takers: Iterable[Taker] | None = None) -> None:
        """Serve these takers next, if they are waiting, because their answers may have changed. ``None`` means all
        takers.
        """
        self._due.update(dict.fromkeys(self._waiting if takers is None else takers))

    def mark_one_due(self, taker: Taker) -> None:
        """Like ``mark_due``, for one taker."""
        self._due[taker] = None

    def handle_time(self, now: Instant) -> None:
        self.mark_due(taker for taker, until in self._waiting.items() if until <= now)

    def serve(self, now: Instant) -> None:
        """Answer the due takers. If serving a taker makes other takers due, these are served in the same call."""
        # Serving a taker may call ``serve`` again, through the hand-out. The inner call returns, and the loop below
        # continues with the new due takers.
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
            # Use the number of the last question, not of this one: user code may have asked again after an interrupt,
            # and this answer also covers that question.
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
