"""The async ``Producer``.

A producer batches and aggregates records, predicts their shards, respects the limits of the shards, and retries, as the
KPL does. ``put`` blocks only while the buffer is full, and returns a ``Delivery``, which resolves to a receipt or to an
error.

Invariants:

- A put validates a record, reserves room, appends the record to the machine's intake, and wakes the host if it sleeps.
  Everything else happens in the host.
- P7: ``put`` yields to the event loop every ``YIELD_EVERY`` records, before it accepts a record. A cancelled call has
  put no record.
- P10: ``close`` stops intake, drains within its timeout, and returns the undelivered records. ``close`` is shielded
  from cancellation, but a second cancellation ends both ``close`` and the host task immediately.
- ``start`` enters no cancel scope of the caller, so another task may call ``close``.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, Unpack, cast, final, overload

import anyio
import anyio.lowlevel

from shardline._speedups import twin_method
from shardline.aio.client import Client, ConnectionArguments
from shardline.aio.loop.host_tasks import Flag, LoopAffinity, make_flag, native_checkpoint, spawn
from shardline.aio.producer.backpressure import TaskWaitQueue
from shardline.aio.producer.bulk_put import BulkPut, Item, OnInvalid, change, close_if_generator, iterate
from shardline.aio.producer.delivery import Delivery
from shardline.aio.producer.producer_driver import end_host, host_producer, wait_until_ready
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
from shardline.core.producer.producer_config import ProducerConfig, SettingChanges
from shardline.core.producer.producer_record import NO_TAGS, payload_bytes
from shardline.core.producer.producer_stats import ProducerStats
from shardline.events import EventSink, ProducerEvent, Sink, check_sinks
from shardline.middleware import ProducerMiddleware
from shardline.model.headers import HeadersToPut
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH

YIELD_EVERY: Final = 512
_clock: Final = time.monotonic


@final
class Producer(ProducerFacade[TaskWaitQueue], Generic[DataT_contra]):
    """Puts records into a stream, on asyncio or trio::

        async with Producer("orders", region="eu-west-1") as producer:
            delivery = await producer.put(b"...", key="user-1")
            receipt = await delivery

    A ``Producer[Order]`` puts values of the type ``Order``: the argument of its serializer. Without a serializer, a
    producer puts bytes, and is a ``Producer[bytes]``. ``Producer`` is short for that type.

    Args:
        stream: the name or ARN of the stream. ``put(..., stream=...)`` puts into another stream, over the same
            connections. Each stream has its own buffer and limits.
        config: the settings.
        client: a started ``Client`` to share. By default, the producer creates one from the connection arguments.
        serializer: converts the data of a record to bytes.
        packing: packs the records of a key into shared Kinesis records, as ``"json-lines"``, ``"json-list"``,
            ``"netstrings"`` or ``"length-prefixed"``. ``None`` means the setting of ``config``, which by default is
            aggregation in the KPL's format.
        middleware: functions that change or check each record, in this order, after the serializer: see
            ``shardline.middleware``. If one raises, the record is not accepted.
        dedup: stamps each record, so that consumers with ``dedup=True`` drop copies that retries stored. ``None``
            means the setting of ``config``.
        on_failure: a function, plain or async, that is called with every ``Delivery`` that failed for good: a
            dead-letter hook.
        sinks: callables and sinks such as ``LogSink()`` that receive every event: see ``shardline.events``.
        close_timeout: how many seconds the end of the ``async with`` block waits for deliveries. ``None`` means that
            there is no limit.
        drain_on_cancel: whether the end of the block also waits for deliveries if it is cancelled. If not, undelivered
            records fail immediately.
        connection: ``region``, ``endpoint_url``, ``profile``, ``session``, ``credentials``, ...: see ``Client``.

    Raises:
        UsageError: an argument is invalid.
    """

    _with_statement = "async with"
    _host_lifetime = "loop"

    @overload
    def __init__(
        self: "Producer[bytes]",
        stream: str,
        *,
        client: Client | None = None,
        serializer: None = None,
        on_failure: Callable[[Delivery], object] | None = None,
        **arguments: Unpack[ProducerArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: "Producer[SerializedT]",
        stream: str,
        *,
        client: Client | None = None,
        serializer: Callable[[SerializedT], bytes] | None,
        on_failure: Callable[[Delivery], object] | None = None,
        **arguments: Unpack[ProducerArguments],
    ) -> None: ...
    def __init__(
        self,
        stream: str,
        *,
        config: ProducerConfig | None = None,
        client: Client | None = None,
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
        self._client, self._owns_client = check_client("Producer", client, connection)
        self._arguments: dict[str, Any] = {
            "config": config,
            "serializer": serializer,
            "packing": packing,
            "middleware": check_middleware(middleware),
            "dedup": dedup,
            "on_failure": on_failure,
            "sinks": check_sinks(sinks),
            "close_timeout": close_timeout,
            "drain_on_cancel": drain_on_cancel,
        }
        super().__init__(stream, TaskWaitQueue, **self._arguments, server_address=self._client.server_address)
        self._delivery_type = Delivery
        self._until_yield = YIELD_EVERY
        self._ended: Flag | None = None
        self._checkpoint: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        self._loop, self._running_loop = None, lambda: None  # ``start`` replaces both
        self._starting = anyio.Lock()

    # ---- start and close

    async def start(self) -> None:
        """Connect and start the host task. Another task may call ``close``.

        Raises:
            UsageError: there is no region, the profile is unknown, ...: see ``Client``.
            Closed: the producer has already been closed.
        """
        async with self._starting:
            if self._is_started or self._closed:
                self._check_open()
                return
            if self._owns_client:
                await self._client.start()
            if self._closed:  # the producer was closed while the client started
                if self._owns_client:
                    await self._client.close()
                self._check_open()
            self._start_host()

    def _start_host(self) -> None:
        """Start the host task, in the running event loop. The client has already been started."""
        api = self._client.api
        driver = self._driver
        driver.loop_affinity = affinity = LoopAffinity("Producer")
        self._loop, self._running_loop = affinity.here, affinity.checker()
        self._ended = ended = make_flag()
        self._checkpoint = native_checkpoint()
        driver.sinks.start()
        hosted = host_producer(driver, api, self._client, ended, owns_client=self._owns_client)
        self._schedule_in_loop = spawn(hosted, "shardline producer", lambda: end_host(driver, ended))
        self._admit()

    def _open_other(self, stream: str) -> Self:
        create: Any = type(self)
        other: Self = create(stream, client=self._client, **self._arguments)
        other._start_host()
        return other

    async def close(self, timeout: float | None = None) -> list[Delivery]:  # noqa: ASYNC109 - it returns, never raises
        """Accept no more records, deliver the outstanding ones within ``timeout`` seconds, and stop.

        Return the undelivered records. The undelivered records failed with the code ``Closed``, unless they failed
        earlier. Closing twice is harmless.
        """
        limit = self._close_timeout if timeout is None else check_timeout("timeout", timeout)
        if not self._others:
            return await self._close(limit)
        end = None if limit is None else _clock() + limit
        if not self._closed and self._intake.refusal is None:
            self._intake.refuse("this Producer is closed")
        if limit != 0 and not self._driver.abandon_if_loop_gone():
            self._driver.flush()
        async with anyio.create_task_group() as closing:
            for other in self._others.values():
                closing.start_soon(other._close, limit)  # noqa: SLF001 - of the same class
        # This producer is closed last, because its host closes the client.
        left = await self._close(None if end is None else max(0.0, end - _clock()))
        for other in self._others.values():
            left += await other.close(0)  # it has already closed: this only returns its undelivered records
        return left

    async def _close(self, limit: float | None) -> list[Delivery]:
        """Close the producer of this stream."""
        driver, ended = self._driver, self._ended
        left = (self._left or self._intake.unfinished()) if self._is_started else self._left
        is_loop_gone = self._is_started and driver.abandon_if_loop_gone()
        if is_loop_gone:
            self._left = left
        is_first = self._refuse_puts()
        if is_loop_gone:
            await driver.sinks.wait()
        if ended is None or is_loop_gone or not self._is_started:
            return undelivered(self._left)
        with anyio.CancelScope(shield=True):
            try:
                self._room.wake_all()
                if is_first:
                    self._left = left
                    if limit != 0:  # at 0, send nothing more: the returned records would be stored anyway
                        await driver.flush_and_wait(limit, left)
            finally:
                if is_first or limit == 0:  # a close with no time left cuts a longer one short
                    driver.stop()
            if not driver.is_hook_running_here:
                await ended.wait()
        return undelivered(self._left)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(self._exit_timeout(kind))

    # ---- putting

    @twin_method("put_async")
    async def put(
        self,
        data: DataT_contra,
        *,
        key: str | None = None,
        explicit_hash_key: str | None = None,
        headers: HeadersToPut | None = None,
        ttl: float | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it raises BufferFull
        stream: str | None = None,
    ) -> Delivery:
        """Put one record. The call waits only while the buffer is full.

        Args:
            data: the payload: bytes, or any value that the serializer accepts.
            key: the partition key. ``None`` lets the producer choose the shard.
            explicit_hash_key: a decimal number that replaces the key's hash.
            headers: texts that travel with the record, by name, such as ``{"content-type": "application/json"}``. Bytes
                are allowed under names that end in ``-bin``. Readers get the headers as ``record.headers``. Headers
                need aggregation, and a stream without AUTO record distribution and without channels.
            ttl: a record that is not stored within this many seconds fails. ``None`` means ``record_ttl``.
            on_delivery: a function, plain or async, that is called once with the resolved ``Delivery``. Its exceptions
                are logged.
            timeout: how many seconds to wait for room. ``None`` means that there is no limit.
            stream: the name or ARN of another stream to put the record into.

        Raises:
            UsageError: the record is invalid or too large for the stream, or its headers cannot be sent. The record was
                not accepted.
            BufferFull: there was no room for ``timeout`` seconds. The record was not accepted.
            Closed: the producer is closed, or not started.
        """
        if stream is not None:
            options: Any = {"headers": headers, "ttl": ttl, "on_delivery": on_delivery, "timeout": timeout}
            return await self._of(stream).put(data, key=key, explicit_hash_key=explicit_hash_key, **options)
        self._until_yield -= 1
        if self._until_yield <= 0:
            self._until_yield = YIELD_EVERY
            self._check_open()
            await self._checkpoint()
        try:
            is_here = self._running_loop() is self._loop
        except RuntimeError:  # the caller is in an event loop of the other library
            is_here = False
        intake, trace = self._intake, self._trace
        tags = NO_TAGS
        # Assigned, because Python calls a value faster than an attribute.
        if trace is not None and (_get := trace.get_context)(None) is not trace.untraced:
            tags = trace.tags()
        payload: Any = data  # typed as Any, because a type checker cannot know whether the value is bytes
        if (
            is_here
            and type(payload) is bytes
            and type(key) is str
            and explicit_hash_key is None
            and headers is None
            and (not tags or len(payload) < TRACED_MAX_BYTES)
            and ttl is None
            and on_delivery is None
            and 0 < len(key) <= PARTITION_KEY_MAX_LENGTH
            and key.isascii()
        ):  # the common case, with as few calls as possible
            delivery = Delivery(payload, key, None, _clock() + self._ttl)
            size = len(payload) + len(key)
            if tags:
                delivery.tags = tags
                size += len(tags)
            # There are no calls from here to the append, so that no signal handler or finalizer can run in between (P1,
            # P7).
            if intake.reserved_records < intake.gate_records and intake.reserved_bytes + size <= intake.quiet_bytes:
                intake.reserved_records += 1
                intake.reserved_bytes += size
                intake.records.append(delivery)
                return delivery
        delivery = await self._make_delivery_async(data, key, explicit_hash_key, headers)
        if ttl is not None or on_delivery is not None:
            self._set_options(delivery, ttl, on_delivery)
        if not self._accept(delivery):
            await self._accept_in_turn(delivery, timeout)
        return delivery

    async def _make_delivery_async(
        self, data: Any, key: str | None, explicit_hash_key: str | None, headers: HeadersToPut | None
    ) -> Delivery:
        if self._chain is not None and self._chain.is_async:
            self._check_open()
            return self._checked(*await self._chain.prepare_async(data, key, explicit_hash_key, headers))
        return self._make_delivery(data, key, explicit_hash_key, headers)

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
        """Like ``put``, but raise ``BufferFull`` immediately if there is no room. Async middleware cannot be used.

        Raises:
            BufferFull: there is no room. The record was not accepted.
            UsageError, Closed: see ``put``.
        """
        if stream is not None:
            options: Any = {"headers": headers, "ttl": ttl, "on_delivery": on_delivery}
            return self._of(stream).put_nowait(data, key=key, explicit_hash_key=explicit_hash_key, **options)
        delivery = self._make_delivery(data, key, explicit_hash_key, headers)
        if ttl is not None or on_delivery is not None:
            self._set_options(delivery, ttl, on_delivery)
        if not self._accept(delivery):
            raise self._full()
        return delivery

    async def put_many(
        self,
        records: Iterable[Item[DataT_contra]] | AsyncIterable[Item[DataT_contra]],
        *,
        ttl: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it raises BufferFull
        on_invalid: OnInvalid = "raise",
        stream: str | None = None,
    ) -> list[Delivery]:
        """Put many records: tuples of (key or None, data), (key, data, headers), (key, data, explicit hash key) or
        (key, data, explicit hash key or None, headers or None).

        All records of a list or another collection are validated before the first is accepted. From a generator, an
        async generator or another iterable, records are taken one by one: each is validated, and accepted before the
        next one is taken.

        If the call raises or is cancelled, the records that were already accepted stay accepted, and a generator is
        closed. The attribute ``deliveries`` of a ``ShardlineError`` contains the deliveries of the records before the
        one that was not accepted.

        Args:
            records: the records.
            ttl: see ``put``. It applies to all records.
            timeout: how many seconds to wait for room for each record.
            on_invalid: with ``"fail"``, the call accepts the valid records, and returns a failed delivery with the code
                ``InvalidRecord`` for each invalid one.
            stream: the name or ARN of another stream to put the records into.

        Raises:
            UsageError: a record is invalid: ``error.index`` says which. If ``records`` is a collection, no record was
                accepted.
            BufferFull, Closed: see ``put``.
        """
        if stream is not None:
            return await self._of(stream).put_many(records, ttl=ttl, timeout=timeout, on_invalid=on_invalid)
        limit = check_timeout("timeout", timeout)
        bulk = self._bulk(Delivery, ttl, on_invalid)
        self._check_open()
        with bulk.reporting():
            if isinstance(records, Collection):
                given: Collection[Any] = records
                if self._chain is not None and self._chain.is_async:
                    given = [await change(self._chain, record) for record in records]
                await self._put_all(bulk, bulk.check_all(given), limit)
            elif isinstance(records, AsyncIterable):
                taken = aiter(records)
                try:
                    async for record in taken:
                        await self._put_next(bulk, record, limit)
                finally:
                    if isinstance(taken, AsyncGenerator):
                        await cast("AsyncGenerator[Item[Any], None]", taken).aclose()
            else:
                iterator = iterate(records)
                try:
                    for record in iterator:
                        await self._put_next(bulk, record, limit)
                finally:
                    close_if_generator(iterator)
        return bulk.deliveries

    async def _put_all(self, bulk: BulkPut[Delivery], deliveries: list[Delivery], limit: float | None) -> None:
        """Put the valid records of a collection."""
        for start in range(0, len(deliveries), YIELD_EVERY):
            bulk.pending = deliveries[start]
            await self._checkpoint()
            self._check_open()
            slice_ = deliveries[start : start + YIELD_EVERY]
            if self._put(self._intake.put_many, slice_, self._date(slice_)):
                continue
            for delivery in slice_:
                bulk.pending = delivery
                if not self._accept(delivery):
                    await self._accept_in_turn(delivery, limit)

    async def _put_next(self, bulk: BulkPut[Delivery], record: Item[Any], limit: float | None) -> None:
        """Validate and put a record that was taken from an iterator."""
        chain = self._chain
        delivery = bulk.check(record if chain is None or not chain.is_async else await change(chain, record))
        if delivery is not None:
            if not self._accept(delivery):
                await self._accept_in_turn(delivery, limit)
            bulk.deliveries.append(delivery)
        self._until_yield -= 1
        if self._until_yield <= 0:  # yield after the put, so that a cancellation loses no record that was taken
            self._until_yield = YIELD_EVERY
            await self._checkpoint()

    def _make_delivery(
        self, data: Any, key: str | None, explicit_hash_key: str | None, headers: HeadersToPut | None
    ) -> Delivery:
        if self._serializer is not None:
            data, key, explicit_hash_key, headers = self._prepare(data, key, explicit_hash_key, headers)
        return self._checked(data, key, explicit_hash_key, headers)

    def _checked(
        self, data: Any, key: str | None, explicit_hash_key: str | None, headers: HeadersToPut | None
    ) -> Delivery:
        tags = self._tags_of(headers)
        self._check_open()
        max_bytes = self._intake.record_max_bytes
        checked = check_tagged_record(
            data, key, explicit_hash_key, max_bytes, self._packing, tags=tags, stamp=self._stamp
        )
        payload, key, explicit_hash_key, tags = checked
        return Delivery(payload, key, explicit_hash_key, 0.0, tags=tags)

    def _accept(self, delivery: Delivery, in_turn: bool = False) -> bool:
        """Put the record into the intake. Return whether there was room."""
        delivery.expires_at = _clock() + self._ttl
        return self._put(self._intake.put, delivery, payload_bytes(delivery), in_turn)

    async def _accept_in_turn(self, delivery: Delivery, timeout: float | None) -> None:  # noqa: ASYNC109
        """Put the record into the intake when there is room, after the records that are already waiting.

        Raises:
            BufferFull: there was no room for ``timeout`` seconds.
        """
        limit = check_timeout("timeout", timeout)
        if limit is None:
            await self._room.wait_in_turn(partial(self._accept, delivery))
            return
        with anyio.move_on_after(limit) as scope:
            await self._room.wait_in_turn(partial(self._accept, delivery))
        # Nothing is awaited after a record was accepted, so the scope catches a cancellation only if the record was not
        # accepted.
        if scope.cancelled_caught:
            raise self._full()

    def _wake(self) -> None:
        """Wake the host. Any thread may call this, and so may a signal handler that runs while the event loop waits for
        events.
        """
        assert self._schedule_in_loop is not None
        with suppress(RuntimeError):  # the loop has ended, and so has the host
            self._schedule_in_loop(self._driver.wake)
            self._schedule_in_loop(self._driver.wake)  # twice: asyncio can lose one call if a signal handler raises

    def _check_open(self) -> None:
        super()._check_open()
        if self._driver.loop_affinity is not None:
            self._driver.loop_affinity.check()

    # ---- waiting and state

    async def flush(self, timeout: float | None = None) -> list[Delivery]:  # noqa: ASYNC109 - it returns, never raises
        """Send the records that were put before the call, without lingering, and wait until they have resolved.

        The rate limits apply. Return the records that are not delivered: those that are still outstanding after
        ``timeout`` seconds (``None`` means no limit), and those that failed during the call. Records that failed
        earlier are not returned: see ``on_failure``.
        """
        self._check_open()
        snapshot = self._unfinished()
        for driver in self._drivers.values():
            driver.flush()
        await self._driver.flush_and_wait(check_timeout("timeout", timeout), snapshot)
        return undelivered(snapshot)

    async def reconfigure(
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
        self._check_open()
        for driver in self._drivers.values():
            driver.reconfigure(changes)
        self._arguments["config"] = self.config  # for the streams that are opened later

    async def wait_ready(self, timeout: float | None = 30.0) -> None:  # noqa: ASYNC109 - it raises WaitTimeout
        """Wait until the producer has reached its stream. Call it at start-up to detect a wrong name or missing
        permissions.

        Raises:
            WaitTimeout: the producer was not ready within ``timeout`` seconds.
            ShardlineError: the stream cannot be reached: no such stream, access denied, wrong credentials, ...
            Closed: the producer is closed, or not started.
        """
        limit = check_timeout("timeout", timeout)
        self._check_open()
        await wait_until_ready(self._drivers, limit)
        self._check_open()

    def stats(self, *, stream: str | None = None) -> ProducerStats:
        """Return the counts and the state of every shard.

        Args:
            stream: the name or ARN of the stream. ``None`` means all streams together.

        Raises:
            UsageError: nothing was put into this stream.
        """
        return self._stats(stream)
