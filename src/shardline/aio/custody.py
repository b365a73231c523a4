"""Who has which records: the workers, or the user, and what is the user done with?

Between the driver, which reads, and whoever hands records out: an iterator, or a handler's run. What is taken goes
through here, and what is done comes back.

Invariants (C and L are of docs/guarantees.md):

- L4, C5: an acknowledgement counts only for the grant that its record was read under, while that is in force.
- CU1: shards take turns: who was taken from goes to the end of the line.
- CU2: a lease that another worker asked for is let go as soon as the user has nothing more of its shard, and with
  manual acknowledgements once all of it is acknowledged.
- CU3: what was taken counts against the budget of the prefetch until the user has nothing more of it.
- CU4: an interrupt may end what the user's task does here between any two steps: each call can be made again, and then
  all of it is done. What the machine in the middle is told at the end of a shard is the driver's to tell.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

from shardline.aio.bell import Bell
from shardline.aio.milestones import Milestones
from shardline.aio.shard_worker import InHand, ShardWorker, Taken
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.config import ConsumerConfig
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.events import HandlingEvent
from shardline.core.consumer.handler_watch import HandlerWatch, Work
from shardline.core.consumer.handling import HandlingCounts, HandlingState
from shardline.core.consumer.holding import Holding
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.consumer.reader import ReaderState, ShardKey
from shardline.model.record import Record, hand_out

THREAD_POLL: Final = 0.02
"""How often to look whether an abandoned thread has ended."""


class AtWork(Protocol):
    """A handler."""

    worker: ShardWorker
    is_in_thread: bool

    def look(self) -> HandlingState: ...


@final
class Custody:
    """The workers of one consumer, and what the user has of their shards."""

    def __init__(
        self,
        coordinator: Coordinator,
        config: ConsumerConfig,
        clock: Callable[[], Instant],
        service_clock: Callable[[], float],
        milestones: Milestones,
    ) -> None:
        self.coordinator = coordinator
        self.config = config
        self.clock = clock
        self.service_clock = service_clock
        """The service's time, in seconds since 1970. May be asked for in any thread."""
        self.milestones = milestones
        self.budget = PrefetchBudget(config.prefetch_max_bytes)
        self.workers: dict[str, ShardWorker] = {}
        self.ready: dict[str, ShardWorker] = {}
        """Those that have pages, in the order in which it is their turn (CU1)."""
        self.failure: Exception | None = None
        """Why nothing more is read, if so."""
        self.is_closing = False
        """Whether nothing more is to be handed out, because somebody closes the consumer."""
        self.has_ended = False
        """Whether nothing is read any more."""
        self.at_work: dict[str, list[AtWork]] = {}
        """The handlers of each shard, those of earlier runs first."""
        self.pages = Bell()
        """Rung when there are pages, and with ``changes``."""
        self.changes = Bell()
        """Rung when leases came or went, and when everything ends."""
        self.wake: Callable[[], None] = _nothing
        """The driver's: something may have to be written or asked for."""
        self.report: Callable[[Sequence[HandlingEvent]], None] = _report_to_nobody
        """The driver's: log these events and hand them to the sink."""
        self.counts = HandlingCounts()
        self.watch = HandlerWatch(config.stuck_after)
        self._held: dict[str, ShardWorker] = {}  # those of whose shards the user has something
        self._ended: dict[str, tuple[ShardWorker, Taken]] = {}  # the user had the last of them, and nobody knows yet

    def ring(self) -> None:
        """Everyone who waits looks again."""
        self.changes.ring()
        self.pages.ring()

    # ---- the driver's side

    def fail(self, error: Exception) -> None:
        """Nothing more can be read. The first reason stays."""
        if self.failure is None:
            self.failure = error
        self.stop()

    def stop(self) -> None:
        """Hand out no more."""
        for worker in self.workers.values():
            worker.stop()
        self.ring()

    def shut(self) -> None:
        """Somebody closes the consumer: hand out no more."""
        self.is_closing = True
        self.stop()

    def disown(self, error: Exception) -> None:
        """All of it is another process's: hand out no more, acknowledge no more. Wakes nobody."""
        self.failure = error
        for worker in self.workers.values():
            worker.grant.revoke()
            if worker.in_hand is not None:
                worker.in_hand.truncate()

    def add(self, worker: ShardWorker) -> None:
        assert worker.shard_id not in self.workers, "HL1: told once"
        self.workers[worker.shard_id] = worker
        if self.failure is not None or self.is_closing:
            worker.stop()
        self.ring()

    def drop(self, worker: ShardWorker) -> None:
        """The lease is gone: its user's code ends, and nothing of it is handed out."""
        self.workers.pop(worker.shard_id, None)
        self.ready.pop(worker.shard_id, None)
        self._forget(worker)
        worker.cancel()
        self.ring()

    def hand_over(self, worker: ShardWorker) -> None:
        """Another worker asked for the lease (CU2)."""
        worker.stop()
        self.ready.pop(worker.shard_id, None)
        self.leave_if_done(worker)

    def offer(self, worker: ShardWorker) -> None:
        """There are pages."""
        self.ready[worker.shard_id] = worker
        self.pages.ring()

    def pull(self) -> None:
        """Acknowledge what is done so far, and tell which shards have ended."""
        for worker in self._held.values():
            if worker.in_hand is not None:
                worker.in_hand.pull()
        for shard_id, (worker, taken) in [*self._ended.items()]:
            if self._holds(worker):
                self.coordinator.end(shard_id, taken.child_shards, self.clock())
                self.leave_if_done(worker)
            del self._ended[shard_id]

    def look(self) -> None:
        """Bring up to date what is known of the user's code, for somebody who wants to see it."""
        for worker in [*self._held.values()]:
            if worker.in_hand is not None:
                worker.in_hand.pull()
        self.look_at_handlers(self.clock())

    def look_at_handlers(self, now: Instant) -> None:
        """Tell the watch what the user's code has of each shard."""
        found: dict[ShardKey, Work] = {}
        is_manual = self.config.ack == "manual"
        if is_manual:
            for worker in self.workers.values():
                holding = self.holding_of(worker)
                oldest = None if holding is None else holding.tracker.oldest_unacknowledged
                if holding is not None and oldest is not None:
                    number = oldest[0]
                    found[worker.reader.key] = Work(
                        str(number), number.sub_sequence, holding.tracker.unacknowledged, since=None
                    )
        else:
            for worker in self._held.values():
                if worker.in_hand is not None:
                    _note_work(found, worker.reader.key, worker.in_hand.look())
        for handlers in self.at_work.values():
            for handler in handlers:
                if handler.is_in_thread and (handler.worker.is_over or not is_manual):
                    _note_work(
                        found, handler.worker.reader.key, handler.look()
                    )  # it may have outlived its lease, or its run
        self.watch.handle_work(found, now)

    def admit(self) -> None:
        """Wake the readers that have room now."""
        admitted = self.budget.admitted()
        for _, shard_id in admitted:
            worker = self.workers.get(shard_id)
            if worker is not None:
                worker.wake()
        self.budget.excuse(admitted)

    # ---- the user's side

    def is_busy(self, worker: ShardWorker) -> bool:
        """Whether a handler that nobody waits for any more is still in its thread, with a record of the shard (FP1)."""
        return any(handler.is_in_thread for handler in self.at_work.get(worker.shard_id, ()))

    def first_ready(self) -> ShardWorker | None:
        """Whose turn it is."""
        ready = self.ready.values()
        return next((worker for worker in ready if not self.is_busy(worker) and not self.is_full(worker)), None)

    def is_full(self, worker: ShardWorker) -> bool:
        """Whether too many records of the shard are not acknowledged: no more of them are handed out."""
        return self.coordinator.held.is_full(worker.shard_id)

    @property
    def patience(self) -> float:
        """How long to wait for pages, if it is nobody's turn: threads ring no bell."""
        return THREAD_POLL if any(map(self.is_busy, self.ready.values())) else NEVER

    def hold(self, worker: ShardWorker, in_hand: InHand, taken: Taken) -> None:
        """The user has this of the shard from now on, until ``finish``; then it is the others' turn (CU1)."""
        self._held[worker.shard_id] = worker
        worker.in_hand = in_hand
        worker.take_to(taken.end)
        self.ready.pop(worker.shard_id, None)
        if worker.has_pages:
            self.ready[worker.shard_id] = worker
        self.milestones.handle_activity(self.clock())

    def hand_out(self, records: Sequence[Record]) -> None:
        """The user's code gets these now, and then those after them. In whichever thread it runs."""
        hand_out(records, self.service_clock())

    def deliver(self, worker: ShardWorker, records: Sequence[Record]) -> None:
        """The user is handed these. What went back and comes again was delivered before."""
        if self._holds(worker):
            self.coordinator.held.deliver(worker.shard_id, records)

    def ack_through(self, worker: ShardWorker, record: Record) -> bool:
        """The user is done with it and all before it. False: nothing new, or not ours any more (L4)."""
        return self._ack(worker.shard_id, worker.grant, record, through=True)

    def ack(self, record: Record, *, through: bool = False) -> bool:
        """The same, for one record alone unless ``through``."""
        return record.shard_id is not None and self._ack(record.shard_id, record.lease, record, through=through)

    def _ack(self, shard_id: str, grant: object, record: Record, *, through: bool) -> bool:
        held = self.coordinator.held
        holding = held.holdings.get(shard_id)
        if holding is None or holding.grant is not grant or not holding.grant.held:
            return False
        was_arranged, was_full = holding.is_arranged, held.is_full(shard_id)
        accepted = held.ack_through(shard_id, record) if through else held.ack(shard_id, record)
        if accepted and (not was_arranged or holding.tracker.has_ended):
            self.wake()
        if was_full and not held.is_full(shard_id):
            self.pages.ring()
            self.workers[shard_id].news.ring()
        return accepted

    def handle_failures(self, events: Sequence[HandlingEvent]) -> None:
        """Handlers failed: count it, log it, and tell the sink."""
        self.counts.handle_events(events)
        self.report(events)

    def finish(self, worker: ShardWorker, taken: Taken, rest: Sequence[Record]) -> None:
        """The user has nothing more of what was taken; ``rest`` was never handed out, and goes back."""
        is_last = taken.is_last
        if not worker.is_stopping:
            worker.take_to(worker.place_after(taken, len(taken.records) - len(rest)))
            is_last = is_last and not rest
            if worker.has_pages:
                self.ready.setdefault(worker.shard_id, worker)
            else:
                self.ready.pop(worker.shard_id, None)
        if is_last:
            self._ended[worker.shard_id] = (worker, taken)
            worker.has_ended = True
        self.milestones.handle_activity(self.clock())
        if is_last or self.milestones.is_awaited:
            self.wake()
        if not worker.is_over:
            while (page := worker.first_taken) is not None:
                self.budget.release(worker.reader.key, page.held_bytes)
                worker.drop_first()
            self.admit()
            self._look_after(worker)
            if not is_last:
                self._leave_if_done(worker)
        worker.in_hand = None  # last: until then it can be done again (CU4)
        self._forget(worker)

    def release_all(self, *, done: bool) -> None:
        """Nobody iterates any more: what was handed out last is done, for someone asks for the next, or it is not."""
        for worker in [*self._held.values()]:
            if worker.in_hand is not None:
                worker.in_hand.release(done=done)

    def leave_if_done(self, worker: ShardWorker) -> None:
        """CU2."""
        if worker.in_hand is None:
            self._leave_if_done(worker)

    def _leave_if_done(self, worker: ShardWorker) -> None:
        if self.failure is None and worker.is_stopping and self._holds(worker):
            holding = self.coordinator.held.holdings[worker.shard_id]
            if self.config.ack == "auto" or holding.tracker.is_settled:
                self.coordinator.held.leave(worker.shard_id)
                self.wake()

    def look_after(self, worker: ShardWorker) -> None:
        """A shard that the service does not know: once all that was read of it is handed out, see what became of it."""
        if worker.in_hand is None:
            self._look_after(worker)

    def _look_after(self, worker: ShardWorker) -> None:
        if worker.reader.state is ReaderState.GONE and not worker.has_pages and self._holds(worker):
            self.coordinator.lose_sight(worker.shard_id, self.clock())
            self.wake()

    def holding_of(self, worker: ShardWorker) -> Holding | None:
        """The lease that the worker reads under, if we still hold it."""
        holding = self.coordinator.held.holdings.get(worker.shard_id)
        return holding if holding is not None and holding.grant is worker.grant else None

    def _holds(self, worker: ShardWorker) -> bool:
        return self.holding_of(worker) is not None

    def _forget(self, worker: ShardWorker) -> None:
        if self._held.get(worker.shard_id) is worker:
            del self._held[worker.shard_id]


def _note_work(found: dict[ShardKey, Work], key: ShardKey, state: HandlingState) -> None:
    record = state.oldest
    if record is not None and state.since is not None:
        found[key] = Work(record.sequence_number or "", record.sub_sequence, state.records, state.since)


def _nothing() -> None:
    """Until there is a driver."""


def _report_to_nobody(events: Sequence[HandlingEvent]) -> None:
    """Until there is a driver."""
