"""Runs the user's handlers: one task a shard does the steps that the core decides (``core/consumer/handler_task``).

A coroutine function is awaited in the task. Any other handler runs in a thread, many records a trip.

Invariants (C5 and L2 are defined in docs/guarantees.md):

- An exit that a handler raises (``sys.exit()``) ends the run, and comes out of it in the caller's task. Out of the
  handler's own task, asyncio would end its loop at once, and the leases would be left to lapse.
- L2: losing a lease cancels the handler of its shard and no other. A thread cannot be cancelled: it ends after the
  record that it works on, because its cursor is closed, and the host hears when it has returned.
"""

import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, cast, final

import anyio
import anyio.lowlevel
import anyio.to_thread

from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.consumer_arguments import check_batch, check_handler
from shardline.aio.consumer.consumer_session import ConsumerSession
from shardline.aio.consumer.dead_letters import DeadLetterOffice, DeadLetterTarget, dead_letter_office
from shardline.aio.loop.boot_clock import boot_time
from shardline.aio.loop.callbacks import MAY_FAIL, is_cancelled
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.cursor import SLICE, Cursor
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handler_errors import summarize_error
from shardline.core.consumer.handler_task import Attempt, Bury, Handle, HandlerTask, Outcome, Run, Step
from shardline.errors import HandlerFailed
from shardline.model.record import Record, hand_out

Handler = Callable[[Any], object]

_THREADS: Final = 64
_DONE: Final = Outcome()
_working_for: Final = ContextVar[ConsumerSession | None]("shardline_working_for", default=None)


def is_handler_of(session: ConsumerSession) -> bool:
    """Whether the caller is a handler of this consumer, in its task or its thread: the run waits for its end."""
    return _working_for.get() is session


async def run_handlers(
    session: ConsumerSession,
    caller: object,
    handler: Handler,
    *,
    batch: int | None,
    max_wait: float,
    policy: FailurePolicy | None,
    dead_letter: DeadLetterTarget | None,
) -> None:
    """``Consumer.run``, for either facade. ``caller``: the task or thread that called it."""
    wait = check_batch(batch, max_wait)
    chosen = check_handler(handler, policy, has_dead_letter=dead_letter is not None)
    office = None if dead_letter is None else dead_letter_office(dead_letter, session.client)
    chance = random.Random()  # noqa: S311 - no secret
    run = session.begin(caller, partial(Run, policy=chosen, chance=chance, batch=batch, max_wait=wait))
    try:
        with anyio.CancelScope() as session.run_scope:
            await HandlerRun(session, run, handler, office).run()
    finally:
        session.run_scope = None
        session.post(_nothing)  # whoever closes the consumer looks again
        if office is not None:
            with anyio.CancelScope(shield=True):
                await office.close()


@final
class HandlerRun:
    """One ``Consumer.run``."""

    def __init__(self, session: ConsumerSession, run: Run, handler: Handler, office: DeadLetterOffice | None) -> None:
        self.session = session
        self.driver = session.driver
        self.run_ = run
        self.handler = handler
        self.office = office
        self.is_async = _is_async(handler)
        self.threads = anyio.CapacityLimiter(_THREADS)
        self.exit: SystemExit | KeyboardInterrupt | None = None
        """The exit that a handler raised."""

    async def run(self) -> None:
        """Until the consumer is closed, or a bounded run has come to its end.

        Raises:
            HandlerFailed: the policy gave up.
        """
        session, run = self.session, self.run_
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    await session.ask(run)
                    if run.is_over:
                        break
                    for task in run.new_tasks:
                        tasks.start_soon(self._run_task, ShardHandler(self, task), tasks.cancel_scope)
        except ExceptionGroup as group:
            error = _first(group)
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
    """The handler at work on one lease."""

    def __init__(self, run: HandlerRun, task: HandlerTask) -> None:
        self._run = run
        self._task = task
        self._session = run.session
        self._is_in_thread = False
        self._has_left = False
        self._handed_at: Instant = -NEVER  # when a hand-out was noted last

    async def run(self) -> None:
        session, task, driver = self._session, self._task, self._run.driver
        _working_for.set(session)
        try:
            with anyio.CancelScope() as scope:
                driver.enter(task, scope)
                await session.ask(task)
                while task.step is not None and not task.is_over:
                    task.outcome = await self._do(task.step)
                    await session.ask(task)
        finally:
            driver.leave(task)
            self._has_left = True  # first: a thread that ends from now on says so
            session.post(self._leave)

    def _leave(self, now: Instant) -> None:
        """In the host: what is not done comes again. A thread that was left behind is still at work."""
        self._session.hand_out.leave(self._task, now, is_at_work=self._is_in_thread)

    # ---- steps

    async def _do(self, step: Step) -> Outcome:
        match step:
            case Handle(cursor):
                return await (self._handle_each(cursor) if self._run.is_async else self._handle_in_thread(cursor))
            case Attempt(records):
                return await self._attempt(records)
            case Bury(letter):
                office = self._run.office
                assert office is not None, "a policy that ends with dead letters has a target"
                self._task.cursor.taken_at = boot_time()  # the target may hang as well
                try:
                    await office.write(letter)
                except Exception as error:  # noqa: BLE001 - the policy's business
                    return Outcome(error, summarize_error(error, letter.records))
                return _DONE
            case _:
                cause = step.error if isinstance(step.error, BaseException) else None
                raise HandlerFailed(step.shard_id, step.records, self._run.run_.policy.attempts) from cause

    async def _handle_each(self, cursor: Cursor) -> Outcome:
        handler = cast("Callable[[Record], Awaitable[object]]", self._run.handler)
        records, clock = cursor.records, boot_time
        now = clock()
        while (place := cursor.place) < cursor.end:
            if now >= cursor.slice_end:
                await anyio.lowlevel.checkpoint()
                now = clock()
                cursor.slice_end = now + SLICE
                if not cursor.is_open:
                    break
            self._note(records[place : place + 1], now)
            cursor.taken_at = now
            cursor.place = place + 1
            try:
                await handler(records[place])
            except MAY_FAIL as error:
                if is_cancelled(error):
                    raise
                return Outcome(error, summarize_error(error, records[place : place + 1]))
            now = clock()
        return _DONE

    async def _handle_in_thread(self, cursor: Cursor) -> Outcome:
        """Many records a trip: the thread goes on until the cursor is closed or a call fails."""
        while cursor.is_open:
            result = await self._in_thread(self._trip, cursor)
            outcome = await self._finish(result, [cursor.records[cursor.place - 1]])
            if outcome.error is not None:
                return outcome
        return _DONE

    def _trip(self, cursor: Cursor) -> object:
        """In the thread. Returns the awaitable that the handler returned, if any."""
        handler = self._run.handler
        while cursor.is_open:
            now = boot_time()
            record = cursor.take(now)
            self._note((record,), now)
            result = handler(record)
            if result is not None and inspect.isawaitable(result):
                return result
        return None

    async def _attempt(self, records: list[Record]) -> Outcome:
        run = self._run
        given = records[0] if run.run_.limit is None else Batch(records, self._session.ack)
        self._handed_at = -NEVER
        try:
            result = self._call(given, records) if run.is_async else await self._in_thread(self._call, given, records)
        except MAY_FAIL as error:
            if is_cancelled(error):
                raise
            result = error
        return await self._finish(result, records)

    def _call(self, given: Record | Batch, records: Sequence[Record]) -> object:
        """Perhaps in a thread. Returns the awaitable that the handler returned, if any."""
        self._task.cursor.taken_at = now = boot_time()
        self._note(records, now)
        result = self._run.handler(given)
        return result if inspect.isawaitable(result) else None

    async def _finish(self, result: object, records: Sequence[Record]) -> Outcome:
        """Await the awaitable that a handler returned; describe the exception that it raised."""
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

    def _note(self, records: Sequence[Record], now: Instant) -> None:
        """The handler is called with these records now: their lag counts until then. In the thread that calls it."""
        if now >= self._handed_at + SLICE / 2 or len(records) > 1:
            self._handed_at = now
            hand_out(records, self._session.service_now())

    async def _in_thread(self, work: Callable[..., object], *arguments: object) -> object:
        """Run it in a thread, which is left behind if we are cancelled. What it raises is returned."""

        def trip() -> tuple[object]:  # wrapped: trio refuses a coroutine as a thread's result
            self._is_in_thread = True
            try:
                return (None if self._has_left else work(*arguments),)
            except MAY_FAIL as error:
                return (error,)
            finally:
                self._is_in_thread = False
                if self._has_left:
                    self._session.post(partial(self._session.hand_out.handle_work_ended, self._task))

        (result,) = await anyio.to_thread.run_sync(trip, abandon_on_cancel=True, limiter=self._run.threads)
        return result


def _nothing(now: Instant) -> None:
    """A message that only wakes the host."""


def _is_async(handler: Handler) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004 - its kind is asked, not whether there is one
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The error to raise of those that ended the tasks: the first."""
    found = group.exceptions[0]
    return _first(cast("ExceptionGroup[Exception]", found)) if isinstance(found, ExceptionGroup) else found
