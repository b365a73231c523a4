"""Hands records to a thread that iterates: one by one, or in batches.

Invariants (C5 is defined in docs/guarantees.md):

- C5: asking for the next record says that the last one is done; nothing else does, except a clean close.
- A record costs no hop to another thread: an iterator asks its host once per page.
- A wait that was interrupted has taken nothing and lost nothing: the cursor that came stays with the taker.
- Once a lease is lost, or another worker asked for it, no more of its page is handed out. A thread that is just taking
  a record may have that one.
"""

from typing import final

from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.consumer_session import ConsumerSession
from shardline.aio.loop.boot_clock import boot_time
from shardline.core.consumer.handout import Iteration
from shardline.model.record import Record


@final
class RecordIterator:
    """Records one by one."""

    __slots__ = ("__weakref__", "_cursor", "_session", "_taker")

    def __init__(self, session: ConsumerSession, taker: Iteration) -> None:
        self._session = session
        self._taker = taker
        self._cursor = taker.cursor
        session.attach(self)

    def __iter__(self) -> "RecordIterator":
        return self

    def __next__(self) -> Record:
        cursor = self._cursor
        place = cursor.place
        if place < cursor.end and boot_time() < cursor.slice_end:
            record = cursor.records[place]
            cursor.place = place + 1  # last: the record is taken
            return record
        session, taker = self._session, self._taker
        while True:
            session.check_current(taker)
            cursor = self._cursor = taker.cursor
            if cursor.is_open:
                place = session.begin_slice(cursor)
                record = cursor.records[place]
                cursor.place = place + 1  # last
                return record
            session.ask_blocking(taker)
            if taker.is_over:
                session.check_current(taker)
                session.check_failure()
                raise StopIteration


@final
class BatchIterator:
    """Many records of one shard at once."""

    __slots__ = ("__weakref__", "_session", "_taker")

    def __init__(self, session: ConsumerSession, taker: Iteration) -> None:
        self._session = session
        self._taker = taker
        session.attach(self)

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> Batch:
        session, taker = self._session, self._taker
        while True:
            session.check_current(taker)
            cursor = taker.cursor
            if cursor.is_open:
                batch = session.make_batch(cursor)
                count = len(batch.records)
                cursor.place = count  # last
                return batch
            session.ask_blocking(taker)
            if taker.is_over:
                session.check_current(taker)
                session.check_failure()
                raise StopIteration
