"""What is the next step of a handler task?"""

import pytest
from tests.harness.hand_out import Desk

from shardline.core.consumer.consumer_events import HandlerStuck, HandlingStopped, RecordsHandled
from shardline.core.consumer.failure_policy import FailurePolicy, WriteDeadLetter
from shardline.core.consumer.handler_task import NOT_CALLED, Attempt, Outcome, Stop
from shardline.core.consumer.handout import CancelHandler
from shardline.errors import LeaseNotHeld

POLICY = FailurePolicy(attempts=2, backoff=1.0, backoff_max=1.0)
FAILED = Outcome("broken")


class Shell:
    """A run on one shard, and its task."""

    def __init__(self, policy=POLICY, *, batch=None, max_wait=0.0, **settings):
        self.desk = Desk(**settings)
        self.hand_out = self.desk.hand_out
        self.shard = self.desk.gain()
        self.run = self.desk.run(policy, batch=batch, max_wait=max_wait)
        assert self.desk.ask(self.run)
        (self.task,) = self.run.new_tasks

    def step(self, outcome=None):
        """Ask with this outcome. Return the next step, or ``None`` if the task has to wait."""
        self.task.outcome = Outcome() if outcome is None else outcome
        return self.task.step if self.desk.ask(self.task) else None

    def handle(self, count=1):
        """Take the records of the cursor."""
        return [self.task.cursor.take(self.desk.now) for _ in range(count)]

    @property
    def watermark(self):
        return self.desk.watermark()


def test_a_record_that_always_fails_stops_the_run_and_is_not_done():
    shell = Shell(FailurePolicy(attempts=1))
    records = shell.desk.bring(3)
    shell.step()
    shell.handle(2)
    assert shell.step(FAILED) == Stop("a", [records[1]], "broken")
    shell.hand_out.leave(shell.task, shell.desk.now)
    assert shell.watermark == 1
    assert shell.desk.take(shell.desk.iterate()) == records[1:]
    assert shell.hand_out.counts.failed_records == 1


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_a_record_whose_dead_letter_was_written_is_done(ack):
    shell = Shell(FailurePolicy(attempts=2, backoff=1.0, backoff_max=1.0, finally_="dead-letter"), ack=ack)
    (record,) = shell.desk.bring(1)
    shell.step()
    shell.handle()
    assert shell.step(FAILED) is None
    shell.desk.poll(1.0)
    assert shell.task.step == Attempt([record])
    step = shell.step(FAILED)
    assert isinstance(step, WriteDeadLetter)
    assert (step.letter.records, step.letter.error, step.letter.attempts) == ([record], "broken", 2)
    assert shell.step(Outcome("no room on the disk")) is None
    shell.desk.poll(1.0)
    assert isinstance(shell.task.step, WriteDeadLetter)
    assert shell.step() is None
    assert (shell.watermark, shell.hand_out.counts.dead_letters) == (1, 1)


def test_a_batch_waits_for_its_fill():
    shell = Shell(batch=3, max_wait=0.5)
    shell.desk.bring(2)
    assert shell.step() is None
    assert shell.desk.poll(0.5) == [shell.task]
    assert len(shell.task.step.records) == 2


def test_a_batch_that_waits_for_its_retry_is_given_back_when_the_lease_is_asked_for():
    shell = Shell(batch=2)
    shell.desk.bring(2)
    shell.step()
    assert shell.step(FAILED) is None
    shell.hand_out.handle_hand_over_asked("s", "a", shell.desk.now)
    assert shell.hand_out.take_answered() == [shell.task]
    assert (shell.task.step, shell.watermark, shell.desk.phase()) == (None, 0, "LEAVING")


def test_a_handler_at_work_is_let_finish_its_attempt_when_its_lease_is_asked_for():
    shell = Shell(batch=2)
    shell.desk.bring(2)
    shell.step()
    shell.hand_out.handle_hand_over_asked("s", "a", shell.desk.now)
    assert (shell.step(), shell.watermark, shell.desk.phase()) == (None, 2, "LEAVING")


def test_a_lease_that_is_lost_and_regained_waits_for_the_handler_that_is_still_at_work():
    """The handler is shielded from cancellation. Regression: the run ended with a ValueError."""
    shell = Shell(stuck_after=5.0)
    shell.desk.bring(2)
    shell.step()
    shell.handle(1)
    shell.desk.lose()
    shell.desk.gain()
    again = shell.desk.bring(2)
    assert shell.desk.ask(shell.run)
    (second,) = shell.run.new_tasks
    assert not shell.desk.ask(second)
    shell.desk.poll(5.0)
    assert shell.hand_out.take_events() == [HandlerStuck("a", "1", 0, 1, 5.0)]
    assert shell.step() is None
    assert shell.task.is_over, "its lease is gone"
    assert second.cursor.records == again
    assert second.is_at_work
    shell.hand_out.leave(shell.task, shell.desk.now)
    assert shell.watermark == 0, "the record of the lost lease counts for nothing"


def test_of_manual_acknowledgements_only_a_handler_without_its_lease_is_watched_itself():
    shell = Shell(ack="manual", stuck_after=5.0)
    (record,) = shell.desk.bring(1)
    shell.step()
    shell.handle(1)
    shell.hand_out.ack(record, shell.desk.now)
    shell.desk.poll(5.0)
    assert shell.hand_out.take_events() == []
    shell.desk.lose()
    shell.desk.poll()
    assert shell.hand_out.take_events() == [HandlerStuck("a", "1", 0, 1, 5.0)]


# ---- runs


def test_a_lease_that_went_before_its_task_was_started_has_none():
    shell = Shell()
    shell.desk.gain("b")
    shell.desk.lose("b")
    assert not shell.desk.ask(shell.run)


@pytest.mark.parametrize("way", ["closed", "failed", "exhausted"])
def test_a_run_is_over_when_no_more_is_handed_out(way):
    shell = Shell()
    shell.desk.ask(shell.run)
    assert shell.step() is None
    if way == "closed":
        shell.hand_out.close(shell.desk.now)
    elif way == "failed":
        shell.hand_out.fail("no", shell.desk.now)
    else:
        shell.hand_out.bounds.is_exhausted = True
        shell.hand_out.bounds.is_ready = False
        shell.desk.poll()
    assert (shell.run.is_over, shell.task.is_over, shell.run.new_tasks) == (True, True, [])


def test_l2_a_handler_that_was_not_called_under_a_lapsed_lease_is_called_once_the_lease_is_renewed():
    shell = Shell(FailurePolicy(attempts=1), batch=2)
    records = shell.desk.bring(2)
    assert shell.step() == Attempt(records)
    shell.desk.now = shell.shard.grant.held_until
    assert not shell.task.is_lease_held
    assert shell.step(NOT_CALLED) is None, "the lease may be lost or renewed any moment"
    shell.shard.grant.extend(shell.desk.now + 10.0)
    assert shell.desk.poll(0.1) == [shell.task]
    assert (shell.task.step, shell.task.is_lease_held) == (Attempt(records), True)
    assert shell.step() is None
    assert (shell.watermark, shell.hand_out.counts.failed_records) == (2, 0), "the one attempt was not used up"


def test_l2_a_handler_that_was_not_called_gives_its_batch_back_when_the_lease_is_lost():
    shell = Shell(batch=2)
    records = shell.desk.bring(2)
    assert shell.step() == Attempt(records)
    shell.desk.now = shell.shard.grant.held_until
    assert shell.step(NOT_CALLED) is None
    shell.desk.lose()
    assert (shell.task.is_over, shell.task.step) == (True, None)
    assert CancelHandler(shell.task) in shell.hand_out.take_actions()


# ---- fenced handlers

FENCED = Outcome(LeaseNotHeld("exactly_once", {"a": "a later owner has claimed it"}))
ONE_ATTEMPT = [FailurePolicy(attempts=1, finally_=finally_) for finally_ in ("stop", "dead-letter")]


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("policy", ONE_ATTEMPT)
def test_a_fenced_handler_is_not_called_again_and_its_records_are_given_back_when_the_lease_is_lost(policy, batch):
    shell = Shell(policy, batch=batch)
    shell.desk.bring(2)
    shell.step()
    if batch is None:
        shell.handle(1)
    assert shell.step(FENCED) is None
    for _ in range(5):
        assert shell.desk.poll(1.0) == []
    shell.desk.now = shell.shard.grant.held_until
    assert shell.desk.poll(1.0) == []
    shell.desk.lose()
    assert (shell.task.is_over, shell.task.step) == (True, None)
    counts = shell.hand_out.counts
    assert (counts.failed_records, counts.dead_letters, shell.hand_out.take_events()) == (0, 0, [])


@pytest.mark.parametrize("policy", ONE_ATTEMPT)
def test_a_handler_that_is_fenced_although_the_lease_was_renewed_since_stops_the_run(policy):
    shell = Shell(policy, batch=2)
    records = shell.desk.bring(2)
    shell.step()
    shell.desk.now += 1.0
    assert shell.step(FENCED) is None
    shell.shard.grant.extend(shell.desk.now + shell.desk.config.lease_duration)
    assert shell.desk.poll(0.1) == [], "this renewal was sent before the handler was fenced"
    shell.shard.grant.extend(shell.desk.now + shell.desk.config.lease_duration)
    assert shell.desk.poll(0.1) == [shell.task]
    assert shell.task.step == Stop("a", records, FENCED.error)
    assert [type(event) for event in shell.hand_out.take_events()] == [HandlingStopped]


def test_a_handler_without_the_lease_of_another_shard_has_failed():
    shell = Shell(ONE_ATTEMPT[0])
    (record,) = shell.desk.bring(1)
    shell.step()
    shell.handle(1)
    other = LeaseNotHeld("pause", {"b": "this worker does not hold its lease"})
    assert shell.step(Outcome(other)) == Stop("a", [record], other)


@pytest.mark.parametrize("policy", ONE_ATTEMPT)
def test_an_error_after_the_loss_of_the_lease_is_no_failure_of_the_record(policy):
    shell = Shell(policy, batch=2)
    shell.desk.bring(2)
    shell.step()
    shell.desk.lose()
    assert shell.step(FAILED) is None
    assert (shell.task.is_over, shell.hand_out.counts.failed_records) == (True, 0)


def test_a_dead_letter_waits_while_the_lease_has_lapsed():
    shell = Shell(ONE_ATTEMPT[1])
    (record,) = shell.desk.bring(1)
    shell.step()
    shell.handle(1)
    assert isinstance(shell.step(FAILED), WriteDeadLetter)
    assert shell.step(NOT_CALLED) is None
    assert (shell.watermark, shell.hand_out.counts.dead_letters) == (0, 0)
    assert shell.desk.poll(0.1) == [shell.task]
    assert shell.task.step.letter.records == [record]
    shell.step()
    assert (shell.watermark, shell.hand_out.counts.dead_letters) == (1, 1)


# ---- which records are handled


def handled(shell):
    return [event for event in shell.hand_out.take_events() if isinstance(event, RecordsHandled)]


def test_a_page_is_handled_when_its_handler_has_returned():
    shell = Shell()
    shell.hand_out.work.observe(shell.desk.now)
    shell.desk.bring(3)
    shell.step()
    shell.handle(3)
    shell.desk.now += 2.0
    assert shell.step() is None
    assert handled(shell) == [RecordsHandled("a", 3, 2.0)]


def test_a_record_that_failed_is_handled_when_an_attempt_succeeds():
    shell = Shell()
    shell.hand_out.work.observe(shell.desk.now)
    shell.desk.bring(2)
    shell.step()
    shell.handle(2)
    shell.desk.now += 2.0
    assert shell.step(FAILED) is None
    assert handled(shell) == [RecordsHandled("a", 1, 2.0)]
    shell.desk.poll(1.0)
    assert isinstance(shell.task.step, Attempt)
    shell.desk.now += 0.5
    assert shell.step() is None
    assert handled(shell) == [RecordsHandled("a", 1, 0.5)]


def test_dead_letters_are_not_handled():
    shell = Shell(FailurePolicy(attempts=2, backoff=1.0, backoff_max=1.0, finally_="dead-letter"))
    shell.hand_out.work.observe(shell.desk.now)
    shell.desk.bring(1)
    shell.step()
    shell.handle()
    assert shell.step(FAILED) is None
    shell.desk.poll(1.0)
    assert isinstance(shell.step(FAILED), WriteDeadLetter)
    assert shell.step(FAILED) is None  # the dead letter cannot be written at first
    shell.desk.poll(1.0)
    assert isinstance(shell.task.step, WriteDeadLetter)
    shell.step()
    assert shell.hand_out.counts.dead_letters == 1
    assert handled(shell) == []
    assert shell.hand_out.work.totals().records_handled == 0
