"""How does user code control a running consumer: commit, pause, resume and seek?"""

import pytest
from tests.harness.hand_out import Desk, FakeReader

from shardline.core.consumer.consumer_events import MaxLeasesChanged, ShardSought, ShardsPaused, ShardsResumed
from shardline.core.consumer.control_requests import Request, sought_checkpoint
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handler_task import Outcome
from shardline.core.consumer.handout import CancelHandler
from shardline.core.consumer.lifecycle import CallBack, CallbackKind, CancelCallBack
from shardline.core.leases import CommitCheckpoint, ReleaseLease, apply
from shardline.errors import UsageError
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    after_sequence_number,
    at_sequence_number,
    at_timestamp,
)
from shardline.model.sequence import SequenceNumber


@pytest.fixture
def desk():
    return Desk()


def commit(desk, shards=None):
    request = Request(shards)
    desk.hand_out.commit(request, desk.now)
    return request


def pause(desk, shards=None):
    request = Request(shards)
    desk.hand_out.pause(request, desk.now)
    assert request.is_over
    return request


def resume(desk, shards=None):
    request = Request(shards)
    desk.hand_out.resume(request, desk.now)
    assert request.is_over
    return request


def write(desk, name="a"):
    """Let the store apply the operation that is due for the shard. Return the operation."""
    held = desk.groups["s"].held
    due = held.poll_operation((), desk.now)
    assert due is not None
    assert due.operation.shard_id == name
    held.handle_applied(due.holding, apply(due.holding.row, due.operation), desk.now)
    return due.operation


def control_events(desk):
    return [event for event in desk.hand_out.take_events() if isinstance(event, ShardsPaused | ShardsResumed)]


# ---- commit


def test_a_commit_writes_what_is_done_at_once_and_is_over_when_the_store_has_it(desk):
    desk.gain()
    desk.bring(3)
    desk.take(desk.iterate())
    request = commit(desk)
    assert desk.hand_out.take_pump_due()
    assert not request.is_over
    operation = write(desk)
    assert isinstance(operation, CommitCheckpoint)
    assert operation.checkpoint.sequence_number.number == 2, "the last record is in hand"
    assert not request.is_over
    desk.poll()
    assert request.is_over
    assert request.done == {"a": operation.checkpoint.position}
    assert not request.lost


def test_a_commit_of_nothing_is_over_at_once(desk):
    desk.gain()
    request = commit(desk)
    assert request.is_over
    assert list(request.done) == ["a"]


def test_a_commit_can_be_limited_to_shards_and_names_those_that_are_not_held(desk):
    desk.gain("a")
    desk.gain("b")
    desk.bring(2, "a")
    desk.bring(2, "b")
    taker = desk.iterate()
    desk.take(taker)
    desk.take(taker)
    desk.ask(taker)
    request = commit(desk, {("s", "a"), ("s", "z")})
    assert write(desk).checkpoint.sequence_number.number == 2
    assert desk.groups["s"].held.poll_operation((), desk.now) is None, "b waits for the interval"
    desk.poll()
    assert request.is_over
    assert list(request.done) == ["a"]
    assert request.lost == {"z": "this worker does not hold its lease"}


def test_a_commit_whose_lease_is_lost_says_why(desk):
    desk.gain()
    desk.bring(2)
    desk.take(desk.iterate())
    request = commit(desk)
    desk.lose()
    desk.poll()
    assert request.is_over
    assert request.lost == {"a": "test"}


def test_a_commit_waits_for_the_acknowledgements_of_its_time_and_no_later_ones():
    desk = Desk(ack="manual")
    desk.gain()
    records = desk.bring(3)
    desk.take(desk.iterate())
    desk.hand_out.ack(records[0], desk.now)
    request = commit(desk)
    desk.hand_out.ack(records[1], desk.now)
    write(desk)
    desk.poll()
    assert request.is_over


def test_a_shard_that_is_finished_has_everything_committed(desk):
    desk.gain()
    desk.bring(1, last=True)
    taker = desk.iterate()
    desk.take(taker)
    assert not desk.ask(taker)
    request = commit(desk)
    held = desk.groups["s"].held
    held.holdings["a"].allow_end(frozenset())
    assert write(desk).checkpoint.is_finished
    held.take_events()
    desk.poll()
    assert request.is_over
    assert not request.lost


def test_the_end_of_the_host_ends_every_commit(desk):
    desk.gain()
    desk.bring(2)
    desk.take(desk.iterate())
    request = commit(desk)
    desk.hand_out.end(desk.now)
    assert request.is_over
    assert request.lost == {"a": "the consumer has ended"}
    assert not commit(desk).is_over, "the caller sees that the host has ended"


def test_a_lease_that_was_released_before_the_commit_says_so(desk):
    desk.gain()
    desk.bring(2)
    desk.take(desk.iterate())
    request = commit(desk)
    holding = desk.groups["s"].held.holdings["a"]
    holding.lose("")
    desk.poll()
    assert request.lost == {"a": "the lease was released"}


# ---- pause and resume


def test_after_a_pause_nothing_is_handed_out_until_resume(desk):
    desk.gain()
    records = desk.bring(3)
    taker = desk.iterate()
    assert desk.take(taker, 1) == records[:1]
    pause(desk)
    assert not taker.cursor.is_open, "the rest of the page was taken back"
    assert not desk.ask(taker)
    assert desk.watermark() == 1, "the record in hand may be finished"
    desk.bring(1)
    assert desk.poll(100.0) == []
    resume(desk)
    assert desk.hand_out.take_answered() == [taker]
    assert list(taker.cursor.records) == records[1:]


def test_a_paused_shard_does_not_hold_up_others(desk):
    desk.gain("a")
    desk.gain("b")
    desk.bring(1, "a")
    (other,) = desk.bring(1, "b")
    request = pause(desk, {("s", "a"), ("s", "z")})
    assert request.lost == {"z": "this worker does not hold its lease"}
    taker = desk.iterate()
    assert desk.take(taker) == [other]
    assert not desk.ask(taker)
    desk.gain("c")
    (third,) = desk.bring(1, "c")
    assert list(taker.cursor.records) == [third], "only the named shard is paused"
    assert control_events(desk) == [ShardsPaused(("a",), is_all=False)]


def test_a_pause_takes_nothing_back_from_the_handler_of_another_shard(desk):
    for name in ("a", "b"):
        desk.gain(name)
        desk.bring(2, name)
    run = desk.run(FailurePolicy())
    assert desk.ask(run)
    first, second = run.new_tasks
    for task in (first, second):
        assert desk.ask(task)
    pause(desk, {("s", "b")})
    assert (first.cursor.is_open, second.cursor.is_open) == (True, False)


def test_a_shard_that_is_gained_while_all_are_paused_is_paused(desk):
    pause(desk)
    shard = desk.gain()
    desk.bring(1)
    taker = desk.iterate()
    assert shard.is_paused
    assert not desk.ask(taker)
    resume(desk, {("s", "a"), ("s", "z")})
    assert desk.hand_out.take_answered() == [taker]
    assert desk.gain("b").is_paused, "only the named shard goes on"
    resume(desk)
    assert not desk.gain("c").is_paused
    assert control_events(desk) == [
        ShardsPaused((), is_all=True),
        ShardsResumed(("a",), is_all=True),
        ShardsResumed(("b",), is_all=False),
    ]


def test_a_second_pause_or_resume_changes_nothing(desk):
    desk.gain()
    resume(desk)
    pause(desk)
    pause(desk)
    pause(desk, {("s", "a")})
    assert control_events(desk) == [ShardsPaused(("a",), is_all=True)]
    resume(desk)
    resume(desk)
    assert control_events(desk) == [ShardsResumed(("a",), is_all=False)]


def test_the_task_of_a_handler_waits_too(desk):
    desk.gain()
    records = desk.bring(2)
    _, task = desk.start(FailurePolicy())
    task.cursor.take(desk.now)
    pause(desk)
    assert not desk.ask(task)
    assert desk.watermark() == 1
    resume(desk)
    assert desk.hand_out.take_answered() == [task]
    assert list(task.cursor.records) == records[1:]


def test_no_bound_ends_a_run_while_a_shard_is_paused():
    desk = Desk(idle_timeout=5.0)
    desk.gain()
    taker = desk.iterate()
    desk.poll()
    assert desk.hand_out.bounds.is_ready
    desk.ask(taker)
    pause(desk, {("s", "a")})
    assert desk.poll(100.0) == []
    resume(desk)
    assert desk.poll(4.0) == []
    assert desk.poll(2.0) == [taker]
    assert taker.is_over


# ---- seek

START = Checkpoint(TRIM_HORIZON)


def seek(desk, checkpoint=START, shards=None):
    request = Request(shards)
    desk.hand_out.seek(request, checkpoint, desk.now)
    return request


def go_on(desk, name="a"):
    """Let the store write the sought position, and start the new reader as the shell does."""
    operation = write(desk, name)
    (sought,) = [event for event in desk.groups["s"].held.take_events() if isinstance(event, ShardSought)]
    if desk.hand_out.can_go_on("s", sought):
        reader = FakeReader(("s", name), desk.hand_out.budget)
        desk.shards[name] = desk.hand_out.handle_gained("s", sought, reader, desk.now)
    desk.poll()
    return operation, sought


def test_a_seek_writes_the_position_and_reads_again_from_there(desk):
    shard = desk.gain()
    desk.bring(3)
    taker = desk.iterate()
    taken = desk.take(taker, 2)
    request = seek(desk)
    assert shard.reader.is_stopped
    assert desk.hand_out.budget.total_bytes == 0, "what waited is dropped"
    assert not taken[0].lease.held
    assert not taker.cursor.is_open
    assert not request.is_over
    operation, sought = go_on(desk)
    assert (operation.checkpoint, sought.checkpoint, sought.before) == (START, START, TRIM_HORIZON)
    assert request.is_over
    assert request.done == {"a": TRIM_HORIZON}
    assert sought.grant.token == taken[0].lease.token, "it is the same lease"
    again = desk.bring(2)
    assert desk.take(taker) == again
    assert desk.watermark() == 0, "the records in hand at the time of the seek move nothing"
    desk.hand_out.ack(taken[1], desk.now)
    assert desk.watermark() == 0
    assert not desk.ask(taker)
    assert desk.watermark() == 5


def test_acknowledgements_between_the_seek_and_its_write_move_nothing():
    desk = Desk(ack="manual")
    desk.gain()
    records = desk.bring(3)
    taker = desk.iterate()
    desk.take(taker)
    desk.hand_out.ack(records[0], desk.now)
    seek(desk)
    for record in records:
        desk.hand_out.ack(record, desk.now)
    desk.poll()
    assert write(desk).checkpoint == START
    assert desk.groups["s"].held.poll_operation((), desk.now) is None, "nothing else is written"


def test_a_commit_that_is_in_flight_is_answered_first(desk):
    desk.gain()
    desk.bring(2)
    desk.take(desk.iterate())
    committing = commit(desk)
    held = desk.groups["s"].held
    due = held.poll_operation((), desk.now)
    request = seek(desk)
    assert held.poll_operation((), desk.now) is None, "L1: one write at a time"
    held.handle_applied(due.holding, apply(due.holding.row, due.operation), desk.now)
    desk.poll()
    assert committing.is_over
    assert not request.is_over
    _, sought = go_on(desk)
    assert sought.before.sequence_number.number == 1
    assert request.is_over


def test_a_commit_that_a_seek_overtakes_is_lost(desk):
    desk.gain()
    desk.bring(2)
    desk.take(desk.iterate())
    committing = commit(desk)
    seek(desk)
    desk.poll()
    assert committing.lost == {"a": "seek() has moved its position"}


def test_of_two_seeks_the_last_one_wins(desk):
    desk.gain()
    first = seek(desk)
    held = desk.groups["s"].held
    due = held.poll_operation((), desk.now)
    second = seek(desk, Checkpoint(at_sequence_number("7")))
    held.handle_applied(due.holding, apply(due.holding.row, due.operation), desk.now)
    assert not any(isinstance(event, ShardSought) for event in held.take_events())
    operation, _ = go_on(desk)
    assert operation.checkpoint.sequence_number.number == 7
    assert first.is_over
    assert second.is_over


def test_a_write_that_failed_is_tried_again(desk):
    desk.gain()
    request = seek(desk)
    held = desk.groups["s"].held
    due = held.poll_operation((), desk.now)
    held.handle_failure(due.holding, desk.now, desk.now, maybe_received=False)
    go_on(desk)
    assert request.is_over


def test_a_shard_is_not_sought_when_it_is_asked_for_has_ended_or_the_consumer_closes():
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.gain(name)
    desk.groups["s"].held.holdings["a"].drain(1_000.0)
    desk.bring(1, "b", last=True)
    taker = desk.iterate()
    desk.take(taker)
    desk.ask(taker)
    request = seek(desk, shards={("s", "a"), ("s", "b"), ("s", "z")})
    assert request.is_over
    assert request.lost == {
        "a": "another worker takes it over",
        "b": "all its records are done",
        "z": "this worker does not hold its lease",
    }
    desk.hand_out.close(desk.now)
    assert seek(desk).lost["c"] == "the consumer is closing, or has failed"
    desk.hand_out.end(desk.now)
    assert not seek(desk).is_over


def test_a_shard_that_is_asked_for_during_a_seek_is_handed_over_at_the_sought_position(desk):
    desk.gain()
    desk.bring(2)
    taker = desk.iterate()
    desk.take(taker, 1)
    request = seek(desk)
    desk.groups["s"].held.holdings["a"].drain(1_000.0)
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    assert desk.phase() == "DRAINING", "user code has a record"
    assert not desk.ask(taker)
    assert desk.phase() == "LEAVING"
    operation, _ = go_on(desk)
    assert operation.checkpoint == START
    assert request.is_over
    assert not request.lost
    assert isinstance(write(desk), ReleaseLease)


def test_a_lease_that_is_lost_during_a_seek(desk):
    desk.gain()
    request = seek(desk)
    desk.lose()
    desk.poll()
    assert request.lost == {"a": "test"}


def test_a_paused_shard_stays_paused(desk):
    desk.gain()
    pause(desk, {("s", "a")})
    seek(desk)
    go_on(desk)
    assert desk.shards["a"].is_paused


def test_a_run_goes_on_when_the_handler_is_done_with_the_void_record(desk):
    desk.gain()
    desk.bring(2)
    run, task = desk.start(FailurePolicy())
    task.cursor.take(desk.now)
    desk.ask(run)
    seek(desk)
    go_on(desk)
    assert not any(isinstance(action, CancelHandler) for action in desk.hand_out.take_actions())
    assert run.new_tasks, "there is a task for the shard after the seek"
    (newer,) = run.new_tasks
    again = desk.bring(1)
    assert not desk.ask(newer), "the handler of the older record is at work"
    assert desk.ask(task)
    assert task.is_over
    desk.hand_out.leave(task, desk.now)
    assert list(newer.cursor.records) == again


def test_if_the_lease_is_lost_after_a_seek_the_handler_of_an_older_record_is_cancelled(desk):
    desk.gain()
    desk.bring(2)
    _, task = desk.start(FailurePolicy())
    task.cursor.take(desk.now)
    seek(desk)
    go_on(desk)
    desk.hand_out.take_actions()
    desk.lose()
    assert CancelHandler(task) in desk.hand_out.take_actions()


def test_until_latest_waits_for_a_seek():
    desk = Desk(until_latest=True)
    shard = desk.gain()
    shard.reader.has_caught_up = True
    for group in desk.groups.values():
        group.view.rows[shard.shard_id] = Lease(shard.shard_id, owner="me")
    taker = desk.iterate()
    desk.ask(taker)
    seek(desk)
    desk.poll()
    assert shard.facts.has_records
    assert not taker.is_over


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (TRIM_HORIZON, TRIM_HORIZON),
        (LATEST, at_timestamp(9.0)),
        (at_timestamp(5.0), at_timestamp(5.0)),
        (after_sequence_number("7"), at_sequence_number("7")),
        (after_sequence_number(SequenceNumber(7, 3)), at_sequence_number(SequenceNumber(7, 3))),
        (at_sequence_number(SequenceNumber(7, 3)), at_sequence_number(SequenceNumber(7, 2))),
        (at_sequence_number("7"), at_sequence_number(SequenceNumber(7, -1))),
        (at_sequence_number(SequenceNumber(7, -1)), at_sequence_number(SequenceNumber(7, -1))),
    ],
)
def test_the_checkpoint_is_before_the_sought_position(position, expected):
    assert sought_checkpoint(position, 9.0) == Checkpoint(expected)


def test_no_reader_starts_at_the_end_of_a_shard():
    with pytest.raises(UsageError, match="cannot seek to SHARD_END"):
        sought_checkpoint(SHARD_END, 9.0)


# ---- seek and the callbacks

ALL = (CallbackKind.ASSIGNED, CallbackKind.REVOKED)


def calls(desk):
    return [action for action in desk.hand_out.take_actions() if isinstance(action, CallBack)]


def test_a_seek_calls_no_callback():
    desk = Desk(callbacks=ALL)
    desk.gain()
    (call,) = calls(desk)
    desk.hand_out.handle_called_back(call, desk.now)
    seek(desk)
    go_on(desk)
    records = desk.bring(1)
    assert calls(desk) == []
    assert desk.take(desk.iterate()) == records


def test_a_seek_in_on_assigned_takes_effect_before_the_first_record():
    desk = Desk(callbacks=ALL)
    desk.gain()
    (call,) = calls(desk)
    seek(desk)
    go_on(desk)
    seek(desk)
    go_on(desk)
    records = desk.bring(1)
    taker = desk.iterate()
    assert not desk.ask(taker), "on_assigned has not returned"
    desk.hand_out.handle_called_back(call, desk.now)
    assert desk.hand_out.take_answered() == [taker]
    assert list(taker.cursor.records) == records
    assert not desk.hand_out.lifecycle._moved


def test_a_lease_that_is_lost_while_on_assigned_seeks():
    desk = Desk(callbacks=ALL)
    desk.gain()
    (call,) = calls(desk)
    seek(desk)
    go_on(desk)
    desk.lose()
    assert CancelCallBack(call) in desk.hand_out.take_actions()
    desk.hand_out.handle_called_back(call, desk.now, has_returned=False)
    assert desk.hand_out.lifecycle.is_settled
    assert not desk.hand_out.lifecycle._moved


def test_an_on_assigned_that_waits_is_not_called_if_the_lease_is_lost_after_a_seek():
    desk = Desk(callbacks=ALL)
    desk.gain()
    (call,) = calls(desk)
    desk.hand_out.handle_called_back(call, desk.now)
    desk.lose()
    (revoked,) = calls(desk)
    desk.gain()
    seek(desk)
    go_on(desk)
    desk.lose()
    desk.hand_out.handle_called_back(revoked, desk.now)
    assert calls(desk) == []
    assert desk.hand_out.lifecycle.is_settled
    assert not desk.hand_out.lifecycle._moved


def test_on_revoked_waits_for_user_code_with_a_record_from_before_the_seek():
    desk = Desk(callbacks=ALL)
    desk.gain()
    (call,) = calls(desk)
    desk.hand_out.handle_called_back(call, desk.now)
    desk.bring(2)
    taker = desk.iterate()
    desk.take(taker, 1)
    seek(desk)
    go_on(desk)
    desk.groups["s"].held.holdings["a"].drain(1_000.0)
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    assert calls(desk) == []
    assert not desk.ask(taker)
    (revoked,) = calls(desk)
    assert revoked.kind is CallbackKind.REVOKED
    desk.hand_out.handle_called_back(revoked, desk.now)
    assert desk.phase() == "LEAVING"


@pytest.mark.parametrize("order", ["shard", "key"])
def test_after_a_seek_the_handler_of_an_older_record_returns_first(desk, order):
    """Handlers side by side: the sought records wait, because the older handler has records of the same shard."""
    run = desk.run(FailurePolicy(), concurrency=3, order=order)
    desk.gain()
    desk.bring(1, keys="a")
    desk.ask(run)
    (older,) = run.new_tasks
    assert desk.ask(older)
    older.cursor.take(desk.now)
    seek(desk)
    go_on(desk)
    again = desk.bring(2, keys="bc")
    desk.ask(run)
    newer = [task for task in run.new_tasks if task is not older]
    assert newer
    assert not any(desk.ask(task) for task in newer)
    desk.ask(run)
    desk.ask(older)
    desk.hand_out.take_answered()
    in_hand = {record for task in [older, *newer] if task.is_at_work for record in task.cursor.records}
    assert in_hand <= {*again}
    assert len(in_hand) == (1 if order == "shard" else 2)


def test_after_a_seek_an_idle_task_holds_up_nothing(desk):
    desk.gain()
    run = desk.run(FailurePolicy())
    desk.ask(run)
    (task,) = run.new_tasks
    assert not desk.ask(task)
    seek(desk)
    go_on(desk)
    (record,) = desk.bring(1)
    assert desk.ask(run)
    (newer,) = run.new_tasks
    assert desk.ask(newer)
    assert newer.cursor.records == [record]


# ---- settings


def limit(desk, max_leases):
    request = Request()
    desk.hand_out.limit_leases(request, max_leases, desk.now)
    assert request.is_over


def test_a_changed_limit_reaches_the_coordinators_and_is_reported_once(desk):
    limit(desk, None)
    assert (desk.groups["s"].limits, desk.hand_out.take_events()) == ([], []), "nothing has changed"
    limit(desk, 2)
    limit(desk, 2)
    assert desk.hand_out.config.max_leases == 2
    assert desk.groups["s"].limits == [2]
    assert desk.hand_out.take_events() == [MaxLeasesChanged(2, before=None)]
    assert desk.hand_out.take_pump_due()
    limit(desk, None)
    assert desk.groups["s"].limits == [2, None]
    assert desk.hand_out.take_events() == [MaxLeasesChanged(None, before=2)]


def test_a_task_that_moved_on_after_a_seek_does_not_hold_up_the_shard_that_it_had(desk):
    desk.gain("a")
    desk.gain("b")
    desk.bring(4, "a", keys="kk")
    run = desk.run(FailurePolicy(), concurrency=1, order="key", in_processes=True)
    desk.ask(run)
    (task,) = run.new_tasks
    run.new_tasks = []
    desk.ask(task)
    desk.ask(run)
    task.cursor.take(desk.now)
    desk.ask(task)  # the first message had one record, and the next one has more
    assert len(task.cursor.records) == 2
    task.cursor.take(desk.now)
    seek(desk, shards=[("s", "a")])
    desk.bring(1, "b")
    task.outcome = Outcome("broken")
    desk.ask(task)  # the handler of a fails, and the task goes on with b
    assert (task.shard, task.is_at_work) == (desk.shards["b"], True)
    go_on(desk, "a")
    task.cursor.take(desk.now)
    task.outcome = Outcome()
    desk.ask(task)
    assert not task.is_at_work
    desk.bring(1, "a")
    desk.poll()
    assert (task.shard, task.is_at_work) == (desk.shards["a"], True)
