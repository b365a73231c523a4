"""The events of producers and consumers and the sinks that receive them.

Pass sinks to ``Producer(sinks=[...])`` or ``Consumer(sinks=[...])``, or use them everywhere with ``instrument``. Each
sink is called with each event. Events occur per request or per change, never per record. No event contains data, keys
or credentials. A new version may add events and fields.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, TypeAlias, final

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import (
    Committed,
    ConsumerFailed,
    DeadLetterFailed,
    DedupWindowOverflowed,
    HandlerRecovered,
    HandlerRetried,
    HandlerStuck,
    HandlingStopped,
    HandOverAsked,
    HandOverOverdue,
    HashRangesCovered,
    HashRangesUncovered,
    LagMeasured,
    LeaseGained,
    LeaseHandedOver,
    LeaseLost,
    LeaseReleased,
    LeaseSurplus,
    ListingFailed,
    MaxLeasesChanged,
    PageRead,
    PositionLost,
    ProgressLost,
    ReadFailed,
    RecordsDeadLettered,
    RecordsFiltered,
    RecordsHandedOut,
    RecordsHandled,
    RecordsTrimmed,
    RepeatsDropped,
    ShardLag,
    ShardSought,
    ShardsPaused,
    ShardsResumed,
    ShardTrimmed,
    Stalled,
    StoreFailed,
    StoreRecovered,
    StreamMissing,
    StreamReplaced,
    Subscribed,
    SubscriptionEnded,
    TooManyUnacknowledged,
    WorkerIdShared,
)
from shardline.core.consumer.consumer_events import Event as ConsumerEvent
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer_events import (
    AggregationStopped,
    ChannelsFound,
    DistributionChanged,
    LaneStats,
    ProducerMeasured,
    ProducerReconfigured,
    RecordsDelivered,
    RecordsFailed,
    RecordsRetried,
    RequestAnswered,
    ShardDelivery,
    ShardMapFailed,
    ShardsChanged,
    StreamUnknown,
)
from shardline.core.producer_events import Event as ProducerEvent
from shardline.errors import UsageError
from shardline.model.record import Record

Event: TypeAlias = ProducerEvent | ConsumerEvent
"""Every event. A ``ProducerEvent`` is an event of a producer, and a ``ConsumerEvent`` is an event of a consumer."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    EventT_contra = TypeVar("EventT_contra", contravariant=True, default=Event)
else:  # type checkers know the default of a type variable; at run time, only Python 3.13 and later do
    from typing import TypeVar

    EventT_contra = TypeVar("EventT_contra", contravariant=True)


class EventSink(Protocol[EventT_contra]):
    """A callable that receives events. Exceptions of a sink are logged, and have no other effect.

    It is called in its own thread, within about 50 ms of the event. A producer takes an ``EventSink[ProducerEvent]``,
    and a consumer takes an ``EventSink[ConsumerEvent]``. An ``EventSink`` without a type argument takes all events, and
    works for both.
    """

    def __call__(self, event: EventT_contra, /) -> object: ...


@final
class EventSource(NamedTuple):
    """The producer or consumer that emits the events."""

    kind: Literal["producer", "consumer"]
    stream: str
    """The name of the stream."""
    group: str | None = None
    """The group of the consumer, if it has one."""
    worker_id: str | None = None
    """The worker id of the consumer, or ``None`` for a producer."""
    server_address: str | None = None
    """The host name of the endpoint, or ``None`` if no ``endpoint_url`` was passed."""


class Sink(Protocol):
    """A sink that serves many producers and consumers and tells their events apart."""

    def open(self, source: EventSource, /) -> EventSink[Event]:
        """Return the callable for the events of this producer or consumer.

        This is called once, when the producer or consumer starts, in the thread that also calls the callable. The
        callable may have two further methods. ``end_batch`` is called after all events that were waiting have been
        passed, about 20 times a second under load: a sink can add up numbers and write them once. ``close`` is called
        once, after the last event.
        """
        ...


class Tracing(Protocol):
    """Carries the trace context from the put of a record to its handler.

    A ``Sink`` with a method ``tracing(source)`` that returns such an object traces that producer or consumer. The
    methods of the object are called where your code runs, and must be quick. If they raise, the exception is logged,
    and no record is lost.

    If ``put_headers`` depends on a context variable alone, the object may have this variable as its attribute
    ``put_context``. Once ``put_headers`` has returned ``None``, it is not called again while the variable has the same
    value. If the object does work in threads, it may have a method ``flush(timeout)``, which waits for this work. AWS
    Lambda freezes threads between invocations, so ``KinesisEventSource`` calls ``flush`` at the end of each.
    """

    def put_headers(self) -> Mapping[str, str] | None:
        """Return the headers for a record, or ``None`` for no headers. This is called for every put, in the thread that
        calls ``put``.
        """
        ...

    def handling(self, records: Sequence[Record[Any]], /) -> AbstractContextManager[object] | None:
        """Return a context manager to call the handler in, or ``None`` for no context.

        For a handler that takes batches, ``records`` is the batch. For a handler that takes single records, it is a
        tuple of one record; this method is not called for a record without headers.
        """
        ...


# ---- sinks for every producer and consumer

_instrumentations: Final[list["Instrumentation"]] = []


@final
class Instrumentation:
    """The sinks that one call of ``instrument`` added. As a context manager, the object removes the sinks when the
    block ends.
    """

    def __init__(self, sinks: tuple[Any, ...]) -> None:
        self._sinks = sinks
        _instrumentations.append(self)

    @property
    def sinks(self) -> tuple[Any, ...]:
        return self._sinks

    def remove(self) -> None:
        """Stop adding the sinks to producers and consumers. Producers and consumers that have already started keep the
        sinks.
        """
        if self in _instrumentations:
            _instrumentations.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def instrument(*sinks: Sink | EventSink[Event]) -> Instrumentation:
    """Add these sinks to every producer and consumer that starts in this process from now on.

    Raises:
        UsageError: an argument is not a sink.
    """
    return Instrumentation(check_sinks(sinks))


def instrumented_sinks() -> list[Any]:
    """Return the sinks that ``instrument`` added, in order."""
    return [sink for each in [*_instrumentations] for sink in each.sinks]


def check_sinks(sinks: object) -> tuple[Any, ...]:
    """Return the sinks as a tuple.

    Raises:
        UsageError: the argument is not an iterable of sinks.
    """
    expected = "sinks must be a list of callables and of sinks such as LogSink()"
    items: Any = sinks
    if callable(sinks) or hasattr(sinks, "open"):
        raise UsageError(f"{expected}, not a single {type(sinks).__name__}: pass sinks=[...]")
    if isinstance(sinks, str | bytes) or not isinstance(sinks, Iterable):
        raise UsageError(f"{expected}, not {type(sinks).__name__}")
    checked: tuple[Any, ...] = tuple(items)
    for sink in checked:
        if isinstance(sink, type) and hasattr(sink, "open"):
            raise UsageError(f"{expected}, not the class {sink.__name__}: pass {sink.__name__}(...)")
        if not callable(sink) and not callable(getattr(sink, "open", None)):
            raise UsageError(f"{expected}; one of them is of the type {type(sink).__name__}")
    return checked


__all__ = [
    "NEVER",
    "AggregationStopped",
    "ChannelsFound",
    "Committed",
    "ConsumerEvent",
    "ConsumerFailed",
    "DeadLetterFailed",
    "DedupWindowOverflowed",
    "DistributionChanged",
    "Event",
    "EventSink",
    "EventSource",
    "Failure",
    "FailureKind",
    "HandOverAsked",
    "HandOverOverdue",
    "HandlerRecovered",
    "HandlerRetried",
    "HandlerStuck",
    "HandlingStopped",
    "HashRangesCovered",
    "HashRangesUncovered",
    "Instrumentation",
    "LagMeasured",
    "LaneStats",
    "LeaseGained",
    "LeaseHandedOver",
    "LeaseLost",
    "LeaseReleased",
    "LeaseSurplus",
    "ListingFailed",
    "MaxLeasesChanged",
    "PageRead",
    "PositionLost",
    "ProducerEvent",
    "ProducerMeasured",
    "ProducerReconfigured",
    "ProgressLost",
    "ReadFailed",
    "RecordsDeadLettered",
    "RecordsDelivered",
    "RecordsFailed",
    "RecordsFiltered",
    "RecordsHandedOut",
    "RecordsHandled",
    "RecordsRetried",
    "RecordsTrimmed",
    "RepeatsDropped",
    "RequestAnswered",
    "ShardDelivery",
    "ShardLag",
    "ShardMapFailed",
    "ShardSought",
    "ShardTrimmed",
    "ShardsChanged",
    "ShardsPaused",
    "ShardsResumed",
    "Sink",
    "Stalled",
    "StoreFailed",
    "StoreRecovered",
    "StreamMissing",
    "StreamReplaced",
    "StreamUnknown",
    "Subscribed",
    "SubscriptionEnded",
    "TooManyUnacknowledged",
    "Tracing",
    "WorkerIdShared",
    "instrument",
]
