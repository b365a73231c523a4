"""How does a handler get its records?

``HandlerRun`` calls the user's handler, in order within a shard, shards side by side: one task a shard. A handler that
is no coroutine function runs in a thread, many records a trip.

Invariants (FP are the failure policy's, C5 and L2 of docs/guarantees.md):

- FP1: of one shard one record, or batch, is with the handler at a time, also over a loss of its lease: a thread that is
  still at work is waited for.
- FP2: a record is done when its handler returned, or its dead letter was written. What a handler raises is the failure
  policy's business; what the policy gives up ends the run with ``HandlerFailed``.
- HR2: an exit that a handler raises (``sys.exit()``) ends the run, and comes out of it, in the caller's task. Out of
  the handler's own, asyncio would end its loop at once, and nobody would let go of the leases.
- L2: losing a lease cancels that shard's handler, and touches no other. A thread cannot be cancelled: it is asked to
  end after the record that it works on, and its acknowledgements are refused.
- HR1: a consumer that is closed lets the handlers finish what they have, and hands them no more.
"""

import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, cast, final

import anyio
import anyio.lowlevel
import anyio.to_thread

from shardline.aio.batches import Batch
from shardline.aio.custody import THREAD_POLL, Custody
from shardline.aio.dead_letters import DeadLetterOffice
from shardline.aio.iteration import SLICE
from shardline.aio.shard_worker import ShardWorker, Taken
from shardline.aio.user_code import MAY_FAIL, is_cancelled
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.failure_policy import BatchWork, DeadLetter, FailurePolicy
from shardline.core.consumer.handler_errors import summarize_error
from shardline.core.consumer.handling import HandlingState
from shardline.errors import HandlerFailed
from shardline.model.record import Record

Handler = Callable[[Any], object]

_THREADS: Final = 64


_working_for: Final = ContextVar[Custody | None]("shardline_working_for", default=None)


def is_handler_of(custody: Custody) -> bool:
    """Whether the caller is a handler of this consumer, for whose end the run waits."""
    return _working_for.get() is custody


@final
class HandlerRun:
    """One ``Consumer.run``."""

    def __init__(
        self,
        custody: Custody,
        handler: Handler,
        policy: FailurePolicy,
        office: DeadLetterOffice | None,
        acknowledge: Callable[[Batch], bool],
        *,
        batch: int | None,
        max_wait: float,
    ) -> None:
        self.custody = custody
        self.handler = handler
        self.policy = policy
        self.office = office
        self.acknowledge = acknowledge
        self.batch = batch
        self.max_wait = max_wait
        self.is_async = _is_async(handler)
        self.chance = random.Random()  # noqa: S311 - no secret
        self.threads = anyio.CapacityLimiter(_THREADS)
        self.exit: SystemExit | KeyboardInterrupt | None = None
        """What a handler ended the run with (HR2)."""

    async def run(self) -> None:
        """Until the consumer is closed, or a bounded run has come to its end.

        Raises:
            HandlerFailed: the policy gave up.
        """
        custody = self.custody
        try:
            async with anyio.create_task_group() as tasks:
                started: set[ShardWorker] = set()
                while not self._is_over():
                    started &= {*custody.workers.values()}
                    for worker in custody.workers.values():
                        if worker not in started:
                            started.add(worker)
                            run = ShardRun(self, worker)
                            custody.at_work.setdefault(worker.shard_id, []).append(run)
                            tasks.start_soon(self._run_shard, run, tasks.cancel_scope)
                    await custody.changes.wait()
                for worker in custody.workers.values():
                    worker.news.ring()
        except ExceptionGroup as group:
            error = _first(group)
            raise error from error.__cause__
        finally:
            if self.exit is not None:
                raise self.exit
        if custody.failure is not None:
            raise custody.failure

    async def _run_shard(self, run: "ShardRun", all_runs: anyio.CancelScope) -> None:
        try:
            await run.run()
        except (SystemExit, KeyboardInterrupt) as exit_:  # HR2
            self.exit = self.exit or exit_
            all_runs.cancel()

    def _is_over(self) -> bool:
        custody = self.custody
        return custody.is_closing or custody.has_ended or custody.failure is not None or custody.milestones.is_exhausted

    async def wait_for_turn(self, run: "ShardRun") -> None:
        """Until no earlier run of the same shard, of this ``run()`` or one before, is still in a thread (FP1)."""
        runs = self.custody.at_work[run.worker.shard_id]
        while any(other.is_in_thread for other in runs[: runs.index(run)]):  # noqa: ASYNC110 - threads ring no bell
            await anyio.sleep(THREAD_POLL)
        del runs[: runs.index(run)]

    def forget(self, run: "ShardRun") -> None:
        if not run.is_in_thread:
            self.custody.at_work[run.worker.shard_id].remove(run)


@final
class ShardRun:
    """The handler at work on one lease. It is the worker's ``InHand``."""

    def __init__(self, run: HandlerRun, worker: ShardWorker) -> None:
        self._run = run
        self._custody = run.custody
        self._is_manual = run.custody.config.ack == "manual"
        self.worker = worker
        self.is_in_thread = False
        self._taken: Taken | None = None
        self._records: list[Record] = []  # of what was taken last: a thread may outlive its lease
        self._given = 1  # how many of them the handler is called with
        self._working_since: Instant | None = None  # when it was called; written by the thread that calls it
        self._handed_at = -NEVER  # when a hand-out was noted last
        self._done = 0  # how many of the taken records are done
        self._acked = 0
        self._stop = False
        self._yield_at = -NEVER

    # ---- InHand

    def pull(self) -> None:
        done, taken = self._done, self._taken
        self._yield_at = -NEVER
        if taken is not None and done > self._acked:
            self._acked = done
            if not self._is_manual:
                self._custody.ack_through(self.worker, taken.records[done - 1])

    def truncate(self) -> None:
        self._stop = True

    def release(self, *, done: bool) -> None:  # noqa: ARG002 - the form of InHand
        """The handler was cancelled in the middle: what it did is done, and no more (FP2)."""
        if self._taken is not None:
            self._finish(self._taken)

    def look(self) -> HandlingState:
        done, records = self._done, self._records
        left = len(records) - done
        if left <= 0 or not (self._taken or self.is_in_thread):
            return HandlingState()
        given = min(self._given, left)
        first = done + given if self._is_manual else done  # what was delivered, the tracker knows
        return HandlingState(records[first] if first < len(records) else None, given, left - given, self._working_since)

    def _begin(self, records: Sequence[Record], now: Instant) -> None:
        """The handler is called with these now. In the thread that calls it."""
        self._working_since = now
        if now >= self._handed_at + SLICE / 2 or len(records) > 1:
            self._handed_at = now
            self._custody.hand_out(records)

    # ---- the task

    async def run(self) -> None:
        run, worker = self._run, self.worker
        _working_for.set(self._custody)
        worker.handling = anyio.CancelScope()
        if worker.is_over:
            worker.handling.cancel()
        try:
            with worker.handling:
                await run.wait_for_turn(self)
                while await self._wait_for_records():
                    self._taken = taken = worker.peek(run.batch)
                    self._records, self._done, self._acked = taken.records, 0, 0
                    self._given, self._handed_at = 1, -NEVER
                    self._custody.hold(worker, self, taken)
                    if not self._is_manual:
                        self._custody.deliver(worker, taken.records)
                    if taken.records:
                        await self._handle(taken.records)
                    self._finish(taken)
        finally:
            worker.handling = None
            self.release(done=False)
            run.forget(self)

    async def _wait_for_records(self) -> bool:
        worker, run, custody = self.worker, self._run, self._custody
        while True:
            now = custody.clock()
            if now >= self._yield_at:
                await anyio.lowlevel.checkpoint()
                self._yield_at = now + SLICE
            if worker.is_stopping or self._stop or custody.is_closing or custody.failure is not None:
                return False
            if worker.has_pages and custody.is_full(worker):
                await worker.news.wait()
            elif worker.has_pages:
                left = worker.oldest_at + run.max_wait - now
                enough = run.batch is None or worker.queued >= run.batch or worker.has_last_page
                if left <= 0 or enough:
                    return True
                await worker.news.wait(left)
            elif custody.milestones.is_exhausted:
                return False
            else:
                await worker.news.wait()

    def _finish(self, taken: Taken) -> None:
        self.pull()
        self._taken = None
        rest = taken.records[self._done :]
        if rest and self.worker.is_stopping:
            taken = taken._replace(is_last=False)
        self._custody.finish(self.worker, taken, rest)

    # ---- the handler

    async def _handle(self, records: list[Record]) -> None:
        try:
            await self._handle_all(records)
        finally:
            if not self.is_in_thread:
                self._working_since = None

    async def _handle_all(self, records: list[Record]) -> None:
        if self._run.batch is not None:
            if self._is_manual:
                self._custody.deliver(self.worker, records)
            await self._work_through(records)
        elif self._run.is_async:
            await self._handle_each(records)
        else:
            await self._handle_in_thread(records)

    async def _handle_each(self, records: list[Record]) -> None:
        handler = cast("Callable[[Record], Awaitable[object]]", self._run.handler)
        custody, clock = self._custody, self._custody.clock
        now = clock()
        for record in records:
            if self._is_manual:
                custody.deliver(self.worker, (record,))
            self._begin((record,), now)
            try:
                await handler(record)
            except MAY_FAIL as error:  # FP2
                if is_cancelled(error):
                    raise
                await self._work_through([record], error)
            else:
                self._done += 1
            now = clock()
            if now >= self._yield_at:
                self.pull()
                await anyio.lowlevel.checkpoint()
                now = clock()
                self._yield_at = now + SLICE
            if self._stop or (self._is_manual and custody.is_full(self.worker)):
                return

    async def _handle_in_thread(self, records: list[Record]) -> None:
        """Many records a trip: the thread goes on until the page is through, something fails, or it has to end."""
        while self._done < len(records) and not self._stop:
            if self._is_manual:
                self._custody.deliver(self.worker, records[self._done :])
                self._given = len(records)
            failed = await self._in_thread(self._trip, records)
            if isinstance(failed, MAY_FAIL):
                await self._work_through([records[self._done]], failed)
            elif failed is not None:
                self._working_since = self._custody.clock()
                try:
                    await cast("Awaitable[object]", failed)
                except MAY_FAIL as error:  # FP2
                    if is_cancelled(error):
                        raise
                    await self._work_through([records[self._done]], error)
                else:
                    self._done += 1

    def _trip(self, records: list[Record]) -> object:
        """In the thread. Returns what the handler raised, or what it wants awaited, or ``None``."""
        handler, grant, clock = self._run.handler, self.worker.grant, self._custody.clock
        for place in range(self._done, len(records)):
            if self._stop or not grant.held:
                return None
            self._begin(records[place : place + 1], clock())
            try:
                result = handler(records[place])
            except MAY_FAIL as error:  # FP2
                return error
            if result is not None and inspect.isawaitable(result):
                return result
            self._done = place + 1
        return None

    async def _in_thread(self, work: Callable[..., object], *arguments: object) -> object:
        """Run it in a thread, which is left to itself if we are cancelled (L2, FP1). What it raises is returned."""

        def trip() -> tuple[object]:  # wrapped: trio refuses a coroutine as a thread's result
            self.is_in_thread = True
            try:
                return (work(*arguments),)
            except MAY_FAIL as error:  # FP2
                return (error,)
            finally:
                self._working_since = None
                self.is_in_thread = False

        is_through = False
        try:
            (result,) = await anyio.to_thread.run_sync(trip, abandon_on_cancel=True, limiter=self._run.threads)
            is_through = True
        finally:
            self._stop = self._stop or not is_through
        return result

    async def _work_through(self, records: Sequence[Record], error: BaseException | None = None) -> None:
        """What the failure policy says (FP2), to the end. ``error``: the handler has failed once already."""
        run, clock = self._run, self._custody.clock
        self._working_since = None
        work = BatchWork(records, run.policy, run.chance, clock())
        if error is not None:
            work.poll_attempt(clock())
            work.handle_error(error, clock(), summarize_error(error, records))
        while True:
            self._note_done(work)
            self._custody.handle_failures(work.take_events())
            if work.is_done:
                return
            if work.is_stopped:
                raise self._gave_up(work)
            if self._stop and work.next_deadline() != NEVER:
                return  # what is left comes again
            part = work.poll_attempt(clock())
            if part is not None:
                await self._attempt(work, part)
                continue
            letter = work.poll_dead_letter(clock())
            if letter is not None:
                await self._bury(work, letter)
            else:
                await self.worker.news.wait(max(0.0, work.next_deadline() - clock()))

    async def _bury(self, work: BatchWork, letter: DeadLetter) -> None:
        office, clock = self._run.office, self._custody.clock
        assert office is not None, "who wants dead letters says where they go"
        self._working_since = clock()  # what writes them may hang as well
        try:
            await office.write(letter)
        except Exception as failed:  # noqa: BLE001 - the policy's business
            self._working_since = None
            work.handle_burial_failed(failed, clock(), summarize_error(failed, letter.records))
        else:
            self._working_since = None
            if self._is_manual:
                for record in letter.records:
                    self._custody.ack(record)
            work.handle_buried(clock())

    def _call(self, given: Record | Batch) -> object:
        """In the thread. What the handler wants awaited, if anything: what else it returns means nothing."""
        self._begin([given] if isinstance(given, Record) else given.records, self._custody.clock())
        result = self._run.handler(given)
        return result if inspect.isawaitable(result) else None

    async def _attempt(self, work: BatchWork, part: Sequence[Record]) -> None:
        run, clock = self._run, self._custody.clock
        given = part[0] if run.batch is None else Batch(list(part), run.acknowledge)
        self._given, self._handed_at = len(part), -NEVER
        try:
            result = self._call(given) if run.is_async else await self._in_thread(self._call, given)
            if isinstance(result, MAY_FAIL):
                raise result  # as the handler did, in its thread
            if inspect.isawaitable(result):
                self._working_since = clock()
                await cast("Awaitable[object]", result)
        except MAY_FAIL as error:  # FP2
            if is_cancelled(error):
                raise
            work.handle_error(error, clock(), summarize_error(error, part))
        else:
            work.handle_success(clock())
        self._working_since = None

    def _note_done(self, work: BatchWork) -> None:
        done = work.take_done()
        if done:
            self._done += len(done)
            self.pull()

    def _gave_up(self, work: BatchWork) -> Exception:
        error = HandlerFailed(self.worker.shard_id, list(work.part), self._run.policy.attempts)
        cause = work.error
        error.__cause__ = cause if isinstance(cause, BaseException) else None
        return error


def _is_async(handler: Handler) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004 - its kind is asked, not whether there is one
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """Of what ended the tasks, the one to tell: a handler that failed before anything else."""
    found = group.exceptions[0]
    return _first(cast("ExceptionGroup[Exception]", found)) if isinstance(found, ExceptionGroup) else found
