"""Are events and lease stores usable with public names only? Read by mypy --strict and pyright, never run.

A line with ``type: ignore`` is a mistake that both must find: each reports an ignore that it does not need.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from typing import assert_never, assert_type

from shardline import Consumer, LeaseStore, Producer, sync
from shardline.events import (
    ConsumerEvent,
    Event,
    EventSink,
    EventSource,
    LeaseLost,
    ProducerEvent,
    RecordsDelivered,
    RecordsFailed,
    ShardMapFailed,
    StoreFailed,
    instrument,
)
from shardline.stores import (
    BatchingLeaseStore,
    Checkpoint,
    CreateLease,
    Failure,
    FailureKind,
    Lease,
    LeaseAnswer,
    LeaseOperation,
    Position,
    Refused,
    apply_to,
    landed,
)


class AnySink:
    def __call__(self, event: Event) -> None:
        match event:
            case RecordsDelivered() | RecordsFailed():
                assert_type(event.records, int)
            case ShardMapFailed() | StoreFailed():
                assert_type(event.failure.kind, FailureKind)
            case LeaseLost(shard_id):
                assert_type(shard_id, str)
            case _:
                pass


def producer_sink(event: ProducerEvent) -> None:
    if isinstance(event, RecordsFailed):
        assert_type(event.code, str)


def consumer_sink(event: ConsumerEvent) -> None:
    if isinstance(event, LeaseLost):
        assert_type(event.why, str)


class OpenedSink:
    def open(self, source: EventSource) -> EventSink:
        assert_type(source.group, str | None)
        return AnySink()


def sinks() -> None:
    everything: EventSink = AnySink()
    Producer("orders", sinks=[everything])
    Consumer("orders", sinks=[AnySink()])
    Producer("orders", sinks=[producer_sink])
    sync.Producer("orders", sinks=[producer_sink])
    sync.Consumer("orders", sinks=[consumer_sink])
    Consumer("orders", sinks=[lambda event: event.count(1)])
    of_producers: EventSink[ProducerEvent] = producer_sink
    of_both: EventSink = producer_sink  # type: ignore[assignment]
    str((of_producers, of_both))
    Consumer("orders", sinks=[producer_sink])  # type: ignore[list-item]
    Producer("orders", sinks=[consumer_sink])  # type: ignore[list-item]
    instrument(consumer_sink)  # type: ignore[arg-type]
    with instrument(OpenedSink(), everything) as installed:
        installed.remove()
    Producer("orders", sinks=(OpenedSink(), producer_sink))
    Consumer("orders", sinks=[OpenedSink(), consumer_sink])


class DictStore:
    """A lease store in a dict."""

    scan_interval = 0.5
    checkpoint_interval = 1.0

    def __init__(self, group: str, stream: str) -> None:
        self.group = group
        self.stream = stream
        self._rows: dict[str, Lease] = {}

    async def open(self) -> Failure | None:
        return None

    async def list_leases(self) -> list[Lease] | Failure:
        return [self._rows[shard_id] for shard_id in sorted(self._rows)]

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        return apply_to(self._rows, operation)

    async def close(self) -> None:
        self._rows.clear()


class NoStore:
    async def open(self) -> None: ...


async def stores() -> None:
    store: LeaseStore = DictStore("billing", "orders")
    Consumer("orders", group="billing", store=store)
    sync.Consumer("orders", group="billing", store=DictStore("billing", "orders"))
    Consumer("orders", group="billing", store=NoStore())  # type: ignore[call-overload]
    operation = CreateLease(Lease("shardId-000000000000"))
    answer = await store.apply(operation)
    match answer:
        case Lease():
            assert_type(answer.checkpoint, Checkpoint)
            assert_type(answer.resume_at, Position)
        case Refused(current):
            assert_type(landed(operation, current), bool)
        case Failure():
            assert_type(answer.retryable, bool)
        case None:
            assert_type(answer, None)
        case _:
            assert_never(answer)
    if isinstance(store, BatchingLeaseStore):
        assert_type(await store.apply_many([operation]), list[LeaseAnswer])
