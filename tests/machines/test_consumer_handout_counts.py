"""Tests that a consumer counts each handled record once, with the time that user code took for it.

Handlers succeed, fail and are not called at all, batches are split, and dead letters are written at the first or at a
later attempt. A naive model counts the records whose handler has returned.
"""

from random import Random

import pytest
from tests.harness.hand_out import Desk

from shardline.core.consumer.consumer_events import RecordsHandled
from shardline.core.consumer.failure_policy import FailurePolicy, WriteDeadLetter
from shardline.core.consumer.handler_task import NOT_CALLED, Attempt, Handle, Outcome

FAILED = Outcome("broken")


class CountedHandler:
    """The task of a handler on one shard, and the naive counts of its records."""

    def __init__(self, seed):
        self.rng = Random(seed)
        self.desk = Desk()
        self.work = self.desk.hand_out.work
        self.work.observe(self.desk.now)
        self.shard = self.desk.gain()
        policy = FailurePolicy(attempts=2, backoff=0.5, backoff_max=0.5, finally_="dead-letter")
        run = self.desk.run(policy, batch=self.rng.choice([None, 1, 3]))
        assert self.desk.ask(run)
        (self.task,) = run.new_tasks
        self.brought = self.handled = self.dead_letters = 0
        self.has_lost_letter = False
        self.has_step = self.desk.ask(self.task)
        self.served_at = self.desk.now

    def work_on_step(self):
        """Carry out a step. Return the outcome, and how many records it has handled."""
        step, cursor, fails = self.task.step, self.task.cursor, self.rng.random() < 0.3
        assert self.task.is_lease_held == (self.desk.now < self.shard.grant.held_until)
        if isinstance(step, WriteDeadLetter):
            self.desk.now += 0.25
            fails = fails and not self.has_lost_letter  # a letter that cannot be written again stops the run
            self.has_lost_letter = fails
            self.dead_letters += 0 if fails else len(step.letter.records)
            return FAILED if fails else Outcome(), 0
        if isinstance(step, Attempt):
            if not self.task.is_lease_held:
                return NOT_CALLED, 0
            self.desk.now += self.rng.choice([0.0, 0.5])
            return (FAILED, 0) if fails else (Outcome(), len(step.records))
        assert isinstance(step, Handle)
        left = cursor.end - cursor.place
        count = self.rng.randint(1, left) if fails else left
        for _ in range(count):
            cursor.take(self.desk.now)
            self.desk.now += self.rng.choice([0.0, 0.125])
        return (FAILED, count - 1) if fails else (Outcome(), count)

    def play(self):
        """Let some time pass for the handler, and compare the events with the naive counts."""
        if self.rng.random() < 0.4:
            count = self.rng.randint(1, 5)
            self.brought += count
            self.desk.bring(count)
            self._note_answers(self.desk.hand_out.take_answered())
        elif not self.has_step:
            self._note_answers(self.desk.poll(0.5))
        else:
            if isinstance(self.task.step, Attempt) and self.rng.random() < 0.1:
                self.desk.now = max(self.desk.now, self.shard.grant.held_until)  # the lease has lapsed
            self._finish_step()
        self.shard.grant.extend(self.desk.now + 5.0)

    def _note_answers(self, answered):
        if self.task in answered:
            self.has_step, self.served_at = True, self.desk.now

    def _finish_step(self):
        self.task.outcome, count = self.work_on_step()
        self.handled += count
        self.seen()
        self.has_step = self.desk.ask(self.task)
        expected = [RecordsHandled("a", count, self.desk.now - self.served_at)] if count else []
        assert self.seen() == expected
        self.served_at = self.desk.now

    def seen(self):
        return [event for event in self.desk.hand_out.take_events() if isinstance(event, RecordsHandled)]


@pytest.mark.parametrize("seed", range(12))
def test_a_record_is_counted_as_handled_once_when_its_handler_has_returned(seed):
    handler = CountedHandler(seed)
    for _ in range(150):
        handler.play()
    totals = handler.work.totals()
    assert totals.records_handled == handler.handled > 20
    assert handler.desk.hand_out.counts.dead_letters == handler.dead_letters
    assert handler.handled + handler.dead_letters <= totals.records_handed_out <= handler.brought
