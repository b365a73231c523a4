"""How are the shards of a stream read, as they come and go?

A reader of its own, because it keeps nothing: no group, no leases, no checkpoints. One task a shard, which hands its
pages to whoever reads.

Invariants:

- Pages of a shard come in its order; a shard is begun when all its parents that are read have ended, at its
  beginning if its parents were begun at LATEST.
- LATEST is asked of every shard before anything is read: what is put after ``begun`` is seen.
- A failure that may pass is tried again, for ``patience`` seconds in a row; then it is raised. What does not pass
  is raised at once.
- Memory is bounded: a page is asked for when there is room for it.
"""

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar, final

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from shardline.aio.client import Client
from shardline.cli.retrying import ask_all, patiently
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

_IDLE: Final = 1.0  # the longest wait between two looks at a shard that has nothing new


@final
class Page(NamedTuple):
    """What one call brought."""

    shard_id: str
    records: list[RawRecord]
    read_at: float
    """When it came, by the service's clock: seconds since 1970."""


@final
class Bound(NamedTuple):
    """Where to stop."""

    at_latest: bool = False
    """Each shard when it has been read up to its newest record."""
    until: float | None = None
    """Before the first record that arrived at this time, and not before this time has come."""


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
        patience: float,
        follow: bool,
    ) -> None:
        self._client = client
        self._stream = stream
        self._ref = parse_stream(stream)
        self._pages = pages
        self._bound = bound
        self._patience = patience
        self._follow = follow
        self._lineage: dict[str, tuple[str, ...]] = {}  # every shard that is known, with its parents
        self._begun: set[str] = set()
        self._finished: set[str] = set()
        self.begun = anyio.Event()
        """Set when every shard that was there has an iterator."""

    async def run(self, shards: Sequence[Shard], first: Sequence[str], start: Position) -> None:
        """Read the shards named ``first``, of all that there are, until they have ended or the bound is reached."""
        self._learn(shards)
        self._begun.update(first)
        iterators = await ask_all(first, lambda shard_id: self._iterator(shard_id, start))
        self.begun.set()
        async with self._pages, anyio.create_task_group() as tasks:
            for shard_id in first:
                tasks.start_soon(self._read, tasks, shard_id, start, iterators[shard_id])

    async def _read(self, tasks: TaskGroup, shard_id: str, start: Position, iterator: str | None = None) -> None:
        """One shard to its end, or to the bound; then its children."""
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
                position = at_timestamp(asked_at)  # what comes until a new iterator is there must not be skipped
            if len(records) < len(page.records):
                return
            iterator = page.next_iterator
            if iterator is None:
                break
            if self._is_bound_reached(lag, is_empty=not page.records):
                return
        self._finished.add(shard_id)
        if self._follow:
            await self._begin_children(tasks, shard_id, page.child_shards, TRIM_HORIZON if start == LATEST else start)

    # ---- the bound

    def _within_bound(self, records: list[RawRecord]) -> list[RawRecord]:
        until = self._bound.until
        if until is None:
            return records
        beyond = (place for place, one in enumerate(records) if one.arrived_at is not None and one.arrived_at >= until)
        return records[: next(beyond, len(records))]

    def _is_bound_reached(self, lag: float | None, *, is_empty: bool) -> bool:
        if lag != 0 and not (lag is None and is_empty):
            return False
        until = self._bound.until
        return self._bound.at_latest or (until is not None and self._client.api.service_time() >= until)

    # ---- lineage

    async def _begin_children(
        self, tasks: TaskGroup, shard_id: str, named: Sequence[ChildShard], start: Position
    ) -> None:
        """Those that wait for nobody else."""
        for child in named:
            self._lineage.setdefault(child.shard_id, child.parent_ids)
        parents = {parent for child in named for parent in child.parent_ids}
        if not named or not parents <= self._lineage.keys():  # not every emulator names them, or their parents are new
            self._learn(await patiently(lambda: self._client.list_shards(self._stream)))
        for child_id, parent_ids in list(self._lineage.items()):
            if shard_id in parent_ids and child_id not in self._begun and not any(map(self._is_awaited, parent_ids)):
                self._begun.add(child_id)
                tasks.start_soon(self._read, tasks, child_id, start)

    def _learn(self, shards: Sequence[Shard]) -> None:
        self._lineage |= {shard.shard_id: shard.parent_ids for shard in shards}

    def _is_awaited(self, shard_id: str) -> bool:
        """Whether the shard is being read, or will be because one that it came from is."""
        left, seen = [shard_id], {shard_id}
        while left:
            one = left.pop()
            if one in self._finished:
                continue
            if one in self._begun:
                return True
            older = [parent for parent in self._lineage.get(one, ()) if parent not in seen]
            seen.update(older)
            left += older
        return False

    # ---- calls

    async def _iterator(self, shard_id: str, position: Position) -> str:
        pace = ReadPace(SHARD_READ_CALLS_PER_SECOND, SHARD_READ_BYTES_PER_SECOND, _IDLE, random.Random(), _now())  # noqa: S311
        request = GetShardIterator(self._ref, shard_id, position)
        answer = await self._insist(lambda: self._client.api.get_shard_iterator(request), "GetShardIterator", pace)
        return answer.shard_iterator

    async def _next_page(self, iterator: str, pace: ReadPace) -> GetRecordsResponse | None:
        """``None``: the iterator has expired."""
        request = GetRecords(iterator, None, self._ref)
        try:
            page = await self._insist(lambda: self._client.api.get_records(request), "GetRecords", pace)
        except RequestError as error:
            if error.kind == FailureKind.EXPIRED_ITERATOR:
                return None
            raise
        size_bytes = sum(len(record.data) for record in page.records)
        behind = bool(page.millis_behind_latest) if page.millis_behind_latest is not None else bool(page.records)
        pace.handle_page(size_bytes, empty=not page.records, behind=behind, now=_now())
        return page

    async def _insist(self, call: Callable[[], Awaitable[T | Failure]], operation: str, pace: ReadPace) -> T:
        """An answer, at the pace of the shard, however often it takes."""
        give_up_at: float | None = None
        while True:
            await anyio.sleep_until(pace.next_at)
            pace.handle_sent(_now())
            answer = await call()
            if not isinstance(answer, Failure):
                return answer
            now = _now()
            give_up_at = now + self._patience if give_up_at is None else give_up_at
            pace.handle_failure(answer, now)
            if not answer.retryable or pace.next_at > give_up_at:
                raise to_error(answer, operation)


def _now() -> float:
    return anyio.current_time()
