"""Reads a stream for the open pages: its rates, its hot keys, and a sample of its records.

The pages of one stream share one reader, which starts with the first page and ends after the last.

Invariants:

- A page gets at most ``SAMPLE_MAX`` records a second. The update says how many records matched, so a sample is never
  mistaken for the whole. Each record that matches is as likely to be in the sample as any other, and the sample keeps
  the order in which the records were read: the first records of a second would often be those of one shard.
- An update contains only what has changed since the previous update of the same page, so that a stream with a thousand
  shards does not keep the page busy.
- A reader that fails is restarted after a pause that doubles, for as long as a page is open. The pages show the problem
  until the next read succeeds. The new reader starts at the newest record, so the records of the gap are not shown.
- The reader's calls count against the budget of the console, like all others.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from operator import itemgetter
from random import random
from typing import TYPE_CHECKING, Any, Final, final

import anyio

from shardline.aio.client import Client
from shardline.cli.error_messages import sole_error
from shardline.cli.retrying import with_retries
from shardline.cli.tail.page_sources import PollingSource, ShardPage
from shardline.cli.tail.shard_following import Bound, Page, ShardReading
from shardline.cli.tail.tail_command import TailRequest
from shardline.console.lineage_times import fingerprint
from shardline.console.record_views import RecordFilter, record_json
from shardline.console.shared_reader import SharedReader
from shardline.console.throttle_counts import ThrottleCounts
from shardline.console.traffic_sample import TrafficSample
from shardline.errors import ShardlineError
from shardline.model.position import LATEST, Position
from shardline.model.record import Record
from shardline.model.shard import Shard
from shardline.model.stream import parse_stream

if TYPE_CHECKING:
    from shardline.model.hashing import HashRange

SAMPLE_MAX: Final = 50
_PAGES_AHEAD: Final = 16
_GIVE_UP_AFTER: Final = 30.0
_RELIST: Final = 5
_PAUSE_FIRST: Final = 1.0
_PAUSE_MAX: Final = 30.0


@final
class Viewer:
    """One open page: its filter, and the records that it has not seen yet."""

    def __init__(self, wanted: RecordFilter, *, shard_id: str | None = None, has_traffic: bool = True) -> None:
        self._wanted = wanted
        self._shard_id = shard_id
        self.has_traffic = has_traffic
        """Whether the page shows the traffic. A tail shows only records."""
        self._sample: list[tuple[int, str, Record]] = []  # each record with its number among the records that matched
        self._matched = 0
        self.seen = 0
        """The last change of the traffic that the page has seen. The watch writes this."""

    def add(self, shard_id: str, records: list[Record]) -> None:
        if self._shard_id not in {None, shard_id}:
            return
        for record in records:
            if not self._wanted.accepts(record):
                continue
            self._matched += 1
            place = len(self._sample) if len(self._sample) < SAMPLE_MAX else int(random() * self._matched)  # noqa: S311
            if place < SAMPLE_MAX:
                self._sample[place : place + 1] = [(self._matched, shard_id, record)]

    def take(self) -> dict[str, Any]:
        """Return a sample of the records since the last call, and the number of records that matched."""
        sample, matched = sorted(self._sample, key=itemgetter(0)), self._matched
        self._sample, self._matched = [], 0
        return {"records": [record_json(record, shard_id) for _, shard_id, record in sample], "matched": matched}


@final
class _ReportingSource:
    """Reads the pages of one shard, and reports each successful read, even one without records."""

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

    def __init__(
        self,
        client: Client,
        stream: str,
        throttles: ThrottleCounts,
        *,
        start: Position = LATEST,
        calls_per_second: float = 10.0,
        on_listing: Callable[[str, Sequence[Shard]], None] | None = None,
    ) -> None:
        """Create a watch that does not read yet.

        Args:
            client: the client to read with.
            stream: the stream.
            throttles: the throttled calls of the stream.
            start: where the first reader starts.
            calls_per_second: how many calls the budget grants to readers.
            on_listing: called with the stream and its shards, whenever they were listed.
        """
        self._client = client
        self._stream = stream
        self._throttles = throttles
        self._start = start
        self._calls_per_second = calls_per_second
        self._on_listing = on_listing
        self._viewers: set[Viewer] = set()
        self._reader = SharedReader(self._keep_reading, self._start_over)
        self._sample = TrafficSample()
        self._ranges: dict[str, HashRange] = {}
        self._open: list[str] = []
        self._lineage: int | None = None
        self._pause = _PAUSE_FIRST
        self.problem: str | None = None

    @property
    def has_pages(self) -> bool:
        return self._reader.has_pages

    @asynccontextmanager
    async def viewer(
        self, wanted: RecordFilter, *, shard_id: str | None = None, has_traffic: bool = True
    ) -> AsyncGenerator[Viewer]:
        """Add a page during the block. With ``shard_id``, the page gets only the records of this shard."""
        viewer = Viewer(wanted, shard_id=shard_id, has_traffic=has_traffic)
        self._viewers.add(viewer)
        try:
            async with self._reader.page():
                yield viewer
        finally:
            self._viewers.discard(viewer)

    def _start_over(self) -> None:
        self._sample = TrafficSample()
        self._note_success()

    def update(self, viewer: Viewer) -> dict[str, Any]:
        """Return the next update of a page."""
        update = viewer.take() | {"open": len(self._open), "problem": self._reader.problem or self.problem}
        if not viewer.has_traffic:
            return update
        now = self._client.api.service_time()
        traffic, viewer.seen = self._sample.to_json(self._ranges, now, viewer.seen), self._sample.changes
        return update | {
            "traffic": traffic,
            "throttles": self._throttles.to_json(now),
            "lineage": self._lineage,
            "read_every": round(max(1.0, len(self._open) / self._calls_per_second), 1),
        }

    async def _keep_reading(self) -> None:
        start = self._start
        while True:
            await self._read(start)
            start = LATEST
            pause, self._pause = self._pause, min(2 * self._pause, _PAUSE_MAX)
            await anyio.sleep(pause)

    def _note_success(self) -> None:
        self.problem, self._pause = None, _PAUSE_FIRST

    async def _read(self, start: Position) -> None:
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
            first = TailRequest(self._stream, start, Bound(), (), _GIVE_UP_AFTER, None).first_of(shards)
            # The reading closes ``send`` at its end. If the reading is cancelled earlier, this block closes ``send``.
            async with send, receive, anyio.create_task_group() as tasks:
                tasks.start_soon(reading.run, shards, first, start)
                tasks.start_soon(self._relist)
                async for page in receive:
                    if page.shard_id not in self._ranges:  # a reshard has created the shard
                        await self._list_shards()
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
        self._lineage = fingerprint(shards)  # a page that shows another lineage asks for this one
        if self._on_listing is not None:
            self._on_listing(self._stream, shards)
        return shards
