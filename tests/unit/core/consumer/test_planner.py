"""Tests of ``shardline.core.consumer.planner``. The stream is drawn in ``conftest``."""

from dataclasses import replace
from random import Random

import pytest

from shardline.core.consumer.duplicate_workers import DuplicateWorkers
from shardline.core.consumer.group_rows import GroupStart
from shardline.core.consumer.lease_view import LeaseView
from shardline.core.consumer.load_assignment import PATIENCE_LEASES, LoadBalancer
from shardline.core.consumer.planner import Planner
from shardline.core.consumer.scan_pace import ScanPace
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.core.consumer.token_floor import TokenFloor
from shardline.core.leases import AskHandOver, CreateLease, DeleteLease, TakeLease
from shardline.model.lease import KEPT, Fence, Incarnation
from shardline.model.position import SHARD_END, TRIM_HORIZON

ME = Incarnation("me", "this", 10.0)

START = GroupStart(TRIM_HORIZON, 0.0)


class World:
    def __init__(self, shards):
        self.now = 100.0
        self.view = LeaseView(10.0)
        self.graph = ShardGraph()
        self.graph.handle_listing(shards, {}, 100.0, 100.0)
        self.planner = Planner(
            self.view,
            self.graph,
            duplicates=DuplicateWorkers(ME),
            tokens=TokenFloor(0.0, 100.0),
            max_leases=None,
            hand_over_timeout=5.0,
            scan_pace=ScanPace(0.5, longest=5.0),
            rng=Random(0),
        )

    def scan(self, rows, now=None):
        self.now = self.now if now is None else now
        self.view.handle_rows(rows.values(), self.now, self.now)

    def plan(self, held=(), ending=()):
        return self.planner.plan(held, ending, START, self.now)


@pytest.fixture
def world(stream):
    return World(stream.all)


def owned(rows, **owners):
    """Return the rows with owners: ``w_4="a"`` for shard 4."""
    for key, owner in owners.items():
        shard_id = f"shardId-{int(key[2:]):012d}"
        rows[shard_id] = replace(rows[shard_id], owner=owner)
    return rows


def test_a_new_group_creates_its_rows(world, stream):
    plan = world.plan()
    assert {operation.shard_id for operation in plan} == stream.names(0, 1, 2, 3, 4, 5)
    assert {type(operation) for operation in plan} == {CreateLease}


def test_what_may_be_read_is_taken(world, stream):
    world.scan(stream.rows(4, 6, 7, 8, finished=[9, 10]))
    plan = world.plan()
    assert {operation.shard_id for operation in plan} == stream.names(4, 6, 7)
    assert plan[0] == TakeLease(plan[0].shard_id, "me", Fence(0, None, None), ME, floor=1)


def test_what_we_hold_is_not_planned(world, stream):
    world.scan(owned(stream.rows(4, 8), w_4="me"))
    assert [operation.shard_id for operation in world.plan(held=stream.names(4))] == [stream.name(5), stream.name(8)]
    rows = stream.rows(4, 5, 8)
    world.scan(rows, 500.0)
    assert not stream.names(4) & {operation.shard_id for operation in world.plan(held=stream.names(4))}


def test_one_is_asked_for_from_who_has_more(world, stream):
    world.scan(owned(stream.rows(4, 5, 8), w_4="a", w_5="a", w_8="a"))
    (ask,) = world.plan()
    assert (ask.by, ask.owner) == ("me", "a")


def test_a_lease_that_its_owner_has_kept_is_not_asked_for(world, stream):
    rows = owned(stream.rows(4, 5, 8), w_4="a", w_5="a", w_8="a")
    kept = Incarnation("a", KEPT, 10.0)
    world.scan({shard_id: replace(row, incarnation=kept) for shard_id, row in rows.items()})
    assert world.plan() == []
    world.scan(rows, 101.0)
    assert len(world.plan()) == 1


def test_a_row_that_names_us_is_taken_at_once(world, stream):
    world.scan(owned(stream.rows(4, 5, 8), w_4="me", w_5="a", w_8="b"))
    assert world.plan() == [TakeLease(stream.name(4), "me", Fence(0, "me", None), ME, floor=1)]


OTHER = Incarnation("me", "another", 60.0)


def of_another(stream, incarnation=OTHER, **facts):
    rows = owned(stream.rows(4, 5, 8), w_4="me", w_5="a", w_8="b")
    rows[stream.name(4)] = replace(rows[stream.name(4)], incarnation=incarnation, **facts)
    return rows


def test_what_another_process_took_under_our_name_is_taken_when_that_is_dead(world, stream):
    world.scan(of_another(stream))
    assert world.plan() == []
    for now in (110.1, 160.0):
        world.scan(of_another(stream) | owned(stream.rows(5, 8, counter=int(now)), w_5="a", w_8="b"), now)
        assert world.plan() == []
    world.scan(of_another(stream) | owned(stream.rows(5, 8, counter=7), w_5="a", w_8="b"), 160.1)
    assert [operation.shard_id for operation in world.plan()] == [stream.name(4)]


@pytest.mark.parametrize("incarnation", [ME, OTHER._replace(owner="a"), None])
def test_our_own_and_unowned_leases_are_taken_at_once(world, stream, incarnation):
    world.scan(of_another(stream, incarnation))
    assert [operation.shard_id for operation in world.plan()] == [stream.name(4)]


def handed(stream, by="a"):
    rows = owned(stream.rows(4, 5, 8), w_4="me", w_5="me", w_8="a")
    rows[stream.name(4)] = replace(rows[stream.name(4)], checkpoint_owner=by)
    return rows


def test_a_hand_over_is_waited_for(world, stream):
    rows = handed(stream)
    for step in range(40):  # the old owner keeps renewing, and does not release the lease
        rows[stream.name(4)] = replace(rows[stream.name(4)], counter=step)
        rows[stream.name(8)] = replace(rows[stream.name(8)], counter=step)
        world.scan(rows, 100.0 + 0.5 * step)
        taken = {operation.shard_id for operation in world.plan(held=stream.names(5))}
        assert (stream.name(4) in taken) == (0.5 * step > 15.0), step


def test_from_a_dead_owner_it_is_taken(world, stream):
    world.scan(handed(stream))
    world.scan(handed(stream), 110.5)
    assert stream.name(4) in {operation.shard_id for operation in world.plan(held=stream.names(5))}


def test_a_held_child_counts_although_its_parent_is_not_finished(world, stream):
    world.planner.limit_leases(1)
    world.scan(owned(stream.rows(6, 8, finished=[0, 1, 2, 3, 7]), w_8="me"))
    takes = [plan for plan in world.plan(held=stream.names(8)) if isinstance(plan, TakeLease)]
    assert takes == []  # with the parent, the worker would have two leases
    world.planner.limit_leases(2)
    takes = [plan for plan in world.plan(held=stream.names(8)) if isinstance(plan, TakeLease)]
    assert [take.shard_id for take in takes] == [stream.name(6)]


def test_an_ended_shard_gets_its_children(world, stream):
    world.scan(owned(stream.rows(4, 5, 8), w_4="me", w_5="me", w_8="me"))
    plan = world.plan(held=stream.names(4, 5, 8), ending=stream.names(5))
    assert [operation.shard_id for operation in plan] == [stream.name(9), stream.name(10)]
    assert {type(operation) for operation in plan} == {CreateLease}


def test_nothing_is_created_on_a_graph_that_is_older_than_the_rows(world, stream):
    rows = stream.rows(4)
    rows["stranger"] = replace(stream.row(0), shard_id="stranger", owner="a")
    world.scan(rows)
    assert {type(operation) for operation in world.plan()} == {TakeLease}


def test_an_uneven_fleet_is_not_waited_for_forever(world, stream):
    rows = owned(stream.rows(0, 1, 2, 3, 4), w_0="a", w_1="a", w_2="a", w_3="b", w_4="me")
    asked = []
    for step in range(45):
        alive = {shard_id: replace(row, counter=step) for shard_id, row in rows.items()}
        world.scan(alive, 100.0 + 0.5 * step)
        plan = [one for one in world.plan(held=stream.names(4)) if isinstance(one, AskHandOver)]
        asked += [step] if plan else []
    assert asked == [21, 42]


def test_patience_starts_over_when_the_fleet_was_even(world, stream):
    uneven = owned(stream.rows(0, 1, 2, 3, 4), w_0="a", w_1="a", w_2="a", w_3="b", w_4="me")
    even = owned(stream.rows(0, 1, 2, 3, 4), w_0="a", w_1="a", w_2="b", w_3="b", w_4="me")
    for step in range(40):
        rows = even if step == 15 else uneven
        world.scan({shard_id: replace(row, counter=step) for shard_id, row in rows.items()}, 100.0 + 0.5 * step)
        plan = [one for one in world.plan(held=stream.names(4)) if isinstance(one, AskHandOver)]
        assert bool(plan) == (step == 37)


def test_finished_rows_are_deleted_when_they_were_quiet_for_long(world, stream):
    rows = {stream.name(5): stream.row(5, SHARD_END, counter=9)}
    rows |= {stream.name(number): stream.row(number, 250) for number in (9, 10)}
    world.scan(rows)
    assert world.planner.plan_deletions((), 400.0) == []
    assert world.planner.plan_deletions((), 400.1) == [DeleteLease(stream.name(5), 9)]
    assert world.planner.plan_deletions(stream.names(5), 400.1) == []


def test_leases_are_shared_by_load_once_a_load_is_known(stream):
    world = World(stream.all)
    balancer = LoadBalancer("me", 10.0, Random(0), 0.0)
    world.planner = Planner(
        world.view,
        world.graph,
        duplicates=DuplicateWorkers(ME),
        tokens=TokenFloor(0.0, 100.0),
        max_leases=None,
        hand_over_timeout=5.0,
        scan_pace=ScanPace(0.5, longest=5.0),
        rng=Random(0),
        balancer=balancer,
    )
    rows = owned(stream.rows(4, 5, 8), w_4="a", w_5="a", w_8="me")
    held = stream.names(8)
    world.scan(rows)
    assert world.plan(held) == [], "by number, a difference of one is no reason to move a lease"
    busy = {shard_id: replace(row, handling=0.4) for shard_id, row in rows.items()}
    busy[stream.name(8)] = replace(rows[stream.name(8)], handling=0.1)
    for now in (101.0, 101.0 + PATIENCE_LEASES * 10.0 + 1.0):
        world.scan({shard_id: replace(row, counter=int(now)) for shard_id, row in busy.items()}, now)
        plan = world.plan(held)
    assert [type(operation) for operation in plan] == [AskHandOver]
    kept = Incarnation("a", KEPT, 1_000.0)
    world.scan({shard_id: replace(row, incarnation=kept) for shard_id, row in busy.items()}, world.now)
    assert world.plan(held) == []
