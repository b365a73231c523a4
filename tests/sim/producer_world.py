"""Runs a whole world in one thread, from one seed: producers' machines, a network and a service on one event heap."""

from collections import deque
from heapq import heappop, heappush
from itertools import count
from random import Random

from interrupting import interrupted
from producer_delivery import check_delivered
from producer_endpoint import BEGIN, STREAM, Endpoint
from producer_oracles import StepOracles, check_end
from producer_reached import Reached
from producer_scenario import draw_scenario
from tests.harness.producer_shell import MOST_POLLS, ProducerShell

from shardline.core.clock import NEVER
from shardline.core.error_codes import FailureKind
from shardline.core.producer.intake import Put
from shardline.core.producer.machine import SLICE_RECORDS
from shardline.core.producer.producer_config import SettingChanges

START = 5_000.25  # a monotonic clock starts anywhere
MOST_EVENTS = 200_000


class Given:
    """One record that the application put."""

    def __init__(self, record, key, hash_key, data, accepted_at, ttl, headers):
        self.record = record
        self.key = key
        self.hash_key = hash_key
        self.data = data
        self.headers = headers
        self.accepted_at = accepted_at
        self.expires_at = accepted_at + ttl
        self.ended_at = None


class World:
    """One event heap. The same seed gives the same trace."""

    def __init__(self, seed, reached=None):
        self.scenario = draw_scenario(seed)
        self.reached = Reached() if reached is None else reached
        self.now = self.start = START
        self.trace = []
        self.endpoint = Endpoint(self.scenario)
        self._heap = []
        self._numbers = count()
        self.shells = [Shell(self, number, load) for number, load in enumerate(self.scenario.loads)]
        for moment, kind in self.scenario.reshards:
            self.at(START + moment, self._reshard, kind)
        if self.scenario.recreated is not None:
            deleted_at, created_at, shards = self.scenario.recreated
            self.at(START + deleted_at, self._delete)
            self.at(START + created_at, self._recreate, shards)
        if self.scenario.blackout is not None:
            self.at(START + self.scenario.blackout.start, self._freeze)
        for moment in self.scenario.toggles:
            self.at(START + moment, self._toggle)
        for moment in self.scenario.channel_toggles:
            self.at(START + moment, self._toggle_channels)

    def at(self, moment, action, *arguments):
        heappush(self._heap, (max(moment, self.now), next(self._numbers), action, arguments))

    def note(self, *what):
        self.trace.append((self.now - START, *what))

    def run(self):
        for shell in self.shells:
            shell.pump()
        for done in count():
            if not self._heap:
                break
            assert done < MOST_EVENTS, "the world does not come to rest"
            self.now, _, action, arguments = heappop(self._heap)
            for shell in self.shells:
                shell.now = self.now
            action(*arguments)
        for shell in self.shells:
            check_end(shell)
            check_delivered(shell)
        return self

    def _delete(self):
        self.endpoint.delete(self.now - START)
        self.note("deleted")

    def _recreate(self, shards):
        self.endpoint.recreate(shards, self.now - START)
        self.note("created again", shards)

    def _reshard(self, kind):
        if not self.endpoint.exists:
            return
        self.endpoint.reshard(kind, self.now - START)
        self.note("reshard", kind, len(self.endpoint.stream.open_shards))

    def _freeze(self):
        self.endpoint.freeze(self.now - START)
        self.note("blackout", self.scenario.blackout.kind)

    def _toggle(self):
        self.endpoint.toggle(self.now - START)
        self.note("distribution", self.endpoint.stream.record_distribution)

    def _toggle_channels(self):
        self.endpoint.toggle_channels(self.now - START)
        self.note("channels", self.endpoint.channels)


class Shell(ProducerShell):
    """A shell that puts the records of the scenario, and sends its requests over the network of the world."""

    def __init__(self, world, number, load):
        self.world = world
        self.number = number
        self.load = load
        seed = world.scenario.seed
        super().__init__(load.config, world.now, Random(f"machine {seed} {number}"), STREAM)
        self.machine._slice_records = Random(f"slice {seed} {number}").choice([1, 3, SLICE_RECORDS])
        self.machine.ledger.wall_offset = BEGIN - START
        self._interrupts = Random(f"interrupt {world.scenario.seed} {number}")
        self.given = []
        self.by_record = {}
        self.queue = deque()
        self.closed = False
        self.map_requests = 0
        self.summary_requests = 0
        self.missing_answers = 0
        self._wake_at = NEVER
        self.puts_left = len(load.puts)
        self.oracles = StepOracles(self)
        for put in load.puts:
            world.at(START + put[0], self.offer, put)
        for moment in load.flushes:
            world.at(START + moment, self.flush)
        for moment, changes in load.changes:
            world.at(START + moment, self.reconfigure, changes)
        for moment in load.spurious:
            world.at(START + moment, self.pump)
        if load.abandoned_at is not None:
            world.at(START + load.abandoned_at, self.abandon)

    def note(self, *what):
        self.world.note(f"producer {self.number}", *what)

    # ---- the application

    def offer(self, put):
        self.puts_left -= 1
        if not self.closed:
            self.queue.append(put)
            if len(self.queue) == 1:
                self.take_queue()

    def take_queue(self):
        """Put the records that wait for room, in order."""
        while self.queue:
            _, key, hash_key, data = self.queue[0]
            ttl = self.load.own_ttls.get(data)
            headers = self.load.headers.get(data, {})
            if headers and self.intake.headers_refusal is not None:
                self.world.reached.add("headers refused at the put")
                headers = {}  # the producer refused the headers: the application puts the record without them
            record = self.record(data, key, hash_key, waits=self.load.waits, ttl=ttl, headers=headers)
            answer = self._put(record)
            if answer is None:  # the record was not accepted
                self.queue.popleft()
                self.pump()
                continue
            if answer is Put.FULL:
                self.world.reached.add("buffer full")
                self.oracles.check_full(record)
                return
            self.queue.popleft()
            ttl = self.config.record_ttl if ttl is None else ttl
            given = Given(record, key, hash_key, data, self.now, ttl, headers)
            self.given.append(given)
            self.by_record[id(record)] = given
            self.note("put", len(self.given), key, hash_key, len(data), answer.name)
            self.oracles.check_step()
            if answer is Put.WAKE:
                self.pump()

    def _put(self, record):
        """Put a record. Return the intake's answer, or ``None`` if the put was interrupted before the record was
        accepted.
        """
        if self._interrupts.random() >= self.load.interrupts:
            return self.accept(record)
        answer = None
        with interrupted(self._interrupts.randrange(20), steps="line") as it:
            answer = self.accept(record)
        if it.where is None:
            return answer
        self.note("interrupted", it.where)
        is_in = any(one is record for one in self.intake.records)
        self.world.reached.add("put interrupted after the append" if is_in else "put interrupted")
        return Put.WAKE if is_in else None  # a shell wakes the host whenever a put is interrupted

    def flush(self):
        self.note("flush")
        self.machine.flush()
        self.pump()
        self.oracles.check_flushed()

    def reconfigure(self, changes):
        if self.closed:
            return
        self.note("reconfigure", *changes.items())
        waits = any(lane.open or lane.queued for lane in self.machine._router.all_lanes())
        self.machine.reconfigure(SettingChanges(**changes), self.now)
        before, self.config = self.config, self.machine.config
        self.oracles.note_rates()
        self.pump()
        if self.config.linger != before.linger:
            self.oracles.check_flushed()
            if waits:
                self.world.reached.add("linger changed while records waited")
        if self.config.records_per_second != before.records_per_second:
            self.world.reached.add("rates changed by the user")

    def abandon(self):
        """End a close that ran out of time."""
        self.note("abandon")
        self.world.reached.add("abandoned")
        self.closed = True
        self.queue.clear()
        self.machine.abandon("Closed", "the producer was closed")
        self.pump()
        self.oracles.check_abandoned()

    # ---- the machine's outputs

    def pump(self):
        for _ in range(MOST_POLLS):
            slices = self.machine._backlog
            busy = self.poll()
            if slices or self.machine._backlog:
                self.world.reached.add("sorted in slices")
            self.oracles.check_step()
            room = self._collect()
            if self.queue and room:
                self.take_queue()
                busy = True
            if not busy:
                break
        deadline = self.machine.next_deadline()
        assert deadline > self.now, f"nothing to give, and the deadline {deadline} is not after {self.now}"
        self.oracles.check_pumped(deadline)
        if self._may_rest(deadline):
            return
        if deadline != self._wake_at:
            self._wake_at = deadline
            if deadline != NEVER:
                self.world.at(deadline, self._wake, deadline)

    def _may_rest(self, deadline):
        """Whether only requests that repeat forever are due. The world must come to rest, and puts are over."""
        machine, asks_again = self.machine, []
        if machine._facts.auto or machine._facts.channels:
            asks_again.append(machine._facts.next_deadline())  # the summary is then read every minute
        if self.world.endpoint.is_blacked_out_for_good:
            asks_again.append(machine._map.next_deadline())
        return self.puts_left == 0 and not machine.intake.outstanding and deadline in asks_again

    def _wake(self, deadline):
        if deadline == self._wake_at:
            self._wake_at = NEVER
            self.oracles.note_wake()
            self.pump()

    def list_shards(self, request):
        self.map_requests += 1
        arguments = (request, self.machine._map.snapshot is not None)
        self._send("ListShards", self.world.endpoint.list_shards, arguments, self._handle_listing)

    def describe_stream(self, _):
        self.summary_requests += 1
        self._send("DescribeStreamSummary", self.world.endpoint.summary, (), self.machine.handle_summary)

    def put_records(self, number, request):
        self.oracles.check_request(number, request)
        self._send(f"PutRecords {number}", self.world.endpoint.put, (request,), self._handle_put, number)

    def _collect(self):
        """Take the records that have ended. Return whether there may be more room."""
        machine = self.machine
        failed, finished = machine.ledger.failed, machine.ledger.finished
        self.oracles.check_ended([*failed], [*finished])
        failed.clear()
        finished.clear()
        events = machine.take_events()
        for event in events:
            self.note(repr(event))
            self.world.reached.see_event(event)
        return bool(events)

    # ---- the network

    def _send(self, name, serve, arguments, handle, *numbers):
        self.note("sends", name, *(len(one.entries) for one in arguments if hasattr(one, "entries")))
        self.world.at(self.now + self.world.endpoint.latency(), self._arrive, name, serve, arguments, handle, numbers)

    def _arrive(self, name, serve, arguments, handle, numbers):
        answer, late = serve(*arguments, self.now - START)
        moment = self.now + self.world.endpoint.latency() + late
        self.world.at(moment, self._answer, name, answer, handle, numbers)

    def _answer(self, name, answer, handle, numbers):
        self.note("answered", name, _brief(answer))
        self.missing_answers += getattr(answer, "kind", None) is FailureKind.NOT_FOUND
        handle(*numbers, answer, self.now)
        self.oracles.check_step()
        self.pump()

    def _handle_put(self, number, answer, now):
        self.oracles.see_answer(number, answer)
        self.machine.handle_put(number, answer, now)

    def _handle_listing(self, answer, now):
        before = [lane for lane in self.machine._router.lanes if lane.unsent()]
        self.machine.handle_list_shards(answer, now)
        if any(lane.vanished for lane in before):
            self.world.reached.add("dissolved a vanished lane")


def _brief(answer):
    records = getattr(answer, "records", None)
    if records is None:
        return getattr(answer, "code", type(answer).__name__)
    return ",".join(one.error_code or (one.shard_id or "?")[-3:] for one in records)
