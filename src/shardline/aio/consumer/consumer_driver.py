"""The host of a consumer: the only code that calls the consumer's machines.

One task polls the coordinator, carries its operations to the lease store and its requests to Kinesis, follows its
events, and sleeps until the next deadline. Another serves the mail: what user code posts (``post``), in any thread, is
carried out here. One task a shard reads. All of them run in one event loop, and none of them is user code.

Invariants (L2 is defined in docs/guarantees.md):

- L2: the clock counts suspension, and is read before anything is decided.
- Every operation and request that was polled is answered to the machine exactly once, even when its task is cancelled
  or breaks.
- The host lets no exception out: what breaks it is the consumer's failure, for whoever asks for records next.
- Before the coordinator is polled, the progress of user code is reported to it (``HandOut.handle_time``): no record
  costs more than its share of that.
- No mail is lost: it is taken before each pump too, so a caller that was interrupted between posting and waking the
  host delays its message, at most until the next deadline.
- After the host has ended, every taker is answered that it is over.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, final

import anyio
import anyio.lowlevel

from shardline.adapters.event_loop import call_soon_from_threads
from shardline.aio.consumer.shard_reading import ShardReading
from shardline.aio.loop.host_tasks import Breakage, Flag, HostTasks, LoopAffinity, make_flag
from shardline.aio.loop.notifier import Bell
from shardline.aio.loop.stall_watchdog import LoopWatch
from shardline.aio.reporting import CLOSED, ConsumerReporter
from shardline.codec.shapes import ListShardsResponse
from shardline.core.backoff import Backoff
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer import consumer_events as told
from shardline.core.consumer.coordinator import ScanLeases
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.handout import CancelHandler, HandOut, ReadingFailed, StopReading, WakeReader
from shardline.core.consumer.held_shard import HeldShard
from shardline.core.consumer.polling_reader import PollingReader
from shardline.core.consumer.read_pace import ReadPace
from shardline.core.consumer.reader import Page, ReaderEvent
from shardline.core.consumer.store_outages import STORE_OPERATIONS
from shardline.core.consumer.taker import Taker
from shardline.core.failures import Failure, FailureKind, to_error
from shardline.core.leases import LeaseOperation
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.errors import Closed, ShardlineError, StoreError, StreamRecreated
from shardline.model.stream import StreamRef
from shardline.ports import BatchingLeaseStore, KinesisApi, LeaseAnswer, LeaseStore

_log: Final = logging.getLogger("shardline.consumer")
_NO_ANSWER: Final = Failure(FailureKind.TRANSIENT, "Timeout", "no answer came within half a lease duration")
_OPEN_BACKOFF: Final = (0.1, 5.0)

Message: TypeAlias = Callable[[Instant], object]
"""A call of the hand-out, to be made by the host. It is given the time."""


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
        service_time: Callable[[], float],
    ) -> None:
        self.hand_out = hand_out
        self.coordinator = hand_out.coordinators[stream.name]
        self.clock = clock
        self.changes = Bell()
        """Rung when something may have changed for those who wait: ready, closing, ended, records given back."""
        self._scopes: dict[Taker, anyio.CancelScope] = {}  # where the handlers run
        self._in_loop = call_soon_from_threads()
        self._config = hand_out.config
        self._error: Exception | None = None
        self._mail: deque[Message] = deque()
        self._is_mail_due = False
        self._news = Bell()
        self._thread = threading.get_ident()
        self._reading: dict[HeldShard, ShardReading] = {}
        self._chance = random.Random()  # noqa: S311 - no secret
        self._deserializer = deserializer
        self._service_time = service_time
        self._reporter = reporter
        self._store = store
        self._batching = store if isinstance(store, BatchingLeaseStore) else None
        self._watch = LoopWatch(reporter.name, self._config.lease_duration, self.clock)
        self._stream = stream
        self._tasks: HostTasks | None = None
        self._api: KinesisApi | None = None
        self._wake: Flag | None = None
        self._is_through = False
        self._stopping = False
        self.home = LoopAffinity("Consumer")
        """The event loop that it runs in."""
        self.is_disowned = False
        """Whether it is a copy, in the child of a fork."""

    # ---- life

    async def run(self, api: KinesisApi, *, store_failure: Failure | None) -> None:
        """The host task, until the coordinator is closed."""
        self._api = api
        self._wake = make_flag()
        self._watch.start()
        try:
            with Breakage(self._break):
                async with HostTasks() as self._tasks:
                    self._tasks.start_soon(self._serve)
                    await self._open_store(store_failure)
                    await self._drive(self._tasks)
                    self._tasks.cancel_scope.cancel()
        finally:
            self.make_sure_of_end()

    def _break(self, error: BaseException) -> None:
        _log.critical("the consumer broke", exc_info=error)
        if not isinstance(error, Exception):  # a signal handler raised it, or a Ctrl-C: it is not the users' to handle
            error = Closed(f"this Consumer does not run any more: {error!r}")
        self._fail(error)

    def make_sure_of_end(self) -> None:
        """The host is over: answer everyone who waits. Done again if it was interrupted."""
        if self._is_through:
            return
        self._watch.stop()
        events = self.coordinator.take_events()
        for event in events:
            if not isinstance(event, told.LeaseGained | told.HandOverAsked):  # nothing begins any more
                self._follow(event)
        self._report(events)
        self.hand_out.end(self.clock())
        self._take_mail()  # last: whoever posts from now on sees that the host has ended
        self._reporter.log_rest()
        self._is_through = True

    def stop(self) -> None:
        """End at once: leases that are still held will lapse."""
        self._stopping = True
        self.wake()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def stop_if_deserted(self) -> bool:
        """Stop, if another event loop runs here and the host's runs no more. Says whether it is so.

        Raises:
            UsageError: the host's runs, in another thread.
        """
        is_deserted = self.home.is_deserted(has_ended=self.has_ended)
        if is_deserted:
            with suppress(RuntimeError):  # its loop is closed
                self.stop()
        return is_deserted

    def release(self, now: Instant) -> None:
        """Commit what is acknowledged, let go of every lease, and end (L5). To be posted."""
        self.hand_out.close(now)
        self.hand_out.handle_time(now)
        self.coordinator.close()
        self.wake()

    def disown(self, error: Exception) -> None:
        """We are in the child of a fork: all of it is the parent's. Nothing here may wait, or touch the event loop."""
        self.is_disowned = True
        self.hand_out.disown(error)

    @property
    def has_ended(self) -> bool:
        return self.hand_out.has_ended

    @property
    def failure(self) -> Exception | None:
        """Why nothing more is handed out, if something failed."""
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
        """Have the host make this call. In any thread, and in a signal handler."""
        self._mail.append(message)
        if self._is_mail_due:
            return
        is_woken = False
        try:
            self._is_mail_due = True  # first: the host takes it back, perhaps in another thread
            if threading.get_ident() == self._thread:
                self._news.ring()
            else:
                with suppress(RuntimeError):  # the loop has ended
                    self._in_loop(self._news.ring)
            is_woken = True
        finally:
            if not is_woken:  # an interrupt: the next one wakes the host
                self._is_mail_due = False

    def enter(self, taker: Taker, scope: anyio.CancelScope) -> None:
        """The handler of this taker runs in this scope, which is cancelled when its lease is gone (L2)."""
        self._scopes[taker] = scope
        if taker.shard is not None and taker.shard.is_over:
            scope.cancel()

    def leave(self, taker: Taker) -> None:
        """The handler's task is over."""
        self._scopes.pop(taker, None)

    async def _serve(self) -> None:
        while True:
            self._take_mail()
            await self._news.wait()

    def _take_mail(self) -> None:
        self._is_mail_due = False  # first: a message that comes from now on is seen below, or wakes the host again
        while self._mail:
            self._mail.popleft()(self.clock())
        self._settle()

    def _settle(self) -> None:
        """Follow what the hand-out says. To be called after every call of it."""
        hand_out = self.hand_out
        for action in hand_out.take_actions():
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
        for taker in hand_out.take_answered():
            taker.wake()
        self._report(hand_out.take_events())
        if hand_out.take_pump_due():
            self.wake()
        self.changes.ring()

    def wake(self) -> None:
        """Something may have to be written or asked for."""
        if self._wake is not None:
            self._wake.set()

    async def _open_store(self, failure: Failure | None) -> None:
        """A store that cannot be reached yet is tried again; one that never will be ends the consumer."""
        backoff = Backoff(*_OPEN_BACKOFF, self._chance)
        assert self._wake is not None
        while failure is not None and not self._stopping and not self.coordinator.is_closed:
            if not failure.retryable:
                self._fail(store_error("OpenStore", failure))
                return
            delay = backoff.next_delay()
            self._wake.clear()
            self._watch.expect(self.clock() + delay)
            self._report([told.StoreFailed(failure, backoff.failures)])
            await self._wake.wait(delay)
            failure = await self._store.open()

    async def _drive(self, tasks: HostTasks) -> None:
        assert self._wake is not None
        while not self._stopping and not self.coordinator.is_closed:
            self._wake.clear()  # before polling: a wake-up while we poll is not lost
            deadline = self._pump(tasks)
            now = self.clock()
            delay = min(deadline - now, self._config.lease_duration)
            self._watch.expect(now + max(0.0, delay))
            if delay > 0:
                await self._wake.wait(delay)
            else:
                await anyio.lowlevel.checkpoint()

    def _pump(self, tasks: HostTasks) -> Instant:
        """Do all there is to do now. Returns when to come again."""
        self._take_mail()
        now, coordinator, hand_out = self.clock(), self.coordinator, self.hand_out
        hand_out.handle_time(now)
        writes: list[LeaseOperation] = []
        while (operation := coordinator.poll_operation(now)) is not None:
            if isinstance(operation, ScanLeases):
                tasks.start_soon(self._scan)
            else:
                writes.append(operation)
        for together in [writes] if self._batching is not None and writes else [[write] for write in writes]:
            tasks.start_soon(self._write, together)
        while (request := coordinator.poll_request(now)) is not None:
            tasks.start_soon(self._ask, request)
        events = coordinator.take_events()
        for event in events:
            self._follow(event)
        self._report(events)
        self._reporter.log_due()
        self._settle()
        return min(coordinator.next_deadline(), hand_out.next_deadline())

    # ---- the store and the service

    async def _scan(self) -> None:
        answer: Any = CLOSED
        try:
            with self._in_time() as limit:
                answer = await self._store.list_leases()
            if limit.cancelled_caught:
                answer = _NO_ANSWER
        except Exception as error:  # noqa: BLE001 - a store's bug: expected failures are values
            answer = _broke(error)
        finally:
            if isinstance(answer, Failure):
                self.coordinator.handle_scan_failed(answer, self.clock())
            else:
                self.coordinator.handle_rows(answer, self.clock())
            self.wake()

    async def _write(self, operations: list[LeaseOperation]) -> None:
        """Each is of another lease (L1). Where the store takes them together they are answered together."""
        answers: Sequence[LeaseAnswer] = [CLOSED] * len(operations)
        try:
            with self._in_time() as limit:
                if self._batching is None:
                    answers = [await self._store.apply(operation) for operation in operations]
                else:
                    answers = await self._batching.apply_many(operations)
            if limit.cancelled_caught:
                answers = [_NO_ANSWER] * len(operations)
        except Exception as error:  # noqa: BLE001 - a store's bug: expected failures are values
            answers = [_broke(error)] * len(operations)
        finally:
            coordinator, now = self.coordinator, self.clock()
            for operation, answer in zip(operations, answers, strict=True):
                if isinstance(answer, Failure):
                    coordinator.handle_operation_failed(operation, answer, now)
                else:
                    coordinator.handle_applied(operation, answer, now)
            self.wake()

    def _in_time(self) -> anyio.CancelScope:
        """What takes longer is not waited for: the leases must be renewed by other means."""
        return anyio.move_on_after(self._config.lease_duration / 2)

    async def _ask(self, request: ListShards | DescribeStreamSummary) -> None:
        assert self._api is not None
        answer: Any = CLOSED
        try:
            if isinstance(request, ListShards):
                answer = await self._api.list_shards(request)
            else:
                answer = await self._api.describe_stream_summary(request)
        except Exception as error:  # noqa: BLE001 - an adapter's bug: expected failures are values
            _log.exception("a request broke")
            answer = _broke(error)
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

    def _follow(self, event: told.Event) -> None:
        hand_out, stream, now = self.hand_out, self._stream.name, self.clock()
        match event:
            case told.LeaseGained():
                self._start(event)
            case told.HandOverAsked(shard_id):
                hand_out.handle_hand_over_asked(stream, shard_id, now)
            case told.HandOverOverdue(shard_id) | told.LeaseLost(shard_id) | told.LeaseReleased(shard_id):
                hand_out.handle_gone(stream, shard_id, now)
            case told.StreamRecreated(why):
                if self.coordinator.topology.is_halted:
                    self._fail(StreamRecreated(f"the stream {self._stream} was deleted and re-created: {why}"))
            case told.ConsumerFailed(operation, failure):
                is_store = operation in STORE_OPERATIONS
                self._fail(store_error(operation, failure) if is_store else to_error(failure, operation))
            case _:
                return

    def _fail(self, error: Exception) -> None:
        self.hand_out.fail(error, self.clock())

    def _start(self, event: told.LeaseGained) -> None:
        config, now = self._config, self.clock()
        deaggregator = Deaggregator(
            self._stream.name,
            event.shard_id,
            hash_range=event.hash_range,
            done=event.checkpoint.sequence_number,
            drop=config.out_of_range == "drop",
        )
        deaggregator.by_auto = self._by_auto
        reader = PollingReader(
            self._stream,
            event.shard_id,
            event.start,
            budget=self.hand_out.budget,
            pace=ReadPace(
                config.calls_per_second, config.bytes_per_second, config.idle_poll_interval, self._chance, now
            ),
            deaggregator=deaggregator,
            trims=self.coordinator.trims,
            lease=event.grant,
            page_max_records=config.page_max_records,
        )
        shard = self.hand_out.handle_gained(self._stream.name, event, reader, now)
        if not shard.is_stopping:
            reading = ShardReading(shard, reader, deaggregator, self.clock, self._deserializer)
            self._reading[shard] = reading
            assert self._tasks is not None
            self._tasks.start_soon(self._read, reading)

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

    # ---- what the readers tell

    def handle_pages(self, shard: HeldShard, pages: list[Page]) -> None:
        self.hand_out.handle_pages(shard, pages, self.clock())
        self._settle()

    def handle_read(self, events: list[ReaderEvent]) -> None:
        self._report(events)
        self.hand_out.handle_read()
        if self.hand_out.take_pump_due() or self.coordinator.trims.summary_by < NEVER:
            self.wake()

    def handle_reader_over(self, shard: HeldShard) -> None:
        """It ended, or cannot go on."""
        self.hand_out.handle_reader_over(shard, self.clock())
        self._settle()

    def _report(self, events: Sequence[told.Event]) -> None:
        if events:
            self._reporter.report(events)


def _broke(error: Exception) -> Failure:
    return Failure(FailureKind.TRANSIENT, "Internal", f"{type(error).__name__}: {error}")


def store_error(operation: str, failure: Failure) -> ShardlineError:
    """The exception for a store that cannot be used."""
    return StoreError(
        f"the lease store cannot be used: {failure.message}",
        operation=operation,
        kind=failure.kind.value,
        code=failure.code,
        message=failure.message,
        retryable=failure.retryable,
    )
