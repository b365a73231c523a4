"""Which requests has the server seen?

For assertions in tests, and for the live line of traffic on the command line.

Invariants:

- Memory is bounded: the last requests are kept, without their bodies.
- Neither secrets nor signatures are kept: of the credentials only the access key.
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
class Seen:
    """One request."""

    operation: str
    """Empty if it was none that Kinesis has."""
    stream: str | None
    shards: frozenset[str]
    """That it named, or stored records in."""
    entries: int
    """Records that it brought, or took away."""
    failed_entries: int
    """Entries of PutRecords that were refused."""
    size: int
    """Bytes of its body."""
    at: float
    """When it came, by the server's clock."""
    status: int | None
    """``None`` if not a byte was answered."""
    error: str | None
    """The error's type."""
    was_handled: bool
    """Whether the service was asked at all, or a fault or a signature came first."""
    access_key: str | None

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        return {**asdict(self), "shards": sorted(self.shards)}


@final
class RequestsSeen:
    """The last requests, oldest first."""

    def __init__(self) -> None:
        self._seen: deque[Seen] = deque(maxlen=LIMIT)
        self.total = 0
        """All that were ever seen, also those that are no longer kept."""

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[Seen]:
        return iter(list(self._seen))

    def add(self, seen: Seen) -> None:
        self.total += 1
        self._seen.append(seen)

    def clear(self) -> None:
        """Forget them all, and count from 0."""
        self._seen.clear()
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
    ) -> list[Seen]:
        """Those that are as told, oldest first."""
        return [
            one
            for one in self
            if (operation is None or one.operation == operation)
            and (stream is None or one.stream == stream)
            and (shard is None or shard in one.shards)
            and (status is None or one.status == status)
            and (error is None or one.error == error)
            and (since is None or one.at >= since)
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
        """How many are as told."""
        return len(self.find(operation, stream=stream, shard=shard, status=status, error=error, since=since))

    @property
    def last(self) -> Seen | None:
        """The newest."""
        return self._seen[-1] if self._seen else None


def counts_of(members: object, answer: object) -> tuple[int, int, set[str]]:
    """Records that were brought or taken, those refused, and the shards that the others were stored in."""
    if isinstance(members, inputs.PutRecords):
        if not isinstance(answer, PutRecordsOutput):
            return len(members.records), 0, set()
        stored_in = {one.shard_id for one in answer.records if one.shard_id is not None}
        return len(members.records), answer.failed_record_count, stored_in
    if isinstance(members, inputs.PutRecord):
        stored = cast("dict[str, object]", answer) if isinstance(answer, dict) else {}
        return 1, 0, {str(stored["ShardId"])} if stored else set()
    return (len(answer.records) if isinstance(answer, GetRecordsOutput) else 0), 0, set()
