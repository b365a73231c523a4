"""How does a program put records?

``Producer`` batches, aggregates, predicts shards, keeps their limits and retries, as the KPL does. A put waits for room
in the buffer and for nothing else; the ``Delivery`` that it returns tells what came of the record.

Invariants:

- A put checks a record, reserves room, appends it to the machine's intake, and wakes the host if that sleeps. It does
  nothing else: all that follows happens in the host.
- P1: a put that a signal handler ends by raising wakes the host: its record may be in the intake already.
- P7: ``put`` yields to the event loop every ``YIELD_EVERY`` records, before it accepts: a cancelled put put nothing.
- P10: ``close`` stops intake, drains within its timeout, and hands back what was not delivered, shielded from
  cancellation; a second cancellation ends it at once, and the host task with it.
- PR1: ``start`` enters no cancel scope of the caller: ``close`` may be called from another task.
"""

import logging
import random
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, final

import anyio
import anyio.lowlevel

from shardline.aio.client import Client
from shardline.aio.delivery import Delivery
from shardline.aio.driver import Driver, end_host, host_producer
from shardline.aio.fork_and_exit import PRODUCER_FORKED, disown, watch, weakly
from shardline.aio.host_tasks import Flag, LoopAffinity, make_flag, native_checkpoint, spawn
from shardline.aio.intake import (
    Serializer,
    check_callable,
    check_config,
    check_record,
    check_timeout,
    own_or_shared,
    serialized,
    tuples,
)
from shardline.aio.reporting import ProducerReporter
from shardline.aio.room import RoomQueue
from shardline.core.producer.config import ProducerConfig
from shardline.core.producer.intake import Put
from shardline.core.producer.machine import ProducerMachine
from shardline.core.producer.record import payload_bytes
from shardline.core.producer.stats import ProducerStats
from shardline.errors import BufferFull, Closed
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH
from shardline.model.stream import parse_stream
from shardline.ports import EventSink

YIELD_EVERY: Final = 128
_log: Final = logging.getLogger("shardline.producer")
_clock: Final = time.monotonic


@final
class Producer:
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
        sink: called with every event: see ``shardline.core.events``.
        close_timeout: how long the end of the ``async with`` block waits for deliveries; ``None``: as long as it takes.
        drain_on_cancel: whether a block that is left by cancellation waits as well; else what is undelivered is handed
            back at once.
        connection: ``region``, ``endpoint_url``, ``profile``, ``session``, ``credentials``, ...: see ``Client``.

    Raises:
        UsageError: an argument is wrong.
    """

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
        self._driver: Driver | None = None  # first: __del__ also sees what __init__ refused
        self._stream = parse_stream(stream)
        self._config = check_config(config)
        self._client, self._owns_client = own_or_shared(client, connection)
        self._serializer = check_callable("serializer", serializer)
        self._close_timeout = check_timeout("close_timeout", close_timeout)
        self._drain_on_cancel = drain_on_cancel
        self._ttl = self._config.record_ttl
        self._until_yield = YIELD_EVERY
        self._closed = False
        self._ended: Flag | None = None
        self._in_loop: Callable[[Callable[[], None]], object] | None = None
        self._checkpoint: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        self._loop: object = None
        self._running_loop: Callable[[], object] = lambda: None
        self._left: list[Any] = []
        self._starting = anyio.Lock()
        self._machine = ProducerMachine(self._stream, self._config, random.Random(), _clock())  # noqa: S311 - no secret
        self._intake = self._machine.intake
        self._intake.serializes = self._serializer is not None
        self._intake.refuse("this Producer is not started: use 'async with', or start()")
        self._room = RoomQueue(self._intake)
        self._sink = check_callable("sink", sink)
        self._on_failure = check_callable("on_failure", on_failure)

    # ---- life

    async def start(self) -> None:
        """Connect and begin. Nothing is asked of the caller's task: ``close`` may come from another.

        Raises:
            UsageError: no region, an unknown profile, ...: see ``Client``.
            Closed: it was closed before.
        """
        async with self._starting:
            if self._driver is not None or self._closed:
                self._check_open()
                return
            if self._owns_client:
                await self._client.start()
            if self._closed:  # meanwhile
                if self._owns_client:
                    await self._client.close()
                self._check_open()
            api = self._client.api
            self._driver = driver = Driver(
                self._machine,
                reporter=ProducerReporter(str(self._stream), self._sink, _clock),
                on_failure=self._on_failure,
                on_room=self._room.notify,
                on_end=weakly(self),
            )
            driver.home = home = LoopAffinity()
            self._loop, self._running_loop = home.here, home.checker()
            self._ended = ended = make_flag()
            self._checkpoint = native_checkpoint()
            for sentence in self._config.untranslated:
                _log.warning("KPL property %s", sentence)
            watch(self)
            hosted = host_producer(driver, api, self._client, ended, owns_client=self._owns_client)
            self._in_loop = spawn(hosted, "shardline producer", lambda: end_host(driver, ended))
            self._intake.admit()

    async def close(self, timeout: float | None = None) -> list[Delivery]:  # noqa: ASYNC109 - it returns, never raises
        """Accept no more, deliver what there is within ``timeout`` seconds, and end. Returns the undelivered.

        Harmless when done before. What is returned has failed with the code ``Closed``, unless it failed earlier.
        """
        limit = self._close_timeout if timeout is None else check_timeout("timeout", timeout)
        driver, ended = self._driver, self._ended
        left = self._left if driver is None else self._left or self._machine.unfinished()
        if driver is not None and driver.give_up_if_deserted():
            driver, self._left = None, left
        first, self._closed = not self._closed, True
        if self._intake.refusal != PRODUCER_FORKED:
            self._intake.refuse("this Producer is closed")
        if driver is None or ended is None:
            return [delivery for delivery in self._left if not delivery.delivered]
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
        return [delivery for delivery in self._left if not delivery.delivered]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancelled = kind is not None and not issubclass(kind, Exception)
        await self.close(0.0 if cancelled and not self._drain_on_cancel else None)

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
            raise BufferFull(
                f"the buffer is full: {self._machine.outstanding} records, {self._machine.buffered_bytes} bytes"
            )
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
            if self._accept_many(slice_):
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
        size = payload_bytes(delivery)
        return self._put(self._intake.put, delivery, size, in_turn)

    def _accept_many(self, deliveries: list[Delivery]) -> bool:
        """Put all of them into the intake at once, or none. Says whether there was room."""
        expires_at = _clock() + self._ttl
        for delivery in deliveries:
            delivery.expires_at = expires_at
        size = sum([payload_bytes(delivery) for delivery in deliveries])
        return self._put(self._intake.put_many, deliveries, size)

    def _put(self, put: Callable[..., Put], *arguments: Any) -> bool:
        try:
            result = put(*arguments)
            if result is Put.WAKE:
                self._wake()
        except BaseException:  # a signal handler raised: the record may be in the intake, and the host asleep (P1)
            self._wake()
            raise
        if result is Put.REFUSED:
            self._check_open()
        return result is not Put.FULL

    def _wake(self) -> None:
        """From wherever this is, also a signal handler that runs while the event loop waits for events."""
        assert self._driver is not None
        assert self._in_loop is not None
        with suppress(RuntimeError):  # the loop has ended, and with it the host
            self._in_loop(self._driver.wake)
            self._in_loop(self._driver.wake)  # twice: a signal handler that raises can make asyncio lose one of them

    def _check_open(self) -> None:
        if self._intake.refusal is not None:
            raise Closed(self._intake.refusal)
        if self._driver is not None and self._driver.home is not None:
            self._driver.home.check()

    # ---- waiting, and looking

    async def flush(self, timeout: float | None = None) -> list[Delivery]:  # noqa: ASYNC109 - it returns, never raises
        """Send what was put before the call, without lingering, and wait until it has ended.

        It keeps the rate limits. Returns what is not delivered after ``timeout`` seconds (``None``: as long as it
        takes): still on its way, or given up meanwhile. What failed before is not in it: see ``on_failure``.
        """
        self._check_open()
        assert self._driver is not None
        snapshot: list[Any] = self._machine.unfinished()
        await self._driver.settle(check_timeout("timeout", timeout), snapshot)
        return [delivery for delivery in snapshot if not delivery.delivered]

    async def wait_ready(self, timeout: float | None = 30.0) -> None:  # noqa: ASYNC109 - it raises an error of ours
        """Until the producer has seen its stream. Call it at the start, to learn of a misspelt name or missing rights.

        Raises:
            WaitTimeout: not within ``timeout`` seconds.
            ShardlineError: it never will: no such stream, access denied, wrong credentials, ...
            Closed: it is closed, or not started.
        """
        limit = check_timeout("timeout", timeout)
        self._check_open()
        assert self._driver is not None
        await self._driver.wait_ready(limit, str(self._stream))
        self._check_open()

    @property
    def outstanding(self) -> int:
        """Records that were put and have not ended."""
        return self._machine.outstanding

    def stats(self) -> ProducerStats:
        """Counts and the state of every shard."""
        return self._machine.stats(_clock())

    def __repr__(self) -> str:
        if not hasattr(self, "_machine"):
            return "<Producer, not made>"  # __init__ raised
        state = "open" if self._intake.refusal is None else "closed" if self._driver is not None else "not started"
        return f"<Producer {self._stream}, {state}, {self.outstanding} outstanding>"

    # ---- what was forgotten

    def refuse_after_fork(self) -> None:
        """In the child: the event loop and the connections belong to the parent."""
        self._closed, self._driver = True, None
        self._intake.refuse(PRODUCER_FORKED)
        disown(self._machine.unfinished())

    def refuse_after_end(self, reason: str) -> None:
        """The host has ended: nothing that is put now would ever be sent (DR4)."""
        if self._intake.refusal is None:
            self._intake.refuse(f"this Producer does not run any more: {reason}")
        self._room.wake_all()

    def __del__(self) -> None:
        driver = self._driver
        if driver is None or self._closed:
            return
        if self.outstanding:
            said = "was dropped without close(): its records are delivered only while the loop runs"
            _log.error("%s %s", repr(self), said)  # not %r: the log would keep it alive
        driver.orphan(self._in_loop)
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)
