"""A fleet of coordinators on the fake store of ``tests/harness``: workers join, crash, pause and leave; answers are
late or lost; shards split and merge under load. L1 to L5 and C1 to C3 are checked against what the store and the users
saw.
"""

from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.harness.coordinator import DOWN, LOST, CoordinatorShell, FakeStore, FakeStream, coordinator, record

from shardline.core.clock import NEVER
from shardline.core.consumer import planner
from shardline.core.consumer.consumer_events import (
    HandOverAsked,
    HandOverOverdue,
    LeaseGained,
    LeaseLost,
    LeaseReleased,
    LeaseSurplus,
)
from shardline.core.leases import CommitCheckpoint, Refused
from shardline.model.hashing import HASH_KEY_MAX, HashRange
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import ChildShard, Shard

LEASE_DURATION = 10.0  # the clock of the harness


class NaiveShard:
    def __init__(self, shard_id, hash_range, parents, begin):
        self.shard_id = shard_id
        self.hash_range = hash_range
        self.parents = parents
        self.children = []
        self.begin = begin
        self.end = None
        self.numbers = []  # the number of its records

    def listed(self):
        begin, end = SequenceNumber(self.begin), None if self.end is None else SequenceNumber(self.end)
        return Shard(self.shard_id, self.hash_range, begin, end, *[*self.parents, None, None][:2])


class Reading:
    """A shard that a worker reads: its place, and the records that its user has."""

    def __init__(self, grant, number):
        self.grant = grant
        self.number = number  # the last record that was delivered
        self.unacked = None
        self.ended = False
        self.draining = False


class Worker(CoordinatorShell):
    def __init__(self, world, name):
        self.world = world
        self.name = name
        super().__init__(coordinator(name, incarnation=f"{name}'s", latest_at=0.0, clock=lambda: world.now))
        self.flights = {}  # by operation: when it was sent, whether the store has applied it, and its result
        self.paused = False
        self.readings = {}

    @property
    def now(self):
        return self.world.now

    def operate(self, operation):
        self.flights[operation] = [self.now, False, None]

    def ask(self, request):
        stream = FakeStream(shard.listed() for shard in self.world.shards.values())
        self.handle_answer(request, stream.answer(request))

    def follow(self, event):
        if isinstance(event, LeaseGained):
            self.world.check_parents_done(event.shard_id)
            at = event.checkpoint.sequence_number
            self.readings[event.shard_id] = Reading(event.grant, 0 if at is None else at.number)
        elif isinstance(event, HandOverAsked | LeaseSurplus):
            self.readings[event.shard_id].draining = True
        elif isinstance(event, (LeaseLost, LeaseReleased)):
            self.readings.pop(event.shard_id, None)
        elif isinstance(event, HandOverOverdue):
            self.readings[event.shard_id].unacked = None

    def answer(self, operation, how="ok"):
        """Complete one operation: normally, lost on the way to the store, or with its answer lost."""
        _, is_applied, result = self.flights.pop(operation)
        if not is_applied and how == "unsent":
            result = DOWN
        else:
            result = result if is_applied else self.world.apply(operation)
            result = LOST if how == "lost" or is_applied == "dropped" else result
        self.handle_answer(operation, result)
        self.pump()

    def work(self, shard_id, records):
        """Let the user ask for more records of a shard. Those that it had are done."""
        reading, machine, world = self.readings[shard_id], self.machine, self.world
        if not reading.grant.held:
            return
        if reading.unacked is not None:
            done, reading.unacked = reading.unacked, None
            world.done[shard_id].update(range(done[0].order.number, done[-1].order.number + 1))
            machine.held.ack_through(shard_id, done[-1])
        if reading.draining:
            machine.held.leave(shard_id)
        elif not reading.ended:
            shard = world.shards[shard_id]
            new = [number for number in shard.numbers if number > reading.number][:records]
            if new:
                batch = [record(number, shard_id) for number in new]
                machine.held.deliver(shard_id, batch)
                reading.unacked, reading.number = batch, new[-1]
            elif shard.end is not None:
                reading.ended = True
                children = [world.shards[child] for child in shard.children]
                named = [ChildShard(one.shard_id, tuple(one.parents), one.hash_range) for one in children]
                machine.end(shard_id, named, world.now)
        self.pump()


class Fleet(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(planner, "DELETE_AFTER_LEASES", 2)  # short, so that rows are deleted while the machine runs

    @initialize(shards=st.integers(1, 4), workers=st.integers(1, 3))
    def begin(self, shards, workers):
        self.now = 1000.0
        self.store = FakeStore()
        self.numbers = count(1)
        self.names = count(1)
        self.shards = {}
        self.done = {}
        self.workers = []
        self.committed = {}
        width = (HASH_KEY_MAX + 1) // shards
        for place in range(shards):
            end = HASH_KEY_MAX if place == shards - 1 else width * (place + 1) - 1
            self.add_shard(HashRange(width * place, end), [])
        for _ in range(workers):
            self.join()

    def add_shard(self, hash_range, parents):
        shard_id = f"shardId-{len(self.shards):012d}"
        self.shards[shard_id] = NaiveShard(shard_id, hash_range, parents, next(self.numbers))
        self.done[shard_id] = set()
        for parent in parents:
            self.shards[parent].end = next(self.numbers)
            self.shards[parent].children.append(shard_id)
        return shard_id

    def open_shards(self):
        found = [shard for shard in self.shards.values() if shard.end is None]
        return sorted(found, key=lambda shard: shard.hash_range.start)

    def live(self):
        return [worker for worker in self.workers if not worker.paused]

    # ---- the store

    def apply(self, request):
        result = self.store.answer(request)
        if isinstance(request, CommitCheckpoint) and not isinstance(result, Refused):
            self.check_commit(request)
        return result

    def check_commit(self, request):
        shard = self.shards[request.shard_id]
        at = request.checkpoint.sequence_number
        if at is None:
            assert request.checkpoint.is_finished
            assert shard.end is not None
            assert set(shard.numbers) <= self.done[shard.shard_id], "C3"
            assert set(shard.children) <= self.store.rows.keys(), "L3: children before SHARD_END"
        else:
            before = {number for number in shard.numbers if number <= at.number}
            assert before <= self.done[shard.shard_id], "C2"
            assert at.number > self.committed.get(shard.shard_id, 0), "C1"
            self.committed[shard.shard_id] = at.number

    def check_parents_done(self, shard_id):
        """Check L3, for every generation."""
        left = [*self.shards[shard_id].parents]
        while left:
            parent = self.shards[left.pop()]
            assert parent.end is not None
            assert set(parent.numbers) <= self.done[parent.shard_id], "L3"
            left += parent.parents

    # ---- rules

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0, 11.0]))
    def wait(self, seconds):
        """Let time pass without answers, for at most a lease duration: a shell gives up by then."""
        self.now += seconds
        for worker in self.workers:
            for operation, flight in reversed([*worker.flights.items()]):
                if self.now - flight[0] > LEASE_DURATION:
                    flight[1] = flight[1] or "dropped"
                    if not worker.paused:
                        worker.answer(operation, "lost")
        for worker in self.live():
            worker.pump()

    @rule(
        seconds=st.sampled_from([0.5, 2.0, 5.0, 8.0]),
        slow=st.none() | st.integers(0, 99),
        pick=st.none() | st.integers(0, 99),
    )
    def run(self, seconds, slow=None, pick=None):
        """Let time pass normally: everything is answered at once, and the users work. Perhaps one of them is slow with
        a shard, or one worker is paused meanwhile.
        """
        end = self.now + seconds
        idle = None if slow is None else sorted(self.shards)[slow % len(self.shards)]
        if pick is not None:
            self.pause(pick)
        while True:
            self.settle(idle)
            following = min([worker.machine.next_deadline() for worker in self.live()], default=NEVER)
            if following > end:
                break
            self.now = max(self.now + 0.001, following)
            for worker in self.live():
                worker.pump()
        self.now = end

    def settle(self, idle=None):
        busy = True
        while busy:
            busy = False
            for worker in self.live():
                while worker.outbox:
                    busy = True
                    worker.answer(worker.outbox[0])
                for shard_id in [*worker.readings]:
                    for _ in range(3):
                        if shard_id in worker.readings and shard_id != idle:
                            worker.work(shard_id, 10)
                busy = busy or bool(worker.outbox)

    @precondition(lambda self: any(worker.outbox for worker in self.live()))
    @rule(pick=st.integers(0, 99), place=st.integers(0, 99), how=st.sampled_from(["ok", "ok", "ok", "lost", "unsent"]))
    def answer(self, pick, place, how):
        waiting = [worker for worker in self.live() if worker.outbox]
        worker = waiting[pick % len(waiting)]
        worker.answer(worker.outbox[place % len(worker.outbox)], how)

    @precondition(lambda self: any(worker.outbox for worker in self.workers))
    @rule(pick=st.integers(0, 99), place=st.integers(0, 99))
    def apply_without_answer(self, pick, place):
        """Let the store apply an operation whose answer is still on its way."""
        waiting = [worker for worker in self.workers if worker.outbox]
        worker = waiting[pick % len(waiting)]
        operation = worker.outbox[place % len(worker.outbox)]
        flight = worker.flights[operation]
        if not flight[1]:
            flight[1:] = [True, self.apply(operation)]

    @precondition(lambda self: any(worker.readings for worker in self.live()))
    @rule(pick=st.integers(0, 99), place=st.integers(0, 99), records=st.integers(1, 4))
    def work(self, pick, place, records):
        busy = [worker for worker in self.live() if worker.readings]
        worker = busy[pick % len(busy)]
        worker.work(sorted(worker.readings)[place % len(worker.readings)], records)

    @rule(pick=st.integers(0, 99), records=st.integers(1, 4))
    def put(self, pick, records):
        shards = self.open_shards()
        shards[pick % len(shards)].numbers += [next(self.numbers) for _ in range(records)]

    @rule(pick=st.integers(0, 99))
    def split(self, pick):
        shards = self.open_shards()
        shard = shards[pick % len(shards)]
        if len(shards) < 8:
            middle = shard.hash_range.middle
            self.add_shard(HashRange(shard.hash_range.start, middle - 1), [shard.shard_id])
            self.add_shard(HashRange(middle, shard.hash_range.end), [shard.shard_id])

    @rule(pick=st.integers(0, 99))
    def merge(self, pick):
        shards = self.open_shards()
        if len(shards) > 1:
            low = shards[pick % (len(shards) - 1)]
            high = shards[pick % (len(shards) - 1) + 1]
            self.add_shard(HashRange(low.hash_range.start, high.hash_range.end), [low.shard_id, high.shard_id])

    @precondition(lambda self: len(self.workers) < 5)
    @rule()
    def join(self):
        worker = Worker(self, f"w{next(self.names)}")
        self.workers.append(worker)
        worker.pump()

    @precondition(lambda self: len(self.workers) > 1)
    @rule(pick=st.integers(0, 99))
    def crash(self, pick):
        self.workers.pop(pick % len(self.workers))

    @precondition(lambda self: len(self.workers) > 1)
    @rule(pick=st.integers(0, 99))
    def leave(self, pick):
        """Close a worker. L5: the leases that it released can be taken at once."""
        worker = self.workers.pop(pick % len(self.workers))
        if not worker.paused:
            held = [*worker.readings]
            worker.machine.close()
            worker.pump()
            while not worker.machine.is_closed:
                while worker.outbox:
                    worker.answer(worker.outbox[0])
                self.now = max(self.now, min(self.now + 1.0, worker.machine.next_deadline()))
                worker.pump()
            rows = [self.store.rows[shard_id] for shard_id in held if shard_id in self.store.rows]
            assert all(row.holder != worker.name or row.checkpoint.is_finished for row in rows), "L5"

    @rule(pick=st.integers(0, 99))
    def pause(self, pick):
        """Suspend a process: it does nothing, and its requests are answered when it runs again."""
        self.workers[pick % len(self.workers)].paused = True

    @rule()
    def resume(self):
        for worker in self.workers:
            if worker.paused:
                worker.paused = False
                worker.pump()

    # ---- invariants

    @invariant()
    def nobody_acts_beside_the_owner(self):
        """Check L2: of all workers that believe, by their own clocks, that they hold a lease, at most one does so at a
        time.
        """
        if not hasattr(self, "workers"):
            return
        for shard_id in self.shards:
            acting = [
                one.name for one in self.workers if shard_id in one.readings and one.readings[shard_id].grant.held
            ]
            assert len(acting) <= 1, (shard_id, acting)

    def teardown(self):
        try:
            self.check_in_the_end()
        finally:
            self.patch.undo()

    def check_in_the_end(self):
        if not hasattr(self, "workers"):
            return
        self.resume()
        for _ in range(24):
            self.run(5.0)
        for shard_id, shard in self.shards.items():
            assert set(shard.numbers) <= self.done[shard_id], "nothing is skipped"
        loads = [len(worker.readings) for worker in self.workers]
        assert sum(loads) == len(self.open_shards())
        assert max(loads) - min(loads) <= 1
        for shard in self.open_shards():
            assert self.store.rows[shard.shard_id].holder is not None


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestFleet.pytestmark = [pytest.mark.timeout(600)]  # a hundred fleets, perhaps traced, on a busy machine
