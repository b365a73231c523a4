"""How is the consumer's machine driven?

One host task polls the coordinator, carries its operations to the lease store and its requests to Kinesis, follows its
events (a lease gained is a worker started), and sleeps until the next deadline. It knows nothing of the ``Consumer``
that the user holds, nor of how records are handed out: that is done through ``custody``.

Invariants (C and L are of docs/guarantees.md):

- L2: the clock counts suspension, and is read before anything is decided.
- DC1: every operation and request that was polled is answered to the machine exactly once, also when its task is
  cancelled or breaks.
- DC2: the host lets no exception out: what breaks it is the consumer's failure, for whoever asks for records next.
- DC3: before anything is polled, what the users have done so far is acknowledged (``InHand.pull``): no record costs
  more than its share of that.
"""

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import anyio
import anyio.lowlevel

from shardline.aio.custody import Custody
from shardline.aio.host_tasks import Breakage, Flag, HostTasks, make_flag
from shardline.aio.loop_watch import LoopWatch
from shardline.aio.reporting import CLOSED, ConsumerReporter
from shardline.aio.shard_worker import ShardWorker
from shardline.codec.shapes import ListShardsResponse
from shardline.core.backoff import Backoff
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer import events as told
from shardline.core.consumer.coordinator import ScanLeases
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.polling_reader import PollingReader
from shardline.core.consumer.read_pace import ReadPace
from shardline.core.consumer.reader import ReaderEvent, ReaderState
from shardline.core.consumer.store_health import STORE_OPERATIONS
from shardline.core.failures import Failure, FailureKind, to_error
from shardline.core.leases import LeaseOperation
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.errors import Closed, ShardlineError, StoreError, StreamRecreated
from shardline.model.stream import StreamRef
from shardline.ports import BatchingLeaseStore, KinesisApi, LeaseAnswer, LeaseStore

_log: Final = logging.getLogger("shardline.consumer")
_NO_ANSWER: Final = Failure(FailureKind.TRANSIENT, "Timeout", "no answer came within half a lease duration")
_OPEN_BACKOFF: Final = (0.1, 5.0)


@final
class ConsumerDriver:
    """Feeds one coordinator, and runs its workers."""

    def __init__(
        self,
        custody: Custody,
        *,
        stream: StreamRef,
        store: LeaseStore,
        reporter: ConsumerReporter,
        deserializer: Callable[[bytes], Any] | None,
        service_time: Callable[[], float],
    ) -> None:
        self.custody = custody
        self.coordinator = custody.coordinator
        self.clock = custody.clock
        custody.wake = self.wake
        custody.report = self._report
        self._config = custody.config
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
        self._has_ended = False
        self._stopping = False
        self.is_disowned = False
        """Whether it is a copy, in the child of a fork."""

    # ---- life

    async def run(self, api: KinesisApi, *, store_failure: Failure | None) -> None:
        """The host task, until the coordinator is closed."""
        self._api = api
        self._wake = make_flag()
        self._watch.start()
        try:
            with Breakage(self._break):  # DC2
                async with HostTasks() as self._tasks:
                    await self._open_store(store_failure)
                    await self._drive(self._tasks)
                    self._tasks.cancel_scope.cancel()
        finally:
            self.make_sure_of_end()

    def _break(self, error: BaseException) -> None:
        _log.critical("the consumer broke", exc_info=error)
        if not isinstance(error, Exception):  # a signal handler raised it, or a Ctrl-C: it is not the users' to handle
            error = Closed(f"this Consumer does not run any more: {error!r}")
        self.custody.fail(error)

    def make_sure_of_end(self) -> None:
        """The host is over: tell everyone who waits. Done again if it was interrupted."""
        if self._has_ended:
            return
        self._watch.stop()
        self.custody.has_ended = True
        events = self.coordinator.take_events()
        for event in events:
            if not isinstance(event, told.LeaseGained | told.HandOverAsked):  # nothing begins any more
                self._follow(event)
        self._report(events)
        for worker in [*self.custody.workers.values()]:
            self.custody.drop(worker)
        self._reporter.log_rest()
        self.custody.ring()
        self._has_ended = True

    def stop(self) -> None:
        """End at once: leases that are still held will lapse."""
        self._stopping = True
        self.wake()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def close(self) -> None:
        """Commit what is acknowledged, let go of every lease, and end (L5)."""
        self.custody.stop()
        self.custody.pull()  # also the ends of shards that nobody was told of yet
        self.coordinator.close()
        self.wake()

    def disown(self, error: Exception) -> None:
        """We are in the child of a fork: all of it is the parent's. Nothing here may wait, or touch the event loop."""
        self.is_disowned = True
        self.custody.disown(error)

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
                self.custody.fail(store_error("OpenStore", failure))
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
        now, coordinator = self.clock(), self.coordinator
        self.custody.pull()
        self.custody.look_at_handlers(now)
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
        self._report(self.custody.watch.take_events())
        self._reporter.log_due()
        self.custody.admit()
        milestones = self.custody.milestones
        if milestones.look(coordinator, self.custody.workers, now):
            self.custody.ring()
        return min(coordinator.next_deadline(), milestones.next_deadline(), self.custody.watch.next_deadline())

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
                for worker in self.custody.workers.values():
                    worker.deaggregator.by_auto = self._by_auto
            self.wake()

    # ---- events

    def _follow(self, event: told.Event) -> None:
        match event:
            case told.LeaseGained():
                self._start(event)
            case told.HandOverAsked():
                self.custody.hand_over(self.custody.workers[event.shard_id])
            case told.HandOverOverdue(shard_id) | told.LeaseLost(shard_id) | told.LeaseReleased(shard_id):
                worker = self.custody.workers.get(shard_id)
                if worker is not None:
                    self.custody.drop(worker)
            case told.StreamRecreated(why):
                if self.coordinator.topology.is_halted:
                    self.custody.fail(StreamRecreated(f"the stream {self._stream} was deleted and made anew: {why}"))
            case told.ConsumerFailed(operation, failure):
                is_store = operation in STORE_OPERATIONS
                self.custody.fail(store_error(operation, failure) if is_store else to_error(failure, operation))
            case _:
                return

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
            budget=self.custody.budget,
            pace=ReadPace(
                config.calls_per_second, config.bytes_per_second, config.idle_poll_interval, self._chance, now
            ),
            deaggregator=deaggregator,
            trims=self.coordinator.trims,
            lease=event.grant,
            page_max_records=config.page_max_records,
        )
        worker = ShardWorker(reader, deaggregator, event.grant, self.clock, self._deserializer)
        assert self._tasks is not None
        assert self._api is not None
        self._tasks.start_soon(worker.run, self._api, self)
        self.custody.add(worker)

    @property
    def _by_auto(self) -> bool:
        summary = self.coordinator.topology.summary
        return summary is not None and summary.record_distribution == "AUTO"

    # ---- what the workers tell

    def handle_pages(self, worker: ShardWorker) -> None:
        self.custody.offer(worker)

    def handle_read(self, events: list[ReaderEvent]) -> None:
        self._report(events)
        if self.custody.milestones.is_awaited or self.coordinator.trims.summary_by < NEVER:
            self.wake()

    def handle_reader_over(self, worker: ShardWorker) -> None:
        """It ended, or cannot go on."""
        reader = worker.reader
        if reader.state is ReaderState.FAILED:
            assert reader.failure is not None
            self.custody.fail(to_error(reader.failure, f"reading {worker.shard_id}"))
        else:
            self.custody.look_after(worker)

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
