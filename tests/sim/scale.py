"""Simulates a large fleet: ``make sim-scale`` prints how long it takes until the leases are balanced, and what that costs.

The workers are the real coordinators, on one heap of events. The store answers after a few milliseconds and counts its
operations as DynamoDB does. Nothing is read from the shards: each write is a renewal, or moves a lease. A worker that
is asked for a lease releases it after ``DRAIN`` seconds.

The CPU time is that of the coordinators (scans, plans, renewals), without the codec of a store and without records.
"""

import argparse
import math
import sys
import time
from collections import Counter
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for tests.harness

from tests.harness.coordinator import CoordinatorShell, FakeStore, page_of

from shardline.adapters.leases.dynamodb_items import encode_item
from shardline.codec.shapes import HashKeyRangeShape, SequenceNumberRangeShape, ShardShape, StreamSummary
from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.consumer_events import HandOverAsked, LeaseGained, LeaseLost, LeaseReleased, LeaseSurplus
from shardline.core.consumer.coordinator import Coordinator, ScanLeases
from shardline.core.consumer.scan_pace import WATCHERS
from shardline.core.leases import Refused
from shardline.core.requests import DescribeStreamSummary
from shardline.model.hashing import HASH_KEY_COUNT, HashRange
from shardline.model.lease import Incarnation, Lease
from shardline.model.position import TRIM_HORIZON
from shardline.model.stream import StreamRef

SCAN_INTERVAL = 2.0  # as on DynamoDB
LATENCY = (0.003, 0.03)
DRAIN = 1.0
STARTS_WITHIN = 5.0  # seconds in which the workers of a fleet start
READ_UNIT, PAGE = (
    4096,
    1 << 20,
)  # https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/read-write-operations.html


def item_bytes(item):
    """Return the size of a row as DynamoDB counts it: the names, and the values as UTF-8, numbers in half the digits."""
    total = 0
    for name, attribute in item.items():
        ((kind, value),) = attribute.items()
        total += len(name) + (
            len(value) // 2 + 2 if kind == "N" else sum(map(len, value)) if kind == "SS" else len(value)
        )
    return total


class World(FakeStore):
    """A store, a stream and a fleet."""

    def __init__(self, shards, workers, *, watchers, seed=1):
        super().__init__()
        self.rng = Random(seed)
        self.watchers = watchers
        self.now = 1_000.0
        self.heap, self.numbers, self.names = [], count(), count()
        self.workers = {}
        self.counts = Counter()
        self.cpu = 0.0
        self.owner_of = {}
        self.orphans = set()  # the leases of killed workers
        self.taken_at = []  # when they were taken
        step = HASH_KEY_COUNT // shards
        bounds = [(number * step, (number + 1) * step - 1) for number in range(shards)]
        bounds[-1] = (bounds[-1][0], HASH_KEY_COUNT - 1)
        names = [f"shardId-{number:012d}" for number in range(shards)]
        numbers = SequenceNumberRangeShape("1", None)
        self.listing = page_of(
            [
                ShardShape(name, HashKeyRangeShape(str(low), str(high)), numbers, None, None)
                for name, (low, high) in zip(names, bounds, strict=True)
            ]
        )
        # The rows of a fleet that was handed over to its workers: each takes its leases at once.
        fleet = [self._name() for _ in range(workers)]
        for place, (name, (low, high)) in enumerate(zip(names, bounds, strict=True)):
            self.rows[name] = Lease(name, owner=fleet[place % workers], hash_range=HashRange(low, high))
        row = Lease(names[0], 10**12, fleet[0], hash_range=HashRange(*bounds[-1]))
        row = Lease(
            names[0], 10**12, fleet[0], hash_range=row.hash_range, incarnation=Incarnation(fleet[0], "f" * 32, 10.0)
        )
        self.row_bytes = item_bytes(encode_item(row, "group", "stream"))
        for name in fleet:
            self.at(self.now + self.rng.uniform(0, STARTS_WITHIN), self.start, name)

    def _name(self):
        return f"host-{next(self.names):03d}.{self.rng.getrandbits(32):08x}"

    def at(self, moment, action, *arguments):
        heappush(self.heap, (max(moment, self.now), next(self.numbers), action, arguments))

    def run(self, until):
        while self.heap and self.heap[0][0] <= until:
            self.now, _, action, arguments = heappop(self.heap)
            action(*arguments)
        self.now = until

    # ---- the fleet

    def start(self, name=None):
        name = name or self._name()
        self.workers[name] = Worker(self, name)
        self.workers[name].wake()

    def kill(self, name):
        self.workers.pop(name).is_dead = True
        self.orphans |= {shard_id for shard_id, owner in self.owner_of.items() if owner == name}

    def close(self, name):
        worker = self.workers.pop(name)
        worker.machine.close()
        worker.wake()

    def imbalance(self):
        """Return the number of leases that must move, or be taken, until no worker has two more than another."""
        loads = Counter(dict.fromkeys(self.workers, 0))
        for owner in self.owner_of.values():
            if owner in loads:
                loads[owner] += 1
        low = len(self.rows) // len(loads)
        return max(
            sum(max(0, low - load) for load in loads.values()), sum(max(0, load - low - 1) for load in loads.values())
        )

    # ---- the store and the service

    def receive(self, worker, request):
        answer = self.answer(request)
        self.counts["operations"] += 1
        if isinstance(request, ScanLeases):
            self.counts["rows read"] += len(answer)
            self.counts["scans of all rows"] += request.part.count == 1
            size = len(answer) * self.row_bytes
            self.counts["read units"] += max(1, math.ceil(size / READ_UNIT))
            self.counts["operations"] += size // PAGE  # further pages
        else:
            self.counts["refused"] += isinstance(answer, Refused)
        self.at(self.now + self.rng.uniform(*LATENCY), worker.receive, request, answer)

    def reply(self, request):
        if isinstance(request, DescribeStreamSummary):
            return StreamSummary(name="s", arn="a", status="ACTIVE", created_at=1.0, retention_hours=24)
        return self.listing


class Worker(CoordinatorShell):
    """A worker that reads nothing."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.is_dead = False
        self.wake_at = NEVER
        machine = Coordinator(
            StreamRef("s"),
            name,
            TRIM_HORIZON,
            incarnation=f"{world.rng.getrandbits(128):032x}",
            config=ConsumerConfig(),
            scan_interval=SCAN_INTERVAL,
            checkpoint_interval=10.0,
            latest_at=1_000.0,
            rng=Random(name),
            now=world.now,
            watchers=world.watchers,
        )
        super().__init__(machine)

    @property
    def now(self):
        return self.world.now

    def wake(self, at=None):
        if at is not None and at != self.wake_at:
            return  # a newer deadline replaced this one
        if self.is_dead:
            return
        before = time.process_time()
        self.pump()
        deadline = max(self.machine.next_deadline(), self.now)
        self.world.cpu += time.process_time() - before
        if self.machine.is_closed:
            self.is_dead = True
        elif deadline != self.wake_at or deadline <= self.now:
            self.wake_at = deadline
            if deadline < NEVER:
                self.world.at(deadline + 1e-6, self.wake, deadline)

    def operate(self, operation):
        world = self.world
        world.at(self.now + world.rng.uniform(*LATENCY), world.receive, self, operation)

    def ask(self, request):
        self.world.at(self.now + 0.05, self.receive, request, self.world.reply(request))

    def receive(self, request, answer):
        if not self.is_dead:
            before = time.process_time()
            self.handle_answer(request, answer)
            self.world.cpu += time.process_time() - before
            self.wake()

    def follow(self, event):
        world = self.world
        if isinstance(event, LeaseGained):
            if event.shard_id in world.orphans:
                world.orphans.remove(event.shard_id)
                world.taken_at.append(world.now)
            world.owner_of[event.shard_id] = self.name
        elif isinstance(event, (LeaseLost, LeaseReleased)) and world.owner_of.get(event.shard_id) == self.name:
            world.owner_of[event.shard_id] = None
        elif isinstance(event, HandOverAsked | LeaseSurplus):
            world.at(world.now + DRAIN, self.leave, event.shard_id)

    def leave(self, shard_id):
        if not self.is_dead:
            self.machine.held.leave(shard_id)
            self.wake()


def measure(world, name, action, *, seconds, step=1.0):
    """Run a phase. Return its row of the table."""
    world.counts, world.cpu, world.taken_at = Counter(), 0.0, []
    began, balanced_at = world.now, None
    action(world)
    while world.now < began + seconds:
        world.run(world.now + step)
        is_even = world.imbalance() == 0
        balanced_at = (balanced_at or world.now) if is_even else None
    per = lambda what: world.counts[what] / (world.now - began)  # noqa: E731
    return {
        "phase": name,
        "workers": len(world.workers),
        "balanced after": "-" if balanced_at is None else f"{balanced_at - began:.0f} s",
        "to move at the end": world.imbalance(),
        "leases of dead workers taken after (median, 99 %, last)": taken_after(world, began),
        "equivalents of full scans per s": f"{per('rows read') / len(world.rows):.2f}",
        "scans of all rows per s": f"{per('scans of all rows'):.2f}",
        "operations per s": f"{per('operations'):.0f}",
        "refused per s": f"{per('refused'):.1f}",
        "read units per s": f"{per('read units'):.0f}",
        "CPU per worker": f"{100 * world.cpu / (world.now - began) / max(1, len(world.workers)):.2f} %",
    }


def taken_after(world, began):
    if not world.taken_at:
        return "-"
    times = sorted(at - began for at in world.taken_at)
    shown = (times[len(times) // 2], times[int(0.99 * (len(times) - 1))], times[-1])
    left = f", {len(world.orphans)} left" if world.orphans else ""
    return " / ".join(f"{moment:.0f} s" for moment in shown) + left


def lose_a_third(world):
    for name in world.rng.sample(sorted(world.workers), len(world.workers) // 3):
        world.kill(name)


def lose_one(world):
    world.kill(world.rng.choice(sorted(world.workers)))


def join(number):
    return lambda world: [world.at(world.now + world.rng.uniform(0, 1), world.start) for _ in range(number)]


def leave(number):
    return lambda world: [world.close(name) for name in world.rng.sample(sorted(world.workers), number)]


def restart(number, pause):
    """Restart workers one after the other: the new one starts a second after the old one was closed."""

    def run(world):
        for place, name in enumerate(sorted(world.workers)[:number]):
            world.at(world.now + place * pause, world.close, name)
            world.at(world.now + place * pause + 1.0, world.start)

    return run


def phases(workers, restarted, pause, seconds):
    tenth = max(1, workers // 10)
    yield "settled", lambda _: None, 60.0
    yield f"{tenth} workers join", join(tenth), seconds
    yield f"{tenth} workers leave", leave(tenth), seconds
    yield f"{restarted} restarts, one every {pause:g} s", restart(restarted, pause), restarted * pause + seconds
    yield "one worker is lost", lose_one, 60.0
    yield "a third of the workers is lost", lose_a_third, seconds


def simulate(shards, workers, *, watchers=WATCHERS, restarted=0, pause=5.0, seconds=180.0, only=None, seed=1):
    world = World(shards, workers, watchers=watchers, seed=seed)
    world.run(world.now + STARTS_WITHIN + 20.0)
    for name, action, length in phases(workers, restarted, pause, seconds):
        if only is None or only in name:
            yield measure(world, name, action, seconds=length)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--restarted", type=int, default=20)
    parser.add_argument("--pause", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long a phase goes on")
    parser.add_argument("--only", help="run only the phases whose name contains this")
    parser.add_argument("--before", action="store_true", help="let every scan read all rows")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    found = simulate(
        arguments.shards,
        arguments.workers,
        watchers=None if arguments.before else WATCHERS,
        restarted=arguments.restarted,
        pause=arguments.pause,
        seconds=arguments.seconds,
        only=arguments.only,
        seed=arguments.seed,
    )
    for place, row in enumerate(found):
        if not place:
            sys.stdout.write("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|\n")
        sys.stdout.write("| " + " | ".join(map(str, row.values())) + " |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
