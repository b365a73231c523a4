"""How does a program without an event loop put records?

The same intake and machine as the async producer's. A put runs in the caller's thread, without a hop to another, and
touches the intake alone. One daemon thread runs an event loop with the machine's host. Whatever else looks into the
machine (``flush``, ``close``, ``stats``) asks that thread.

Invariants:

- P1, P7, P10: as the async producer's. Room is given in the order of waiting.
- The putters' lock is held while a record is checked against the gate and appended. It is re-entrant, for a signal
  handler or a finalizer may put in the middle of a put of its own thread. The network thread never takes it, except for
  a callback that puts, and then waits only a moment (``LockForCallbacks``): the thread that has the lock may be in a
  signal handler that closes the producer, and so waits for the network thread.
- Any thread may put, flush and close, a signal handler in the middle of a put too.
- The network thread does not wait for itself: a callback that would is refused, and a callback that puts finds the
  buffer full instead of waiting.
"""

import logging
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, final

from shardline.aio.client import Client
from shardline.aio.driver import Driver
from shardline.aio.fork_and_exit import PRODUCER_FORKED, disown, watch, weakly
from shardline.aio.intake import (
    Serializer,
    check_callable,
    check_config,
    check_record,
    check_timeout,
    serialized,
    tuples,
)
from shardline.aio.reporting import ProducerReporter
from shardline.core.producer.config import ProducerConfig
from shardline.core.producer.intake import Put
from shardline.core.producer.machine import ProducerMachine
from shardline.core.producer.record import payload_bytes
from shardline.core.producer.stats import ProducerStats
from shardline.errors import BufferFull, Closed, UsageError, WaitTimeout
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH
from shardline.model.stream import parse_stream
from shardline.ports import EventSink
from shardline.sync.delivery import Delivery, NetworkThread, refuse_to_wait_in_callback
from shardline.sync.network import Network
from shardline.sync.room import LockForCallbacks, RoomLine

_log: Final = logging.getLogger("shardline.producer")
_clock: Final = time.monotonic
_get_ident: Final = threading.get_ident
_WAKE: Final = Put.WAKE  # looked up once: put is the hot path
_AT_ONCE: Final = 128  # records that put_many accepts under one lock


@final
class Producer:
    """Puts records into a stream, from any thread::

        with Producer("orders", region="eu-west-1") as producer:
            delivery = producer.put(b"...", key="user-1")
            receipt = delivery.result(timeout=5)

    The arguments are those of the async ``Producer``, without ``client``: the network thread has its own.
    """

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
        self._closed = False
        self._thread: threading.Thread | None = None  # first: __del__ also sees what __init__ refused
        self._stream = parse_stream(stream)
        self._config = check_config(config)
        self._serializer = check_callable("serializer", serializer)
        self._close_timeout = check_timeout("close_timeout", close_timeout)
        self._drain_on_cancel = drain_on_cancel
        try:
            Client(**connection)  # to see what is wrong with it; the network thread makes its own
        except TypeError as error:
            raise UsageError(f"not an argument of Producer or Client: {error}") from None
        self._ttl = self._config.record_ttl
        self._closer: int | None = None
        self._make_locks()
        self._left: list[Any] = []
        self._machine = ProducerMachine(self._stream, self._config, random.Random(), _clock())  # noqa: S311 - no secret
        self._intake = self._machine.intake
        self._intake.refuse("this Producer is not started: use 'with', or start()")
        self._room = RoomLine(self._intake)
        self._driver = Driver(
            self._machine,
            reporter=ProducerReporter(str(self._stream), check_callable("sink", sink), _clock),
            on_failure=check_callable("on_failure", on_failure),
            on_room=self._room.notify,
            on_end=weakly(self),
        )
        self._connection = connection
        self._network = Network(self._driver, connection)

    # ---- life

    def start(self) -> None:
        """Start the network thread. Raises as the async ``start``."""
        with self._life:
            if self._thread is not None or self._closed:
                self._check_open()
                return
            self._network = Network(self._driver, self._connection)  # one that could not start is not used again
            thread = NetworkThread(target=self._network.run, name="shardline producer", daemon=True)
            thread.start()
            self._network.wait_started()
            self._thread = thread
            for sentence in self._config.untranslated:
                _log.warning("KPL property %s", sentence)
            watch(self)
            self._intake.admit()

    def close(self, timeout: float | None = None) -> list[Delivery]:
        """Accept no more, deliver what there is within ``timeout`` seconds, and end. Returns the undelivered.

        Harmless when done before. What is returned has failed with the code ``Closed``, unless it failed earlier.
        """
        limit = self._close_timeout if timeout is None else check_timeout("timeout", timeout)
        refuse_to_wait_in_callback("close()")
        if limit == 0 and self._closed and self._thread is not None:
            self._network.stop()  # who has no time cuts short who has
        if self._closer == threading.get_ident():  # in the middle of a close of its own
            return [delivery for delivery in self._left if not delivery.delivered]
        with self._life:
            self._closer = threading.get_ident()
            try:
                return self._close(limit)
            finally:
                self._closer = None

    def _close(self, limit: float | None) -> list[Delivery]:
        first, self._closed = not self._closed, True
        if self._intake.refusal != PRODUCER_FORKED:
            self._intake.refuse("this Producer is closed")
        self._room.wake_all()
        if self._thread is None:
            return []
        try:
            if first:
                self._left = self._network.ask(self._machine.unfinished)
                if limit != 0:  # without time nothing more is sent, and then handed back
                    self._settle(limit, self._left)
        finally:
            self._network.stop()
        self._thread.join()
        return [delivery for delivery in self._left if not delivery.delivered]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        self.close(0.0 if interrupted and not self._drain_on_cancel else None)

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
            with self._lock if _get_ident() != self._network.ident else self._callbacks_lock:
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
                self._network.wake()
                return delivery
        except BaseException:  # a signal handler raised: the record may be in the intake, and the host asleep (P1)
            self._network.wake()
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
            if not self._accept_many(slice_):
                for delivery in slice_:
                    self._accept(delivery, payload_bytes(delivery), limit)
        return deliveries

    def _accept_many(self, deliveries: list[Delivery]) -> bool:
        """Put all of them into the intake at once, or none. Says whether there was room."""
        expires_at = _clock() + self._ttl
        for delivery in deliveries:
            delivery.expires_at = expires_at
        size = sum([payload_bytes(delivery) for delivery in deliveries])
        return self._put(self._locked, self._intake.put_many, deliveries, size) is not Put.FULL

    def _accept(self, delivery: Delivery, size: int, timeout: float | None) -> None:
        """Put it into the intake, when there is room."""
        is_callback = _get_ident() == self._network.ident
        limit = 0.0 if is_callback else check_timeout("timeout", timeout)
        if self._put(self._put_in_turn, delivery, size, limit) is Put.FULL:
            there_are = f"{self._intake.outstanding} records, {self._intake.buffered_bytes} bytes"
            raise BufferFull(f"the buffer is full: {there_are}")

    def _put(self, put: Callable[..., Put], *arguments: Any) -> Put:
        try:
            result = put(*arguments)
            if result is Put.WAKE:
                self._network.wake()
        except BaseException:  # as in ``put``
            self._network.wake()
            raise
        if result is Put.REFUSED:
            self._check_open()
        return result

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
        with self._lock if _get_ident() != self._network.ident else self._callbacks_lock:
            return put(*arguments)

    def _check_open(self) -> None:
        if self._intake.refusal is not None:
            raise Closed(self._intake.refusal)

    # ---- waiting, and looking

    def flush(self, timeout: float | None = None) -> list[Delivery]:
        """Send what was put before the call, without lingering, and wait until it has ended.

        It keeps the rate limits. Returns what is not delivered after ``timeout`` seconds (``None``: as long as it
        takes): still on its way, or given up meanwhile. What failed before is not in it: see ``on_failure``.
        """
        refuse_to_wait_in_callback("flush()")
        self._check_open()
        snapshot: list[Any] = self._network.ask(self._machine.unfinished)
        self._settle(check_timeout("timeout", timeout), snapshot)
        return [delivery for delivery in snapshot if not delivery.delivered]

    def wait_ready(self, timeout: float | None = 30.0) -> None:
        """Until the producer has seen its stream. Call it at the start, to learn of a misspelt name or missing rights.

        Raises:
            WaitTimeout: not within ``timeout`` seconds.
            ShardlineError: it never will: no such stream, access denied, wrong credentials, ...
            Closed: it is closed, or not started.
        """
        limit = check_timeout("timeout", timeout)
        refuse_to_wait_in_callback("wait_ready()")
        self._check_open()
        self._network.wait_ready(limit, str(self._stream))
        self._check_open()

    def _settle(self, timeout: float | None, snapshot: list[Any]) -> None:
        end = None if timeout is None else _clock() + timeout
        self._network.flush()
        with suppress(WaitTimeout):
            for delivery in snapshot:
                delivery.outcome(None if end is None else max(0.0, end - _clock()))

    @property
    def outstanding(self) -> int:
        """Records that were put and have not ended."""
        return self._intake.outstanding

    def stats(self) -> ProducerStats:
        """Counts and the state of every shard."""
        if self._thread is None:
            return self._machine.stats(_clock())
        return self._network.ask(lambda: self._machine.stats(_clock()))

    def __repr__(self) -> str:
        if not hasattr(self, "_machine"):
            return "<Producer, not made>"  # __init__ raised
        state = "open" if self._intake.refusal is None else "closed" if self._thread is not None else "not started"
        return f"<Producer {self._stream}, {state}, {self.outstanding} outstanding>"

    # ---- what was forgotten

    def refuse_after_fork(self) -> None:
        """In the child: the network thread and its connections are the parent's, and the locks may be held for ever."""
        self._closed, self._thread = True, None
        self._make_locks()
        self._intake.refuse(PRODUCER_FORKED)
        disown(self._machine.unfinished())

    def refuse_after_end(self, reason: str) -> None:
        """The network thread has ended: nothing that is put now would ever be sent (DR4)."""
        if self._intake.refusal is None:
            self._intake.refuse(f"this Producer does not run any more: {reason}")
        self._room.wake_all()

    def _make_locks(self) -> None:
        self._lock = threading.RLock()  # of the putters
        self._callbacks_lock = LockForCallbacks(self._lock)
        self._life = threading.RLock()  # held by whoever starts or closes ...
        self._closer = None  # ... in this thread

    def __del__(self) -> None:
        if self._thread is None or self._closed:
            return
        # When the interpreter ends, the network thread was stopped wherever it was, maybe with a lock of the log in its
        # hands: whoever logs then waits for ever. What is lost was logged before that, at exit.
        if not sys.is_finalizing():
            if self.outstanding:
                said = "was dropped without close(): its records are delivered only while the process runs"
                _log.error("%s %s", repr(self), said)  # not %r: the log would keep it alive
            self._network.orphan()
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)
