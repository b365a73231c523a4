"""How are records handed to a user who iterates?

``RecordIterator`` hands out one by one, ``BatchIterator`` many of one shard at once. Shards take turns, page by page.

Invariants (C5 is of docs/guarantees.md):

- C5: asking for the next says that what was handed out before is done, and nothing else does, but a clean close.
- IT1: a record costs no task switch, no lock and no acknowledgement of its own: the custody pulls how far the user has
  come when it has something to write (``pull``).
- IT2: the event loop gets its turn every ``SLICE`` seconds, however quick the user asks: renewals depend on it.
- IT3: what was cancelled while it waited has handed out nothing, and lost nothing.
- IT5: an interrupt between any two steps of asking loses nothing: what is on its way is noted before it is taken, it is
  handed out by the last store before the return, and what was begun can be done again by who asks next, or closes.
- IT4: once a lease is lost, or asked for by another worker, no more of its page is handed out.
"""

from collections.abc import Callable
from typing import Final, final

import anyio
import anyio.lowlevel

from shardline.aio.batches import Batch
from shardline.aio.custody import Custody
from shardline.aio.host_tasks import has_ended, running_task
from shardline.aio.shard_worker import ShardWorker, Taken
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.handling import HandlingState
from shardline.errors import UsageError
from shardline.model.record import Record

SLICE: Final = 0.01
REPLACED: Final = "this iteration is over: another one of the same Consumer was begun"
_EMPTY: Final[list[Record]] = []
_NOTHING: Final = Taken(_EMPTY, is_last=False, child_shards=(), begin=(0, 0), end=(0, 0))


@final
class _RecordsInHand:
    """A page on its way to the user. It outlives its iterator: what was handed out is known, and the rest is kept."""

    __slots__ = (
        "acked",
        "custody",
        "end",
        "handed_at",
        "is_manual",
        "place",
        "quick_end",
        "records",
        "taken",
        "worker",
        "yield_at",
    )

    def __init__(
        self,
        custody: Custody,
        worker: ShardWorker | None = None,
        taken: Taken = _NOTHING,
        yield_at: Instant = -NEVER,
    ) -> None:
        self.custody = custody
        self.is_manual = custody.config.ack == "manual"
        self.worker = worker
        self.taken = taken
        self.records = taken.records
        self.place = 0  # how many of them were handed out
        self.end = -1  # how many may be; -1 until it is open (IT5)
        self.quick_end = 0  # the same, for the quick way: with manual acknowledgements there is none
        self.acked = 0
        self.yield_at = yield_at
        self.handed_at = -NEVER  # when the last one was handed out; on the quick way up to SLICE earlier

    @property
    def is_full(self) -> bool:
        """Whether the user has to acknowledge something first. What is left of the page goes back meanwhile."""
        return self.is_manual and self.worker is not None and self.custody.is_full(self.worker)

    def open(self) -> None:
        """Once the iterator has it: from now on the user has this page of the shard."""
        assert self.worker is not None
        self.custody.hold(self.worker, self, self.taken)
        if not self.is_manual:
            self.custody.deliver(self.worker, self.records)
        self.end = len(self.records)  # one store opens it, and nothing was handed out before
        self.quick_end = 0 if self.is_manual else self.end

    def note_handed_out(self, now: Instant) -> None:
        """The record at ``place`` is handed out now. Those that follow within SLICE share the time."""
        if self.place == 0 or now >= self.handed_at + SLICE / 2:
            self.custody.hand_out(self.records[self.place : self.place + 1])
            self.handed_at = now

    def ack(self, done: int) -> None:
        """So many are done."""
        if done > self.acked and self.worker is not None:
            if not self.is_manual:
                self.custody.ack_through(self.worker, self.records[done - 1])
            self.acked = done

    def finish(self) -> None:
        """The page is through, or what is left of it goes back."""
        if self.worker is not None:
            self.quick_end = 0
            rest = self.records if self.end < 0 else self.records[self.place : self.end]
            self.custody.finish(self.worker, self.taken, rest)
            self.worker = None  # last: until then it can be done again (IT5)
        self.records, self.place, self.end = _EMPTY, 0, 0

    # ---- InHand

    def pull(self) -> None:
        """All but the last that was handed out is done; see to it that we are asked about the rest soon (IT1)."""
        self.ack(self.place - 1)
        self.yield_at = -NEVER

    def truncate(self) -> None:
        """IT4."""
        if self.place < self.end:
            self.taken = self.taken._replace(is_last=False)
            self.end = self.quick_end = self.place

    def look(self) -> HandlingState:
        is_held = self.place > self.acked  # else the next one was asked for
        done = self.place - 1 if is_held and not self.is_manual else self.place
        oldest = self.records[done] if done < max(self.end, self.place) else None
        return HandlingState(oldest, int(is_held), max(0, self.end - self.place), self.handed_at if is_held else None)

    def release(self, *, done: bool) -> None:
        self.quick_end = 0
        self.ack(self.place if done else self.place - 1)
        if not done:
            self.taken = self.taken._replace(is_last=False)
            self.truncate()
        self.finish()


@final
class RecordIterator:
    """One by one."""

    __slots__ = ("__weakref__", "_clock", "_custody", "_in_hand", "asker", "is_asking", "is_over", "is_replaced")

    def __init__(self, custody: Custody, clock: Callable[[], Instant]) -> None:
        self._clock = clock
        self._custody = custody
        self._in_hand = _RecordsInHand(custody)
        self.asker: object = None
        """The task that asked last."""
        self.is_asking = False
        """Whether it waits for the answer."""
        self.is_over = False
        self.is_replaced = False
        """Whether it is over because another was begun."""

    def __aiter__(self) -> "RecordIterator":
        return self

    async def __anext__(self) -> Record:
        in_hand = self._in_hand
        place = in_hand.place
        if place < in_hand.quick_end and self._clock() < in_hand.yield_at:
            record = in_hand.records[place]
            in_hand.place = place + 1  # last (IT5)
            return record
        if self.is_replaced:
            raise UsageError(REPLACED)
        self.asker, self.is_asking = running_task(), True
        try:
            return await self._next(self._custody)
        finally:
            self.is_asking = False

    async def _next(self, custody: Custody) -> Record:
        in_hand = self._in_hand
        in_hand.ack(in_hand.place)  # C5
        while True:
            if custody.failure is not None:
                self.is_over = True
                raise custody.failure
            if self._clock() >= in_hand.yield_at:
                await anyio.lowlevel.checkpoint()  # IT2
                in_hand.yield_at = self._clock() + SLICE
                if in_hand.worker is not None and not in_hand.worker.grant.held:
                    in_hand.truncate()
            place = in_hand.place
            if place < in_hand.end and not in_hand.is_full:
                record = in_hand.records[place]
                if in_hand.is_manual and in_hand.worker is not None:
                    custody.deliver(in_hand.worker, (record,))
                in_hand.note_handed_out(self._clock())
                in_hand.place = place + 1  # last (IT5)
                return record
            in_hand.finish()
            if custody.is_closing or custody.has_ended:
                break
            worker = custody.first_ready()
            if worker is not None:
                self._in_hand = in_hand = _RecordsInHand(custody, worker, worker.peek(), in_hand.yield_at)
                in_hand.open()
            elif custody.milestones.is_exhausted:
                break
            else:
                await custody.pages.wait(custody.patience)
        self.is_over = True
        raise StopAsyncIteration

    @property
    def has_records(self) -> bool:
        """Whether the user has some that are not known to be done."""
        return self._in_hand.worker is not None and self._in_hand.place > 0

    def is_asked_by_another(self, caller: object) -> bool:
        return self.is_asking and self.asker is not caller and not has_ended(self.asker)

    def end_for_another(self) -> None:
        self.is_over = self.is_replaced = True

    def release(self, *, done: bool) -> None:
        """The consumer is closed: what was handed out is done, or it is not, and comes again."""
        self._in_hand.release(done=done)


@final
class BatchInHand:
    """A batch that the user has: it is done as a whole, or not."""

    __slots__ = ("_lot", "arrived", "custody", "handed_at")

    def __init__(self, custody: Custody) -> None:
        self.custody = custody
        self._lot: tuple[ShardWorker, Taken] | None = None
        self.arrived: Batch | None = None
        """The batch, as long as nobody was handed it."""
        self.handed_at: Instant = -NEVER

    @property
    def is_handed_out(self) -> bool:
        return self._lot is not None and self.arrived is None

    def take(self, worker: ShardWorker, limit: int | None, acknowledge: Callable[[Batch], bool]) -> Batch | None:
        """The next records of the worker: none, where it was the end of the shard and nothing before it."""
        taken = worker.peek(limit)
        if taken.records:
            self.arrived = Batch(taken.records, acknowledge)  # first (IT5)
        self._lot = (worker, taken)
        self.custody.hold(worker, self, taken)
        if taken.records:
            self.custody.deliver(worker, taken.records)
            self.custody.hand_out(taken.records)
            self.handed_at = self.custody.clock()
        else:
            self.release(done=True)
        return self.arrived

    def pull(self) -> None:
        """It is done as a whole."""

    def truncate(self) -> None:
        """It was handed out as a whole."""

    def look(self) -> HandlingState:
        if self._lot is None or not self._lot[1].records:
            return HandlingState()
        records = self._lot[1].records
        if self.arrived is not None:
            return HandlingState(records[0], 0, len(records))
        oldest = records[0] if self.custody.config.ack == "auto" else None  # else the tracker knows it
        return HandlingState(oldest, len(records), 0, self.handed_at)

    def release(self, *, done: bool) -> None:
        if self._lot is not None:
            worker, taken = self._lot
            if self.arrived is not None:  # nobody was handed it: it goes back
                taken = taken._replace(is_last=taken.is_last and not worker.is_stopping)
                self.custody.finish(worker, taken, taken.records)
            else:
                if not done:
                    taken = taken._replace(is_last=False)
                elif taken.records and self.custody.config.ack == "auto":
                    self.custody.ack_through(worker, taken.records[-1])
                self.custody.finish(worker, taken, _EMPTY)
            self._lot = None  # last: until then it can be done again (IT5)
        self.arrived = None


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
        self.is_asking = False
        self.is_over = False
        self.is_replaced = False

    def __aiter__(self) -> "BatchIterator":
        return self

    async def __anext__(self) -> Batch:
        if self.is_replaced:
            raise UsageError(REPLACED)
        self.asker, self.is_asking = running_task(), True
        try:
            return await self._next()
        finally:
            self.is_asking = False

    async def _next(self) -> Batch:
        self.in_hand.release(done=True)  # C5
        while True:
            if self._clock() >= self._yield_at:
                await anyio.lowlevel.checkpoint()  # IT2
                self._yield_at = self._clock() + SLICE
            found = self.poll()
            if isinstance(found, Batch):
                self.in_hand.arrived = None  # last (IT5)
                return found
            if found is None:
                raise StopAsyncIteration
            await self._custody.pages.wait(found)

    def poll(self) -> Batch | float | None:
        """The next batch, which has ``arrived``; or for how long there is none; ``None``: there will be no more."""
        custody = self._custody
        while custody.failure is None and not custody.is_closing and not custody.has_ended:
            worker, delay = due_worker(custody, self._clock(), self._max_records, self._max_wait)
            if worker is not None:
                batch = self.in_hand.take(worker, self._max_records, self._acknowledge)
                if batch is not None:
                    return batch
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
        return self.in_hand.is_handed_out

    def is_asked_by_another(self, caller: object) -> bool:
        return self.is_asking and self.asker is not caller and not has_ended(self.asker)

    def end_for_another(self) -> None:
        self.is_over = self.is_replaced = True

    def release(self, *, done: bool) -> None:
        """The consumer is closed: the batch is done, or it is not, and comes again."""
        self.in_hand.release(done=done)


def due_worker(
    custody: Custody, now: Instant, max_records: int | None, max_wait: float
) -> tuple[ShardWorker | None, float]:
    """The worker whose records are to be handed out now; or for how long there will be none, if nothing comes."""
    delay = NEVER
    for worker in custody.ready.values():
        if custody.is_busy(worker):
            delay = min(delay, custody.patience)
            continue
        if custody.is_full(worker):
            continue
        left = worker.oldest_at + max_wait - now
        if left <= 0 or worker.has_last_page or (max_records is not None and worker.queued >= max_records):
            return worker, 0.0
        delay = min(delay, left)
    return None, delay
