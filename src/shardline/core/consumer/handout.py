"""Decides which records go to which caller, which records are done, and which records are delivered again.

The hand-out connects the readers, which bring pages, with the takers: iterators and the tasks of handlers. It works for
all streams of a consumer, each of which has its own coordinator. Only the host of the consumer calls the hand-out. User
code posts ``ask`` to the host and takes records from the ``Cursor`` that it gets as the answer. Every taker uses the
same three calls: ``take`` the next page or a part of it, ``report`` how far user code has come, and ``give_back`` the
remaining records.

Invariants (docs/guarantees.md defines the C and L invariants):

- C5, L4: a record is acknowledged under the grant under which it was read, while this grant is in force. Requesting the
  next record finishes the last record.
- Shards take turns: after a call of ``take``, the shard goes to the end of the queue.
- User code has one record or batch of each shard at a time, even if the lease is lost and gained again in the meantime.
  While a handler is still at work, in a thread or in a section that is shielded from cancellation, no other record of
  its shard is handed out. In a run with ``order="key"`` or ``"none"``, this holds for handlers that outlived their
  lease or their run, and ``key_lanes`` decides which records the other handlers get.
- A lease that another worker asked for is released as soon as the user has no more records of its shard. With manual
  acknowledgements, the lease is released once all these records are acknowledged. Prefetched records are dropped, and
  the next owner reads them again.
- A page counts against the prefetch budget until the user is done with it.
- The end of a shard is reported once, when the user is done with its last record (C3).
- The user's callbacks (``lifecycle``) are called before the first record of a lease is handed out, before SHARD_END is
  committed, and before the lease is released.
- After ``pause``, no record of the paused shards is handed out until ``resume``: not even the rest of a page that user
  code is working through. The leases are renewed, and reading ahead stops when the prefetch budget is full.
- After ``seek``, the records that were read before it are void. The worker keeps the lease, and the shard is handed out
  again from the new position, after user code has finished the records in hand. Lifecycle callbacks are not called.
- There is one iteration at a time. A new iteration ends the older one, and the record that the older one had in hand is
  done.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.consumer_events import (
    HandlingEvent,
    LeaseGained,
    MaxLeasesChanged,
    ShardSought,
    ShardsPaused,
    ShardsResumed,
)
from shardline.core.consumer.consumer_totals import ReadCounts, WorkCounts, WorkEvent
from shardline.core.consumer.control_requests import PendingWrites, Request
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.handling_lag import HandlingCounts, HandlingState
from shardline.core.consumer.held_shard import HeldShard
from shardline.core.consumer.key_lanes import KeyLanes, ShardLanes
from shardline.core.consumer.lease_phases import Holding, Phase
from shardline.core.consumer.lifecycle import CallBack, CallbackKind, CancelCallBack, Lifecycle, Reason
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.consumer.reader import Page, Reader, ReaderState, ShardKey
from shardline.core.consumer.run_bounds import RunBounds, ShardFacts, group_facts
from shardline.core.consumer.stuck_handlers import HandlerWatch, WatchEvent, Work
from shardline.core.consumer.taker import Questions, Taker
from shardline.core.error_codes import Failure
from shardline.model.lease import Checkpoint
from shardline.model.record import Record

EVERY_STREAM: Final = ""
"""In place of a stream: the event is about the whole consumer."""
_NOT_HELD: Final = "this worker does not hold its lease"
_REPORT_INTERVAL_MIN: Final = 0.05  # the shortest report interval, in seconds


@final
class Iteration(Taker):
    """An iterator of records or of batches."""

    def __init__(
        self, hand_out: "HandOut", number: int, *, limit: int | None = None, max_wait: float = 0.0, whole: bool = False
    ) -> None:
        super().__init__(number, limit=limit, max_wait=max_wait, whole=whole)
        self._hand_out: HandOut = hand_out

    def serve(self, now: Instant) -> Instant | None:
        found = self._hand_out.take(self, now) if self._hand_out.current is self else None
        self.is_over = found is None
        return None if found is None or isinstance(found, Cursor) else found


class StopReading(NamedTuple):
    """End the task that reads this shard, because the shard's reader was stopped."""

    shard: HeldShard


class WakeReader(NamedTuple):
    """Wake the reader of this shard, because there is room for a page."""

    shard: HeldShard


class CancelHandler(NamedTuple):
    """Cancel this handler's task, because its lease was lost (L2). A handler in a thread cannot be cancelled. Its
    cursor is closed instead.
    """

    taker: Taker


class ReadingFailed(NamedTuple):
    """Why the hand-out failed: a shard cannot be read."""

    shard_id: str
    failure: Failure


Action: TypeAlias = StopReading | WakeReader | CancelHandler | CallBack | CancelCallBack
ControlEvent: TypeAlias = ShardsPaused | ShardsResumed | MaxLeasesChanged
OutEvent: TypeAlias = HandlingEvent | WatchEvent | ControlEvent | WorkEvent


@final
class HandOut:
    """The records of one consumer that user code has in hand, and the records that are waiting for user code.

    Args:
        coordinators: the coordinator of each stream, by the name of the stream. ``add_stream`` adds others later.
        config: the settings of the consumer.
        bounds: decides when the run is over.
        report_interval: how often to report to the coordinators how far user code has come, in seconds. It is the
            interval between two commits.
        callbacks: the callbacks that the user passed.
        names_streams: whether the consumer may read several streams, so that the user names shards as ``stream/shard``.
    """

    def __init__(
        self,
        coordinators: Mapping[str, Coordinator],
        config: ConsumerConfig,
        bounds: RunBounds,
        *,
        report_interval: float,
        callbacks: Collection[CallbackKind] = (),
        names_streams: bool = False,
    ) -> None:
        self.names_streams: bool = names_streams
        self.coordinators: dict[str, Coordinator] = dict(coordinators)
        self.config: ConsumerConfig = config
        self.bounds: RunBounds = bounds
        self.budget: PrefetchBudget = PrefetchBudget(config.prefetch_max_bytes)
        self.watch: HandlerWatch = HandlerWatch(config.stuck_after)
        self.counts: HandlingCounts = HandlingCounts()
        self.reads: ReadCounts = ReadCounts()
        self.work: WorkCounts = WorkCounts(self.reads, self.counts)
        self.lifecycle: Lifecycle = Lifecycle(callbacks)
        self.writes: PendingWrites = PendingWrites()
        self.is_manual: bool = config.ack == "manual"
        self._is_by_load: bool = config.assign_by == "load"
        self.shards: dict[ShardKey, HeldShard] = {}
        self.current: Taker | None = None
        """The current iteration or run. Older iterations and runs get no more records."""
        self.failure: object = None
        """Why no more records are handed out, if something failed. The shell turns the reason into an exception."""
        self.is_paused: bool = False
        """Whether the user has paused all shards, including shards that the worker gains later."""
        self.is_closing: bool = False
        self.has_ended: bool = False
        self._report_interval: float = max(report_interval, _REPORT_INTERVAL_MIN)
        self._reported_at: Instant = -NEVER
        self._line: dict[ShardKey, HeldShard] = {}  # the queue of the shards with pages and no cursor
        self._in_hand: dict[Taker, HeldShard] = {}
        self._tasks: dict[ShardKey, dict[Taker, None]] = {}  # the takers of each shard, until they end
        self.keys: KeyLanes = KeyLanes()
        self._outliving: dict[ShardKey, dict[Taker, None]] = {}  # takers at work whose lease or run is over
        self._claims: dict[Taker, tuple[ShardLanes, Cursor]] = {}  # the records whose keys such takers still have
        self._questions: Questions = Questions()
        self._actions: list[Action] = []
        self._events: list[tuple[str, OutEvent]] = []  # each with its stream
        self._is_pump_due: bool = False

    # ---- queries

    @property
    def is_over(self) -> bool:
        """Whether the hand-out is over. If so, no more records will be handed out."""
        return self.failure is not None or self.is_closing or self.has_ended

    def name_of(self, key: ShardKey) -> str:
        """Return the name of a shard in requests of the user: its id, or the name of its stream and its id."""
        return f"{key[0]}/{key[1]}" if self.names_streams else key[1]

    def is_busy(self, key: ShardKey, taker: Taker | None = None) -> bool:
        """Whether a handler other than this taker's is at work on a record of the shard."""
        return any(other.is_at_work and other is not taker for other in self._tasks.get(key, ()))

    def can_go_on(self, stream: str, sought: ShardSought) -> bool:
        """Whether the shard can be read from the position that was passed to ``seek``. If not, the lease is gone or is
        being released.
        """
        shard = self.shards.get((stream, sought.shard_id))
        return shard is not None and shard.is_sought and not shard.is_asked and not self.is_over

    def handling_state(self, shard: HeldShard) -> HandlingState:
        """For this shard, return which records user code has."""
        return shard.handling_state

    def keys_in_flight(self) -> dict[str, Instant]:
        """Return the keys of the records that handlers of a run with ``order="key"`` have, and since when the handlers
        have had them.
        """
        found: dict[str, Instant] = {}
        for taker in self._in_hand:
            since = taker.cursor.taken_at
            if taker.order == "key" and since is not None:
                for record in taker.cursor.records:
                    if record.key is not None:
                        found[record.key] = since
        return found

    # ---- commands: takers

    def begin(self, taker: Taker, now: Instant) -> None:
        """Begin an iteration or a run. This ends the older iteration or run, whose records in hand are done (C5)."""
        older = self.current
        # The host handles messages in order, but two threads may have created their iterations in another order. The
        # iteration that was created later wins.
        if taker is older or (older is not None and older.number > taker.number):
            return
        self.current = taker
        self.bounds.restart(now)
        if older is not None:
            # Starting an iteration is a request for the next record, so the last record of the older one is done.
            self.settle(older, now, done=True)
            self._questions.withdraw(older)
            older.is_over = True
        for shard in self.shards.values():
            self._choose_lanes(shard)
            taker.handle_gained(shard)
        self._questions.serve(now)

    def bind(self, taker: Taker, shard: HeldShard) -> None:
        """Bind the taker to this shard, so that it takes records from no other shard."""
        if taker.shard is not None and taker.shard.key != shard.key:  # a shard that was lost, or moved by ``seek``
            self._unbind(taker, is_free=True)
        taker.shard = shard
        self._tasks.setdefault(shard.key, {})[taker] = None

    def ask(self, taker: Taker, number: int, now: Instant) -> None:
        """Request more records for user code. The records that user code has taken so far are done (C5).

        ``take_answered`` returns the taker when its answer is ready. ``number`` is the value of ``taker.asked`` when
        user code asked. If the taker was answered before this request arrived, the request is void.
        """
        self._questions.ask(taker, number)
        self._questions.serve(now)

    def settle(self, taker: Taker, now: Instant, *, done: bool) -> None:
        """End the taker's use of its cursor. With ``done``, the record that was taken last is done. Otherwise that
        record is handed out again, like the records that were not taken.
        """
        self.give_back(taker, taker.cursor.place if done else taker.cursor.done, now)
        self._questions.serve(now)

    def leave(self, taker: Taker, now: Instant, *, is_at_work: bool = False) -> None:
        """Remove a taker whose task has ended. Its unfinished records are handed out again.

        ``is_at_work`` means that the handler is still running in a thread. In this case, call ``handle_work_ended``
        when the handler returns.
        """
        taker.is_over, taker.is_at_work = True, is_at_work
        if taker.shard is not None:
            self._note_outliving(taker, taker.shard)
        self.give_back(taker, taker.cursor.done, now)
        self._questions.withdraw(taker)
        if not is_at_work:
            taker.handle_rest()
        self._unbind(taker)
        self._note_user_code_ended(taker)
        self._questions.serve(now)

    def ack(self, record: Record, now: Instant, *, through: bool = False) -> None:
        """Acknowledge the record and, with ``through``, all records before it. Without manual acknowledgements, records
        are done in order, so all records before it are always included.
        """
        shard = self.shards.get((record.stream or "", record.shard_id or ""))
        if shard is None or shard.grant is not record.lease:
            return  # L4: the lease that the record was read under is gone
        if shard.cursor is not None:  # report first, because the tracker knows only delivered records
            self._want_pump(shard.report(shard.cursor.done, now))
        # After an acknowledgement, fewer than ``max_unacknowledged`` records may be unacknowledged. Then the takers of
        # the shard can get more records.
        was_full = shard.is_full
        self._want_pump(shard.acknowledge(record, now, through=through or not self.is_manual))
        self._leave_if_done(shard)
        if was_full and not shard.is_full:
            self._mark_due(shard.key)
        self._questions.serve(now)

    # ---- commands: control

    def commit(self, request: Request, now: Instant) -> None:
        """Commit all records that are done by now, without waiting for the interval between two commits."""
        if self.has_ended:
            return  # the caller sees that the host has ended
        for taker in [*self._in_hand]:
            self.report(taker, now)
        shards = self._find_held(request)
        for shard in shards:
            shard.coordinator.held.flush(shard.shard_id)
        held = {self.name_of(shard.key): shard.holding for shard in shards}
        self.writes.add(request, {name: holding for name, holding in held.items() if holding is not None})
        self._is_pump_due = True

    def pause(self, request: Request, now: Instant) -> None:  # noqa: ARG002 - the form of a message
        """Hand out no more records of these shards until ``resume``. If the request names no shards, all shards are
        paused, including shards that the worker gains later. The user may finish the records in hand.
        """
        shards = [shard for shard in self._find_held(request) if not shard.is_paused]
        is_new = request.shards is None and not self.is_paused
        self.is_paused = self.is_paused or is_new
        for shard in shards:
            shard.is_paused = True
        for taker, shard in self._in_hand.items():
            if shard.is_paused:
                taker.cursor.take_back()
        if shards or is_new:
            shard_ids = tuple(self.name_of(shard.key) for shard in shards)
            self._events.append((EVERY_STREAM, ShardsPaused(shard_ids, self.is_paused)))
        request.is_over = True

    def resume(self, request: Request, now: Instant) -> None:
        """Hand out records of these shards again. Shards that the worker does not hold any more are left out."""
        shards = [shard for shard in self._find_held(request) if shard.is_paused]
        request.lost.clear()  # a pause ends with the lease
        is_new = request.shards is None and self.is_paused
        self.is_paused = self.is_paused and not is_new
        for shard in shards:
            shard.is_paused = False
            self._mark_due(shard.key)
        if shards or is_new:
            self.bounds.handle_activity(now)  # idle time counts from now
            shard_ids = tuple(self.name_of(shard.key) for shard in shards)
            self._events.append((EVERY_STREAM, ShardsResumed(shard_ids, self.is_paused)))
        request.is_over = True
        self._questions.serve(now)

    def seek(self, request: Request, checkpoint: Checkpoint, now: Instant) -> None:
        """Continue at another position (C1). The records that have already been read are void: those that wait are
        dropped, and those in hand may be finished, but their acknowledgements have no effect. The shard is read again
        once the store has written the position (``ShardSought``).
        """
        if self.has_ended:
            return  # the caller sees that the host has ended
        sought: dict[str, Holding] = {}
        for shard in self._find_held(request):
            holding = shard.holding
            refusal = None if holding is None else self._find_refusal(shard, holding)
            if holding is None or refusal is not None:
                request.lost[self.name_of(shard.key)] = refusal or _NOT_HELD
                continue
            shard.is_sought = True
            self._stop(shard)
            shard.coordinator.held.seek(shard.shard_id, checkpoint)
            sought[self.name_of(shard.key)] = holding
        self.writes.add(request, sought, is_seek=True)
        self._is_pump_due = True
        self._questions.serve(now)

    def limit_leases(self, request: Request, max_leases: int | None, now: Instant) -> None:
        """Change ``max_leases``. The coordinators release the leases that exceed it (``LeaseSurplus``)."""
        before = self.config.max_leases
        if max_leases != before:
            self.config = replace(self.config, max_leases=max_leases)
            self.bounds.limit_leases(max_leases)
            for coordinator in self.coordinators.values():
                coordinator.limit_leases(max_leases, now)
            self._events.append((EVERY_STREAM, MaxLeasesChanged(max_leases, before)))
            self._is_pump_due = True
        request.is_over = True

    def add_stream(self, stream: str, coordinator: Coordinator, now: Instant) -> None:
        """Read another stream from now on. ``coordinator`` was created with the settings of the consumer's start."""
        assert stream not in self.coordinators, "a stream is read once"
        self.coordinators[stream] = coordinator
        self.names_streams = True
        coordinator.limit_leases(self.config.max_leases, now)
        self._is_pump_due = True

    def remove_stream(self, stream: str, now: Instant) -> None:
        """Begin to give up a stream. Its coordinator releases the leases (``LeaseSurplus``) and then closes."""
        if not self.has_ended:
            self.coordinators[stream].retire(now)
            self._is_pump_due = True

    def forget_stream(self, stream: str, now: Instant) -> None:
        """Forget a stream whose coordinator has closed."""
        del self.coordinators[stream]
        self._want_pump(self.bounds.is_awaited)
        self._questions.serve(now)

    def _find_refusal(self, shard: HeldShard, holding: Holding) -> str | None:
        """Return the reason why ``seek`` is refused for the shard, or ``None``."""
        if self.is_over:
            return "the consumer is closing, or has failed"
        if holding.phase is not Phase.ACTIVE or shard.is_asked:
            return "another worker takes it over"
        return "all its records are done" if shard.has_ended else None

    # ---- commands: the consumer

    def close(self, now: Instant) -> None:
        """Stop handing out records, because the consumer is closed. The user may finish the records in hand."""
        self.is_closing = True
        self._stop_all(now)
        if self.lifecycle.is_wanted:
            for shard in self.shards.values():
                self._leave_if_done(shard)

    def fail(self, reason: object, now: Instant) -> None:
        """Stop handing out records for this reason. If this is called again, the first reason stays."""
        if self.failure is None:
            self.failure = reason
        self._stop_all(now)

    def end(self, now: Instant) -> None:
        """Drop every lease and answer every taker, because the host is ending."""
        self.has_ended = True
        # Loop over a copy, because ``_drop`` removes the shard from the dictionary.
        for shard in [*self.shards.values()]:
            self._drop(shard)
        self._questions.mark_due()
        self._questions.serve(now)
        self.writes.check(is_ending=True)

    def disown(self, reason: object) -> None:
        """Stop handing out and acknowledging records in a forked child process, because the parent owns the leases."""
        self.failure = reason
        for shard in self.shards.values():
            shard.grant.revoke()
            shard.take_back()

    # ---- the three calls of a taker

    def take(self, taker: Taker, now: Instant) -> Cursor | Instant | None:
        """Return the next page, or a part of a page, for the taker. The records that it took before are done (C5).

        Returns:
            The cursor, the time of the next attempt, or ``None`` if no more records will
            come.
        """
        if taker.cursor.is_current(now):
            return taker.cursor  # the caller that asked for this cursor was interrupted before it took a record
        self.give_back(taker, taker.cursor.place, now)
        while not self.is_over:
            shard, until = self._choose(taker, now)
            if shard is None:
                return until
            # The shard leaves the queue while its cursor is in hand. ``give_back`` puts the shard at the end of the
            # queue, so that shards take turns.
            self._line.pop(shard.key, None)
            self._in_hand[taker] = shard
            taker.measured_at = now
            self.bounds.handle_activity(now)
            if taker.is_pooled:
                self.bind(taker, shard)
            room = self.config.max_unacknowledged
            if taker.order == "shard":
                taker.cursor = shard.open(taker.limit, whole=taker.whole, room=room)
            else:
                taker.cursor = shard.open_lanes(taker.limit or 1, whole=taker.whole, room=room)
            if taker.cursor.records:
                self._enqueue(shard)
                self.work.note_handed_out(shard.key, taker.cursor, now, is_summed=taker.is_summed)
                return taker.cursor
            self.give_back(taker, 0, now)  # the last page of the shard was empty
        return None

    def report(self, taker: Taker, now: Instant) -> None:
        """Report to the coordinator how far user code has come."""
        shard = self._in_hand.get(taker)
        # Records from lanes are reported when they are given back.
        if shard is not None and taker.cursor.places is None:
            self._want_pump(shard.report(taker.cursor.done, now))

    def give_back(self, taker: Taker, done: int, now: Instant) -> None:
        """Take the cursor from the taker. The first ``done`` records are done, and the other records wait for the next
        taker.
        """
        shard = self._in_hand.pop(taker, None)
        if shard is None:
            return
        taker.cursor.end = 0  # comes first, because user code must not take a record that waits for the next taker
        self._measure(taker, shard, now)
        self.work.count_handled(shard.key, taker.cursor, done, now, is_summed=taker.is_summed)
        through = self._close(taker, shard, done, now)
        self._want_pump(shard.acknowledge_passed(now))
        for page in through:
            self.budget.release(shard.key, page.held_bytes)
            if page.through is not None:
                self._want_pump(shard.skip(page.through, now))
        if shard.has_ended and self.lifecycle.end(shard):  # happens once, as nothing is handed out after the end
            shard.report_end(now)
        self.bounds.handle_activity(now)
        self._enqueue(shard)
        self._admit()
        # The coordinator has something to do if the shard has ended or is unknown to the service. A run with a bound
        # may be over, if the user has no more records of the shard.
        is_awaited = self.bounds.is_awaited and not (taker.is_pooled and shard.facts.has_records)
        self._want_pump(shard.has_ended or shard.check_if_gone(now) or is_awaited)
        if taker.is_pooled and not taker.is_at_work:
            self._unbind(taker, is_free=True)
        self._leave_if_done(shard)
        self.lifecycle.revoke_lost(self._has_user_code)
        self._mark_due(shard.key)

    def keep_failed(self, taker: Taker, now: Instant) -> bool:
        """Leave the record that the taker took last, which has failed, with the taker. If the cursor is from lanes,
        the records before it are done, and the records after it wait for other takers.

        Returns False if the taker could not keep the record, because the shard is being stopped: the record is
        delivered again.
        """
        cursor, shard = taker.cursor, self._in_hand.get(taker)
        if cursor.places is None or len(cursor.records) == 1:
            return True
        assert shard is not None, "the taker has records"
        lanes = shard.placed[cursor]
        self.give_back(taker, cursor.place - 1, now)
        if lanes.is_closed or shard.is_stopping:
            return False
        # The failed record was put back as the first one that may be taken. Without it, the shard may have none left.
        self._line.pop(shard.key, None)
        taker.cursor = shard.open_lanes(1, whole=taker.whole, room=self.config.max_unacknowledged)
        self._enqueue(shard)
        taker.cursor.place = 1
        taker.cursor.counted_at = now
        self._in_hand[taker] = shard
        return True

    def _close(self, taker: Taker, shard: HeldShard, done: int, now: Instant) -> list[Page]:
        """Close the taker's cursor. Return the pages that are finished."""
        cursor = taker.cursor
        if cursor.places is None:
            self._want_pump(shard.report(done, now))
            return shard.close(done)
        lanes = shard.placed[cursor]
        # The keys of a handler that outlives its lease or its run are free when it has returned (C6): until then, no
        # shard of the worker may hand out records of these keys.
        is_kept = taker.is_at_work and (taker.is_over or lanes.is_closed)
        if is_kept:
            self._claims[taker] = lanes, cursor
        elif lanes.is_closed:
            lanes.release(cursor.records)
        through = shard.close_placed(cursor, done, is_kept=is_kept)
        self._enqueue_freed()
        return through

    # ---- inputs

    def handle_gained(self, stream: str, gained: LeaseGained | ShardSought, reader: Reader, now: Instant) -> HeldShard:
        """Add a lease that the worker gained, and its reader. After a seek, the new reader begins at the position that
        the store has written: call this only if ``can_go_on`` returns True.
        """
        shard = HeldShard(self.coordinators[stream], gained.grant, reader, is_manual=self.is_manual)
        older = self.shards.get(shard.key)
        assert older is None or older.is_sought, "a lease is gained once"
        self.shards[shard.key] = shard
        shard.is_paused = self.is_paused
        if older is not None:
            older.is_over, shard.is_paused = True, older.is_paused
            self.lifecycle.move(older, shard)
            for taker in self._tasks.get(shard.key, ()):
                if taker.is_at_work:
                    self._note_outliving(taker, older)
        self._choose_lanes(shard)
        if self.is_over:
            self._stop(shard)
        elif older is None:
            self.lifecycle.begin(shard)
        if self.current is not None:
            self.current.handle_gained(shard)
            self._mark_due(shard.key)
        self._questions.serve(now)
        return shard

    def handle_hand_over_asked(self, stream: str, shard_id: str, now: Instant) -> None:
        """Stop the shard, because another worker asked for its lease, or because this worker has too many leases."""
        shard = self.shards[(stream, shard_id)]
        shard.is_asked = True
        self._stop(shard)
        self._leave_if_done(shard)
        self._questions.serve(now)

    def handle_gone(self, stream: str, shard_id: str, now: Instant, *, finished: bool = False) -> None:
        """Drop a lease that was lost or released, or whose hand-over is overdue.

        ``finished`` means that SHARD_END was written.
        """
        shard = self.shards.get((stream, shard_id))
        if shard is not None:
            self._drop(shard, finished=finished)
            self._questions.serve(now)

    def handle_called_back(
        self, call: CallBack, now: Instant, *, has_returned: bool = True, error: object = None
    ) -> None:
        """Handle the end of a callback. If the callback raised ``error``, the consumer fails with this error."""
        shard = call.shard
        self._is_pump_due = True  # the coordinator may now write SHARD_END or release the lease
        self.lifecycle.handle_called(call, has_returned=has_returned)
        if has_returned and call.kind is CallbackKind.SHARD_END:
            shard.report_end(now)
        self._leave_if_done(shard)  # called before ``fail``, so that the lease is released even if on_revoked raised
        self.lifecycle.revoke_lost(self._has_user_code)
        self._mark_due(shard.key)
        if error is not None:
            self.fail(error, now)
        self._questions.serve(now)

    def handle_pages(self, shard: HeldShard, pages: Sequence[Page], now: Instant) -> None:
        """Queue pages from the reader, in the order of the shard."""
        assert not shard.is_stopping, "a stopped reader brings no pages"
        for page in pages:
            if page.repeated:
                self.work.count_repeated(shard.key, page.repeated)
                self.bounds.handle_activity(now)  # a consumer that reads only copies is not idle
            if page.filtered:
                self.budget.release(shard.key, page.freed_bytes)
                self.work.count_filtered(shard.key, page.filtered)
                self.bounds.handle_activity(now)  # a consumer that reads and filters is not idle
        self._want_pump(shard.queue(pages, now))
        self._enqueue(shard)
        self._mark_due(shard.key)
        self._questions.serve(now)

    def handle_read(self) -> None:
        """Called when a reader got an answer. The consumer may now be ready, or have reached the newest record."""
        self._want_pump(self.bounds.is_awaited)

    def handle_reader_over(self, shard: HeldShard, now: Instant) -> None:
        """Handle a reader that has ended or failed."""
        failure = shard.reader.failure
        if shard.reader.state is ReaderState.FAILED and failure is not None:
            self.fail(ReadingFailed(self.name_of(shard.key), failure), now)
        else:
            self._want_pump(shard.check_if_gone(now))

    def handle_work_ended(self, taker: Taker, now: Instant) -> None:
        """Called when the taker's handler has returned, in its task or in a thread that outlived the task."""
        if taker.is_at_work:
            taker.is_at_work = False
            taker.handle_rest()
            if taker in self._claims:
                lanes, cursor = self._claims.pop(taker)
                lanes.release(cursor.records)
                self._enqueue_freed()
            if taker.is_over:  # the handler was in a thread, and has outlived its task
                self.bounds.handle_activity(now)
                self._want_pump(self.bounds.is_awaited)
            self._unbind(taker)
            self._note_user_code_ended(taker)
            self._questions.serve(now)

    def handle_failures(self, stream: str, events: Sequence[HandlingEvent]) -> None:
        """Count and report failures of handlers."""
        self.counts.handle_events(events)
        self._events += [(stream, event) for event in events]

    def handle_time(self, now: Instant) -> None:
        """Check the progress of user code and the bounds of the run. Call this before polling the coordinators."""
        for taker, shard in [*self._in_hand.items()]:
            if taker.cursor.places is None:
                self.report(taker, now)
                self.work.count_progress(shard.key, taker.cursor, now)
            self._measure(taker, shard, now)
        self._reported_at = now
        self.writes.check()
        self.work.handle_time(now)
        self.watch.handle_work(self._find_work(), now)
        self._events += self.watch.take_events()
        self._admit()
        if not self.bounds.is_open_ended:
            groups = [group_facts(stream, group, self.shards) for stream, group in self.coordinators.items()]
            # A user that still works on records of a lost lease is not idle.
            shards = dict.fromkeys([*self.shards.values(), *self._in_hand.values()])
            self.bounds.is_paused = self.is_paused or any(shard.is_paused for shard in self.shards.values())
            if self.bounds.handle_facts(groups, [self._facts(shard) for shard in shards], now):
                self._questions.mark_due()
        self._questions.handle_time(now)
        self._questions.serve(now)

    # ---- outputs, time

    def take_answered(self) -> list[Taker]:
        """Return the takers whose answers are ready (see ``Taker``)."""
        return self._questions.take_answered()

    def take_actions(self) -> list[Action]:
        """Return the actions that the shell has to carry out."""
        actions, self._actions = self._actions, []
        # After the end, no callback is called any more.
        return actions if self.has_ended else [*actions, *self.lifecycle.take_actions()]

    def take_events(self) -> list[OutEvent]:
        """Return the events about the work of user code."""
        return [event for _, event in self.take_stream_events()]

    def take_stream_events(self) -> list[tuple[str, OutEvent]]:
        """Return the events about the work of user code, each with the name of its stream, or ``EVERY_STREAM``."""
        events, self._events = self._events, []
        return [*events, *self.work.take_events()]

    def take_pump_due(self) -> bool:
        """Return whether the coordinators should be polled soon, or ``next_deadline`` moved to an earlier time."""
        is_due = self._is_pump_due or self._questions.is_sooner
        self._is_pump_due = self._questions.is_sooner = False
        return is_due

    def next_deadline(self) -> Instant:
        """Return the latest time at which to call ``handle_time``."""
        report_at = self._reported_at + self._report_interval if self._in_hand else NEVER
        waits = (self._questions.next_deadline(), self.bounds.next_deadline(), self.watch.next_deadline())
        return min(report_at, self.work.measure_at, *waits)

    # ---- internal: measuring

    def _measure(self, taker: Taker, shard: HeldShard, now: Instant) -> None:
        """Count the time for which user code has had its records in the load of their shard."""
        if self._is_by_load:
            shard.coordinator.held.count_handling(shard.grant, now - taker.measured_at)
            taker.measured_at = now

    # ---- internal: control

    def _find_held(self, request: Request) -> list[HeldShard]:
        """Return the shards of the request that this worker holds. The other shards are noted as lost."""
        held = {key: shard for key, shard in self.shards.items() if shard.holding is not None}
        for key in request.shards or ():
            if key not in held:
                request.lost[self.name_of(key)] = _NOT_HELD
        return [shard for key, shard in held.items() if request.shards is None or key in request.shards]

    # ---- internal: handing out

    def wake_run(self) -> None:
        """Serve the current run again, because another of its tasks may be able to work."""
        if self.current is not None:
            self._questions.mark_one_due(self.current)

    def wake_task(self, taker: Taker) -> None:
        """Serve this taker again, because its answer may have changed."""
        self._questions.mark_one_due(taker)

    @property
    def waiting(self) -> int:
        """An upper bound on the number of records that can be handed out. A page without records counts as one
        record.
        """
        return sum(max(1, shard.waiting) for shard in self._line.values())

    def _mark_due(self, key: ShardKey, *, is_stopping: bool = False) -> None:
        """Serve the takers of this shard again, because their answers may have changed."""
        # The tasks of a run with ``concurrency`` are served one by one, through the run.
        if is_stopping or self.current is None or not self.current.is_pooled:
            self._questions.mark_due(self._tasks.get(key, ()))
        self.wake_run()

    def _enqueue(self, shard: HeldShard) -> None:
        """Put the shard at the end of the queue, if it has records to hand out."""
        if shard.is_waiting(self.config.max_unacknowledged):
            self._line[shard.key] = shard

    def _enqueue_freed(self) -> None:
        """Queue the shards that have waiting records with a key that became free."""
        for key in self.keys.take_freed():
            self._enqueue(self.shards[key])  # the lanes of a shard that is gone are closed, and get no key
            self.wake_run()

    def _choose_lanes(self, shard: HeldShard) -> None:
        """Hand out the records of the shard in the order that the current run or iteration wants."""
        order = "shard" if self.current is None else self.current.order
        shard.use_lanes(self.keys, by_key=None if order == "shard" else order == "key")
        self._line.pop(shard.key, None)
        self._enqueue(shard)
        self._enqueue_freed()

    def _choose(self, taker: Taker, now: Instant) -> tuple[HeldShard | None, Instant | None]:
        """Return the shard to take records from, or ``None`` and the time of the next attempt. The result is ``(None,
        None)`` if no more records will come.
        """
        line = self._line if taker.shard is None or taker.is_pooled else {taker.shard.key: taker.shard}
        until, has_pages = NEVER, False
        for shard in line.values():
            # Only a bound taker can find a stopping shard, because ``_stop`` removes the shard from the queue. The task
            # of this taker has to end.
            if shard.is_stopping:
                return None, None
            if not shard.pages:
                break
            has_pages = True
            due_at = self._due_at(shard, taker)
            if due_at <= now:
                return shard, now
            until = min(until, due_at)
        return None, None if self.bounds.is_exhausted and not has_pages else until

    def _due_at(self, shard: HeldShard, taker: Taker) -> Instant:
        """Return the time at which to hand out the next records of the shard, or NEVER if an acknowledgement, the
        return of a handler, the end of a callback or the end of a pause has to come first.
        """
        is_busy = self.is_busy(shard.key, taker) if taker.order == "shard" else shard.key in self._outliving
        if shard.is_paused or shard.is_full or is_busy or not self.lifecycle.may_hand_out(shard):
            return NEVER
        # A batch that is full, or that cannot grow because the shard has ended, does not wait for ``max_wait``.
        if taker.limit is None or shard.waiting >= taker.limit or shard.has_last_page:
            return -NEVER
        return shard.oldest_at + taker.max_wait

    def _admit(self) -> None:
        self._actions += [WakeReader(self.shards[key]) for key in self.budget.take_admitted() if key in self.shards]

    def _want_pump(self, is_due: bool) -> None:
        self._is_pump_due = self._is_pump_due or is_due

    def _leave_if_done(self, shard: HeldShard) -> None:
        """Release a stopped shard once user code is done with it, and its last callback has returned."""
        current = self.shards.get(shard.key)
        if shard.is_over and current is not None and current.is_same_lease(shard):
            shard = current  # it has taken the place of the shard after a seek
        # After a failure, the leases are released when the consumer is closed. A shard that was stopped because of a
        # seek is kept.
        if (self.failure is not None or (shard.is_sought and not shard.is_asked)) and not self.is_closing:
            return
        if self.lifecycle.is_wanted and shard.is_stopping and not shard.is_over:
            is_free = shard.is_held and not self._has_user_code(shard)
            is_called = is_free and self.lifecycle.release(shard, self._reason(shard))
            # If the consumer is closing, the coordinator releases all leases after the last callback. A lease that was
            # released earlier would be taken again.
            if not is_called or not shard.is_asked:
                return
        if self.failure is None:
            self._want_pump(shard.leave_if_done())

    def _reason(self, shard: HeldShard) -> Reason:
        """Return why this worker releases the lease or no longer has it."""
        if shard.is_asked:
            return "hand-over"
        return "close" if self.is_closing else "lost"

    def _has_user_code(self, shard: HeldShard) -> bool:
        """Whether user code has records of the shard, or a handler is still at work on a record of the shard. Records
        that were read before a seek also count.
        """
        tasks = [task.shard for task in self._tasks.get(shard.key, ()) if task.is_at_work]
        return any(held is not None and held.is_same_lease(shard) for held in [*self._in_hand.values(), *tasks])

    def _facts(self, shard: HeldShard) -> ShardFacts:
        """Return the facts on which the bounds of a run depend."""
        facts = shard.facts
        # A handler in a thread may outlive its task. Its records were given back, but it still works on them.
        return facts._replace(has_records=True) if shard.key in self._outliving else facts

    def _note_user_code_ended(self, taker: Taker) -> None:
        """Call the lifecycle callbacks that had to wait for the taker's handler."""
        if taker.shard is not None and self.lifecycle.is_wanted:
            self._leave_if_done(taker.shard)
            self.lifecycle.revoke_lost(self._has_user_code)

    def _note_outliving(self, taker: Taker, shard: HeldShard) -> None:
        """Note whether the handler of a taker whose lease or run is over is still at work."""
        takers = self._outliving.setdefault(shard.key, {})
        if taker.is_at_work:
            takers[taker] = None
        else:
            takers.pop(taker, None)
        if not takers:
            del self._outliving[shard.key]

    def _unbind(self, taker: Taker, *, is_free: bool = False) -> None:
        """Forget the taker once it is over and its handler has returned, or once it has no records (``is_free``)."""
        if taker.shard is not None:
            shard, key = taker.shard, taker.shard.key
            if not taker.is_at_work and (taker.is_over or is_free):
                tasks = self._tasks.get(key, {})
                tasks.pop(taker, None)
                if not tasks:
                    self._tasks.pop(key, None)
                if is_free:
                    taker.shard = None
            if key in self._outliving:
                self._note_outliving(taker, shard)
            self._mark_due(key)

    # ---- internal: stopping

    def _stop_all(self, now: Instant) -> None:
        for shard in self.shards.values():
            self._stop(shard)
        self._questions.mark_due()
        self._questions.serve(now)

    def _stop(self, shard: HeldShard) -> None:
        """Stop reading the shard and handing out its records."""
        shard.is_stopping = True
        shard.reader.stop()
        shard.drop_pages()
        self._line.pop(shard.key, None)
        shard.take_back()
        self._actions.append(StopReading(shard))
        self._admit()  # the other shards now have a larger share of the budget
        self._enqueue_freed()
        self._mark_due(shard.key, is_stopping=True)

    def _drop(self, shard: HeldShard, *, finished: bool = False) -> None:
        """Stop reading the shard and cancel its handlers, because the lease is gone."""
        del self.shards[shard.key]
        shard.is_over = True
        self._stop(shard)
        self.lifecycle.drop(shard, self._reason(shard), finished=finished and shard.has_ended)
        self.lifecycle.revoke_lost(self._has_user_code)
        # A new task of the same shard, under a later lease, may exist already. Only the tasks of this lease are
        # cancelled.
        for taker in self._tasks.get(shard.key, ()):
            if taker.shard is not None and taker.shard.is_same_lease(shard):
                self._actions.append(CancelHandler(taker))
                if taker.is_at_work:
                    self._note_outliving(taker, shard)
        self._want_pump(self.bounds.is_awaited)

    # ---- internal: watching user code

    def _find_work(self) -> dict[ShardKey, Work]:
        """For each shard, return the records that user code has."""
        found: dict[ShardKey, Work] = {}
        if self.is_manual:
            for key, shard in self.shards.items():
                holding = shard.holding
                # With manual acknowledgements, user code may keep many records. The oldest unacknowledged record blocks
                # the checkpoint, so that record is watched.
                oldest = None if holding is None else holding.tracker.oldest_unacknowledged
                if holding is not None and oldest is not None:
                    number = oldest[0]
                    found[key] = Work(str(number), number.sub_sequence, holding.tracker.unacknowledged, since=None)
        else:
            for shard in dict.fromkeys(self._in_hand.values()):
                if not shard.is_over:
                    _note_work(found, shard.key, self.handling_state(shard))
        for key, takers in self._tasks.items():
            for taker in takers:  # a handler may outlive its lease or its run
                # With manual acknowledgements, the loop above has covered the held shards. A lost lease has no tracker
                # any more, so the cursor of its handler is watched.
                is_watched = taker.shard is None or taker.shard.is_over or not self.is_manual
                if taker.is_at_work and is_watched:
                    _note_work(found, key, taker.cursor.handling_state(is_manual=False))
        return found


def _note_work(found: dict[ShardKey, Work], key: ShardKey, state: HandlingState) -> None:
    """Note the records of a handler, unless another handler of the shard that has been at work for longer is already
    noted.
    """
    record, before = state.oldest, found.get(key)
    is_older = before is None or before.since is None or (state.since is not None and state.since < before.since)
    if record is not None and state.since is not None and is_older:
        found[key] = Work(record.sequence_number or "", record.sub_sequence, state.records, state.since)
