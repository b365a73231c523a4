"""How are records handed to a user who iterates?

``RecordIterator`` hands out one by one, ``BatchIterator`` many of one shard at once. Shards take turns, page by page.

Invariants (C5 is of docs/guarantees.md):

- C5: asking for the next says that what was handed out before is done, and nothing else does, but a clean close.
- IT1: a record costs no task switch, no lock and no acknowledgement of its own: the custody pulls how far the user has
  come when it has something to write (``pull``).
- IT2: the event loop gets its turn every ``SLICE`` seconds, however quick the user asks: renewals depend on it.
- IT3: what was cancelled while it waited has handed out nothing, and lost nothing.
- IT4: once a lease is lost, or asked for by another worker, no more of its page is handed out.
"""

from collections.abc import Callable
from typing import Final, final

import anyio
import anyio.lowlevel

from shardline.aio.batches import Batch
from shardline.aio.custody import Custody
from shardline.aio.host import running_task
from shardline.aio.shard_worker import ShardWorker, Taken
from shardline.core.clock import NEVER, Instant
from shardline.model.record import Record

SLICE: Final = 0.01
_EMPTY: Final[list[Record]] = []


@final
class _RecordsInHand:
    """A page on its way to the user. It outlives its iterator: what was handed out is known, and the rest is kept."""

    __slots__ = (
        "acked",
        "custody",
        "end",
        "is_manual",
        "place",
        "quick_end",
        "records",
        "taken",
        "worker",
        "yield_at",
    )

    def __init__(self, custody: Custody) -> None:
        self.custody = custody
        self.is_manual = custody.config.ack == "manual"
        self.records: list[Record] = _EMPTY
        self.place = 0  # how many of them were handed out
        self.end = 0  # how many may be
        self.quick_end = 0  # the same, for the quick way: with manual acknowledgements there is none
        self.acked = 0
        self.yield_at: Instant = -NEVER
        self.worker: ShardWorker | None = None
        self.taken: Taken | None = None

    def take(self) -> bool:
        """Get the page whose turn it is. False: there is none."""
        custody = self.custody
        worker = next(iter(custody.ready.values()), None)
        if worker is None:
            return False
        self.worker, self.taken = worker, custody.take(worker, None)
        self.records = self.taken.records
        self.place = self.acked = 0
        self.end = len(self.records)
        custody.hold(worker, self)
        if not self.is_manual:
            self.quick_end = self.end
            custody.deliver(worker, self.records)
        return True

    def hand_out(self) -> Record:
        record = self.records[self.place]
        if self.is_manual:
            assert self.worker is not None
            self.custody.deliver(self.worker, (record,))
        self.place += 1
        return record

    def ack(self, done: int) -> None:
        """So many are done."""
        if done > self.acked and self.worker is not None:
            self.acked = done
            if not self.is_manual:
                self.custody.ack_through(self.worker, self.records[done - 1])

    def finish(self) -> None:
        """The page is through, or what is left of it goes back."""
        worker, taken = self.worker, self.taken
        if worker is None or taken is None:
            return
        rest = self.records[self.place : self.end]
        self.worker = self.taken = None
        self.records, self.place, self.end, self.quick_end = _EMPTY, 0, 0, 0
        self.custody.finish(worker, taken, rest)

    # ---- InHand

    def pull(self) -> None:
        """All but the last that was handed out is done; see to it that we are asked about the rest soon (IT1)."""
        self.ack(self.place - 1)
        self.yield_at = -NEVER

    def truncate(self) -> None:
        """IT4."""
        if self.place < self.end:
            self.end = self.quick_end = self.place
            if self.taken is not None:
                self.taken = self.taken._replace(is_last=False)

    def release(self, *, done: bool) -> None:
        self.ack(self.place if done else self.place - 1)
        if not done and self.taken is not None:
            self.taken = self.taken._replace(is_last=False)
            self.truncate()
        self.finish()


@final
class RecordIterator:
    """One by one."""

    __slots__ = ("__weakref__", "_clock", "_in_hand", "asker", "is_over")

    def __init__(self, custody: Custody, clock: Callable[[], Instant]) -> None:
        self._clock = clock
        self._in_hand = _RecordsInHand(custody)
        self.asker: object = None
        """The task that asked last, by its id."""
        self.is_over = False

    def __aiter__(self) -> "RecordIterator":
        return self

    async def __anext__(self) -> Record:
        in_hand = self._in_hand
        place = in_hand.place
        if place < in_hand.quick_end and self._clock() < in_hand.yield_at:
            in_hand.place = place + 1
            return in_hand.records[place]
        return await self._next(in_hand, in_hand.custody)

    async def _next(self, in_hand: _RecordsInHand, custody: Custody) -> Record:
        in_hand.ack(in_hand.place)  # C5
        while True:
            if custody.failure is not None:
                self.is_over = True
                raise custody.failure
            self.asker = running_task()
            if self._clock() >= in_hand.yield_at:
                await anyio.lowlevel.checkpoint()  # IT2
                in_hand.yield_at = self._clock() + SLICE
                if in_hand.worker is not None and not in_hand.worker.grant.held:
                    in_hand.truncate()
            if in_hand.place < in_hand.end:
                return in_hand.hand_out()
            in_hand.finish()
            if custody.is_closing or custody.has_ended:
                break
            if not in_hand.take():
                if custody.milestones.is_exhausted:
                    break
                await custody.pages.wait()
        self.is_over = True
        raise StopAsyncIteration

    @property
    def has_records(self) -> bool:
        """Whether the user has some that are not known to be done."""
        return self._in_hand.worker is not None and self._in_hand.place > 0

    def release(self, *, done: bool) -> None:
        """The consumer is closed: what was handed out is done, or it is not, and comes again."""
        self._in_hand.release(done=done)


@final
class BatchInHand:
    """A batch that the user has: it is done as a whole, or not."""

    __slots__ = ("arrived", "custody", "taken", "worker")

    def __init__(self, custody: Custody) -> None:
        self.custody = custody
        self.worker: ShardWorker | None = None
        self.taken: Taken | None = None
        self.arrived: Batch | None = None
        """The batch, as long as it is there for a thread that has not taken it yet."""

    def take(self, worker: ShardWorker, limit: int | None) -> list[Record]:
        """The next records of the worker: none, where it was the end of the shard and nothing before it."""
        custody = self.custody
        self.worker, self.taken = worker, custody.take(worker, limit)
        custody.hold(worker, self)
        records = self.taken.records
        if records:
            custody.deliver(worker, records)
        else:
            self.release(done=True)
        return records

    def pull(self) -> None:
        """It is done as a whole."""

    def truncate(self) -> None:
        """It was handed out as a whole."""

    def release(self, *, done: bool) -> None:
        worker, taken, custody = self.worker, self.taken, self.custody
        if worker is None or taken is None:
            return
        self.worker = self.taken = None
        if self.arrived is not None:  # nobody was handed it: it goes back
            self.arrived = None
            custody.finish(worker, taken._replace(is_last=taken.is_last and not worker.is_stopping), taken.records)
            return
        if not done:
            taken = taken._replace(is_last=False)
        elif taken.records and custody.config.ack == "auto":
            custody.ack_through(worker, taken.records[-1])
        custody.finish(worker, taken, _EMPTY)


@final
class BatchIterator:
    """Many of one shard at once."""

    def __init__(
        self,
        custody: Custody,
        clock: Callable[[], Instant],
        acknowledge: Callable[[Batch], bool],
        *,
        max_records: int | None,
        max_wait: float,
    ) -> None:
        self._custody = custody
        self._clock = clock
        self._acknowledge = acknowledge
        self._max_records = max_records
        self._max_wait = max_wait
        self.in_hand = BatchInHand(custody)
        self._yield_at: Instant = -NEVER
        self.asker: object = None
        self.is_over = False

    def __aiter__(self) -> "BatchIterator":
        return self

    async def __anext__(self) -> Batch:
        self.in_hand.release(done=True)  # C5
        while True:
            self.asker = running_task()
            if self._clock() >= self._yield_at:
                await anyio.lowlevel.checkpoint()  # IT2
                self._yield_at = self._clock() + SLICE
            found = self.poll()
            if isinstance(found, Batch):
                return found
            if found is None:
                raise StopAsyncIteration
            await self._custody.pages.wait(found)

    def poll(self) -> Batch | float | None:
        """The next batch; or for how long there will be none, if nothing comes; ``None``: there will be no more."""
        custody = self._custody
        while custody.failure is None and not custody.is_closing and not custody.has_ended:
            worker, delay = due_worker(custody, self._clock(), self._max_records, self._max_wait)
            if worker is not None:
                records = self.in_hand.take(worker, self._max_records)
                if records:
                    return Batch(records, self._acknowledge)
            elif custody.milestones.is_exhausted and not custody.ready:
                break
            else:
                return delay
        self.is_over = True
        if custody.failure is not None:
            raise custody.failure
        return None

    @property
    def has_records(self) -> bool:
        """Whether the user has some that are not known to be done."""
        return self.in_hand.worker is not None

    def release(self, *, done: bool) -> None:
        """The consumer is closed: the batch is done, or it is not, and comes again."""
        self.in_hand.release(done=done)


def due_worker(
    custody: Custody, now: Instant, max_records: int | None, max_wait: float
) -> tuple[ShardWorker | None, float]:
    """The worker whose records are to be handed out now; or for how long there will be none, if nothing comes."""
    delay = NEVER
    for worker in custody.ready.values():
        left = worker.oldest_at + max_wait - now
        if left <= 0 or worker.pages[-1].is_last or (max_records is not None and worker.queued >= max_records):
            return worker, 0.0
        delay = min(delay, left)
    return None, delay
