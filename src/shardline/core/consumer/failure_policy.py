"""What becomes of a batch whose handler fails?

A failing handler is never skipped in silence: the batch is tried again, then taken apart until the record that fails is
alone, and that record goes to the dead letters, or stops the consumer. There is no third way.

Invariants:

- Records are handled in order, and one part at a time: what comes later in the batch waits.
- A record is done once its handler succeeded, or its dead letter was written. Neither: the consumer stops, and
  the record, like all after it, comes again.
- The whole batch, and a record that is alone, get all attempts, with growing and jittered waits between them; the
  parts on the way from one to the other get a single one, at once: finding a poisonous record among ten thousand takes
  some thirty calls, not thirty times the attempts.
- Each failure makes exactly one event (``take_events``). A failed handler makes ``HandlerRetried``,
  ``RecordsDeadLettered`` or ``HandlingStopped``; a dead letter that cannot be written makes ``DeadLetterFailed``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Final, Literal, NamedTuple, TypeAlias, final

from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import (
    DeadLetterFailed,
    HandlerRetried,
    HandlingEvent,
    HandlingStopped,
    RecordsDeadLettered,
)
from shardline.core.consumer.handler_errors import ErrorSummary
from shardline.core.setting_checks import check_choice, check_number
from shardline.errors import UsageError
from shardline.model.record import Record

Finally: TypeAlias = Literal["stop", "dead-letter"]

_NOT_DESCRIBED: Final = ErrorSummary("", "", "")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """How often to retry a failing record, and what to do after the last attempt."""

    attempts: int = 5
    """How often the consumer passes a record, or a whole batch, to the handler."""
    backoff: float = 0.5
    """The pause after the first failure, in seconds. Each further failure doubles it."""
    backoff_max: float = 30.0
    """The longest pause between two attempts, in seconds."""
    bisect: bool = True
    """Whether a failing batch is split in halves until the failing record is alone. Otherwise the whole batch is
    dead-lettered, or stops the run."""
    finally_: Finally = "stop"
    """What happens after the last attempt: ``stop`` or ``dead-letter``. Passing ``dead_letter=`` implies the latter."""

    def __post_init__(self) -> None:
        check_number("attempts", self.attempts, 1, inf, whole=True)
        for name in ("backoff", "backoff_max"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 3_600:  # noqa: PLR2004
                raise UsageError(f"{name} must be a number above 0, up to 3600, not {value!r}")
        if self.backoff > self.backoff_max:
            raise UsageError(f"backoff must be at most backoff_max ({self.backoff_max!r}), not {self.backoff!r}")
        check_choice("finally_", self.finally_, "stop", "dead-letter")


@final
class DeadLetter(NamedTuple):
    """Records that failed for good, and why."""

    records: Sequence[Record]
    attempts: int
    error: object


class _Phase(Enum):
    WAITING = auto()  # for the moment of the next attempt
    HANDLING = auto()
    BURYING = auto()  # a dead letter is to be written
    WRITING = auto()  # and is being written
    STOPPED = auto()
    DONE = auto()


@final
class BatchWork:
    """One batch of one shard on its way through a handler."""

    def __init__(self, records: Sequence[Record], policy: FailurePolicy, chance: Chance, now: Instant) -> None:
        assert records, "a batch has records"
        self._policy: FailurePolicy = policy
        self._chance: Chance = chance
        self._size: int = len(records)
        self._parts: list[Sequence[Record]] = [records]  # what is left, the first part last
        self._attempts: int = 0  # of the first part
        self._backoff: Backoff = self._new_backoff()
        self._next_at: Instant = now
        self._phase: _Phase = _Phase.WAITING
        self._done: list[Record] = []
        self._events: list[HandlingEvent] = []
        self._handler_error: object = None
        self._summary: ErrorSummary = _NOT_DESCRIBED  # of the handler's error
        self.error: object = None
        """What went wrong last: in the handler, or in writing the dead letter."""

    @property
    def is_done(self) -> bool:
        return self._phase is _Phase.DONE

    @property
    def is_stopped(self) -> bool:
        """Whether it failed for good, and the consumer has to stop."""
        return self._phase is _Phase.STOPPED

    @property
    def part(self) -> Sequence[Record]:
        """What it stands at: after a stop, the records that failed."""
        return self._parts[-1]

    # ---- outputs, time

    def poll_attempt(self, now: Instant) -> Sequence[Record] | None:
        """What the handler shall work on now; answered by ``handle_success`` or ``handle_error``."""
        if self._phase is not _Phase.WAITING or now < self._next_at:
            return None
        self._phase = _Phase.HANDLING
        self._attempts += 1
        return self._parts[-1]

    def poll_dead_letter(self, now: Instant) -> DeadLetter | None:
        """What to write; answered by ``handle_buried`` or ``handle_burial_failed``."""
        if self._phase is not _Phase.BURYING or now < self._next_at:
            return None
        self._phase = _Phase.WRITING
        return DeadLetter(self._parts[-1], self._attempts, self._handler_error)

    def take_done(self) -> list[Record]:
        """Records that are done since the last call, in order."""
        done, self._done = self._done, []
        return done

    def take_events(self) -> list[HandlingEvent]:
        """What became of the failures since the last call."""
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> Instant:
        return self._next_at if self._phase in (_Phase.WAITING, _Phase.BURYING) else NEVER

    # ---- inputs

    def handle_success(self, now: Instant) -> None:
        assert self._phase is _Phase.HANDLING
        self._finish_part(now)

    def handle_error(self, error: object, now: Instant, summary: ErrorSummary = _NOT_DESCRIBED) -> None:
        """The handler failed. ``summary`` is what events say of the error."""
        assert self._phase is _Phase.HANDLING
        self.error = self._handler_error = error
        self._summary = summary
        part, attempts = self._parts[-1], self._attempts
        if self._attempts < self._allowed(part):
            self._wait(_Phase.WAITING, now)
            self._events.append(HandlerRetried(*_about(part), attempts, *summary, self._next_at))
        elif len(part) > 1 and self._policy.bisect:
            middle = len(part) // 2
            self._parts[-1:] = [part[middle:], part[:middle]]
            self._start_part(now)
            self._events.append(HandlerRetried(*_about(part), attempts, *summary, self._next_at))
        elif self._policy.finally_ == "stop":
            self._phase = _Phase.STOPPED
            self._events.append(HandlingStopped(*_about(part), attempts, *summary))
        else:
            self._backoff = self._new_backoff()
            self._phase, self._next_at = _Phase.BURYING, now

    def handle_buried(self, now: Instant) -> None:
        """The dead letter was written."""
        assert self._phase is _Phase.WRITING
        self._events.append(RecordsDeadLettered(*_about(self._parts[-1]), self._attempts, *self._summary))
        self._finish_part(now)

    def handle_burial_failed(self, error: object, now: Instant, summary: ErrorSummary = _NOT_DESCRIBED) -> None:
        """It was not: again, and then the consumer stops."""
        assert self._phase is _Phase.WRITING
        self.error = error
        writes = self._backoff.failures + 1
        if writes < self._policy.attempts:
            self._wait(_Phase.BURYING, now)
        else:
            self._phase = _Phase.STOPPED
        self._events.append(DeadLetterFailed(*_about(self._parts[-1]), writes, *summary, self.next_deadline()))

    # ---- within

    def _allowed(self, part: Sequence[Record]) -> int:
        """How many attempts it gets."""
        return self._policy.attempts if len(part) in (1, self._size) else 1

    def _finish_part(self, now: Instant) -> None:
        self._done += self._parts.pop()
        if self._parts:
            self._start_part(now)
        else:
            self._phase = _Phase.DONE

    def _start_part(self, now: Instant) -> None:
        self._attempts = 0
        self._backoff = self._new_backoff()
        self._phase, self._next_at = _Phase.WAITING, now

    def _wait(self, phase: _Phase, now: Instant) -> None:
        self._phase, self._next_at = phase, now + self._backoff.next_delay()

    def _new_backoff(self) -> Backoff:
        return Backoff(self._policy.backoff, self._policy.backoff_max, self._chance)


def _about(part: Sequence[Record]) -> tuple[str, str, int, int]:
    """How an event names records: the shard, the place of the first, and how many they are."""
    first = part[0]
    return first.shard_id or "", first.sequence_number or "", first.sub_sequence, len(part)
