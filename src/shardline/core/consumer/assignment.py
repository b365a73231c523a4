"""Which leases should I take, and whom should I ask for one?

A pure function of what a worker sees. There is no leader: all workers run it on nearly the same rows, and it is made so
that they come to the same plan, of which each carries out its own part.

Invariants:

- AS1: the members are the owners of live leases, and me. In the end the difference between any two is at most one, and
  nothing moves that need not: each lease goes to whoever has least.
- AS2: what nobody holds is dealt out by the plan, one by one: two workers who see the same take different ones. What
  its taker does not take in time (it may be full, or gone) is anybody's, a few at a time.
- AS3: nobody is asked for a lease while there are some to take. A worker asks for one at a time, and only one that has
  at least two more than itself, counting what those who have less than it will ask for first.
- AS4: never more than ``max_leases``.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple, final

from shardline.core.backoff import Chance


@final
class Standing(NamedTuple):
    """One lease that can be read now: not finished, its parents are."""

    shard_id: str
    owner: str | None
    """Who has it, or will have it after the hand-over under way. ``None``: it can be taken."""
    available_for: float = 0.0
    """How long it could have been taken."""
    in_hand_over: bool = False


@final
class Assignment(NamedTuple):
    """What to do now."""

    take: list[str]
    ask: Standing | None
    """The lease to ask its owner for."""


def assign(
    standings: Sequence[Standing],
    me: str,
    max_leases: int | None,
    chance: Chance,
    *,
    spill_after: float,
    impatient: bool = False,
) -> Assignment:
    """What ``me`` should do.

    Args:
        standings: every lease that can be read now.
        me: my name.
        max_leases: how many I may have (AS4).
        chance: picks among leases that are alike.
        spill_after: how long the plan's owner has to take a lease (AS2).
        impatient: whether the fleet has been uneven for long, so that I wait for nobody's turn: those before me may be
            full, which nobody sees from outside.
    """
    loads = Counter(standing.owner for standing in standings if standing.owner is not None)
    loads[me] += 0
    room = len(standings) if max_leases is None else max_leases - loads[me]
    available = sorted((one for one in standings if one.owner is None), key=lambda one: one.shard_id)
    if available:
        mine = _share(available, loads, me, spill_after)
        # In random order: workers that start together do not see each other, and so each gets its part of them.
        return Assignment(sorted(mine, key=lambda _: chance.random())[: max(0, room)], None)
    if room < 1 or any(one.in_hand_over and one.owner == me for one in standings):
        return Assignment([], None)
    victim = _richest(loads, me) if impatient else _victim(loads, me)
    leases = [one for one in standings if one.owner == victim and not one.in_hand_over] if victim is not None else []
    return Assignment([], leases[int(chance.random() * len(leases))] if leases else None)


def imbalance(standings: Sequence[Standing], me: str) -> bool:
    """Whether someone has at least two more than I."""
    loads = Counter(standing.owner for standing in standings if standing.owner is not None)
    return max(loads.values(), default=0) >= loads[me] + 2


def _share(available: list[Standing], loads: Counter[str], me: str, spill_after: float) -> list[str]:
    """What the plan gives me of what can be taken, then some of what others left lying (AS1, AS2)."""
    poorest = [(load, worker) for worker, load in loads.items()]
    heapify(poorest)
    mine: list[str] = []
    left: list[str] = []
    for standing in available:
        load, worker = poorest[0]
        heapreplace(poorest, (load + 1, worker))
        if worker == me:
            mine.append(standing.shard_id)
        elif standing.available_for > spill_after:
            left.append(standing.shard_id)
    return mine + left[: -(-len(left) // len(loads))]


def _victim(loads: Counter[str], me: str) -> str | None:
    """Whom to ask, after everyone with fewer leases than I has asked once (AS3)."""
    later = Counter(loads)
    for _, worker in sorted((load, name) for name, load in loads.items() if (load, name) < (loads[me], me)):
        richest = _richest(later, worker)
        if richest is not None:
            later[richest] -= 1
            later[worker] += 1
    return _richest(later, me)


def _richest(loads: Counter[str], worker: str) -> str | None:
    """Who has most, if that is at least two more than ``worker`` has."""
    most, name = max((load, name) for name, load in loads.items())
    return name if most >= loads[worker] + 2 else None
