"""Reads a stream for the open pages: its rates, its hot keys, and a sample of its records.

The pages of one stream share one reader, which starts with the first page and ends after the last.

Invariants:

- A page gets at most ``SAMPLE_MAX`` records a second. The update says how many matched, so a sample is never mistaken
  for the whole.
- A reader that fails is restarted after a pause that doubles, for as long as a page is open. The pages show the problem
  until the next read succeeds. The new reader starts at the newest record, so the records of the gap are not shown.
- The reader's calls count against the budget of the console, like all others.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, final

import anyio

from shardline.aio.client import Client
from shardline.cli.error_messages import sole_error
from shardline.cli.retrying import with_retries
from shardline.cli.tail.page_sources import PollingSource, ShardPage
from shardline.cli.tail.shard_following import Bound, Page, ShardReading
from shardline.console.record_views import RecordFilter, record_json
from shardline.console.traffic_sample import TrafficSample
from shardline.errors import ShardlineError
from shardline.model.position import LATEST
from shardline.model.record import Record
from shardline.model.shard import Shard
from shardline.model.stream import parse_stream

if TYPE_CHECKING:
    from shardline.model.hashing import HashRange

SAMPLE_MAX: Final = 50
_PAGES_AHEAD: Final = 16
_GIVE_UP_AFTER: Final = 30.0
_RELIST: Final = 10
_PAUSE_FIRST: Final = 1.0
_PAUSE_MAX: Final = 30.0


@final
class Viewer:
    """One open page: its filter, and the records that it has not seen yet."""

    def __init__(self, wanted: RecordFilter) -> None:
        self._wanted = wanted
        self._sample: list[tuple[str, Record]] = []
        self._matched = 0

    def add(self, shard_id: str, records: list[Record]) -> None:
        matching = [record for record in records if self._wanted.accepts(record)]
        self._matched += len(matching)
        room = SAMPLE_MAX - len(self._sample)
        self._sample += [(shard_id, record) for record in matching[: max(0, room)]]

    def take(self) -> dict[str, Any]:
        """Return the records since the last call, and how many matched."""
        sample, matched = self._sample, self._matched
        self._sample, self._matched = [], 0
        return {"records": [record_json(record, shard_id) for shard_id, record in sample], "matched": matched}


@final
class _ReportingSource:
    """Reads the pages of one shard, and reports each successful read, also one without records."""

    def __init__(self, source: PollingSource, on_success: Callable[[], None]) -> None:
        self._source = source
        self._on_success = on_success

    async def open(self) -> None:
        await self._source.open()

    async def next_page(self) -> ShardPage:
        page = await self._source.next_page()
        self._on_success()
        return page

    async def close(self) -> None:
        await self._source.close()


@final
class StreamWatch:
    """Reads one stream while pages show it."""

    def __init__(self, client: Client, stream: str) -> None:
        self._client = client
        self._stream = stream
        self._viewers: set[Viewer] = set()
        self._reader: asyncio.Task[None] | None = None
        self._sample = TrafficSample()
        self._ranges: dict[str, HashRange] = {}
        self._open: list[str] = []
        self._pause = _PAUSE_FIRST
        self.problem: str | None = None

    @asynccontextmanager
    async def viewer(self, wanted: RecordFilter) -> AsyncGenerator[Viewer]:
        """Add a page for the length of the block."""
        viewer = Viewer(wanted)
        self._viewers.add(viewer)
        if self._reader is None:
            self._reader = asyncio.create_task(self._keep_reading())
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                await self._stop_reading()

    async def _stop_reading(self) -> None:
        """Stop the reader. A page that opens while the reader ends gets a new one, and starts afresh."""
        reader, self._reader, self._sample = self._reader, None, TrafficSample()
        self._note_success()
        if reader is not None:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader

    def update(self, viewer: Viewer) -> dict[str, Any]:
        """Return the next update of a page."""
        return viewer.take() | {
            "traffic": self._sample.to_json(self._ranges, time.time()),
            "open": self._open,
            "problem": self.problem,
        }

    async def _keep_reading(self) -> None:
        while True:
            await self._read()
            pause, self._pause = self._pause, min(2 * self._pause, _PAUSE_MAX)
            await anyio.sleep(pause)

    def _note_success(self) -> None:
        self.problem, self._pause = None, _PAUSE_FIRST

    async def _read(self) -> None:
        try:
            shards = await self._list_shards()
            send, receive = anyio.create_memory_object_stream[Page](_PAGES_AHEAD)
            ref = parse_stream(self._stream)
            reading = ShardReading(
                self._client,
                self._stream,
                send,
                make_source=lambda shard_id, start: _ReportingSource(
                    PollingSource(self._client, ref, shard_id, start, _GIVE_UP_AFTER), self._note_success
                ),
                bound=Bound(),
                follow=True,
            )
            first = [shard.shard_id for shard in shards if shard.is_open]
            # The reading closes ``send`` at its end; this block closes it if the reading is cancelled before.
            async with send, receive, anyio.create_task_group() as tasks:
                tasks.start_soon(reading.run, shards, first, LATEST)
                tasks.start_soon(self._relist)
                async for page in receive:
                    records = self._sample.add(page.shard_id, page.records)
                    for viewer in self._viewers:
                        viewer.add(page.shard_id, records)
                tasks.cancel_scope.cancel()
        except* ShardlineError as errors:
            self.problem = str(sole_error(errors))

    async def _relist(self) -> None:
        while True:
            await anyio.sleep(_RELIST)
            await self._list_shards()

    async def _list_shards(self) -> list[Shard]:
        shards = await with_retries(lambda: self._client.list_shards(self._stream))
        self._ranges = {shard.shard_id: shard.hash_range for shard in shards}
        self._open = [shard.shard_id for shard in shards if shard.is_open]
        return shards
