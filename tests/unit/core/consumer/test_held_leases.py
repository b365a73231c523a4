"""Tests of ``shardline.core.consumer.held_leases`` (L2, L4, C3)."""

from dataclasses import replace

import pytest
from tests.harness.coordinator import record
from tests.sim.interrupting import interrupted

from shardline.codec.stamps import StampRun
from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.consumer_events import (
    Committed,
    HandOverOverdue,
    LeaseGained,
    LeaseHandedOver,
    LeaseLost,
    LeaseReleased,
    WorkerIdShared,
)
from shardline.core.consumer.duplicate_workers import DuplicateWorkers
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.held_leases import DeadlineHeap, HeldLeases
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.core.leases import (
    AskHandOver,
    CommitCheckpoint,
    Refused,
    ReleaseLease,
    RenewLease,
    TakeLease,
    apply,
)
from shardline.model.lease import Checkpoint, Incarnation
from shardline.model.position import LATEST, SHARD_END, at_sequence_number, at_timestamp
from shardline.model.sequence import SequenceNumber


class World:
    def __init__(self, stream, **config):
        self.stream = stream
        self.now = 100.0
        self.graph = ShardGraph()
        self.graph.handle_listing(stream.all, {}, 100.0, 100.0)
        self.duplicates = DuplicateWorkers(Incarnation("me", "this", ConsumerConfig(**config).lease_duration))
        self.held = HeldLeases(
            self.duplicates,
            self.graph,
            ConsumerConfig(**config),
            checkpoint_interval=1.0,
            latest_at=55.0,
            clock=lambda: self.now,
        )
        self.rows = {}

    def gain(self, number, **facts):
        row = self.stream.row(number, **facts)
        self.rows[row.shard_id] = apply(row, TakeLease(row.shard_id, "me", row.fence))
        self.held.handle_taken(self.rows[row.shard_id], self.now, self.now)
        return row.shard_id

    def poll(self, now=None, busy=()):
        self.now = self.now if now is None else now
        self.held.handle_time(self.now)
        return self.held.poll_operation(busy, self.now)

    def apply(self, operation):
        result = apply(self.rows[operation.shard_id], operation)
        if not isinstance(result, Refused):
            self.rows[operation.shard_id] = result
        return result

    def step(self, now=None):
        found = self.poll(now)
        if found is None:
            return None
        self.held.handle_applied(found.holding, self.apply(found.operation), self.now)
        return found.operation

    def ask(self, shard_id):
        self.rows[shard_id] = apply(self.rows[shard_id], AskHandOver(shard_id, "other", "me"))
        self.held.handle_rows(self.rows, (), self.now)


@pytest.fixture
def world(stream):
    return World(stream)


def test_a_gain_tells_where_to_read(world, stream):
    shard_id = world.gain(4, at=5)
    (event,) = world.held.take_events()
    assert isinstance(event, LeaseGained)
    assert (event.shard_id, event.start) == (shard_id, at_sequence_number(SequenceNumber(5)))
    assert event.checkpoint == Checkpoint(at_sequence_number(SequenceNumber(5)))
    assert event.hash_range == stream.span(4)
    assert (event.grant.token, event.grant.held) == (1, True)
    assert event.grant is world.held.holdings[shard_id].grant


@pytest.mark.parametrize(
    ("number", "written", "told"),
    [(4, 4, 4), (4, 5, None), (99, 5, 5)],
    ids=["alike", "row and listing contradict each other", "not listed yet"],
)
def test_by_which_range_records_are_judged(world, stream, number, written, told):
    world.gain(number, hash_range=stream.span(written))
    (event,) = world.held.take_events()
    assert event.hash_range == (None if told is None else stream.span(told))


def test_l6_a_row_at_latest_is_read_from_when_it_was_made(world):
    world.gain(4, at=LATEST, latest_at=77.0)
    world.gain(8, at=LATEST)  # as another library writes them
    pinned, bare = world.held.take_events()
    assert (pinned.start, bare.start) == (at_timestamp(77.0), at_timestamp(55.0))


def test_waking_early_is_harmless(world):
    shard_id = world.gain(4)
    world.held._work.schedule(shard_id, 100.0)
    assert world.step(100.0) is None
    assert world.held.next_work() == pytest.approx(103.333, abs=0.001)


def test_what_we_do_not_hold_is_refused_and_otherwise_ignored(world):
    world.held.deliver("x", [record(1)])
    assert not world.held.ack("x", record(1))
    assert not world.held.ack_through("x", record(1))
    world.held.end("x", 1)
    world.held.leave("x")
    world.held.lose("x", "why")
    assert world.held.take_events() == []
    assert (world.held.next_work(), world.held.next_lapse()) == (NEVER, NEVER)


def test_l2_a_lease_that_lapses_is_reported_lost_once(world):
    shard_id = world.gain(4)
    found = world.poll(104.0)
    world.poll(110.0)
    assert world.held.take_events()[1:] == [LeaseLost(shard_id, "no renewal was confirmed within the lease duration")]
    assert world.held.has_changed
    world.held.handle_applied(found.holding, world.apply(found.operation), 110.1)
    assert world.held.take_events() == []
    assert not world.held.holdings


def test_l1_a_lease_that_is_lost_and_gained_again_waits_for_the_old_answer(world):
    shard_id = world.gain(4)
    old = world.poll(104.0)
    world.poll(110.0)
    world.gain(4)
    assert world.poll(114.0, busy=[shard_id]) is None
    world.held.handle_failure(old.holding, 114.5, 114.2, maybe_received=True)
    assert isinstance(world.step(114.3), RenewLease)


def test_a_lease_can_be_given_up(world):
    shard_id = world.gain(4)
    world.held.lose(shard_id, "because")
    assert world.held.take_events()[1:] == [LeaseLost(shard_id, "because")]
    assert world.step(200.0) is None


def test_a_hand_over_that_takes_too_long_is_reported(stream):
    world = World(stream, hand_over_timeout=5.0)
    shard_id = world.gain(4)
    world.ask(shard_id)
    world.step(104.0)
    world.poll(105.0)
    assert world.held.take_events()[2:] == [HandOverOverdue(shard_id)]
    assert isinstance(world.rows[shard_id].checkpoint_owner, str)


def test_on_exit_leases_are_released(world):
    shard_id = world.gain(4)
    world.held.leave(shard_id)
    assert world.step() == ReleaseLease(shard_id, "me", 1)
    assert world.held.take_events()[1:] == [LeaseReleased(shard_id, finished=False)]


# ---- the end of a shard


def test_c3_that_a_shard_has_no_children_is_believed_after_two_listings(stream):
    world = World(stream)
    world.graph = world.held._graph
    shard_id = world.gain(8)
    world.held.end(shard_id, world.graph.listings)
    assert world.held.handle_children(world.rows) == -NEVER
    for begun_at, came_at in ((100.0, 100.5), (100.6, 100.7), (101.4, 109.0)):
        world.graph.handle_listing(stream.all, world.rows, begun_at, came_at)
        assert world.held.handle_children(world.rows) == 101.5
        assert world.step() is None
    world.graph.handle_listing(stream.all, world.rows, 101.5, 101.6)
    assert world.held.handle_children(world.rows) == NEVER
    assert world.step() == CommitCheckpoint(shard_id, "me", 1, Checkpoint(SHARD_END))


def test_c3_children_of_unknown_parents_have_to_be_listed(world, stream):
    graph = ShardGraph()
    graph.handle_listing([stream.shard(6)], {}, 100.0, 100.0)
    world.held._graph = graph
    shard_id = world.gain(6)
    graph.handle_children([stream.child(8)])
    world.held.end(shard_id, 1)
    assert world.held.handle_children(world.rows) == -NEVER
    graph.handle_listing([stream.shard(6)], {}, 100.2, 100.5)  # a listing that lags behind is not repeated at once
    assert world.held.handle_children(world.rows) == 101.5


def test_what_another_process_writes_in_our_name_is_contested(stream):
    world = World(stream)
    shard_id = world.gain(4)
    row = replace(world.rows[shard_id], counter=world.rows[shard_id].counter + 1)
    world.held.handle_rows({shard_id: row}, [], 100.0)
    assert world.duplicates.take_events() == [WorkerIdShared(shard_id, "me")]
    assert not world.duplicates.is_ours(row)
    world.held.handle_taken(row, 100.0, 100.0)
    assert world.duplicates.is_ours(row)


def test_in_order_no_shard_is_ever_full(stream):
    world = World(stream, max_unacknowledged=1)
    shard_id = world.gain(4)
    world.held.deliver(shard_id, [record(1), record(2)])
    assert not world.held.is_full(shard_id)


# ---- deadlines


def test_shards_come_when_they_are_due_the_earliest_first():
    heap = DeadlineHeap()
    heap.schedule("b", 2.0)
    heap.schedule("a", 1.0)
    assert heap.next_at() == 1.0
    assert heap.pop_due(0.5) is None
    assert [heap.pop_due(2.0), heap.pop_due(2.0), heap.pop_due(2.0)] == ["a", "b", None]
    assert heap.next_at() == NEVER


def test_the_last_deadline_counts():
    heap = DeadlineHeap()
    heap.schedule("a", 1.0)
    heap.schedule("a", 1.0)
    heap.schedule("a", 3.0)
    assert heap.next_at() == 3.0
    assert heap.pop_due(2.0) is None
    heap.schedule("a", NEVER)
    heap.schedule("a", NEVER)
    assert heap.pop_due(9.0) is None


def test_a_shard_whose_deadline_was_moved_there_and_back_comes_once():
    heap = DeadlineHeap()
    for at in (1.0, 2.0, 1.0):
        heap.schedule("a", at)
    assert heap.pop_due(5.0) == "a"
    assert heap.pop_due(5.0) is None


def test_an_interrupt_leaves_the_old_deadline_or_the_new():
    after, where = 0, "not yet"
    while where is not None:
        heap = DeadlineHeap()
        heap.schedule("a", 1.0)
        with interrupted(after, "core/consumer/held_leases", steps="signal") as interruption:
            heap.schedule("a", 0.5)
        where = interruption.where
        assert heap.next_at() == (0.5 if where is None else 1.0)
        heap.schedule("a", 0.5)
        assert [heap.pop_due(9.0), heap.pop_due(9.0)] == ["a", None]
        after += 1


# ---- events about commits and hand-overs


def test_a_confirmed_commit_is_reported_with_its_duration(stream):
    world = World(stream)
    shard_id = world.gain(4)
    world.held.take_events()
    done = record(5)
    world.held.deliver(shard_id, [done])
    world.held.ack_through(shard_id, done)
    found = world.poll(101.0)
    assert isinstance(found.operation, CommitCheckpoint)
    world.now = 101.25
    world.held.handle_applied(found.holding, world.apply(found.operation), world.now)
    position = at_sequence_number(SequenceNumber(5))
    assert world.held.take_events() == [Committed(shard_id, position, 0.25)]


def test_a_lease_that_was_handed_over_is_reported_with_its_duration(stream):
    world = World(stream)
    shard_id = world.gain(4)
    world.ask(shard_id)
    world.held.take_events()
    world.now = 102.0
    world.held.handle_rows(world.rows, (), world.now)
    world.held.leave(shard_id)
    world.step(103.0)
    assert world.held.take_events() == [
        LeaseHandedOver(shard_id, "other", 3.0),
        LeaseReleased(shard_id, finished=False),
    ]


def test_a_lease_that_is_released_to_nobody_is_not_handed_over(stream):
    world = World(stream)
    shard_id = world.gain(4)
    world.held.take_events()
    world.held.leave(shard_id)
    world.step(103.0)
    assert world.held.take_events() == [LeaseReleased(shard_id, finished=False)]


def test_a_gained_lease_inherits_the_stamps_of_its_parents(stream):
    world = World(stream, dedup=True)
    parent = replace(stream.row(0), checkpoint=Checkpoint(SHARD_END), window="1 END abcdefghij@1:0-1")
    child = replace(stream.row(1), parent_ids=frozenset({parent.shard_id, "gone"}))
    taken = apply(child, TakeLease(child.shard_id, "me", child.fence))
    world.held.handle_taken(taken, world.now, world.now, {parent.shard_id: parent})
    (gained,) = world.held.take_events()
    window = world.held.window_of(gained.grant)
    assert not window.admit(1, StampRun(0, b"abcdefghij", 0, 1), 1.0)
    assert window.admit(1, StampRun(0, b"abcdefghij", 1, 1), 1.0)
    assert world.held.window_of(Grant(child.shard_id, 0, 0.0)) is None, "another grant"
    assert world.held.window_of(Grant("other", 0, 0.0)) is None
    plain = World(stream)
    plain.held.handle_taken(taken, world.now, world.now)
    (gained,) = plain.held.take_events()
    assert plain.held.window_of(gained.grant) is None


def test_the_load_of_a_shard_is_measured_if_the_group_shares_by_load(stream):
    world = World(stream, assign_by="load")
    shard_id = world.gain(4)
    grant = world.held.holdings[shard_id].grant
    world.held.deliver(shard_id, [record(1)])
    world.held.count_handling(grant, 2.0)
    world.held.count_handling(Grant(shard_id, 9, 999.0), 100.0)  # of an earlier time as the holder
    world.held.count_handling(Grant("unknown", 9, 999.0), 100.0)
    renewal = world.poll(104.0).operation
    assert isinstance(renewal, RenewLease)
    assert renewal.handling == 0.5
    assert renewal.throughput == len(record(1).data) / 1_024 / 4


def test_no_load_is_measured_if_the_group_shares_by_number(world):
    shard_id = world.gain(4)
    world.held.deliver(shard_id, [record(1)])
    world.held.count_handling(world.held.holdings[shard_id].grant, 2.0)
    renewal = world.poll(104.0).operation
    assert (renewal.throughput, renewal.handling) == (None, None)
