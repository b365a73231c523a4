"""Checks the records that one worker hands to its user's code.

- For each shard, user code has one record or batch at a time, and one iteration or run at a time gets records.
- Under one grant, records come in the order of the shard without gaps, and no record comes again that the user has
  finished. Records that were committed before the lease was gained do not come again.
- The coordinator counts only those records as done that the user has finished (C5).
- Stuck handlers and failures are reported once each.
- A run that was ended by its bounds had reached its bounds.
"""

from bisect import bisect_left
from dataclasses import dataclass

from producer_endpoint import BEGIN, STREAM
from producer_world import START

from shardline.core.consumer.consumer_events import HandlerRecovered, HandlerStuck
from shardline.core.consumer.cursor import SLICE
from shardline.core.consumer.failure_policy import WriteDeadLetter
from shardline.core.consumer.handler_task import Attempt, Stop
from shardline.core.consumer.lease_phases import Phase

SLACK = 1e-6


@dataclass(eq=False)
class Call:
    """A call of user code with records of one shard."""

    lease: object
    since: float
    is_over: bool = False
    is_watched: bool = False
    """Whether the host has polled since the call began."""
    is_told: bool = False


def place_of(record):
    return (int(record.sequence_number), record.sub_sequence)


class Books:
    """The expectations about one worker."""

    def __init__(self, worker):
        self.worker = worker
        self.world = worker.world
        self.reached = worker.world.reached
        self.calls = {}  # by shard: the last call of user code
        self.stuck = {}  # by shard: the stuck call that was reported
        self.untold = {}  # by handler task: the number of failures that no event has reported yet
        self.handled = {}  # by handler task: the records that it has finished, although the host may not know it yet
        self.active_at = worker.now
        self.was_exhausted = False

    # ---- the user's code

    def see_call(self, records, taker):
        """Check records that are handed to user code. ``taker`` is a handler's taker, or ``None`` for the body of a
        loop.
        """
        worker, world, now = self.worker, self.world, self.worker.now
        shard_id, lease = records[0].shard_id, records[0].lease
        before = self.calls.get(shard_id)
        assert before is None or before.is_over, f"user code has two records or batches of {shard_id}"
        current = worker.hand_out.current
        assert taker is None or taker.number == current.number, "an older run goes on"
        assert lease.in_force(now - SLICE), f"L2: {shard_id} is handed out, and the lease has lapsed"
        if lease.held:
            world.watch.check_alone(worker, shard_id)
        worker.callbacks.check_handed_out(lease, shard_id)
        self.see_told(self.handled.pop(taker, ()))
        for record in records:
            self._check_place(record)
            world.truth.deliver(record, world.time)
        worker.note("handles", shard_id, *[record.data[:12] for record in records[:3]], len(records))
        if taker is not None and isinstance(taker.step, Attempt):
            if taker._work._attempts > 1:
                self.reached.add("retried by the handler's policy")
            if len(taker._work._parts) > 1:
                self.reached.add("bisect")
        self.calls[shard_id] = Call(lease, now)
        self.active_at = now

    def _check_place(self, record):
        reading, place = self.worker.readings[record.lease], place_of(record)
        assert reading.done is None or record.order > reading.done, "what was committed comes again"
        assert place not in reading.told, "C5: what the user is done with comes again"
        known = self.world.truth.shards.get(record.shard_id)
        if known is not None and place in known.records and not self.world.truth.epoch:
            before = bisect_left(known.places, place) - 1
            self._check_not_skipped(reading, known, known.places[before] if before >= 0 else None)
        reading.delivered.add(place)

    def _check_not_skipped(self, reading, known, place):
        if place is None or place in reading.delivered or (reading.begin is not None and place <= reading.begin):
            return
        if known.is_required(place) and not self.world.watch._is_dropped(known, place):
            self.world.service.advance(self.world.time)
            assert not known.is_required(place), f"{place} of {known.shard_id} was left out"

    def see_return(self, records):
        """Note that user code returned, failed or was cancelled."""
        worker, shard_id = self.worker, records[0].shard_id
        call = self.calls[shard_id]
        if not call.is_over:
            call.is_over = True
            if call.lease.held:  # otherwise the user has no more records of ours
                self.active_at = worker.now
            held = worker.hand_out.shards.get((STREAM, shard_id))
            is_watched = call.is_watched and held is not None and held.grant is call.lease and not worker.is_manual
            if worker.now > call.since + worker.config.stuck_after + SLICE and is_watched and not worker.was_paused:
                assert call.is_told, "a stuck handler was not reported"

    def see_told(self, records):
        """Note that the user has finished these records, and that the host knows it, or learns of it before anything
        else.
        """
        for record in records:
            self.worker.readings[record.lease].told.add(place_of(record))

    # ---- handlers

    def see_step(self, taker):
        """Check that each failure is reported once. The report of a handler's failure may wait for its dead letter."""
        self.see_told(self.handled.pop(taker, ()))
        untold, step = self.untold.setdefault(taker, 0), taker.step
        most = 1 if step is None or isinstance(step, WriteDeadLetter | Stop) else 0
        assert isinstance(step, WriteDeadLetter) <= untold <= most, f"{untold} failures are not reported: {step}"

    def see_outcome(self, taker):
        """Note the end of a step whose outcome has not reached the host yet."""
        if taker.outcome.error is not None:
            self.untold[taker] += 1

    def see_outlived(self, taker):
        """Note the end of a shielded section whose task was cancelled before."""
        if taker.shard.is_over:
            self.reached.add("a shielded handler outlived its lease")
            if taker.shard.key in self.worker.hand_out.shards:
                self.reached.add("a shielded handler outlived its lease, and that was regained")

    # ---- the host

    def see_event(self, event):
        """Check an event of the hand-out."""
        worker, shard_id = self.worker, event.shard_id
        worker.note(type(event).__name__, *event)
        if isinstance(event, HandlerStuck):
            assert shard_id not in self.stuck, "it was reported before"
            call = self.calls[shard_id]
            if not worker.is_manual:
                assert not call.is_told, "it was reported before"
                assert worker.now >= call.since + worker.config.stuck_after - SLICE, "it is not stuck"
            call.is_told = True
            self.stuck[shard_id] = call
            self.reached.add("a stuck handler was reported")
        elif isinstance(event, HandlerRecovered):
            call = self.stuck.pop(shard_id)
            held = worker.hand_out.shards.get((STREAM, shard_id))
            is_gone = held is None or held.grant is not call.lease or worker.is_closing
            assert call.is_over or is_gone or worker.is_manual, "it is stuck still"
            self.reached.add("a stuck handler went on, or lost its shard")
        else:
            failing = [taker for taker, untold in self.untold.items() if untold and taker.shard.shard_id == shard_id]
            assert failing, "a failure is reported twice"
            self.untold[failing[-1]] -= 1

    def look(self):
        """Check the stuck handlers, after the host has polled."""
        for call in self.calls.values():
            call.is_watched = True
        bounds = self.worker.hand_out.bounds
        if bounds.is_exhausted and not self.was_exhausted:
            self._check_exhausted()
        self.was_exhausted = bounds.is_exhausted

    def check_hand_out(self):
        """Check the hand-out after each of its calls."""
        hand_out = self.worker.hand_out
        self.worker.users.note_revived()
        assert not (hand_out.is_over and hand_out._questions._waiting), "there is no more, and a user waits for it"
        budget = hand_out.budget
        assert not any(map(budget._may_read, budget._refused)), "there is room, and its reader is not woken"
        for shard in hand_out.shards.values():
            assert shard.is_stopping or not hand_out.is_over, "there is no more, and a shard is read"
            holding = shard.holding
            if holding is not None:
                self._check_reported(shard, holding)
                is_idle = shard.is_stopping and shard.cursor is None and not hand_out.is_over
                if is_idle and holding.phase is Phase.DRAINING:
                    is_kept = self.worker.is_manual and not holding.tracker.is_settled
                    is_kept = is_kept or self.worker.callbacks.is_busy(shard)
                    assert is_kept, f"{shard.shard_id} was asked for, its user is done, and it is not let go"

    def _check_reported(self, shard, holding):
        """Check C5: the coordinator counts only those records as done that the user has finished."""
        truth, reading = self.world.truth, self.worker.readings[shard.grant]
        known, number = truth.shards.get(shard.shard_id), holding.tracker.watermark
        if number in {None, reading.reported} or known is None or truth.epoch:
            return
        reading.reported = number
        place = (number.number, number.sub_sequence)
        while reading.checked < len(known.places) and known.places[reading.checked] <= place:
            if reading.begin is None or known.places[reading.checked] > reading.begin:
                self.world.watch._check_done(known, known.places[reading.checked])
            reading.checked += 1

    def _check_exhausted(self):
        worker, truth = self.worker, self.world.truth
        assert all(call.is_over for call in self.calls.values() if call.lease.held), "the user has records"
        idle, timeout = worker.now - self.active_at, worker.plan.idle_timeout
        if timeout is not None and idle >= timeout - SLACK:
            self.reached.add("a run ended by idle_timeout")
            return
        assert worker.until_latest, f"idle for {idle} s, not for {timeout} s"
        self.reached.add("a run ended by until=latest")
        if truth.epoch or worker.plan.max_leases is not None:
            return
        kept = [shard for shard in worker.hand_out.shards.values() if not shard.is_stopping]
        began = {shard.shard_id: worker.readings[shard.grant].began_at for shard in kept}
        if len(self.world.slots) == 1:
            began = dict.fromkeys(truth.shards, worker.began_at) | began
        for shard_id, began_at in began.items():
            known = truth.shards.get(shard_id)
            for place in known.required if known is not None else ():
                if known.records[place].arrived_at < BEGIN + began_at - START:
                    assert place in known.done or place in known.first_delivered, f"{place} of {shard_id} is not read"

    def find_unrest(self):
        """Return why the worker is not at rest: records in hand, a budget that is not free, or an unanswered taker."""
        hand_out, name = self.worker.hand_out, self.worker.name
        if hand_out._in_hand or hand_out.budget.total_bytes:
            return f"{name} has records in hand, and {hand_out.budget.total_bytes} bytes of pages"
        for taker in [hand_out.current, *self.worker.users.handlers]:
            if taker is not None and taker.asked > taker.answered and taker not in hand_out._questions._waiting:
                return f"{name} has a question that its host does not know"
        return None

    def check_end(self):
        """Check a worker that has closed: nothing is left, and every taker was answered."""
        hand_out = self.worker.hand_out
        left = [hand_out.budget._held, hand_out.budget._unopened, hand_out._in_hand, hand_out._line]
        assert not any(left), f"something is left: {left}"
        assert not hand_out._questions._waiting, "every taker was answered"
        assert self.worker.users.is_idle, "no user waits"
