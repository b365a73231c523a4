"""Decides what happens to a batch when its handler fails.

Failed records are never skipped silently. The batch is retried, then bisected until the failing record is alone, and
that record is either dead-lettered or stops the consumer.

Invariants:

- Records are handled in order, one part of the batch at a time. The later parts wait.
- A record is done once its handler has succeeded or its dead letter has been written. If neither is possible, the
  consumer stops, and this record and all records after it are delivered again.
- The whole batch and a record that is alone get all attempts, with growing and jittered pauses. A part of any other
  size gets a single attempt, without a pause. So finding one poison record among ten thousand takes about thirty calls,
  not thirty times the number of attempts.
- A handler that was fenced, because another worker has taken the lease, did not fail because of its records. These
  records are not retried, bisected or dead-lettered: they wait until the lease is found to be lost. If a later renewal
  proves that this worker has the lease after all, the fence was wrong, and the consumer stops.
- Every failure other than a fenced handler causes exactly one event (``take_events``). If a handler fails, the event is
  ``HandlerRetried``, ``RecordsDeadLettered`` or ``HandlingStopped``. If a dead letter cannot be written, the event is
  ``DeadLetterFailed``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

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
# The pause after a lease has lapsed, in seconds. When the pause is over, either the lease is lost or a late renewal has
# extended it.
_LAPSED_PAUSE: Final = 0.1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """How often to retry a failing record, and what to do after the last attempt."""

    attempts: int = 5
    """How many times, at most, the handler gets a record or a whole batch."""
    backoff: float = 0.5
    """The pause after the first failure, in seconds. Each further failure doubles the pause."""
    backoff_max: float = 30.0
    """The longest pause between two attempts, in seconds."""
    bisect: bool = True
    """Whether a failing batch is halved repeatedly until the failing record is alone. If false, the whole batch is
    dead-lettered, or stops the run.
    """
    finally_: Finally = "stop"
    """What happens after the last attempt: ``stop`` or ``dead-letter``. Passing ``dead_letter=`` implies
    ``dead-letter``.
    """

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
    """Records that failed on the last attempt, with the handler's error."""

    records: Sequence[Record[Any]]
    attempts: int
    error: object


@final
class WriteDeadLetter(NamedTuple):
    """The step of a handler task, or of a Lambda invocation, that writes this dead letter."""

    letter: DeadLetter


class _Phase(Enum):
    WAITING = auto()  # the next attempt is due at _next_at
    HANDLING = auto()
    DEAD_LETTER_DUE = auto()  # the next attempt to write the dead letter is due at _next_at
    WRITING = auto()  # the dead letter is being written
    FENCED = auto()  # the handler was fenced; whether the lease was renewed since is checked at _next_at
    STOPPED = auto()
    DONE = auto()


@final
class BatchWork:
    """The handling of one batch: its attempts, its bisection and its dead letters."""

    def __init__(self, records: Sequence[Record], policy: FailurePolicy, rng: Chance, now: Instant) -> None:
        assert records, "a batch has records"
        self._policy: FailurePolicy = policy
        self._rng: Chance = rng
        self._size: int = len(records)
        self._parts: list[Sequence[Record]] = [records]  # the unfinished parts, in reverse order
        self._attempts: int = 0  # the number of attempts on the current part
        self._backoff: Backoff = self._new_backoff()
        self._next_at: Instant = now
        self._phase: _Phase = _Phase.WAITING
        self._fenced_at: Instant = NEVER
        self._done: list[Record] = []
        self._events: list[HandlingEvent] = []
        self._handler_error: object = None
        self._summary: ErrorSummary = _NOT_DESCRIBED  # describes the handler's error
        self.error: object = None
        """The last error that was raised by the handler, or while writing the dead letter."""

    @property
    def is_done(self) -> bool:
        return self._phase is _Phase.DONE

    @property
    def is_stopped(self) -> bool:
        """Whether the policy gave up on the current part. If so, the consumer has to stop."""
        return self._phase is _Phase.STOPPED

    @property
    def part(self) -> Sequence[Record]:
        """The current part. After a stop, these are the records that failed."""
        return self._parts[-1]

    # ---- outputs, time

    def poll_attempt(self, now: Instant) -> Sequence[Record] | None:
        """Return the records to pass to the handler now. The caller answers with ``handle_success``,
        ``handle_error`` or ``handle_not_called``.
        """
        if self._phase is not _Phase.WAITING or now < self._next_at:
            return None
        self._phase = _Phase.HANDLING
        self._attempts += 1
        return self._parts[-1]

    def poll_dead_letter(self, now: Instant) -> DeadLetter | None:
        """Return the dead letter to write now. The caller answers with ``handle_dead_letter_written`` or
        ``handle_dead_letter_failed``.
        """
        if self._phase is not _Phase.DEAD_LETTER_DUE or now < self._next_at:
            return None
        self._phase = _Phase.WRITING
        return DeadLetter(self._parts[-1], self._attempts, self._handler_error)

    def take_done(self) -> list[Record]:
        """Return the records that have been finished since the last call, in order."""
        done, self._done = self._done, []
        return done

    def take_events(self) -> list[HandlingEvent]:
        """Return the events about failures since the last call."""
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> Instant:
        return self._next_at if self._phase in (_Phase.WAITING, _Phase.DEAD_LETTER_DUE, _Phase.FENCED) else NEVER

    # ---- inputs

    def handle_success(self, now: Instant) -> None:
        assert self._phase is _Phase.HANDLING
        self._finish_part(now)

    def handle_not_called(self, now: Instant) -> None:
        """Try again later: the lease had lapsed, so the handler was not called, or the dead letter was not written.
        This does not count as an attempt.
        """
        if self._phase is _Phase.WRITING:
            self._phase = _Phase.DEAD_LETTER_DUE
        else:
            assert self._phase is _Phase.HANDLING
            self._attempts -= 1
            self._phase = _Phase.WAITING
        self._next_at = now + _LAPSED_PAUSE

    def handle_fenced(self, error: object, now: Instant, summary: ErrorSummary = _NOT_DESCRIBED) -> None:
        """Wait for the loss of the lease: the handler raised ``LeaseNotHeld``, because another worker has taken the
        lease.
        """
        assert self._phase is _Phase.HANDLING
        self.error, self._summary = error, summary
        self._phase, self._fenced_at, self._next_at = _Phase.FENCED, now, now + _LAPSED_PAUSE

    def handle_renewed(self, sent_at: Instant, now: Instant) -> None:
        """Stop if the handler was fenced even though this worker has the lease.

        Args:
            sent_at: when the last confirmed renewal was sent. If this was after the handler was fenced, the lease was
                not taken by another worker.
            now: the current time.
        """
        if self._phase is not _Phase.FENCED:
            return
        if sent_at > self._fenced_at:
            self._phase = _Phase.STOPPED
            self._events.append(HandlingStopped(*_about(self._parts[-1]), self._attempts, *self._summary))
        elif now >= self._next_at:
            self._next_at = now + _LAPSED_PAUSE

    def handle_error(self, error: object, now: Instant, summary: ErrorSummary = _NOT_DESCRIBED) -> None:
        """Handle an error that the handler raised. ``summary`` describes the error in events."""
        assert self._phase is _Phase.HANDLING
        self.error = self._handler_error = error
        self._summary = summary
        part, attempts = self._parts[-1], self._attempts
        if self._attempts < self._allowed(part):
            self._wait(_Phase.WAITING, now)
            self._events.append(HandlerRetried(*_about(part), attempts, *summary, self._next_at))
        elif len(part) > 1 and self._policy.bisect:
            # The first half is handled first, to keep the order of the records.
            middle = len(part) // 2
            self._parts[-1:] = [part[middle:], part[:middle]]
            self._start_part(now)
            self._events.append(HandlerRetried(*_about(part), attempts, *summary, self._next_at))
        elif self._policy.finally_ == "stop":
            self._phase = _Phase.STOPPED
            self._events.append(HandlingStopped(*_about(part), attempts, *summary))
        else:
            self._backoff = self._new_backoff()
            self._phase, self._next_at = _Phase.DEAD_LETTER_DUE, now

    def handle_dead_letter_written(self, now: Instant) -> None:
        assert self._phase is _Phase.WRITING
        self._events.append(RecordsDeadLettered(*_about(self._parts[-1]), self._attempts, *self._summary))
        self._finish_part(now)

    def handle_dead_letter_failed(self, error: object, now: Instant, summary: ErrorSummary = _NOT_DESCRIBED) -> None:
        """Retry a dead letter that could not be written, or stop after the last attempt."""
        assert self._phase is _Phase.WRITING
        self.error = error
        writes = self._backoff.failures + 1
        if writes < self._policy.attempts:
            self._wait(_Phase.DEAD_LETTER_DUE, now)
        else:
            self._phase = _Phase.STOPPED
        self._events.append(DeadLetterFailed(*_about(self._parts[-1]), writes, *summary, self.next_deadline()))

    # ---- internal

    def _allowed(self, part: Sequence[Record]) -> int:
        """Return the number of attempts for this part."""
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
        return Backoff(self._policy.backoff, self._policy.backoff_max, self._rng)


def _about(part: Sequence[Record]) -> tuple[str, str, int, int]:
    """Return the first fields of an event: the shard, the first record's position, and the number of records."""
    first = part[0]
    return first.shard_id or "", first.sequence_number or "", first.sub_sequence, len(part)
