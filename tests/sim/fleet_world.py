"""Runs a whole world in one thread, from one seed: producers, the service, a lease store and a fleet of workers.

There is trouble until the world grows calm. Then it has to come to rest (``Watch.find_unrest``), to be closed in good
order, and to have kept every guarantee (``Watch.check_end``).
"""

from contextlib import contextmanager
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

from fleet_oracles import Watch
from fleet_reached import Reached
from fleet_scenario import draw_fleet
from fleet_service import SILENCE, TAKEOVER_WAIT, FleetService
from fleet_store import Store
from fleet_truth import Truth
from fleet_worker import Worker
from producer_endpoint import STREAM
from producer_world import START, Shell

from shardline.core.consumer import fanout_reader, page_reader, planner, trim_watch
from shardline.server.model import consumers

MOST_EVENTS = 400_000
PATIENCE = 90.0  # how long a calm world may take to come to rest, beside the time that user code needs
LOOK_EVERY = 0.5


class Side:
    """Another stream of the world, with its producers, its rows in the store and its oracles. The rest is the world's."""

    def __init__(self, world, number, fleet):
        self.main = world
        self.label = f"{STREAM}{number + 2}"
        self.fleet = fleet
        self.scenario = fleet.producing
        self.truth = Truth(self, world.reached)
        self.service = self.endpoint = FleetService(fleet, self.truth)
        self.watch = Watch(self, self.truth, world.reached)
        self.store = Store(self, self.watch)
        self.shells = [Shell(self, number, load) for number, load in enumerate(self.scenario.loads)]
        for moment, kind in self.scenario.reshards:
            self.at(START + moment, self._reshard, kind)

    def __getattr__(self, name):
        return getattr(self.main, name)

    @property
    def processes(self):
        return [worker.part_of(self.label) for worker in self.main.processes]

    @property
    def live(self):
        return [worker.part_of(self.label) for worker in self.main.live]

    def note(self, *what):
        self.main.note(self.label, *what)

    def _reshard(self, kind):
        self.note("operator", kind, self.service.reshard(kind, self.time))
        self.reached.add("one of several streams was resharded")
        if self.fleet.update_delay:
            self.at(self.now + self.fleet.update_delay, self.advance)
        self.advance()

    def advance(self):
        self.service.advance(self.time)

    def handle_begun(self, worker_id):
        """Handle the first row of a group at LATEST: the first stream's side lets a worker die."""


class FleetWorld:
    """One event heap. The same seed gives the same trace."""

    def __init__(self, seed, reached=None, *, polls_only=False):
        self.fleet = draw_fleet(seed, polls_only=polls_only)
        self.scenario = self.fleet.producing
        self.reached = Reached() if reached is None else reached
        self.reached.seed = seed
        self.now = START
        self.trace = []
        self._heap = []
        self._numbers = count()
        self.truth = Truth(self, self.reached)
        self.service = self.endpoint = FleetService(self.fleet, self.truth)
        self.watch = Watch(self, self.truth, self.reached)
        self.store = Store(self, self.watch)
        self.shells = [Shell(self, number, load) for number, load in enumerate(self.scenario.loads)]
        self.slots = [None] * len(self.fleet.workers)
        self._lives = [0] * len(self.slots)
        self._configs = {}
        self.has_stopped = False
        """Whether the fleet gave up on a re-created stream, as it was configured to."""
        self.is_ending = False
        self.sides = [Side(self, number, fleet) for number, fleet in enumerate(self.fleet.others)]
        self.is_over = False
        """Whether the run has ended. Code of the world that has not come to its end is then dropped, and does nothing."""
        self._plan_trouble()

    @property
    def time(self):
        """The time since the world began."""
        return self.now - START

    @property
    def processes(self):
        """All processes that may still act, paused or not."""
        return [worker for worker in self.slots if worker is not None and not worker.is_dead]

    @property
    def live(self):
        return [worker for worker in self.processes if not worker.is_paused and not worker.is_closing]

    @property
    def has_been_down(self):
        return any(end <= self.time for _, end in self.fleet.outages)

    def config_of(self, plan):
        """Return a worker's configuration. Equal configurations are the same object."""
        duration = plan.lease_duration or self.fleet.config.lease_duration
        wanted = (plan.max_leases, duration)
        if wanted not in self._configs:
            self._configs[wanted] = replace(
                self.fleet.config, max_leases=plan.max_leases, lease_duration=duration, stuck_after=duration
            )
        return self._configs[wanted]

    def at(self, moment, action, *arguments):
        heappush(self._heap, (max(moment, self.now), next(self._numbers), action, arguments))

    def note(self, *what):
        self.trace.append((self.time, *what))

    # ---- events

    def _plan_trouble(self):
        fleet = self.fleet
        for moment, kind in self.scenario.reshards:
            self.at(START + moment, self._reshard, kind)
        for moment, seconds in fleet.retention_changes:
            self.at(START + moment, self._change_retention, seconds)
        if fleet.recreated_at is not None:
            self.at(START + fleet.recreated_at, self._delete)
            self.at(START + fleet.recreated_at + fleet.missing_for, self._create_again)
        if fleet.set_back is not None:
            for store in [self.store, *(side.store for side in self.sides)]:
                self.at(START + fleet.set_back.until, store.set_back)
                if fleet.set_back.to is not None:
                    self.at(START + fleet.set_back.to, store.back_up)
        for number, plan in enumerate(fleet.workers):
            self.at(START + plan.starts_at, self._start, number)
            for moment, kind, length in plan.trouble:
                self.at(START + moment, self.trouble, number, kind, length)
        self.at(START + fleet.calm_at, self._look)

    def _reshard(self, kind):
        self.note("operator", kind, self.service.reshard(kind, self.time))
        if self.fleet.update_delay:
            self.at(self.now + self.fleet.update_delay, self._advance)
        self._advance()

    def _change_retention(self, seconds):
        self.note("operator", "changes the retention", seconds)
        is_shorter = seconds < self.service.retention
        self.service.change_retention(seconds, self.time)
        self.watch.see_retention(is_shorter=is_shorter)

    def _advance(self):
        self.service.advance(self.time)

    def _delete(self):
        self.note("operator", "deletes the stream")
        self.service.delete(self.time)

    def _create_again(self):
        self.note("operator", "makes the stream anew")
        self.service.create_again(self.time)

    def _start(self, number):
        worker = self.slots[number]
        if self.is_ending or self.has_stopped or (worker is not None and not worker.is_dead):
            return
        worker = self.slots[number] = Worker(self, number, self._lives[number], self.fleet.workers[number])
        self._lives[number] += 1
        worker.note("starts", f"drift {worker.plan.drift}")
        worker.wake()

    def trouble(self, number, kind, length):
        worker = self.slots[number]
        if worker is None or worker.is_dead or worker.is_paused or worker.is_closing:
            return
        if kind == "crash":
            worker.crash()
            self.at(self.now + length, self._start, number)
        elif kind == "close":
            worker.close()
        else:
            worker.pause()
            self.at(self.now + length, worker.resume)

    def handle_begun(self, worker_id):
        """Handle the first row of a group at LATEST."""
        if self.fleet.dies_beginning is not None:
            for worker in self.live:
                if worker.name == worker_id:
                    worker.crash()
                    self.at(self.now + self.fleet.dies_beginning, self._start, worker.place)

    def handle_ended(self, worker):
        """Handle a worker that has closed: another takes its place."""
        self.at(self.now + 0.3, self._start, worker.place)

    def handle_stopped(self):
        self.has_stopped = True

    # ---- the run

    def run(self):
        try:
            return self._run()
        finally:
            self.is_over = True

    def _run(self):
        with (
            _deleting_after(self.fleet.delete_after),
            _keeping(self.fleet.retention),
            _slicing(self.fleet.slice_records),
            _subscribing(self.fleet.retention),
        ):
            shells = [*self.shells, *(shell for side in self.sides for shell in side.shells)]
            for shell in shells:
                shell.pump()
            for done in count():
                if not self._heap or (self.is_ending and not self.processes):
                    break
                assert done < MOST_EVENTS, "the world does not come to rest"
                self.now, _, action, arguments = heappop(self._heap)
                for shell in shells:
                    shell.now = self.now
                action(*arguments)
        assert self.is_ending, "the world fell asleep"
        self._advance()
        self.watch.check_end()
        for side in self.sides:
            side.advance()
            side.watch.check_end()
            self.reached.add("several streams in one fleet")
        return self

    def _look(self):
        """Check whether the world is at rest. If it is, close all workers."""
        self._advance()
        reason = self.watch.find_unrest()
        for side in self.sides:
            side.advance()
            reason = reason or side.watch.find_unrest()
        if reason is None:
            self.note("world", "is at rest")
            self.is_ending = True
            for worker in self.processes:
                worker.close()
        elif self.time > self.fleet.calm_at + self._patience():
            raise AssertionError(f"no rest {self._patience():.0f} s after all trouble was over: {reason}")
        else:
            self.at(self.now + LOOK_EVERY, self._look)

    def _patience(self):
        """Return how long the calm world may take. Slow user code may handle each record of the fullest shard once more.
        Workers that share by load wait for some lease durations before each round of moves.
        """
        truths = [self.truth, *(side.truth for side in self.sides)]
        fullest = max((len(known.records) for truth in truths for known in truth.shards.values()), default=0)
        rounds = 12 * self.fleet.longest_lease if self.fleet.config.assign_by == "load" else 0.0
        return PATIENCE + rounds + fullest * self.fleet.user.duration[1]


@contextmanager
def _deleting_after(leases):
    """Delete finished rows sooner than after 30 lease durations in some worlds, so that the deletion is tested."""
    before = planner.DELETE_AFTER_LEASES
    planner.DELETE_AFTER_LEASES = leases
    try:
        yield
    finally:
        planner.DELETE_AFTER_LEASES = before


@contextmanager
def _keeping(retention):
    """Allow a retention of seconds in a simulated stream, although the service's minimum is a day."""
    before = trim_watch.LEAST_RETENTION
    trim_watch.LEAST_RETENTION = before if retention is None else 1.4
    try:
        yield
    finally:
        trim_watch.LEAST_RETENTION = before


@contextmanager
def _subscribing(retention):
    """Shorten the waits of subscriptions, so that many of them fit into a world. If records are kept for seconds, push
    more often than every 5 s, too.
    """
    before = fanout_reader.SILENCE, fanout_reader._TAKEOVER_WAIT, consumers._HEARTBEAT
    fanout_reader.SILENCE, fanout_reader._TAKEOVER_WAIT = SILENCE, TAKEOVER_WAIT
    consumers._HEARTBEAT = before[2] if retention is None else 0.5
    try:
        yield
    finally:
        fanout_reader.SILENCE, fanout_reader._TAKEOVER_WAIT, consumers._HEARTBEAT = before


@contextmanager
def _slicing(records):
    """Open pages in slices of a few records instead of 10,000 in some worlds, so that slices are tested."""
    before = page_reader.SLICE_RECORDS
    page_reader.SLICE_RECORDS = records
    try:
        yield
    finally:
        page_reader.SLICE_RECORDS = before
