"""Tests of ``shardline.core.consumer.assignment``.

The tables have the scenarios of the KCL's lease taker that apply. A property test checks that any fleet becomes even.
"""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.core.consumer.assignment import HAND_OVERS_MAX, ReadableLease, assign, is_uneven


def fleet(**loads):
    """Return leases ``a-0``, ``a-1``, ... of worker a, and so on. Those of ``free`` can be taken."""
    return [
        ReadableLease(f"{owner}-{number}", None if owner == "free" else owner)
        for owner, load in loads.items()
        for number in range(load)
    ]


def plan(leases, me="me", max_leases=None, *, spill_after=1.5, impatient=False, seed=0):
    return assign(leases, me, max_leases, Random(seed), spill_after=spill_after, impatient=impatient)


@pytest.mark.parametrize(
    ("loads", "taken"),
    [
        ({"free": 5}, 5),  # unowned leases are taken
        ({"a": 1, "free": 1}, 1),
        ({"a": 1}, 0),  # owned by a live worker: not taken
        ({"a": 3, "me": 3, "free": 2}, 1),  # not greedy: the other worker gets its part
        ({"a": 0, "me": 4, "free": 1}, 1),
        ({"a": 1, "me": 4, "free": 2}, 0),
        ({"a": 3, "b": 3, "free": 3}, 3),
        ({"a": 3, "b": 3, "free": 4}, 3),  # three to me, and the odd one to a, which comes first
        ({"a": 6, "b": 1, "free": 3}, 2),  # the worker with the fewest first: one to me, one to b, one to me
    ],
)
def test_unowned_leases_are_dealt_out(loads, taken):
    assignment = plan(fleet(**loads))
    assert len(assignment.take) == taken
    assert all(name.startswith("free") for name in assignment.take)
    assert assignment.ask == []


def test_two_who_see_the_same_take_different_ones():
    leases = fleet(a=2, b=3, free=4)
    mine, theirs = plan(leases, "a").take, plan(leases, "b").take
    assert sorted(mine + theirs) == ["free-0", "free-1", "free-2", "free-3"]


def test_abandoned_leases_are_taken_by_any_worker_a_few_at_a_time():
    leases = [*fleet(a=2, me=4), *(ReadableLease(f"free-{number}", None, 2.0) for number in range(2))]
    assert plan(leases, spill_after=2.0).take == []
    assert plan(leases, spill_after=1.9).take == ["free-0"]


def test_never_more_than_the_maximum():
    assert len(plan(fleet(free=5), max_leases=2).take) == 2
    assert plan(fleet(me=2, free=5), max_leases=2).take == []
    assert plan(fleet(me=3, free=5), max_leases=2).take == []
    assert plan(fleet(a=9, me=2), max_leases=2).ask == []
    assert len(plan(fleet(a=90, me=10), max_leases=13).ask) == 3


def test_workers_that_start_together_take_in_different_orders():
    leases = fleet(free=20)
    assert plan(leases, seed=1).take != plan(leases, seed=2).take


def asked(leases, **arguments):
    """Return which worker is asked for how many leases."""
    return dict(Counter(one.owner for one in plan(leases, **arguments).ask))


@pytest.mark.parametrize(
    ("loads", "asks"),
    [
        ({"a": 1}, {}),  # a difference of one is no reason to move a lease
        ({"a": 2}, {"a": 1}),
        ({"a": 3, "me": 2}, {}),
        ({"a": 4, "me": 2}, {"a": 1}),
        ({"a": 3, "b": 5, "me": 1}, {"b": 1}),  # from the worker with the most leases
        ({"a": 9, "me": 1, "free": 1}, {}),  # not while there are free leases
        ({"me": 3}, {}),
        ({"a": 3, "b": 1, "me": 1}, {}),  # b, which comes first, asks; then the fleet is even
        ({"a": 5, "b": 0, "me": 1}, {"a": 1}),
        ({"a": 6, "b": 5, "c": 1, "me": 2}, {"b": 1}),  # after c has asked a
        ({"a": 9, "b": 9, "me": 3}, {"a": 2, "b": 2}),
        ({"a": 30, "me": 10}, {"a": 10}),
    ],
)
def test_whom_to_ask(loads, asks):
    found = asked(fleet(**loads))
    most = max(1, loads.get("me", 0))
    assert sum(found.values()) == min(sum(asks.values()), most)
    assert all(number <= asks[owner] for owner, number in found.items())


@pytest.mark.parametrize(
    ("mine", "theirs", "asks"), [(0, 100, 1), (1, 99, 1), (2, 98, 2), (16, 84, 16), (40, 60, 10), (100, 300, 32)]
)
def test_no_more_at_a_time_than_it_has(mine, theirs, asks):
    leases = fleet(a=theirs, me=mine)
    assert asked(leases) == {"a": asks}
    assert len({one.shard_id for one in plan(leases).ask}) == asks


def test_a_bounded_number_is_on_its_way():
    coming = [ReadableLease(f"x{number}", "me", in_hand_over=True) for number in range(HAND_OVERS_MAX)]
    assert asked([*fleet(a=200), *coming[:-3]]) == {"a": 3}
    assert asked([*fleet(a=200), *coming]) == {}


def test_what_is_being_handed_over_is_not_asked_for():
    leases = [
        ReadableLease("x", "a", in_hand_over=True),
        ReadableLease("y", "a"),
        ReadableLease("z", "a", in_hand_over=True),
    ]
    assert plan(leases).ask == [ReadableLease("y", "a")]
    moving = [one._replace(in_hand_over=True) for one in fleet(a=3)]
    assert plan(moving).ask == []


def test_who_has_waited_for_long_leaves_nothing_to_those_who_may_be_full():
    leases = fleet(a=3, b=1, me=1)
    assert asked(leases) == {}
    assert asked(leases, impatient=True) == {"a": 1}
    leases = fleet(a=64, b=10, me=36)
    assert asked(leases) == {}
    assert asked(leases, impatient=True) == {"a": 14}
    assert asked(fleet(a=2, me=1), impatient=True) == {}


def test_imbalance():
    assert is_uneven(fleet(a=3, me=1), "me")
    assert not is_uneven(fleet(a=2, me=1), "me")
    assert not is_uneven([], "me")


# ---- any fleet becomes even


class World:
    def __init__(self, owners, seed):
        self.owners = owners  # by lease; None: it can be taken
        self.seed = Random(seed)
        self.moves = Counter()

    def leases(self):
        return [ReadableLease(lease, owner) for lease, owner in self.owners.items()]

    def step(self, workers, *, together):
        """Let each worker act once: one after the other, or all on the same view, of which the store accepts the first."""
        seen = self.leases()
        changed = False
        for me in self.seed.sample(workers, len(workers)):
            if not together:
                seen = self.leases()
            assignment = assign(seen, me, None, self.seed, spill_after=1.5)
            for lease in assignment.take:
                if self.owners[lease] is None:
                    self.owners[lease] = me
                    self.moves[lease] += 1
                    changed = True
            for one in assignment.ask:
                if self.owners[one.shard_id] == one.owner:
                    self.owners[one.shard_id] = me
                    self.moves[one.shard_id] += 1
                    changed = True
        return changed


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 999),
)
def test_any_fleet_becomes_even(owners, workers, together, seed):
    names = [f"w{number}" for number in range(workers)]
    world = World(
        {f"s{place:02d}": f"w{owner}" if owner < workers else None for place, owner in enumerate(owners)}, seed
    )
    for _ in range(3 * len(owners) + 3):
        if not world.step(names, together=together):
            break
    loads = [sum(owner == name for owner in world.owners.values()) for name in names]
    assert None not in world.owners.values()
    assert max(loads) - min(loads) <= 1


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.sampled_from(["join", "leave"]), st.booleans(), st.integers(0, 999))
def test_a_change_of_membership_moves_each_lease_once_at_most(leases, workers, change, together, seed):
    # A worker without leases is not visible to others, and may come too late for its share.
    leases = max(leases, workers)
    names = [f"w{number}" for number in range(workers)]
    world = World({f"s{place:02d}": names[place % workers] for place in range(leases)}, seed)
    if change == "join":
        names.append("new")
    elif workers > 1:
        names.remove("w0")
        world.owners = {lease: None if owner == "w0" else owner for lease, owner in world.owners.items()}
    for _ in range(3 * leases + 3):
        if not world.step(names, together=together):
            break
    loads = [sum(owner == name for owner in world.owners.values()) for name in names]
    assert max(loads) - min(loads) <= 1
    assert max(world.moves.values(), default=0) <= 1


def settle(leases, workers, joiners, seed, *, late):
    """Let workers join an even fleet at once. ``late``: a worker's request arrives after others have scanned again."""
    rng = Random(seed)
    old = [f"w{number}" for number in range(workers)]
    everyone = old + [f"new{number}" for number in range(joiners)]
    world = World({f"s{place:03d}": old[place % workers] for place in range(leases)}, seed)
    scans, moved = 0, True
    while moved and scans < 40:
        scans, moved, asked_for, steps = scans + 1, False, {}, []
        for name in everyone:
            looks, arrives = sorted((rng.random(), rng.random())) if late else [rng.random()] * 2
            steps += [(looks, 0, name), (arrives, 1, name)]
        for _, has_looked, name in sorted(steps):
            if not has_looked:
                asked_for[name] = assign(world.leases(), name, None, rng, spill_after=1.5).ask
                continue
            for one in asked_for[name]:
                if world.owners[one.shard_id] == one.owner:
                    world.owners[one.shard_id] = name
                    world.moves[one.shard_id] += 1
                    moved = True
    loads = Counter(world.owners.values())
    assert max(loads[name] for name in everyone) - min(loads[name] for name in everyone) <= 1
    return scans, world.moves


fleets = given(st.integers(1, 150), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9999))


@settings(max_examples=200, deadline=None)
@fleets
def test_whoever_joins_has_its_share_after_a_few_scans_and_each_lease_moves_once(leases, workers, joiners, seed):
    scans, moves = settle(leases, workers, joiners, seed, late=False)
    assert scans <= 12
    assert max(moves.values(), default=0) <= 1


@settings(max_examples=200, deadline=None)
@fleets
def test_hardly_anything_moves_twice_though_workers_see_each_other_late(leases, workers, joiners, seed):
    scans, moves = settle(leases, workers, joiners, seed, late=True)
    assert scans <= 16
    assert moves.total() - len(moves) <= 4 * joiners
