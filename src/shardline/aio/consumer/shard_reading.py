"""Reads one shard: sends the requests of its reader, passes on the responses, and brings the pages to the hand-out.

Invariants:

- The reader gets exactly one response or failure per request, unless the task is cancelled, which stops the reader.
- A slow, idle or failing shard waits in its own task, so it delays no other shard.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, final

import anyio
import anyio.lowlevel

from shardline.aio.loop.notifier import Notifier
from shardline.codec.shapes import GetRecordsResponse, GetShardIteratorResponse
from shardline.core.clock import Instant
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.held_shard import HeldShard
from shardline.core.consumer.polling_reader import PollingReader
from shardline.core.consumer.reader import Page, ReaderEvent
from shardline.core.failures import Failure, FailureKind
from shardline.core.requests import GetRecords, GetShardIterator
from shardline.ports import KinesisApi

_log: Final = logging.getLogger("shardline.consumer")


class ReadingEvents(Protocol):
    """The inputs of the host: pages, events, and the end of a reader."""

    def handle_pages(self, shard: HeldShard, pages: list[Page]) -> None: ...
    def handle_read(self, events: list[ReaderEvent]) -> None: ...
    def handle_reader_over(self, shard: HeldShard) -> None: ...


@final
class ShardReading:
    """The task that drives one ``PollingReader``."""

    def __init__(
        self,
        shard: HeldShard,
        reader: PollingReader,
        deaggregator: Deaggregator,
        clock: Callable[[], Instant],
        deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        self.shard = shard
        self.deaggregator = deaggregator
        self._reader = reader
        self._clock = clock
        self._deserializer = deserializer
        self._scope = anyio.CancelScope()
        self._room_freed = Notifier()

    def wake(self) -> None:
        """Notify the task that there is room for a page."""
        self._room_freed.notify()

    def stop(self) -> None:
        """Cancel the task, even in the middle of a request."""
        self._scope.cancel()

    async def run(self, api: KinesisApi, host: ReadingEvents) -> None:
        """Read until the shard ends or the reader is stopped."""
        reader, clock = self._reader, self._clock
        with self._scope:
            while not reader.is_over:
                now = clock()
                request = reader.poll_request(now)
                if request is not None:
                    self._handle_response(await self._send(api, request))
                    host.handle_read(reader.take_events())
                else:
                    await self._room_freed.wait(max(0.0, reader.next_deadline() - now))
                while pages := reader.take_pages():
                    for page in pages:
                        if page.records:  # all records of a page share one origin
                            page.records[0].origin.deserializer = self._deserializer
                    host.handle_pages(self.shard, pages)
                    if reader.has_unopened:
                        await anyio.lowlevel.checkpoint()  # opening aggregates takes CPU time: let other tasks run
        if not self.shard.is_stopping:
            host.handle_reader_over(self.shard)

    async def _send(
        self, api: KinesisApi, request: GetShardIterator | GetRecords
    ) -> GetShardIteratorResponse | GetRecordsResponse | Failure:
        try:
            if isinstance(request, GetRecords):
                return await api.get_records(request)
            return await api.get_shard_iterator(request)
        except Exception as error:  # noqa: BLE001 - a bug in an adapter: expected failures are values
            _log.exception("internal error while sending a request")
            return Failure(FailureKind.TRANSIENT, "Internal", f"{type(error).__name__}: {error}")

    def _handle_response(self, response: GetShardIteratorResponse | GetRecordsResponse | Failure) -> None:
        reader, now = self._reader, self._clock()
        if isinstance(response, Failure):
            reader.handle_failure(response, now)
        elif isinstance(response, GetShardIteratorResponse):
            reader.handle_iterator(response, now)
        else:
            reader.handle_page(response, now)
