"""The control of a running consumer (pause, resume, seek, commit and max_leases), compared with a naive model.

User code takes records of three shards of two streams, one by one. Meanwhile shards are paused and resumed, leases are
lost, gained and handed over, positions are sought, and the store answers at once or later. The model has a list of the
records that each lease still has to hand out, and knows which of them are done.
"""

from random import Random

import pytest
from tests.harness.hand_out import Desk, FakeReader

from shardline.core.consumer.consumer_events import (
    LeaseReleased,
    MaxLeasesChanged,
    RecordsHandedOut,
    ShardSought,
    ShardsPaused,
    ShardsResumed,
)
from shardline.core.consumer.control_requests import Request
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.reader import Page
from shardline.core.leases import apply
from shardline.model.lease import Checkpoint
from shardline.model.lease import Lease as LeaseRow
from shardline.model.position import at_sequence_number
from shardline.model.sequence import SequenceNumber

STREAMS = {"a": "s", "b": "s", "c": "t"}
NOT_HELD = "this worker does not hold its lease"
HANDED_OVER = "another worker takes it over"
POLICY = FailurePolicy(attempts=2, backoff=0.5, backoff_max=0.5, finally_="dead-letter")


def position(number):
    return at_sequence_number(SequenceNumber(number))


def sent_by(desk, stream):
    """Let the store of a stream answer, and return the events."""
    held = desk.groups[stream].held
    while (sent := held.poll_operation((), desk.now)) is not None:
        held.handle_applied(sent.holding, apply(sent.holding.row, sent.operation), desk.now)
    return held.take_events()


def go_on(desk, stream, sought):
    """Read a shard from the sought position on."""
    reader = FakeReader((stream, sought.shard_id), desk.hand_out.budget)
    desk.shards[sought.shard_id] = desk.hand_out.handle_gained(stream, sought, reader, desk.now)
    return desk.shards[sought.shard_id]


class Lease:
    """A lease: the records that wait, and the last one that is done."""

    def __init__(self, *, is_paused):
        self.is_paused = is_paused
        self.is_asked = self.is_sought = self.has_ended = False
        self.waiting, self.done = [], 0

    @property
    def is_open(self):
        return not (self.is_paused or self.is_asked or self.is_sought) and bool(self.waiting)


class Expected:
    """A request, and what the model expects of it: the place of each shard that is written, and why others are not."""

    def __init__(self, request, places, lost, *, is_seek=False):
        self.request, self.places, self.lost, self.is_seek = request, places, lost, is_seek

    def lose(self, name, reason):
        if name in self.places and name not in self.request.done:
            del self.places[name]
            self.lost[name] = reason

    def check(self):
        request = self.request
        assert request.is_over, "the store has answered"
        for name, place in self.places.items():
            written = request.done[name].sequence_number
            number = 0 if written is None else written.number
            assert number == place if self.is_seek else number >= place, "the store has what was done by then"
        lost = {name: why for name, why in request.lost.items() if name in self.lost or name in self.places}
        assert lost == self.lost


class Controlled:
    def __init__(self, seed):
        self.rng = Random(seed)
        self.desk = Desk(lease_duration=3_600.0)
        self.hand_out = self.desk.hand_out
        self.taker = self.desk.iterate()
        self.leases, self.counters = {}, dict.fromkeys(STREAMS, 0)
        self.is_paused, self.max_leases = False, None
        self.in_hand = None  # (name, lease, record): the record that was taken last
        self.requests = []  # those that wait for the store
        self.is_asking = False

    def keys(self, names):
        return None if names is None else [(STREAMS[name], name) for name in names]

    def some_names(self):
        names = self.rng.choice([None, self.rng.sample([*STREAMS], self.rng.randint(1, 3))])
        held = [name for name in STREAMS if name in self.leases and (names is None or name in names)]
        lost = {name: NOT_HELD for name in names or () if name not in self.leases}
        return names, held, lost

    # ---- what happens

    def play(self):
        self.hand_out.take_pump_due()
        kinds = [self.take] * 8 + [self.bring] * 4 + [self.pause, self.resume, self.commit, self.seek, self.answer]
        kinds += [self.gain, self.gain, self.lose, self.hand_over, self.limit, self.wait]
        self.rng.choice(kinds)()
        if self.taker in self.hand_out.take_answered():
            self.is_asking = False
        self.check()

    def finish(self):
        """The record that was taken last is done."""
        if self.in_hand is not None:
            _, lease, record = self.in_hand
            if not lease.is_sought:
                lease.done = int(record.sequence_number)
            self.in_hand = None

    def take(self):
        cursor = self.taker.cursor
        if self.is_asking:
            return
        if cursor.place >= cursor.end or not cursor.is_open:
            self.finish()
            self.is_asking = not self.desk.ask(self.taker)
            return
        record = cursor.take(self.desk.now)
        name, lease = record.shard_id, self.leases[record.shard_id]
        assert lease.is_open, "nothing of a shard that is paused, or whose position was sought, is handed out"
        assert record is lease.waiting.pop(0), "the records come in order, and those before a seek are void"
        self.finish()
        self.in_hand = name, lease, record

    def bring(self):
        open_leases = [name for name, lease in self.leases.items() if not (lease.is_asked or lease.is_sought)]
        if open_leases:
            name = self.rng.choice(open_leases)
            self.leases[name].waiting += self.desk.bring(self.rng.randint(1, 3), name)

    def gain(self):
        for name, stream in STREAMS.items():
            if name not in self.leases:
                self.counters[name] += 10
                self.leases[name] = Lease(is_paused=self.is_paused)
                assert self.desk.gain(name, stream, counter=self.counters[name]).is_paused == self.is_paused
                return

    def lose(self):
        if self.leases:
            name = self.rng.choice([*self.leases])
            lease = self.leases.pop(name)
            lease.waiting = []
            lease.is_asked = True
            self.desk.lose(name, STREAMS[name])
            for expected in self.requests:
                expected.lose(name, "test")

    def hand_over(self):
        names = [name for name, lease in self.leases.items() if not lease.is_asked]
        if names and self.rng.random() < 0.3:
            name = self.rng.choice(names)
            self.leases[name].is_asked = True
            self.leases[name].waiting = []
            self.hand_out.handle_hand_over_asked(STREAMS[name], name, self.desk.now)

    def wait(self):
        self.desk.now += 0.5
        self.hand_out.handle_time(self.desk.now)

    # ---- requests

    def pause(self):
        names, held, lost = self.some_names()
        request = Request(self.keys(names))
        self.hand_out.pause(request, self.desk.now)
        new = [name for name in self.held_in_order(held) if not self.leases[name].is_paused]
        is_new = names is None and not self.is_paused
        self.is_paused = self.is_paused or names is None
        for name in new:
            self.leases[name].is_paused = True
        assert (request.is_over, request.lost) == (True, lost)
        self.expect([ShardsPaused(tuple(new), self.is_paused)] if new or is_new else [])
        if self.in_hand is not None and self.in_hand[1].is_paused:
            assert self.taker.cursor.end <= self.taker.cursor.place, "not even the rest of a page is handed out"

    def resume(self):
        names, held, _ = self.some_names()
        request = Request(self.keys(names))
        self.hand_out.resume(request, self.desk.now)
        again = [name for name in self.held_in_order(held) if self.leases[name].is_paused]
        is_new = names is None and self.is_paused
        self.is_paused = self.is_paused and names is not None
        for name in again:
            self.leases[name].is_paused = False
        assert (request.is_over, request.lost) == (True, {})
        self.expect([ShardsResumed(tuple(again), self.is_paused)] if again or is_new else [])

    def held_in_order(self, names):
        return [shard_id for _, shard_id in self.hand_out.shards if shard_id in names]

    def expect(self, events):
        kinds = ShardsPaused | ShardsResumed | MaxLeasesChanged
        assert [event for event in self.hand_out.take_events() if isinstance(event, kinds)] == events

    def commit(self):
        names, held, lost = self.some_names()
        request = Request(self.keys(names))
        self.hand_out.commit(request, self.desk.now)
        assert self.hand_out.take_pump_due(), "the commit is sent at once"
        for name in held:
            if not self.leases[name].is_sought:
                assert self.desk.watermark(name, STREAMS[name]) == self.leases[name].done
        places = {name: self.leases[name].done for name in held if not self.leases[name].is_sought}
        self.requests.append(Expected(request, places, lost))
        if self.rng.random() < 0.5:
            self.answer()

    def seek(self):
        names, held, lost = self.some_names()
        request, number = Request(self.keys(names)), self.rng.randint(1, 1 + self.desk.sequence)
        for name in held:
            if self.leases[name].is_asked:
                lost[name] = HANDED_OVER
        self.hand_out.seek(request, Checkpoint(position(number)), self.desk.now)
        assert self.hand_out.take_pump_due(), "the position is written at once"
        assert request.lost == lost
        sought = [name for name in held if name not in lost]
        for name in sought:
            lease = self.leases[name]
            lease.is_sought, lease.waiting, lease.done = True, [], number
            assert self.hand_out.shards[(STREAMS[name], name)].reader.is_stopped
            for expected in self.requests:
                if expected.is_seek and name in expected.places:
                    expected.places[name] = number  # the last seek wins
                elif not expected.is_seek:
                    expected.lose(name, "seek() has moved its position")
        self.requests.append(Expected(request, dict.fromkeys(sought, number), lost, is_seek=True))
        if self.rng.random() < 0.5:
            self.answer()

    def answer(self):
        """Let the store answer, and read sought shards again."""
        for stream in ("s", "t"):
            for event in sent_by(self.desk, stream):
                if isinstance(event, LeaseReleased):
                    del self.leases[event.shard_id]
                    self.hand_out.handle_gone(stream, event.shard_id, self.desk.now)
                    for expected in self.requests:
                        expected.places.pop(event.shard_id, None)
                elif isinstance(event, ShardSought):
                    lease = self.leases[event.shard_id]
                    may_go_on = lease.is_sought and not lease.is_asked
                    assert self.hand_out.can_go_on(stream, event) == may_go_on
                    if may_go_on:
                        # A record in hand was read before the seek. That it is done has no effect.
                        self.leases[event.shard_id] = new = Lease(is_paused=lease.is_paused)
                        new.done = lease.done
                        shard = go_on(self.desk, stream, event)
                        assert shard.is_paused == lease.is_paused, "a pause outlives a seek"
        self.hand_out.handle_time(self.desk.now)
        for expected in self.requests:
            expected.check()
        self.requests.clear()

    def limit(self):
        before, self.max_leases = self.max_leases, self.rng.choice([None, 2, 3])
        request = Request()
        self.hand_out.limit_leases(request, self.max_leases, self.desk.now)
        has_changed = before != self.max_leases
        assert request.is_over
        assert self.hand_out.take_pump_due() == has_changed
        assert self.hand_out.config.max_leases == self.max_leases
        self.expect([MaxLeasesChanged(self.max_leases, before)] if has_changed else [])
        for group in self.desk.groups.values():
            assert (group.limits[-1:] == [self.max_leases]) or not has_changed

    # ---- the model

    def check(self):
        waiting = [name for name, lease in self.leases.items() if lease.is_open]
        if self.is_asking:
            assert not waiting, "a record waits, although it may be handed out"
        for name, shard in ((shard.shard_id, shard) for shard in self.hand_out.shards.values()):
            assert shard.is_paused == self.leases[name].is_paused


@pytest.mark.parametrize("seed", range(30))
def test_a_consumer_that_is_controlled_does_what_the_naive_lists_say(seed):
    machine = Controlled(seed)
    for _ in range(300):
        machine.play()


# ---- single promises


def seek(desk, number=1, shards=None):
    request = Request(shards)
    desk.hand_out.seek(request, Checkpoint(position(number)), desk.now)
    return request


def test_a_shard_that_is_given_up_or_has_ended_cannot_be_sought():
    desk = Desk()
    desk.gain("a")
    desk.gain("b")
    desk.groups["s"].held.shed(1, desk.now)  # the hand-out does not know it yet
    refused = seek(desk)
    assert [*refused.lost.values()] == [HANDED_OVER]
    desk = Desk()
    desk.gain()
    taker = desk.iterate()
    desk.bring(1, last=True)
    desk.take(taker)
    assert not desk.ask(taker)
    assert seek(desk).lost == {"a": "all its records are done"}
    for has_failed in (False, True):
        desk = Desk()
        desk.gain()
        if has_failed:
            desk.hand_out.fail("broken", desk.now)
        else:
            desk.hand_out.close(desk.now)
        refused = seek(desk)
        assert (refused.is_over, refused.lost) == (True, {"a": "the consumer is closing, or has failed"})


def test_a_consumer_that_ends_ends_the_requests_that_wait_and_ignores_new_ones():
    desk = Desk()
    desk.gain()
    taker = desk.iterate()
    desk.bring(2)
    desk.take(taker)
    waits = Request()
    desk.hand_out.commit(waits, desk.now)
    assert not waits.is_over
    desk.hand_out.end(desk.now)
    assert (waits.is_over, waits.lost) == (True, {"a": "the consumer has ended"})
    late = Request()
    desk.hand_out.commit(late, desk.now)
    assert not seek(desk).is_over
    assert not late.is_over


def test_a_sought_shard_goes_on_only_if_the_worker_keeps_it():
    for change, may_go_on in (
        (lambda desk: None, True),  # noqa: ARG005 - nothing happens
        (lambda desk: desk.hand_out.close(desk.now), False),
        (lambda desk: desk.hand_out.fail("broken", desk.now), False),
        (lambda desk: desk.lose(), False),
    ):
        desk = Desk()
        desk.gain()
        seek(desk)
        [sought] = [event for event in sent_by(desk, "s") if isinstance(event, ShardSought)]
        change(desk)
        assert desk.hand_out.can_go_on("s", sought) == may_go_on
        assert not desk.hand_out.can_go_on("t", sought), "the shard of the other stream is not held"
    desk = Desk()
    shard = desk.gain()
    assert not desk.hand_out.can_go_on("s", ShardSought("a", shard.grant, *sought[2:])), "it was not sought"


def test_a_seek_ends_the_wait_of_a_handler_and_its_shard_waits_for_the_record_in_hand():
    desk = Desk()
    older = desk.gain()
    desk.bring(1)
    run, task = desk.start(POLICY)
    task.cursor.take(desk.now)
    seek(desk)
    assert desk.phase() == "ACTIVE", "a lease is kept after a seek"
    [sought] = [event for event in sent_by(desk, "s") if isinstance(event, ShardSought)]
    newer = go_on(desk, "s", sought)
    assert older.is_over
    assert newer.is_same_lease(older)
    assert desk.ask(run)
    [again] = run.new_tasks
    desk.bring(1)
    assert not desk.ask(again), "a handler is still at work on a record of the shard"
    desk.hand_out.handle_time(desk.now)
    assert again not in desk.hand_out.take_answered()
    assert not desk.ask(run)
    assert desk.ask(task)
    assert task.step is None, "the task of the older reader ends"
    desk.hand_out.leave(task, desk.now)
    assert (again.answered, again.step is not None) == (again.asked, True)
    assert desk.watermark() == 1, "the record that was read before the seek changes nothing"


@pytest.mark.parametrize("is_all", [False, True])
def test_no_bound_ends_a_run_while_a_shard_is_paused_and_idle_time_counts_from_the_end_of_the_pause(is_all):
    desk = Desk(idle_timeout=5.0)
    if not is_all:
        desk.gain()
    desk.poll()
    taker = desk.iterate()
    assert not desk.ask(taker)
    shards = None if is_all else [("s", "a")]
    desk.hand_out.pause(Request(shards), desk.now)
    assert desk.poll(4.0) == desk.poll(4.0) == []
    desk.now += 4.0
    desk.hand_out.resume(Request(shards), desk.now)
    assert desk.poll(4.5) == []
    assert desk.poll(0.5) == [taker]
    assert taker.is_over


def test_a_consumer_that_only_filters_or_drops_copies_is_not_idle_and_needs_no_room_for_these_records():
    for kind in ("filtered", "repeated"):
        desk = Desk(idle_timeout=5.0)
        shard = desk.gain()
        desk.hand_out.work.observe(desk.now)
        desk.poll()
        taker = desk.iterate()
        assert not desk.ask(taker)
        assert desk.poll(4.0) == []
        if kind == "filtered":
            desk.bring(3, passed=[False] * 3)
            assert desk.hand_out.budget.total_bytes == 0
            assert desk.hand_out.work.totals().records_filtered == 3
        else:
            page = Page("a", [], 0, 0.0, is_last=False, child_shards=(), repeated=2)
            desk.hand_out.handle_pages(shard, [page], desk.now)
            assert desk.hand_out.work.totals().records_repeated == 2
        assert desk.poll(4.0) == []
        assert desk.poll(1.5) == [taker]


def test_after_a_failure_a_lease_is_kept_until_the_consumer_is_closed():
    desk = Desk()
    desk.gain()
    taker = desk.iterate()
    desk.bring(1)
    desk.take(taker)
    desk.hand_out.fail("broken", desk.now)
    desk.hand_out.handle_hand_over_asked("s", "a", desk.now)
    desk.hand_out.settle(taker, desk.now, done=True)
    assert desk.phase() == "ACTIVE"


def test_a_run_until_latest_does_not_wait_for_leases_beyond_a_new_limit():
    desk = Desk(until_latest=True)
    desk.gain().reader.has_caught_up = True
    desk.groups["s"].view.rows = {name: LeaseRow(name) for name in "ab"}
    desk.poll()
    taker = desk.iterate()
    assert not desk.ask(taker)
    assert desk.poll() == [], "the other shard is nobody's"
    desk.hand_out.limit_leases(Request(), 1, desk.now)
    assert desk.poll() == [taker]


@pytest.mark.parametrize("batch", [None, 2])
def test_only_single_records_of_a_pool_are_counted_in_sums(batch):
    desk = Desk()
    desk.hand_out.work.observe(desk.now)
    desk.gain()
    desk.bring(2)
    desk.start(POLICY, batch=batch, concurrency=1, order="key")
    assert any(isinstance(event, RecordsHandedOut) for event in desk.hand_out.take_events()) == (batch is not None)
    desk.poll(60.0)
    assert any(isinstance(event, RecordsHandedOut) for event in desk.hand_out.take_events()) == (batch is None)


def test_a_seek_answers_a_task_that_waits_for_records_at_once():
    desk = Desk()
    desk.gain()
    run = desk.run(POLICY)
    assert desk.ask(run)
    [task] = run.new_tasks
    assert not desk.ask(task)
    seek(desk)
    assert task in desk.hand_out.take_answered()
    assert task.is_over


@pytest.mark.parametrize("order", ["key", "none"])
def test_a_batch_of_handlers_side_by_side_is_as_large_as_wanted(order):
    desk = Desk()
    desk.gain()
    desk.bring(5)
    _, task = desk.start(POLICY, batch=3, concurrency=1, order=order)
    assert len(task.step.records) == 3


def test_records_behind_the_last_handed_out_one_that_did_not_pass_the_filter_are_done_with_it():
    desk = Desk()
    desk.gain()
    taker = desk.iterate()
    desk.bring(3, passed=[True, False, False])
    desk.take(taker)
    assert not desk.ask(taker)
    assert desk.watermark() == 3


def test_the_coordinator_is_not_polled_again_and_again_while_records_wait():
    desk = Desk()
    desk.gain()
    desk.poll()
    taker = desk.iterate()
    due = []
    for _ in range(2):
        desk.bring(1)
        desk.take(taker)
        assert not desk.ask(taker)
        due.append(desk.hand_out.take_pump_due())
    assert due == [True, False], "the commit is planned once"
    desk = Desk(until_latest=True)
    desk.gain()
    desk.bring(3)
    desk.poll()
    _, task = desk.start(POLICY, concurrency=1, order="none")
    due = []
    for _ in range(3):
        task.cursor.take(desk.now)
        desk.hand_out.take_pump_due()
        desk.ask(task)
        due.append(desk.hand_out.take_pump_due())
    assert due == [True, False, True], "the run may be over when the last record is done"
