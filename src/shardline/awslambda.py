"""Runs a handler on the records of a Kinesis event source, in an AWS Lambda function.

Lambda reads the stream and keeps track of the progress. This module unpacks the aggregates, calls the handler in order,
applies the same failure policy as a consumer, and tells Lambda which record to retry from.
``core/consumer/lambda_invocation`` makes all of these decisions.

Invariants:

- A record that is neither handled nor dead-lettered is reported (``batchItemFailures``), or the invocation raises.
- The invocation raises if a record that was put with ``producer=`` is not delivered.
- A plain handler runs in the thread of the Lambda function, outside any event loop. An async handler runs in one event
  loop, which all invocations of the process share: Lambda freezes the process between them, and an async producer
  belongs to the event loop that it was started in.
- Importing this module does not import asyncio, anyio, botocore, the embedded server or the command line. The functions
  that use them import them.
"""

import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from inspect import isawaitable, iscoroutinefunction
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NotRequired, Protocol, TypeAlias, TypedDict, cast, final

from shardline.aio.consumer.batches import Batch
from shardline.aio.loop.process_loop import (
    SystemClock,
    TimeLimitError,
    bounded,
    is_cancelled,
    run_in_loop,
    run_plainly,
    user_errors,
    yield_to_loop,
)
from shardline.codec.lambda_events import State, Window, read_event, replace_state
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.failure_policy import DeadLetter, FailurePolicy, WriteDeadLetter
from shardline.core.consumer.handler_checks import check_handler, check_policy, is_async_callable
from shardline.core.consumer.handler_errors import summarize_error
from shardline.core.consumer.lambda_invocation import (
    CallHandler,
    Ending,
    HandleEach,
    InvocationStep,
    LambdaInvocation,
)
from shardline.core.setting_checks import check_number
from shardline.errors import HandlerFailed, ShardlineError, UsageError, WaitTimeout
from shardline.model.record import Origin, Record, hand_out
from shardline.model.stream import parse_stream

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from shardline.aio.producer.async_producer import Producer as AsyncProducer
    from shardline.aio.reporting import ConsumerReporter
    from shardline.aio.tracing import Tracings
    from shardline.events import ConsumerEvent, EventSink, Sink
    from shardline.sync.blocking_producer import Producer as BlockingProducer

__all__ = ["BatchItemFailure", "Clock", "KinesisEventSource", "Response", "Window"]

DeadLetterTarget: TypeAlias = "Callable[[DeadLetter], object] | str | PathLike[str] | AsyncProducer | BlockingProducer"
"""Where dead letters go: to a callable, a file, a producer, or the stream with this name or ARN."""

LambdaFunction: TypeAlias = "Callable[[Mapping[str, Any], object], Response]"
"""A function that Lambda calls with the event and the context."""

_log: Final = logging.getLogger("shardline.consumer")
_SLICE: Final = 0.01  # seconds for which an async handler may run without giving its event loop a turn
_FLUSH_TIMEOUT: Final = 1.5  # seconds to wait, at the end of an invocation, until its spans have ended
_MARGIN_MAX: Final = 900.0  # seconds: no function runs for longer


class BatchItemFailure(TypedDict):
    """The record that Lambda retries from."""

    itemIdentifier: str
    """The sequence number of the record."""


class Response(TypedDict):
    """The response of a function to Lambda."""

    batchItemFailures: list[BatchItemFailure]
    """The list is empty if all records are done. If not, it has one item, and Lambda retries that record and all
    records after it.
    """
    state: NotRequired[dict[str, Any]]
    """The state of the tumbling window, if the event belongs to a window."""


class Clock(Protocol):
    """The clock of an invocation. Tests replace it, so that retries take no time."""

    def now(self) -> float:
        """Return the time in seconds, which never decreases."""
        ...

    def sleep(self, seconds: float, /) -> object:
        """Wait for this number of seconds. If this returns an awaitable, the caller awaits the awaitable."""
        ...


@final
class KinesisEventSource:
    """Turns a handler into a Lambda function for a Kinesis event source::

        source = KinesisEventSource(deserializer=json.loads, dead_letter="orders-failed")

        @source.each_record
        def handler(record: Record) -> None:
            bill(record.value)

    The event source mapping needs ``FunctionResponseTypes=["ReportBatchItemFailures"]``. Without it, Lambda ignores the
    reported failures and the failed records are lost. In that case, set ``report_failures=False``.

    Args:
        deserializer: makes ``record.value`` from the data, as in a consumer.
        policy: what happens when the handler fails. By default it is called up to five times, with waits in between.
            Then the Lambda function reports the record and all records after it, and Lambda retries them.
        dead_letter: the destination of records that failed for good: a callable, which takes a ``DeadLetter``, a
            stream's name or ARN, a producer of either kind, or the ``pathlib.Path`` of a file. The function then
            continues with the next record.
        producer: a producer, async or blocking, that the handler uses. It is started before the first record, and
            flushed at the end of each invocation. If one of its records fails, or is not delivered in time, the
            invocation raises, and Lambda retries all records of the event.
        report_failures: whether failures are returned to Lambda. If they are not, the invocation raises an exception,
            and Lambda retries all records of the event.
        margin: how many seconds before Lambda's time limit to stop calling the handler. If this is more than half of
            the time that the invocation has, half of that time is used. An async handler that is still running when
            the margin begins is cancelled.
        sinks: the sinks that receive each event, like the sinks of a consumer. They are opened and closed in each
            invocation that has events. Such an invocation waits until the sinks have received the events, but for at
            most two seconds. A sink with ``tracing``, such as ``OpenTelemetrySink``, also calls the handler inside a
            span.
        clock: the source of the time, for tests.

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(
        self,
        *,
        deserializer: Callable[[bytes], Any] | None = None,
        policy: FailurePolicy | None = None,
        dead_letter: "DeadLetterTarget | None" = None,
        producer: "AsyncProducer | BlockingProducer | None" = None,
        report_failures: bool = True,
        margin: float = 1.0,
        sinks: "Iterable[Sink | EventSink[ConsumerEvent]]" = (),
        clock: Clock | None = None,
    ) -> None:
        if deserializer is not None and not callable(deserializer):
            raise UsageError(
                f"deserializer must be callable, or None, not {type(cast('object', deserializer)).__name__}"
            )
        if producer is not None and not _is_producer(producer):
            raise UsageError(
                "producer must be a shardline.Producer, a shardline.sync.Producer, or None, not "
                f"{type(cast('object', producer)).__name__}"
            )
        check_number("margin", margin, 0.0, _MARGIN_MAX)
        self._settings = _Settings(
            deserializer=deserializer,
            policy=check_policy(policy, has_dead_letter=dead_letter is not None),
            dead_letters=None if dead_letter is None else _DeadLetters(dead_letter),
            producer=producer,
            unstarted=[each for each in (producer, dead_letter) if _is_producer(each)],
            report_failures=report_failures,
            margin=margin,
            sinks=() if sinks == () else _check_sinks(sinks),
            clock=clock,
        )

    def each_record(self, handler: Callable[[Record[Any]], object]) -> LambdaFunction:
        """Return a Lambda function that calls ``handler`` once per record, in order. ``handler`` may be a coroutine
        function.
        """
        return _Function(self._settings, handler).as_function()

    def each_batch(self, max_records: int | None = None) -> Callable[[Callable[[Batch[Any]], object]], LambdaFunction]:
        """Return a Lambda function that calls ``handler`` with batches of up to ``max_records`` records.

        With ``None``, the batch contains all records of the event.

        ``Batch.ack`` has no effect here and returns False: a batch is done when its handler returns.
        """
        size = _check_size(max_records)
        return lambda handler: _Function(self._settings, handler, batch=size).as_function()

    def each_window(
        self, *, on_end: Callable[[Window], object] | None = None, max_records: int | None = None
    ) -> Callable[[Callable[[Batch[Any], Window], object]], LambdaFunction]:
        """Return a Lambda function that calls ``handler(batch, window)`` with the batches of a tumbling window.

        The handler returns the new state of the window, a JSON-serializable mapping; ``None`` keeps the state. Do not
        change values inside ``window.state``: a call that fails must leave no trace in the state.

        Args:
            on_end: called with the window and its final state when the window ends, after the last records. If it
                raises, the invocation raises and Lambda retries it.
            max_records: the maximum size of a batch. ``None`` means all records of the event.
        """
        size = _check_size(max_records)
        if on_end is not None and not callable(on_end):
            raise UsageError(f"on_end must be callable, or None, not {type(cast('object', on_end)).__name__}")
        return lambda handler: _Function(
            self._settings, handler, batch=size, is_windowed=True, on_end=on_end
        ).as_function()

    def close(self) -> None:
        """Close the producer that was created because ``dead_letter`` names a stream. Only tests need this."""
        if self._settings.dead_letters is not None:
            self._settings.dead_letters.close()


class _Settings(NamedTuple):
    """The checked arguments of ``KinesisEventSource``."""

    deserializer: Callable[[bytes], Any] | None
    policy: FailurePolicy
    dead_letters: "_DeadLetters | None"
    producer: "AsyncProducer | BlockingProducer | None"
    unstarted: list[Any]
    """The producers that are not started yet."""
    report_failures: bool
    margin: float
    sinks: tuple[Any, ...]
    clock: Clock | None


@final
class _DeadLetters:
    """Writes dead letters. Writing the first letter imports the modules that the target needs."""

    def __init__(self, target: object) -> None:
        if isinstance(target, str):
            try:
                parse_stream(target)
            except UsageError as error:
                raise UsageError(f"dead_letter: {error}; for a file pass a pathlib.Path") from None
        elif not callable(target) and not isinstance(target, PathLike) and not _is_producer(target):
            raise UsageError(
                "dead_letter must be a callable, a stream's name or ARN, a Producer, or a pathlib.Path, "
                f"not {type(target).__name__}"
            )
        self._target: Any = target
        self._write: Callable[[DeadLetter], object] | None = self._target if callable(self._target) else None
        self._close: Callable[[], Awaitable[object]] | None = None

    def write(self, letter: DeadLetter) -> object:
        """Write a dead letter. If this returns an awaitable, the caller must await the awaitable."""
        if self._write is None:
            from shardline.aio.consumer.dead_letters import dead_letter_writer  # noqa: PLC0415 - it imports much

            target: Any = self._target
            if isinstance(target, PathLike):
                from pathlib import Path  # noqa: PLC0415 - as above

                target = Path(self._target)
            elif _is_producer(target) and not _is_async_producer(target):
                from shardline.sync.blocking_dead_letters import in_threads  # noqa: PLC0415 - as above

                target = in_threads(target)
            writer = dead_letter_writer(target, None)
            self._write, self._close = writer.write, writer.close
        return self._write(letter)

    def close(self) -> None:
        if self._close is not None:
            close, self._close, self._write = self._close, None, None
            run_in_loop(bounded(close(), None))


@final
class _Function:
    """A handler, and how it is called: with single records, with batches or with windows."""

    def __init__(
        self,
        settings: _Settings,
        handler: Callable[..., object],
        *,
        batch: int | None = None,
        is_windowed: bool = False,
        on_end: Callable[[Window], object] | None = None,
    ) -> None:
        check_handler(handler, None, has_dead_letter=False)
        self.settings = settings
        self.handler = handler
        self.is_async = is_async_callable(handler)
        self.batch = batch
        self.is_windowed = is_windowed
        self.on_end = on_end
        self.clock: Clock = settings.clock or SystemClock(is_async=self.is_async)

    def as_function(self) -> LambdaFunction:
        """Return the Lambda function: a plain function, because some tools for Lambda accept no other callable."""

        def function(event: Mapping[str, Any], context: object = None) -> Response:
            run = _Run(self, event, context).run()
            return run_in_loop(run) if self.is_async else run_plainly(run)

        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(function, name, getattr(self.handler, name, getattr(function, name)))
        return function


@final
class _Run:
    """One invocation of the Lambda function.

    Its methods are coroutines, so that an async handler can be awaited in them. With a plain handler, they never
    suspend, and need no event loop.
    """

    def __init__(self, function: _Function, event: object, context: object) -> None:
        self._function = function
        self._settings = settings = function.settings
        self._clock = function.clock
        origin = Origin()
        origin.deserializer = settings.deserializer
        self._records, self._window = read_event(event, origin)
        if function.is_windowed and self._window is None:
            raise UsageError(
                "the event has no tumbling window: set TumblingWindowInSeconds in the event source mapping, or use "
                "each_record or each_batch"
            )
        self._give_up_at, self._flush_by = _time_limits(context, settings.margin, self._clock.now())
        self._machine = LambdaInvocation(
            self._records,
            settings.policy,
            random.Random(),  # noqa: S311 - no secret
            batch=function.batch,
            state=self._window.state if self._window is not None and function.is_windowed else None,
            give_up_at=self._give_up_at,
        )
        self._reporter: ConsumerReporter | None = None
        self._has_logged_tracing = False
        self._tracings: Tracings | None = self._find_tracings()

    async def run(self) -> Response:
        producer = self._settings.producer
        unstarted = self._settings.unstarted
        while unstarted:
            await self._settle(unstarted[-1].start())
            unstarted.pop()
        failed = 0 if producer is None else producer.stats().failed_records
        try:
            await self._handle_records()
            await self._end_window()
        finally:
            if self._reporter is not None:
                self._reporter.log_rest()
                self._reporter.sinks.stop()
            try:
                if producer is not None:
                    await self._flush(producer, failed)
            finally:
                await self._wait_for_sinks()
                if self._tracings is not None:
                    left = self._until(self._flush_by)
                    self._tracings.flush(_FLUSH_TIMEOUT if left is None else min(left, _FLUSH_TIMEOUT))
        return self._respond()

    # ---- the records

    async def _handle_records(self) -> None:
        machine, now = self._machine, self._clock.now
        while machine.ending is None:
            step = machine.poll_step(now())
            if step is not None:
                try:
                    await self._do(step)
                except TimeLimitError:
                    machine.handle_cancelled()
            elif machine.ending is None:
                await self._settle(self._clock.sleep(max(0.0, machine.next_deadline() - now())))
            self._report()

    async def _do(self, step: InvocationStep) -> None:
        match step:
            case HandleEach():
                await self._cancel_at(self._give_up_at, self._handle_each(step))
            case CallHandler(records):
                await self._cancel_at(self._give_up_at, self._call(records))
            case WriteDeadLetter(letter):
                await self._cancel_at(self._flush_by, self._write(letter))

    async def _handle_each(self, step: HandleEach) -> None:
        machine, handler, now = self._machine, self._function.handler, self._clock.now
        records = step.records
        slice_end = -NEVER
        while machine.done < len(records):
            began_at = now()
            if began_at >= step.give_up_at:
                break
            record = records[machine.done]
            if began_at >= slice_end:
                slice_end = began_at + _SLICE
                record.origin.hand_out(record, time.time())
                await self._yield()
            try:
                if self._tracings is not None and record.headers:
                    with self._tracings.handling(record):
                        await self._settle(handler(record), self._give_up_at)
                else:
                    await self._settle(handler(record), self._give_up_at)
            except user_errors() as error:
                self._fail(error, [record])
                return
            machine.done += 1
        machine.handle_success(now())

    async def _call(self, records: Sequence[Record]) -> None:
        machine, function = self._machine, self._function
        hand_out(records, time.time())
        given = records[0] if function.batch is None else Batch(list(records), _acknowledge_nothing)
        window = self._current_window() if function.is_windowed else None
        try:
            with self._handling(given):
                called = function.handler(given) if window is None else function.handler(given, window)
                result = await self._settle(called, self._give_up_at)
        except user_errors() as error:
            self._fail(error, records)
        else:
            machine.handle_success(self._clock.now(), None if window is None else _check_state(result))

    def _handling(self, given: Record | Batch[Any]) -> "AbstractContextManager[object]":
        """Open the spans around a call of the handler. A call with a single record that has no headers gets no span."""
        if self._tracings is None or (isinstance(given, Record) and not given.headers):
            return nullcontext()
        return self._tracings.handling(given)

    async def _write(self, letter: DeadLetter) -> None:
        dead_letters = self._settings.dead_letters
        assert dead_letters is not None, "a policy that ends with dead letters has a target"
        try:
            await self._settle(dead_letters.write(letter), self._flush_by)
        except user_errors() as error:
            self._fail(error, letter.records)
        else:
            self._machine.handle_success(self._clock.now())

    def _fail(self, error: BaseException, records: Sequence[Record]) -> None:
        """Report an error to the state machine, unless the error is the cancellation of this very call."""
        if isinstance(error, TimeLimitError) or (self._function.is_async and is_cancelled(error)):
            raise error
        self._machine.handle_error(error, self._clock.now(), summarize_error(error, records))

    # ---- awaiting

    async def _settle(self, result: object, until: Instant = NEVER) -> object:
        """Await a result if it is awaitable. If the handler is plain, an event loop runs only for this result."""
        if result is None or not isawaitable(result):
            return result
        awaitable = cast("Awaitable[object]", result)
        return await awaitable if self._function.is_async else run_in_loop(bounded(awaitable, self._until(until)))

    async def _cancel_at(self, at: Instant, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, and cancel it at the time ``at`` if it is not done. A plain handler cannot be cancelled."""
        await (bounded(work, self._until(at)) if self._function.is_async else work)

    def _until(self, at: Instant) -> float | None:
        return None if at == NEVER else max(0.0, at - self._clock.now())

    async def _yield(self) -> None:
        if self._function.is_async:
            await yield_to_loop()

    # ---- the end

    def _current_window(self) -> Window:
        """Return the tumbling window with its current state."""
        assert self._window is not None, "the function takes windows"
        return replace_state(self._window, self._machine.state)

    async def _end_window(self) -> None:
        on_end = self._function.on_end
        if on_end is not None and self._machine.ending is Ending.DONE:
            window = self._current_window()
            if window.is_final:
                try:
                    await self._cancel_at(self._flush_by, self._call_on_end(on_end, window))
                except TimeLimitError:
                    raise WaitTimeout("the time of the invocation is up, and on_end was cancelled") from None

    async def _call_on_end(self, on_end: Callable[[Window], object], window: Window) -> None:
        await self._settle(on_end(window), self._flush_by)

    async def _flush(self, producer: Any, failed_before: int) -> None:
        """Deliver the records that the handler put into the producer.

        Raises:
            ShardlineError: not every record was delivered.
        """
        left: list[Any] = cast("list[Any]", await self._settle(producer.flush(self._until(self._flush_by))))
        failed = producer.stats().failed_records - failed_before
        pending = sum(not delivery.done for delivery in left)
        if failed or pending:
            reasons = sorted({f"{end.code}: {end.message}" for end in (each.conclusion for each in left) if end})
            raise ShardlineError(
                f"records that were put are not delivered: {failed} failed, {pending} not yet confirmed"
                f"{''.join(f'; {reason}' for reason in reasons)}. Lambda retries all records of the event"
            )

    def _respond(self) -> Response:
        machine = self._machine
        place = machine.retry_from
        if place is not None:
            if machine.ending is Ending.OUT_OF_TIME:
                _log.warning("%s: %s", self._name, self._time_is_up())
            if not self._settings.report_failures:
                raise self._error()
        failures = (
            [] if place is None else [BatchItemFailure(itemIdentifier=self._records[place].sequence_number or "")]
        )
        if self._window is None:
            return Response(batchItemFailures=failures)
        state = machine.state_to_return if self._function.is_windowed else self._window.state
        return Response(batchItemFailures=failures, state=dict(state or {}))

    def _error(self) -> ShardlineError:
        machine = self._machine
        if machine.ending is Ending.OUT_OF_TIME:
            return WaitTimeout(self._time_is_up())
        part = list(machine.part)
        error = HandlerFailed(part[0].shard_id or "", part, self._settings.policy.attempts)
        error.__cause__ = machine.error if isinstance(machine.error, BaseException) else None
        return error

    def _time_is_up(self) -> str:
        machine = self._machine
        first = machine.part[0]
        failing = "" if machine.error is None else f", whose handler failed with {type(machine.error).__name__}"
        total = len(self._records)
        return (
            f"the time of the invocation is up, and {total - machine.done} of {total} records are not done, from "
            f"record {first.sequence_number}/{first.sub_sequence}{failing}; Lambda retries them"
        )

    # ---- reports

    def _find_tracings(self) -> "Tracings | None":
        """Return the tracings that wrap calls of the handler, or ``None`` if no sink has a tracing."""
        events = sys.modules.get("shardline.events")  # a process that has not imported it is not instrumented
        instrumented: Iterable[Any] = () if events is None else events.instrumented_sinks()
        sinks: list[Any] = [*self._settings.sinks, *instrumented]
        if not any(hasattr(sink, "tracing") for sink in sinks):
            return None
        from shardline.aio.tracing import find_tracings  # noqa: PLC0415 - only tracings need it
        from shardline.events import EventSource  # noqa: PLC0415 - likewise

        return find_tracings(sinks, EventSource("consumer", self._name), self._log_tracing_error)

    def _log_tracing_error(self, what: str, error: BaseException) -> None:
        if not self._has_logged_tracing:
            self._has_logged_tracing = True
            _log.error("%s: %s failed; the records are handled without it", self._name, what, exc_info=error)

    @property
    def _name(self) -> str:
        return next((record.stream for record in self._records if record.stream), "a Lambda function")

    def _report(self) -> None:
        events = self._machine.take_events()
        if events:
            if self._reporter is None:
                from shardline.aio.reporting import ConsumerReporter  # noqa: PLC0415 - only events need it
                from shardline.events import EventSource  # noqa: PLC0415 - likewise

                source = EventSource("consumer", self._name)
                self._reporter = ConsumerReporter(self._name, source, self._settings.sinks, self._clock.now)
                self._reporter.sinks.start()
            self._reporter.report(events)

    async def _wait_for_sinks(self) -> None:
        """Wait until the sinks have received all events, because Lambda freezes their threads after the invocation."""
        if self._reporter is None:
            return
        sinks, left = self._reporter.sinks, self._until(self._flush_by)
        limit = NEVER if left is None else left
        if self._function.is_async:
            await sinks.wait(limit)
        else:
            sinks.wait_blocking(limit)


# ---- arguments, and results


def _check_state(state: object) -> State | None:
    if state is None:
        return None
    if not isinstance(state, Mapping):
        raise UsageError(
            "the handler of a window must return its new state, a mapping, or None to keep the state, not "
            f"{type(state).__name__}"
        )
    return cast("State", state)


def _time_limits(context: object, margin: float, now: Instant) -> tuple[Instant, Instant]:
    """Return the time until which calls to the handler may begin, and the time by which the producer must be flushed.

    The margin is limited, because a margin that is too large for the function would leave no time for any record.
    """
    remaining: Callable[[], float] | None = getattr(context, "get_remaining_time_in_millis", None)
    if remaining is None:
        return NEVER, NEVER
    seconds = remaining() / 1000
    margin = min(margin, seconds / 2)
    return now + seconds - margin, now + seconds - margin / 2


def _check_size(max_records: object) -> int:
    check_number("max_records", max_records, 1, NEVER, whole=True, optional=True)
    return cast("int", max_records) if max_records is not None else sys.maxsize


def _acknowledge_nothing(batch: Batch) -> bool:  # noqa: ARG001 - called like every function that acknowledges
    return False


# ---- producers


def _check_sinks(sinks: "Iterable[Sink | EventSink[ConsumerEvent]]") -> tuple[Any, ...]:
    from shardline.events import check_sinks  # noqa: PLC0415 - a function without sinks starts faster without it

    return check_sinks(sinks)


def _is_producer(value: object) -> bool:
    """Return whether the value is one of our producers. If the value is a producer, the modules of the producers have
    already been imported.
    """
    facades = sys.modules.get("shardline.aio.producer.producer_facade")
    return facades is not None and isinstance(value, facades.ProducerFacade)


def _is_async_producer(producer: Any) -> bool:
    return iscoroutinefunction(producer.flush)
