"""AS1 to AS4 are the invariants of ``shardline.core.consumer.assignment``.

The tables are the scenarios of the KCL's lease taker that apply, and the property that any fleet becomes even.
"""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.core.consumer.assignment import Standing, assign, imbalance


def fleet(**loads):
    """Leases ``a-0``, ``a-1``, ... of worker a, and so on; those of ``free`` can be taken."""
    return [
        Standing(f"{owner}-{number}", None if owner == "free" else owner)
        for owner, load in loads.items()
        for number in range(load)
    ]


def plan(standings, me="me", max_leases=None, *, spill_after=1.5, impatient=False, seed=0):
    return assign(standings, me, max_leases, Random(seed), spill_after=spill_after, impatient=impatient)


@pytest.mark.parametrize(
    ("loads", "taken"),
    [
        ({"free": 5}, 5),  # unowned leases are taken
        ({"a": 1, "free": 1}, 1),
        ({"a": 1}, 0),  # owned by a live worker: not taken
        ({"a": 3, "me": 3, "free": 2}, 1),  # not greedy: the other gets its part
        ({"a": 0, "me": 4, "free": 1}, 1),
        ({"a": 1, "me": 4, "free": 2}, 0),
        ({"a": 3, "b": 3, "free": 3}, 3),
        ({"a": 3, "b": 3, "free": 4}, 3),  # three to me, and the odd one to a, who comes first
        ({"a": 6, "b": 1, "free": 3}, 2),  # the poorest first: one to me, one to b, one to me
    ],
)
def test_as1_as2_what_nobody_holds_is_dealt_out(loads, taken):
    assignment = plan(fleet(**loads))
    assert len(assignment.take) == taken
    assert all(name.startswith("free") for name in assignment.take)
    assert assignment.ask is None


def test_as2_two_who_see_the_same_take_different_ones():
    standings = fleet(a=2, b=3, free=4)
    mine, theirs = plan(standings, "a").take, plan(standings, "b").take
    assert sorted(mine + theirs) == ["free-0", "free-1", "free-2", "free-3"]


def test_as2_what_is_left_lying_is_anybodys_a_few_at_a_time():
    standings = [*fleet(a=2, me=4), *(Standing(f"free-{number}", None, 2.0) for number in range(2))]
    assert plan(standings, spill_after=2.0).take == []
    assert plan(standings, spill_after=1.9).take == ["free-0"]


def test_as4_never_more_than_the_maximum():
    assert len(plan(fleet(free=5), max_leases=2).take) == 2
    assert plan(fleet(me=2, free=5), max_leases=2).take == []
    assert plan(fleet(me=3, free=5), max_leases=2).take == []
    assert plan(fleet(a=9, me=2), max_leases=2).ask is None


def test_workers_that_start_together_take_in_different_orders():
    standings = fleet(free=20)
    assert plan(standings, seed=1).take != plan(standings, seed=2).take


@pytest.mark.parametrize(
    ("loads", "victim"),
    [
        ({"a": 1}, None),  # off by one: no reason to move anything
        ({"a": 2}, "a"),
        ({"a": 3, "me": 2}, None),
        ({"a": 4, "me": 2}, "a"),
        ({"a": 3, "b": 5, "me": 1}, "b"),  # from who has most
        ({"a": 9, "me": 1, "free": 1}, None),  # not while there are some to take
        ({"me": 3}, None),
        ({"a": 3, "b": 1, "me": 1}, None),  # b, who comes first, asks; then it is even
        ({"a": 4, "b": 0, "me": 1}, "a"),
        ({"a": 6, "b": 5, "c": 1, "me": 2}, "b"),  # after c has asked a
    ],
)
def test_as3_whom_to_ask(loads, victim):
    ask = plan(fleet(**loads)).ask
    assert (None if ask is None else ask.owner) == victim


def test_as3_one_at_a_time():
    standings = [*fleet(a=5), Standing("x", "me", in_hand_over=True)]
    assert plan(standings).ask is None


def test_as3_what_is_being_handed_over_is_not_asked_for():
    standings = [Standing("x", "a", in_hand_over=True), Standing("y", "a"), Standing("z", "a", in_hand_over=True)]
    assert plan(standings).ask == Standing("y", "a")
    moving = [one._replace(in_hand_over=True) for one in fleet(a=3)]
    assert plan(moving).ask is None


def test_as3_who_has_waited_for_long_asks_out_of_turn():
    standings = fleet(a=3, b=1, me=1)
    assert plan(standings).ask is None
    assert plan(standings, impatient=True).ask.owner == "a"
    assert plan(fleet(a=2, me=1), impatient=True).ask is None


def test_imbalance():
    assert imbalance(fleet(a=3, me=1), "me")
    assert not imbalance(fleet(a=2, me=1), "me")
    assert not imbalance([], "me")


# ---- any fleet becomes even


class World:
    def __init__(self, owners, seed):
        self.owners = owners  # by lease; None: can be taken
        self.seed = Random(seed)
        self.moves = Counter()

    def standings(self):
        return [Standing(lease, owner) for lease, owner in self.owners.items()]

    def step(self, workers, *, together):
        """Each worker acts once: one after the other, or all on the same sight, of which the store lets the first win."""
        seen = self.standings()
        changed = False
        for me in self.seed.sample(workers, len(workers)):
            if not together:
                seen = self.standings()
            assignment = assign(seen, me, None, self.seed, spill_after=1.5)
            for lease in assignment.take:
                if self.owners[lease] is None:
                    self.owners[lease] = me
                    self.moves[lease] += 1
                    changed = True
            if assignment.ask is not None and self.owners[assignment.ask.shard_id] == assignment.ask.owner:
                self.owners[assignment.ask.shard_id] = me
                self.moves[assignment.ask.shard_id] += 1
                changed = True
        return changed


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 999),
)
def test_as1_any_fleet_becomes_even(owners, workers, together, seed):
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
def test_as1_a_change_of_membership_moves_each_lease_once_at_most(leases, workers, change, together, seed):
    leases = max(leases, workers)  # who holds nothing is seen by nobody, and may come too late for its share
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
