"""Random histories of a hand-out whose user has lifecycle callbacks, against a naive record of what may happen.

The user iterates, or runs handlers, one of which may outlive its task. Leases come, are asked for, and are lost;
callbacks return, raise or are cancelled; the consumer fails or is closed.
"""

from random import Random

import pytest
from tests.harness.hand_out import Desk

from shardline.core.consumer.consumer_events import RecordsHandedOut, RecordsHandled
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handler_task import Handle, Outcome
from shardline.core.consumer.handout import CancelHandler
from shardline.core.consumer.lifecycle import CallBack, CallbackKind, CancelCallBack

ASSIGNED, SHARD_END, REVOKED = CallbackKind.ASSIGNED, CallbackKind.SHARD_END, CallbackKind.REVOKED
SUBSETS = [
    (ASSIGNED, SHARD_END, REVOKED),
    (ASSIGNED,),
    (REVOKED,),
    (SHARD_END,),
    (ASSIGNED, REVOKED),
    (REVOKED, SHARD_END),
]
NAMES = ("a", "b")


class History:
    """One hand-out, its user, and what has happened so far."""

    def __init__(self, seed):
        self.rng = rng = Random(seed)
        self.wanted = rng.choice(SUBSETS)
        self.desk = Desk(callbacks=self.wanted, ack=rng.choice(["auto", "auto", "manual"]))
        self.hand_out = self.desk.hand_out
        self.is_manual = self.hand_out.is_manual
        self.hand_out.work.observe(self.desk.now)
        self.running = {}  # by shard: the call that is being made
        self.begun, self.returned, self.failed = set(), set(), set()  # kind and shard
        self.held, self.gone = {}, []  # shards
        self.ended, self.finished = set(), set()
        self.unread = {}  # by shard: records that wait
        self.handed_out = self.handled = self.told_out = self.told_handled = 0
        self.has_failed = False
        self.iteration = self.desk.iterate() if rng.random() < 0.5 else None
        self.run = None if self.iteration else self.desk.run(FailurePolicy())
        self.tasks, self.at_work, self.unacknowledged = {}, {}, []
        self.taken = {}  # by shard: how many records user code has
        if self.iteration:
            self.ask(self.iteration)
        else:
            self.ask(self.run)

    # ---- steps

    def step(self):
        moves = [self.gain, self.bring, self.bring, self.work, self.work, self.work, self.end_call, self.end_call]
        moves += [self.ask_for, self.lose, self.acknowledge, self.return_late, self.wait]
        if self.rng.random() < 0.02:
            moves = [self.close, self.fail]
        self.rng.choice(moves)()
        self.drain()
        self.check()

    def gain(self):
        name = self.rng.choice(NAMES)
        if name not in self.held and not self.hand_out.is_over:
            self.held[name] = self.desk.gain(name)
            self.unread[name] = 0

    def bring(self):
        name = self.rng.choice(NAMES)
        shard = self.held.get(name)
        if shard is not None and not shard.is_stopping and shard not in self.ended:
            count, is_last = self.rng.choice([0, 1, 3]), self.rng.random() < 0.2
            if count or is_last:
                self.unread[name] += count
                self.desk.bring(count, name, last=is_last)
                if is_last:
                    self.ended.add(shard)

    def work(self):
        """User code takes records, and asks for more."""
        self.desk.now += self.rng.choice([0.0, 0.3, 2.0])
        if self.iteration:
            self.use(self.iteration)
        for task in [*self.tasks]:
            self.use(task)

    def use(self, taker):
        if taker.asked > taker.answered or taker.is_over:
            return
        cursor = taker.cursor
        while cursor.is_open:
            cursor.take(self.desk.now)
            if self.rng.random() < 0.3:
                return  # it has this one for a while
        if self.is_manual:
            self.unacknowledged += cursor.records[: cursor.place]
        if taker in self.tasks:
            taker.outcome = Outcome()
        self.ask(taker)

    def ask(self, taker):
        taker.asked += 1
        self.hand_out.ask(taker, taker.asked, self.desk.now)

    def end_call(self):
        if self.running:
            name = self.rng.choice([*self.running])
            call = self.running.pop(name)
            how = self.rng.random()
            if how < 0.9:
                self.returned.add((call.kind, call.shard))
                self.hand_out.handle_called_back(call, self.desk.now)
            else:
                self.failed.add((call.kind, call.shard))
                error = "broken" if how < 0.93 else None
                self.has_failed = self.has_failed or error is not None
                self.hand_out.handle_called_back(call, self.desk.now, has_returned=False, error=error)

    def ask_for(self):
        name = self.rng.choice(NAMES)
        if name in self.held and not self.held[name].is_asked and not self.hand_out.is_over:
            self.hand_out.handle_hand_over_asked("s", name, self.desk.now)

    def lose(self):
        if self.rng.random() < 0.4 and self.held:
            name = self.rng.choice([*self.held])
            shard = self.held.pop(name)
            if shard in self.finished and shard.has_ended and self.rng.random() < 0.5:
                self.desk.groups["s"].held.lose(name, "finished")
                self.desk.groups["s"].held.take_events()
                self.hand_out.handle_gone("s", name, self.desk.now, finished=True)
            else:
                self.gone.append(shard)
                self.desk.lose(name)

    def acknowledge(self):
        if self.unacknowledged:
            self.hand_out.ack(self.unacknowledged.pop(0), self.desk.now)

    def return_late(self):
        """A handler that has outlived its task returns."""
        if self.at_work:
            task = self.rng.choice([*self.at_work])
            del self.at_work[task]
            self.hand_out.handle_work_ended(task, self.desk.now)

    def wait(self):
        self.desk.now += 0.5
        self.hand_out.handle_time(self.desk.now)

    def close(self):
        self.hand_out.close(self.desk.now)
        if self.iteration:
            self.hand_out.settle(self.iteration, self.desk.now, done=True)
            self.desk.now += 0.1

    def fail(self):
        self.has_failed = True
        self.hand_out.fail("test", self.desk.now)

    # ---- what comes out

    def drain(self):
        for action in self.hand_out.take_actions():
            if isinstance(action, CallBack):
                self.begin_call(action)
            elif isinstance(action, CancelCallBack):
                call = action.call
                assert call.shard.is_over
                assert call.kind is not REVOKED, "it cleans up"
                assert self.running[call.shard.shard_id] == call
                if self.rng.random() < 0.7:
                    del self.running[call.shard.shard_id]
                    self.failed.add((call.kind, call.shard))
                    self.hand_out.handle_called_back(call, self.desk.now, has_returned=False)
            elif isinstance(action, CancelHandler) and action.taker in self.tasks:
                self.leave(action.taker)
        for taker in self.hand_out.take_answered():
            if taker is self.run:
                for task in taker.new_tasks:
                    self.tasks[task] = None
                    self.ask(task)
                if not taker.is_over:
                    self.ask(taker)
            elif taker.is_over:
                if taker in self.tasks:
                    self.leave(taker)
            elif taker is self.iteration or isinstance(taker.step, Handle):
                self.see_cursor(taker)
        for event in self.hand_out.take_events():
            self.told_out += event.records if isinstance(event, RecordsHandedOut) else 0
            self.told_handled += event.records if isinstance(event, RecordsHandled) else 0
        if self.hand_out._actions or self.hand_out.lifecycle._actions or self.hand_out._questions._answered:
            self.drain()

    def leave(self, task):
        is_at_work = task.cursor.place > 0 and self.rng.random() < 0.5 and task.is_at_work
        del self.tasks[task]
        if is_at_work:
            self.at_work[task] = None
        self.hand_out.leave(task, self.desk.now, is_at_work=is_at_work)

    def see_cursor(self, taker):
        records = taker.cursor.records
        shard = self.held[records[0].shard_id]
        self.handed_out += len(records)
        assert self.was_assigned(shard), "a record is handed out before on_assigned has returned"
        assert shard.shard_id not in self.running, "a record is handed out during a callback"
        assert (REVOKED, shard) not in self.begun, "a record is handed out after on_revoked"

    def begin_call(self, call):
        shard = call.shard
        assert shard.shard_id not in self.running, "two callbacks of a shard at a time"
        assert call.kind in self.wanted
        assert (call.kind, shard) not in self.begun, "it is called again"
        if call.kind is not ASSIGNED:
            assert self.was_assigned(shard)
            assert not self.has_records(shard), "user code has a record of it"
        if call.kind is REVOKED:
            assert call.lost == shard.is_over
            assert call.reason == ("hand-over" if shard.is_asked else "close" if self.hand_out.is_closing else "lost")
        if call.kind is SHARD_END:
            assert shard in self.ended
            assert shard not in self.finished
        self.begun.add((call.kind, shard))
        self.running[shard.shard_id] = call

    # ---- what holds

    def was_assigned(self, shard):
        return ASSIGNED not in self.wanted or (ASSIGNED, shard) in self.returned

    def has_records(self, shard):
        at_work = [task for task in self.at_work if task.shard is shard]
        return (
            shard.cursor is not None
            or bool(at_work)
            or any(task.shard is shard and task.is_at_work for task in self.tasks)
        )

    def is_over_with(self, kind, shard):
        """Whether the callback is not wanted, or has ended."""
        return kind not in self.wanted or (kind, shard) in self.returned | self.failed

    def check(self):
        hand_out, group = self.hand_out, self.desk.groups["s"]
        ended = [shard_id for shard_id, _ in group.ended]
        for shard in self.held.values():
            if ended.count(shard.shard_id) > sum(known.shard_id == shard.shard_id for known in self.finished):
                self.finished.add(shard)
                assert SHARD_END not in self.wanted or (SHARD_END, shard) in self.returned, "SHARD_END came too early"
        for shard in self.held.values():
            self.check_held(shard)
        for shard in self.gone:
            is_awaited = REVOKED in self.wanted and self.was_assigned(shard) and (REVOKED, shard) not in self.begun
            if is_awaited and not self.has_records(shard) and shard.shard_id not in self.running:
                raise AssertionError("a lease was lost, and on_revoked is not called")
        if hand_out.lifecycle.is_settled:
            assert not self.running
        totals = hand_out.work.totals()
        assert totals.records_handed_out == self.handed_out == self.told_out
        assert totals.records_handled == self.told_handled <= self.handed_out

    def check_held(self, shard):
        name, hand_out = shard.shard_id, self.hand_out
        phase = self.desk.phase(name)
        is_quiet = name not in self.running and not self.has_records(shard)
        if phase == "LEAVING":
            assert self.is_over_with(REVOKED, shard) or (ASSIGNED, shard) in self.failed, "released before on_revoked"
            assert not self.has_records(shard)
            assert shard.is_asked
        if shard.is_asked and is_quiet and not hand_out.is_over and phase != "LEAVING":
            holding = shard.holding
            assert self.is_manual, "it was asked for, its user is done, and it is not released"
            assert not holding.tracker.is_settled
        if hand_out.is_closing and is_quiet and REVOKED in self.wanted and self.was_assigned(shard):
            assert (REVOKED, shard) in self.begun, "the consumer closes, and on_revoked is not called"
        if (
            shard.has_ended
            and is_quiet
            and self.is_over_with(SHARD_END, shard)
            and (SHARD_END, shard) not in self.failed
        ):
            assert shard in self.finished, "the shard has ended, and that is not reported"
        is_served = self.was_assigned(shard) and is_quiet and not shard.is_stopping and not shard.has_ended
        older = any(lost.shard_id == name and self.has_records(lost) for lost in self.gone)
        if is_served and shard.pages and not older and not shard.is_full and not hand_out.is_over:
            takers = [self.iteration] if self.iteration else [task for task in self.tasks if task.shard is shard]
            for taker in takers:
                assert taker.asked == taker.answered, "records wait, and the user who asked for them gets none"


@pytest.mark.parametrize("seed", range(150))
def test_callbacks_frame_the_use_of_each_lease(seed):
    history = History(seed)
    for _ in range(60):
        history.step()


# ---- promises


def test_an_exception_of_a_callback_ends_the_consumer_with_it():
    desk = Desk(callbacks=[ASSIGNED])
    desk.gain()
    (call,) = [action for action in desk.hand_out.take_actions() if isinstance(action, CallBack)]
    desk.hand_out.take_pump_due()
    desk.hand_out.handle_called_back(call, desk.now, has_returned=False, error="broken")
    assert desk.hand_out.failure == "broken"
    assert desk.hand_out.take_pump_due()


def test_a_callback_that_returned_fails_nothing():
    desk = Desk(callbacks=[ASSIGNED])
    desk.gain()
    (call,) = [action for action in desk.hand_out.take_actions() if isinstance(action, CallBack)]
    desk.hand_out.handle_called_back(call, desk.now)
    assert desk.hand_out.failure is None


def test_shard_end_is_not_committed_if_on_shard_end_raised():
    desk = Desk(callbacks=[SHARD_END])
    desk.gain()
    desk.bring(1, last=True)
    taker = desk.iterate()
    desk.take(taker)
    assert not desk.ask(taker)
    (call,) = [action for action in desk.hand_out.take_actions() if isinstance(action, CallBack)]
    assert desk.groups["s"].ended == []
    desk.hand_out.handle_called_back(call, desk.now, has_returned=False, error="broken")
    assert desk.groups["s"].ended == []


def test_a_lease_that_another_worker_asked_for_is_revoked_for_that_reason_and_then_released():
    desk = Desk(callbacks=[REVOKED])
    desk.gain()
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    (call,) = [action for action in desk.hand_out.take_actions() if isinstance(action, CallBack)]
    assert (call.reason, call.lost, desk.phase()) == ("hand-over", False, "ACTIVE")
    desk.hand_out.handle_called_back(call, desk.now)
    assert desk.phase() == "LEAVING"


def test_records_are_handled_when_the_user_asks_for_more_and_a_long_page_in_parts():
    desk = Desk()
    desk.hand_out.work.observe(desk.now)
    desk.gain()
    desk.bring(4)
    taker = desk.iterate()
    desk.take(taker, 2)
    desk.poll(0.9)
    assert desk.hand_out.take_events() == [RecordsHandedOut("a", 4)]
    desk.poll(0.1)
    assert desk.hand_out.take_events() == [RecordsHandled("a", 1, 1.0)]
    desk.poll(0.5)
    desk.hand_out.settle(taker, desk.now, done=True)
    assert desk.hand_out.take_events() == [RecordsHandled("a", 1, 0.5)]
    totals = desk.hand_out.work.totals()
    assert (totals.records_handed_out, totals.records_handled, totals.handling_time) == (4, 2, 1.5)


def test_a_batch_is_handled_in_the_time_of_the_call_that_succeeded_and_dead_letters_are_not():
    policy = FailurePolicy(attempts=2, backoff=1.0, backoff_max=1.0, bisect=False, finally_="dead-letter")
    desk = Desk()
    desk.hand_out.work.observe(desk.now)
    desk.gain()
    desk.bring(4)
    _, task = desk.start(policy, batch=2)
    desk.hand_out.take_events()
    task.outcome = Outcome("broken")
    assert not desk.ask(task)
    desk.poll(1.0)
    desk.now += 0.5
    task.outcome = Outcome()
    assert desk.ask(task)  # the next batch
    assert RecordsHandled("a", 2, 0.5) in desk.hand_out.take_events()
    for outcome in ("broken", "broken", None):  # two calls, and the dead letter
        task.outcome = Outcome(outcome)
        desk.ask(task)
        desk.poll(1.0)
    assert desk.hand_out.counts.dead_letters == 2
    assert desk.hand_out.work.totals().records_handled == 2


def test_the_lag_is_to_be_measured_every_five_seconds():
    desk = Desk()
    desk.hand_out.work.observe(desk.now)
    assert desk.hand_out.next_deadline() == desk.now + 5.0
    desk.poll(5.0)
    assert desk.hand_out.work.take_measure_due(desk.now)
    assert not desk.hand_out.work.take_measure_due(desk.now + 4.9)
