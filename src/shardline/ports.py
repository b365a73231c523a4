"""What must a shell be given?

Protocols only. ``adapters`` makes them real; tests make them of paper.

Invariants:

- An expected failure comes back as a ``Failure`` value; cancellation and bugs are the only exceptions.
- One call is one attempt: nothing behind a port retries.
- A lease store applies one operation at a time to a row, as ``core.leases.apply`` says, or not at all.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeAlias, final, runtime_checkable

from shardline.codec.shapes import (
    GetRecordsResponse,
    GetShardIteratorResponse,
    ListShardsResponse,
    PutRecordsResponse,
    StreamSummary,
    SubscribeToShardEvent,
)
from shardline.core.failures import Failure
from shardline.core.leases import LeaseOperation, Refused
from shardline.core.producer_events import Event
from shardline.core.requests import (
    DescribeStreamSummary,
    GetRecords,
    GetShardIterator,
    ListShards,
    PutRecords,
    SubscribeToShard,
)
from shardline.model.lease import Lease

Body: TypeAlias = bytes | bytearray
"""What is sent. Whoever makes it changes it no more."""


@final
class HttpAnswer(NamedTuple):
    """An HTTP answer, whole. Headers are looked up by their lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpStream(Protocol):
    """An HTTP answer that is still arriving."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    async def next_chunk(self) -> bytes | Failure | None:
        """What arrives next: ``None`` at the end, a ``Failure`` where the answer broke off."""
        ...

    async def read(self) -> bytes | Failure:
        """All the rest."""
        ...


class HttpTransport(Protocol):
    """POSTs bytes, with pooled connections. Knows nothing of AWS."""

    async def post(self, url: str, headers: Mapping[str, str], body: Body) -> HttpAnswer | Failure: ...
    def stream(
        self, url: str, headers: Mapping[str, str], body: Body
    ) -> AbstractAsyncContextManager[HttpStream | Failure]: ...
    async def close(self) -> None: ...


EventSink: TypeAlias = Callable[[Event], object]
"""Takes the events of a producer. What it raises is logged, and harms nothing."""


class ShardEvents(Protocol):
    """The events of one subscription."""

    async def next_event(self) -> SubscribeToShardEvent | Failure | None:
        """The next event: ``None`` at the end; a ``Failure`` is the last."""
        ...


class KinesisApi(Protocol):
    """The service, one attempt a call."""

    async def put_records(self, request: PutRecords) -> PutRecordsResponse | Failure: ...
    async def get_shard_iterator(self, request: GetShardIterator) -> GetShardIteratorResponse | Failure: ...
    async def get_records(self, request: GetRecords) -> GetRecordsResponse | Failure: ...
    async def list_shards(self, request: ListShards) -> ListShardsResponse | Failure: ...
    async def describe_stream_summary(self, request: DescribeStreamSummary) -> StreamSummary | Failure: ...
    def subscribe_to_shard(self, request: SubscribeToShard) -> AbstractAsyncContextManager[ShardEvents | Failure]: ...
    async def call(self, operation: str, params: Mapping[str, object]) -> dict[str, object] | Failure: ...


LeaseAnswer: TypeAlias = Lease | Refused | Failure | None
"""What becomes of an operation: the row as it now stands (``None`` after a deletion), a refusal, or a failure."""


@final
class GroupOnStream(NamedTuple):
    """Whom rows of a lease store serve; ``None`` where they do not say, as those of a KCL do not."""

    group: str | None
    stream: str | None


class LeaseCatalog(Protocol):
    """A lease store before any group in it is named. What is not there is a failure, and is not made."""

    async def open(self) -> Failure | None: ...
    async def list_groups(self) -> list[GroupOnStream] | Failure:
        """Every group and stream that has rows, sorted."""
        ...

    async def close(self) -> None: ...


class LeaseStore(Protocol):
    """The leases of one group on one stream."""

    @property
    def group(self) -> str: ...
    @property
    def stream(self) -> str: ...
    @property
    def scan_interval(self) -> float:
        """How often to list the leases, if nobody says otherwise."""
        ...

    @property
    def checkpoint_interval(self) -> float:
        """How often to commit, if nobody says otherwise."""
        ...

    async def open(self) -> Failure | None:
        """Connect, and make what is missing. To be awaited before anything else; again after a failure."""
        ...

    async def list_leases(self) -> list[Lease] | Failure:
        """Every row, by shard id, none older than the last write that was answered before the call."""
        ...

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        """The row as it now stands (``None`` after a deletion), or the refusal. See ``core.leases``.

        After a ``Failure`` with ``maybe_received`` the operation may have been applied: see ``core.leases.landed``.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and files. Leases stay as they are. Harmless when done before."""
        ...


@runtime_checkable
class KclLeaseStore(Protocol):
    """A ``LeaseStore`` whose rows Java KCL workers may hold too."""

    @property
    def kcl_failover(self) -> float:
        """Their failover time, in seconds: it judges the owners that state no lease duration."""
        ...


@runtime_checkable
class BatchingLeaseStore(Protocol):
    """A ``LeaseStore`` to which many operations at once are hardly more work than one."""

    async def apply_many(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        """What ``apply`` would answer to each, in their order. Each is of another lease, and ends by itself."""
        ...
