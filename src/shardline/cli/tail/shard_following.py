"""Reads the shards of a stream, and follows their children after a reshard.

This reader is separate from the consumer because it stores nothing: no group, no leases, no checkpoints. One task per
shard reads pages from its source (``page_sources``) and sends them to a channel.

Invariants:

- The pages of a shard come in order. A child shard is read after all of its parents that are being read have ended.
  If its parents were read from LATEST, the child is read from its beginning.
- Each of the first shards gets its iterator or its subscription before any shard is read, so that LATEST means the
  same time in all shards.
- Memory is bounded: a page is requested when there is room for it.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from shardline.aio.client import Client
from shardline.cli.retrying import call_for_each, with_retries
from shardline.cli.tail.page_sources import PageSource
from shardline.codec.shapes import RawRecord
from shardline.core.consumer.handling_lag import service_now
from shardline.model.position import LATEST, TRIM_HORIZON, Position
from shardline.model.shard import ChildShard, Shard


@final
class Page(NamedTuple):
    """Records of one shard that arrived in one page."""

    shard_id: str
    records: list[RawRecord]
    read_at: float
    """When the page arrived, by the service's clock, in seconds since 1970."""


@final
class Bound(NamedTuple):
    """The place or the time at which reading stops."""

    at_latest: bool = False
    """Whether to stop reading a shard at its newest record."""
    until: float | None = None
    """Stop reading a shard before the first record that arrived at or after this time. Once this time has passed,
    also stop at the shard's newest record.
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
        make_source: Callable[[str, Position], PageSource],
        bound: Bound,
        follow: bool,
    ) -> None:
        self._client = client
        self._stream = stream
        self._pages = pages
        self._make_source = make_source
        self._bound = bound
        self._follow = follow
        self._parents: dict[str, tuple[str, ...]] = {}  # the parents of every known shard
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
        sources = {shard_id: self._make_source(shard_id, start) for shard_id in first}
        try:
            await call_for_each(first, lambda shard_id: sources[shard_id].open())
            async with self._pages, anyio.create_task_group() as tasks:
                for shard_id in first:
                    tasks.start_soon(self._read, tasks, shard_id, start, sources[shard_id])
        finally:
            with anyio.CancelScope(shield=True):
                for source in sources.values():
                    await source.close()

    async def _read(self, tasks: TaskGroup, shard_id: str, start: Position, source: PageSource | None = None) -> None:
        """Read one shard to its end or to the bound; at its end, start its children."""
        source = self._make_source(shard_id, start) if source is None else source
        try:
            children = await self._read_pages(shard_id, source)
        finally:
            with anyio.CancelScope(shield=True):
                await source.close()
        if children is not None:
            self._finished.add(shard_id)
            if self._follow:
                await self._start_children(tasks, shard_id, children, TRIM_HORIZON if start == LATEST else start)

    async def _read_pages(self, shard_id: str, source: PageSource) -> Sequence[ChildShard] | None:
        """Read one shard to its end and return its children, or return ``None`` if the bound was reached first."""
        while True:
            page = await source.next_page()
            records = self._within_bound(page.records)
            if records:
                read_at = service_now(self._client.api.service_time(), time.time())
                await self._pages.send(Page(shard_id, records, read_at))
            if len(records) < len(page.records):
                return None
            if page.is_last:
                return page.child_shards
            if self._is_bound_reached(page.lag, is_empty=not page.records):
                return None

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
