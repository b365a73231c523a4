"""The base class of the async and the blocking ``Producer``: it checks the arguments, accepts puts and ends the
producer.

Invariants:

- P1: a put that is interrupted by a signal handler's exception wakes the host, because its record may already be in the
  intake.
- A producer that is garbage-collected without ``close()`` is logged. Its host still delivers the outstanding records,
  as long as its event loop runs.
- After a fork, the child's copy refuses puts, and so does a producer whose host has ended: see ``fork_and_exit``.
- The first put with ``stream=`` opens another producer with the same arguments, which shares the client. The producer
  that opened it flushes it, closes it and counts its records.
"""

import logging
import random
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from shardline._speedups import twin
from shardline.adapters.sinks.log_context import log_context
from shardline.aio.client import ConnectionArguments
from shardline.aio.loop.fork_and_exit import PRODUCER_FORKED, disown, watch, weakly
from shardline.aio.producer.backpressure import WaitQueue
from shardline.aio.producer.bulk_put import BulkPut, OnInvalid
from shardline.aio.producer.delivery import DeliveryHook, SettledRecord
from shardline.aio.producer.producer_driver import Driver
from shardline.aio.producer.put_chain import PutChain
from shardline.aio.producer.trace_headers import TraceHeaders
from shardline.aio.producer.validation import (
    Serializer,
    check_callable,
    check_config,
    check_timeout,
    packing_serializer,
    serialized,
)
from shardline.aio.reporting import ProducerReporter
from shardline.aio.tracing import find_tracings
from shardline.codec.aggregation import encode_tags
from shardline.codec.stamps import ANY_STAMP
from shardline.codec.value_packing import PackingName, packing_named
from shardline.core.producer.intake import Intake, Put
from shardline.core.producer.machine import ProducerMachine
from shardline.core.producer.producer_config import ProducerConfig, SettingChanges
from shardline.core.producer.producer_record import date_records
from shardline.core.producer.producer_stats import ProducerStats, sum_of_stats
from shardline.errors import BufferFull, Closed, UsageError
from shardline.events import EventSink, EventSource, ProducerEvent, Sink, check_sinks
from shardline.middleware import ProducerMiddleware
from shardline.model.headers import check_headers
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH
from shardline.model.record import check_data
from shardline.model.stream import parse_stream

_log: Final = logging.getLogger("shardline.producer")
_clock: Final = time.monotonic
_Q = TypeVar("_Q", bound=WaitQueue)
_D = TypeVar("_D", bound=SettledRecord)


class ProducerArguments(ConnectionArguments, total=False):
    """The keyword arguments that the async and the blocking ``Producer`` share."""

    config: ProducerConfig | None
    packing: PackingName | None
    middleware: Iterable[ProducerMiddleware]
    dedup: bool | None
    sinks: Iterable[Sink | EventSink[ProducerEvent]]
    close_timeout: float | None
    drain_on_cancel: bool


@twin
class Putter:
    """The fields of a producer that ``put`` reads. The compiled form of ``put`` reads these fields without looking up
    attributes.
    """

    _intake: Intake
    _delivery_type: type[SettledRecord]
    _loop: object  # the event loop, or its token on trio
    _running_loop: Callable[[], object]  # returns the caller's event loop
    _trace: TraceHeaders | None = None
    _ttl: float
    _until_yield: int = 0  # the number of puts until one yields to the event loop
    _key_max_length: int


class ProducerFacade(Putter, ABC, Generic[_Q]):
    """The base class of both producers.

    It takes the arguments of ``Producer``, and ``room``, a function that creates the queue of waiters.
    """

    _is_started: bool = False  # a class attribute, because __del__ also runs if __init__ raised
    _closed: bool = False
    _schedule_in_loop: Callable[[Callable[[], None]], object] | None = None  # schedules a call in the host's event loop
    _with_statement: ClassVar[str]  # the statement that starts and closes the producer: "with" or "async with"
    _host_lifetime: ClassVar[str]  # names what must keep running for the host to run: the "loop" or the "process"

    def __init__(
        self,
        stream: str,
        room: Callable[[Any], _Q],
        *,
        config: Any,
        serializer: Serializer | None,
        packing: PackingName | None,
        middleware: Sequence[ProducerMiddleware],
        dedup: bool | None,
        on_failure: Callable[[Any], object] | None,
        sinks: Iterable[Sink | EventSink[ProducerEvent]],
        close_timeout: float | None,
        drain_on_cancel: bool,
        server_address: str | None,
    ) -> None:
        self._stream = parse_stream(stream)
        self._others: dict[str, Self] = {}  # the producers of the other streams, by the name or ARN that a put passed
        self._config = check_config(config, packing, dedup)
        self._stamp = ANY_STAMP if self._config.dedup else b""
        self._packing = packing_named(self._config.packing)
        self._serializer = packing_serializer(check_callable("serializer", serializer), self._packing)
        self._close_timeout = check_timeout("close_timeout", close_timeout)
        self._drain_on_cancel = drain_on_cancel
        self._ttl = self._config.record_ttl
        self._key_max_length = PARTITION_KEY_MAX_LENGTH
        self._left: list[Any] = []
        self._random = random.Random()  # noqa: S311 - no secret
        self._machine = ProducerMachine(self._stream, self._config, self._random, _clock())
        self._intake = self._machine.intake
        self._intake.refuse(f"this Producer is not started: use {self._with_statement!r}, or start()")
        self._chain: PutChain | None = None
        if middleware:
            self._chain = PutChain(serializer, middleware, self._packing, self._intake)
            self._serializer = self._serializer or check_data  # so that no put takes the path without a serializer
        self._intake.serializes = self._serializer is not None
        self._room = room(self._intake)
        source = EventSource("producer", self._stream.name, server_address=server_address)
        self._driver = Driver(
            self._machine,
            reporter=ProducerReporter(str(self._stream), source, check_sinks(sinks), _clock),
            on_failure=check_callable("on_failure", on_failure),
            on_room=self._room.notify,
            on_end=weakly(self),
        )

    def _admit(self) -> None:
        """Accept puts from now on, because the host is running."""
        for sentence in self._config.untranslated:
            _log.warning("KPL property %s", sentence)
        self._begin_tracing()
        # Several forks may each start a copy of one producer. With the same random numbers, they would give different
        # records the same stamp (``dedup``).
        self._random.seed()
        watch(self)
        self._is_started = True
        self._intake.admit()

    def _begin_tracing(self) -> None:
        sinks, stream = self._driver.sinks, str(self._stream)
        tracings = find_tracings(sinks.sinks, sinks.source, self._driver.log_user_error)

        def log_refusal(why: str) -> None:
            _log.warning("%s: records carry no trace: %s", stream, why, extra=log_context(sinks.source))

        self._trace = None if tracings is None else TraceHeaders(tracings, self._intake, log_refusal)

    def _refuse_puts(self) -> bool:
        """Refuse puts, because the producer is closed. Return whether this is the first close."""
        is_first, self._closed = not self._closed, True
        if self._intake.refusal != PRODUCER_FORKED:
            self._intake.refuse("this Producer is closed")
        return is_first

    def _exit_timeout(self, kind: type[BaseException] | None) -> float | None:
        """Return the timeout for closing the producer at the end of a block that raised this kind of exception."""
        is_interrupted = kind is not None and not issubclass(kind, Exception)
        return 0.0 if is_interrupted and not self._drain_on_cancel else None

    # ---- other streams

    @abstractmethod
    def _open_other(self, stream: str) -> Self:
        """Return a started producer of another stream, with the same arguments and the same client."""

    def _of(self, stream: str) -> Self:
        """Return the producer for a stream. The first call for a stream opens the producer.

        Raises:
            UsageError: this is not the name or the ARN of a stream.
            Closed: the producer is closed, or not started.
        """
        if stream == str(self._stream):
            return self
        found = self._others.get(stream)
        if found is None:
            self._check_open()
            found = self._others[stream] = self._open_other(str(parse_stream(stream)))
        return found

    @property
    def _drivers(self) -> dict[str, Driver]:
        """The drivers of all streams, by the name or ARN of the stream."""
        others = {stream: other._driver for stream, other in self._others.items()}  # noqa: SLF001 - of the same class
        return {str(self._stream): self._driver, **others}

    @property
    def streams(self) -> tuple[str, ...]:
        """The names or ARNs of the streams that this producer puts into. The stream of ``Producer(...)`` is first."""
        return tuple(self._drivers)

    def _unfinished(self) -> list[Any]:
        """Return the records of all streams that have not resolved."""
        return [record for driver in self._drivers.values() for record in driver.machine.intake.unfinished()]

    def _stats(self, stream: str | None) -> ProducerStats:
        """Return the statistics of one stream, or of all streams together.

        Raises:
            UsageError: nothing was put into this stream.
        """
        drivers, now = self._drivers, _clock()
        if stream is not None and stream not in drivers:
            raise UsageError(f"this Producer has put nothing into {stream!r}: its streams are {', '.join(drivers)}")
        chosen = drivers.values() if stream is None else [drivers[stream]]
        return sum_of_stats([driver.machine.stats(now) for driver in chosen])

    # ---- putting

    def _prepare(self, data: Any, key: Any, explicit_hash_key: Any, headers: Any) -> tuple[bytes, Any, Any, Any]:
        """Serialize a record, pass it through the middleware, and return its data, key, hash key and headers."""
        if self._chain is not None:
            return self._chain.prepare(data, key, explicit_hash_key, headers)
        assert self._serializer is not None, "called only if there is a serializer or middleware"
        return serialized(self._serializer, data), key, explicit_hash_key, headers

    def _tags_of(self, headers: Any) -> bytes:
        """Validate the headers of a put, add the headers of its trace, and return them in the encoded form.

        Without headers, the result is empty. Every put with headers, or in a trace, passes through this function.

        Raises:
            UsageError: a header is invalid, or this producer cannot send headers.
        """
        checked, trace = check_headers(headers), self._trace
        if not checked:
            return b"" if trace is None else trace.tags()
        if self.headers_refusal is not None:
            raise UsageError(f"this producer cannot send headers: {self.headers_refusal}")
        return encode_tags(checked if trace is None else trace.merge(checked))

    def _extra_ttl(self, ttl: float | None) -> float:
        """Return how much longer than ``record_ttl`` a record with this TTL lives."""
        extra_ttl = self._machine.config.extra_ttl(ttl)
        if extra_ttl:
            self._intake.ttls_differ = True  # set before the put
        return extra_ttl

    def _set_options(
        self, delivery: SettledRecord, ttl: float | None, on_delivery: Callable[[Any], object] | None
    ) -> None:
        """Apply the options of a put to a delivery that has not been put yet."""
        delivery.extra_ttl = self._extra_ttl(ttl)
        check_callable("on_delivery", on_delivery)
        if on_delivery is not None:
            delivery.waiters = [DeliveryHook(self._driver.call_hook, on_delivery)]

    def _bulk(self, make: type[_D], ttl: float | None, on_invalid: OnInvalid) -> BulkPut[_D]:
        return BulkPut(
            make,
            intake=self._intake,
            serializer=self._serializer,
            chain=self._chain,
            packing=self._packing,
            tags_of=self._tags_of,
            stamp=self._stamp,
            on_invalid=on_invalid,
            extra_ttl=self._extra_ttl(ttl),
            wake=self._wake,
        )

    def _date(self, deliveries: Sequence[SettledRecord]) -> int:
        """Set the expiry time of each record in a list, and return their total size in bytes."""
        return date_records(deliveries, _clock() + self._ttl)

    def _put(self, put: Callable[..., Put], *arguments: Any) -> bool:
        """Call a put method of the intake. Return whether there was room."""
        try:
            result = put(*arguments)
            if result is Put.WAKE:
                self._wake()
        except BaseException:  # a signal handler raised: the record may be in the intake while the host sleeps (P1)
            self._wake()
            raise
        if result is Put.REFUSED:
            self._check_open()
        return result is not Put.FULL

    @abstractmethod
    def _wake(self) -> None:
        """Wake the host, from any thread or signal handler."""

    def _full(self) -> BufferFull:
        return BufferFull(f"the buffer is full: {self.outstanding} records, {self._intake.buffered_bytes} bytes")

    def _check_open(self) -> None:
        if self._intake.refusal is not None:
            raise Closed(self._intake.refusal)

    # ---- state

    @property
    def config(self) -> ProducerConfig:
        """The settings that are in force. ``reconfigure`` changes some of them."""
        return self._machine.config

    def _check_changes(self, changes: SettingChanges) -> SettingChanges:
        """Check the settings that are to change.

        Raises:
            UsageError: a value is invalid, or no setting is to change.
        """
        if changes == SettingChanges():
            raise UsageError(f"reconfigure changes nothing: pass at least one of {', '.join(SettingChanges._fields)}")
        self._config.changed(changes)
        return changes

    @property
    def headers_refusal(self) -> str | None:
        """Why this producer cannot send headers, because of its settings or its stream, or ``None`` if it can."""
        return self._intake.headers_refusal

    @property
    def outstanding(self) -> int:
        """How many records were put and have not resolved."""
        return sum(driver.machine.intake.outstanding for driver in self._drivers.values())

    @property
    def is_ready(self) -> bool:
        """Whether the producer has reached its streams and is open."""
        is_ready = all(driver.machine.readiness.is_ready for driver in self._drivers.values())
        return self._is_started and self._intake.refusal is None and is_ready

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` has been called, or the producer was created before a fork."""
        return self._closed

    def __repr__(self) -> str:
        if getattr(self, "_intake", None) is None:  # __init__ raised; the compiled form has None then
            return "<Producer, not initialized>"
        state = "open" if self._intake.refusal is None else "closed" if self._is_started else "not started"
        return f"<Producer {', '.join(self.streams)}, {state}, {self.outstanding} outstanding>"

    # ---- forks, and the end of the host

    def refuse_after_fork(self) -> None:
        """Refuse puts in the child of a fork: the event loop, connections and records belong to the parent."""
        self._closed, self._is_started = True, False
        self._intake.refuse(PRODUCER_FORKED)
        disown(self._intake.unfinished())

    def refuse_after_end(self, reason: str) -> None:
        """Refuse puts after the host has ended, because they would never be sent."""
        if self._intake.refusal is None:
            self._intake.refuse(f"this Producer does not run any more: {reason}")
        self._room.wake_all()

    def __del__(self) -> None:
        if self._closed or not self._is_started:
            return
        # While the interpreter shuts down, a network thread may have been stopped while it held a lock of the logging
        # module, so logging could wait forever. Lost records were logged before that, at exit.
        if not sys.is_finalizing():
            if self.outstanding:
                message = "%s was garbage-collected without close(): its records are delivered only while the %s runs"
                # repr() instead of %r: a log record would keep the producer alive.
                _log.error(message, repr(self), self._host_lifetime)
            self._driver.orphan(self._schedule_in_loop)
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)


def undelivered(deliveries: list[Any]) -> list[Any]:
    """Return the deliveries that are outstanding or have failed."""
    return [delivery for delivery in deliveries if not delivery.delivered]
