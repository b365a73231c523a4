"""Reads the shards of a stream, and follows their children after a reshard.

This reader is separate from the consumer because it stores nothing: no group, no leases, no checkpoints. One task per
shard reads pages and sends them to a channel.

Invariants:

- The pages of a shard come in order. A child shard is read after all of its parents that are being read have ended.
  If its parents were read from LATEST, the child is read from its beginning.
- Each of the first shards gets its iterator before any shard is read, so that LATEST means the same time in all.
- A retryable failure is retried for up to ``give_up_after`` seconds in a row; then it is raised. Any other failure is
  raised at once.
- Memory is bounded: a page is requested when there is room for it.
"""

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar, final

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from shardline.aio.client import Client
from shardline.cli.retrying import call_for_each, with_retries
from shardline.codec.shapes import GetRecordsResponse, RawRecord
from shardline.core.consumer.handling_lag import service_now
from shardline.core.consumer.read_pace import ReadPace
from shardline.core.failures import Failure, FailureKind, to_error
from shardline.core.requests import GetRecords, GetShardIterator
from shardline.errors import RequestError
from shardline.model.limits import SHARD_READ_BYTES_PER_SECOND, SHARD_READ_CALLS_PER_SECOND
from shardline.model.position import LATEST, TRIM_HORIZON, Position, after_sequence_number, at_timestamp
from shardline.model.shard import ChildShard, Shard
from shardline.model.stream import parse_stream

T = TypeVar("T")

_IDLE: Final = 1.0  # the longest wait between two reads of a shard that has nothing new


@final
class Page(NamedTuple):
    """The records of one GetRecords call."""

    shard_id: str
    records: list[RawRecord]
    read_at: float
    """When the page arrived, by the service's clock, in seconds since 1970."""


@final
class Bound(NamedTuple):
    """Where to stop reading."""

    at_latest: bool = False
    """Whether a shard ends when it has been read up to its newest record."""
    until: float | None = None
    """A time: a shard ends before the first record that arrived then or later. Once that time has passed, a shard
    also ends when it has been read up to its newest record.
    """


@final
class ShardReading:
    """Reads shards, and with ``follow`` their children."""

    def __init__(
        self,
        client: Client,
        stream: str,
        pages: MemoryObjectSendStream[Page],
        *,
        bound: Bound,
        give_up_after: float,
        follow: bool,
    ) -> None:
        self._client = client
        self._stream = stream
        self._ref = parse_stream(stream)
        self._pages = pages
        self._bound = bound
        self._give_up_after = give_up_after
        self._follow = follow
        self._parents: dict[str, tuple[str, ...]] = {}  # of every known shard
        self._started: set[str] = set()
        self._finished: set[str] = set()

    async def run(self, shards: Sequence[Shard], first: Sequence[str], start: Position) -> None:
        """Read the shards ``first``, and their children, until they have ended or the bound is reached.

        Args:
            shards: all shards of the stream.
            first: the ids of the shards to start with.
            start: the position to start at.
        """
        self._add_shards(shards)
        self._started.update(first)
        iterators = await call_for_each(first, lambda shard_id: self._iterator(shard_id, start))
        async with self._pages, anyio.create_task_group() as tasks:
            for shard_id in first:
                tasks.start_soon(self._read, tasks, shard_id, start, iterators[shard_id])

    async def _read(self, tasks: TaskGroup, shard_id: str, start: Position, iterator: str | None = None) -> None:
        """Read one shard to its end or to the bound; at its end, start its children."""
        position = start
        pace = ReadPace(SHARD_READ_CALLS_PER_SECOND, SHARD_READ_BYTES_PER_SECOND, _IDLE, random.Random(), _now())  # noqa: S311
        while True:
            if iterator is None:
                iterator = await self._iterator(shard_id, position)
            asked_at = self._client.api.service_time()
            page = await self._next_page(iterator, pace)
            if page is None:  # the iterator has expired
                iterator = None
                continue
            records = self._within_bound(page.records)
            lag = None if page.millis_behind_latest is None else page.millis_behind_latest / 1000
            if records:
                read_at = service_now(self._client.api.service_time(), time.time())
                await self._pages.send(Page(shard_id, records, read_at))
                position = after_sequence_number(records[-1].sequence_number)
            elif position == LATEST:
                # If this iterator expires, a new one at LATEST would skip the records that arrived in between.
                position = at_timestamp(asked_at)
            if len(records) < len(page.records):
                return
            iterator = page.next_iterator
            if iterator is None:
                break
            if self._is_bound_reached(lag, is_empty=not page.records):
                return
        self._finished.add(shard_id)
        if self._follow:
            await self._start_children(tasks, shard_id, page.child_shards, TRIM_HORIZON if start == LATEST else start)

    # ---- the bound

    def _within_bound(self, records: list[RawRecord]) -> list[RawRecord]:
        until = self._bound.until
        if until is None:
            return records
        late = (
            index
            for index, record in enumerate(records)
            if record.arrived_at is not None and record.arrived_at >= until
        )
        return records[: next(late, len(records))]

    def _is_bound_reached(self, lag: float | None, *, is_empty: bool) -> bool:
        if lag != 0 and not (lag is None and is_empty):
            return False
        until = self._bound.until
        return self._bound.at_latest or (until is not None and self._client.api.service_time() >= until)

    # ---- lineage

    async def _start_children(
        self, tasks: TaskGroup, shard_id: str, children: Sequence[ChildShard], start: Position
    ) -> None:
        """Start reading those children of a finished shard whose other parents have also finished."""
        for child in children:
            self._parents.setdefault(child.shard_id, child.parent_ids)
        parents = {parent for child in children for parent in child.parent_ids}
        if not children or not parents <= self._parents.keys():  # an emulator named no children, or a parent is new
            self._add_shards(await with_retries(lambda: self._client.list_shards(self._stream)))
        for child_id, parent_ids in list(self._parents.items()):
            if shard_id in parent_ids and child_id not in self._started and not any(map(self._is_pending, parent_ids)):
                self._started.add(child_id)
                tasks.start_soon(self._read, tasks, child_id, start)

    def _add_shards(self, shards: Sequence[Shard]) -> None:
        self._parents |= {shard.shard_id: shard.parent_ids for shard in shards}

    def _is_pending(self, shard_id: str) -> bool:
        """Return whether the shard is being read, or will be read because one of its ancestors is being read."""
        unchecked, seen = [shard_id], {shard_id}
        while unchecked:
            checked_id = unchecked.pop()
            if checked_id in self._finished:
                continue
            if checked_id in self._started:
                return True
            parent_ids = [parent for parent in self._parents.get(checked_id, ()) if parent not in seen]
            seen.update(parent_ids)
            unchecked += parent_ids
        return False

    # ---- calls

    async def _iterator(self, shard_id: str, position: Position) -> str:
        pace = ReadPace(SHARD_READ_CALLS_PER_SECOND, SHARD_READ_BYTES_PER_SECOND, _IDLE, random.Random(), _now())  # noqa: S311
        request = GetShardIterator(self._ref, shard_id, position)
        answer = await self._call(lambda: self._client.api.get_shard_iterator(request), "GetShardIterator", pace)
        return answer.shard_iterator

    async def _next_page(self, iterator: str, pace: ReadPace) -> GetRecordsResponse | None:
        """Return the next page, or ``None`` if the iterator has expired."""
        request = GetRecords(iterator, None, self._ref)
        try:
            page = await self._call(lambda: self._client.api.get_records(request), "GetRecords", pace)
        except RequestError as error:
            if error.kind == FailureKind.EXPIRED_ITERATOR:
                return None
            raise
        size_bytes = sum(len(record.data) for record in page.records)
        behind = bool(page.millis_behind_latest) if page.millis_behind_latest is not None else bool(page.records)
        pace.handle_page(size_bytes, empty=not page.records, behind=behind, now=_now())
        return page

    async def _call(self, call: Callable[[], Awaitable[T | Failure]], operation: str, pace: ReadPace) -> T:
        """Return the response of ``call``, retrying it at the shard's pace until ``give_up_after`` has passed."""
        give_up_at: float | None = None
        while True:
            await anyio.sleep_until(pace.next_at)
            pace.handle_sent(_now())
            answer = await call()
            if not isinstance(answer, Failure):
                return answer
            now = _now()
            give_up_at = now + self._give_up_after if give_up_at is None else give_up_at
            pace.handle_failure(answer, now)
            if not answer.retryable or pace.next_at > give_up_at:
                raise to_error(answer, operation)


def _now() -> float:
    return anyio.current_time()
