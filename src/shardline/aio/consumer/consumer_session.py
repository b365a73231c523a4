"""The implementation that the async and the blocking ``Consumer`` share, from the arguments to the last commit.

A session starts the host (``ConsumerDriver``), creates a taker for each iteration and run, passes the requests of user
code to the host and the answers back, and closes the consumer in good order.

Invariants (C5 and L5 are defined in docs/guarantees.md):

- ``start`` enters no cancel scope of the caller, so another task may close the consumer.
- However the host ends, everything that the consumer owns is closed, and all callers that wait for the end are woken.
  The host holds no reference to a ``Consumer``: a consumer that was never closed is garbage-collected, warns, and
  releases its leases.
- C5: a clean close counts as requesting the next record. ``close`` waits for another task or thread that has records:
  these records are done when it requests the next one. If that task has ended, ``close`` does not wait: its records are
  done if the task returned, and are delivered again if the task failed.
- L5: ``close`` releases the leases, within its timeout, or keeps them (``keep_leases``) if no caller left its block
  because of an exception. Before that, it waits for the lifecycle callbacks: within its
  timeout, but at least ``_MIN_RELEASE_TIME`` seconds, so that ``on_revoked`` is also called if the block was left
  because of an exception.
- Only one iteration is active at a time. With two, a request in one iteration would acknowledge the records of the
  other. A new iteration is refused while a caller waits in the older one, or while ``run`` is active. A new iteration
  that is not refused ends the older one.
- User code only writes to its taker and posts to the host. An interrupted or cancelled wait has taken no record.
"""

import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar, final
from weakref import ref

import anyio

from shardline.aio.client import Client
from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.consumer_arguments import (
    Streams,
    check_bounds,
    check_done,
    check_filter,
    check_new_stream,
    check_settings,
    check_start,
    check_streams,
    make_store,
)
from shardline.aio.consumer.consumer_driver import ConsumerDriver, Message
from shardline.aio.consumer.consumer_status import ConsumerStatus, Health, consumer_status, health
from shardline.aio.consumer.fan_out import FanOut, check_fan_out, find_consumer
from shardline.aio.consumer.lifecycle_callbacks import LifecycleCallbacks, OnAssigned, OnRevoked
from shardline.aio.consumer.read_chain import read_chain
from shardline.aio.consumer.shard_reading import RecordFilter
from shardline.aio.consumer.stream_host import StreamHost, store_error
from shardline.aio.consumer.worker_identity import new_incarnation, new_worker_id
from shardline.aio.loop.boot_clock import boot_time
from shardline.aio.loop.fork_and_exit import CONSUMER_FORKED
from shardline.aio.loop.host_tasks import Flag, has_ended, has_ended_well, make_flag, running_task, spawn
from shardline.aio.loop.latch import Latch
from shardline.aio.producer.validation import check_callable, check_client, check_timeout
from shardline.aio.reporting import ConsumerReporter
from shardline.aio.tracing import Tracings, find_tracings
from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.handling_lag import service_now
from shardline.core.consumer.handout import HandOut
from shardline.core.consumer.run_bounds import RunBounds
from shardline.core.consumer.stream_shares import StreamShares
from shardline.core.consumer.taker import Taker
from shardline.core.error_codes import Failure, FailureKind, to_error
from shardline.core.requests import DescribeStreamSummary
from shardline.errors import Closed, UsageError, WaitTimeout
from shardline.events import ConsumerEvent, EventSink, EventSource, Sink, check_sinks
from shardline.middleware import ConsumerMiddleware
from shardline.model.position import LATEST, Position
from shardline.model.record import Record, hand_out
from shardline.model.stream import StreamRef, parse_stream
from shardline.ports import IdentifiedLeaseStore, KclFleetStore, KclLeaseStore, LeaseStore

_CLOSED: Final = "this Consumer is closed"
_REPLACED: Final = "this iteration is over: a newer iteration of the same Consumer replaced it"
_WHY_ONE: Final = "because each request for a record acknowledges the last one"
_IN_USE: Final = f"this Consumer is already being iterated: only one iteration at a time, {_WHY_ONE}"
_CALLER_WAITS: Final = f"another task or thread waits in this iterator: only one may iterate, {_WHY_ONE}"
_LATEST_MARGIN: Final = 1.0  # LATEST is pinned to this many seconds before the service's time (L6)
_POLL_INTERVAL: Final = 0.05
_MIN_RELEASE_TIME: Final = 2.0  # seconds to release the leases, even if the timeout is shorter

_T = TypeVar("_T", bound=Taker)

current_session: Final = ContextVar["ConsumerSession | None"]("shardline_current_session", default=None)
"""The consumer whose handler or callback the current task or thread runs."""


@final
class TaskWaiter:
    """A task's wait for an answer from the host. Several waits in succession may use the same object."""

    __slots__ = ("_flag", "caller")

    def __init__(self) -> None:
        self.caller = running_task()
        self._flag = make_flag()

    def wake(self) -> None:
        self._flag.set()

    async def wait(self) -> None:
        """Wait until ``wake`` is called, or return immediately if it has been called since the last wait."""
        await self._flag.wait()
        self._flag.clear()


def _caller_has_ended(caller: object) -> bool:
    """Return whether this task or thread has ended."""
    return not caller.is_alive() if isinstance(caller, threading.Thread) else has_ended(caller)


@final
class ReadStream(NamedTuple):
    """A stream that a consumer reads."""

    ref: StreamRef
    start: Position
    store: LeaseStore
    owns_store: bool
    """Whether the session created the store, and so closes it."""


@final
class Prepared(NamedTuple):
    """The facts that are needed before the reading of a stream begins."""

    store_failure: Failure | None
    """The failure of the first attempt to open the store, if it may be repeated."""
    consumer_arn: str | None


@final
class ConsumerSession:
    """One consumer, behind the async or the blocking facade. A session takes the arguments of ``Consumer``."""

    def __init__(
        self,
        stream: Streams,
        connection: Mapping[str, Any],
        *,
        group: str | None,
        store: str | LeaseStore | None,
        start: object,
        config: ConsumerConfig | None,
        client: Client | None,
        deserializer: Callable[[bytes], Any] | None,
        record_filter: RecordFilter | None,
        middleware: Iterable[ConsumerMiddleware],
        worker_id: str | None,
        until: Literal["latest"] | None,
        idle_timeout: float | None,
        max_leases: int | None,
        dedup: bool | None,
        fan_out: str | FanOut | None,
        sinks: Iterable[Sink | EventSink[ConsumerEvent]],
        on_assigned: OnAssigned | None,
        on_revoked: OnRevoked | None,
        on_shard_end: OnAssigned | None,
        close_timeout: float | None,
        not_started: str,
    ) -> None:
        self.group, self._connection = group, connection
        self.config, self.worker_id = check_settings(config, worker_id, max_leases, dedup)
        self._start_at = check_start(start)
        streams, self._has_several = check_streams(stream, start)
        self.client, self._owns_client = check_client("Consumer", client, connection)
        self.deserializer = check_callable("deserializer", deserializer)
        self._filter, self.chain, self._sinks = check_filter(record_filter), read_chain(middleware), check_sinks(sinks)
        enter = partial(current_session.set, self)
        self._callbacks = LifecycleCallbacks(on_assigned, on_revoked, on_shard_end, enter=enter)
        self._close_timeout = check_timeout("close_timeout", close_timeout)
        first, _ = next(iter(streams.values()))
        self._fan_out = check_fan_out(fan_out, first, is_one=not self._has_several)
        self._until_latest, self._idle_timeout = check_bounds(until, idle_timeout)
        self._given_store = store
        make = partial(self._make_stream, is_shared=self._has_several)
        self.streams = {name: make(*found) for name, found in streams.items()}
        """The streams that the consumer reads, or is about to read, by their names."""
        self._removed: dict[StreamHost, ReadStream] = {}
        """The streams that were removed, and whose hosts may still be at work."""
        self._not_started_message, self._closed_message = not_started, _CLOSED
        self.tracings: Tracings | None = None  # of the sinks
        self._starting = anyio.Lock()
        self._ended: Flag | None = None
        self._driver: ConsumerDriver | None = None
        self._hand_out: HandOut | None = None  # the hand-out of the driver; kept after a fork, for status()
        self._service_time: Callable[[], float] = time.time
        self.is_closed = False
        self.left_by_error = False
        """Whether a caller left its block because of an exception. ``close`` and blocking callers write it."""
        self._taker: Taker | None = None
        self._iterator: Callable[[], object] = lambda: None  # a weak reference, see attach
        self.run_scope: anyio.CancelScope | None = None
        """The scope of ``Consumer.run`` while it is active. ``run_handlers`` writes it."""

    def _make_stream(self, ref: StreamRef, start: Position, *, is_shared: bool) -> "ReadStream":
        store = make_store(
            self._given_store,
            group=self.group,
            stream=ref.name,
            worker_id=self.worker_id,
            connection=self._connection,
            client=self.client,
            is_shared=is_shared,
        )
        if isinstance(store, IdentifiedLeaseStore) and store.is_shared and self.config.if_recreated == "restart":
            raise UsageError('if_recreated="restart" is not possible for several streams in DynamoDB')
        is_owned = store is not self._given_store
        return ReadStream(ref, start, store, is_owned)

    # ---- start

    async def start(self) -> None:
        async with self._starting:
            if self._driver is not None or self.is_closed:
                self.check_open()
                return
            try:
                await self._start()
            finally:
                if self._driver is None:
                    await self._close_owned()
                    if self._owns_client:  # a closed client cannot be started again: the next attempt needs a new one
                        self.client = Client(**self._connection)

    async def _start(self) -> None:
        if self._owns_client:
            await self.client.start()
        api = self.client.api
        prepared = [await self._prepare(stream) for stream in self.streams.values()]
        if self.is_closed:  # the consumer was closed during the calls above
            raise Closed(self._closed_message)
        self._service_time = api.service_time
        driver = self._make_driver([*zip(self.streams.values(), prepared, strict=True)])
        self._ended = ended = make_flag()

        def finish() -> None:
            driver.finish()
            ended.set()

        driver.sinks.start()
        self.tracings = find_tracings(driver.sinks.sinks, driver.sinks.source, driver.log_user_error)
        spawn(self._host(driver, api, ended), "shardline consumer", finish)
        self._driver, self._hand_out = driver, driver.hand_out

    async def _prepare(self, stream: "ReadStream") -> "Prepared":
        """Open the store of a stream, and find its registered consumer.

        Raises:
            StoreError: the store cannot be used.
        """
        if isinstance(stream.store, IdentifiedLeaseStore) and stream.store.is_shared:
            await self._identify(stream.ref, stream.store)
        failure = await stream.store.open()
        if failure is not None and not failure.retryable:
            raise store_error("OpenStore", failure)
        if stream.start == LATEST:
            # The response contains the time.
            await self.client.api.describe_stream_summary(DescribeStreamSummary(stream.ref))
        fan_out = self._fan_out
        arn = None if fan_out is None else await find_consumer(self.client, stream.ref, fan_out)
        return Prepared(failure, arn)

    async def _identify(self, ref: StreamRef, store: IdentifiedLeaseStore) -> None:
        """Find out what the rows of the stream contain about it.

        Raises:
            ServiceError, TransportError: the stream cannot be described.
        """
        summary = await self.client.api.describe_stream_summary(DescribeStreamSummary(ref))
        if isinstance(summary, Failure):
            raise to_error(summary, f"describing the stream {ref}")
        account_id = parse_stream(summary.arn).account_id
        assert account_id is not None, "it is an ARN"
        store.identify(account_id, summary.created_at or 0.0)

    def _make_driver(self, streams: list[tuple["ReadStream", "Prepared"]]) -> ConsumerDriver:
        config, shares, first = self.config, StreamShares(), streams[0][0]
        coordinators = {
            stream.ref.name: self._make_coordinator(stream, prepared, shares) for stream, prepared in streams
        }
        bounds = RunBounds(
            until_latest=self._until_latest, idle_timeout=self._idle_timeout, max_leases=config.max_leases
        )
        interval = config.checkpoint_interval
        hand_out = HandOut(
            coordinators,
            config,
            bounds,
            report_interval=first.store.checkpoint_interval if interval is None else interval,
            callbacks=self._callbacks.kinds,
            names_streams=self._has_several,
        )
        self._shares = shares
        driver = ConsumerDriver(hand_out, boot_time, reporter=self._make_reporter(first), callbacks=self._callbacks)
        for stream, prepared in streams:
            reporter = driver.reporter if stream is first else self._make_reporter(stream, driver.reporter)
            coordinator = coordinators[stream.ref.name]
            driver.streams[stream.ref.name] = self._make_host(driver, stream, prepared, coordinator, reporter)
        return driver

    def _make_reporter(self, stream: "ReadStream", first: ConsumerReporter | None = None) -> ConsumerReporter:
        name = stream.ref.name
        source = EventSource("consumer", name, self.group, self.worker_id, self.client.server_address)
        return ConsumerReporter(f"{name} ({self.worker_id})", source, self._sinks, time.monotonic, first=first)

    def _make_coordinator(self, stream: "ReadStream", prepared: "Prepared", shares: StreamShares) -> Coordinator:
        store = stream.store
        return Coordinator(
            stream.ref,
            self.worker_id,
            stream.start,
            incarnation=new_incarnation(),
            read_by="polling" if prepared.consumer_arn is None else "fan-out",
            config=self.config,
            scan_interval=store.scan_interval,
            checkpoint_interval=store.checkpoint_interval,
            latest_at=max(0.0, self.client.api.service_time() - _LATEST_MARGIN),
            rng=random.Random(),  # noqa: S311 - no secret
            now=boot_time(),
            clock=boot_time,
            kcl_failover=store.kcl_failover if isinstance(store, KclLeaseStore) else None,
            follows_kcl=isinstance(store, KclFleetStore) and store.follows_kcl,
            shares=shares,
        )

    def _make_host(
        self,
        driver: ConsumerDriver,
        stream: "ReadStream",
        prepared: "Prepared",
        coordinator: Coordinator,
        reporter: ConsumerReporter,
    ) -> StreamHost:
        return StreamHost(
            driver,
            coordinator,
            store=stream.store,
            owns_store=stream.owns_store,
            reporter=reporter,
            deserializer=self.deserializer,
            record_filter=self._filter,
            service_time=self.client.api.service_time,
            store_failure=prepared.store_failure,
            consumer_arn=prepared.consumer_arn,
            find_consumer=self._find_consumer_again(stream.ref),
        )

    def _find_consumer_again(self, stream: StreamRef) -> Callable[[], Awaitable[str | None]] | None:
        """Return the function that finds or registers the consumer of a re-created stream, or ``None``."""
        fan_out = self._fan_out
        if fan_out is None or fan_out.is_arn or self.config.if_recreated == "stop":
            return None
        # Leave out the fallback: a worker that subscribes does not begin to poll later.
        return partial(find_consumer, self.client, stream, FanOut(fan_out.name))

    async def _host(self, driver: ConsumerDriver, api: Any, ended: Flag) -> None:
        try:
            await driver.run(api)
        finally:
            try:
                if not driver.is_disowned:
                    await self._close_owned()
                    with anyio.CancelScope(shield=True):
                        await driver.sinks.wait()
            finally:
                ended.set()

    async def _close_owned(self) -> None:
        """Close the stores and the client, if this session created them."""
        with anyio.CancelScope(shield=True):
            async with AsyncExitStack() as stack:
                if self._owns_client:
                    stack.push_async_callback(self.client.close)
                for stream in [*self.streams.values(), *self._removed.values()]:
                    if stream.owns_store:
                        stack.push_async_callback(stream.store.close)

    # ---- state

    def check_open(self) -> None:
        if self.is_closed:
            raise Closed(self._closed_message)
        if self._driver is None:
            raise Closed(self._not_started_message)

    def check_loop(self) -> None:
        """Refuse a call from an event loop other than the host's."""
        if self._driver is not None:
            self._driver.loop_affinity.check()

    @property
    def driver(self) -> ConsumerDriver:
        """The host.

        Raises:
            Closed: the consumer is closed, or not started.
        """
        self.check_open()
        assert self._driver is not None
        return self._driver

    @property
    def is_started(self) -> bool:
        return self._driver is not None

    @property
    def hand_out(self) -> HandOut:
        """The machine that the host drives. User code only reads it."""
        assert self._hand_out is not None
        return self._hand_out

    @property
    def current_config(self) -> ConsumerConfig:
        return self.config if self._hand_out is None else self._hand_out.config

    @property
    def is_ready(self) -> bool:
        return self._hand_out is not None and self._hand_out.bounds.is_ready and not self.is_closed

    @property
    def health(self) -> Health:
        return health(self._hand_out, is_closed=self.is_closed)

    def status(self) -> ConsumerStatus:
        machine = self._hand_out
        now = 0.0 if machine is None else self.service_now()
        return consumer_status(
            self.title,
            self.group,
            self.worker_id,
            machine,
            now,
            is_closed=self.is_closed,
            streams=self.streams,
        )

    async def wait_ready(self, timeout: float | None) -> None:  # noqa: ASYNC109 - it raises WaitTimeout
        limit = check_timeout("timeout", timeout)
        with anyio.move_on_after(limit):
            while True:
                driver = self.driver
                self.check_failure()
                if driver.hand_out.bounds.is_ready:
                    break
                await driver.changes.wait()
        self.check_open()
        if not self.is_ready:
            raise WaitTimeout(f"the consumer of {self.title} is not ready after {limit:g} s")

    # ---- streams

    @property
    def title(self) -> str:
        """The streams, for messages."""
        return ", ".join(str(stream.ref) for stream in self.streams.values())

    async def add_stream(self, stream: str, start: object) -> None:
        """Read another stream from now on. Nothing has changed if this raises."""
        ref, driver = parse_stream(stream), self.driver
        position = self._start_at if start is None else check_start(start)
        check_new_stream(ref, {*self.streams, *driver.streams})
        check_fan_out(self._fan_out, ref, is_one=False)
        if any(
            isinstance(one.store, IdentifiedLeaseStore) and not one.store.is_shared for one in self.streams.values()
        ):
            raise UsageError(
                "the table of this Consumer has the rows of one stream: start the Consumer with a list of streams, "
                "and another table, to add streams"
            )
        added = self._make_stream(ref, position, is_shared=True)
        self.streams[ref.name] = added  # reserves the name
        is_added = False
        try:
            summary = await self.client.api.describe_stream_summary(DescribeStreamSummary(ref))
            if isinstance(summary, Failure) and summary.kind is FailureKind.NOT_FOUND:
                raise to_error(summary, f"adding the stream {ref}")
            prepared = await self._prepare(added)
            if prepared.store_failure is not None:
                raise store_error("OpenStore", prepared.store_failure)
            driver = self.driver
            coordinator = self._make_coordinator(added, prepared, self._shares)
            reporter = self._make_reporter(added, driver.reporter)
            make = partial(self._make_host, driver, added, prepared, coordinator, reporter)
            driver.post(partial(driver.add_stream, ref.name, coordinator, make))
            is_added = True
            while ref.name not in driver.streams and not driver.has_ended:
                await driver.changes.wait(_POLL_INTERVAL)
        finally:
            if not is_added:
                del self.streams[ref.name]
                if added.owns_store:
                    with anyio.CancelScope(shield=True):
                        await added.store.close()
        self.check_failure()

    async def remove_stream(self, stream: str, timeout: float | None, *, waits: bool = True) -> None:  # noqa: ASYNC109 - it raises WaitTimeout
        """Give up a stream: release its leases in good order."""
        limit, driver, name = check_timeout("timeout", timeout), self.driver, parse_stream(stream).name
        if name not in self.streams or name not in driver.streams:
            raise UsageError(f"this Consumer does not read {stream!r}, but {self.title}")
        if len(self.streams) == 1:
            raise UsageError("this is the only stream that the Consumer reads: close the Consumer instead")
        host = driver.streams[name]
        # The hosts of earlier removed streams that are gone have closed their stores.
        alive = [*driver.streams.values()]
        self._removed = {one: removed for one, removed in self._removed.items() if one in alive}
        self._removed[host] = self.streams.pop(name)  # from now on, the stream cannot be removed again
        driver.post(partial(driver.hand_out.remove_stream, name))
        if not waits:
            return
        with anyio.move_on_after(limit):
            while driver.streams.get(name) is host and not driver.has_ended:
                await driver.changes.wait(_POLL_INTERVAL)
        if driver.streams.get(name) is host and not driver.has_ended:
            raise WaitTimeout(
                f"the leases of {stream} are not released after {limit:g} s; the consumer goes on releasing"
            )

    def find_stream(self, name: str) -> bool:
        """Return whether the consumer reads a stream of this name."""
        return name in self.streams

    @property
    def names_streams(self) -> bool:
        """Whether shards are named together with their streams."""
        return self._has_several if self._hand_out is None else self._hand_out.names_streams

    # ---- takers

    def begin(self, caller: object, make: Callable[[HandOut, int], _T]) -> _T:
        """Begin an iteration or a run. The records that an older iteration handed out are then done.

        Raises:
            UsageError: another caller waits for a record, or ``run`` is active.
            Closed: the consumer is closed, or not started.
        """
        driver, older = self.driver, self._taker
        is_awaited = older is not None and not older.is_over and older.is_awaited(caller, _caller_has_ended)
        if is_awaited or self.run_scope is not None:
            raise UsageError(_IN_USE)
        taker = make(driver.hand_out, 1 if older is None else older.number + 1)
        self._taker = taker
        if older is not None:
            older.cursor.slice_end = -NEVER  # ends the older one's fast path, so that it finds that it was replaced
        driver.post(partial(driver.hand_out.begin, taker))
        return taker

    def attach(self, iterator: object) -> None:
        """Keep a weak reference to the current taker's iterator.

        Once the iterator is garbage-collected, no caller can request more records.
        """
        self._iterator = ref(iterator)

    def check_current(self, taker: Taker) -> None:
        """Refuse an iterator that was replaced by a newer one."""
        if taker is not self._taker:
            raise UsageError(_REPLACED)

    def check_failure(self) -> None:
        """Raise the error that ended the consumer, if any."""
        if self._driver is not None and self._driver.failure is not None:
            raise self._driver.failure

    def begin_slice(self, cursor: Cursor) -> int:
        """Prepare to take the next record of an open cursor. Return the index of this record in ``cursor.records``.

        The caller then takes the record with a single assignment, and makes no call after it: an interrupt after the
        assignment would lose the record.
        """
        place = cursor.place
        hand_out(cursor.records[place : place + 1], self.service_now())
        cursor.begin_slice(boot_time())
        return place

    def make_batch(self, cursor: Cursor) -> Batch[Any]:
        """Return all records of an open cursor as a batch. The caller then takes them with a single assignment."""
        batch = Batch(list(cursor.records), self.ack)
        hand_out(batch.records, self.service_now())
        cursor.begin_slice(boot_time())
        return batch

    def look_at(self, cursor: Cursor, *, whole: bool) -> tuple[int, Record[Any] | Batch[Any]]:
        """Return the next record or batch of an open cursor, and the new ``cursor.place`` after taking it."""
        if whole:
            batch = self.make_batch(cursor)
            return len(batch.records), batch
        return cursor.place + 1, cursor.records[cursor.place]

    def service_now(self) -> float:
        """Return the service's time, in seconds since 1970. Any thread may call this."""
        return service_now(self._service_time(), time.time())

    @property
    def latest_at(self) -> float:
        """The time that LATEST stands for now, in seconds since 1970 (L6)."""
        return max(0.0, self._service_time() - _LATEST_MARGIN)

    async def ask(self, taker: Taker, waiter: TaskWaiter | None = None) -> None:
        """Ask the host for more records and wait for the answer. ``waiter`` was created by the running task."""
        waiter = waiter or TaskWaiter()
        driver, number = self._enter(taker, waiter)
        try:
            while taker.answered < number and not driver.has_ended:
                await waiter.wait()
        finally:
            taker.leave(waiter)
        taker.is_over = taker.is_over or taker.answered < number  # no answer: the host has ended

    def ask_blocking(self, taker: Taker) -> None:
        """Like ``ask``, for a thread without an event loop."""
        waiter = Latch()
        driver, number = self._enter(taker, waiter)
        try:
            while taker.answered < number and not driver.has_ended:
                waiter.wait()
        finally:
            taker.leave(waiter)
        taker.is_over = taker.is_over or taker.answered < number  # no answer: the host has ended

    def _enter(self, taker: Taker, waiter: TaskWaiter | Latch) -> tuple[ConsumerDriver, int]:
        driver = self._driver
        if driver is None:  # this is the child of a fork
            raise Closed(self._closed_message)
        if not taker.enter(waiter, _caller_has_ended):
            raise UsageError(_CALLER_WAITS)
        number = taker.asked
        driver.post(partial(driver.hand_out.ask, taker, number))
        return driver, number

    def post(self, message: Message) -> None:
        """Have the host make this call. Nothing happens if there is no host."""
        if self._driver is not None:
            self._driver.post(message)

    def ack(self, done: Record[Any] | Batch[Any], *, through: bool = False) -> bool:
        """Acknowledge a record or a batch. Return whether its lease is held."""
        check_done(done)
        driver = self._driver
        if driver is None:
            raise Closed(self._closed_message if self.is_closed else self._not_started_message)
        if isinstance(done, Record):
            driver.post(partial(driver.hand_out.ack, done, through=through))
        else:
            driver.post(partial(_ack_all, driver.hand_out, done.records))
        lease = done.lease
        return lease is not None and lease.held

    # ---- close

    async def stop_handing_out(self) -> None:
        """Have the host hand out no more records, and wait until it has stopped."""
        driver = self._driver
        if driver is not None:
            driver.post(driver.hand_out.close)
            while not driver.hand_out.is_closing and not driver.has_ended:
                await driver.changes.wait(_POLL_INTERVAL)

    async def close(self, caller: object, timeout: float | None, *, clean: bool) -> None:  # noqa: ASYNC109 - it returns
        """Hand out no more records, let user code finish its records, commit, and release the leases.

        Args:
            caller: the task or thread that closes the consumer. If the close is clean, the records of this caller are
                done.
            timeout: how long to wait for other tasks and threads. ``None`` means ``close_timeout``.
            clean: whether the records in hand count as done.
        """
        limit = self._close_timeout if timeout is None else check_timeout("timeout", timeout)
        driver, ended = self._driver, self._ended
        is_loop_gone = driver is not None and driver.stop_if_loop_gone()
        is_first, self.is_closed = not self.is_closed, True
        # User code may leave its block because of an exception while another task's clean close waits for it. The
        # records of this code are then not done (C5).
        self.left_by_error = self.left_by_error or not clean
        if driver is not None and is_loop_gone:
            await driver.sinks.wait()
        if driver is None or ended is None or is_loop_gone:
            return
        with anyio.CancelScope(shield=True):
            if is_first:
                until = time.monotonic() + (math.inf if limit is None else limit)
                try:
                    await self.stop_handing_out()
                    await self._end_user_code(driver, caller, until, clean=clean)
                    await _end_callbacks(driver, max(until, time.monotonic() + _MIN_RELEASE_TIME))
                    driver.post(partial(driver.release, is_clean=not self.left_by_error))
                    with anyio.move_on_after(max(until - time.monotonic(), _MIN_RELEASE_TIME)):
                        await ended.wait()
                finally:
                    driver.stop()
            await ended.wait()

    def handle_close_in_sink(self) -> None:
        """If a sink closes the consumer, do not wait for that sink."""
        if self._driver is not None:
            self._driver.sinks.handle_close()

    async def _end_user_code(self, driver: ConsumerDriver, caller: object, until: float, *, clean: bool) -> None:
        """Wait for the user code of other tasks, if the close is clean. Then decide which records in hand are done."""
        while clean and self.run_scope is not None and time.monotonic() < until:
            await driver.changes.wait(_POLL_INTERVAL)
        if self.run_scope is not None:
            self.run_scope.cancel()
        taker = self._taker
        if taker is None:
            return
        while clean and self._is_at_work(taker, caller) and time.monotonic() < until:
            await driver.changes.wait(_POLL_INTERVAL)
        is_done = self._iterator() is None or taker.caller is caller or has_ended_well(taker.caller)
        driver.post(partial(driver.hand_out.settle, taker, done=is_done and not self.left_by_error))

    def _is_at_work(self, taker: Taker, caller: object) -> bool:
        """Return whether a task or thread other than the caller is alive and has records."""
        is_alive = self._iterator() is not None and taker.caller is not caller and not _caller_has_ended(taker.caller)
        return taker.has_records and is_alive

    def abandon(self) -> None:
        """Release the leases of a consumer that was garbage-collected. Any thread may call this."""
        driver = self._driver
        if driver is not None:
            driver.post(driver.release)

    def __repr__(self) -> str:
        group = "" if self.group is None else f" of group {self.group!r}"
        return f"<Consumer of {self.title}{group}, {health(self._hand_out, is_closed=self.is_closed)}>"

    def handle_fork(self) -> None:
        """In the child of a fork, refuse to work if the consumer was started. If not, choose a new worker id."""
        if self._driver is not None:
            self._driver.disown(Closed(CONSUMER_FORKED))
            self._driver = None
            self.is_closed, self._closed_message = True, CONSUMER_FORKED
        elif self.config.worker_id is None:
            self.worker_id = new_worker_id()


async def _end_callbacks(driver: ConsumerDriver, until: float) -> None:
    """Wait for the lifecycle callbacks. The leases are released after them."""
    while not (driver.hand_out.lifecycle.is_settled or driver.has_ended) and time.monotonic() < until:
        await driver.changes.wait(_POLL_INTERVAL)


def is_handler_of(session: ConsumerSession) -> bool:
    """Return whether the caller is a handler or callback of this consumer.

    If so, it must not wait for the consumer's end.
    """
    return current_session.get() is session


def _ack_all(machine: HandOut, records: list[Record[Any]], now: float) -> None:
    for record in records:
        machine.ack(record, now)
