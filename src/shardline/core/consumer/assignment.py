"""Which leases should I take, and whom should I ask for one?

A pure function of what a worker sees. There is no leader: all workers run it on nearly the same rows, and it is made so
that they come to the same plan, of which each carries out its own part.

Invariants:

- The members are the owners of live leases, and me. In the end the difference between any two is at most one, and
  nothing moves that need not: each lease goes to whoever has least.
- What nobody holds is dealt out by the plan, one by one: two workers who see the same take different ones. What
  its taker does not take in time (it may be full, or gone) is anybody's, a few at a time.
- Nobody is asked for a lease while there are some to take. Only surplus moves: from who has most to who has least,
  while they are at least two apart. All workers work out the same moves, and each asks for those that bring it leases.
- A worker asks for no more at a time than it has, and for one if it has none: until then nobody sees it, and two
  who join together would each take what is for both. So it has its share after a few scans, whatever the number; and
  never are more than ``HAND_OVERS_MAX`` on their way to it.
- Never more than ``max_leases``.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Final, NamedTuple, final

from shardline.core.backoff import Chance

HAND_OVERS_MAX: Final = 32
"""How many leases may be on their way to one worker: each costs its old owner a commit, and the new one an iterator."""


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
    ask: list[Standing]
    """The leases to ask their owners for."""


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
        max_leases: how many I may have.
        chance: picks among leases that are alike.
        spill_after: how long the plan's owner has to take a lease.
        impatient: whether the fleet has been uneven for long, so that I leave nothing to those who have no more than I:
            they may be full, which nobody sees from outside.
    """
    loads = Counter(standing.owner for standing in standings if standing.owner is not None)
    loads[me] += 0
    room = len(standings) if max_leases is None else max_leases - loads[me]
    available = sorted((one for one in standings if one.owner is None), key=lambda one: one.shard_id)
    if available:
        mine = _share(available, loads, me, spill_after)
        # In random order: workers that start together do not see each other, and so each gets its part of them.
        return Assignment(sorted(mine, key=lambda _: chance.random())[: max(0, room)], [])
    coming = sum(one.in_hand_over and one.owner == me for one in standings)
    most = min(room, max(1, loads[me]), HAND_OVERS_MAX - coming)
    if most < 1:
        return Assignment([], [])
    if impatient:
        loads = Counter({worker: load for worker, load in loads.items() if load > loads[me] or worker == me})
    wanted = _surplus(loads, me)
    asks: list[Standing] = []
    for one in sorted(standings, key=lambda _: chance.random()) if wanted else ():
        if one.owner is not None and not one.in_hand_over and wanted[one.owner] and len(asks) < most:
            wanted[one.owner] -= 1
            asks.append(one)
    return Assignment([], asks)


def imbalance(standings: Sequence[Standing], me: str) -> bool:
    """Whether someone has at least two more than I."""
    loads = Counter(standing.owner for standing in standings if standing.owner is not None)
    return max(loads.values(), default=0) >= loads[me] + 2


def _share(available: list[Standing], loads: Counter[str], me: str, spill_after: float) -> list[str]:
    """What the plan gives me of what can be taken, then some of what others left lying."""
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


def _surplus(loads: Counter[str], me: str) -> Counter[str]:
    """Whom I should ask for how many, when everyone does its part."""
    poorest = [(load, worker) for worker, load in loads.items()]
    richest = [(-load, worker) for worker, load in loads.items()]
    heapify(poorest)
    heapify(richest)
    wanted: Counter[str] = Counter()
    # Who gives stays above who takes, so that neither heap has to know of the other's changes.
    while -richest[0][0] >= poorest[0][0] + 2:
        (less, giver), (load, taker) = richest[0], poorest[0]
        heapreplace(richest, (less + 1, giver))
        heapreplace(poorest, (load + 1, taker))
        if taker == me:
            wanted[giver] += 1
    return wanted
