"""How does a program without an event loop put records?

The same machine as the async producer's, under a lock: ``put`` runs in the caller's thread, without a hop to another.
One daemon thread runs an event loop for the network.

Invariants:

- P1, P7, P10: as the async producer's. Room is given in the order of waiting.
- SP1: any thread may put, flush and close; a thread that waits holds no lock.
- SP3: a signal handler, or a finalizer, may put and close in the middle of a put of its own thread. Neither waits
  there, for what it would wait for waits for that put: without room the buffer is full, and the close comes after it.
- SP2: the network thread never waits for a user's thread, except for the lock, for microseconds; nor for itself: a
  callback that would is refused, and one that puts finds the buffer full instead of waiting.
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
from typing import Any, Final, Self, cast, final

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
from shardline.core.producer.stats import ProducerStats
from shardline.errors import BufferFull, Closed, UsageError, WaitTimeout
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH
from shardline.model.stream import parse_stream
from shardline.ports import EventSink
from shardline.sync.delivery import Delivery, NetworkThread, refuse_to_wait_in_callback
from shardline.sync.network import Network
from shardline.sync.room import RoomLine

_log: Final = logging.getLogger("shardline.producer")
_clock: Final = time.monotonic
_FULL, _PUMP = Put.FULL, Put.PUMP  # looked up once: put is the hot path
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
        self._refusal: str | None = "this Producer is not started: use 'with', or start()"
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
        self._lock = threading.RLock()
        self._room = RoomLine(self._lock)
        self._life = threading.RLock()  # held by whoever starts or closes ...
        self._closer: int | None = None  # ... in this thread
        self._put_off: list[float | None] = []  # the time limits of closes that wait for a put to end (SP3)
        self._left: list[Any] = []
        self._machine = ProducerMachine(self._stream, self._config, random.Random(), _clock())  # noqa: S311 - no secret
        self._driver = Driver(
            self._machine,
            guard=self._lock,
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
            self._refusal = None
            for sentence in self._config.untranslated:
                _log.warning("KPL property %s", sentence)
            watch(self, self._lock)

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
        if self._is_inside():
            self._refusal = self._refusal or "this Producer is closed"
            self._put_off.append(limit)
            return []
        with self._life:
            self._closer = threading.get_ident()
            try:
                return self._close(limit)
            finally:
                self._closer = None

    def _close(self, limit: float | None) -> list[Delivery]:
        with self._lock:
            first, self._closed = not self._closed, True
            if self._refusal != PRODUCER_FORKED:
                self._refusal = "this Producer is closed"
            self._room.give_all()
            if first:
                self._left = self._machine.unfinished()
        if self._thread is None:
            return []
        try:
            if first and limit != 0:  # without time nothing more is sent, and then handed back
                self._settle(limit, self._left)
        finally:
            self._network.stop()
        self._thread.join()
        return [delivery for delivery in self._left if not delivery.delivered]

    def _is_inside(self) -> bool:
        """Whether this thread holds the lock: we are called by a signal handler or a finalizer (SP3)."""
        return bool(cast("Any", self._lock)._is_owned())  # noqa: SLF001 - as the library's own Condition asks

    def _close_if_put_off(self) -> None:
        while self._put_off and not self._is_inside():
            self.close(self._put_off.pop())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        self.close(0.0 if interrupted and not self._drain_on_cancel else None)

    # ---- putting

    def put(  # noqa: C901, PLR0912 - the quick way has no calls
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
        machine, intake = self._machine, self._machine.intake
        if (
            type(data) is bytes
            and type(key) is str
            and explicit_hash_key is None
            and 0 < len(key) <= PARTITION_KEY_MAX_LENGTH
            and key.isascii()
        ):  # nearly all, with as few calls as can be
            size = len(data) + len(key)
        else:
            size = sys.maxsize  # by way of the machine
        if size > machine.plain_max_bytes:
            data, key, explicit_hash_key = check_record(data, key, explicit_hash_key, machine.record_max_bytes)
        interrupted = False
        try:
            with self._lock:
                now = _clock()  # not before: in their order records are put later and later (P9)
                delivery = Delivery(data, key, explicit_hash_key, now + self._ttl)
                if self._refusal is not None:
                    raise Closed(self._refusal)
                accepted = _FULL
                if not self._room.waiting:
                    if len(intake.records) < intake.max_records and intake.size + size <= intake.max_bytes:
                        intake.size += size
                        intake.records.append(delivery)
                        return delivery
                    interrupted = True
                    accepted = machine.put(delivery, now)
                if accepted is _FULL:
                    interrupted = True
                    accepted = self._put_when_there_is_room(delivery, check_timeout("timeout", timeout))
            if accepted is _PUMP:
                self._network.wake()
            interrupted = False
        except BufferFull:
            interrupted = False  # it left nothing
            raise
        finally:
            if interrupted:  # by Ctrl-C, or a signal handler that raises: what it left is the network's (P1)
                self._network.wake()
            if self._put_off:
                self._close_if_put_off()
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
        machine = self._machine
        deliveries = [
            Delivery(data, key, explicit_hash_key, 0.0)
            for key, data, explicit_hash_key in tuples(records, self._serializer, machine.record_max_bytes)
        ]
        self._check_open()
        interrupted = True
        try:
            for start in range(0, len(deliveries), _AT_ONCE):
                slice_ = deliveries[start : start + _AT_ONCE]
                for delivery in slice_[self._accept_many(slice_) :]:
                    with self._lock:
                        self._check_open()
                        now = _clock()
                        delivery.expires_at = now + self._ttl
                        accepted = _FULL if self._room.waiting else machine.put(delivery, now)
                        if accepted is _FULL:
                            accepted = self._put_when_there_is_room(delivery, limit)
                    if accepted is _PUMP:
                        self._network.wake()
            interrupted = False
        finally:
            if interrupted:  # as in ``put``
                self._network.wake()
            self._close_if_put_off()
        return deliveries

    def _accept_many(self, deliveries: list[Delivery]) -> int:
        """Accept as many as there is room for at once. Returns how many."""
        with self._lock:
            self._check_open()
            if self._room.waiting:
                return 0
            now = _clock()
            expires_at = now + self._ttl
            for delivery in deliveries:
                delivery.expires_at = expires_at
            count, wakes = self._machine.put_many(cast("list[Any]", deliveries), now)
        if wakes:
            self._network.wake()
        return count

    def _put_when_there_is_room(self, delivery: Delivery, timeout: float | None) -> Put:
        """In its turn. The lock is held on entry and exit."""
        accepted = Put.FULL

        def is_accepted() -> bool:
            nonlocal accepted
            self._check_open()
            now = _clock()
            delivery.expires_at = now + self._ttl
            accepted = self._machine.put(delivery, now)
            return accepted is not Put.FULL

        must_not = isinstance(threading.current_thread(), NetworkThread), self._machine.turn.is_taken  # SP2, SP3
        may_wait = not any(must_not) and not self._room.is_waited_for_here
        if not self._room.try_in_turn(is_accepted, timeout if may_wait else 0.0):
            there_are = f"{self._machine.outstanding} records, {self._machine.buffered_bytes} bytes"
            raise BufferFull(f"the buffer is full: {there_are}")
        return accepted

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise Closed(self._refusal)

    # ---- waiting, and looking

    def flush(self, timeout: float | None = None) -> list[Delivery]:
        """Send what was put before the call, without lingering, and wait until it has ended.

        It keeps the rate limits. Returns what is not delivered after ``timeout`` seconds (``None``: as long as it
        takes): still on its way, or given up meanwhile. What failed before is not in it: see ``on_failure``.
        """
        refuse_to_wait_in_callback("flush()")
        if self._is_inside():
            raise UsageError("flush() in the middle of a put of its own thread would wait for itself")
        with self._lock:
            self._check_open()
            snapshot: list[Any] = self._machine.unfinished()
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
        if self._is_inside():
            raise UsageError("wait_ready() in the middle of a put of its own thread would wait for itself")
        self._check_open()
        self._network.wait_ready(limit, str(self._stream))
        self._check_open()

    def _settle(self, timeout: float | None, snapshot: list[Any]) -> None:
        end = None if timeout is None else _clock() + timeout
        with self._lock:
            self._machine.flush()
        self._network.wake()
        with suppress(WaitTimeout):
            for delivery in snapshot:
                delivery.outcome(None if end is None else max(0.0, end - _clock()))

    @property
    def outstanding(self) -> int:
        """Records that were put and have not ended."""
        return self._machine.outstanding

    def stats(self) -> ProducerStats:
        """Counts and the state of every shard."""
        with self._lock:
            return self._machine.stats(_clock())

    def __repr__(self) -> str:
        if not hasattr(self, "_machine"):
            return "<Producer, not made>"  # __init__ raised
        state = "open" if self._refusal is None else "closed" if self._thread is not None else "not started"
        return f"<Producer {self._stream}, {state}, {self.outstanding} outstanding>"

    # ---- what was forgotten

    def refuse_after_fork(self) -> None:
        """In the child: the network thread and its connections are the parent's, and the lock may be held for ever."""
        self._refusal, self._closed, self._thread = PRODUCER_FORKED, True, None
        self._lock, self._life = threading.RLock(), threading.RLock()
        self._room = RoomLine(self._lock)
        disown(self._machine.unfinished())

    def refuse_after_end(self, reason: str) -> None:
        """The network thread has ended: nothing that is put now would ever be sent (DR4). The lock is held."""
        if self._refusal is None:
            self._refusal = f"this Producer does not run any more: {reason}"
            self._room.give_all()

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
