"""One worker process of a simulated fleet: the shell that ``core/consumer/__init__`` describes, on a clock of its own.

It can crash (all it knew is gone), be paused (nothing of it runs, then everything that waited comes at once) and be
closed in good order. What it has sent goes on without it.
"""

from functools import partial
from random import Random

from fleet_process import Clock, Process
from fleet_reading import ShardReading
from fleet_user import ShardUser
from producer_endpoint import BEGIN, STREAM
from tests.harness.coordinator import CoordinatorShell

from shardline.core.clock import NEVER
from shardline.core.consumer import events as told
from shardline.core.consumer.coordinator import Coordinator, ScanLeases
from shardline.core.consumer.handler_watch import HandlerWatch
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.failures import Failure, FailureKind
from shardline.core.leases import CommitCheckpoint, FinishHandOver, ReleaseLease, RenewLease
from shardline.core.requests import ListShards
from shardline.model.position import LATEST, TRIM_HORIZON, at_timestamp
from shardline.model.stream import StreamRef

NO_ANSWER = Failure(FailureKind.TRANSIENT, "Timeout", "sim: no answer came in time")
_HOLDERS = (RenewLease, CommitCheckpoint, FinishHandOver, ReleaseLease)


class Worker(Process, CoordinatorShell):
    """One process, from its start to its end."""

    def __init__(self, world, number, life, plan):
        fleet = world.fleet
        clock = Clock(world.now, 100.0 * number, plan.drift)
        Process.__init__(self, world, plan.name or f"worker-{number}.{life}", clock)
        self.began_at = world.now
        self.plan = plan
        self.place = number
        self.user_chance = Random(f"user {fleet.seed} {number} {life}")
        self.chance = Random(f"worker {fleet.seed} {number} {life}")
        config = self.config = world.config_of(plan)
        self.incarnation = f"{number}.{life}"
        self.latest_at = self._latest_at()
        machine = Coordinator(
            StreamRef(STREAM),
            self.name,
            self._start(),
            incarnation=self.incarnation,
            config=config,
            scan_interval=fleet.store.scan_interval,
            checkpoint_interval=fleet.store.checkpoint_interval,
            latest_at=self.latest_at,
            chance=self.chance,
            now=self.now,
            clock=lambda: self.now,
        )
        CoordinatorShell.__init__(self, machine)
        self.budget = PrefetchBudget(config.prefetch_max_bytes)
        self.users = {}
        self.stuck_after = config.lease_duration  # so that the slowest handlers of a scenario are stuck for a while
        self.handlers = HandlerWatch(self.stuck_after)
        self.stuck = {}  # by shard: since when, as far as was told
        self.threads = {}  # shards whose handler runs on, after the lease was lost
        self.failure = None
        self.is_closing = False
        self._wake_at = NEVER
        self._wants_pump = False
        self._was_missing = False
        self._turn_of = None  # the shard whose records an iterating user has
        self._kept_turns = []
        self.unread = set()  # what it gave back without having held it
        self._excused = set()  # shards whose rows may name us without our knowing

    def _start(self):
        fleet = self.world.fleet
        if fleet.start == "AT_TIMESTAMP":
            return at_timestamp(BEGIN + fleet.start_back)
        return LATEST if fleet.start == "LATEST" else TRIM_HORIZON

    def _latest_at(self):
        """The service's time, from the head of an answer (whole seconds); without one, our own wall clock."""
        answer, _ = self.world.service.describe(self.world.time)
        if isinstance(answer, Failure):
            return BEGIN + self.world.time + self.plan.wall_skew - 1.0
        return float(int(BEGIN + self.world.time)) - 1.0

    # ---- life

    def crash(self):
        self.note("crashes")
        if any(user.has_records for user in self.users.values()):
            self.world.reached.add("crash with records in hand")
        if any(isinstance(operation, CommitCheckpoint) for operation in self.outbox):
            self.world.reached.add("crash with a commit under way")
        self.world.watch.excuse(self.machine.trims)
        self.is_dead = True
        self.users.clear()

    def close(self):
        """Hand out no more, let the users finish what they have, then let go of everything."""
        if self.is_dead or self.is_closing:
            return
        self.note("closes", self.failure or "asked to")
        self.is_closing = True
        for user in [*self.users.values()]:
            user.stop()
        self.at_local(self.now + 2 * self.config.lease_duration, self._cancel_users)
        self._close_if_idle()

    def fail(self, why):
        """Nothing more can be read: what the users have comes again."""
        if self.failure is None:
            self.failure = why
            self.note("fails", why)
            for user in [*self.users.values()]:
                user.stop()
                user.cancel()
            self.close()

    def _cancel_users(self):
        for user in self.users.values():
            user.cancel()
        self._close_if_idle()

    def _close_if_idle(self):
        idle = all(user.work is None for user in self.users.values())
        if self.is_closing and idle and not self.machine._is_closing:
            self.world.watch.excuse(self.machine.trims)
            self.machine.close()
            self.wake()

    def _end_if_closed(self):
        if self.machine.is_closed and not self.is_dead:
            self.note("has ended")
            self.world.reached.add("closed in good order")
            assert not self.outbox, "nothing is under way"
            if not self.world.store.is_down and not self._has_seen_set_back:
                self._check_released()
            self.is_dead = True
            self.world.handle_ended(self)

    @property
    def _has_seen_set_back(self):
        """Whether the store has forgotten, in our time, what we let go of."""
        set_back_at = self.world.store.set_back_at
        return set_back_at is not None and self.began_at <= set_back_at

    def _check_released(self):
        """L5, also for what it only asked for. What lapsed, or came by a write whose answer was lost, is not its to give back."""
        assert not self.users, "HL1: every lease was told to be gone"
        rows = [row for row in self.world.store.rows.values() if not row.checkpoint.is_finished]
        ours = [row for row in rows if not row.is_foreign_to(self.machine._twins.me)]
        held = {row.shard_id for row in ours if self.name in {row.owner, row.checkpoint_owner}}
        if (
            self.world.fleet.has_twins
        ):  # what the other asked for, or was handed, and has not taken yet, bears our name too
            held = {row.shard_id for row in ours if row.incarnation_of(self.name) is not None} & held
        assert held <= self._excused, f"L5: {self.name} has ended, and still has, or asks for, {held - self._excused}"

    # ---- the coordinator

    def wake(self):
        if not self._wants_pump:
            self._wants_pump = True
            self.world.at(self.world.now, self.run, self.pump)

    def pump(self):
        self._wants_pump = False
        now = self.now
        super().pump()
        self._watch_handlers(now)
        self.admit()
        self._end_if_closed()
        if not self.is_dead:
            self._arm(min(self.machine.next_deadline(), self.handlers.next_deadline()))

    def _watch_handlers(self, now):
        """HW1: what is told of stuck handlers is so, and each spell is told once."""
        at_work = {shard_id: user.look() for shard_id, user in self.users.items() if user.call is not None}
        self.handlers.handle_work({(STREAM, shard_id): work for shard_id, work in at_work.items()}, now)
        for event in self.handlers.take_events():
            self.note(type(event).__name__, *event)
            if isinstance(event, told.HandlerStuck):
                since = at_work[event.shard_id].since
                assert event.shard_id not in self.stuck, "HW1: it was told before"
                assert now >= since + self.stuck_after, "HW1: it is not stuck"
                self.stuck[event.shard_id] = since
                self.world.reached.add("a stuck handler was reported")
            else:
                since = self.stuck.pop(event.shard_id)
                assert event.shard_id not in at_work or at_work[event.shard_id].since != since, "HW1: it is stuck still"
                self.world.reached.add("a stuck handler went on, or lost its shard")

    def _arm(self, deadline):
        if deadline <= self.now:
            self.wake()
        elif deadline not in {self._wake_at, NEVER}:
            self._wake_at = deadline
            self.at_local(deadline, self._wake_up, deadline)

    def _wake_up(self, deadline):
        if deadline == self._wake_at:
            self._wake_at = NEVER
            self.pump()

    # ---- the store

    def operate(self, operation):
        now = self.now
        if isinstance(operation, _HOLDERS):
            self._check_may_write(operation, now)
        flight = [operation, False]
        delay = self.chance.uniform(0, self.world.fleet.to_wire)
        self.world.at(self.world.now + delay, self.run, self._leave, flight)
        self.at_local(now + self.config.lease_duration / 2, self._give_up, flight)

    def _check_may_write(self, operation, now):
        holding = self.machine.held.holdings.get(operation.shard_id)
        if holding is not None:
            assert holding.grant._held_until > now, "L2: written after the lease lapsed"
        else:
            assert self.is_closing, "L4: written for a lease that is not held"
            assert isinstance(operation, ReleaseLease | FinishHandOver), "FW1: it is let go of, and nothing else"
            self.unread.add(operation)

    def _leave(self, flight):
        """It goes out: from here on it does not need us."""
        if flight[1]:
            return
        store, world = self.world.store, self.world
        reply = lambda answer: self.run(self._answered, flight, answer)  # noqa: E731 - it is passed on
        world.at(world.now + store.latency(), store.receive, self.name, flight[0], reply)

    def _give_up(self, flight):
        self._answered(flight, NO_ANSWER)

    def _answered(self, flight, answer):
        operation, is_over = flight
        if is_over:
            return
        flight[1] = True
        if isinstance(answer, Failure) and not isinstance(operation, ScanLeases):
            self._excused.add(operation.shard_id)
        self.handle_answer(operation, answer)
        if isinstance(operation, ScanLeases) and not isinstance(answer, Failure):
            self.world.reached.see_rows(self, answer)
        self.wake()

    # ---- the service

    def ask(self, request):
        service = self.world.service
        serve, arguments = (service.list_all, (request,)) if isinstance(request, ListShards) else (service.describe, ())
        self.send(serve, arguments, partial(self._answered_request, request))

    def _answered_request(self, request, answer):
        self.machine.handle_service_time(float(int(BEGIN + self.world.time)), self.now)  # the answer's Date
        self.handle_answer(request, answer)
        self.wake()

    def send(self, serve, arguments, handle):
        world = self.world
        world.at(world.now + world.service.latency(), self._arrive, serve, arguments, handle)

    def _arrive(self, serve, arguments, handle):
        world = self.world
        answer, late = serve(*arguments, world.time)
        world.at(world.now + late + world.service.latency(), self.run, handle, answer)

    # ---- events

    def follow(self, event):
        self.note(type(event).__name__, *event[:3])
        reached = self.world.reached
        match event:
            case told.LeaseGained():
                self._start_reading(event)
            case told.HandOverAsked(shard_id):
                user = self.users[shard_id]
                user.stop()
                user.leave_if_done()
            case told.HandOverOverdue(shard_id):
                reached.add("hand-over timed out")
                self._drop(shard_id)
            case told.LeaseLost(shard_id, why):
                if self.was_paused and "no renewal" in why:
                    reached.add("paused past its lease, then stopped")
                if self.world.store.is_down:
                    reached.add("store outage past lease")
                self._excused.add(shard_id)
                self._drop(shard_id)
            case told.LeaseReleased(shard_id, finished):
                if self.is_closing and not finished:
                    reached.add("lease released on exit")
                self._drop(shard_id)
            case told.StreamRecreated(why):
                assert self.world.truth.epoch, f"TO1: it is the same stream: {why}"
                halted = self.machine.topology.is_halted
                if self._was_missing:
                    reached.add("the stream was missing, and read from its start when it was back")
                reached.add(f"the stream was made anew: {'stopped' if halted else 'read from its start'}")
                if halted:
                    self.world.handle_stopped()
                    self.fail(why)
            case told.StreamMissing():
                assert self.config.if_recreated == "restart", "TO5: it was to stop"
                self._was_missing = True
            case told.WorkerIdShared(worker_id=name):
                assert self.world.fleet.has_twins, f"TW3: there is no other live process under the name {name}"
                reached.add("two processes under one name: reported")
            case told.ConsumerFailed(operation, failure):
                self._check_failed(failure)
                self.fail(f"{operation} {failure.code}")
            case told.StoreRecovered():
                reached.add("store recovered")
                if self.machine.held.holdings and self.world.has_been_down:
                    reached.add("store outage within lease")
            case told.ProgressLost():
                was_emptied = self.world.store.set_back_at is not None
                assert self.world.truth.epoch or was_emptied, "LV6: the store has lost nothing"
                if was_emptied:
                    reached.add("the store came back empty: told")
            case told.RecordsTrimmed(shard_id):
                self.world.watch.see_trimmed(shard_id)
            case told.ShardTrimmed(shard_id):
                self.world.service.advance(self.world.time)
                known = self.world.truth.shards.get(shard_id)
                assert known is None or known.is_gone or self.world.truth.epoch, f"SG1: {shard_id} is there"
                reached.add("a whole shard trimmed")
                self.world.watch.alarms.add(shard_id)

    def _check_failed(self, failure):
        """TO5: who has seen the stream waits for it, if told to."""
        if failure.code == "ResourceNotFoundException":
            has_seen = self.machine.topology.graph.listings > 0
            assert not has_seen or self.config.if_recreated == "stop", "TO5: it was to wait"
            self.world.reached.add("the stream was missing: ended")

    def _start_reading(self, event):
        world, shard_id = self.world, event.shard_id
        world.service.advance(world.time)
        world.watch.check_gained(self, shard_id, event.checkpoint)
        assert shard_id not in self.users, "HL1: told once"
        self.users[shard_id] = user = ShardUser(self, event.grant, ShardReading(self, event))
        if self.is_closing:
            user.stop()
        else:
            user.reading.go_on()

    def _drop(self, shard_id):
        user = self.users.pop(shard_id, None)
        if user is not None:
            user.drop()
        self._close_if_idle()

    def admit(self):
        for _, shard_id in self.budget.take_admitted():
            user = self.users.get(shard_id)
            if user is not None:
                user.reading.go_on()

    # ---- what the users say

    def ack(self, user, record, *, through):
        held = self.machine.held
        if not user.holds or not user.grant.held:
            self.world.reached.add("acknowledgement refused")
            return
        holding = held.holdings[user.shard_id]
        was_arranged = holding.is_arranged
        accepted = held.ack_through(user.shard_id, record) if through else held.ack(user.shard_id, record)
        if accepted and (not was_arranged or holding.tracker.has_ended):
            self.wake()

    def end_shard(self, shard_id, children):
        self.machine.end(shard_id, children, self.now)
        self.wake()

    def leave(self, shard_id):
        self.machine.held.leave(shard_id)
        self.wake()
        self._close_if_idle()

    def step_user(self, shard_id):
        user = self.users.get(shard_id)
        if user is not None:
            user.step()

    def take_turn(self, user):
        """Whether this user may work now: an iterator has records of one shard at a time."""
        if not self.world.fleet.user.one_at_a_time or self._turn_of is user:
            return True
        if self._turn_of is not None:
            if user not in self._kept_turns:
                self._kept_turns.append(user)
            return False
        self._turn_of = user
        return True

    def end_turn(self, user):
        self._close_if_idle()
        if self._turn_of is user:
            self._turn_of = None
            waiting, self._kept_turns = self._kept_turns, []
            for other in waiting:
                other.step()
