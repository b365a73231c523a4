"""Decides how a Lambda function works through the records of one invocation, and from which record Lambda has to retry.

Retries, bisection and dead letters are decided by the failure policy (``failure_policy.BatchWork``), as in a consumer.

Invariants:

- Records are handled in order, one record or batch at a time. So the records that are done are always the first ones.
- Lambda retries from a *Kinesis* record, which may be an aggregate. Every record that is not done is delivered again.
  If an aggregate contains such a record, all its records are delivered again, even those that are done.
- With a tumbling window, the returned state covers exactly the records before the reported record. So the reported
  record must follow a place where both a call and a Kinesis record have ended. If a successful batch ends inside an
  aggregate, and a later record of that aggregate is not done, the function goes back to the last such place.
- Once the time is up, no call begins, and no retry is waited for. A dead letter that is due is still written. Otherwise
  a record that takes all the time to fail would block its shard.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, TypeAlias, final

from shardline.codec.lambda_events import State
from shardline.core.backoff import Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import HandlingEvent
from shardline.core.consumer.failure_policy import BatchWork, FailurePolicy, WriteDeadLetter
from shardline.core.consumer.handler_errors import ErrorSummary
from shardline.model.record import Record


@final
class HandleEach(NamedTuple):
    """Call the handler with each record from ``LambdaInvocation.done`` on, and add 1 to ``done`` after each success.

    Begin no call at ``give_up_at`` or later, and stop after a call that fails.
    """

    records: Sequence[Record]
    give_up_at: Instant


@final
class CallHandler(NamedTuple):
    """Call the handler once with these records, or with the single record if the function does not use batches."""

    records: Sequence[Record]


InvocationStep: TypeAlias = HandleEach | CallHandler | WriteDeadLetter


class Ending(Enum):
    """Why an invocation no longer calls the handler."""

    DONE = auto()
    STOPPED = auto()  # the policy gave up
    OUT_OF_TIME = auto()


@final
class LambdaInvocation:
    """Handles the records of one event.

    The shell answers each step with ``handle_success``, ``handle_error`` or ``handle_cancelled``.

    Args:
        records: the records of the event, in order.
        policy: what to do when the handler fails.
        rng: the source of the jitter in the waits.
        batch: the number of records that the handler takes at a time, or ``None`` if it takes single records.
        state: the state of the tumbling window, or ``None`` if there is no window.
        give_up_at: the time at which to stop calling the handler.
    """

    def __init__(
        self,
        records: Sequence[Record],
        policy: FailurePolicy,
        rng: Chance,
        *,
        batch: int | None = None,
        state: State | None = None,
        give_up_at: Instant = NEVER,
    ) -> None:
        self.records: Sequence[Record] = records
        self._policy: FailurePolicy = policy
        self._rng: Chance = rng
        self._batch: int | None = batch
        self._give_up_at: Instant = give_up_at
        self._work: BatchWork | None = None
        self._step: InvocationStep | None = None  # the step that is not answered yet
        self._events: list[HandlingEvent] = []
        self._state_before: tuple[int, State | None] = (0, state)  # the last place to which the state can go back
        self.state: State | None = state
        """The state after the last call that succeeded."""
        self.done: int = 0
        """How many records are done. During a ``HandleEach`` step, the shell writes this field."""
        self.ending: Ending | None = None
        """Why the invocation is over, or ``None`` if it is not over."""

    # ---- queries

    @property
    def retry_from(self) -> int | None:
        """The index of the first record that Lambda delivers again, or ``None`` if all records are done."""
        if self.done == len(self.records):
            return None
        if self.state is not None:
            return self._state_before[0]
        place, number = self.done, self.records[self.done].sequence_number
        while place and self.records[place - 1].sequence_number == number:
            place -= 1
        return place

    @property
    def state_to_return(self) -> State | None:
        """The state of the window, which does not include the records that Lambda delivers again."""
        return self._state_before[1]

    @property
    def part(self) -> Sequence[Record]:
        """The records that failed, or that there was no time to handle."""
        return self.records[self.done : self.done + (self._batch or 1)] if self._work is None else self._work.part

    @property
    def error(self) -> object:
        """The last error raised for ``part``, by the handler or while writing the dead letter, or ``None`` if no error
        was raised.
        """
        return None if self._work is None else self._work.error

    # ---- outputs, time

    def poll_step(self, now: Instant) -> InvocationStep | None:
        """Return the next step.

        The result is ``None`` if the invocation is over or must wait until ``next_deadline``.
        """
        assert self._step is None, "each step is answered before the next"
        self._step = self._next_step(now)
        return self._step

    def take_events(self) -> list[HandlingEvent]:
        """Return the events about failures since the last call."""
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> Instant:
        return NEVER if self._work is None else self._work.next_deadline()

    # ---- inputs

    def handle_success(self, now: Instant, state: State | None = None) -> None:
        """Called when the step succeeded. ``state`` is the new state of the window, or ``None`` if it is unchanged."""
        step, self._step = self._step, None
        if isinstance(step, HandleEach):
            return
        work = self._work
        assert work is not None, "there is work in progress"
        if isinstance(step, CallHandler):
            self.state = self.state if state is None else state
            work.handle_success(now)
        else:
            work.handle_dead_letter_written(now)
        self._take_results(work)

    def handle_error(self, error: object, now: Instant, summary: ErrorSummary) -> None:
        """Called when the handler failed, or the dead letter could not be written."""
        step, self._step = self._step, None
        work = self._work
        if isinstance(step, HandleEach):
            work = self._work = BatchWork([self.records[self.done]], self._policy, self._rng, now)
            work.poll_attempt(now)
        assert work is not None, "there is work in progress"
        if isinstance(step, WriteDeadLetter):
            work.handle_dead_letter_failed(error, now, summary)
        else:
            work.handle_error(error, now, summary)
        self._take_results(work)

    def handle_cancelled(self) -> None:
        """Called when the step was cancelled because the time was up."""
        self._step = None
        self.ending = Ending.OUT_OF_TIME

    # ---- internal

    def _next_step(self, now: Instant) -> InvocationStep | None:
        if self.ending is None and self._work is None:
            self._begin(now)
        work = self._work
        if self.ending is not None:
            return None
        if work is None:
            return HandleEach(self.records, self._give_up_at)
        letter = work.poll_dead_letter(now)
        if letter is not None:
            return WriteDeadLetter(letter)
        if max(now, work.next_deadline()) >= self._give_up_at:
            self.ending = Ending.OUT_OF_TIME
            return None
        part = work.poll_attempt(now)
        return None if part is None else CallHandler(part)

    def _begin(self, now: Instant) -> None:
        """Begin with the records that are not done, if there are such records and time is left."""
        if self.done == len(self.records):
            self.ending = Ending.DONE
        elif now >= self._give_up_at:
            self.ending = Ending.OUT_OF_TIME
        elif self._batch is not None:
            batch = self.records[self.done : self.done + self._batch]
            self._work = BatchWork(batch, self._policy, self._rng, now)

    def _take_results(self, work: BatchWork) -> None:
        self.done += len(work.take_done())
        self._events += work.take_events()
        records, done = self.records, self.done
        if done == len(records) or not done or records[done].sequence_number != records[done - 1].sequence_number:
            self._state_before = (done, self.state)
        if work.is_stopped:
            self.ending = Ending.STOPPED
        elif work.is_done:
            self._work = None
