"""The protocols through which Shardline reaches services, networks and lease stores. ``adapters`` implements them, and
tests replace them with fakes.

Invariants:

- An expected failure is returned as a ``Failure`` value. Only cancellation and bugs raise exceptions.
- One call is one attempt: no implementation retries.
- A lease store applies an operation to a row atomically, as ``core.leases.apply`` defines it, or does not apply it.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple, Protocol, TypeAlias, final, runtime_checkable

from shardline.codec.shapes import (
    GetRecordsResponse,
    GetShardIteratorResponse,
    ListShardsResponse,
    PutRecordsResponse,
    StreamSummary,
    SubscribeToShardEvent,
)
from shardline.core.error_codes import Failure
from shardline.core.kcl_requests import DeleteMetrics, KclRows, WriteMetrics
from shardline.core.leases import LeaseOperation, Refused
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
"""The body of a request. The caller must not change it after passing it on."""


@final
class HttpResponse(NamedTuple):
    """A complete HTTP response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpStream(Protocol):
    """An HTTP response that is still arriving."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    async def next_chunk(
        self,
        timeout: float = math.inf,  # noqa: ASYNC109 - a cancel scope would cost more than the call
        enough: int = 1,
    ) -> bytes | memoryview | Failure | None:
        """Return the next part of the body, ``None`` at the end, or a ``Failure`` if the connection broke or no part
        came within ``timeout`` seconds. Without ``timeout``, the transport's own limit applies.

        Args:
            timeout: in seconds.
            enough: how many bytes the caller can use. If nothing has arrived yet, the transport may wait until this
                number of bytes has arrived, because each part costs the caller a turn of the event loop. A part may
                still be shorter.
        """
        ...

    async def read(self) -> bytes | Failure:
        """Return the rest of the body."""
        ...


class HttpTransport(Protocol):
    """Sends POST requests over pooled connections. A transport knows nothing about AWS."""

    async def post(self, url: str, headers: Mapping[str, str], body: Body) -> HttpResponse | Failure: ...
    def stream(
        self, url: str, headers: Mapping[str, str], body: Body
    ) -> AbstractAsyncContextManager[HttpStream | Failure]: ...
    async def stream_protocol(self, url: str) -> Literal["h2", "http/1.1"] | Failure:
        """Return the protocol that ``stream`` uses. Connect if there is no connection."""
        ...

    async def close(self) -> None: ...


class ShardEvents(Protocol):
    """The events of one subscription."""

    async def next_event(self, timeout: float = math.inf) -> SubscribeToShardEvent | Failure | None:  # noqa: ASYNC109
        """Return the next event, or ``None`` at the end. No event follows a ``Failure``.

        If no event comes within ``timeout`` seconds, the result is a ``Failure``. Without ``timeout``, the transport's
        own limit applies to each pause. A cancel scope per event would cost about as much as all other work on an empty
        event.
        """
        ...


class KinesisApi(Protocol):
    """The Kinesis service. Each call is one attempt."""

    async def put_records(self, request: PutRecords) -> PutRecordsResponse | Failure: ...
    async def get_shard_iterator(self, request: GetShardIterator) -> GetShardIteratorResponse | Failure: ...
    async def get_records(self, request: GetRecords) -> GetRecordsResponse | Failure: ...
    async def list_shards(self, request: ListShards) -> ListShardsResponse | Failure: ...
    async def describe_stream_summary(self, request: DescribeStreamSummary) -> StreamSummary | Failure: ...
    def subscribe_to_shard(self, request: SubscribeToShard) -> AbstractAsyncContextManager[ShardEvents | Failure]: ...
    async def call(self, operation: str, params: Mapping[str, object]) -> dict[str, object] | Failure: ...


LeaseAnswer: TypeAlias = Lease | Refused | Failure | None
"""The result of an operation: the current row (``None`` after a deletion), a refusal, or a failure."""


@final
class GroupOnStream(NamedTuple):
    """The group and the stream that a set of rows belongs to.

    A field is ``None`` if the rows do not name it. The rows of a KCL application name neither.
    """

    group: str | None
    stream: str | None


class LeaseCatalog(Protocol):
    """Lists the groups of a lease store. A missing table or file is reported as a failure; it is not created."""

    async def open(self) -> Failure | None: ...
    async def list_groups(self) -> list[GroupOnStream] | Failure:
        """Return every group and stream that has rows, sorted."""
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
        """The default interval between two listings of the leases, in seconds."""
        ...

    @property
    def checkpoint_interval(self) -> float:
        """The default interval between two commits, in seconds."""
        ...

    async def open(self) -> Failure | None:
        """Connect, and create the table or file if it is missing.

        This must succeed before any other method is called. After a failure it may be called again.
        """
        ...

    async def list_leases(self) -> list[Lease] | Failure:
        """Return every row, sorted by shard id. The rows include all writes that were answered before the call."""
        ...

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        """Apply an operation. Return the new row (``None`` after a deletion) or a refusal. See ``core.leases``.

        After a ``Failure`` with ``maybe_received``, the operation may have been applied: see ``core.leases.landed``.
        """
        ...

    async def close(self) -> None:
        """Close connections and files. The leases are not changed. Closing twice is harmless."""
        ...


@runtime_checkable
class SharedLeaseStore(Protocol):
    """A ``LeaseStore`` from which a consumer of several streams gets the stores of all its streams."""

    def for_stream(self, stream: str) -> LeaseStore:
        """Return the store of the same group for this stream."""
        ...


@runtime_checkable
class IdentifiedLeaseStore(Protocol):
    """A ``LeaseStore`` whose rows contain more about their stream than its name, if there may be several streams."""

    @property
    def is_shared(self) -> bool:
        """Whether the store keeps the rows of several streams. If so, ``identify`` is called before ``open``."""
        ...

    def identify(self, account_id: str, created_at: float) -> None: ...


@runtime_checkable
class KclLeaseStore(Protocol):
    """A ``LeaseStore`` that may be shared with Java KCL workers."""

    @property
    def kcl_failover(self) -> float:
        """The KCL's failover time, in seconds. It applies to owners whose rows state no lease duration."""
        ...


@runtime_checkable
class KclFleetStore(Protocol):
    """A ``KclLeaseStore`` that can read and write the rows that a KCL fleet keeps beside its leases."""

    @property
    def kcl_failover(self) -> float: ...
    @property
    def follows_kcl(self) -> bool:
        """Whether a worker should look for a KCL fleet and follow it."""
        ...

    async def read_kcl_rows(self) -> KclRows | Failure:
        """Return the rows of the KCL fleet. If the fleet has no rows, the result is empty."""
        ...

    async def write_metrics(self, request: WriteMetrics | DeleteMetrics) -> Failure | None:
        """Write or delete the metrics row of a worker. No table is created."""
        ...


@runtime_checkable
class BatchingLeaseStore(Protocol):
    """A ``LeaseStore`` that can apply many operations together, with hardly more work than for a single operation."""

    async def apply_many(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        """Apply operations on different leases. Return the answers of ``apply``, in the order of the operations.

        The operations are independent: if one is refused or fails, the others are applied nevertheless.
        """
        ...
