"""How does a program put records?

``Producer`` batches, aggregates, predicts shards, keeps their limits and retries, as the KPL does. A put waits for room
in the buffer and for nothing else; the ``Delivery`` that it returns tells what came of the record.

Invariants:

- A put checks a record, reserves room, appends it to the machine's intake, and wakes the host if that sleeps. It does
  nothing else: all that follows happens in the host.
- P7: ``put`` yields to the event loop every ``YIELD_EVERY`` records, before it accepts: a cancelled put put nothing.
- P10: ``close`` stops intake, drains within its timeout, and hands back what was not delivered, shielded from
  cancellation; a second cancellation ends it at once, and the host task with it.
- ``start`` enters no cancel scope of the caller: ``close`` may be called from another task.
"""

import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, final

import anyio
import anyio.lowlevel

from shardline.aio.client import Client
from shardline.aio.loop.host_tasks import Flag, LoopAffinity, make_flag, native_checkpoint, spawn
from shardline.aio.producer.backpressure import RoomQueue
from shardline.aio.producer.delivery import Delivery
from shardline.aio.producer.producer_driver import end_host, host_producer
from shardline.aio.producer.producer_facade import ProducerFacade, undelivered
from shardline.aio.producer.validation import Serializer, check_client, check_record, check_timeout, serialized, tuples
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import payload_bytes
from shardline.core.producer.producer_stats import ProducerStats
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH
from shardline.ports import EventSink

YIELD_EVERY: Final = 128
_clock: Final = time.monotonic


@final
class Producer(ProducerFacade[RoomQueue]):
    """Puts records into a stream, on asyncio or trio::

        async with Producer("orders", region="eu-west-1") as producer:
            delivery = await producer.put(b"...", key="user-1")
            receipt = await delivery

    Args:
        stream: its name or ARN.
        config: the knobs.
        client: a started ``Client`` to share; else one is made of the connection arguments.
        serializer: turns what is put into bytes.
        on_failure: called with every ``Delivery`` that was finally given up: a dead-letter hook. May be async.
        sink: called with every event: see ``shardline.core.producer_events``.
        close_timeout: how long the end of the ``async with`` block waits for deliveries; ``None``: as long as it takes.
        drain_on_cancel: whether a block that is left by cancellation waits as well; else what is undelivered is handed
            back at once.
        connection: ``region``, ``endpoint_url``, ``profile``, ``session``, ``credentials``, ...: see ``Client``.

    Raises:
        UsageError: an argument is wrong.
    """

    _block = "async with"
    _lives_with = "loop"

    def __init__(
        self,
        stream: str,
        *,
        config: ProducerConfig | None = None,
        client: Client | None = None,
        serializer: Serializer | None = None,
        on_failure: Callable[[Delivery], object] | None = None,
        sink: EventSink | None = None,
        close_timeout: float | None = 30.0,
        drain_on_cancel: bool = True,
        **connection: Any,
    ) -> None:
        super().__init__(
            stream,
            RoomQueue,
            config=config,
            serializer=serializer,
            on_failure=on_failure,
            sink=sink,
            close_timeout=close_timeout,
            drain_on_cancel=drain_on_cancel,
        )
        self._client, self._owns_client = check_client("Producer", client, connection)
        self._until_yield = YIELD_EVERY
        self._ended: Flag | None = None
        self._checkpoint: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        self._loop: object = None
        self._running_loop: Callable[[], object] = lambda: None
        self._starting = anyio.Lock()
        self._intake.serializes = self._serializer is not None

    # ---- life

    async def start(self) -> None:
        """Connect and begin. Nothing is asked of the caller's task: ``close`` may come from another.

        Raises:
            UsageError: no region, an unknown profile, ...: see ``Client``.
            Closed: it was closed before.
        """
        async with self._starting:
            if self._is_started or self._closed:
                self._check_open()
                return
            if self._owns_client:
                await self._client.start()
            if self._closed:  # meanwhile
                if self._owns_client:
                    await self._client.close()
                self._check_open()
            api = self._client.api
            driver = self._driver
            driver.home = home = LoopAffinity("Producer")
            self._loop, self._running_loop = home.here, home.checker()
            self._ended = ended = make_flag()
            self._checkpoint = native_checkpoint()
            hosted = host_producer(driver, api, self._client, ended, owns_client=self._owns_client)
            self._in_loop = spawn(hosted, "shardline producer", lambda: end_host(driver, ended))
            self._admit()

    async def close(self, timeout: float | None = None) -> list[Delivery]:  # noqa: ASYNC109 - it returns, never raises
        """Accept no more, deliver what there is within ``timeout`` seconds, and end. Returns the undelivered.

        Harmless when done before. What is returned has failed with the code ``Closed``, unless it failed earlier.
        """
        limit = self._close_timeout if timeout is None else check_timeout("timeout", timeout)
        driver, ended = self._driver, self._ended
        left = (self._left or self._intake.unfinished()) if self._is_started else self._left
        is_deserted = self._is_started and driver.give_up_if_deserted()
        if is_deserted:
            self._left = left
        first = self._refuse_puts()
        if ended is None or is_deserted or not self._is_started:
            return undelivered(self._left)
        with anyio.CancelScope(shield=True):
            try:
                self._room.wake_all()
                if first:
                    self._left = left
                    if limit != 0:  # else nothing more is sent: what is handed back would be stored all the same
                        await driver.settle(limit, left)
            finally:
                if first or limit == 0:  # who has no time cuts short who has
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

    async def put(self, data: Any, *, key: str | None = None, explicit_hash_key: str | None = None) -> Delivery:
        """Put one record. Waits for room in the buffer, and for nothing else.

        Args:
            data: the payload: bytes, or what the serializer takes.
            key: the partition key; ``None`` lets the producer choose the shard.
            explicit_hash_key: a decimal that takes the place of the key's hash.

        Raises:
            UsageError: the record is wrong, or too large for the stream. Nothing was accepted.
            Closed: the producer is closed, or not started.
        """
        self._until_yield -= 1
        if self._until_yield <= 0:
            self._until_yield = YIELD_EVERY
            self._check_open()
            await self._checkpoint()
        try:
            is_here = self._running_loop() is self._loop
        except RuntimeError:  # an event loop of another kind
            is_here = False
        intake = self._intake
        if (
            is_here
            and type(data) is bytes
            and type(key) is str
            and explicit_hash_key is None
            and 0 < len(key) <= PARTITION_KEY_MAX_LENGTH
            and key.isascii()
        ):  # nearly all, with as few calls as can be
            delivery = Delivery(data, key, None, _clock() + self._ttl)
            size = len(data) + len(key)
            # From here to the append nothing is called: no signal handler or finalizer can come between (P1, P7).
            if intake.reserved_records < intake.gate_records and intake.reserved_bytes + size <= intake.quiet_bytes:
                intake.reserved_records += 1
                intake.reserved_bytes += size
                intake.records.append(delivery)
                return delivery
        delivery = self._checked(data, key, explicit_hash_key)
        if not self._accept(delivery):
            await self._room.wait_in_turn(partial(self._accept, delivery))
        return delivery

    def put_nowait(self, data: Any, *, key: str | None = None, explicit_hash_key: str | None = None) -> Delivery:
        """As ``put``, without waiting.

        Raises:
            BufferFull: there is no room. Nothing was accepted.
            UsageError, Closed: as ``put``.
        """
        delivery = self._checked(data, key, explicit_hash_key)
        if not self._accept(delivery):
            raise self._full()
        return delivery

    async def put_many(
        self, records: Iterable[tuple[str | None, Any] | tuple[str | None, Any, str | None]]
    ) -> list[Delivery]:
        """Put many records: tuples of (key or None, data) or (key, data, explicit hash key).

        All are checked before the first is accepted. If it is cancelled, what was accepted stays accepted.

        Raises:
            UsageError: a record is wrong; the message says which. Nothing was accepted.
            Closed: as ``put``. If it is closed meanwhile, what was accepted stays accepted.
        """
        self._check_open()
        deliveries = [
            Delivery(data, key, explicit_hash_key, 0.0)
            for key, data, explicit_hash_key in tuples(records, self._serializer, self._intake.record_max_bytes)
        ]
        for start in range(0, len(deliveries), YIELD_EVERY):
            await self._checkpoint()
            self._check_open()
            slice_ = deliveries[start : start + YIELD_EVERY]
            if self._put(self._intake.put_many, slice_, self._date(slice_)):
                continue
            for delivery in slice_:
                if not self._accept(delivery):
                    await self._room.wait_in_turn(partial(self._accept, delivery))
        return deliveries

    def _checked(self, data: Any, key: str | None, explicit_hash_key: str | None) -> Delivery:
        if self._serializer is not None:
            data = serialized(self._serializer, data)
        self._check_open()
        return Delivery(*check_record(data, key, explicit_hash_key, self._intake.record_max_bytes), 0.0)

    def _accept(self, delivery: Delivery, in_turn: bool = False) -> bool:
        """Put it into the intake. Says whether there was room."""
        delivery.expires_at = _clock() + self._ttl
        return self._put(self._intake.put, delivery, payload_bytes(delivery), in_turn)

    def _wake(self) -> None:
        """From wherever this is, also a signal handler that runs while the event loop waits for events."""
        assert self._in_loop is not None
        with suppress(RuntimeError):  # the loop has ended, and with it the host
            self._in_loop(self._driver.wake)
            self._in_loop(self._driver.wake)  # twice: a signal handler that raises can make asyncio lose one of them

    def _check_open(self) -> None:
        super()._check_open()
        if self._driver.home is not None:
            self._driver.home.check()

    # ---- waiting, and looking

    async def flush(self, timeout: float | None = None) -> list[Delivery]:  # noqa: ASYNC109 - it returns, never raises
        """Send what was put before the call, without lingering, and wait until it has ended.

        It keeps the rate limits. Returns what is not delivered after ``timeout`` seconds (``None``: as long as it
        takes): still on its way, or given up meanwhile. What failed before is not in it: see ``on_failure``.
        """
        self._check_open()
        snapshot: list[Any] = self._intake.unfinished()
        await self._driver.settle(check_timeout("timeout", timeout), snapshot)
        return undelivered(snapshot)

    async def wait_ready(self, timeout: float | None = 30.0) -> None:  # noqa: ASYNC109 - it raises an error of ours
        """Until the producer has seen its stream. Call it at the start, to learn of a misspelt name or missing rights.

        Raises:
            WaitTimeout: not within ``timeout`` seconds.
            ShardlineError: it never will: no such stream, access denied, wrong credentials, ...
            Closed: it is closed, or not started.
        """
        limit = check_timeout("timeout", timeout)
        self._check_open()
        await self._driver.wait_ready(limit, str(self._stream))
        self._check_open()

    def stats(self) -> ProducerStats:
        """Counts and the state of every shard."""
        return self._machine.stats(_clock())
