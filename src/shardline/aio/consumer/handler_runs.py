"""Runs the user's handlers: one task per shard, or a pool of tasks, takes the steps that ``core/consumer/handler_task``
decides.

A coroutine function is awaited in the task. Any other handler runs in a thread, for many records in a row. With
``processes``, each handler runs in a process (``handler_processes``).

Invariants (C5 and L2 are defined in docs/guarantees.md):

- A ``SystemExit`` that a handler raises (``sys.exit()``) ends the run, and is raised again in the caller's task. If the
  exception left the handler's own task, asyncio would stop its loop immediately, and the leases would not be released.
- L2: losing a lease cancels the handler of its shard and no other handler. A thread cannot be cancelled: it stops after
  the current record, because its cursor is closed, and notifies the host when it ends.
"""

import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast, final

import anyio
import anyio.lowlevel
import anyio.to_thread

from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.consumer_arguments import check_batch
from shardline.aio.consumer.consumer_session import ConsumerSession, TaskWaiter, current_session
from shardline.aio.consumer.dead_letters import DeadLetterTarget, DeadLetterWriter, dead_letter_writer
from shardline.aio.consumer.handler_child import Answer, Handlers, refuse_in_unguarded_main
from shardline.aio.consumer.handler_processes import HandlerProcesses, load_error, pickle_handlers
from shardline.aio.loop.boot_clock import boot_time
from shardline.aio.loop.callbacks import MAY_FAIL, is_cancelled
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_config import Order
from shardline.core.consumer.cursor import SLICE, Cursor
from shardline.core.consumer.failure_policy import FailurePolicy, WriteDeadLetter
from shardline.core.consumer.handler_checks import check_handler, check_processes, check_side_by_side, is_async_callable
from shardline.core.consumer.handler_errors import summarize_error
from shardline.core.consumer.handler_task import NOT_CALLED, Attempt, Handle, HandlerTask, Outcome, Run, Step
from shardline.core.consumer.process_messages import Handled, split_messages
from shardline.errors import HandlerFailed
from shardline.model.headers import NO_HEADERS
from shardline.model.record import Record, hand_out

Handler: TypeAlias = Callable[[Any], object]

_MAX_THREADS: Final = 64
_DONE: Final = Outcome()


async def run_handlers(
    session: ConsumerSession,
    caller: object,
    handler: Handler,
    *,
    batch: int | None,
    max_wait: float,
    policy: FailurePolicy | None,
    dead_letter: DeadLetterTarget | None,
    concurrency: int | None = None,
    order: Order = "shard",
    processes: int | None = None,
    handler_timeout: float | None = None,
) -> None:
    """Implement ``Consumer.run`` for both facades. ``caller`` is the task or thread that called ``run``."""
    wait = check_batch(batch, max_wait)
    chosen = check_handler(handler, policy, has_dead_letter=dead_letter is not None)
    if session.chain is not None:
        handler = session.chain.wrap(handler)
    ack, stuck_after = session.config.ack, session.config.stuck_after
    count, limit = check_processes(processes, handler_timeout, concurrency, ack=ack, stuck_after=stuck_after)
    beside = check_side_by_side(concurrency if count is None else count, order, ack=ack)
    pool = None
    if count is not None:
        refuse_in_unguarded_main()
        handlers = Handlers(handler, session.deserializer, batch is not None)
        pool = HandlerProcesses(pickle_handlers(handlers), count, limit)
    dead_letters = None if dead_letter is None else dead_letter_writer(dead_letter, session.client)
    generator = random.Random()  # noqa: S311 - no secret
    make = partial(Run, policy=chosen, rng=generator, batch=batch, max_wait=wait, in_processes=pool is not None)
    make = partial(make, **beside._asdict())
    run = session.begin(caller, make)
    try:
        with anyio.CancelScope() as session.run_scope:
            if pool is not None:
                await pool.start()
            threads = beside.concurrency or _MAX_THREADS
            await HandlerRun(session, run, handler, dead_letters, threads, processes=pool).run()
    finally:
        if pool is not None:
            with anyio.CancelScope(shield=True):
                await pool.close()
        session.run_scope = None
        session.post(_just_wake)  # close() may wait for the end of the run
        if dead_letters is not None:
            with anyio.CancelScope(shield=True):
                await dead_letters.close()


@final
class HandlerRun:
    """One call of ``Consumer.run``."""

    def __init__(
        self,
        session: ConsumerSession,
        run: Run,
        handler: Handler,
        dead_letters: DeadLetterWriter | None,
        max_threads: int,
        *,
        processes: HandlerProcesses | None = None,
    ) -> None:
        self.session = session
        self.driver = session.driver
        self.taker = run
        self.handler = handler
        self.dead_letters = dead_letters
        self.processes = processes
        self.is_async = is_async_callable(handler)
        tracings = session.tracings
        self.traced = None if tracings is None else tracings.wrap(handler, is_async=self.is_async)
        """The handler for batches, and for single records that have headers, if the consumer has tracings."""
        self.threads = anyio.CapacityLimiter(max_threads)
        self._service_at: tuple[Instant, float] = (-NEVER, 0.0)  # when the service's time was read, and that time
        self.exit: SystemExit | KeyboardInterrupt | None = None
        """The first ``SystemExit`` or ``KeyboardInterrupt`` that a handler raised. ``_run_task`` sets it."""

    def service_now(self, now: Instant) -> float:
        """Return the service's time. The returned time may be late by half of ``SLICE`` seconds. Any thread may call
        this.
        """
        at, service_at = self._service_at
        if now >= at + SLICE / 2:
            service_at = self.session.service_now()
            self._service_at = now, service_at
        return service_at

    async def run(self) -> None:
        """Run the handlers until the consumer is closed, or a bounded run has ended.

        Raises:
            HandlerFailed: a handler failed, and the policy stops the run.
        """
        session, run = self.session, self.taker
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    await session.ask(run)
                    if run.is_over:
                        break
                    for task in run.new_tasks:
                        tasks.start_soon(self._run_task, ShardHandler(self, task), tasks.cancel_scope)
        except ExceptionGroup as group:
            error = _first_error(group)
            raise error from error.__cause__
        finally:
            session.post(partial(session.hand_out.leave, run))
            if self.exit is not None:
                raise self.exit
        session.check_failure()

    async def _run_task(self, handler: "ShardHandler", all_tasks: anyio.CancelScope) -> None:
        try:
            await handler.run()
        except (SystemExit, KeyboardInterrupt) as exit_:
            self.exit = self.exit or exit_
            all_tasks.cancel()


@final
class ShardHandler:
    """Runs the handler in one task: for the records of one lease or, in a pool, of one lease after another."""

    def __init__(self, run: HandlerRun, task: HandlerTask) -> None:
        self._run = run
        self._task = task
        self._session = run.session
        self._is_in_thread = False
        self._task_has_ended = False
        self._lag_noted_at: Instant = -NEVER  # when _note_lag last noted a hand-out

    async def run(self) -> None:
        session, task, driver = self._session, self._task, self._run.driver
        current_session.set(session)
        waiter = TaskWaiter()  # one waiter for all waits of the task
        try:
            with anyio.CancelScope() as scope:
                driver.enter(task, scope)
                await session.ask(task, waiter)
                while task.step is not None and not task.is_over:
                    task.outcome = await self._take_step(task.step)
                    await session.ask(task, waiter)
        finally:
            driver.leave(task)
            self._task_has_ended = True  # set before the post: a thread that returns later notifies the host itself
            session.post(self._leave)

    def _leave(self, now: Instant) -> None:
        """Leave the hand-out. The host calls this. If the task has abandoned a thread, the records that are not done
        are delivered again once the thread has returned.
        """
        self._session.hand_out.leave(self._task, now, is_at_work=self._is_in_thread)

    # ---- steps

    async def _take_step(self, step: Step) -> Outcome:
        match step:
            case Handle(cursor):
                if self._run.processes is not None:
                    return await self._handle_in_processes(cursor, self._run.processes)
                return await (self._handle_each(cursor) if self._run.is_async else self._handle_in_thread(cursor))
            case Attempt(records):
                return await self._attempt(records)
            case WriteDeadLetter(letter):
                dead_letters = self._run.dead_letters
                assert dead_letters is not None, "a policy that ends with dead letters has a target"
                if not self._task.is_lease_held:
                    return NOT_CALLED
                self._task.cursor.taken_at = boot_time()  # so that a target that hangs is noticed as a stuck handler
                try:
                    await dead_letters.write(letter)
                except Exception as error:  # noqa: BLE001 - the policy decides what follows
                    return Outcome(error, summarize_error(error, letter.records))
                return _DONE
            case _:
                cause = step.error if isinstance(step.error, BaseException) else None
                raise HandlerFailed(step.shard_id, step.records, self._run.taker.policy.attempts) from cause

    async def _handle_each(self, cursor: Cursor) -> Outcome:
        handler = cast("Callable[[Record[Any]], Awaitable[object]]", self._run.handler)
        traced = self._run.traced
        records, clock = cursor.records, boot_time
        now = clock()
        if cursor.is_open:
            cursor.slice_end = now + SLICE  # the task has just yielded to the event loop, when it asked for the records
        while (place := cursor.place) < cursor.end:
            if now >= cursor.slice_end:
                await anyio.lowlevel.checkpoint()
                now = clock()
                cursor.slice_end = now + SLICE
                if not cursor.is_open:
                    break
            self._note_lag(records[place : place + 1], now)
            cursor.taken_at = now
            cursor.place = place + 1
            try:
                if traced is None or records[place].headers is NO_HEADERS:
                    await handler(records[place])
                else:
                    await traced(records[place])
            except MAY_FAIL as error:
                if is_cancelled(error):
                    raise
                return Outcome(error, summarize_error(error, records[place : place + 1]))
            now = clock()
        return _DONE

    async def _handle_in_thread(self, cursor: Cursor) -> Outcome:
        """Handle many records per thread: the thread continues until the cursor is closed or a call fails."""
        while cursor.is_open:
            result = await self._run_in_thread(self._handle_page, cursor)
            outcome = await self._finish(result, [cursor.records[cursor.place - 1]])
            if outcome.error is not None:
                return outcome
        return _DONE

    def _handle_page(self, cursor: Cursor) -> object:
        """Call the handler with one record after another, in a thread. Return the first awaitable that it returns."""
        handler, traced = self._run.handler, self._run.traced
        while cursor.is_open:
            now = boot_time()
            record = cursor.take(now)
            self._note_lag((record,), now)
            result = handler(record) if traced is None or record.headers is NO_HEADERS else traced(record)
            if result is not None and inspect.isawaitable(result):
                return result
        return None

    async def _attempt(self, records: list[Record[Any]]) -> Outcome:
        run = self._run
        if run.processes is not None:
            if not self._task.is_lease_held:
                return NOT_CALLED
            self._task.cursor.taken_at = boot_time()
            return _outcome(await run.processes.call(records, self._session.service_now()))
        argument = Batch(records, self._session.ack) if run.taker.whole else records[0]
        self._lag_noted_at = -NEVER
        try:
            result = (
                self._call(argument, records)
                if run.is_async
                else await self._run_in_thread(self._call, argument, records)
            )
        except MAY_FAIL as error:
            if is_cancelled(error):
                raise
            result = error
        return await self._finish(result, records)

    async def _handle_in_processes(self, cursor: Cursor, processes: HandlerProcesses) -> Outcome:
        """Send the records of the cursor to processes, in one or more messages."""
        for message in split_messages(cursor.records[cursor.place : cursor.end]):
            if not cursor.is_open:
                break
            first = cursor.place
            cursor.take(boot_time())
            answer = await processes.call(message, self._session.service_now())
            Handled(answer.done, has_failed=answer.error is not None).report(cursor, first)
            if answer.error is not None:
                return _outcome(answer)
        return _DONE

    def _call(self, argument: Record[Any] | Batch[Any], records: Sequence[Record[Any]]) -> object:
        """Call the handler, perhaps in a thread. Return the awaitable that it returned, if any, or ``NOT_CALLED``."""
        if not self._task.is_lease_held:
            return NOT_CALLED
        self._task.cursor.taken_at = now = boot_time()
        self._note_lag(records, now)
        handler, traced = self._run.handler, self._run.traced
        if traced is not None and (isinstance(argument, Batch) or argument.headers is not NO_HEADERS):
            handler = traced
        result = handler(argument)
        return result if inspect.isawaitable(result) else None

    async def _finish(self, result: object, records: Sequence[Record[Any]]) -> Outcome:
        """Await the awaitable that a handler returned, and describe the exception that was raised, if any."""
        if result is NOT_CALLED:
            return NOT_CALLED
        if result is not None and not isinstance(result, MAY_FAIL):
            self._task.cursor.taken_at = boot_time()
            try:
                await cast("Awaitable[object]", result)
            except MAY_FAIL as error:
                if is_cancelled(error):
                    raise
                result = error
            else:
                result = None
        return _DONE if result is None else Outcome(result, summarize_error(result, records))

    def _note_lag(self, records: Sequence[Record[Any]], now: Instant) -> None:
        """Store the lag of the records at the moment when the handler receives them. This runs in the handler's
        thread.
        """
        if now >= self._lag_noted_at + SLICE / 2 or len(records) > 1:
            self._lag_noted_at = now
            hand_out(records, self._run.service_now(now))

    async def _run_in_thread(self, work: Callable[..., object], *arguments: object) -> object:
        """Run ``work`` in a thread. Return its result or exception. If the task is cancelled, abandon the thread."""

        def work_in_thread() -> tuple[object]:  # a tuple, because trio refuses a coroutine as a thread's result
            self._is_in_thread = True
            try:
                return (None if self._task_has_ended else work(*arguments),)
            except MAY_FAIL as error:
                return (error,)
            finally:
                self._is_in_thread = False
                if self._task_has_ended:
                    self._session.post(partial(self._session.hand_out.handle_work_ended, self._task))

        (result,) = await anyio.to_thread.run_sync(work_in_thread, abandon_on_cancel=True, limiter=self._run.threads)
        return result


def _outcome(answer: Answer) -> Outcome:
    """Return the outcome of a call in a process.

    Raises:
        SystemExit: the handler called ``sys.exit()``.
    """
    if answer.error is None:
        return _DONE
    error = load_error(answer.error)
    if answer.is_exit:
        raise error
    return Outcome(error, answer.summary)


def _just_wake(now: Instant) -> None:
    """Do nothing: the message only wakes the host."""


def _first_error(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first error of a group, which may be nested."""
    found = group.exceptions[0]
    return _first_error(cast("ExceptionGroup[Exception]", found)) if isinstance(found, ExceptionGroup) else found
