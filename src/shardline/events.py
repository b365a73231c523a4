"""The events of producers and consumers, and the sink that receives them.

Pass a sink to ``Producer(sink=...)`` or ``Consumer(sink=...)``, and it is called with each event: per request or per
change, never per record. No event contains data, keys or credentials. A new version may add events and fields.
"""

from typing import TYPE_CHECKING, Protocol, TypeAlias

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import (
    Committed,
    ConsumerFailed,
    DeadLetterFailed,
    HandlerRecovered,
    HandlerRetried,
    HandlerStuck,
    HandlingStopped,
    HandOverAsked,
    HandOverOverdue,
    LagMeasured,
    LeaseGained,
    LeaseHandedOver,
    LeaseLost,
    LeaseReleased,
    ListingFailed,
    PageRead,
    PositionLost,
    ProgressLost,
    ReadFailed,
    RecordsDeadLettered,
    RecordsHandedOut,
    RecordsHandled,
    RecordsTrimmed,
    ShardLag,
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
from shardline.core.failures import Failure, FailureKind
from shardline.core.producer_events import (
    AggregationStopped,
    ChannelsFound,
    DistributionChanged,
    LaneStats,
    ProducerMeasured,
    RecordsDelivered,
    RecordsFailed,
    RecordsRetried,
    RequestAnswered,
    ShardMapFailed,
    ShardsChanged,
    StreamUnknown,
)
from shardline.core.producer_events import Event as ProducerEvent

Event: TypeAlias = ProducerEvent | ConsumerEvent
"""Every event. A ``ProducerEvent`` is an event of a producer, and a ``ConsumerEvent`` one of a consumer."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    EventT_contra = TypeVar("EventT_contra", contravariant=True, default=Event)
else:  # type checkers know the default; at run time, only Python 3.13 does
    from typing import TypeVar

    EventT_contra = TypeVar("EventT_contra", contravariant=True)


class EventSink(Protocol[EventT_contra]):
    """A callable that receives events. Its exceptions are logged, and have no other effect.

    A producer takes an ``EventSink[ProducerEvent]``, a consumer an ``EventSink[ConsumerEvent]``. A sink of all events,
    an ``EventSink``, works for both.
    """

    def __call__(self, event: EventT_contra, /) -> object: ...


__all__ = [
    "NEVER",
    "AggregationStopped",
    "ChannelsFound",
    "Committed",
    "ConsumerEvent",
    "ConsumerFailed",
    "DeadLetterFailed",
    "DistributionChanged",
    "Event",
    "EventSink",
    "Failure",
    "FailureKind",
    "HandOverAsked",
    "HandOverOverdue",
    "HandlerRecovered",
    "HandlerRetried",
    "HandlerStuck",
    "HandlingStopped",
    "LagMeasured",
    "LaneStats",
    "LeaseGained",
    "LeaseHandedOver",
    "LeaseLost",
    "LeaseReleased",
    "ListingFailed",
    "PageRead",
    "PositionLost",
    "ProducerEvent",
    "ProducerMeasured",
    "ProgressLost",
    "ReadFailed",
    "RecordsDeadLettered",
    "RecordsDelivered",
    "RecordsFailed",
    "RecordsHandedOut",
    "RecordsHandled",
    "RecordsRetried",
    "RecordsTrimmed",
    "RequestAnswered",
    "ShardLag",
    "ShardMapFailed",
    "ShardTrimmed",
    "ShardsChanged",
    "Stalled",
    "StoreFailed",
    "StoreRecovered",
    "StreamMissing",
    "StreamReplaced",
    "StreamUnknown",
    "Subscribed",
    "SubscriptionEnded",
    "TooManyUnacknowledged",
    "WorkerIdShared",
]
