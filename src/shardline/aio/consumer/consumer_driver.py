"""The host of a consumer: the only code that calls the consumer's machines.

One task polls the coordinator, sends its operations to the lease store and its requests to Kinesis, carries out its
events, and sleeps until the next deadline. A second task makes the calls that user code posts (``post``) from any
thread. One further task per shard reads the shard. All of these tasks run in one event loop, and none of them runs user
code. The user's lifecycle callbacks run in separate tasks.

Invariants (L2 is defined in docs/guarantees.md):

- L2: the clock includes the time during which the machine is suspended, and is read before every decision.
- The machine gets exactly one response or failure for every operation and request that was polled, even if the task
  that sends the request is cancelled or raises.
- No exception leaves the host. An exception that ends the host becomes the consumer's failure, and is raised by the
  next call that asks for records.
- The progress of user code is reported to the coordinator once per pump (``HandOut.handle_time``), not per record.
- No message is lost. Messages are also taken before each pump, so an interrupt between posting a message and waking
  the host delays the message, at most until the next deadline.
- After the host has ended, every taker gets the answer that there are no more records.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias, final

import anyio
import anyio.lowlevel

from shardline.adapters.event_loop import call_soon_from_threads
from shardline.aio.consumer.lifecycle_callbacks import LifecycleCallbacks
from shardline.aio.consumer.shard_reading import RecordFilter, ShardReading, ShardReadings, Start
from shardline.aio.loop.callbacks import Contained
from shardline.aio.loop.host_tasks import CrashGuard, Flag, HostTasks, LoopAffinity, make_flag
from shardline.aio.loop.notifier import Notifier
from shardline.aio.loop.stall_watchdog import StallWatchdog
from shardline.aio.reporting import CLOSED, ConsumerReporter
from shardline.codec.shapes import ListShardsResponse
from shardline.core.backoff import Backoff
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer import consumer_events
from shardline.core.consumer.coordinator import ScanLeases
from shardline.core.consumer.handling_lag import service_now
from shardline.core.consumer.handout import CancelHandler, HandOut, ReadingFailed, StopReading, WakeReader
from shardline.core.consumer.held_shard import HeldShard
from shardline.core.consumer.lag_measurement import measure_lag
from shardline.core.consumer.lifecycle import CallBack, CancelCallBack
from shardline.core.consumer.reader import Page, ReaderEvent
from shardline.core.consumer.store_outages import STORE_OPERATIONS
from shardline.core.consumer.taker import Taker
from shardline.core.failures import Failure, FailureKind, to_error
from shardline.core.kcl_requests import KclRequest, KclRows, ReadKclRows
from shardline.core.leases import LeaseOperation
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.errors import Closed, FilterFailed, ShardlineError, StoreError, StreamRecreated
from shardline.model.record import Record
from shardline.model.stream import StreamRef
from shardline.ports import BatchingLeaseStore, KclFleetStore, KinesisApi, LeaseAnswer, LeaseStore

_log: Final = logging.getLogger("shardline.consumer")
_TIMED_OUT: Final = Failure(FailureKind.TRANSIENT, "Timeout", "the store did not answer within half a lease duration")
_OPEN_BACKOFF: Final = (0.1, 5.0)

Message: TypeAlias = Callable[[Instant], object]
"""A call to the hand-out that the host makes. Its argument is the current time."""


@final
class ConsumerDriver:
    """Drives one coordinator and the hand-out, and runs the readers."""

    def __init__(
        self,
        hand_out: HandOut,
        clock: Callable[[], Instant],
        *,
        stream: StreamRef,
        store: LeaseStore,
        reporter: ConsumerReporter,
        deserializer: Callable[[bytes], Any] | None,
        record_filter: RecordFilter | None,
        service_time: Callable[[], float],
        callbacks: LifecycleCallbacks,
        consumer_arn: str | None = None,
        find_consumer: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        self.hand_out = hand_out
        self.coordinator = hand_out.coordinators[stream.name]
        self.clock = clock
        self.changes = Notifier()
        """Notified when the state may have changed: ready, closing, ended, or records returned by user code."""
        self._scopes: dict[Taker, anyio.CancelScope] = {}  # the scopes in which the handlers run
        self._callbacks = callbacks
        self._calls: dict[CallBack, anyio.CancelScope] = {}  # the callbacks that can be cancelled
        self._call_soon = call_soon_from_threads()
        self._config = hand_out.config
        self._error: Exception | None = None
        self._mail: deque[Message] = deque()
        self._is_mail_due = False
        self._mail_arrived = Notifier()
        self._thread = threading.get_ident()
        self._reading: dict[HeldShard, ShardReading] = {}
        self._random = random.Random()  # noqa: S311 - no secret
        self._readers = ShardReadings(hand_out, stream, clock, deserializer, record_filter)
        self._service_time = service_time
        self._consumer_arn = consumer_arn  # the registered consumer to subscribe with; None: poll
        self._find_consumer = find_consumer  # finds or registers it again for a re-created stream; None: never
        self._registering = anyio.Lock()
        self._reporter = reporter
        self.sinks = reporter.sinks
        """The threads that call the sinks. The session starts them before the host."""
        self.log_user_error = reporter.log_user_error
        self._store = store
        self._batching = store if isinstance(store, BatchingLeaseStore) else None
        self._watchdog = StallWatchdog(reporter.name, self._config.lease_duration, self.clock)
        self._stream = stream
        self._tasks: HostTasks | None = None
        self._api: KinesisApi | None = None
        self._wake: Flag | None = None
        self._is_finished = False
        self._stopping = False
        self.loop_affinity = LoopAffinity("Consumer")
        """The event loop that the host runs in."""
        self.is_disowned = False
        """Whether this is the copy in a child process, after a fork."""

    # ---- start and end

    async def run(self, api: KinesisApi, *, store_failure: Failure | None) -> None:
        """Run the host until the coordinator is closed."""
        self._api = api
        self._wake = make_flag()
        if self.sinks.sinks:
            self.hand_out.work.observe(self.clock())
            self.hand_out.work.set_wall_offset(time.time() - self.clock())
        self._watchdog.start()
        try:
            with CrashGuard(self._handle_crash):
                async with HostTasks() as self._tasks:
                    self._tasks.start_soon(self._serve)
                    await self._open_store(store_failure)
                    await self._drive(self._tasks)
                    self._tasks.cancel_scope.cancel()
        finally:
            self.finish()

    def _handle_crash(self, error: BaseException) -> None:
        _log.critical("the consumer stopped because of an internal error", exc_info=error)
        if not isinstance(error, Exception):  # Ctrl-C, or a signal handler raised: user code must not get this
            error = Closed(f"this Consumer does not run any more: {error!r}")
        self._fail(error)

    def finish(self) -> None:
        """Answer all takers that wait, once the host has ended. This is called again if it was interrupted."""
        if self._is_finished:
            return
        self._watchdog.stop()
        events = self.coordinator.take_events()
        for event in events:
            # It is too late to start reading, or to hand over in good order.
            if not isinstance(event, Start | consumer_events.HandOverAsked | consumer_events.LeaseSurplus):
                self._handle_event(event)
        self._report(events)
        self.hand_out.end(self.clock())
        self._take_mail()  # the last messages: callers that post from now on see that the host has ended
        self._reporter.log_rest()
        self.sinks.stop()  # after the last event
        self._is_finished = True

    def stop(self) -> None:
        """Stop at once. Leases that are still held will lapse."""
        self._stopping = True
        self.wake()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def stop_if_loop_gone(self) -> bool:
        """Stop the host if its event loop has ended and the caller is in another one. Return whether it was stopped.

        Raises:
            UsageError: the host's event loop is running, in another thread.
        """
        is_loop_gone = self.loop_affinity.is_loop_gone(has_ended=self.has_ended)
        if is_loop_gone:
            with suppress(RuntimeError):  # the host's loop is closed
                self.stop()
        return is_loop_gone

    def release(self, now: Instant, *, is_clean: bool = False) -> None:
        """Commit the acknowledged records, release all leases, and end (L5). Call it through ``post``.

        With ``keep_leases``, a clean close of a consumer that has not failed keeps the leases.
        """
        self.hand_out.close(now)
        self.hand_out.handle_time(now)
        self.coordinator.close(is_clean=is_clean and self.hand_out.failure is None)
        self.wake()

    def disown(self, error: Exception) -> None:
        """Refuse to work in the child of a fork, because everything belongs to the parent.

        This must neither wait nor touch the event loop.
        """
        self.is_disowned = True
        self.hand_out.disown(error)

    @property
    def has_ended(self) -> bool:
        return self.hand_out.has_ended

    @property
    def failure(self) -> Exception | None:
        """The error that stopped the hand-out of records, or ``None``."""
        reason = self.hand_out.failure
        if self._error is None and reason is not None:
            if isinstance(reason, ReadingFailed):
                self._error = to_error(reason.failure, f"reading {reason.shard_id}")
            else:
                assert isinstance(reason, Exception), "the host fails with exceptions"
                self._error = reason
        return self._error

    # ---- mail

    def post(self, message: Message) -> None:
        """Have the host make this call. Can be called from any thread, and from a signal handler."""
        self._mail.append(message)
        if self._is_mail_due:
            return
        is_woken = False
        try:
            self._is_mail_due = True  # set before waking the host, which resets it, perhaps in another thread
            if threading.get_ident() == self._thread:
                self._mail_arrived.notify()
            else:
                with suppress(RuntimeError):  # the loop has ended
                    self._call_soon(self._mail_arrived.notify)
            is_woken = True
        finally:
            if not is_woken:  # this call was interrupted: let the next post wake the host
                self._is_mail_due = False

    def enter(self, taker: Taker, scope: anyio.CancelScope) -> None:
        """Register the cancel scope of the taker's handler. The scope is cancelled when the lease is lost (L2)."""
        self._scopes[taker] = scope
        if taker.shard is not None and taker.shard.is_over:
            scope.cancel()

    def leave(self, taker: Taker) -> None:
        """Forget the scope of a handler whose task has ended."""
        self._scopes.pop(taker, None)

    async def _serve(self) -> None:
        while True:
            self._take_mail()
            await self._mail_arrived.wait()

    def _take_mail(self) -> None:
        self._is_mail_due = False  # reset first: a message posted after this is taken below, or wakes the host again
        while self._mail:
            self._mail.popleft()(self.clock())
        self._pump_hand_out()

    def _pump_hand_out(self) -> None:
        """Carry out the hand-out's outputs. Must follow every call to the hand-out."""
        hand_out = self.hand_out
        for action in hand_out.take_actions():
            if isinstance(action, CallBack):
                self._begin_call_back(action)
            else:
                self._carry_out(action)
        for taker in hand_out.take_answered():
            taker.wake()
        self._report(hand_out.take_events())
        if hand_out.take_pump_due():
            self.wake()
        self.changes.notify()

    def _carry_out(self, action: StopReading | WakeReader | CancelHandler | CancelCallBack) -> None:
        match action:
            case StopReading(shard):
                if shard in self._reading:
                    self._reading[shard].stop()
            case WakeReader(shard):
                if shard in self._reading:
                    self._reading[shard].wake()
            case CancelHandler(taker):
                if taker in self._scopes:
                    self._scopes[taker].cancel()
            case CancelCallBack(call):
                if call in self._calls:
                    self._calls[call].cancel()

    def _begin_call_back(self, call: CallBack) -> None:
        scope = anyio.CancelScope()
        if self._callbacks.can_cancel(call.kind):
            self._calls[call] = scope
        assert self._tasks is not None
        self._tasks.start_soon(self._call_back, call, scope)

    async def _call_back(self, call: CallBack, scope: anyio.CancelScope) -> None:
        """Call a lifecycle callback of the user and report its end to the hand-out."""
        errors: list[BaseException] = []
        has_returned = False
        try:
            with scope, Contained(errors.append, awaits=True):
                await self._callbacks.call(call.kind, call.argument)
                has_returned = True
        finally:
            self._calls.pop(call, None)
            error = None
            for raised in errors:
                what = f"{call.kind.value} of {call.shard.shard_id}"
                _log.error("%s: %s failed; the consumer stops", self._reporter.name, what, exc_info=raised)
                # An iterator or a run must not raise SystemExit.
                error = raised if isinstance(raised, Exception) else Closed(f"{what} raised {raised!r}")
            self.post(partial(self.hand_out.handle_called_back, call, has_returned=has_returned, error=error))

    def wake(self) -> None:
        """Wake the host, because there may be something to write or to request."""
        if self._wake is not None:
            self._wake.set()

    async def _open_store(self, failure: Failure | None) -> None:
        """Retry until the store can be opened. A failure that is not retryable ends the consumer."""
        backoff = Backoff(*_OPEN_BACKOFF, self._random)
        assert self._wake is not None
        while failure is not None and not self._stopping and not self.coordinator.is_closed:
            if not failure.retryable:
                self._fail(store_error("OpenStore", failure))
                return
            delay = backoff.next_delay()
            self._wake.clear()
            self._watchdog.expect(self.clock() + delay)
            self._report([consumer_events.StoreFailed(failure, backoff.failures)])
            await self._wake.wait(delay)
            failure = await self._store.open()

    async def _drive(self, tasks: HostTasks) -> None:
        assert self._wake is not None
        while not self._stopping and not self.coordinator.is_closed:
            self._wake.clear()  # clear before polling, so that a wake-up during the poll is not lost
            deadline = self._pump(tasks)
            now = self.clock()
            delay = min(deadline - now, self._config.lease_duration)
            self._watchdog.expect(now + max(0.0, delay))
            if delay > 0:
                await self._wake.wait(delay)
            else:
                await anyio.lowlevel.checkpoint()

    def _pump(self, tasks: HostTasks) -> Instant:
        """Do everything that is due and return the next deadline."""
        self._take_mail()
        now, coordinator, hand_out = self.clock(), self.coordinator, self.hand_out
        hand_out.handle_time(now)
        if hand_out.work.take_measure_due(now):
            hand_out.work.set_wall_offset(time.time() - now)  # the clock may have been adjusted
            self._report(
                [measure_lag(hand_out, self._stream.name, now, service_now(self._service_time(), time.time()))]
            )
        writes: list[LeaseOperation] = []
        while (operation := coordinator.poll_operation(now)) is not None:
            if isinstance(operation, ScanLeases):
                tasks.start_soon(self._scan)
            else:
                writes.append(operation)
        for batch in [writes] if self._batching is not None and writes else [[write] for write in writes]:
            tasks.start_soon(self._write, batch)
        while (kcl_request := coordinator.poll_kcl_request(now)) is not None:
            tasks.start_soon(self._send_to_kcl, kcl_request)
        while (request := coordinator.poll_request(now)) is not None:
            tasks.start_soon(self._send, request)
        events = coordinator.take_events()
        for event in events:
            self._handle_event(event)
        self._report(events)
        self._reporter.log_due()
        self._pump_hand_out()
        return min(coordinator.next_deadline(), hand_out.next_deadline())

    # ---- the store and the service

    async def _scan(self) -> None:
        answer: Any = CLOSED
        try:
            with self._time_limit() as limit:
                answer = await self._store.list_leases()
            if limit.cancelled_caught:
                answer = _TIMED_OUT
        except Exception as error:  # noqa: BLE001 - a bug in a store: expected failures are values
            answer = _internal_failure(error)
        finally:
            if isinstance(answer, Failure):
                self.coordinator.handle_scan_failed(answer, self.clock())
            else:
                self.coordinator.handle_rows(answer, self.clock())
            self.wake()

    async def _write(self, operations: list[LeaseOperation]) -> None:
        """Apply the operations and report the results to the coordinator.

        Each operation is for a different lease (L1). They are applied together if the store supports this.
        """
        answers: Sequence[LeaseAnswer] = [CLOSED] * len(operations)
        try:
            with self._time_limit() as limit:
                if self._batching is None:
                    answers = [await self._store.apply(operation) for operation in operations]
                else:
                    answers = await self._batching.apply_many(operations)
            if limit.cancelled_caught:
                answers = [_TIMED_OUT] * len(operations)
        except Exception as error:  # noqa: BLE001 - a bug in a store: expected failures are values
            answers = [_internal_failure(error)] * len(operations)
        finally:
            coordinator, now = self.coordinator, self.clock()
            for operation, answer in zip(operations, answers, strict=True):
                if isinstance(answer, Failure):
                    coordinator.handle_operation_failed(operation, answer, now)
                else:
                    coordinator.handle_applied(operation, answer, now)
            self.wake()

    async def _send_to_kcl(self, request: KclRequest) -> None:
        """Read or write the rows of a KCL fleet that shares the lease table."""
        fleet, store = self.coordinator.kcl, self._store
        assert fleet is not None
        assert isinstance(store, KclFleetStore)
        answer: KclRows | Failure | None = CLOSED
        try:
            with self._time_limit() as limit:
                if isinstance(request, ReadKclRows):
                    answer = await store.read_kcl_rows()
                else:
                    answer = await store.write_metrics(request)
            if limit.cancelled_caught:
                answer = _TIMED_OUT
        except Exception as error:  # noqa: BLE001 - a bug in a store: expected failures are values
            answer = _internal_failure(error)
        finally:
            now = self.clock()
            if isinstance(answer, Failure):
                fleet.handle_failed(request, answer, now)
            elif isinstance(answer, KclRows):
                fleet.handle_rows(answer, now)
            elif not isinstance(request, ReadKclRows):
                fleet.handle_written(request, now)
            for note in fleet.take_notes():
                _log.info("%s: %s", self._stream.name, note)
            self.wake()

    def _time_limit(self) -> anyio.CancelScope:
        """Return a scope that cancels a slow call to the store, early enough for another call to renew the leases."""
        return anyio.move_on_after(self._config.lease_duration / 2)

    async def _send(self, request: ListShards | DescribeStreamSummary) -> None:
        assert self._api is not None
        answer: Any = CLOSED
        try:
            if isinstance(request, ListShards):
                answer = await self._api.list_shards(request)
            else:
                answer = await self._api.describe_stream_summary(request)
        except Exception as error:  # noqa: BLE001 - a bug in an adapter: expected failures are values
            _log.exception("internal error while sending a request")
            answer = _internal_failure(error)
        finally:
            now = self.clock()
            self.coordinator.handle_service_time(self._service_time(), now)
            if isinstance(answer, Failure):
                self.coordinator.handle_request_failed(answer, now)
            elif isinstance(answer, ListShardsResponse):
                self.coordinator.handle_shards(answer, now)
            else:
                self.coordinator.handle_summary(answer, now)
                for reading in self._reading.values():
                    reading.deaggregator.by_auto = self._by_auto
            self.wake()

    # ---- events

    def _handle_event(self, event: consumer_events.Event) -> None:
        hand_out, stream, now = self.hand_out, self._stream.name, self.clock()
        match event:
            case consumer_events.LeaseGained():
                self._start_reading(event)
            case consumer_events.ShardSought():
                if hand_out.can_go_on(stream, event):
                    self._start_reading(event)
            case consumer_events.HandOverAsked(shard_id) | consumer_events.LeaseSurplus(shard_id):
                hand_out.handle_hand_over_asked(stream, shard_id, now)
            case consumer_events.HandOverOverdue(shard_id) | consumer_events.LeaseLost(shard_id):
                hand_out.handle_gone(stream, shard_id, now)
            case consumer_events.LeaseReleased(shard_id, finished):
                hand_out.handle_gone(stream, shard_id, now, finished=finished)
            case consumer_events.StreamReplaced(why):
                if self.coordinator.topology.is_halted:
                    self._fail(StreamRecreated(f"the stream {self._stream} was deleted and re-created: {why}"))
            case consumer_events.ConsumerFailed(operation, failure):
                is_store = operation in STORE_OPERATIONS
                self._fail(store_error(operation, failure) if is_store else to_error(failure, operation))
            case _:
                return

    def _fail(self, error: Exception) -> None:
        self.hand_out.fail(error, self.clock())

    def _start_reading(self, event: Start) -> None:
        reading = self._readers.make(event, self._consumer_arn, by_auto=self._by_auto)
        if not reading.shard.is_stopping:
            self._reading[reading.shard] = reading
            assert self._tasks is not None
            self._tasks.start_soon(self._read, reading)

    async def register_again(self, consumer_arn: str) -> str | None:
        """Register the consumer again after the stream was re-created. Return its ARN, or ``None`` if that fails.

        The readers of all shards ask for this. Only the first reader registers the consumer.
        """
        if self._find_consumer is None:
            return None
        async with self._registering:
            if self._consumer_arn == consumer_arn:
                try:
                    self._consumer_arn = await self._find_consumer() or consumer_arn
                except ShardlineError as error:
                    self._fail(error)
                    self._pump_hand_out()
            return self._consumer_arn

    async def _read(self, reading: ShardReading) -> None:
        assert self._api is not None
        try:
            await reading.run(self._api, self)
        finally:
            del self._reading[reading.shard]

    @property
    def _by_auto(self) -> bool:
        summary = self.coordinator.topology.discovery.summary
        return summary is not None and summary.record_distribution == "AUTO"

    # ---- inputs from the readers

    def handle_pages(self, shard: HeldShard, pages: list[Page]) -> None:
        self.hand_out.handle_pages(shard, pages, self.clock())
        self._pump_hand_out()

    def handle_read(self, events: list[ReaderEvent]) -> None:
        self._report(events)
        self.hand_out.handle_read()
        if self.hand_out.take_pump_due() or self.coordinator.trims.summary_by < NEVER:
            self.wake()

    def handle_reader_over(self, shard: HeldShard) -> None:
        """Handle a reader that has ended or failed."""
        self.hand_out.handle_reader_over(shard, self.clock())
        self._pump_hand_out()

    def handle_filter_failed(self, shard: HeldShard, record: Record[bytes], error: BaseException) -> None:
        """Stop the consumer, because the user's filter raised this exception. The record is not skipped."""
        failed = FilterFailed(shard.shard_id, record)
        failed.__cause__ = error
        _log.error("%s: %s", self._reporter.name, failed, exc_info=error)
        self._fail(failed)
        self._pump_hand_out()

    def _report(self, events: Sequence[consumer_events.Event]) -> None:
        if events:
            self.hand_out.work.handle_events(events)
            self._reporter.report(events)


def _internal_failure(error: Exception) -> Failure:
    return Failure(FailureKind.TRANSIENT, "Internal", f"{type(error).__name__}: {error}")


def store_error(operation: str, failure: Failure) -> ShardlineError:
    """Return the exception for a store that cannot be used."""
    return StoreError(
        f"the lease store cannot be used: {failure.message}",
        operation=operation,
        kind=failure.kind.value,
        code=failure.code,
        message=failure.message,
        retryable=failure.retryable,
    )
