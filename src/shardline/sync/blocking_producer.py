"""The blocking producer, for programs without an event loop.

The blocking producer uses the same intake and state machine as the async producer. A put runs entirely in the caller's
thread and touches only the intake. A daemon thread, the network thread, runs an event loop with the machine's host.
Methods that need the state of the machine (``flush``, ``close``, ``stats``) ask that thread.

Invariants:

- P1, P7, P10: the same as for the async producer. Threads get room in the order in which they began to wait.
- A put holds the putters' lock while it checks the gate and appends the record. The lock is re-entrant, because a
  signal handler or a finalizer may put a record in the middle of a put in its own thread. The network thread takes the
  lock only for a callback that puts, and then waits only briefly (``_LockForCallbacks``): the thread that holds the
  lock may be in a signal handler that closes the producer, and so waits for the network thread.
- Any thread may put, flush and close, and so may a signal handler in the middle of a put.
- The network thread never waits for itself. A callback that would wait is refused. A callback that puts while the
  buffer is full gets ``BufferFull`` instead of waiting.
"""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, Unpack, final, overload

from shardline._speedups import twin_method
from shardline.aio.client import Client, ConnectionArguments
from shardline.aio.producer.bulk_put import BulkPut, Item, OnInvalid, close_if_generator, iterate
from shardline.aio.producer.producer_driver import Driver, wait_until_ready
from shardline.aio.producer.producer_facade import ProducerArguments, ProducerFacade, undelivered
from shardline.aio.producer.put_chain import check_middleware
from shardline.aio.producer.trace_headers import TRACED_MAX_BYTES
from shardline.aio.producer.validation import (
    DataT_contra,
    SerializedT,
    Serializer,
    check_client,
    check_tagged_record,
    check_timeout,
)
from shardline.codec.value_packing import PackingName
from shardline.core.producer.intake import Put
from shardline.core.producer.producer_config import ProducerConfig, SettingChanges
from shardline.core.producer.producer_record import payload_bytes
from shardline.core.producer.producer_stats import ProducerStats
from shardline.errors import BufferFull, Closed, WaitTimeout
from shardline.events import EventSink, ProducerEvent, Sink, check_sinks
from shardline.middleware import ProducerMiddleware
from shardline.model.headers import HeadersToPut
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH
from shardline.sync.blocking_backpressure import ThreadWaitQueue
from shardline.sync.blocking_delivery import Delivery, refuse_to_wait_in_callback
from shardline.sync.host_thread import LoopThread

_clock: Final = time.monotonic
_get_ident: Final = threading.get_ident
_WAKE: Final = Put.WAKE  # a module global, because put is the hot path
_SLICE_RECORDS: Final = 128  # records that put_many adds each time it takes the lock
_LOCK_TIMEOUT: Final = 0.1  # seconds; a put holds the lock for microseconds


@final
class _LockForCallbacks:
    """The putters' lock, as callbacks in the network thread use it: they wait only briefly for the lock."""

    __slots__ = ("_lock",)

    def __init__(self, lock: "threading.RLock") -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT):
            raise BufferFull("another thread holds the buffer's lock in the middle of a put: try again later")

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@final
class Producer(ProducerFacade[ThreadWaitQueue], Generic[DataT_contra]):
    """Puts records into a stream, from any thread::

        with Producer("orders", region="eu-west-1") as producer:
            delivery = producer.put(b"...", key="user-1")
            receipt = delivery.result(timeout=5)

    It takes the same arguments as the async ``Producer``, except ``client``: the network thread creates its own client.
    """

    _with_statement = "with"
    _host_lifetime = "process"

    @overload
    def __init__(
        self: "Producer[bytes]",
        stream: str,
        *,
        serializer: None = None,
        on_failure: Callable[[Delivery], object] | None = None,
        **arguments: Unpack[ProducerArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: "Producer[SerializedT]",
        stream: str,
        *,
        serializer: Callable[[SerializedT], bytes] | None,
        on_failure: Callable[[Delivery], object] | None = None,
        **arguments: Unpack[ProducerArguments],
    ) -> None: ...
    def __init__(
        self,
        stream: str,
        *,
        config: ProducerConfig | None = None,
        serializer: Serializer | None = None,
        packing: PackingName | None = None,
        middleware: Iterable[ProducerMiddleware] = (),
        dedup: bool | None = None,
        on_failure: Callable[[Delivery], object] | None = None,
        sinks: Iterable[Sink | EventSink[ProducerEvent]] = (),
        close_timeout: float | None = 30.0,
        drain_on_cancel: bool = True,
        **connection: Unpack[ConnectionArguments],
    ) -> None:
        # Only check the arguments: the network thread creates its own client.
        unused_client, _ = check_client("Producer", None, connection)
        self._arguments: dict[str, Any] = {
            "config": config,
            "serializer": serializer,
            "packing": packing,
            "middleware": check_middleware(middleware, is_blocking=True),
            "dedup": dedup,
            "on_failure": on_failure,
            "sinks": check_sinks(sinks),
            "close_timeout": close_timeout,
            "drain_on_cancel": drain_on_cancel,
        }
        super().__init__(stream, ThreadWaitQueue, **self._arguments, server_address=unused_client.server_address)
        self._delivery_type = Delivery
        self._connection = connection
        self._client: Client | None = None
        self._ended: threading.Event | None = None  # set if another producer opened this one
        self._thread: LoopThread | None = None
        self._network_ident: int | None = None
        self._closer: int | None = None
        self._make_locks()

    # ---- start and close

    def start(self) -> None:
        """Start the network thread. This raises the same errors as the async ``start``."""
        with self._lifecycle_lock:
            if self._is_started or self._closed:
                self._check_open()
                return
            thread = LoopThread("shardline producer")
            try:
                thread.start()
                self._network_ident = thread.ident
                # Use an empty context, because the context of a caller inside trio says that trio's event loop is
                # running.
                begin = partial(_begin, thread, self._driver, self._connection)
                self._client = Context().run(thread.call, begin)
                self._thread, self._schedule_in_loop = thread, thread.soon
            finally:
                if self._thread is None:  # the start failed, or was interrupted
                    thread.stop()
            self._admit()

    def _open_other(self, stream: str) -> Self:
        with self._streams_lock:
            opened = self._others.get(stream)
            if opened is not None:  # another thread opened it in the meantime
                return opened
            thread = self._running()
            assert self._client is not None
            other: Any = type(self)(stream, **self._arguments, **self._connection)
            other._start_in(thread, self._client)  # noqa: SLF001 - of the same class
            self._others[stream] = other
            return self._others[stream]

    def _start_in(self, thread: LoopThread, client: Client) -> None:
        """Start the host in the thread of another producer."""
        self._thread, self._schedule_in_loop, self._network_ident = thread, thread.soon, thread.ident
        self._client, self._ended = client, threading.Event()
        self._driver.sinks.start()
        thread.begin(partial(_host_other, self._driver, client, self._ended))
        self._admit()

    def close(self, timeout: float | None = None) -> list[Delivery]:
        """Refuse further puts, deliver the buffered records within ``timeout`` seconds, and return failed deliveries.

        The returned deliveries have failed with the code ``Closed``, unless they failed earlier. Closing twice is
        harmless.
        """
        limit = self._close_timeout if timeout is None else check_timeout("timeout", timeout)
        refuse_to_wait_in_callback("close()")
        self._driver.sinks.handle_close()
        if limit == 0 and self._closed and self._thread is not None:
            for driver in self._drivers.values():
                self._thread.soon(driver.stop)  # a close with no time left cuts a longer one short
        if self._closer == threading.get_ident():  # a signal handler that interrupted a close in its own thread
            return undelivered(self._left)
        with self._lifecycle_lock:
            self._closer = threading.get_ident()
            try:
                return self._close_all(limit)
            finally:
                self._closer = None

    def _close_all(self, limit: float | None) -> list[Delivery]:
        if not self._others:
            return self._close(limit)
        end = None if limit is None else _clock() + limit
        if self._intake.refusal is None:
            self._intake.refuse("this Producer is closed")
        if self._thread is not None and limit != 0:
            for driver in self._drivers.values():
                self._thread.soon(driver.flush)
        left: list[Delivery] = []
        for other in self._others.values():
            left += other._close(None if end is None else max(0.0, end - _clock()))  # noqa: SLF001 - of the same class
        # This producer is closed last, because its host closes the client.
        return left + self._close(None if end is None else max(0.0, end - _clock()))

    def _close(self, limit: float | None) -> list[Delivery]:
        """Close the producer of this stream."""
        first = self._refuse_puts()
        self._room.wake_all()
        if self._thread is None:
            return []
        try:
            if first:
                self._left = self._thread.ask(self._intake.unfinished)
                # With no time left, do not send records that would then be returned as undelivered.
                if limit != 0:
                    self._flush_and_wait(self._thread, limit, self._left)
        finally:
            self._thread.soon(self._driver.stop)
        if self._ended is None:
            self._thread.join()
        else:
            self._ended.wait()
        return undelivered(self._left)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(self._exit_timeout(kind))

    # ---- putting

    @twin_method("put_blocking")
    def put(  # noqa: C901 - the hot path, with as few calls as possible
        self,
        data: DataT_contra,
        *,
        key: str | None = None,
        explicit_hash_key: str | None = None,
        headers: HeadersToPut | None = None,
        ttl: float | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
        timeout: float | None = None,
        stream: str | None = None,
    ) -> Delivery:
        """Put one record. The call waits only while the buffer is full.

        It takes the same arguments and raises the same exceptions as the async ``put``. ``on_delivery`` is called in
        the network thread.
        """
        if stream is not None:
            return self._put_into(stream, data, key, explicit_hash_key, headers, ttl, on_delivery, timeout)
        payload: Any = data
        if self._serializer is not None:
            payload, key, explicit_hash_key, headers = self._prepare(data, key, explicit_hash_key, headers)
        intake, trace, tags, size = self._intake, self._trace, b"", sys.maxsize
        if trace is not None and (_get := trace.get_context)(None) is not trace.untraced:  # faster than an attribute
            tags = trace.tags()
        if (
            type(payload) is bytes
            and type(key) is str
            and explicit_hash_key is None is headers
            and (not tags or len(payload) < TRACED_MAX_BYTES)
            and 0 < len(key) <= PARTITION_KEY_MAX_LENGTH
            and key.isascii()
        ):  # the usual case, with few function calls
            size = len(payload) + len(key) + len(tags)
        if size > intake.plain_max_bytes:
            payload, key, explicit_hash_key, tags, size = self._check(payload, key, explicit_hash_key, headers)
        delivery = Delivery(payload, key, explicit_hash_key, _clock() + self._ttl)
        if tags:
            delivery.tags = tags
        if ttl is not None or on_delivery is not None:
            self._set_options(delivery, ttl, on_delivery)
        result: Put | None = None
        try:
            with self._lock if _get_ident() != self._network_ident else self._callbacks_lock:
                reserved, reserved_bytes = intake.reserved_records + 1, intake.reserved_bytes + size
                # This is ``Intake.put``, inlined: up to the append, no call lets a signal handler run (P1).
                if (
                    intake.refusal is None
                    and reserved <= intake.limit_records
                    and reserved_bytes <= intake.limit_bytes
                    and not intake.waiters
                ):
                    intake.reserved_records, intake.reserved_bytes = reserved, reserved_bytes
                    intake.records.append(delivery)
                    if reserved <= intake.quiet_records and reserved_bytes <= intake.quiet_bytes:
                        return delivery
                    result = intake.pass_mark([delivery])
            if result is _WAKE:
                self._wake()
                return delivery
        except BaseException:  # a signal handler raised: the record may be in the intake while the host sleeps (P1)
            self._wake()
            raise
        self._accept(delivery, size, timeout)
        return delivery

    def _put_into(self, stream: str, data: Any, key: Any, hash_key: Any, *options: Any) -> Delivery:
        """Put a record into another stream."""
        named = dict(zip(("headers", "ttl", "on_delivery", "timeout"), options, strict=True))
        return self._of(stream).put(data, key=key, explicit_hash_key=hash_key, **named)

    def _check(
        self, payload: Any, key: str | None, explicit_hash_key: str | None, headers: HeadersToPut | None
    ) -> tuple[bytes, str | None, str | None, bytes, int]:
        """Return the validated parts of a record, the encoded headers and the total size."""
        tags, limit = self._tags_of(headers), self._intake.record_max_bytes
        checked = check_tagged_record(
            payload, key, explicit_hash_key, limit, self._packing, tags=tags, stamp=self._stamp
        )
        data, key, explicit_hash_key, tags = checked
        return data, key, explicit_hash_key, tags, len(data) + len(key or "") + len(tags)

    def put_nowait(
        self,
        data: DataT_contra,
        *,
        key: str | None = None,
        explicit_hash_key: str | None = None,
        headers: HeadersToPut | None = None,
        ttl: float | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
        stream: str | None = None,
    ) -> Delivery:
        """Like ``put``, but raise ``BufferFull`` immediately if there is no room."""
        return self.put(
            data,
            key=key,
            explicit_hash_key=explicit_hash_key,
            headers=headers,
            ttl=ttl,
            on_delivery=on_delivery,
            timeout=0.0,
            stream=stream,
        )

    def put_many(
        self,
        records: Iterable[Item[DataT_contra]],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        on_invalid: OnInvalid = "raise",
        stream: str | None = None,
    ) -> list[Delivery]:
        """Put many records: tuples of (key or None, data), (key, data, headers), (key, data, explicit hash key) or
        (key, data, explicit hash key or None, headers or None).

        Like the async ``put_many``, except that it takes no async iterables.

        Raises:
            UsageError: a record is invalid: ``error.index`` says which. If ``records`` is a collection, no record was
                accepted.
            BufferFull: there was no room for a record for ``timeout`` seconds. Records accepted before that stay
                accepted.
            Closed: the producer is closed, or not started.
        """
        if stream is not None:
            return self._of(stream).put_many(records, ttl=ttl, timeout=timeout, on_invalid=on_invalid)
        limit = check_timeout("timeout", timeout)
        bulk = self._bulk(Delivery, ttl, on_invalid)
        self._check_open()
        with bulk.reporting():
            if isinstance(records, Collection):
                self._put_all(bulk, bulk.check_all(records), limit)
                return bulk.deliveries
            iterator = iterate(records)
            try:
                for record in iterator:
                    delivery = bulk.check(record)
                    if delivery is not None:
                        size = self._date([delivery])
                        if not self._put(self._locked, self._intake.put, delivery, size):
                            self._accept(delivery, size, limit)
                        bulk.deliveries.append(delivery)
            finally:
                close_if_generator(iterator)
        return bulk.deliveries

    def _put_all(self, bulk: BulkPut[Delivery], deliveries: list[Delivery], limit: float | None) -> None:
        """Put the valid records of a collection."""
        for start in range(0, len(deliveries), _SLICE_RECORDS):
            bulk.pending = deliveries[start]
            slice_ = deliveries[start : start + _SLICE_RECORDS]
            if not self._put(self._locked, self._intake.put_many, slice_, self._date(slice_)):
                for delivery in slice_:
                    bulk.pending = delivery
                    self._accept(delivery, payload_bytes(delivery), limit)

    def _accept(self, delivery: Delivery, size: int, timeout: float | None) -> None:
        """Put a delivery into the intake, after waiting for room if necessary."""
        is_callback = _get_ident() == self._network_ident
        limit = 0.0 if is_callback else check_timeout("timeout", timeout)
        if not self._put(self._put_in_turn, delivery, size, limit):
            raise self._full()

    def _put_in_turn(self, delivery: Delivery, size: int, timeout: float | None) -> Put:
        result = Put.FULL

        def attempt(is_first: bool) -> bool:
            nonlocal result
            delivery.expires_at = _clock() + self._ttl
            result = self._locked(self._intake.put, delivery, size, is_first)
            return result is not Put.FULL

        self._room.wait_in_turn(attempt, timeout)
        return result

    def _locked(self, put: Callable[..., Put], *arguments: Any) -> Put:
        with self._lock if _get_ident() != self._network_ident else self._callbacks_lock:
            return put(*arguments)

    def _wake(self) -> None:
        if self._thread is not None:
            self._thread.soon(self._driver.wake)

    def _running(self) -> LoopThread:
        self._check_open()
        assert self._thread is not None
        return self._thread

    # ---- waiting and queries

    def flush(self, timeout: float | None = None) -> list[Delivery]:
        """Send the records that were put before this call, without lingering, and wait for them.

        ``flush`` respects the rate limits. ``flush`` returns the records that are not delivered after ``timeout``
        seconds (``None`` means no limit): those still in flight, and those that failed during the flush. Records that
        failed before the call are not returned: see ``on_failure``.
        """
        refuse_to_wait_in_callback("flush()")
        thread = self._running()
        snapshot = thread.ask(self._unfinished)
        for driver in self._drivers.values():
            thread.soon(driver.flush)
        self._flush_and_wait(thread, check_timeout("timeout", timeout), snapshot)
        return undelivered(snapshot)

    def reconfigure(
        self,
        *,
        linger: float | None = None,
        records_per_second: float | None = None,
        bytes_per_second: float | None = None,
    ) -> None:
        """Change settings while the producer runs. Settings that you do not pass stay the same.

        The new values apply when this call returns. If ``linger`` changes, the records that were put before are sent
        without further waiting.

        Args:
            linger: the longest time that a record waits for others to share its request, in seconds.
            records_per_second: entries per second that the producer sends to a shard.
            bytes_per_second: bytes per second that the producer sends to a shard.

        Raises:
            UsageError: a value is invalid, or no value was passed.
            Closed: the producer is closed, or not started.
        """
        changes = self._check_changes(SettingChanges(linger, records_per_second, bytes_per_second))
        thread = self._running()
        for driver in self._drivers.values():
            thread.ask(partial(driver.reconfigure, changes))
        self._arguments["config"] = self.config  # for the streams that are opened later

    def wait_ready(self, timeout: float | None = 30.0) -> None:
        """Wait until the producer has reached its stream. Call it at start-up to detect a wrong name or missing
        permissions.

        Raises:
            WaitTimeout: the producer has not reached its stream after ``timeout`` seconds.
            ShardlineError: the stream cannot be reached: no such stream, access denied, wrong credentials, ...
            Closed: the producer is closed, or not started.
        """
        limit = check_timeout("timeout", timeout)
        refuse_to_wait_in_callback("wait_ready()")
        thread = self._running()
        with suppress(Closed):  # the thread has ended: `_check_open` raises below
            Context().run(thread.call, partial(wait_until_ready, self._drivers, limit))
        self._check_open()

    def _flush_and_wait(self, thread: LoopThread, timeout: float | None, snapshot: list[Any]) -> None:
        end = None if timeout is None else _clock() + timeout
        thread.soon(self._driver.flush)
        with suppress(WaitTimeout):
            for delivery in snapshot:
                delivery.outcome(None if end is None else max(0.0, end - _clock()))

    def stats(self, *, stream: str | None = None) -> ProducerStats:
        """Return the counters and the state of every shard.

        Args:
            stream: the name or ARN of the stream. ``None`` means all streams together.

        Raises:
            UsageError: nothing was put into this stream.
        """
        query = partial(self._stats, stream)
        return query() if self._thread is None else self._thread.ask(query)

    @property
    def is_ready(self) -> bool:
        """Whether the producer has reached its streams and is open."""
        thread = self._thread
        return super().is_ready if thread is None else thread.ask(lambda: super(Producer, self).is_ready)

    # ---- forks

    def refuse_after_fork(self) -> None:
        """Disable this copy in the child of a fork.

        The network thread and its connections exist only in the parent. A thread of the parent may have held the locks,
        so they are replaced.
        """
        self._thread = None
        self._make_locks()
        super().refuse_after_fork()

    def _make_locks(self) -> None:
        self._lock = threading.RLock()  # the putters' lock
        self._callbacks_lock = _LockForCallbacks(self._lock)
        self._lifecycle_lock = threading.RLock()  # held during start and close
        self._streams_lock = threading.RLock()  # held while another stream is opened
        self._closer = None  # the ident of the thread that is in close


async def _begin(thread: LoopThread, driver: Driver, connection: ConnectionArguments) -> Client:
    """Connect and start the host. The client and the host do not refer to the ``Producer``, so that it can be
    garbage-collected.
    """
    client = Client(**connection)  # created here, because its locks and sockets belong to the running event loop
    await client.start()
    driver.sinks.start()
    thread.begin(partial(_host, thread, driver, client))
    return client


async def _host_other(driver: Driver, client: Client, ended: threading.Event) -> None:
    """Run the host of another stream. The host of the first stream closes the client and ends the thread."""
    try:
        await driver.run(client.api)
        await driver.sinks.wait()
    finally:
        ended.set()


async def _host(thread: LoopThread, driver: Driver, client: Client) -> None:
    try:
        await driver.run(client.api)
    finally:
        try:
            await client.close()
            await driver.sinks.wait()
        finally:
            thread.stop()
