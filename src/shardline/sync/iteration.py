"""How are records handed to a thread that iterates?

By the page: the loop's thread puts one into the iterator, and the user's thread takes from it, without a hop. What the
user has asked past is seen by the loop's thread when it has something to write (``HandedPage.pull``).

Invariants (C5 is of docs/guarantees.md):

- C5: asking for the next says that what was handed out before is done, and nothing else does, but a clean close.
- SI1: ``place`` is written by the user's thread alone, and all else by the loop's: neither waits for the other but when
  a page is through.
- SI2: a page, once replaced, is never changed: a thread that still looks at it finds what it had.
- SI3: a thread that was interrupted while it waited was handed nothing, and lost nothing: what came meanwhile is there
  when it asks again, or when another iteration is begun.
- SI5: who asks has a number, and only the last number counts: an errand that an interrupt left behind in the loop takes
  nothing, and says of nothing that it is done. Nor does it keep the iterator alive.
- SI4: once a lease is lost, or asked for by another worker, no more of its page is handed out; a thread that is just
  taking a record may have that one.
"""

import threading
from abc import ABC, abstractmethod
from typing import Final, final
from weakref import ref

from shardline.aio.batches import Batch
from shardline.aio.bell import Bell
from shardline.aio.boot_clock import boot_time
from shardline.aio.custody import Custody
from shardline.aio.iteration import REPLACED, SLICE
from shardline.aio.iteration import BatchIterator as AsyncBatchIterator
from shardline.aio.shard_worker import ShardWorker, Taken
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.handling import HandlingState
from shardline.errors import Closed, UsageError
from shardline.model.record import Record
from shardline.sync.loop_thread import LoopThread

_NONE: Final[list[Record]] = []


@final
class HandedPage:
    """A page in the user's thread. It is its worker's ``InHand``."""

    __slots__ = (
        "_acked",
        "_custody",
        "_delivered",
        "_is_manual",
        "_taken",
        "check_at",
        "end",
        "handed_at",
        "place",
        "records",
        "worker",
    )

    def __init__(self, custody: Custody, worker: ShardWorker | None = None, taken: Taken | None = None) -> None:
        self._custody = custody
        self._is_manual = custody.config.ack == "manual"
        self._taken = taken
        self._acked = 0
        self._delivered = 0
        self.worker = worker
        self.records: list[Record] = _NONE if taken is None else taken.records
        self.end = len(self.records)
        """How many may be handed out."""
        self.place = 0
        """How many were (SI1)."""
        self.check_at: Instant = -NEVER
        """When to see whether the lease is still held."""
        self.handed_at: Instant = -NEVER
        """When the last one was handed out, or up to SLICE earlier. Written by the user's thread, as ``place`` is."""
        if worker is not None and taken is not None:
            custody.hold(worker, self, taken)
            if not self._is_manual:
                custody.deliver(worker, self.records)

    @property
    def is_held(self) -> bool:
        return self.worker is not None and self.worker.grant.held

    # ---- InHand: in the loop's thread

    def pull(self) -> None:
        """All but the last that was handed out is done."""
        self._see(self.place)

    def truncate(self) -> None:
        """SI4."""
        if self.place < self.end:
            self.end = self.place
            if self._taken is not None:
                self._taken = self._taken._replace(is_last=False)

    def look(self) -> HandlingState:
        place, end = self.place, self.end
        done = place - 1 if place and not self._is_manual else place
        oldest = self.records[done] if done < max(end, place) else None
        return HandlingState(oldest, int(place > 0), max(0, end - place), self.handed_at if place else None)

    def note_handed_out(self, place: int) -> None:
        """In the user's thread: the record at ``place`` is handed out now, and those that follow within SLICE."""
        self._custody.hand_out(self.records[place : place + 1])
        self.handed_at = boot_time()
        self.check_at = self.handed_at + SLICE

    def release(self, *, done: bool) -> None:
        """The user has it no more: all that was handed out is done, or the last of it is not."""
        if not done:
            self.truncate()
        self.finish(done=done)

    def finish(self, *, done: bool) -> None:
        worker, taken, end = self.worker, self._taken, self.end
        if worker is None or taken is None:
            return
        self.end = 0  # first: what goes back is not handed out here as well
        place = self.place
        self._see(place + 1 if done else place)
        self.worker = self._taken = None
        if not done and place:
            taken = taken._replace(is_last=False)
        self._custody.finish(worker, taken, self.records[place:end])

    def _see(self, asked: int) -> None:
        """The user has asked so often: all before the last is done. With manual acknowledgements: was handed out."""
        worker, custody = self.worker, self._custody
        if worker is None:
            return
        if self._is_manual:
            handed = self.place
            if handed > self._delivered:
                custody.deliver(worker, self.records[self._delivered : handed])
                self._delivered = handed
        elif asked - 1 > self._acked:
            self._acked = asked - 1
            custody.ack_through(worker, self.records[self._acked - 1])


class _Asking(ABC):
    """What the two iterators have in common: a thread that asks the loop's for more."""

    __slots__ = (
        "__weakref__",
        "_custody",
        "_thread",
        "asked",
        "asker",
        "asking_thread",
        "is_asking",
        "is_over",
        "is_replaced",
    )

    def __init__(self, custody: Custody, thread: LoopThread) -> None:
        self._custody = custody
        self._thread = thread
        self.asker: object = None
        """The task that closes the consumer, if its thread is the one that asked last."""
        self.asking_thread: threading.Thread | None = None
        self.asked = 0
        """How often the loop was asked (SI5)."""
        self.is_asking = False
        """Whether the thread waits for the loop's answer."""
        self.is_over = False
        self.is_replaced = False
        """Whether it is over because another was begun."""

    @abstractmethod
    def step(self) -> "bool | float | Exception":
        """In the loop's thread: what was handed out is done (C5); get more.

        Returns:
            Whether there is more, or how long to wait for it.
        """

    def is_asked_by_another(self, caller: object) -> bool:
        thread = self.asking_thread
        return self.is_asking and thread is not None and thread is not caller and thread.is_alive()

    def end_for_another(self) -> None:
        self.is_over = self.is_replaced = True
        self.asked += 1  # what an interrupt left behind in the loop takes nothing more (SI5)

    def _ask(self) -> bool:
        """In the user's thread: wait for more. False: there will be none."""
        if self.is_replaced:
            raise UsageError(REPLACED)
        if self.is_over:
            return False
        thread, pages = self._thread, self._custody.pages
        self.asked = number = self.asked + 1
        weak: ref[_Asking] = ref(self)
        self.is_asking = True
        try:
            found = thread.call(lambda: _run_errand(weak, number, pages))
        except Closed:
            if thread.is_forked:
                raise
            found = False
        finally:
            self.is_asking = False
        if found is not True:
            self.is_over = True
        if isinstance(found, Exception):
            try:
                raise found
            finally:
                del found  # or it would keep itself, and all frames, alive
        return found


async def _run_errand(weak: "ref[_Asking]", number: int, pages: Bell) -> "bool | Exception":
    """In the loop's thread: until there is something, or never will be (SI5)."""
    while (iterator := weak()) is not None and iterator.asked == number:
        found = iterator.step()
        if isinstance(found, bool | Exception):
            return found
        del iterator  # while it waits, it is the user's alone
        await pages.wait(found)
    return False


@final
class RecordIterator(_Asking):
    """One by one."""

    __slots__ = ("_page",)

    def __init__(self, custody: Custody, thread: LoopThread) -> None:
        super().__init__(custody, thread)
        self._page = HandedPage(custody)

    def __iter__(self) -> "RecordIterator":
        return self

    def __next__(self) -> Record:
        page = self._page
        place = page.place
        if place < page.end and boot_time() < page.check_at:
            page.place = place + 1
            return page.records[place]
        return self._next()

    def _next(self) -> Record:
        self.asking_thread = threading.current_thread()
        while True:
            page = self._page
            place = page.place
            if place < page.end and page.is_held:
                page.note_handed_out(place)
                page.place = place + 1
                return page.records[place]
            if not self._ask():
                raise StopIteration

    def step(self) -> "bool | float | Exception":
        custody, page = self._custody, self._page
        if page.place < page.end and page.is_held:
            return True  # it came for one who was interrupted (SI3)
        page.truncate()
        page.finish(done=True)
        while custody.failure is None:
            if custody.is_closing or custody.has_ended:
                return False
            worker = custody.first_ready()
            if worker is not None:
                page = HandedPage(custody, worker, worker.peek())
                if page.end:
                    self._page = page
                    return True
                page.finish(done=True)  # the end of a shard, and nothing before it
            elif custody.milestones.is_exhausted:
                return False
            else:
                return custody.patience
        return custody.failure

    @property
    def has_records(self) -> bool:
        """Whether the user has some that are not known to be done."""
        return self._page.worker is not None and self._page.place > 0

    def release(self, *, done: bool) -> None:
        """The consumer is closed: what was handed out is done, or the last of it is not, and comes again."""
        self._page.release(done=done)


@final
class BatchIterator(_Asking):
    """Many of one shard at once. A batch is a hop."""

    __slots__ = ("_batches", "_in_hand")

    def __init__(self, batches: AsyncBatchIterator, custody: Custody, thread: LoopThread) -> None:
        super().__init__(custody, thread)
        self._batches = batches
        self._in_hand = batches.in_hand

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> Batch:
        self.asking_thread = threading.current_thread()
        in_hand = self._in_hand
        while True:
            batch = in_hand.arrived  # it may have come for one who was interrupted (SI3)
            if batch is not None:
                in_hand.handed_at = boot_time()
                in_hand.arrived = None
                return batch
            if not self._ask():
                raise StopIteration

    def step(self) -> "bool | float | Exception":
        in_hand = self._in_hand
        if in_hand.arrived is not None:
            return True
        in_hand.release(done=True)
        try:
            found = self._batches.poll()
        except Exception as error:  # noqa: BLE001 - it is raised where it was asked
            return error
        if isinstance(found, Batch):
            return True  # it has arrived
        return False if found is None else found

    # ---- for the consumer

    @property
    def has_records(self) -> bool:
        return self._batches.has_records

    def release(self, *, done: bool) -> None:
        self._batches.release(done=done)
