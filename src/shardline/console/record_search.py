"""Searches a stream for records, a part at a time.

A search reads one shard, or the shards that held a key, oldest first, or a part of each shard. It stops after ``PAGES``
pages of records, and reads on when the user asks.

Invariants:

- Reading on continues after the last record that was read: no record is read twice, and none is left out.
- The records of one shard come in order, and so do the records with one key: a shard is read only after its parents.
- Memory is bounded: a search keeps at most the records of one page, and at most ``SEARCHES`` searches are kept. The
  search that was used least recently is forgotten first.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from functools import partial
from math import ceil
from typing import Any, Final, final

from shardline.aio.client import Client
from shardline.cli.retrying import with_retries
from shardline.cli.time_arguments import shown_time
from shardline.codec.raw_records import deaggregate
from shardline.codec.shapes import GetRecordsResponse
from shardline.console.record_views import RecordFilter, record_json
from shardline.errors import RequestError, UsageError
from shardline.model.position import Position, after_sequence_number
from shardline.model.record import Record

PAGES: Final = 20
SEARCHES: Final = 16
_EXPIRED: Final = "expired-iterator"


@final
class _ShardReading:
    """Reads the pages of one shard, and knows where to continue."""

    def __init__(self, client: Client, stream: str, shard_id: str, position: Position) -> None:
        self._client = client
        self._stream = stream
        self.shard_id = shard_id
        self._position = position
        self._iterator: str | None = None
        self.is_at_end = False

    async def next_page(self) -> GetRecordsResponse:
        """Return the next page. An iterator is valid for only five minutes, but the user may read on later."""
        try:
            page = await self._read(self._iterator or await self._new_iterator())
        except RequestError as error:
            if error.kind != _EXPIRED:
                raise
            page = await self._read(await self._new_iterator())
        self._iterator = page.next_iterator
        if page.records:
            self._position = after_sequence_number(page.records[-1].sequence_number)
        self.is_at_end = page.next_iterator is None or not page.millis_behind_latest
        return page

    async def _new_iterator(self) -> str:
        return await with_retries(partial(self._client.get_shard_iterator, self._stream, self.shard_id, self._position))

    async def _read(self, iterator: str) -> GetRecordsResponse:
        return await with_retries(partial(self._client.get_records, iterator))


@final
class RecordSearch:
    """One search, which may be continued."""

    def __init__(
        self,
        client: Client,
        stream: str,
        places: Iterable[tuple[str, Position]],
        wanted: RecordFilter,
        *,
        is_in_order: bool,
        is_whole: bool,
    ) -> None:
        """Create a search that has not read anything.

        Args:
            client: the client to read with.
            stream: the stream.
            places: the shards to read, each with the position to read it from.
            wanted: the filter that selects the records to return.
            is_in_order: whether each shard is read to its end before the next shard.
            is_whole: whether the records are returned with all of their data.
        """
        self._readings = deque(_ShardReading(client, stream, shard_id, position) for shard_id, position in places)
        self._wanted = wanted
        self._is_in_order = is_in_order
        self._is_whole = is_whole
        self._left: list[tuple[str, Record]] = []
        self._read_to: float | None = None

    async def read_on(self, limit: int) -> dict[str, Any]:
        """Read up to ``PAGES`` pages, and return at most ``limit`` records as a JSON object."""
        found, self._left = self._left, []
        seen: list[str] = []
        pages, read, in_round = 0, 0, len(self._readings)
        while self._readings and in_round and pages < PAGES and len(found) < limit:
            reading = self._readings[0]
            share = PAGES - pages if self._is_in_order else ceil((PAGES - pages) / in_round)
            in_round -= 1
            seen.append(reading.shard_id)
            is_done = False
            while not is_done and share and len(found) < limit:
                page = await reading.next_page()
                pages, share = pages + 1, share - 1
                is_done, count = self._add(reading, page, found)
                read += count
            self._readings.popleft()
            if not is_done and self._is_in_order:
                self._readings.appendleft(reading)
                break  # the next shard has later records with the key
            if not is_done:
                self._readings.append(reading)
        found, self._left = found[:limit], found[limit:]
        return {
            "shards": seen,
            "read": read,
            "read_to": shown_time(self._read_to) if self._is_in_order and self._read_to is not None else None,
            "is_end": not self._readings and not self._left,
            "records": [record_json(record, shard_id, is_whole=self._is_whole) for shard_id, record in found],
        }

    def _add(
        self, reading: _ShardReading, page: GetRecordsResponse, found: list[tuple[str, Record]]
    ) -> tuple[bool, int]:
        """Add the matching records of a page. Return whether the shard was read to its end, and how many records were
        read.
        """
        records = deaggregate(page)
        found += [(reading.shard_id, record) for record in records if self._wanted.accepts(record)]
        if records:
            self._read_to = records[-1].arrived_at
        return reading.is_at_end or any(self._wanted.is_past(record) for record in records[-1:]), len(records)


@final
class OpenSearches:
    """The searches that may be continued, by their names."""

    def __init__(self) -> None:
        self._searches: OrderedDict[str, RecordSearch] = OrderedDict()
        self._count = 0

    async def read_on(self, search: RecordSearch, limit: int) -> dict[str, Any]:
        """Continue a search, and keep it under a new name (``next``) unless it is at its end."""
        found = await search.read_on(limit)
        if found["is_end"]:
            return found | {"next": None}
        self._count += 1
        self._searches[str(self._count)] = search
        while len(self._searches) > SEARCHES:
            self._searches.popitem(last=False)
        return found | {"next": str(self._count)}

    def take(self, name: str) -> RecordSearch:
        """Return the search with this name, which can be taken only once: two requests must not share a search.

        Raises:
            UsageError: there is no such search.
        """
        search = self._searches.pop(name, None)
        if search is None:
            raise UsageError("this search cannot be continued any more: find again")
        return search
