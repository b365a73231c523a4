"""How is one shard read, and what of it waits for the user?

One task a shard drives its ``PollingReader``: it sends, answers, sleeps until the reader's next deadline, and puts what
came into ``pages``. What the user has of the shard is its ``in_hand``.

Invariants:

- SW1: every request is answered to the reader exactly once, unless the task was cancelled: then the reader is stopped.
- SW2: a slow, idle or failing shard waits in its own task: no other is delayed.
- SW3: once it is told to stop nothing more of it is handed out: what was read ahead is dropped, and comes again.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, final

import anyio

from shardline.aio.bell import Bell
from shardline.codec.shapes import GetRecordsResponse, GetShardIteratorResponse
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.polling_reader import Page, PollingReader, ReaderEvent, ReaderState
from shardline.core.failures import Failure, FailureKind
from shardline.core.requests import GetRecords, GetShardIterator
from shardline.model.record import Record
from shardline.model.shard import ChildShard
from shardline.ports import KinesisApi

_log: Final = logging.getLogger("shardline.consumer")
_WITH_ITERATOR: Final = frozenset({ReaderState.READY, ReaderState.READING, ReaderState.ENDED})


class InHand(Protocol):
    """What the user holds of a shard."""

    def pull(self) -> None:
        """Acknowledge what is done so far."""
        ...

    def truncate(self) -> None:
        """Hand out no more of it."""
        ...

    def release(self, *, done: bool) -> None:
        """The user has it no more: all that was handed out is done, or comes again."""
        ...


@final
class Taken(NamedTuple):
    """Records on their way to the user."""

    records: list[Record]
    held_bytes: int
    is_last: bool
    """Whether nothing of the shard follows."""
    child_shards: tuple[ChildShard, ...]


class WorkerEvents(Protocol):
    """Who hears of what a worker does."""

    def handle_pages(self, worker: "ShardWorker") -> None: ...
    def handle_read(self, events: list[ReaderEvent]) -> None: ...
    def handle_reader_over(self, worker: "ShardWorker") -> None: ...


@final
class ShardWorker:
    """One held lease, at work."""

    def __init__(
        self,
        reader: PollingReader,
        deaggregator: Deaggregator,
        grant: Grant,
        clock: Callable[[], Instant],
        deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        self.reader = reader
        self.deaggregator = deaggregator
        self.shard_id = reader.shard_id
        self.grant = grant
        self.pages: deque[Page] = deque()
        self.in_hand: InHand | None = None
        self.is_stopping = False
        """Whether nothing more of it is to be handed out (SW3)."""
        self.is_over = False
        """Whether the lease is gone."""
        self.has_ended = False
        """Whether the end of the shard was handed out."""
        self.is_caught_up = False
        """Whether it was once read up to its newest record."""
        self.oldest_at: Instant = NEVER
        """Since when the first record of ``pages`` waits."""
        self.news = Bell()
        """Rung when there are pages, or when it stops."""
        self.handling: anyio.CancelScope | None = None
        """Where the user's handler for this shard runs."""
        self._delivered = (-1, 0)  # number and sub-sequence of the last that the user was handed
        self._offset = 0  # in the first page: what of it was taken
        self._clock = clock
        self._deserializer = deserializer
        self._reading = anyio.CancelScope()
        self._room = Bell()

    # ---- what is so

    @property
    def has_iterator(self) -> bool:
        return self.reader.state in _WITH_ITERATOR or self.is_stopping

    @property
    def queued(self) -> int:
        """How many records wait."""
        return sum(len(page.records) for page in self.pages) - self._offset

    # ---- commands

    def wake(self) -> None:
        """There is room for a page."""
        self._room.ring()

    def stop(self) -> None:
        """Read no more, and hand out no more (SW3)."""
        self.is_stopping = True
        self.reader.stop()
        self._reading.cancel()
        self.pages.clear()
        self._offset = 0
        if self.in_hand is not None:
            self.in_hand.truncate()
        self.news.ring()

    def cancel(self) -> None:
        """The user's code for this shard has to end."""
        self.is_over = True
        self.stop()
        self.in_hand = None
        if self.handling is not None:
            self.handling.cancel()

    def take(self, limit: int | None = None) -> Taken:
        """The next records: at most ``limit``, ``None``: what is left of one page."""
        page = self.pages[0]
        if limit is None:
            limit = len(page.records) - self._offset
        records: list[Record] = []
        held_bytes = 0
        while True:
            page = self.pages[0]
            left = len(page.records) - self._offset
            wanted = limit - len(records)
            if left > wanted:
                records += page.records[self._offset : self._offset + wanted]
                self._offset += wanted
                return Taken(records, held_bytes, is_last=False, child_shards=())
            part = page.records[self._offset :] if self._offset else page.records
            records = records + part if records else part
            held_bytes += page.held_bytes
            self.pages.popleft()
            self._offset = 0
            if page.is_last or not self.pages:
                return Taken(records, held_bytes, page.is_last, page.child_shards)

    def put_back(self, taken: Taken) -> None:
        """What was taken, and not handed out, is taken again first."""
        if self._offset:
            first = self.pages.popleft()
            self.pages.appendleft(first._replace(records=first.records[self._offset :]))
            self._offset = 0
        page = Page(self.shard_id, taken.records, taken.held_bytes, self.reader.lag, taken.is_last, taken.child_shards)
        self.pages.appendleft(page)

    def not_delivered(self, records: Sequence[Record]) -> list[Record]:
        """Those that the user is handed for the first time."""
        new = [record for record in records if (record.order.number, record.sub_sequence) > self._delivered]
        if new:
            self._delivered = (new[-1].order.number, new[-1].sub_sequence)
        return new

    # ---- the task

    async def run(self, api: KinesisApi, told: WorkerEvents) -> None:
        """Read until the shard ends or it is told to stop."""
        reader, clock = self.reader, self._clock
        with self._reading:
            while not reader.is_over:
                now = clock()
                request = reader.poll_request(now)
                if request is None:
                    await self._room.wait(max(0.0, reader.next_deadline() - now))
                    continue
                answer = await self._send(api, request)
                self._answer(answer)
                told.handle_read(reader.take_events())
                pages = reader.take_pages()
                if pages:
                    self._keep(pages)
                    told.handle_pages(self)
        if not self.is_stopping:
            told.handle_reader_over(self)

    async def _send(
        self, api: KinesisApi, request: GetShardIterator | GetRecords
    ) -> GetShardIteratorResponse | GetRecordsResponse | Failure:
        try:
            if isinstance(request, GetRecords):
                return await api.get_records(request)
            return await api.get_shard_iterator(request)
        except Exception as error:  # noqa: BLE001 - an adapter's bug: expected failures are values
            _log.exception("a request broke")
            return Failure(FailureKind.TRANSIENT, "Internal", f"{type(error).__name__}: {error}")

    def _answer(self, answer: GetShardIteratorResponse | GetRecordsResponse | Failure) -> None:
        reader, now = self.reader, self._clock()
        if isinstance(answer, Failure):
            reader.handle_failure(answer, now)
        elif isinstance(answer, GetShardIteratorResponse):
            reader.handle_iterator(answer, now)
        else:
            reader.handle_page(answer, now)
            if reader.lag == 0 or (reader.lag is None and not answer.records):
                self.is_caught_up = True

    def _keep(self, pages: list[Page]) -> None:
        for page in pages:
            if page.records:
                page.records[0].origin.deserializer = self._deserializer  # one origin a page
        if not self.pages:
            self.oldest_at = self._clock()
        self.pages.extend(pages)
        self.news.ring()
