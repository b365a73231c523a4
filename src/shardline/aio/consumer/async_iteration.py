"""The async iterators over records and over batches.

Invariants (C5 is defined in docs/guarantees.md):

- C5: a record is done when user code requests the next one or closes the consumer cleanly, and not before.
- A record costs no task switch, no lock and no acknowledgement of its own. An iterator asks the host once per page.
- The event loop runs other tasks every ``SLICE`` seconds, however fast user code iterates. Lease renewal depends on
  this.
- A wait that was cancelled or interrupted has neither taken nor lost a record: the cursor stays with the taker.
- Once a lease is lost, or another worker has asked for it, the rest of the page that was read under it is not handed
  out.
"""

from typing import Generic, Self, TypeVar, final

import anyio.lowlevel

from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.consumer_session import ConsumerSession
from shardline.aio.consumer.read_chain import ReadChain
from shardline.aio.loop.boot_clock import boot_time
from shardline.core.consumer.handout import Iteration
from shardline.model.record import Record, ValueT_co


@final
class RecordIterator(Generic[ValueT_co]):
    """Iterates over the records, one by one."""

    __slots__ = ("__weakref__", "_clock", "_cursor", "_session", "_taker")

    def __init__(self, session: ConsumerSession, taker: Iteration) -> None:
        self._clock = boot_time
        self._session = session
        self._taker = taker
        self._cursor = taker.cursor
        session.attach(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record[ValueT_co]:
        cursor = self._cursor
        place = cursor.place
        if place < cursor.end and self._clock() < cursor.slice_end:
            record = cursor.records[place]
            cursor.place = place + 1  # the last step: from here on the record counts as taken
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
                cursor.place = place + 1  # the last step: from here on the record counts as taken
                return record
            await session.ask(taker)
            if taker.is_over:
                session.check_current(taker)
                session.check_failure()
                raise StopAsyncIteration


@final
class BatchIterator(Generic[ValueT_co]):
    """Iterates over batches. All records of a batch are from one shard."""

    __slots__ = ("__weakref__", "_session", "_taker")

    def __init__(self, session: ConsumerSession, taker: Iteration) -> None:
        self._session = session
        self._taker = taker
        session.attach(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch[ValueT_co]:
        session, taker = self._session, self._taker
        session.check_loop()
        session.check_current(taker)
        if taker.cursor.is_open:
            await anyio.lowlevel.checkpoint()  # the cursor is the answer to an earlier, interrupted wait
        while True:
            cursor = taker.cursor
            if cursor.is_open:
                batch = session.make_batch(cursor)
                count = len(batch.records)
                cursor.place = count  # the last step: from here on the records count as taken
                return batch
            await session.ask(taker)
            if taker.is_over:
                session.check_current(taker)
                session.check_failure()
                raise StopAsyncIteration


_GivenT = TypeVar("_GivenT")


@final
class ChangedIterator(Generic[_GivenT]):
    """Iterates over records, or over batches, that have passed the middleware of the consumer."""

    __slots__ = ("__weakref__", "_chain", "_session", "_taker")

    def __init__(self, session: ConsumerSession, taker: Iteration, chain: ReadChain) -> None:
        chain.check_iteration()
        self._session = session
        self._taker = taker
        self._chain = chain
        session.attach(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _GivenT:
        session, taker = self._session, self._taker
        session.check_loop()
        session.check_current(taker)
        if taker.cursor.is_open and boot_time() >= taker.cursor.slice_end:
            await anyio.lowlevel.checkpoint()
        while True:
            cursor = taker.cursor
            if cursor.is_open:
                place, given = session.look_at(cursor, whole=taker.whole)
                found: _GivenT = await self._chain.read_async(given)
                # The records are taken only now, so they are not done if a middleware raises. Meanwhile, another
                # worker may have taken the lease.
                if cursor is taker.cursor and cursor.is_open:
                    session.check_current(taker)
                    session.begin_slice(cursor)
                    cursor.place = place  # the last step: from here on the records count as taken
                    return found
                continue
            await session.ask(taker)
            if taker.is_over:
                session.check_current(taker)
                session.check_failure()
                raise StopAsyncIteration
