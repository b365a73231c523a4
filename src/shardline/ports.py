"""What must a shell be given?

Protocols only. ``adapters`` makes them real; tests make them of paper.

Invariants:

- O1: an expected failure comes back as a ``Failure`` value; cancellation and bugs are the only exceptions.
- O2: one call is one attempt: nothing behind a port retries.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeAlias, final

from shardline.codec.shapes import (
    GetRecordsResponse,
    GetShardIteratorResponse,
    ListShardsResponse,
    PutRecordsResponse,
    StreamSummary,
    SubscribeToShardEvent,
)
from shardline.core.failures import Failure
from shardline.core.requests import (
    DescribeStreamSummary,
    GetRecords,
    GetShardIterator,
    ListShards,
    PutRecords,
    SubscribeToShard,
)

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


class ShardEvents(Protocol):
    """The events of one subscription."""

    async def next_event(self) -> SubscribeToShardEvent | Failure | None:
        """The next event: ``None`` at the end; a ``Failure`` is the last."""
        ...


class KinesisApi(Protocol):
    """The service, one attempt a call (O1, O2)."""

    async def put_records(self, request: PutRecords) -> PutRecordsResponse | Failure: ...
    async def get_shard_iterator(self, request: GetShardIterator) -> GetShardIteratorResponse | Failure: ...
    async def get_records(self, request: GetRecords) -> GetRecordsResponse | Failure: ...
    async def list_shards(self, request: ListShards) -> ListShardsResponse | Failure: ...
    async def describe_stream_summary(self, request: DescribeStreamSummary) -> StreamSummary | Failure: ...
    def subscribe_to_shard(self, request: SubscribeToShard) -> AbstractAsyncContextManager[ShardEvents | Failure]: ...
    async def call(self, operation: str, params: Mapping[str, object]) -> dict[str, object] | Failure: ...
