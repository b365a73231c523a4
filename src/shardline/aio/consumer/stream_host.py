"""Serves one stream of a consumer: sends the requests of its coordinator, carries out its events, and runs its readers.

The host of the consumer (``ConsumerDriver``) polls the hosts of all its streams, one after the other.

Invariants:

- The coordinator gets exactly one response or failure for every operation and request that was polled, even if the task
  that sends the request is cancelled or raises.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, final

import anyio

from shardline.aio.consumer.shard_reading import RecordFilter, ShardReading, ShardReadings, Start
from shardline.aio.reporting import CLOSED, ConsumerReporter
from shardline.codec.shapes import ListShardsResponse
from shardline.core.backoff import Backoff
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer import consumer_events
from shardline.core.consumer.coordinator import Coordinator, ScanLeases
from shardline.core.consumer.handling_lag import service_now
from shardline.core.consumer.handout import HandOut
from shardline.core.consumer.held_shard import HeldShard
from shardline.core.consumer.lag_measurement import measure_lag
from shardline.core.consumer.reader import Page, ReaderEvent
from shardline.core.consumer.store_outages import STORE_OPERATIONS
from shardline.core.error_codes import Failure, FailureKind, to_error
from shardline.core.kcl_requests import KclRequest, KclRows, ReadKclRows
from shardline.core.leases import LeaseOperation
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.errors import FilterFailed, ShardlineError, StoreError, StreamRecreated
from shardline.model.record import Record
from shardline.ports import BatchingLeaseStore, KclFleetStore, KinesisApi, LeaseAnswer, LeaseStore

_log: Final = logging.getLogger("shardline.consumer")
_TIMED_OUT: Final = Failure(FailureKind.TRANSIENT, "Timeout", "the store did not answer within half a lease duration")
_OPEN_BACKOFF: Final = (0.1, 5.0)


class ConsumerHost(Protocol):
    """The part of the consumer's host that the host of a stream uses."""

    hand_out: HandOut
    clock: Callable[[], Instant]
    random: random.Random
    api: KinesisApi | None
    is_stopping: bool

    def start_soon(self, task: Callable[..., Awaitable[Any]], *arguments: Any) -> None: ...
    async def sleep(self, delay: float) -> None: ...
    def wake(self) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def pump_hand_out(self) -> None: ...


@final
class StreamHost:
    """The host of one stream."""

    def __init__(
        self,
        driver: ConsumerHost,
        coordinator: Coordinator,
        *,
        store: LeaseStore,
        owns_store: bool,
        reporter: ConsumerReporter,
        deserializer: Callable[[bytes], Any] | None,
        record_filter: RecordFilter | None,
        service_time: Callable[[], float],
        store_failure: Failure | None = None,
        consumer_arn: str | None = None,
        find_consumer: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.name = coordinator.stream.name
        self.reporter = reporter
        self._driver = driver
        self._clock = driver.clock
        self._stream = coordinator.stream
        self._config = driver.hand_out.config
        self._store = store
        self._owns_store = owns_store
        self._store_failure = store_failure  # of the first attempt to open the store
        self._batching = store if isinstance(store, BatchingLeaseStore) else None
        self._service_time = service_time
        self._readers = ShardReadings(driver.hand_out, coordinator, driver.clock, deserializer, record_filter)
        self._reading: dict[HeldShard, ShardReading] = {}
        self._consumer_arn = consumer_arn  # the registered consumer to subscribe with; None: poll
        self._find_consumer = find_consumer  # finds or registers it again for a re-created stream; None: never
        self._registering = anyio.Lock()

    # ---- called by the consumer's host

    async def open_store(self) -> None:
        """Retry until the store can be opened. A failure that is not retryable ends the consumer."""
        failure, driver = self._store_failure, self._driver
        backoff = Backoff(*_OPEN_BACKOFF, driver.random)
        while failure is not None and not driver.is_stopping and not self.coordinator.is_closed:
            if not failure.retryable:
                self._fail(store_error("OpenStore", failure))
                return
            delay = backoff.next_delay()
            self.report([consumer_events.StoreFailed(failure, backoff.failures)])
            await driver.sleep(delay)
            failure = await self._store.open()

    async def close_store(self) -> None:
        """Close the store, if the session created it."""
        if self._owns_store:
            with anyio.CancelScope(shield=True):
                await self._store.close()

    def pump(self, now: Instant) -> Instant:
        """Do everything that is due and return the next deadline."""
        coordinator, driver = self.coordinator, self._driver
        writes: list[LeaseOperation] = []
        while (operation := coordinator.poll_operation(now)) is not None:
            if isinstance(operation, ScanLeases):
                driver.start_soon(self._scan)
            else:
                writes.append(operation)
        for batch in [writes] if self._batching is not None and writes else [[write] for write in writes]:
            driver.start_soon(self._write, batch)
        while (kcl_request := coordinator.poll_kcl_request(now)) is not None:
            driver.start_soon(self._send_to_kcl, kcl_request)
        while (request := coordinator.poll_request(now)) is not None:
            driver.start_soon(self._send, request)
        events = coordinator.take_events()
        for event in events:
            self._handle_event(event)
        self.report(events)
        self.reporter.log_due()
        return coordinator.next_deadline()

    def measure_lag(self, now: Instant) -> None:
        """Report the lag of the stream's shards."""
        at = service_now(self._service_time(), time.time())
        self.report([measure_lag(self._driver.hand_out, self.name, now, at)])

    def finish(self) -> None:
        """Handle the last events, once the host has ended."""
        events = self.coordinator.take_events()
        for event in events:
            # It is too late to start reading, or to hand over in good order.
            if not isinstance(event, Start | consumer_events.HandOverAsked | consumer_events.LeaseSurplus):
                self._handle_event(event)
        self.report(events)
        self.reporter.log_rest()

    def stop_reading(self, shard: HeldShard) -> None:
        if shard in self._reading:
            self._reading[shard].stop()

    def wake_reader(self, shard: HeldShard) -> None:
        if shard in self._reading:
            self._reading[shard].wake()

    def report(self, events: Sequence[consumer_events.Event]) -> None:
        """Count, log and pass on events about this stream."""
        if events:
            self._driver.hand_out.work.handle_events(events)
            self.reporter.report(events)

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
                self.coordinator.handle_scan_failed(answer, self._clock())
            else:
                self.coordinator.handle_rows(answer, self._clock())
            self._driver.wake()

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
            coordinator, now = self.coordinator, self._clock()
            for operation, answer in zip(operations, answers, strict=True):
                if isinstance(answer, Failure):
                    coordinator.handle_operation_failed(operation, answer, now)
                else:
                    coordinator.handle_applied(operation, answer, now)
            self._driver.wake()

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
            now = self._clock()
            if isinstance(answer, Failure):
                fleet.handle_failed(request, answer, now)
            elif isinstance(answer, KclRows):
                fleet.handle_rows(answer, now)
            elif not isinstance(request, ReadKclRows):
                fleet.handle_written(request, now)
            for note in fleet.take_notes():
                _log.info("%s: %s", self._stream.name, note)
            self._driver.wake()

    def _time_limit(self) -> anyio.CancelScope:
        """Return a scope that cancels a slow call to the store, early enough for another call to renew the leases."""
        return anyio.move_on_after(self._config.lease_duration / 2)

    async def _send(self, request: ListShards | DescribeStreamSummary) -> None:
        answer: Any = CLOSED
        api = self._api
        try:
            if isinstance(request, ListShards):
                answer = await api.list_shards(request)
            else:
                answer = await api.describe_stream_summary(request)
        except Exception as error:  # noqa: BLE001 - a bug in an adapter: expected failures are values
            _log.exception("internal error while sending a request")
            answer = _internal_failure(error)
        finally:
            now = self._clock()
            self.coordinator.handle_service_time(self._service_time(), now)
            if isinstance(answer, Failure):
                self.coordinator.handle_request_failed(answer, now)
            elif isinstance(answer, ListShardsResponse):
                self.coordinator.handle_shards(answer, now)
            else:
                self.coordinator.handle_summary(answer, now)
                for reading in self._reading.values():
                    reading.deaggregator.by_auto = self._by_auto
            self._driver.wake()

    # ---- events

    def _handle_event(self, event: consumer_events.Event) -> None:
        hand_out, stream, now = self._driver.hand_out, self.name, self._clock()
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
                what = f"{operation} of {stream}" if hand_out.names_streams else operation
                self._fail(store_error(operation, failure) if is_store else to_error(failure, what))
            case _:
                return

    def _fail(self, error: Exception) -> None:
        self._driver.fail(error)

    @property
    def _api(self) -> KinesisApi:
        assert self._driver.api is not None, "the host runs"
        return self._driver.api

    def _start_reading(self, event: Start) -> None:
        reading = self._readers.make(event, self._consumer_arn, by_auto=self._by_auto)
        if not reading.shard.is_stopping:
            self._reading[reading.shard] = reading
            self._driver.start_soon(self._read, reading)

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
                    self._driver.pump_hand_out()
            return self._consumer_arn

    async def _read(self, reading: ShardReading) -> None:
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
        self._driver.hand_out.handle_pages(shard, pages, self._clock())
        self._driver.pump_hand_out()

    def handle_read(self, events: list[ReaderEvent]) -> None:
        self.report(events)
        self._driver.hand_out.handle_read()
        if self._driver.hand_out.take_pump_due() or self.coordinator.trims.summary_by < NEVER:
            self._driver.wake()

    def handle_reader_over(self, shard: HeldShard) -> None:
        """Handle a reader that has ended or failed."""
        self._driver.hand_out.handle_reader_over(shard, self._clock())
        self._driver.pump_hand_out()

    def handle_filter_failed(self, shard: HeldShard, record: Record[bytes], error: BaseException) -> None:
        """Stop the consumer, because the user's filter raised this exception. The record is not skipped."""
        failed = FilterFailed(shard.shard_id, record)
        failed.__cause__ = error
        _log.error("%s: %s", self.reporter.name, failed, exc_info=error)
        self._fail(failed)
        self._driver.pump_hand_out()


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
