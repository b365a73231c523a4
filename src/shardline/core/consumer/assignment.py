"""Decides which leases a worker should take, and which workers it should ask for a lease.

``assign`` is a pure function of the rows that a worker sees. There is no leader: all workers call ``assign`` with
nearly the same rows and arrive at the same plan, and each worker carries out its own part of the plan.

Invariants:

- The members are the owners of live leases, and the calling worker. Eventually, the lease counts of any two members
  differ by at most one. Each lease goes to the member with the fewest leases, and no lease moves without need.
- The plan deals out the available leases one by one, so two workers with the same view take different leases. If the
  planned taker does not take a lease in time (it may be full, or gone), any worker may take the lease, but only a few
  such leases at a time.
- A worker asks for no lease while leases are available. Only surplus leases move: from the member with the most leases
  to the member with the fewest, while they differ by at least two. All workers compute the same moves, and each worker
  asks for the leases that these moves give it.
- A worker that has no lease asks for one lease at a time. Any other worker asks for at most as many leases as it has,
  so that its leases at most double. A worker without a lease is invisible to the others, so two workers that join
  together would otherwise each ask for as many leases as the two should get together. Doubling reaches the fair share
  after a few scans. At most ``HAND_OVERS_MAX`` leases are being handed over to one worker.
- A worker never has more than ``max_leases``.
- If the worker reads several streams, all of this is true of the leases of all streams together. Each stream is planned
  on its own, so a plan counts what the worker is about to get in the other streams, and the leases that it has asked
  for since the last scan do not raise the number that it may ask for.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Final, NamedTuple, final

from shardline.core.backoff import Chance

HAND_OVERS_MAX: Final = 32
"""The maximum number of hand-overs to one worker at a time. For each hand-over, the old owner has to write a commit,
and the new owner has to request an iterator."""


@final
class ReadableLease(NamedTuple):
    """A lease whose shard can be read now: the shard is not finished, and all its parents are finished."""

    shard_id: str
    owner: str | None
    """The current owner, or the next owner during a hand-over, or ``None`` if the lease is available."""
    available_for: float = 0.0
    """How many seconds the lease has been available."""
    in_hand_over: bool = False
    load: float | None = None
    """The load of the lease, if the group shares its work by load and the load is known (``shard_load``)."""
    stream: str = ""
    """The stream of the lease. Empty if the worker reads one stream."""
    is_asked: bool = False
    """Whether the worker has asked for the lease, or is about to, and no scan has shown the answer yet."""


@final
class Assignment(NamedTuple):
    """The leases that a worker should get now."""

    take: list[str]
    ask: list[ReadableLease]
    """The leases to request from their owners."""


def assign(
    leases: Sequence[ReadableLease],
    me: str,
    max_leases: int | None,
    rng: Chance,
    *,
    spill_after: float,
    impatient: bool = False,
    stream: str = "",
) -> Assignment:
    """Return the leases of one stream that the worker ``me`` should take or ask for.

    Args:
        leases: every lease whose shard can be read now, in all streams of the worker.
        me: the name of the worker.
        max_leases: the maximum number of leases for this worker.
        rng: shuffles leases that are otherwise equal.
        spill_after: how long, in seconds, an available lease is reserved for its planned taker.
        impatient: whether the fleet has been uneven for a long time. The worker then claims all surplus, even if
            other workers have as few leases: these workers may be at their ``max_leases``, which the rows do not show.
        stream: the stream whose leases are planned.
    """
    loads = Counter(lease.owner for lease in leases if lease.owner is not None)
    # A worker without a lease is also a member. Only this assignment adds the worker: reading a missing key of a
    # Counter does not.
    loads[me] += 0
    room = len(leases) if max_leases is None else max_leases - loads[me]
    # All workers must deal out the leases in the same order. Otherwise two workers would plan to take the same lease.
    available = sorted((lease for lease in leases if lease.owner is None), key=place_of)
    if available:
        mine = share(available, loads, me, spill_after)
        # Workers that start together do not see each other, so each worker plans to take every lease. Because of the
        # random order, each worker gets a part of the leases.
        chosen = sorted(mine, key=lambda _: rng.random())[: max(0, room)]
        return Assignment([lease.shard_id for lease in chosen if lease.stream == stream], [])
    most = most_to_ask(leases, me, loads[me], room)
    if most < 1:
        return Assignment([], [])
    if impatient:
        # Leave out the other workers that have few leases, so that the plan gives all surplus to this worker. The other
        # workers had enough time to ask.
        loads = Counter({worker: load for worker, load in loads.items() if load > loads[me] or worker == me})
    wanted = _surplus(loads, me)
    asks: list[ReadableLease] = []
    for lease in sorted(leases, key=lambda _: rng.random()) if wanted else ():
        if lease.owner is not None and not lease.in_hand_over and wanted[lease.owner] and len(asks) < most:
            wanted[lease.owner] -= 1
            asks.append(lease)
    return Assignment([], [lease for lease in asks if lease.stream == stream])


def is_uneven(leases: Sequence[ReadableLease], me: str) -> bool:
    """Return whether some worker has at least two more leases than ``me``."""
    loads = Counter(lease.owner for lease in leases if lease.owner is not None)
    return max(loads.values(), default=0) >= loads[me] + 2


def place_of(lease: ReadableLease) -> tuple[str, str]:
    """Return a sort key that is the same for all workers."""
    return lease.shard_id, lease.stream


def most_to_ask(leases: Sequence[ReadableLease], me: str, count: int, room: int) -> int:
    """Return how many leases the worker may ask for now. It has ``count`` leases, and may get ``room`` more."""
    coming = sum(lease.in_hand_over and lease.owner == me for lease in leases)
    asked = sum(lease.is_asked for lease in leases)
    # Leases that are being handed over to this worker already count as its leases (see ``ReadableLease.owner``), so
    # each round of requests at most doubles their number.
    return min(room, max(1, count - asked) - asked, HAND_OVERS_MAX - coming)


def share(
    available: Sequence[ReadableLease], loads: Mapping[str, float], me: str, spill_after: float
) -> list[ReadableLease]:
    """Return the available leases that the plan gives to ``me``, and some that their planned takers did not take.

    Each lease goes to the worker with the lowest load. A lease without a known load counts as 1.
    """
    by_fewest = [(load, worker) for worker, load in loads.items()]
    heapify(by_fewest)
    mine: list[ReadableLease] = []
    left: list[ReadableLease] = []
    for lease in available:
        load, worker = by_fewest[0]
        heapreplace(by_fewest, (load + (1 if lease.load is None else lease.load), worker))
        if worker == me:
            mine.append(lease)
        elif lease.available_for > spill_after:
            left.append(lease)
    # Each member takes an equal part, rounded up, of the leases that were not taken. If each member took all of these
    # leases, the next plan would have to move most of them again.
    return mine + left[: -(-len(left) // len(loads))]


def _surplus(loads: Counter[str], me: str) -> Counter[str]:
    """Return how many leases ``me`` should request from each worker, if every worker follows the plan."""
    by_fewest = [(load, worker) for worker, load in loads.items()]
    by_most = [(-load, worker) for worker, load in loads.items()]
    heapify(by_fewest)
    heapify(by_most)
    wanted: Counter[str] = Counter()
    # The giver keeps at least as many leases as the taker then has, so neither heap needs the changes of the other.
    while -by_most[0][0] >= by_fewest[0][0] + 2:
        (less, giver), (load, taker) = by_most[0], by_fewest[0]
        heapreplace(by_most, (less + 1, giver))
        heapreplace(by_fewest, (load + 1, taker))
        if taker == me:
            wanted[giver] += 1
    return wanted
