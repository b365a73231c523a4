"""Compares the CPU of two clients on a machine that other jobs disturb.

The clients are measured in bursts of a few calls, four in flight. The CPU of a burst is `time.process_time`: all
threads, user and system. Contention inflates that figure up to 2.4 times. So each burst is between two runs of a fixed
calibration loop, and counts only if both took at most 14 % longer than the fastest run so far. The contenders take
turns burst by burst, so that a slow minute affects both.

A burst lasts about 40 ms, or four calls if those take longer, or one call if four would take over 200 ms: a long burst
is hardly ever undisturbed, and its figure would favour the other side. All contenders are judged by the same number of
bursts, because a minimum falls as its sample grows. If the time is over before there are enough quiet bursts, the
quietest bursts are used, and the figures are marked as noisy.
"""

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

IN_FLIGHT = 4
BURST_CPU = 0.040
BURST_MAX_CPU = 0.200
BURST_LIMIT = 30.0
TOLERANCE = 1.14
CPUS_TRIED = 8


@dataclass(frozen=True)
class Plan:
    """How long to measure: until every contender has `wanted` quiet bursts, or `budget` seconds are over."""

    wanted: int
    budget: float
    fewest: int = 3  # with fewer quiet bursts than this, the `wanted` quietest bursts are used instead


@dataclass(frozen=True)
class Burst:
    cpu: float  # seconds per call
    disturbance: float  # the time of the slower of the two calibrations around the burst


@dataclass
class Contender:
    name: str
    call: Callable[[], Awaitable[None]]
    calls: int = IN_FLIGHT  # in one burst
    bursts: list[Burst] = field(default_factory=list)


@dataclass(frozen=True)
class Figures:
    name: str
    best: float  # CPU seconds per call
    median: float
    quiet: int  # number of undisturbed bursts
    taken: int  # number of all bursts
    noisy: bool  # whether too few bursts were quiet, so that the quietest were used


class Calibration:
    """A fixed loop, and its fastest run so far."""

    def __init__(self) -> None:
        self.best = min(self._once() for _ in range(200))

    def measure(self) -> float:
        # The first runs after a burst have cold caches and a CPU slowed by wide vector instructions, so the minimum of
        # several runs is what shows the load of the machine.
        took = min(self._once() for _ in range(6))
        self.best = min(self.best, took)
        return took

    @staticmethod
    def _once() -> float:
        started_at = time.process_time()
        total = 0
        for i in range(4_000):
            total += i * i
        return time.process_time() - started_at

    def is_quiet(self, burst: Burst) -> bool:
        return burst.disturbance <= self.best * TOLERANCE


def pin_to_quietest_cpu() -> int | None:
    """Bind this process, and the children it starts from now on, to the CPU that runs the calibration fastest."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    speeds = {}
    for cpu in sorted(os.sched_getaffinity(0))[:CPUS_TRIED]:
        os.sched_setaffinity(0, {cpu})
        runs = [Calibration().best for _ in range(3)]
        speeds[statistics.median(runs)] = cpu
    chosen = speeds[min(speeds)]
    os.sched_setaffinity(0, {chosen})
    return chosen


async def run_calls(contender: Contender, calls: int) -> float:
    """Make this many calls, four in flight if possible, and return the CPU seconds per call."""
    workers = min(IN_FLIGHT, calls)

    async def worker() -> None:
        for _ in range(calls // workers):
            await contender.call()

    started_at = time.process_time()
    async with asyncio.timeout(BURST_LIMIT), asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
    return (time.process_time() - started_at) / calls


async def warm_up(contender: Contender) -> None:
    """Open the connections, fill the caches, and find how many calls make a burst."""
    await run_calls(contender, IN_FLIGHT)
    per_call = await run_calls(contender, IN_FLIGHT)
    if per_call * IN_FLIGHT > BURST_MAX_CPU:
        contender.calls = 1
    while per_call * contender.calls < BURST_CPU / 2:
        contender.calls = int(BURST_CPU / per_call / IN_FLIGHT) * IN_FLIGHT
        per_call = await run_calls(contender, contender.calls)


async def take_burst(contender: Contender, calibration: Calibration) -> None:
    gc.collect()  # so that no contender pays for the garbage of the previous one
    before = calibration.measure()
    cpu = await run_calls(contender, contender.calls)
    contender.bursts.append(Burst(cpu, max(before, calibration.measure())))


async def compare(contenders: list[Contender], calibration: Calibration, plan: Plan) -> list[Figures]:
    ends_at = time.monotonic() + plan.budget
    for contender in contenders:
        await warm_up(contender)
    gc.collect()
    gc.freeze()  # so that no contender pays for traversing the modules of another
    try:
        while time.monotonic() < ends_at:
            for contender in contenders:
                await take_burst(contender, calibration)
            if all(count_quiet(contender, calibration) >= plan.wanted for contender in contenders):
                break
    finally:
        gc.unfreeze()
    quiet = min(count_quiet(contender, calibration) for contender in contenders)
    counted = quiet if quiet >= plan.fewest else plan.wanted
    return [figures(contender, calibration, plan, counted) for contender in contenders]


def count_quiet(contender: Contender, calibration: Calibration) -> int:
    return sum(map(calibration.is_quiet, contender.bursts))


def figures(contender: Contender, calibration: Calibration, plan: Plan, counted: int) -> Figures:
    quiet = count_quiet(contender, calibration)
    quietest_first = sorted(contender.bursts, key=lambda burst: burst.disturbance)
    costs = [burst.cpu for burst in quietest_first[:counted]]
    best, median = min(costs), statistics.median(costs)
    return Figures(contender.name, best, median, quiet, len(contender.bursts), noisy=quiet < plan.fewest)
