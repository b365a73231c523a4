"""The user's code on one shard: it is handed records, works on them, fails, and says what is done.

The part of a shell that hands records out (``aio/handler_runs.py``, ``aio/iteration.py``, ``aio/custody.py``), without
an event loop.
"""

from collections import deque

from fleet_scenario import UNHANDLED

from shardline.core.clock import NEVER
from shardline.core.consumer.failure_policy import BatchWork
from shardline.core.consumer.handler_watch import Work
from shardline.core.consumer.polling_reader import ReaderState


class ShardUser:
    """One held lease, at work."""

    def __init__(self, worker, grant, reading):
        self.worker = worker
        self.world = worker.world
        self.plan = worker.world.fleet.user
        self.is_manual = worker.world.fleet.config.ack == "manual"
        self.reading = reading
        reading.user = self
        self.reader = reading.reader
        self.shard_id = self.reader.shard_id
        self.grant = grant
        self.pages = deque()
        self.work = None
        self.is_stopping = False
        self.is_over = False
        self.unacknowledged = 0
        self._offset = 0  # in the first page: what of it was taken
        self._taken = None  # of the batch in hand: bytes to release, whether it is the last, children
        self.call = None  # of the user's code, under way: what it was given, and when
        self._was_watched = False  # whether the host has looked since
        self._untold = 0  # failures that no event has told of
        self._calls = 0  # of the user's code, or waits between them, that have not come back

    @property
    def chance(self):
        return self.worker.user_chance

    @property
    def has_records(self):
        return self.work is not None or self.unacknowledged > 0

    @property
    def holds(self):
        holding = self.worker.machine.held.holdings.get(self.shard_id)
        return holding is not None and holding.grant is self.grant

    # ---- life

    def stop(self):
        """Hand out no more: what was read ahead is dropped."""
        self.is_stopping = True
        self.reader.stop()
        self.pages.clear()
        self._offset = 0

    def drop(self):
        """The lease is gone. A thread goes on, and what it says is refused."""
        if self.work is not None:
            self.world.reached.add("lease lost while the user had records")
            if self.plan.threaded and self._calls:
                self.worker.threads[self.shard_id] = self
                self.world.reached.add("a thread outlived its lease")
        self.is_over = True
        self.stop()
        self.cancel()

    def cancel(self):
        self.work = self.call = None
        self.unacknowledged = 0
        self.worker.end_turn(self)

    # ---- handing out

    def step(self):
        """Go on, if there is something to do."""
        if self.is_over or self.work is not None:
            return
        if self.is_stopping:
            self.leave_if_done()
        elif not self.pages:
            self.look_after()
        elif self.shard_id not in self.worker.threads and self.grant.held and self.worker.take_turn(self):
            records = self._take()
            if records:
                self._begin(records)
            else:
                self._finish()

    def _take(self):
        """The next records of the first page: as many as a call gets."""
        page = self.pages[0]
        most = self.plan.batch or 1
        records = page.records[self._offset : self._offset + most]
        self._offset += len(records)
        self._taken = (0, False, ())
        if self._offset >= len(page.records):
            self.pages.popleft()
            self._offset = 0
            self._taken = (page.held_bytes, page.is_last, page.child_shards)
        return records

    def _begin(self, records):
        self.worker.machine.held.deliver(self.shard_id, records)
        self.unacknowledged += len(records) if self.is_manual else 0
        self.work = BatchWork(records, self.plan.policy, self.chance, self.worker.now)
        self._untold = 0
        self._drive()

    def _drive(self):
        """What the failure policy says next."""
        work, now = self.work, self.worker.now
        self._note_done(work.take_done())
        self._check_told(work.take_events())
        if work.is_done:
            self._finish()
        elif work.is_stopped:
            self.world.reached.add("handler stopped the consumer")
            self.worker.fail("the handler failed for good")
        elif self.is_stopping and work.next_deadline() != NEVER:
            self._give_back()
        elif (part := work.poll_attempt(now)) is not None:
            self._attempt(part)
        elif (letter := work.poll_dead_letter(now)) is not None:
            self._later(self.chance.uniform(0, 0.05), self._buried, letter)
        else:
            self._at(work.next_deadline(), self._drive)

    def _check_told(self, events):
        """FP4: each failure is told once; that of a handler may wait for its dead letter."""
        self._untold -= len(events)
        assert 0 <= self._untold <= (not self.work.is_done), "FP4"
        for event in events:
            self.worker.note("tells", type(event).__name__, event.shard_id, event.records, event.attempts)

    def _attempt(self, part):
        world = self.world
        if not self.grant.held:
            return  # it was lost, and nobody has told us so far
        world.watch.check_alone(self.worker, self.shard_id)
        done = self.reading.done
        for record in part:
            assert done is None or record.order > done, "DA2: what was committed comes again"
            world.truth.deliver(record, world.time)
        self.worker.note("handles", self.shard_id, *[record.data[:12] for record in part[:3]], len(part))
        if self.work._attempts > 1:
            world.reached.add("retried by the handler's policy")
        if len(self.work._parts) > 1:
            world.reached.add("bisect")
        slow = self.chance.random() < self.plan.slow_chance and world.time < world.fleet.calm_at
        duration = self.chance.uniform(*(self.plan.slow if slow else self.plan.duration))
        if duration > world.fleet.config.lease_duration:
            world.reached.add("a handler slower than the lease")
        fails = self.chance.random() < self.plan.fail_chance and world.time < world.fleet.repaired_at
        if world.time < world.fleet.repaired_at or self.plan.policy.finally_ == "dead-letter":
            fails = fails or any(UNHANDLED in record.data for record in part)
        self.call, self._was_watched = (part, self.worker.now), False
        self._later(duration, self._attempted, part, fails)

    def look(self):
        """What a host sees of the call that is under way."""
        part, since = self.call
        self._was_watched = True
        return Work(part[0].sequence_number, part[0].sub_sequence, len(part), since)

    def _attempted(self, part, fails):
        is_stuck = self.worker.now > self.call[1] + self.worker.stuck_after
        if is_stuck and self._was_watched and not self.worker.was_paused:  # else it may return before the host looks
            assert self.shard_id in self.worker.stuck, "HW1: a stuck handler was not told"
        self.call = None
        if fails:
            self._untold += 1
            self.work.handle_error("sim", self.worker.now)
        else:
            for record in part:
                if not self.is_manual:
                    self.world.truth.finish(record)
            if self.is_manual:
                self._acknowledge_later(part)
            self.work.handle_success(self.worker.now)
        self._drive()

    def _buried(self, letter):
        if self.chance.random() < self.plan.sink_fail_chance and self.world.time < self.world.fleet.repaired_at:
            self.world.reached.add("dead letter could not be written at first")
            self._untold += 1
            self.work.handle_burial_failed("sim", self.worker.now)
        else:
            self.worker.note("buries", self.shard_id, len(letter.records))
            self.world.reached.add("dead letter")
            for record in letter.records:
                self.world.truth.finish(record)
                if self.is_manual:
                    self._acknowledge(record)
            self.work.handle_buried(self.worker.now)
        self._drive()

    # ---- what is done

    def _note_done(self, done):
        if done and not self.is_manual:
            self.worker.ack(self, done[-1], through=True)

    def _acknowledge_later(self, part):
        for record in part:
            delay = self.chance.uniform(*self.plan.ack_delay)
            if self.chance.random() < self.plan.forget_chance:
                delay += self.chance.uniform(1.0, 2.0) * self.world.fleet.config.lease_duration
            self.worker.at_local(self.worker.now + delay, self._acknowledge_in_time, record)

    def _acknowledge_in_time(self, record):
        if not self.is_over:
            self._acknowledge(record)
            if self.is_stopping and self.work is None:
                self.leave_if_done()

    def _acknowledge(self, record):
        holding = self.worker.machine.held.holdings.get(self.shard_id)
        if holding is not None and holding.grant is self.grant and holding.tracker._order:
            first = holding.tracker._order[0]
            if (first[1], first[2]) != (record.sequence_number, record.sub_sequence):
                self.world.reached.add("acknowledged out of order")
        if self.grant.held:
            self.world.truth.finish(record)
        self.unacknowledged = max(0, self.unacknowledged - 1)
        self.worker.ack(self, record, through=False)

    def _finish(self):
        """The user has nothing more of what was taken."""
        held_bytes, is_last, children = self._taken
        self.work = None
        self.worker.end_turn(self)
        self.worker.budget.release(self.reader.key, held_bytes)
        if is_last and self.holds:
            self.worker.end_shard(self.shard_id, children)
        self.worker.admit()
        self.step()

    def _give_back(self):
        """Nothing more is handed out: what is left of the batch comes again."""
        if self.is_manual:
            self.unacknowledged = 0
        self.work = None
        self.worker.end_turn(self)
        self.worker.leave(self.shard_id)

    def leave_if_done(self):
        if self.worker.failure is None and self.work is None and self.holds:
            tracker = self.worker.machine.held.holdings[self.shard_id].tracker
            if not self.is_manual or tracker.is_settled:
                self.worker.leave(self.shard_id)

    def look_after(self):
        """A shard that the service does not know: see what became of it."""
        if self.reader.state is ReaderState.GONE and self.holds:
            self.worker.machine.lose_sight(self.shard_id, self.worker.now)
            self.worker.wake()

    # ---- time

    def _later(self, duration, action, *arguments):
        self._at(self.worker.now + duration, action, *arguments)

    def _at(self, moment, action, *arguments):
        self._calls += 1
        self.worker.at_local(moment, self._called, action, arguments)

    def _called(self, action, arguments):
        self._calls -= 1
        if self.is_over:
            if self.worker.threads.get(self.shard_id) is self:
                del self.worker.threads[self.shard_id]  # the thread that outlived its lease is through
                self.worker.step_user(self.shard_id)
        elif self.work is not None:
            action(*arguments)
