"""Decides which leases a worker should take or ask for if the group shares its work by load.

Like ``assignment``, all workers compute the same plan from the rows, and each worker carries out its own part. The
loads are measured (``shard_load``), so they change all the time, and workers see the changes late. The rules therefore
move a lease only if the gain is clear, and only if it is still clear after some time.

Invariants:

- If the load of no lease is known, leases are shared by number. If some loads are known, each lease without a known
  load counts as much as the average of the known loads.
- A lease moves only to the worker with the lowest load, and only if the load of this worker is then at most 80 % of the
  load that the giver had before. A worker whose load is above the mean plus the largest lease also gives a lease away
  for a smaller gain. Each move brings the two loads closer together, so with steady loads, the moves come to an end.
  Then no single move lowers the highest load by 20 % or more, and the highest load is at most the mean plus the largest
  lease.
- A worker begins to ask only if the plan has given it leases for ``PATIENCE_LEASES`` lease durations without a break.
  It then asks until the plan gives it no more. Two kinds of workers do not wait: a worker without a lease, and a worker
  that has just started and has less than half of the leases of an average worker.
- The limits of ``assignment`` apply: a worker asks for no lease while leases are available, it at most doubles the
  number of its leases, and a fleet that stays uneven for twice as long lets any worker with less load ask.
- Available leases go to the workers with the lowest loads, the largest lease first.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from shardline.core.backoff import Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.assignment import Assignment, ReadableLease, most_to_ask, place_of, share

PATIENCE_LEASES: Final = 3
"""How long the plan must give a worker leases before the worker asks for them, in lease durations."""
_GAIN: Final = 0.8  # after a move, the taker has at most this fraction of the giver's earlier load


class _Weighed(NamedTuple):
    load: float
    place: tuple[str, str]
    lease: ReadableLease


@final
class LoadBalancer:
    """Balances the loads, for one worker.

    Args:
        me: the name of the worker.
        lease_duration: its lease duration, to which the averages of the loads are tuned.
        rng: shuffles available leases.
        now: the current time.
    """

    def __init__(self, me: str, lease_duration: float, rng: Chance, now: Instant) -> None:
        self._me: str = me
        self._patience: float = PATIENCE_LEASES * lease_duration
        self._hurries_until: Instant = now + self._patience  # workers that start together take leases at random
        self._rng: Chance = rng
        self._wanted_since: Instant = NEVER  # since when the plan has been giving us leases
        self._uneven_since: Instant = NEVER  # since when the plan has been moving leases
        self._is_asking: bool = False

    def assign(
        self,
        leases: Sequence[ReadableLease],
        max_leases: int | None,
        now: Instant,
        *,
        spill_after: float,
        stream: str = "",
    ) -> Assignment:
        """Return the leases that the worker should take or ask for. The arguments are those of ``assignment.assign``.

        The load of at least one lease must be known.
        """
        leases = weigh(leases)
        counts = Counter(lease.owner for lease in leases if lease.owner is not None)
        loads = dict.fromkeys(sorted({*counts, self._me}), 0.0)
        for lease in leases:
            if lease.owner is not None:
                loads[lease.owner] += lease.load or 0.0
        room = len(leases) if max_leases is None else max_leases - counts[self._me]
        available = sorted((lease for lease in leases if lease.owner is None), key=_largest_first)
        if available:
            self._settle()
            mine = share(available, loads, self._me, spill_after)
            chosen = sorted(mine, key=lambda _: self._rng.random())[: max(0, room)]
            return Assignment([lease.shard_id for lease in chosen if lease.stream == stream], [])
        is_behind = now < self._hurries_until and 2 * counts[self._me] * len(loads) < len(leases)
        hurries = is_behind or not counts[self._me]
        asks = self._asks(leases, loads, now, hurries=hurries)
        most = most_to_ask(leases, self._me, counts[self._me], room)
        return Assignment([], [lease for lease in asks[: max(0, most)] if lease.stream == stream])

    def _asks(
        self, leases: Sequence[ReadableLease], loads: dict[str, float], now: Instant, *, hurries: bool
    ) -> list[ReadableLease]:
        moves = _plan(leases, loads)
        if not moves:
            self._settle()
            return []
        mine = [lease for lease, taker in moves if taker == self._me]
        self._uneven_since = min(self._uneven_since, now)
        self._wanted_since = min(self._wanted_since, now) if mine else NEVER
        self._is_asking = bool(mine) and (self._is_asking or hurries or now - self._wanted_since > self._patience)
        if self._is_asking:
            return mine
        if now - self._uneven_since <= 2 * self._patience:
            return []
        # The planned takers do not ask: perhaps they are at their ``max_leases``, which the rows do not show. Claim
        # their leases once. The other workers then get the same time again before the next claim.
        self._uneven_since = now
        return [lease for lease, _ in _plan(leases, loads, only=self._me)]

    def _settle(self) -> None:
        self._wanted_since = self._uneven_since = NEVER
        self._is_asking = False


def weigh(leases: Sequence[ReadableLease]) -> list[ReadableLease]:
    """Return the leases in the same order for all workers, with the average load where no load is known."""
    leases = sorted(leases, key=place_of)
    known = [lease.load for lease in leases if lease.load is not None]
    mean = sum(known) / len(known)
    return [lease._replace(load=mean) if lease.load is None else lease for lease in leases]


def _largest_first(lease: ReadableLease) -> tuple[float, tuple[str, str]]:
    return -(lease.load or 0.0), place_of(lease)


def _plan(
    leases: Sequence[ReadableLease], loads: dict[str, float], *, only: str | None = None
) -> list[tuple[ReadableLease, str]]:
    """Return the leases that should move, and the worker that each of them should move to.

    If ``only`` is given, leases move to this worker alone.
    """
    owned: dict[str, list[_Weighed]] = {worker: [] for worker in loads}
    for lease in leases:
        if lease.owner is not None and not lease.in_hand_over:
            owned[lease.owner].append(_Weighed(lease.load or 0.0, place_of(lease), lease))
    for weighed in owned.values():
        weighed.sort()
    # No worker can be expected to have less than the mean, and a lease cannot be divided.
    fair = sum(loads.values()) / len(loads) + max((lease.load or 0.0 for lease in leases), default=0.0)
    loads, order = dict(loads), sorted((load, worker) for worker, load in loads.items())
    moves: list[tuple[ReadableLease, str]] = []
    while True:
        taker = order[0][1] if only is None else only
        found = ((giver, _choose(owned[giver], load, loads[taker], fair)) for load, giver in reversed(order))
        giver, place = next(((giver, place) for giver, place in found if place is not None), (taker, None))
        if place is None:
            return moves
        moved = owned[giver].pop(place)
        owned[taker].clear()  # a worker that gets a lease gives none away before the next plan
        for worker, change in ((giver, -moved.load), (taker, moved.load)):
            del order[bisect_left(order, (loads[worker], worker))]
            loads[worker] += change
            insort(order, (loads[worker], worker))
        moves.append((moved.lease, taker))


def _choose(owned: Sequence[_Weighed], giver: float, taker: float, fair: float) -> int | None:
    """Return the place of the lease whose move makes the two loads most equal, or ``None`` if none should move.

    Args:
        owned: the leases of the giver that may move, the smallest first.
        giver: the load of the giver.
        taker: the load of the taker.
        fair: the mean plus the largest lease.
    """
    half = (giver - taker) / 2
    largest = max(_GAIN * giver, fair if giver > fair else 0.0) - taker
    below = _count(owned, min(half, largest)) - 1
    above = _count(owned, half)
    places = [below] if below >= 0 else []
    if above < len(owned) and owned[above].load <= largest:
        places.append(above)
    return min(places, key=lambda place: abs(owned[place].load - half), default=None)


def _count(owned: Sequence[_Weighed], load: float) -> int:
    """Return how many leases have at most this load."""
    return bisect_right(owned, load, key=lambda weighed: weighed.load)
