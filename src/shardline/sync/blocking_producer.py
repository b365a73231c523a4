"""How does a program without an event loop put records?

The same intake and machine as the async producer's. A put runs in the caller's thread, without a hop to another, and
touches the intake alone. One daemon thread runs an event loop with the machine's host. Whatever else looks into the
machine (``flush``, ``close``, ``stats``) asks that thread.

Invariants:

- P1, P7, P10: as the async producer's. Room is given in the order of waiting.
- The putters' lock is held while a record is checked against the gate and appended. It is re-entrant, for a signal
  handler or a finalizer may put in the middle of a put of its own thread. The network thread never takes it, except for
  a callback that puts, and then waits only a moment (``_LockForCallbacks``): the thread that has the lock may be in a
  signal handler that closes the producer, and so waits for the network thread.
- Any thread may put, flush and close, a signal handler in the middle of a put too.
- The network thread does not wait for itself: a callback that would is refused, and a callback that puts finds the
  buffer full instead of waiting.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, final

from shardline.aio.client import Client
from shardline.aio.producer.producer_driver import Driver
from shardline.aio.producer.producer_facade import ProducerFacade, undelivered
from shardline.aio.producer.validation import Serializer, check_client, check_record, check_timeout, serialized, tuples
from shardline.core.producer.intake import Put
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import payload_bytes
from shardline.core.producer.producer_stats import ProducerStats
from shardline.errors import BufferFull, Closed, WaitTimeout
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH
from shardline.ports import EventSink
from shardline.sync.blocking_backpressure import RoomLine
from shardline.sync.blocking_delivery import Delivery, refuse_to_wait_in_callback
from shardline.sync.host_thread import LoopThread

_clock: Final = time.monotonic
_get_ident: Final = threading.get_ident
_WAKE: Final = Put.WAKE  # looked up once: put is the hot path
_AT_ONCE: Final = 128  # records that put_many accepts under one lock
_LOCK_TIMEOUT: Final = 0.1  # seconds: a put has the lock for microseconds


@final
class _LockForCallbacks:
    """The putters' lock, for a callback in the network thread. It gives up soon."""

    __slots__ = ("_lock",)

    def __init__(self, lock: "threading.RLock") -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT):
            raise BufferFull("another thread is in the middle of a put, and does not come to its end")

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@final
class Producer(ProducerFacade[RoomLine]):
    """Puts records into a stream, from any thread::

        with Producer("orders", region="eu-west-1") as producer:
            delivery = producer.put(b"...", key="user-1")
            receipt = delivery.result(timeout=5)

    The arguments are those of the async ``Producer``, without ``client``: the network thread has its own.
    """

    _block = "with"
    _lives_with = "process"

    def __init__(
        self,
        stream: str,
        *,
        config: ProducerConfig | None = None,
        serializer: Serializer | None = None,
        on_failure: Callable[[Delivery], object] | None = None,
        sink: EventSink | None = None,
        close_timeout: float | None = 30.0,
        drain_on_cancel: bool = True,
        **connection: Any,
    ) -> None:
        super().__init__(
            stream,
            RoomLine,
            config=config,
            serializer=serializer,
            on_failure=on_failure,
            sink=sink,
            close_timeout=close_timeout,
            drain_on_cancel=drain_on_cancel,
        )
        check_client("Producer", None, connection)  # to see what is wrong with it; the network thread makes its own
        self._connection = connection
        self._thread: LoopThread | None = None
        self._network_ident: int | None = None
        self._closer: int | None = None
        self._make_locks()

    # ---- life

    def start(self) -> None:
        """Start the network thread. Raises as the async ``start``."""
        with self._life:
            if self._is_started or self._closed:
                self._check_open()
                return
            thread = LoopThread("shardline producer")
            try:
                thread.start()
                self._network_ident = thread.ident
                # Not in the caller's context: with trio, that says that trio's event loop runs.
                Context().run(thread.call, partial(_begin, thread, self._driver, self._connection))
                self._thread, self._in_loop = thread, thread.soon
            finally:
                if self._thread is None:  # it failed, or was interrupted
                    thread.stop()
            self._admit()

    def close(self, timeout: float | None = None) -> list[Delivery]:
        """Accept no more, deliver what there is within ``timeout`` seconds, and end. Returns the undelivered.

        Harmless when done before. What is returned has failed with the code ``Closed``, unless it failed earlier.
        """
        limit = self._close_timeout if timeout is None else check_timeout("timeout", timeout)
        refuse_to_wait_in_callback("close()")
        if limit == 0 and self._closed and self._thread is not None:
            self._thread.soon(self._driver.stop)  # who has no time cuts short who has
        if self._closer == threading.get_ident():  # in the middle of a close of its own
            return undelivered(self._left)
        with self._life:
            self._closer = threading.get_ident()
            try:
                return self._close(limit)
            finally:
                self._closer = None

    def _close(self, limit: float | None) -> list[Delivery]:
        first = self._refuse_puts()
        self._room.wake_all()
        if self._thread is None:
            return []
        try:
            if first:
                self._left = self._thread.ask(self._intake.unfinished)
                if limit != 0:  # without time nothing more is sent, and then handed back
                    self._settle(self._thread, limit, self._left)
        finally:
            self._thread.soon(self._driver.stop)
        self._thread.join()
        return undelivered(self._left)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(self._exit_timeout(kind))

    # ---- putting

    def put(
        self, data: Any, *, key: str | None = None, explicit_hash_key: str | None = None, timeout: float | None = None
    ) -> Delivery:
        """Put one record. Waits for room in the buffer, and for nothing else.

        Raises:
            UsageError: the record is wrong, or too large for the stream. Nothing was accepted.
            BufferFull: there was no room for ``timeout`` seconds. Nothing was accepted.
            Closed: the producer is closed, or not started.
        """
        if self._serializer is not None:
            data = serialized(self._serializer, data)
        intake = self._intake
        if (
            type(data) is bytes
            and type(key) is str
            and explicit_hash_key is None
            and 0 < len(key) <= PARTITION_KEY_MAX_LENGTH
            and key.isascii()
        ):  # nearly all, with as few calls as can be
            size = len(data) + len(key)
        else:
            size = sys.maxsize
        if size > intake.plain_max_bytes:
            data, key, explicit_hash_key = check_record(data, key, explicit_hash_key, intake.record_max_bytes)
            size = len(data) + len(key or "")
        delivery = Delivery(data, key, explicit_hash_key, _clock() + self._ttl)
        result: Put | None = None
        try:
            with self._lock if _get_ident() != self._network_ident else self._callbacks_lock:
                reserved, reserved_bytes = intake.reserved_records + 1, intake.reserved_bytes + size
                # As ``Intake.put``. From here to the append nothing is called: no signal handler can come between (P1).
                if (
                    intake.refusal is None
                    and reserved <= intake.limit_records
                    and reserved_bytes <= intake.limit_bytes
                    and not intake.waiters
                ):
                    intake.reserved_records = reserved
                    intake.reserved_bytes = reserved_bytes
                    intake.records.append(delivery)
                    if reserved <= intake.quiet_records and reserved_bytes <= intake.quiet_bytes:
                        return delivery
                    result = intake.pass_mark([delivery])
            if result is _WAKE:
                self._wake()
                return delivery
        except BaseException:  # a signal handler raised: the record may be in the intake, and the host asleep (P1)
            self._wake()
            raise
        self._accept(delivery, size, timeout)
        return delivery

    def put_nowait(self, data: Any, *, key: str | None = None, explicit_hash_key: str | None = None) -> Delivery:
        """As ``put``, without waiting: ``BufferFull`` if there is no room."""
        return self.put(data, key=key, explicit_hash_key=explicit_hash_key, timeout=0.0)

    def put_many(
        self,
        records: Iterable[tuple[str | None, Any] | tuple[str | None, Any, str | None]],
        *,
        timeout: float | None = None,
    ) -> list[Delivery]:
        """Put many records: tuples of (key or None, data) or (key, data, explicit hash key).

        All are checked before the first is accepted.

        Raises:
            UsageError: a record is wrong; the message says which. Nothing was accepted.
            BufferFull: there was no room for ``timeout`` seconds; what was accepted until then stays accepted.
            Closed: as ``put``.
        """
        limit = check_timeout("timeout", timeout)
        deliveries = [
            Delivery(data, key, explicit_hash_key, 0.0)
            for key, data, explicit_hash_key in tuples(records, self._serializer, self._intake.record_max_bytes)
        ]
        self._check_open()
        for start in range(0, len(deliveries), _AT_ONCE):
            slice_ = deliveries[start : start + _AT_ONCE]
            if not self._put(self._locked, self._intake.put_many, slice_, self._date(slice_)):
                for delivery in slice_:
                    self._accept(delivery, payload_bytes(delivery), limit)
        return deliveries

    def _accept(self, delivery: Delivery, size: int, timeout: float | None) -> None:
        """Put it into the intake, when there is room."""
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

    # ---- waiting, and looking

    def flush(self, timeout: float | None = None) -> list[Delivery]:
        """Send what was put before the call, without lingering, and wait until it has ended.

        It keeps the rate limits. Returns what is not delivered after ``timeout`` seconds (``None``: as long as it
        takes): still on its way, or given up meanwhile. What failed before is not in it: see ``on_failure``.
        """
        refuse_to_wait_in_callback("flush()")
        thread = self._running()
        snapshot: list[Any] = thread.ask(self._intake.unfinished)
        self._settle(thread, check_timeout("timeout", timeout), snapshot)
        return undelivered(snapshot)

    def wait_ready(self, timeout: float | None = 30.0) -> None:
        """Until the producer has seen its stream. Call it at the start, to learn of a misspelt name or missing rights.

        Raises:
            WaitTimeout: not within ``timeout`` seconds.
            ShardlineError: it never will: no such stream, access denied, wrong credentials, ...
            Closed: it is closed, or not started.
        """
        limit = check_timeout("timeout", timeout)
        refuse_to_wait_in_callback("wait_ready()")
        thread = self._running()
        with suppress(Closed):  # the thread has ended: `_check_open` raises below
            Context().run(thread.call, partial(self._driver.wait_ready, limit, str(self._stream)))
        self._check_open()

    def _settle(self, thread: LoopThread, timeout: float | None, snapshot: list[Any]) -> None:
        end = None if timeout is None else _clock() + timeout
        thread.soon(self._driver.flush)
        with suppress(WaitTimeout):
            for delivery in snapshot:
                delivery.outcome(None if end is None else max(0.0, end - _clock()))

    def stats(self) -> ProducerStats:
        """Counts and the state of every shard."""
        look = partial(self._machine.stats, _clock())
        return look() if self._thread is None else self._thread.ask(look)

    # ---- what was forgotten

    def refuse_after_fork(self) -> None:
        """In the child: the network thread and its connections are the parent's, and the locks may be held for ever."""
        self._thread = None
        self._make_locks()
        super().refuse_after_fork()

    def _make_locks(self) -> None:
        self._lock = threading.RLock()  # of the putters
        self._callbacks_lock = _LockForCallbacks(self._lock)
        self._life = threading.RLock()  # held by whoever starts or closes ...
        self._closer = None  # ... in this thread


async def _begin(thread: LoopThread, driver: Driver, connection: dict[str, Any]) -> None:
    """Connect, and start the host. Neither keeps a reference to the ``Producer``."""
    client = Client(**connection)  # here: what it is made of belongs to the event loop around it
    await client.start()
    thread.begin(partial(_host, thread, driver, client))


async def _host(thread: LoopThread, driver: Driver, client: Client) -> None:
    try:
        await driver.run(client.api)
    finally:
        try:
            await client.close()
        finally:
            thread.stop()
