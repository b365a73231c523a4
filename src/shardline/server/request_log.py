"""Logs the requests that the server has received.

Tests make assertions about this log, and ``shardline local`` uses it to show the live traffic.

Invariants:

- Memory is bounded: only the last requests are kept, without their bodies.
- Neither secrets nor signatures are kept. The access key is the only part of the credentials that is kept.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, cast, final

from shardline.server.model import inputs
from shardline.server.model.records import GetRecordsOutput, PutRecordsOutput

LIMIT: Final = 10_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """A request that the server has received, and its outcome."""

    operation: str
    """The name of the operation. It is empty if Kinesis has no operation with the requested name."""
    stream: str | None
    shards: frozenset[str]
    """The shards that the request named or stored records in."""
    entries: int
    """The number of records that the request sent or fetched."""
    failed_entries: int
    """The number of entries of PutRecords that were refused."""
    size: int
    """The size of the request's body in bytes."""
    at: float
    """When the request arrived, by the server's clock."""
    status: int | None
    """The HTTP status, or ``None`` if a fault suppressed the whole answer."""
    error: str | None
    """The error's type, or ``None`` if the request succeeded."""
    was_handled: bool
    """Whether the request reached the service: a fault or a wrong signature may have stopped it."""
    access_key: str | None

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "shards": sorted(self.shards)}


@final
class RequestLog:
    """The last requests, oldest first."""

    def __init__(self) -> None:
        self._requests: deque[LoggedRequest] = deque(maxlen=LIMIT)
        self.total: int = 0
        """The number of requests since the log was last cleared, including those that are no longer kept."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[LoggedRequest]:
        return iter(list(self._requests))

    def add(self, request: LoggedRequest) -> None:
        self.total += 1
        self._requests.append(request)

    def clear(self) -> None:
        """Remove all requests and set ``total`` to 0."""
        self._requests.clear()
        self.total = 0

    def find(
        self,
        operation: str | None = None,
        *,
        stream: str | None = None,
        shard: str | None = None,
        status: int | None = None,
        error: str | None = None,
        since: float | None = None,
    ) -> list[LoggedRequest]:
        """Return the requests that match all arguments, oldest first."""
        return [
            request
            for request in self
            if (operation is None or request.operation == operation)
            and (stream is None or request.stream == stream)
            and (shard is None or shard in request.shards)
            and (status is None or request.status == status)
            and (error is None or request.error == error)
            and (since is None or request.at >= since)
        ]

    def count(
        self,
        operation: str | None = None,
        *,
        stream: str | None = None,
        shard: str | None = None,
        status: int | None = None,
        error: str | None = None,
        since: float | None = None,
    ) -> int:
        """Return the number of requests that match all arguments."""
        return len(self.find(operation, stream=stream, shard=shard, status=status, error=error, since=since))

    @property
    def last(self) -> LoggedRequest | None:
        return self._requests[-1] if self._requests else None


def counts_of(members: object, answer: object) -> tuple[int, int, set[str]]:
    """Return the number of records sent or fetched, the number of refused records, and the shards of stored records."""
    if isinstance(members, inputs.PutRecords):
        if not isinstance(answer, PutRecordsOutput):
            return len(members.records), 0, set()
        stored_in = {result.shard_id for result in answer.records if result.shard_id is not None}
        return len(members.records), answer.failed_record_count, stored_in
    if isinstance(members, inputs.PutRecord):
        stored = cast("dict[str, object]", answer) if isinstance(answer, dict) else {}
        return 1, 0, {str(stored["ShardId"])} if stored else set()
    return (len(answer.records) if isinstance(answer, GetRecordsOutput) else 0), 0, set()
