"""Hands records to a task that iterates: one by one, or in batches.

Invariants (C5 is defined in docs/guarantees.md):

- C5: asking for the next record says that the last one is done; nothing else does, except a clean close.
- A record costs no task switch, no lock and no acknowledgement of its own. An iterator asks its host once per page.
- The event loop gets a turn every ``SLICE`` seconds, however fast user code asks: the renewal of leases depends on it.
- A wait that was cancelled or interrupted has taken nothing and lost nothing: the cursor stays with the taker.
- Once a lease is lost, or another worker asked for it, no more of its page is handed out.
"""

from typing import final

import anyio.lowlevel

from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.consumer_session import ConsumerSession
from shardline.aio.loop.boot_clock import boot_time
from shardline.core.consumer.handout import Iteration
from shardline.model.record import Record


@final
class RecordIterator:
    """Records one by one."""

    __slots__ = ("__weakref__", "_clock", "_cursor", "_session", "_taker")

    def __init__(self, session: ConsumerSession, taker: Iteration) -> None:
        self._clock = boot_time
        self._session = session
        self._taker = taker
        self._cursor = taker.cursor
        session.attach(self)

    def __aiter__(self) -> "RecordIterator":
        return self

    async def __anext__(self) -> Record:
        cursor = self._cursor
        place = cursor.place
        if place < cursor.end and self._clock() < cursor.slice_end:
            record = cursor.records[place]
            cursor.place = place + 1  # last: the record is taken
            return record
        session, taker = self._session, self._taker
        session.check_loop()
        session.check_current(taker)
        if cursor.is_open:
            await anyio.lowlevel.checkpoint()
        while True:
            cursor = self._cursor = taker.cursor
            if cursor.is_open:
                place = session.begin_slice(cursor)
                record = cursor.records[place]
                cursor.place = place + 1  # last
                return record
            await session.ask(taker)
            if taker.is_over:
                session.check_current(taker)
                session.check_failure()
                raise StopAsyncIteration


@final
class BatchIterator:
    """Many records of one shard at once."""

    __slots__ = ("__weakref__", "_session", "_taker")

    def __init__(self, session: ConsumerSession, taker: Iteration) -> None:
        self._session = session
        self._taker = taker
        session.attach(self)

    def __aiter__(self) -> "BatchIterator":
        return self

    async def __anext__(self) -> Batch:
        session, taker = self._session, self._taker
        session.check_loop()
        session.check_current(taker)
        if taker.cursor.is_open:
            await anyio.lowlevel.checkpoint()  # it came for a wait that was interrupted
        while True:
            cursor = taker.cursor
            if cursor.is_open:
                batch = session.make_batch(cursor)
                count = len(batch.records)
                cursor.place = count  # last
                return batch
            await session.ask(taker)
            if taker.is_over:
                session.check_current(taker)
                session.check_failure()
                raise StopAsyncIteration
