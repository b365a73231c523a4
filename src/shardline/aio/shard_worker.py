"""How is one shard read, and what of it waits for the user?

One task a shard drives its ``PollingReader``: it sends, answers, sleeps until the reader's next deadline, and puts what
came into a queue. What the user has of the shard is its ``in_hand``.

Invariants:

- SW1: every request is answered to the reader exactly once, unless the task was cancelled: then the reader is stopped.
- SW2: a slow, idle or failing shard waits in its own task: no other is delayed.
- SW3: once it is told to stop nothing more of it is handed out: what was read ahead is dropped, and comes again.
- SW4: what is taken stays here until the user has nothing more of it. How far was taken is one value: an interrupt
  finds it before or after, and what goes back is not moved.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

import anyio
import anyio.lowlevel

from shardline.aio.bell import Bell
from shardline.codec.shapes import GetRecordsResponse, GetShardIteratorResponse
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.handling import HandlingState
from shardline.core.consumer.polling_reader import PollingReader
from shardline.core.consumer.reader import Page, ReaderEvent, ReaderState
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

    def look(self) -> HandlingState:
        """What the user's code has at the moment. Changes nothing."""
        ...


Place: TypeAlias = tuple[int, int]
"""The number of a page, and how many of its records come before."""


@final
class Taken(NamedTuple):
    """Records on their way to the user."""

    records: list[Record]
    is_last: bool
    """Whether nothing of the shard follows."""
    child_shards: tuple[ChildShard, ...]
    begin: Place
    end: Place
    """Where the next one begins."""


class _Queued(NamedTuple):
    number: int
    page: Page


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
        self.in_hand: InHand | None = None
        self.is_stopping = False
        """Whether nothing more of it is to be handed out (SW3)."""
        self.is_over = False
        """Whether the lease is gone."""
        self.has_ended = False
        """Whether the end of the shard was handed out."""
        self._reached_tip = False
        self.oldest_at: Instant = NEVER
        """Since when the first record that waits does."""
        self.news = Bell()
        """Rung when there are pages, or when it stops."""
        self.handling: anyio.CancelScope | None = None
        """Where the user's handler for this shard runs."""
        self._pages: deque[_Queued] = deque()
        self._read = 0  # the number of the next page
        self._next: Place = (0, 0)  # what to take next (SW4)
        self._clock = clock
        self._deserializer = deserializer
        self._reading = anyio.CancelScope()
        self._room = Bell()

    # ---- what is so

    @property
    def has_iterator(self) -> bool:
        return self.reader.state in _WITH_ITERATOR or self.is_stopping

    @property
    def is_caught_up(self) -> bool:
        """Whether it was once read up to its newest record, and all of that can be handed out."""
        return self._reached_tip and not self.reader.has_unopened

    @property
    def has_pages(self) -> bool:
        """Whether there is something to take."""
        return bool(self._pages) and self._pages[-1].number >= self._next[0]

    @property
    def has_last_page(self) -> bool:
        """Whether all that is left of the shard is here."""
        return bool(self._pages) and self._pages[-1].page.is_last

    @property
    def queued(self) -> int:
        """How many records wait."""
        first, offset = self._next
        return max(0, sum(len(page.records) for number, page in self._pages if number >= first) - offset)

    @property
    def next_record(self) -> Record | None:
        """The first record that waits."""
        records = self.peek(1).records if self.has_pages else ()
        return records[0] if records else None

    @property
    def first_taken(self) -> Page | None:
        """The oldest page, if all of it was taken."""
        return self._pages[0].page if self._pages and self._pages[0].number < self._next[0] else None

    # ---- commands

    def wake(self) -> None:
        """There is room for a page."""
        self._room.ring()

    def stop(self) -> None:
        """Read no more, and hand out no more (SW3)."""
        self.is_stopping = True
        self.reader.stop()
        self._reading.cancel()
        self._pages.clear()
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

    def peek(self, limit: int | None = None) -> Taken:
        """The next records: at most ``limit``, ``None``: what is left of one page. They are not taken yet."""
        first, offset = begin = end = self._next
        parts: list[list[Record]] = []
        count, last = 0, None
        for number, page in self._pages:
            if number < first:
                continue
            left = len(page.records) - offset
            limit = left if limit is None else limit
            if left > limit - count:
                end = (number, offset + limit - count)
                parts.append(page.records[offset : end[1]])
                break
            parts.append(page.records[offset:] if offset else page.records)
            count += left
            end, offset = (number + 1, 0), 0
            last = page if page.is_last else None
        records = parts[0] if not any(parts[1:]) else [record for part in parts for record in part]
        return Taken(records, last is not None, () if last is None else last.child_shards, begin, end)

    def place_after(self, taken: Taken, count: int) -> Place:
        """Where the next one begins, if so many of them are taken."""
        if count >= len(taken.records):
            return taken.end
        first, offset = taken.begin
        for number, page in self._pages:
            if number >= first:
                if count < len(page.records) - offset:
                    return number, offset + count
                count -= len(page.records) - offset
                offset = 0
        return taken.end

    def take_to(self, place: Place) -> None:
        """All before it is taken, and nothing else (SW4)."""
        self._next = place

    def drop_first(self) -> None:
        """The user has nothing more of the oldest page."""
        self._pages.popleft()

    # ---- the task

    async def run(self, api: KinesisApi, told: WorkerEvents) -> None:
        """Read until the shard ends or it is told to stop."""
        reader, clock = self.reader, self._clock
        with self._reading:
            while not reader.is_over:
                now = clock()
                request = reader.poll_request(now)
                if request is not None:
                    answer = await self._send(api, request)
                    self._answer(answer)
                    told.handle_read(reader.take_events())
                else:
                    await self._room.wait(max(0.0, reader.next_deadline() - now))
                while pages := reader.take_pages():
                    self._keep(pages)
                    told.handle_pages(self)
                    if reader.has_unopened:
                        await anyio.lowlevel.checkpoint()  # opening a slice takes its time
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
                self._reached_tip = True

    def _keep(self, pages: list[Page]) -> None:
        for page in pages:
            if page.records:
                page.records[0].origin.deserializer = self._deserializer  # one origin a page
        if not self.has_pages:
            self.oldest_at = self._clock()
        for page in pages:
            self._pages.append(_Queued(self._read, page))
            self._read += 1
        self.news.ring()
