"""Hands records to a thread that iterates: one by one, or in batches.

Invariants (C5 is defined in docs/guarantees.md):

- C5: only requesting the next record, or a clean close, acknowledges the last one.
- Taking a record does not switch threads: an iterator asks the network thread only once per page.
- An interrupted wait has consumed nothing and lost nothing: a cursor that arrived stays with the taker.
- Once a lease is lost, or another worker has asked for it, no further record that was read under the lease is handed
  out. A thread that is taking a record at that moment may still get that record.
"""

from typing import Generic, Self, TypeVar, final

from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.consumer_session import ConsumerSession
from shardline.aio.consumer.read_chain import ReadChain
from shardline.aio.loop.boot_clock import boot_time
from shardline.core.consumer.handout import Iteration
from shardline.model.record import Record, ValueT_co


@final
class RecordIterator(Generic[ValueT_co]):
    """Iterates over single records."""

    __slots__ = ("__weakref__", "_cursor", "_session", "_taker")

    def __init__(self, session: ConsumerSession, taker: Iteration) -> None:
        self._session = session
        self._taker = taker
        self._cursor = taker.cursor
        session.attach(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record[ValueT_co]:
        cursor = self._cursor
        place = cursor.place
        if place < cursor.end and boot_time() < cursor.slice_end:
            record = cursor.records[place]
            cursor.place = place + 1  # the last step: from here on, the record counts as handed out
            return record
        session, taker = self._session, self._taker
        while True:
            session.check_current(taker)
            cursor = self._cursor = taker.cursor
            if cursor.is_open:
                place = session.begin_slice(cursor)
                record = cursor.records[place]
                cursor.place = place + 1  # the last step, as above
                return record
            session.ask_blocking(taker)
            if taker.is_over:
                session.check_current(taker)
                session.check_failure()
                raise StopIteration


@final
class BatchIterator(Generic[ValueT_co]):
    """Iterates over batches; the records of a batch are from one shard."""

    __slots__ = ("__weakref__", "_session", "_taker")

    def __init__(self, session: ConsumerSession, taker: Iteration) -> None:
        self._session = session
        self._taker = taker
        session.attach(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch[ValueT_co]:
        session, taker = self._session, self._taker
        while True:
            session.check_current(taker)
            cursor = taker.cursor
            if cursor.is_open:
                batch = session.make_batch(cursor)
                count = len(batch.records)
                cursor.place = count  # the last step, as above
                return batch
            session.ask_blocking(taker)
            if taker.is_over:
                session.check_current(taker)
                session.check_failure()
                raise StopIteration


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

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _GivenT:
        session, taker = self._session, self._taker
        while True:
            session.check_current(taker)
            cursor = taker.cursor
            if cursor.is_open:
                place, given = session.look_at(cursor, whole=taker.whole)
                found: _GivenT = self._chain.read(given)
                # The records are taken only now, so they are not done if a middleware raises. Meanwhile, another
                # worker may have taken the lease.
                if cursor.is_open:
                    session.begin_slice(cursor)
                    cursor.place = place  # the last step, as above
                    return found
                continue
            session.ask_blocking(taker)
            if taker.is_over:
                session.check_current(taker)
                session.check_failure()
                raise StopIteration
