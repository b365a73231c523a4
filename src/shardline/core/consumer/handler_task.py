"""Decides what the task of a handler does next.

A run has one task for each lease that the consumer holds or, with ``concurrency``, a pool of tasks that take the
records of all leases (``handler_pool``). The task asks for a *step*: handle the records of a cursor, call the handler
with certain records, write a dead letter, or stop. The task carries out the step and asks again with the outcome. The
failure policy (``failure_policy.BatchWork``) decides about retries, bisection and dead letters.

Invariants (C5 and L2 are defined in docs/guarantees.md):

- Within a shard, records are handled in order, one record or batch at a time. With ``order="key"``, only records with
  the same key are handled in order, and with ``order="none"``, no records are (``key_lanes``).
- A record is done when its handler has returned or its dead letter has been written. If the policy stops the run, the
  record is delivered again later.
- A handler is *at work* from the moment when its task gets a step until the task asks again or leaves. This includes
  threads and sections that are shielded from cancellation, so the next task of the same shard waits for the handler.
- A handler that raises ``LeaseNotHeld`` for its shard was *fenced*: its records are given back when the lease is found
  to be lost. The same holds for any error after the loss of the lease.
- When the consumer is closed, or another worker asks for the lease, the handler may finish its current records. A batch
  that waits for a retry is given back to the queue.
"""

from typing import Any, Final, NamedTuple, TypeAlias, final

from shardline.core.backoff import Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_config import Order
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.failure_policy import BatchWork, FailurePolicy, WriteDeadLetter
from shardline.core.consumer.handler_errors import ErrorSummary
from shardline.core.consumer.handler_pool import HandlerPool
from shardline.core.consumer.handout import HandOut
from shardline.core.consumer.held_shard import HeldShard
from shardline.core.consumer.taker import Taker
from shardline.core.consumer.travel_size import TravelSize
from shardline.errors import LeaseNotHeld
from shardline.model.record import Record


@final
class Handle(NamedTuple):
    """Take the records of the cursor one by one and call the handler with each record, until the cursor is closed or a
    call fails. After a failure, the record that was taken last is the failed record.
    """

    cursor: Cursor


@final
class Attempt(NamedTuple):
    """Call the handler once with these records, or with the single record if the run does not use batches.

    First check whether the lease is still held, because the process may have been suspended after it got this step. If
    the lease is not held, do not call the handler, and answer with ``NOT_CALLED``. The same applies to
    ``WriteDeadLetter``.
    """

    records: list[Record[Any]]


@final
class Stop(NamedTuple):
    """End the run with ``HandlerFailed``, because the last attempt failed."""

    shard_id: str
    records: list[Record[Any]]
    error: object


Step: TypeAlias = Handle | Attempt | WriteDeadLetter | Stop


@final
class Outcome(NamedTuple):
    """The outcome of a step.

    ``error`` is the exception that was raised by the handler or while writing the dead letter, or ``None``.
    """

    error: object = None
    summary: ErrorSummary = ErrorSummary("", "", "")


NOT_CALLED: Final = Outcome()
"""The outcome of a step that was not carried out, because the lease had lapsed (L2)."""


@final
class HandlerTask(Taker):
    """The task that calls the handler for one lease, or for the leases of a pool (``shard=None``). The answer to the
    task's request is ``step``, which is ``None`` if the task ends.

    The shell writes ``outcome`` before it requests a step, and sets ``cursor.taken_at`` when it calls the handler.
    """

    def __init__(self, run: "Run", shard: HeldShard | None) -> None:
        super().__init__(
            run.number,
            limit=run.limit,
            max_wait=run.max_wait,
            whole=run.whole,
            order=run.order,
            is_pooled=shard is None,
        )
        self._pool: HandlerPool | None = run.pool if shard is None else None
        self._hand_out: HandOut = run.hand_out
        self._policy: FailurePolicy = run.policy
        self._rng: Chance = run.rng
        self._travel: TravelSize | None = run.travel
        self._work: BatchWork | None = None
        self.step: Step | None = None
        self.outcome: Outcome = Outcome()
        """The outcome of the last step. The shell writes this field."""
        if shard is not None:
            self._hand_out.bind(self, shard)

    @property
    def is_lease_held(self) -> bool:
        """Whether the handler may be called with the records of the last step, according to the shell's clock (L2)."""
        return self.shard is not None and self.shard.grant.held

    def serve(self, now: Instant) -> Instant | None:
        if self.is_at_work:
            self.cursor.taken_at = None
            self._count_handled(now)
            self._handle_outcome(now)
            self._hand_out.handle_work_ended(self, now)  # this also calls handle_rest
        else:
            self.handle_rest()
        found = self._next(now)
        if found is not None and not isinstance(found, Handle | Attempt | WriteDeadLetter | Stop):
            return found
        self.step = found
        self.is_over, self.is_at_work = found is None, found is not None
        self.cursor.counted_at = now
        if self._pool is not None:
            if found is None:
                self.handle_rest()
            else:
                self._pool.start(self)
            self._hand_out.wake_run()
        return None

    def handle_rest(self) -> None:
        if self._pool is not None:
            self._pool.rest(self)

    def _count_handled(self, now: Instant) -> None:
        """Count the records that the last step has finished."""
        step, cursor, shard = self.step, self.cursor, self.shard
        has_failed = self.outcome.error is not None
        assert shard is not None, "a handler works on one shard"
        work, key = self._hand_out.work, shard.key
        if isinstance(step, Handle):
            if self._travel is not None:
                self._travel.handle_returned(cursor.place - has_failed - cursor.counted, now - cursor.counted_at)
            work.count_handled(key, cursor, cursor.place - has_failed, now, is_summed=self.is_summed)
        elif isinstance(step, Attempt) and not has_failed and self.outcome is not NOT_CALLED:
            count = cursor.counted + len(step.records)
            work.count_handled(key, cursor, count, now, is_summed=self.is_summed)
        elif isinstance(step, WriteDeadLetter) and not has_failed and self.outcome is not NOT_CALLED:
            cursor.counted += len(step.letter.records)

    def _handle_outcome(self, now: Instant) -> None:
        step, (error, summary) = self.step, self.outcome
        if isinstance(step, Handle):
            # Records that are in a message with the failed record, and have other keys, do not wait for it.
            if error is not None and self._hand_out.keep_failed(self, now):
                # The first call was made on the fast path, without a BatchWork. Create a BatchWork now, as if it had
                # made that attempt.
                self._work = BatchWork([self.cursor.records[self.cursor.place - 1]], self._policy, self._rng, now)
                self._work.poll_attempt(now)
                self._handle_error(self._work, now)
            return
        work = self._work
        assert work is not None, "the step came from the policy"
        if self.outcome is NOT_CALLED:
            work.handle_not_called(now)
        elif isinstance(step, Attempt):
            if error is None:
                work.handle_success(now)
            else:
                self._handle_error(work, now)
        else:
            assert isinstance(step, WriteDeadLetter), "the task asks for no step after a stop"
            if error is not None:
                work.handle_dead_letter_failed(error, now, summary)
                return
            if self._hand_out.is_manual:
                # With manual acknowledgements, the handler acknowledges its records. This handler failed, so the dead
                # letter acknowledges them instead.
                for record in step.letter.records:
                    self._hand_out.ack(record, now)
            work.handle_dead_letter_written(now)

    def _handle_error(self, work: BatchWork, now: Instant) -> None:
        (error, summary), shard = self.outcome, self.shard
        assert shard is not None, "a handler works on one shard"
        is_lost = shard.is_over and not shard.grant.in_force(now)  # after a seek, a shard is over and its lease is not
        if is_lost or (isinstance(error, LeaseNotHeld) and self._hand_out.name_of(shard.key) in error.shards):
            work.handle_fenced(error, now, summary)
        else:
            work.handle_error(error, now, summary)

    def _next(self, now: Instant) -> Step | Instant | None:
        while True:
            if self._work is not None:
                step = self._next_of(self._work, now)
                if step is not None:
                    return step
            if self._pool is not None and not self._pool.may_take:
                self._hand_out.give_back(self, self.cursor.place, now)
                return self._wait(self._pool)
            if self._travel is not None:
                self.limit = self._travel.limit
            found = self._hand_out.take(self, now)
            if not isinstance(found, Cursor):
                return found if found is None or self._pool is None else self._wait(self._pool, found)
            if not self.whole:
                return Handle(found)
            self._work = BatchWork(found.take_all(), self._policy, self._rng, now)

    def _wait(self, pool: HandlerPool, until: Instant = NEVER) -> Instant | None:
        """Wait for records, or end if there are more tasks than the pool needs."""
        if pool.is_surplus:
            return None
        pool.wait(self)
        return until

    def _next_of(self, work: BatchWork, now: Instant) -> Step | Instant | None:
        """Return the policy's next step, or the time at which to ask again. The result is ``None`` if the records are
        done or were given back.
        """
        hand_out, cursor, shard = self._hand_out, self.cursor, self.shard
        assert shard is not None, "a handler works on one shard"
        work.handle_renewed(shard.grant.held_until - hand_out.config.lease_duration, now)
        done = work.take_done()
        if done:
            cursor.finished = cursor.done + len(done)
        hand_out.report(self, now)
        hand_out.handle_failures(shard.key[0], work.take_events())
        if work.is_stopped:
            return Stop(shard.shard_id, list(work.part), work.error)
        # A batch that waits for its next attempt would delay the hand-over or the close, so it is given back.
        if work.is_done or (shard.is_stopping and work.next_deadline() != NEVER):
            self._work = None
            if not work.is_done:
                hand_out.give_back(self, cursor.done, now)
            return None
        pool = self._pool
        if pool is not None:
            if work.next_deadline() > now:
                pool.pause(self)
                hand_out.wake_run()
                return work.next_deadline()
            if not pool.may_retry:
                pool.wait_to_retry(self)
                return NEVER
        part = work.poll_attempt(now)
        if part is not None:
            cursor.given = len(part)
            return Attempt(list(part))
        letter = work.poll_dead_letter(now)
        return work.next_deadline() if letter is None else WriteDeadLetter(letter)


@final
class Run(Taker):
    """One ``Consumer.run``. The answer to its request is ``new_tasks``, the tasks to start. If ``is_over`` is set, the
    run waits for the running tasks and ends.
    """

    def __init__(
        self,
        hand_out: HandOut,
        number: int,
        *,
        policy: FailurePolicy,
        rng: Chance,
        batch: int | None = None,
        max_wait: float = 0.0,
        concurrency: int | None = None,
        order: Order = "shard",
        in_processes: bool = False,
    ) -> None:
        # A task of a pool takes one record at a time, so that shards and keys take turns.
        limit = 1 if batch is None and concurrency is not None else batch
        super().__init__(
            number,
            limit=limit,
            max_wait=max_wait,
            whole=batch is not None,
            order=order,
            is_pooled=concurrency is not None,
        )
        self.hand_out: HandOut = hand_out
        self.policy: FailurePolicy = policy
        self.rng: Chance = rng
        self.travel: TravelSize | None = TravelSize() if in_processes and batch is None else None
        """How many records go to a handler's process at a time. ``None`` if the handlers do not run in processes, or
        get batches."""
        self.pool: HandlerPool | None = None if concurrency is None else HandlerPool(concurrency)
        self._shards: dict[HeldShard, None] = {}  # the shards that have no task yet
        self.new_tasks: list[HandlerTask] = []

    def handle_gained(self, shard: HeldShard) -> None:
        if self.pool is None:
            self._shards[shard] = None

    def serve(self, now: Instant) -> Instant | None:  # noqa: ARG002 - the signature of a taker
        if self.hand_out.is_over or self.hand_out.bounds.is_exhausted:
            self.new_tasks, self.is_over = [], True
            return None
        if self.pool is not None:
            self.new_tasks = self._fill(self.pool)
        else:
            # Leave out leases that were lost before the run was served.
            shards, self._shards = [shard for shard in self._shards if not shard.is_over], {}
            self.new_tasks = [HandlerTask(self, shard) for shard in shards]
        return None if self.new_tasks else NEVER

    def _fill(self, pool: HandlerPool) -> list[HandlerTask]:
        """Wake a task of the pool that may work, or return the tasks to start."""
        if not pool.may_retry:
            return []  # nearly always: the pool is full
        waiting = self.hand_out.waiting
        task = pool.next_task(has_records=waiting > 0)
        if task is not None:
            self.hand_out.wake_task(task)
            return []
        tasks = [HandlerTask(self, None) for _ in range(pool.missing(waiting))]
        for new in tasks:
            pool.add(new)
        return tasks
