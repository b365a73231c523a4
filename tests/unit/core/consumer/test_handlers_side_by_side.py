"""Do the hand-out, the held shard and the tasks of a pool keep order, commits and limits, with handlers side by side?"""

import gc

from tests.harness.hand_out import Desk

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import HandlerStuck, RecordsHandedOut, RecordsHandled
from shardline.core.consumer.failure_policy import FailurePolicy, WriteDeadLetter
from shardline.core.consumer.handler_task import Attempt, Outcome, Stop
from shardline.core.consumer.handout import CancelHandler
from shardline.core.consumer.lifecycle import CallbackKind
from shardline.model.record import Record
from shardline.model.sequence import SequenceNumber

POLICY = FailurePolicy(attempts=2, backoff=1.0, backoff_max=1.0)
FAILED = Outcome("broken")


class Shell:
    """A run with ``concurrency``, and its tasks."""

    def __init__(self, concurrency=2, order="key", *, policy=POLICY, in_processes=False, **settings):
        limits = {name: settings.pop(name) for name in ("batch", "max_wait") if name in settings}
        self.desk = Desk(**settings)
        self.hand_out = self.desk.hand_out
        self.run = self.desk.run(policy, concurrency=concurrency, order=order, in_processes=in_processes, **limits)
        self.tasks = []
        self.desk.ask(self.run)

    def start(self):
        """Start the tasks that the run wants, and let each of them ask."""
        while self.run.answered == self.run.asked and not self.run.is_over:
            new, self.run.new_tasks = self.run.new_tasks, []
            self.tasks += new
            for task in new:
                self.desk.ask(task)
            self.desk.ask(self.run)
        return [self.works_on(task) for task in self.tasks]

    def works_on(self, task):
        """Return the numbers of the records that the task's handler has."""
        if not task.is_at_work:
            return []
        if not task.whole and task.cursor.is_open:
            task.cursor.take(self.desk.now)
        task.cursor.taken_at = self.desk.now if task.cursor.taken_at is None else task.cursor.taken_at
        return [int(record.sequence_number) for record in task.cursor.records]

    def end(self, number, outcome=None):
        """Let the handler of this record return. Return what all tasks work on then."""
        (task,) = [task for task in self.tasks if number in self.works_on(task)]
        task.outcome = Outcome() if outcome is None else outcome
        self.desk.ask(task)
        return self.start()

    def poll(self, seconds):
        self.desk.poll(seconds)
        return self.start()

    def at_work(self):
        return sorted(number for task in self.tasks for number in self.works_on(task))


def test_handlers_of_different_keys_work_side_by_side_and_the_watermark_follows():
    shell = Shell(2)
    grant = shell.desk.gain().grant
    shell.desk.bring(4, keys="abac")
    assert shell.start() == [[1], [2]]
    shell.end(2)
    assert (shell.at_work(), shell.desk.watermark()) == ([1, 4], 0)
    shell.end(4)
    assert (shell.at_work(), shell.desk.watermark()) == ([1], 0)
    assert (grant.is_in_order, grant.done_through) == (False, None)
    shell.end(1)
    assert (shell.at_work(), shell.desk.watermark()) == ([3], 2)
    assert (grant.is_in_order, grant.done_through) == (False, SequenceNumber(2))
    # A record refers to the grant, and the garbage collector does not track records: a reference back would be a leak.
    assert not any(isinstance(value, Record) for value in gc.get_referents(grant))
    shell.end(3)
    assert (shell.at_work(), shell.desk.watermark()) == ([], 4)
    assert shell.hand_out.budget.total_bytes == 0
    assert shell.hand_out.keys.lanes == {}


def test_shards_take_turns():
    shell = Shell(1, "none")
    for name in "ab":
        shell.desk.gain(name)
        shell.desk.bring(2, name)
    assert shell.start() == [[1]]
    assert [shell.end(number) for number in (1, 3, 2)] == [[[3]], [[2]], [[4]]]


def test_one_task_of_a_shard_at_a_time_in_the_order_of_the_shard():
    shell = Shell(5, "shard")
    for name in "ab":
        shell.desk.gain(name)
        shell.desk.bring(2, name)
    shell.start()
    assert shell.at_work() == [1, 3]
    shell.end(3)
    assert (shell.at_work(), shell.desk.watermark("b")) == ([1, 4], 3)


def test_a_task_that_has_nothing_to_do_is_woken_by_the_next_page():
    shell = Shell(2)
    shell.desk.gain()
    shell.desk.bring(1, keys="a")
    shell.start()
    assert shell.end(1) == [[]]
    shell.desk.bring(2, keys="ab")
    assert shell.start() == [[2], [3]]


def test_a_failing_record_does_not_hold_up_other_keys_even_with_one_handler():
    shell = Shell(1)
    shell.desk.gain()
    shell.desk.bring(4, keys="abac")
    shell.start()
    shell.end(1, FAILED)
    assert shell.at_work() == [2]
    shell.poll(1.0)
    assert shell.at_work() == [2], "the retry waits until the handler returns"
    shell.end(2)
    assert shell.at_work() == [1]
    assert isinstance(shell.tasks[0].step, Attempt)
    shell.end(1)
    assert (len(shell.at_work()), shell.desk.watermark()) == (1, 2)
    for _ in range(2):
        shell.end(shell.at_work()[0])
    assert (shell.at_work(), shell.desk.watermark()) == ([], 4)


def test_a_task_that_is_not_needed_any_more_ends():
    shell = Shell(1)
    shell.desk.gain()
    shell.desk.bring(2, keys="ab")
    shell.start()
    shell.end(1, FAILED)
    assert len(shell.tasks) == 2
    shell.end(2)
    shell.poll(1.0)
    shell.end(1)
    assert [task.is_over for task in shell.tasks].count(True) == 1


def test_a_dead_letter_frees_the_key_and_a_stop_ends_the_run():
    policy = FailurePolicy(attempts=1, finally_="dead-letter")
    shell = Shell(1, policy=policy)
    shell.desk.gain()
    shell.desk.bring(2, keys="aa")
    shell.start()
    shell.end(1, FAILED)
    assert isinstance(shell.tasks[0].step, WriteDeadLetter)
    shell.end(1)
    assert (shell.at_work(), shell.desk.watermark()) == ([2], 1)
    shell = Shell(1, policy=FailurePolicy(attempts=1))
    shell.desk.gain()
    (record,) = shell.desk.bring(1)
    shell.start()
    shell.end(1, FAILED)
    assert shell.tasks[0].step == Stop("a", [record], "broken")


def test_a_batch_that_is_bisected_keeps_its_keys_until_it_is_done():
    shell = Shell(2, batch=4, policy=FailurePolicy(attempts=1, finally_="dead-letter"))
    shell.desk.gain()
    shell.desk.bring(5, keys="ababa")
    shell.start()
    assert shell.at_work() == [1, 2, 3, 4]
    for outcome in (FAILED, Outcome(), FAILED, FAILED, Outcome()):  # 1-4, 1-2, 3-4, 3, its dead letter
        assert shell.desk.watermark() == 0
        shell.end(1, outcome)
    shell.end(1)  # 4
    assert (shell.at_work(), shell.desk.watermark()) == ([5], 4)


def test_a_batch_waits_for_more_records():
    shell = Shell(2, batch=3, max_wait=2.0)
    shell.desk.gain()
    shell.desk.bring(2, keys="ab")
    shell.start()
    shell.poll(1.0)
    assert shell.at_work() == []
    shell.poll(1.0)
    assert shell.at_work() == [1, 2]
    shell.desk.bring(3, keys="acd")
    shell.start()
    assert shell.at_work() == [1, 2, 4, 5]


def test_handlers_do_not_run_too_far_ahead_of_the_watermark():
    shell = Shell(9, max_unacknowledged=3)
    shell.desk.gain()
    shell.desk.bring(5, keys="abcde")
    shell.start()
    assert shell.at_work() == [1, 2, 3]
    shell.end(2)
    assert shell.at_work() == [1, 3]
    shell.end(1)
    assert shell.at_work() == [3, 4, 5]


def test_a_hand_over_waits_for_the_handlers_at_work_and_commits_up_to_the_first_that_is_not_done():
    shell = Shell(3)
    shard = shell.desk.gain()
    shell.desk.bring(3, keys="abc")
    shell.desk.bring(3, keys="ade")
    shell.start()
    shell.hand_out.handle_hand_over_asked("s", "a", shell.desk.now)
    shell.end(2)
    shell.end(3)
    assert (shell.at_work(), shell.desk.phase()) == ([1], "ACTIVE")
    shell.end(1)
    assert (shell.at_work(), shell.desk.watermark(), shell.desk.phase()) == ([], 3, "LEAVING")
    assert (shard.pages, shard.records, shell.hand_out.keys.lanes) == (type(shard.pages)(), 0, {})


def test_a_hand_over_of_a_shard_whose_records_are_all_in_hand_ends_the_shard():
    shell = Shell(3)
    shard = shell.desk.gain()
    shell.desk.bring(1, keys="a")
    shell.desk.bring(1, keys="b")
    shell.desk.bring(0, last=True)
    shell.start()
    shell.hand_out.handle_hand_over_asked("s", "a", shell.desk.now)
    shell.end(2)
    assert not shard.has_ended
    shell.end(1)
    assert shard.has_ended


def test_a_record_that_waits_for_its_retry_does_not_delay_a_hand_over():
    shell = Shell(1)
    shell.desk.gain()
    shell.desk.bring(1)
    shell.start()
    shell.end(1, FAILED)
    shell.hand_out.handle_hand_over_asked("s", "a", shell.desk.now)
    assert (shell.at_work(), shell.desk.phase(), shell.desk.watermark()) == ([], "LEAVING", 0)
    assert shell.hand_out.keys.lanes == {}


def test_the_last_page_of_a_shard_ends_it_even_if_it_is_empty():
    shell = Shell(2)
    shell.desk.gain()
    shell.desk.bring(0, last=True, children=("c",))
    shell.start()
    assert shell.desk.groups["s"].ended == [("a", ("c",))]
    shell = Shell(2)
    shell.desk.gain()
    shell.desk.bring(2, keys="ab")
    shell.start()
    shell.desk.bring(0, last=True)
    shell.end(2)
    assert shell.desk.groups["s"].ended == []
    shell.end(1)
    assert shell.desk.groups["s"].ended == [("a", ())]


def test_a_lost_lease_takes_its_records_with_it_and_cancels_its_handlers():
    shell = Shell(2)
    shell.desk.gain()
    shell.desk.gain("b")
    shell.desk.bring(3, keys="ava")
    shell.desk.bring(2, "b", keys="cd")
    shell.start()
    gone = [task for task in shell.tasks if task.shard is shell.desk.shards["a"]]
    shell.desk.lose()
    assert [action for action in shell.hand_out.take_actions() if isinstance(action, CancelHandler)] == [
        CancelHandler(task) for task in gone
    ]
    for task in gone:
        shell.hand_out.leave(task, shell.desk.now)
        shell.tasks.remove(task)
    shell.start()
    assert shell.at_work() == [4, 5]
    assert set(shell.hand_out.keys.lanes) == {"c", "d"}


def test_a_thread_that_outlives_its_lease_keeps_its_key_and_its_shard():
    shell = Shell(4)
    shell.desk.gain()
    shell.desk.bring(1, keys="a")
    shell.start()
    (task,) = shell.tasks
    shell.desk.lose()
    shell.hand_out.leave(task, shell.desk.now, is_at_work=True)
    shell.tasks.remove(task)
    shell.desk.gain()
    shell.desk.gain("child")
    shell.desk.bring(2, keys="ab")
    shell.desk.bring(2, "child", keys="ac")
    shell.start()
    assert shell.at_work() == [5], "neither the shard nor the key"
    shell.hand_out.handle_work_ended(task, shell.desk.now)
    shell.start()
    assert shell.at_work() in ([3, 5], [2, 3, 5], [3, 4, 5])
    assert not shell.hand_out._claims
    assert not shell.hand_out._outliving


def test_a_thread_that_outlives_its_run_counts_until_it_returns():
    shell = Shell(1)
    shell.desk.gain()
    shell.desk.bring(2, keys="ab")
    shell.start()
    (task,) = shell.tasks
    shell.hand_out.leave(task, shell.desk.now, is_at_work=True)
    assert shell.run.pool.at_work == [task]
    again = shell.desk.iterate()
    assert not shell.desk.ask(again)
    shell.hand_out.handle_work_ended(task, shell.desk.now)
    assert shell.run.pool.at_work == []
    assert [int(record.sequence_number) for record in again.cursor.records] == [1, 2]


def test_an_iteration_leaves_out_the_records_that_a_run_has_done_early():
    shell = Shell(3)
    shell.desk.gain()
    shell.desk.bring(5, keys="abcde")
    shell.start()
    shell.end(2)
    shell.end(3)
    for task in shell.tasks:
        shell.hand_out.leave(task, shell.desk.now)
    taker = shell.desk.iterate()
    assert [int(record.sequence_number) for record in shell.desk.take(taker)] == [1]
    assert shell.desk.watermark() == 0
    assert [int(record.sequence_number) for record in shell.desk.take(taker)] == [4, 5]
    assert shell.desk.watermark() == 3
    assert shell.hand_out.shards["s", "a"].done_early == 0


def test_a_batch_leaves_out_the_records_that_a_run_has_done_early():
    shell = Shell(3)
    shell.desk.gain()
    shell.desk.bring(4, keys="abcd")
    shell.start()
    shell.end(3)
    for task in shell.tasks:
        shell.hand_out.leave(task, shell.desk.now)
    taker = shell.desk.iterate(limit=10, whole=True)
    assert shell.desk.ask(taker)
    assert [int(record.sequence_number) for record in taker.cursor.take_all()] == [1, 2]


def test_the_next_run_begins_when_the_records_of_the_older_are_given_back():
    shell = Shell(2)
    shard = shell.desk.gain()
    shell.desk.bring(3, keys="abc")
    shell.start()
    shell.end(2)
    older = shell.tasks
    run = shell.desk.run(POLICY, concurrency=4, order="none")
    assert shard.lanes is None
    for task in older:
        shell.hand_out.leave(task, shell.desk.now)
    shell.run, shell.tasks = run, []
    shell.desk.ask(run)
    shell.start()
    assert shell.at_work() == [1, 3]


def test_lanes_begin_when_an_older_iteration_has_ended():
    shell = Shell(2)
    shell.desk.gain()
    shell.desk.bring(2, keys="ab")
    taker = shell.desk.iterate()
    shell.desk.take(taker, 1)
    shell.run = shell.desk.run(POLICY, concurrency=4, order="none")
    shell.tasks = []
    shell.desk.ask(shell.run)
    shell.start()
    assert (shell.at_work(), shell.desk.watermark()) == ([2], 1)


def test_a_run_that_replaces_another_while_its_shard_stops_drops_the_pages():
    shell = Shell(2)
    shard = shell.desk.gain()
    shell.desk.bring(3, keys="abc")
    shell.start()
    shell.desk.run(POLICY, concurrency=4, order="none")
    shell.hand_out.handle_hand_over_asked("s", "a", shell.desk.now)
    assert shard.records == 3
    for task in shell.tasks:
        shell.hand_out.leave(task, shell.desk.now)
    assert (shard.records, shell.desk.phase()) == (0, "LEAVING")


def test_a_record_whose_lease_has_lapsed_is_put_back():
    shell = Shell(1)
    shard = shell.desk.gain()
    shell.desk.bring(2, keys="aa")
    (task,) = shell.tasks = shell.run.new_tasks
    assert shell.desk.ask(task)
    until, shard.grant.held_until = shard.grant.held_until, shell.desk.now
    task.outcome = Outcome()
    shell.desk.ask(task)
    shard.grant.held_until = until
    assert shell.works_on(task) == [1]


def test_the_status_of_a_shard_counts_the_records_in_hand_and_those_that_wait():
    shell = Shell(2)
    shard = shell.desk.gain()
    records = shell.desk.bring(5, keys="abacd")
    shell.start()
    since = shell.desk.now
    state = shard.handling_state
    assert state == (records[0], 2, 3, since)
    assert shard.next_record is None
    assert shell.hand_out.keys_in_flight() == {"a": since, "b": since}
    shell.end(2)
    state = shard.handling_state
    assert state == (records[0], 2, 2, since)
    shell.tasks[0].cursor.taken_at = None
    assert "a" not in shell.hand_out.keys_in_flight()
    shell.desk.lose()
    assert shard.handling_state.oldest is None


def test_keys_are_shown_only_in_the_order_of_keys():
    shell = Shell(2, "none")
    shell.desk.gain()
    shell.desk.bring(2, keys="a-")
    shell.start()
    assert shell.hand_out.keys_in_flight() == {}
    shell = Shell(2)
    shell.desk.gain()
    shell.desk.bring(1, keys="-")
    shell.start()
    assert shell.hand_out.keys_in_flight() == {}


def test_the_handler_that_has_worked_for_the_longest_is_stuck():
    shell = Shell(2, stuck_after=10.0)
    shell.desk.gain()
    shell.desk.bring(3, keys="abc")
    shell.start()
    shell.poll(6.0)
    shell.end(1)
    shell.poll(5.0)
    (stuck,) = [event for event in shell.hand_out.take_events() if isinstance(event, HandlerStuck)]
    assert (stuck.shard_id, stuck.seconds) == ("a", 11.0)


def test_single_records_are_counted_together():
    shell = Shell(2)
    shell.hand_out.work.observe(shell.desk.now)
    shell.desk.gain()
    shell.desk.bring(3, keys="abc")
    shell.start()
    shell.desk.now += 2.0
    shell.end(1)
    shell.end(2)
    kinds = (RecordsHandedOut, RecordsHandled)
    assert not [event for event in shell.hand_out.take_events() if isinstance(event, kinds)]
    shell.desk.poll(1.0)
    events = [event for event in shell.hand_out.take_events() if isinstance(event, kinds)]
    assert events == [RecordsHandedOut("a", 3), RecordsHandled("a", 2, 4.0)]
    shell.desk.poll(1.0)
    assert not [event for event in shell.hand_out.take_events() if isinstance(event, kinds)]


def test_all_tasks_end_with_the_run():
    shell = Shell(2, idle_timeout=5.0)
    shell.desk.gain()
    shell.desk.bring(2, keys="ab")
    shell.desk.poll()
    shell.start()
    shell.end(1)
    shell.end(2)
    shell.desk.poll()
    assert not shell.run.is_over
    shell.desk.poll(5.0)
    assert shell.run.is_over
    assert all(task.is_over for task in shell.tasks)


def test_a_record_that_is_done_does_not_wake_the_host_of_a_bounded_run_while_others_are_in_hand():
    shell = Shell(2, until_latest=True)
    shell.desk.gain()
    shell.desk.bring(3, keys="abc")
    shell.desk.poll()
    shell.start()
    shell.hand_out.take_pump_due()
    shell.end(2)
    assert not shell.hand_out.take_pump_due()
    shell.end(1)
    shell.hand_out.take_pump_due()
    shell.end(3)
    assert shell.hand_out.take_pump_due(), "the last record may end the run"


def test_records_wait_for_the_callback_of_their_shard():
    shell = Shell(2, callbacks=[CallbackKind.ASSIGNED])
    shell.desk.gain()
    shell.desk.bring(2, keys="ab")
    assert shell.start() == [[], []]
    (call,) = [action for action in shell.hand_out.take_actions() if getattr(action, "kind", None) is not None]
    shell.hand_out.handle_called_back(call, shell.desk.now)
    shell.start()
    assert shell.at_work() == [1, 2]
    assert shell.hand_out.next_deadline() < NEVER


def test_records_of_a_lease_that_is_gone_are_not_tracked():
    shell = Shell(2)
    shell.desk.gain()
    shell.desk.groups["s"].held.lose("a", "test")
    shell.desk.bring(1)
    assert shell.start() == [[1]]
    assert shell.desk.shards["a"].holding is None


def start_message():
    """Return a run in one process, which has a message with records 2 to 5, of the keys a and b."""
    shell = Shell(1, in_processes=True)
    shell.desk.gain()
    shell.desk.bring(5, keys="zabab")
    shell.start()
    shell.run.travel.limit = 2
    end_message(shell, [1], 1)
    assert shell.at_work() == [2, 3, 4, 5]
    return shell


def end_message(shell, numbers, place, outcome=None):
    """Let the process that has the message with these records return after it has taken ``place`` records."""
    (task,) = [task for task in shell.tasks if shell.works_on(task) == numbers]
    task.cursor.place = place
    task.outcome = Outcome() if outcome is None else outcome
    shell.desk.ask(task)
    shell.start()


def test_a_shard_whose_last_record_failed_in_a_message_does_not_hold_up_the_next_shard():
    shell = Shell(1, in_processes=True, policy=FailurePolicy(attempts=1, finally_="dead-letter"))
    shell.desk.gain()
    shell.desk.bring(3)
    shell.start()
    shell.run.travel.limit = 2
    end_message(shell, [1], 1)
    end_message(shell, [2, 3], 2, FAILED)
    shell.desk.gain("b")
    shell.desk.bring(1, "b")
    (task,) = shell.tasks
    assert isinstance(task.step, WriteDeadLetter)
    task.outcome = Outcome()
    shell.desk.ask(task)
    assert shell.start() == [[4]]


def test_more_records_travel_to_a_process_when_the_handler_is_quick():
    shell = Shell(1, in_processes=True)
    shell.desk.gain()
    shell.desk.bring(7, keys="ab")
    shell.start()
    end_message(shell, [1], 1)
    end_message(shell, [2, 3], 2)
    assert (shell.at_work(), shell.desk.watermark()) == ([4, 5, 6, 7], 3)


def test_records_behind_a_failed_one_in_a_message_wait_for_it_only_if_they_have_its_key():
    shell = start_message()
    end_message(shell, [2, 3, 4, 5], 1, FAILED)  # record 2 waits for its next attempt, and record 4 for its key
    assert (shell.at_work(), shell.desk.watermark()) == ([3, 5], 1)
    end_message(shell, [3, 5], 2)
    assert (shell.at_work(), shell.desk.watermark()) == ([], 1)
    shell.poll(1.0)
    assert shell.at_work() == [2]
    shell.end(2)
    assert (shell.at_work(), shell.desk.watermark()) == ([4], 3)
    shell.end(4)
    assert (shell.desk.watermark(), shell.hand_out.keys.lanes) == (5, {})


def test_the_records_before_a_failed_one_in_a_message_are_done():
    shell = start_message()
    end_message(shell, [2, 3, 4, 5], 3, FAILED)
    assert (shell.at_work(), shell.desk.watermark()) == ([5], 3)


def test_a_failed_record_of_a_message_is_put_back_if_the_shard_stops():
    shell = start_message()
    shell.hand_out.handle_hand_over_asked("s", "a", shell.desk.now)
    end_message(shell, [2, 3, 4, 5], 2, FAILED)
    assert (shell.at_work(), shell.desk.watermark()) == ([], 2)
    assert shell.hand_out.keys.lanes == {}
