"""Tests of ``shardline.core.consumer.load_assignment``: first single plans, then fleets whose workers see the rows late."""

from collections import Counter, deque
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.core.consumer.assignment import HAND_OVERS_MAX, Assignment, ReadableLease
from shardline.core.consumer.load_assignment import PATIENCE_LEASES, LoadBalancer, weigh
from shardline.core.consumer.shard_load import LoadMeter, load_of
from shardline.model.lease import Lease

LEASE = 10.0
PATIENCE = PATIENCE_LEASES * LEASE


def fleet(**owners):
    """Return leases with these loads: ``a-0``, ``a-1``, ... of worker a, and so on. Those of ``free`` can be taken."""
    return [
        ReadableLease(f"{owner}-{place}", None if owner == "free" else owner, load=load)
        for owner, loads in owners.items()
        for place, load in enumerate(loads)
    ]


class Chosen:
    """A worker that plans again and again."""

    def __init__(self, me="me", max_leases=None, began_at=-PATIENCE):
        self.balancer = LoadBalancer(me, LEASE, Random(0), began_at)
        self.max_leases = max_leases

    def plan(self, leases, now=0.0, spill_after=1.5):
        return self.balancer.assign(leases, self.max_leases, now, spill_after=spill_after)

    def wait(self, leases, now=0.0):
        """Return the plan after the worker has seen the same rows for a while."""
        self.plan(leases, now)
        return self.plan(leases, now + PATIENCE + 0.5)


def asked(leases, me="me", max_leases=None):
    return {lease.shard_id for lease in Chosen(me, max_leases).wait(leases).ask}


@pytest.mark.parametrize(
    ("loads", "ids"),
    [
        ({"a": [1, 1], "me": [1]}, set()),
        ({"a": [1, 1, 1], "me": [1]}, {"a-2"}),
        ({"a": [10, 1]}, {"a-1"}),  # the hot lease would only move the problem
        ({"a": [10]}, set()),
        ({"a": [10, 1], "me": [2, 2]}, {"a-1"}),
        ({"a": [10, 4], "me": [1]}, {"a-1"}),
        ({"a": [5, 5, 5], "me": [4, 4]}, set()),  # 5 more would be more than 80 % of 15
        ({"a": [6, 6, 6], "me": [4, 4]}, {"a-0"}),
        ({"a": [6, 3, 6, 3], "me": [10]}, {"a-3"}),  # 10 and 18: a lease of 4 would be best
        ({"a": [1] * 10, "me": [1] * 8}, set()),  # above 80 %, and not above the mean and one lease
        ({"a": [1] * 11, "b": [1] * 8, "me": [1] * 9}, set()),  # b gets it
        ({"a": [1] * 13, "b": [1] * 9, "me": [1] * 9}, {"a-8"}),  # above the mean and one lease; b gets the first
        ({"a": [100], "b": [3] * 10}, {"b-9"}),  # the worker with the highest load has nothing to give
        ({"a": [1] * 5, "b": [1], "me": [2]}, set()),  # the worker with the lowest load gets it
    ],
)
def test_which_lease_is_asked_for(loads, ids):
    assert asked(fleet(**loads)) == ids


def test_the_lease_is_chosen_that_makes_the_loads_most_equal():
    assert asked(fleet(a=[1, 2, 4, 8, 16], me=[15])) == {"a-3"}
    assert asked(fleet(a=[1, 5, 9, 16], me=[15])) == {"a-2"}
    # 1.5 would make them equal, but is more than the worker may have after it.
    assert asked(fleet(a=[6.6, 1.4, 1.0, 0.9], me=[6.9])) == {"a-2"}


def test_an_unknown_load_counts_as_the_average():
    leases = [*fleet(a=[2, 4], me=[6]), ReadableLease("a-9", "a")]
    assert {lease.shard_id: lease.load for lease in weigh(leases)} == {"a-0": 2, "a-1": 4, "a-9": 4, "me-0": 6}


def test_a_worker_waits_until_the_difference_has_lasted():
    chosen, leases = Chosen(), fleet(a=[4, 4, 4], me=[1])
    assert chosen.plan(leases, 100.0).ask == []
    assert chosen.plan(leases, 100.0 + PATIENCE).ask == []
    assert len(chosen.plan(leases, 100.1 + PATIENCE).ask) == 1
    # Then it asks until the plan has nothing more for it.
    assert len(chosen.plan(leases, 100.2 + PATIENCE).ask) == 1
    assert chosen.plan(fleet(a=[4, 4], me=[1, 4]), 100.3 + PATIENCE).ask == []
    assert chosen.plan(leases, 100.4 + PATIENCE).ask == []


def test_a_break_begins_the_wait_again():
    chosen, leases = Chosen(), fleet(a=[4, 4, 4], me=[1])
    chosen.plan(leases, 0.0)
    chosen.plan(fleet(a=[4, 4], b=[0.5], me=[1]), 20.0)  # b would get it
    assert chosen.plan(leases, 0.1 + PATIENCE).ask == []
    assert len(chosen.plan(leases, 0.2 + 2 * PATIENCE).ask) == 1


def test_a_worker_without_a_lease_does_not_wait():
    assert len(Chosen().plan(fleet(a=[4, 4, 4])).ask) == 1


def test_a_worker_that_has_just_started_and_has_few_leases_does_not_wait():
    leases = fleet(a=[1] * 7, me=[1])
    assert len(Chosen(began_at=100.0).plan(leases, 99.9 + PATIENCE).ask) == 1
    assert Chosen(began_at=100.0).plan(leases, 100.0 + PATIENCE).ask == []
    assert Chosen(began_at=100.0).plan(fleet(a=[1] * 6, me=[1, 1]), 100.0).ask == [], "it has half of its part"


def test_it_at_most_doubles_its_leases():
    assert len(Chosen().wait(fleet(a=[1] * 100, me=[1, 1])).ask) == 2
    coming = [ReadableLease(f"x{place}", "me", in_hand_over=True, load=0.01) for place in range(HAND_OVERS_MAX - 3)]
    assert len(Chosen().wait([*fleet(a=[1] * 200), *coming]).ask) == 3
    coming = [ReadableLease(f"x{place}", "me", in_hand_over=True, load=0.01) for place in range(HAND_OVERS_MAX)]
    assert Chosen().wait([*fleet(a=[1] * 200), *coming]).ask == []


def test_never_more_than_the_maximum():
    assert asked(fleet(a=[4, 4, 4], me=[1]), max_leases=1) == set()
    assert len(asked(fleet(a=[1] * 40, me=[1] * 10), max_leases=13)) == 3
    assert len(Chosen(max_leases=2).plan(fleet(free=[1] * 5)).take) == 2
    assert Chosen(max_leases=1).plan(fleet(me=[1, 1], free=[1])).take == []


def test_what_is_being_handed_over_is_not_asked_for():
    moving = [lease._replace(in_hand_over=True) for lease in fleet(a=[4, 4])]
    assert asked([*moving, ReadableLease("y", "a", load=1)]) == {"y"}


def test_available_leases_go_to_the_lowest_load_the_largest_first():
    leases = fleet(a=[6], me=[2], free=[1, 5, 3])
    # 5 goes to me (7), 3 to a (9), 1 to me
    assert sorted(Chosen().plan(leases).take) == ["free-0", "free-1"]
    assert Chosen("a").plan(leases).take == ["free-2"]


def test_abandoned_leases_are_taken_by_any_worker():
    left = ReadableLease("free", None, 2.0, load=1)
    assert Chosen().plan([*fleet(a=[1], me=[4]), left], spill_after=2.0).take == []
    assert Chosen().plan([*fleet(a=[1], me=[4]), left], spill_after=1.9).take == ["free"]


def test_who_has_waited_for_long_leaves_nothing_to_those_who_may_be_full():
    chosen, leases = Chosen(), fleet(a=[4, 4], b=[1], me=[2])
    for tenth in range(int(2 * PATIENCE) + 1):
        assert chosen.plan(leases, float(tenth)) == Assignment([], [])
    assert [lease.owner for lease in chosen.plan(leases, 2 * PATIENCE + 1.5).ask] == ["a"]
    assert chosen.plan(leases, 2 * PATIENCE + 2.0).ask == []  # and waits again


# ---- with steady loads, the moves end, and the promise holds


def settle(loads, owners, workers, seed, *, together):
    """Let workers ask until none asks any more. Return who has which lease, and the moves of each lease."""
    names = [f"w{place}" for place in range(workers)]
    leases = {
        f"s{place:02d}": ReadableLease(f"s{place:02d}", names[owner % workers], load=load)
        for place, (load, owner) in enumerate(zip(loads, owners, strict=True))
    }
    rng, moves, now, quiet = Random(seed), Counter(), 0.0, 0
    balancers = {name: LoadBalancer(name, LEASE, rng, 0.0) for name in names}
    while quiet < 3:
        now += 2 * PATIENCE
        quiet += 1
        seen = [*leases.values()]
        for name in rng.sample(names, workers):
            for lease in (
                balancers[name].assign(seen if together else [*leases.values()], None, now, spill_after=1.5).ask
            ):
                if leases[lease.shard_id].owner == lease.owner:
                    leases[lease.shard_id] = lease._replace(owner=name)
                    moves[lease.shard_id] += 1
                    quiet = 0
        assert now < 1000 * PATIENCE, "the moves do not end"
    sums = {name: sum(lease.load for lease in leases.values() if lease.owner == name) for name in names}
    return leases, sums, moves


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.one_of(st.floats(0.002, 5.0), st.just(1.0)), st.integers(0, 5)), min_size=1, max_size=40),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 999),
)
def test_any_fleet_becomes_balanced(leases, workers, together, seed):
    loads, owners = zip(*leases, strict=True)
    found, sums, moves = settle(loads, owners, workers, seed, together=together)
    highest, mean = max(sums.values()), sum(loads) / workers
    assert highest <= (mean + max(loads)) * (1 + 1e-9)
    for lease in found.values():
        giver = sums[lease.owner]
        for taker in sums.values():
            after = max(giver - lease.load, taker + lease.load)
            assert after > 0.8 * giver * (1 - 1e-9), "a move would lower the load of its giver by 20 %"
    assert moves.total() <= 2 * len(loads)


# ---- fleets whose loads are measured, with noise, and whose workers see the rows late


class Measured:
    """Workers that measure the loads of their shards, renew, scan rows that are up to ``late`` seconds old, and hand
    leases over. All in steps of a second.
    """

    STEP = 1.0

    def __init__(self, loads, workers, *, late=2.0, noise=0.0, bursts=False, seed=0, interval=1.0):
        self.rng = Random(seed)
        self.truth = dict(enumerate(loads))
        self.names = [f"w{place}" for place in range(workers)]
        self.noise, self.bursts, self.late, self.interval = noise, bursts, late, interval
        self.now = 0.0
        self.rows = {shard: Lease(f"s{shard:03d}", owner=self.names[shard % workers]) for shard in self.truth}
        self.draining = {}  # by shard: when its hand-over ends
        self.meters = {shard: LoadMeter(0.0, row, LEASE) for shard, row in self.rows.items()}
        self.renew_at = {shard: self.rng.uniform(0, LEASE / 3) for shard in self.rows}
        self.bursting = dict.fromkeys(self.rows, False)
        self.history = deque(maxlen=int(late / self.STEP) + 1)
        self.balancers = {name: LoadBalancer(name, LEASE, self.rng, 0.0) for name in self.names}
        self.scan_at = {name: self.rng.uniform(0, interval) for name in self.names}
        self.moves = []  # (time, shard)

    def run(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.now += self.STEP
            self._work()
            self.history.append(dict(self.rows))
            for name in self.rng.sample(self.names, len(self.names)):
                if self.now >= self.scan_at[name]:
                    self.scan_at[name] = self.now + self.interval
                    self._act(name)
        return self

    def _work(self):
        for shard, row in self.rows.items():
            if self.draining.get(shard, self.now + 1) <= self.now:
                del self.draining[shard]
                self.rows[shard] = replace(row, checkpoint_owner=None)
                self.meters[shard] = LoadMeter(self.now, row, LEASE)
                self.renew_at[shard] = self.now + LEASE / 3
            if self.rng.random() < 0.2:
                self.bursting[shard] = not self.bursting[shard]
            factor = self.rng.uniform(1 - self.noise, 1 + self.noise) if not self.bursts else 2.0 * self.bursting[shard]
            self.meters[shard].add_handling(self.truth[shard] * factor * self.STEP)
            if self.now >= self.renew_at[shard]:
                throughput, handling = self.meters[shard].measure(self.now)
                self.rows[shard] = replace(self.rows[shard], throughput=throughput, handling=handling)
                self.renew_at[shard] = self.now + LEASE / 3

    def _act(self, name):
        seen = self.history[-self.rng.randint(1, len(self.history))]
        leases = [
            ReadableLease(row.shard_id, row.owner, in_hand_over=row.checkpoint_owner is not None, load=load_of(row))
            for row in seen.values()
        ]
        if all(lease.load is None for lease in leases):
            return
        for lease in self.balancers[name].assign(leases, None, self.now, spill_after=1.5).ask:
            shard = int(lease.shard_id[1:])
            row = self.rows[shard]
            if row.owner == lease.owner and row.checkpoint_owner is None:
                self.rows[shard] = replace(row, owner=name, checkpoint_owner=lease.owner)
                self.draining[shard] = self.now + 1.0
                self.moves.append((self.now, shard))

    def join(self, name):
        self.names.append(name)
        self.balancers[name] = LoadBalancer(name, LEASE, self.rng, self.now)
        self.scan_at[name] = self.now

    @property
    def sums(self):
        sums = Counter(dict.fromkeys(self.names, 0.0))
        for shard, row in self.rows.items():
            sums[row.owner] += self.truth[shard] + 0.002
        return sums

    @property
    def limit(self):
        return sum(self.sums.values()) / len(self.names) + max(self.truth.values()) + 0.002


EQUAL = [0.1] * 24
UNEVEN = [0.4, 0.35, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05, 0.03, 0.02, 0.02, 0.02, 0.01, 0.01, 0.01]


@pytest.mark.parametrize("seed", range(3))
def test_measured_loads_are_balanced_in_minutes_and_nothing_moves_after_that(seed):
    world = Measured(UNEVEN, 4, seed=seed).run(240)
    assert 0 < len(world.moves) <= 8
    assert max(world.sums.values()) <= world.limit
    assert len(world.run(900).moves) == len(world.moves), world.moves


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("loads", "workers", "most"), [(EQUAL, 4, 2), (UNEVEN, 4, 12)])
@pytest.mark.parametrize("noise", [{"noise": 0.9}, {"bursts": True}])
def test_loads_that_vary_all_the_time_move_hardly_any_lease(loads, workers, most, noise, seed):
    # The load of a shard is between 0.1 and 1.9 times its mean, or 0 or twice its mean, for about five seconds each.
    world = Measured(loads, workers, seed=seed, **noise).run(1200)
    assert len(world.moves) <= most, world.moves


@pytest.mark.parametrize("late", [1.0, 10.0])
def test_a_hot_shard_that_wanders_is_followed(late):
    world = Measured([0.05] * 16, 4, late=late, seed=1).run(120)
    moves = len(world.moves)
    for hot in (3, 8, 1, 14):
        world.truth = dict.fromkeys(world.truth, 0.05) | {hot: 0.9}
        world.run(300)
        others = [shard for shard, row in world.rows.items() if row.owner == world.rows[hot].owner and shard != hot]
        assert len(others) <= 1, "the hot shard has its worker nearly for itself"
        assert max(world.sums.values()) <= world.limit
        assert len(world.moves) - moves <= 8, "at most the others of the old and the new worker move"
        moves = len(world.moves)


def test_a_worker_that_joins_gets_its_part_within_seconds():
    world = Measured(EQUAL, 3, seed=2).run(120)
    world.join("new")
    world.run(10)
    assert world.sums["new"] > 0.8 * sum(world.sums.values()) / 4
    assert max(world.sums.values()) <= world.limit
    assert max(Counter(shard for _, shard in world.moves).values()) == 1
