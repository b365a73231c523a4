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

from producer_endpoint import BEGIN
from producer_world import START

from shardline.core.consumer.consumer_events import (
    HandlerRecovered,
    HandlerStuck,
    MaxLeasesChanged,
    ShardsPaused,
    ShardsResumed,
)
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
    records: list
    number: int
    """The number of the run or iteration."""
    keys: frozenset
    is_over: bool = False
    is_watched: bool = False
    """Whether the host has polled since the call began."""
    is_told: bool = False


def key_of(record):
    return (record.stream, record.shard_id)


def place_of(record):
    return (int(record.sequence_number), record.sub_sequence)


class Books:
    """The expectations about one worker."""

    def __init__(self, worker):
        self.worker = worker
        self.world = worker.world
        self.reached = worker.world.reached
        self.calls = {}  # by shard: the calls of user code that have not returned
        self.last = {}  # by shard: the last call
        self.returned = {}  # by shard: the calls that have returned, and when; the host may not know the last of them
        self.stuck = {}  # by shard: the stuck call that was reported
        self.untold = {}  # by handler task: the first records of the failures that no event has reported yet
        self.failed_shards = {}  # by handler task: the shard of its last failure
        self.handled = {}  # by handler task: the records that it has finished, although the host may not know it yet
        self.active_at = worker.now
        self.was_exhausted = False

    # ---- the user's code

    def see_call(self, records, taker, *, is_in_hand=False):
        """Check records that are handed to user code. ``taker`` is a handler's taker, or ``None`` for the body of a
        loop. ``is_in_hand`` means that they travelled to a process together with earlier records.
        """
        worker, world, now = self.worker, self.world, self.worker.now
        key, lease = key_of(records[0]), records[0].lease
        shard_id, part = records[0].shard_id, worker.part_of(key[0])
        current = worker.hand_out.current
        assert taker is None or taker.number == current.number, "an older run goes on"
        # The hand-out knows when a message was sent to a process, but not when the process began with each record of it.
        since = taker.cursor.taken_at if is_in_hand else now
        call = Call(lease, since, records, current.number, frozenset(record.key for record in records) - {None})
        order = "shard" if taker is None else taker.order
        self._check_side_by_side(key, call, order)
        # A process may finish the records of a message after a seek, and after a suspension that the host has not
        # noticed yet.
        is_unnoticed = worker.was_paused and taker is not None and not taker.shard.is_over
        is_void = is_in_hand and (taker.shard.is_sought or is_unnoticed)
        assert is_void or lease.in_force(now - SLICE), f"L2: {shard_id} is handed out, and the lease has lapsed"
        if lease.held:
            part.world.watch.check_alone(part, shard_id)
        worker.callbacks.check_handed_out(lease, key)
        worker.control.check_handed_out(lease, taker, is_in_hand=is_in_hand)
        self.see_told(self.handled.pop(taker, ()))
        for record in records:
            self._check_place(record, order)
            if order == "key" and record.key is not None:
                self._check_key(record, records)
            part.world.truth.deliver(record, world.time)
        worker.note("handles", shard_id, *[record.data[:12] for record in records[:3]], len(records))
        if taker is not None and isinstance(taker.step, Attempt):
            if taker._work._attempts > 1:
                self.reached.add("retried by the handler's policy")
            if len(taker._work._parts) > 1:
                self.reached.add("bisect")
        self.calls.setdefault(key, []).append(call)
        self.last[key] = call
        self.active_at = now

    def truth_of(self, stream):
        return self.worker.part_of(stream).world.truth

    def finish(self, record):
        """Note that a user has finished a record, or that its dead letter was written."""
        self.truth_of(record.stream).finish(record)

    def leave_open(self, records):
        """Note that the handler of these records was cancelled."""
        for record in records:
            self.truth_of(record.stream).leave_open([record])

    def open_calls(self, shard=None):
        """Return the calls that have not returned: of one shard, or of all."""
        return [call for key, calls in self.calls.items() if shard in {None, key} for call in calls]

    def _check_side_by_side(self, key, call, order):
        """Check which records user code may have at the same time."""
        beside, plan, shard_id = self.open_calls(key), self.world.fleet.user, key[1]
        if order == "shard":
            assert not beside, f"user code has two records or batches of {shard_id}"
        for other in beside:
            is_same = other.lease is call.lease and other.number == call.number
            assert is_same, f"a handler of {shard_id} has outlived its lease or run, and others go on"
            self.reached.add("records of a shard handled side by side")
        if order == "key":
            for other in self.open_calls():
                assert not other.keys & call.keys, f"the key {other.keys & call.keys} is in two handlers"
            if len(call.keys) < len([record for record in call.records if record.key is not None]):
                self.reached.add("a batch with several records of a key")
        pool = getattr(self.worker.hand_out.current, "pool", None)
        if pool is not None:
            at_work = sum(other.number == call.number for other in self.open_calls()) + 1
            assert at_work <= plan.concurrency, f"{at_work} handlers are at work, not {plan.concurrency}"
            if at_work == plan.concurrency > 1:
                self.reached.add("as many handlers at work as are allowed")
            if pool._pausing:
                self.reached.add("a failing record held up only its own key")

    def _check_key(self, record, records):
        """Check C6: all earlier records of the key are done, or are in the same batch."""
        truth = self.truth_of(record.stream)
        reading, known = self.worker.readings[record.lease], truth.shards.get(record.shard_id)
        place = place_of(record)
        if known is None or place not in known.records or truth.epoch:
            return
        beside = {place_of(other) for other in records}
        for before in reversed(known.places[: bisect_left(known.places, place)]):
            if reading.begin is not None and before <= reading.begin:
                return
            if known.records[before].key == record.key and before not in beside:
                if truth.is_left_out(known, before):
                    continue
                if before not in reading.handled:
                    truth.world.service.advance(self.world.time)
                    assert not known.is_required(before), f"{place} was handled before {before}, of the same key"
                return

    def see_handled(self, records):
        """Note that a handler has returned, or that a dead letter was written."""
        for record in records:
            self.worker.readings[record.lease].handled.add(place_of(record))

    def _check_place(self, record, order):
        reading, place = self.worker.readings[record.lease], place_of(record)
        assert reading.done is None or record.order > reading.done, "what was committed comes again"
        assert place not in reading.told, "C5: what the user is done with comes again"
        truth = self.truth_of(record.stream)
        known = truth.shards.get(record.shard_id)
        if place < reading.furthest and place not in reading.delivered:
            assert order != "shard" or self.world.fleet.user.order != "shard", "a record was overtaken"
            self.reached.add("a record was overtaken by one of another key")
        is_known = known is not None and place in known.records and not truth.epoch
        if is_known and self.world.fleet.user.order == "shard":
            before = bisect_left(known.places, place) - 1
            self._check_not_skipped(truth, reading, known, known.places[before] if before >= 0 else None)
        reading.delivered.add(place)
        reading.furthest = max(place, reading.furthest)

    def _check_not_skipped(self, truth, reading, known, place):
        if place is None or place in reading.delivered or (reading.begin is not None and place <= reading.begin):
            return
        if known.is_required(place) and not truth.is_left_out(known, place):
            truth.world.service.advance(self.world.time)
            assert not known.is_required(place), f"{place} of {known.shard_id} was left out"

    def see_return(self, records):
        """Note that user code returned, failed or was cancelled."""
        worker, key = self.worker, key_of(records[0])
        for call in [call for call in self.open_calls(key) if call.records is records]:
            self.calls[key].remove(call)
            call.is_over = True
            self.returned.setdefault(key, []).append((worker.now, call))
            if call.lease.held:  # otherwise the user has no more records of ours
                self.active_at = worker.now
            held = worker.hand_out.shards.get(key)
            is_watched = call.is_watched and held is not None and held.grant is call.lease and not worker.is_manual
            # Of several handlers of a shard, only the one that has been at work for the longest is reported.
            is_watched = is_watched and all(call.since < other.since for other in self.open_calls(key))
            is_watched = is_watched and key not in self.stuck
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
        step = taker.step
        if not isinstance(step, WriteDeadLetter):  # its shard may be stopped since, and then nothing is written
            if self._has_given_back(taker):
                self.untold[taker].clear()
            self.failed_shards.pop(taker, None)
        untold = len(self.untold.setdefault(taker, []))
        most = 1 if step is None or isinstance(step, WriteDeadLetter | Stop) else 0
        assert isinstance(step, WriteDeadLetter) <= untold <= most, f"{untold} failures are not reported: {step}"

    def _has_given_back(self, taker):
        """Whether the failed record was given back before its dead letter, so that the task goes on with another shard."""
        failed_shard = self.failed_shards.get(taker)
        return taker.is_pooled and failed_shard is not None and failed_shard.is_stopping

    def see_outcome(self, taker):
        """Note the end of a step whose outcome has not reached the host yet."""
        if taker.outcome.error is not None:
            step, cursor = taker.step, taker.cursor
            if isinstance(step, WriteDeadLetter):
                first = step.letter.records[0]
            else:
                first = step.records[0] if isinstance(step, Attempt) else cursor.records[cursor.place - 1]
            self.untold[taker].append((first.sequence_number, first.sub_sequence))
            self.failed_shards[taker] = taker.shard

    def see_outlived(self, taker):
        """Note the end of a shielded section whose task was cancelled before."""
        if taker.shard.is_over:
            self.reached.add("a shielded handler outlived its lease")
            if taker.shard.key in self.worker.hand_out.shards:
                self.reached.add("a shielded handler outlived its lease, and that was regained")

    # ---- the host

    def see_event(self, stream, event):
        """Check an event of the hand-out."""
        worker = self.worker
        worker.note(type(event).__name__, *event)
        if isinstance(event, ShardsPaused | ShardsResumed | MaxLeasesChanged):
            return
        key = (stream, event.shard_id)
        if isinstance(event, HandlerStuck):
            assert key not in self.stuck, "it was reported before"
            known_at = worker.now - self.world.fleet.user.to_host
            returned = [one for at, one in self.returned.get(key, ()) if at >= known_at and not one.is_told]
            calls = [*self.open_calls(key), *returned]
            call = min(calls, key=lambda call: call.since, default=self.last.get(key))
            if not worker.is_manual:
                assert not call.is_told, "it was reported before"
                assert worker.now >= call.since + worker.config.stuck_after - SLICE, "it is not stuck"
            call.is_told = True
            self.stuck[key] = call
            self.reached.add("a stuck handler was reported")
        elif isinstance(event, HandlerRecovered):
            call = self.stuck.pop(key)
            held = worker.hand_out.shards.get(key)
            is_gone = held is None or held.grant is not call.lease or worker.is_closing
            assert call.is_over or is_gone or worker.is_manual, "it is stuck still"
            self.reached.add("a stuck handler went on, or lost its shard")
        else:
            first = (event.sequence_number, event.sub_sequence)
            failing = [taker for taker, untold in self.untold.items() if first in untold]
            assert failing, "a failure is reported twice"
            # A task that waits since its failed record was given back has no step yet at which it would be forgotten.
            failing.sort(key=self._has_given_back, reverse=True)
            self.untold[failing[-1]].remove(first)

    def look(self):
        """Check the stuck handlers, after the host has polled."""
        for call in self.open_calls():
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
        if any(hand_out.keys.lanes.values()):
            self.reached.add("a record waited for its key")
        for shard in hand_out.shards.values():
            assert shard.is_stopping or not hand_out.is_over, "there is no more, and a shard is read"
            self._check_lanes(shard)
            holding = shard.holding
            if holding is not None:
                self._check_reported(shard, holding)
                # A shard that is sought is stopped, too. The host may not have handled the other worker's request yet.
                is_stopped = shard.is_asked if shard.is_sought else shard.is_stopping
                is_idle = is_stopped and not shard.is_in_hand and not hand_out.is_over
                if is_idle and holding.phase is Phase.DRAINING:
                    is_kept = self.worker.is_manual and not holding.tracker.is_settled
                    is_kept = is_kept or self.worker.callbacks.is_busy(shard)
                    assert is_kept, f"{shard.shard_id} was asked for, its user is done, and it is not let go"

    def _check_lanes(self, shard):
        """Check how far handlers are ahead of the watermark, and that no record that may be taken is left behind."""
        hand_out, lanes = self.worker.hand_out, shard.lanes
        if lanes is None or lanes.is_closed:
            if shard.done_early and hand_out.current.order == "shard" and shard.cursor is not None:
                self.reached.add("records that were done early were left out by the next iteration")
            return
        room = hand_out.config.max_unacknowledged
        assert lanes.next_place <= shard._first + room, "handlers are too far ahead of the watermark"
        if lanes.next_place == shard._first + room:
            self.reached.add("handlers were as far ahead of the watermark as is allowed")
        assert shard.key in hand_out._line or not shard.is_waiting(room), "records wait, and the shard is not in line"

    def _check_reported(self, shard, holding):
        """Check C5: the coordinator counts only those records as done that the user has finished."""
        truth, reading = self.truth_of(shard.key[0]), self.worker.readings[shard.grant]
        known, number = truth.shards.get(shard.shard_id), holding.tracker.watermark
        if number in {None, reading.reported} or known is None or truth.epoch:
            return
        reading.reported = number
        place = (number.number, number.sub_sequence)
        while reading.checked < len(known.places) and known.places[reading.checked] <= place:
            if reading.begin is None or known.places[reading.checked] > reading.begin:
                truth.world.watch._check_done(known, known.places[reading.checked])
            reading.checked += 1

    def _check_exhausted(self):
        worker = self.worker
        worker.control.check_exhausted()
        assert not any(call.lease.held for call in self.open_calls()), "the user has records"
        idle, timeout = worker.now - self.active_at, worker.plan.idle_timeout
        if timeout is not None and idle >= timeout - SLACK:
            self.reached.add("a run ended by idle_timeout")
            return
        assert worker.until_latest, f"idle for {idle} s, not for {timeout} s"
        self.reached.add("a run ended by until=latest")
        for part in worker.parts:
            if not (part.world.truth.epoch or worker.plan.max_leases is not None or self.world.fleet.user.limits):
                self._check_latest(part)

    def _check_latest(self, part):
        """Check that the records of a stream that had arrived when the reading began are read."""
        worker, truth = self.worker, part.world.truth
        shards = worker.hand_out.shards.values()
        kept = [shard for shard in shards if not shard.is_stopping and shard.key[0] == part.stream]
        began = {shard.shard_id: worker.readings[shard.grant].began_at for shard in kept}
        if len(self.world.slots) == 1:
            began = dict.fromkeys(truth.shards, worker.began_at) | began
        part.world.service.advance(self.world.time)  # trims the records whose time is up
        for shard_id, began_at in began.items():
            known = truth.shards.get(shard_id)
            for place in known.required if known is not None else ():
                if known.records[place].arrived_at < BEGIN + began_at - START:
                    is_read = place in known.first_delivered or truth.is_left_out(known, place)
                    assert place in known.done or is_read, f"{place} of {shard_id} is not read"

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
        # A thread outlives its consumer, or its end is on the way to the host.
        if not self.open_calls() and not self.worker.has_mail:
            left += [hand_out.keys.lanes, hand_out._claims, hand_out._outliving]
        assert not any(left), f"something is left: {left}"
        assert not hand_out._questions._waiting, "every taker was answered"
        assert self.worker.users.is_idle, "no user waits"
