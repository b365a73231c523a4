"""The user's code of one simulated worker: iterators of records and of batches, handlers in tasks and in threads.

It decides nothing. It sends requests to its worker's hand-out through a mailbox, works along the cursor that it gets,
fails, is slow, is interrupted or cancelled, and reports the records that it has finished.
"""

from functools import partial

from fleet_scenario import UNHANDLED
from fleet_tasks import WAIT, Cancelled, Task, ask

from shardline.core.consumer.failure_policy import WriteDeadLetter
from shardline.core.consumer.handler_task import NOT_CALLED, Attempt, Outcome, Run, Stop
from shardline.core.consumer.handout import Iteration
from shardline.core.consumer.process_messages import Handled, MessageWatch, split_messages


class Application:
    """Runs one iteration or run after another, until the consumer ends."""

    def __init__(self, worker):
        self.worker = worker
        self.world = worker.world
        self.reached = worker.world.reached
        self.plan = worker.world.fleet.user
        self.rng = worker.user_chance
        self.is_manual = worker.config.ack == "manual"
        self.handlers = {}  # by taker: its task
        self.unacknowledged = {}  # by grant: the records to be acknowledged, in order
        self._taken = []  # the records that the body of the loop has
        self._done_while_lapsed = []
        self._number = 0
        self.main = Task(worker, self._live(), worker.close_if_idle)

    @property
    def is_idle(self):
        return self.main.is_over and not self.handlers

    @property
    def hand_out(self):
        return self.worker.hand_out

    def _draw(self, chance):
        """Whether an unusual thing happens. None does once the world is calm."""
        return self.rng.random() < chance and self.world.time < self.world.fleet.calm_at

    def _live(self):
        is_iterating = self.plan.one_at_a_time
        while not self.hand_out.is_over:
            is_exhausted = yield from self._iterate() if is_iterating else self._run()
            if is_exhausted and self.worker.until_latest:
                self.worker.close()
            is_iterating = self.rng.random() < 0.5 if self.plan.mixes else is_iterating
            yield self.rng.choice([0.0, 0.05, 0.5])
        if self.worker.is_clean:  # the consumer was closed between two iterations: the last records count as done
            self._say_done()

    def _begin(self, taker):
        older = self.hand_out.current
        if older is not None and older.has_records and not older.is_over:
            self.reached.add("an iteration ended by the next one")
        self.worker.post(partial(self.hand_out.begin, taker))
        self._say_done()
        return taker

    def _ask(self, taker):
        if self._draw(self.plan.interrupt_chance):
            self.main.throw_after(self.rng.uniform(0.0, 0.5))
        yield from ask(self.main, taker)

    # ---- an iterator

    def _iterate(self):
        """Iterate. Return whether the bounds of the run ended the iteration."""
        limit, self._number = self.plan.batch, self._number + 1
        limits = {"limit": limit, "whole": limit is not None, "max_wait": self.plan.max_wait}
        taker = self._begin(Iteration(self.hand_out, self._number, **limits))
        while True:
            self._say_done()
            try:
                yield from self._ask(taker)
            except Cancelled:
                if self.main.is_cancelled:
                    raise
                self.reached.add("interrupted while it waited")
                if self._draw(0.3):
                    return False
                continue
            if taker.is_over:
                return not self.hand_out.is_over
            while records := self._take(taker):
                self._say_done()
                self._taken = records
                error = yield from self._call(records, self.main)
                if error is not None and self.plan.policy.finally_ == "stop":
                    self.worker.books.see_return(records)  # also if the consumer is closing already
                    self.worker.close(is_clean=False)
                    raise Cancelled
                if self._draw(self.plan.replace_chance):
                    return False

    def _take(self, taker):
        """Take records along the cursor: by the fast path of the shells, or in the next time slice."""
        cursor, now = taker.cursor, self.worker.now
        if taker.whole:
            if not cursor.is_open:
                return []
            cursor.begin_slice(now)
            return [*cursor.take_all()]
        if cursor.place < cursor.end and now < cursor.slice_end:
            if not isinstance(taker, Iteration):
                cursor.taken_at = now  # as the shells do for each call of a handler: the hand-out may have cleared it
            cursor.place += 1
            return [cursor.records[cursor.place - 1]]
        return [cursor.take(now)] if cursor.is_open else []

    def _say_done(self):
        """Report finished records (C5): by taking the next record, by asking, and by beginning another iteration."""
        taken, self._taken = self._taken, []
        if taken:
            self.worker.books.see_return(taken)
            self.worker.books.see_handled(taken)
        self._finish(taken)
        self.worker.books.see_told(taken)

    def leave(self, *, is_clean):
        """Leave the loop, normally or by an error."""
        if is_clean:
            self._say_done()
        elif self._taken:
            self.worker.books.see_return(self._taken)
            self.reached.add("closed by an error with records in hand")
        self.main.cancel()

    # ---- a run

    def _run(self):
        """Run handlers. Return whether the bounds of the run ended it."""
        self._number += 1
        limits = {"batch": self.plan.batch, "max_wait": self.plan.max_wait}
        limits |= {"concurrency": self.plan.concurrency, "order": self.plan.order}
        limits |= {"in_processes": self.plan.processes is not None}
        run = Run(self.hand_out, self._number, policy=self.plan.policy, rng=self.rng, **limits)
        self._begin(run)
        tasks = []
        try:
            while not run.is_over:
                yield from self._ask(run)
                for taker in run.new_tasks:
                    self.handlers[taker] = Task(self.worker, self._handle(taker), partial(self._end_handler, taker))
                    tasks.append(self.handlers[taker])
            while not all(task.is_over for task in tasks):
                yield WAIT
        except Cancelled:
            for task in tasks:
                task.end()
            while not all(task.is_over for task in tasks):
                try:
                    yield WAIT
                except Cancelled:  # again: for a shielded handler, or one that gave up at the same time
                    continue
            if self.main.is_cancelled:
                raise
            self.reached.add("a run interrupted, or stopped, and another begun")
            return False
        finally:
            if not self.is_dropped:
                self.worker.post(partial(self.hand_out.leave, run))
        return not self.hand_out.is_over

    def _end_handler(self, taker):
        del self.handlers[taker]
        self.main.wake()
        self.worker.close_if_idle()

    def _handle(self, taker):
        """The task of one handler."""
        books, task, thread = self.worker.books, self.handlers[taker], None
        try:
            while True:
                yield from ask(task, taker)
                books.see_step(taker)
                if taker.step is None:
                    return
                if isinstance(taker.step, Stop):
                    self._stop()
                    return
                if self.plan.threaded and not isinstance(taker.step, WriteDeadLetter):
                    thread = Task(self.worker, self._work(taker, None), partial(self._end_thread, taker))
                    while not thread.is_over:
                        yield WAIT
                else:
                    yield from self._work(taker, task)
                books.see_outcome(taker)
        finally:
            if not self.is_dropped:
                self._leave(taker, is_at_work=thread is not None and not thread.is_over)

    @property
    def is_dropped(self):
        """Whether this code is dropped with its world or its process, without having come to its end."""
        return self.world.is_over or self.worker.is_dead

    def _leave(self, taker, *, is_at_work):
        if is_at_work:
            self.reached.add(f"a thread outlived its {'lease' if taker.shard.is_over else 'run'}")
        if 0 < taker.cursor.place < taker.cursor.end:
            self.reached.add("a part of a page given back")
        self.worker.post(partial(self.hand_out.leave, taker, is_at_work=is_at_work))

    def _end_thread(self, taker):
        if taker in self.handlers:
            self.handlers[taker].wake()
        else:
            self.worker.post(partial(self.hand_out.handle_work_ended, taker))

    def _stop(self):
        """End the run, because the policy gave up. The application ends too, or starts another run."""
        self.reached.add("handler stopped the consumer")
        if self.rng.random() < 0.7:
            self.worker.close(is_clean=False)
        else:
            self.main.throw()

    def _work(self, taker, task):
        """Carry out one step: calls of the handler, or a dead letter. ``task`` is ``None`` in a thread."""
        step, error = taker.step, None
        if isinstance(step, (Attempt, WriteDeadLetter)) and not taker.shard.grant.in_force(self.worker.now):
            taker.outcome = NOT_CALLED
            return
        if isinstance(step, WriteDeadLetter):
            error = yield from self._bury(taker, step.letter)
        elif isinstance(step, Attempt):
            taker.cursor.taken_at = self.worker.now
            if self.plan.processes is None:
                error = yield from self._call(step.records, task, taker)
            else:
                error, _ = yield from self._handle_message(taker, [step.records])
        elif self.plan.processes is not None:
            error = yield from self._send_messages(taker)
        else:
            while error is None and (records := self._take(taker)):
                error = yield from self._call(records, task, taker)
        taker.outcome = Outcome(error)

    # ---- a handler in a process

    def _send_messages(self, taker):
        """Send the records of a cursor to processes, as the shell does. Return what a handler raised."""
        cursor = taker.cursor
        for message in split_messages(cursor.records[cursor.place : cursor.end]):
            if not cursor.is_open:
                return None
            if len(message) > 1:
                self.reached.add("several records travelled to a process together")
            first = cursor.place
            cursor.take(self.worker.now)
            error, handled = yield from self._handle_message(taker, [[record] for record in message])
            handled.report(cursor, first)
            if error is not None:
                return error
        return None

    def _handle_message(self, taker, calls):
        """Handle the records or the batch of one message in a process, which may die or hang meanwhile. Return what a
        handler raised, and what has become of the records.
        """
        books, done, watch = self.worker.books, [], MessageWatch(self.plan.processes, self.worker.now)
        for number, records in enumerate(calls):
            watch.handle_progress(number + 1, self.worker.now)
            books.see_call(records, taker, is_in_hand=number > 0)
            duration, fails = self._draw_call(records)
            is_dying, is_hanging = self._draw(self.plan.die_chance), duration > self.plan.processes
            try:
                if is_hanging:
                    while not watch.is_hung(self.worker.now):
                        yield watch.next_deadline() - self.worker.now + 1e-9
                    self.reached.add("a process that hangs was killed")
                else:
                    yield duration * (self.rng.random() if is_dying else 1.0)
            except Cancelled:  # the process is killed, and its message comes again
                self.worker.books.leave_open(done)
                raise
            finally:
                if not self.is_dropped:
                    books.see_return(records)
            if is_dying or is_hanging or fails:
                # The parent knows how many records of the message are done, from the answer or from the progress.
                handled = Handled(number, has_failed=True) if not (is_dying or is_hanging) else watch.handled
                assert handled.done == number, "a record that was not handled counts as done"
                self.reached.add(
                    "a process died while it handled a record" if is_dying else "a handler in a process failed"
                )
                books.handled[taker] = done
                return "sim", handled
            self._finish(records)
            books.see_handled(records)
            done += records
        books.handled[taker] = done
        return None, Handled(len(calls), has_failed=False)

    def _bury(self, taker, letter):
        taker.cursor.taken_at = self.worker.now
        yield self.rng.uniform(0, 0.05)
        if self.rng.random() < self.plan.sink_fail_chance and self.world.time < self.world.fleet.repaired_at:
            self.reached.add("dead letter could not be written at first")
            return "sim"
        self.worker.note("buries", taker.shard.shard_id, len(letter.records))
        self.reached.add("dead letter")
        for record in letter.records:
            self._note_done(record)
        self.worker.books.see_handled(letter.records)
        self.worker.books.handled[taker] = letter.records
        return None

    # ---- the user's code itself

    def _call(self, records, task, taker=None):
        """Run the body of a loop, or a handler, in ``task`` or (``None``) in a thread. Return what it raised."""
        books = self.worker.books
        books.see_call(records, taker)
        duration, fails = self._draw_call(records)
        is_shielded = taker is not None and task is not None and self.rng.random() < self.plan.shield_chance
        try:
            if is_shielded:
                task.is_shielded = True
            yield duration
        finally:
            if is_shielded:
                task.is_shielded = False
            if taker is not None and not self.is_dropped:  # the body of a loop has its records until it asks for more
                books.see_return(records)
        if not fails and taker is not None:
            self._finish(records)
            books.see_handled(records)
            books.handled[taker] = records
        if taker is not None and taker not in self.handlers:  # a thread that outlived its handler's task
            self.worker.books.leave_open(records)
        if is_shielded and task.is_cancelled:
            books.see_outlived(taker)
            self.worker.books.leave_open(records)
            if fails or task.is_ending or not taker.shard.is_over or self.rng.random() < 0.5:
                raise Cancelled
        return "sim" if fails else None

    def _draw_call(self, records):
        world = self.world
        slow = self._draw(self.plan.slow_chance)
        duration = self.rng.uniform(*(self.plan.slow if slow else self.plan.duration))
        if duration > world.fleet.config.lease_duration:
            self.reached.add("a handler slower than the lease")
        limit = self.plan.processes
        if limit is not None and world.time > world.fleet.calm_at:
            duration = min(duration, limit / 2)  # a process that takes longer is replaced, as a broken one
        fails = self.rng.random() < self.plan.fail_chance and world.time < world.fleet.repaired_at
        if world.time < world.fleet.repaired_at or self.plan.policy.finally_ == "dead-letter":
            fails = fails or any(UNHANDLED in record.data for record in records)
        return duration, fails

    # ---- finished records

    def _finish(self, records):
        for record in records:
            if self.is_manual:
                self._acknowledge_later(record)
            else:
                self._note_done(record)

    def _note_done(self, record):
        if record.lease.held:
            self.worker.books.finish(record)
        else:
            self.reached.add("acknowledgement refused")
            if not self.is_manual:
                self._done_while_lapsed.append(record)

    def note_revived(self):
        """Handle a renewal that is confirmed after its lease has lapsed: the lease was ours all the time. The records
        that its user has finished meanwhile are done.
        """
        revived = [record for record in self._done_while_lapsed if record.lease.held]
        for record in revived:
            self._done_while_lapsed.remove(record)
            self.worker.books.finish(record)

    def _acknowledge_later(self, record):
        self.unacknowledged.setdefault(record.lease, []).append(record)
        delay = self.rng.uniform(*self.plan.ack_delay)
        if self.rng.random() < self.plan.forget_chance:
            delay += self.rng.uniform(1.0, 2.0) * self.world.fleet.config.lease_duration
        self.worker.at_local(self.worker.now + delay, self._acknowledge, record)

    def _acknowledge(self, record):
        """Acknowledge a record: by itself, or with all earlier ones."""
        left = self.unacknowledged[record.lease]
        if record not in left:
            return  # a later record was acknowledged with all earlier ones
        place, through = left.index(record), self.rng.random() < self.plan.through_chance
        if place:
            self.reached.add("acknowledged with all before it" if through else "acknowledged out of order")
        for done in left[0 if through else place : place + 1]:
            left.remove(done)
            self._note_done(done)
        self.worker.post(partial(self.hand_out.ack, record, through=through))
