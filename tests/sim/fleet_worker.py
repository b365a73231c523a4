"""One worker process of a simulated fleet: the shell that ``core/consumer/__init__`` describes, with its own clock.

It can crash (its state is lost), be paused (nothing of it runs, and afterwards everything that waited comes at once)
and be closed in good order. Requests that it has sent continue without it.
"""

from functools import partial
from random import Random
from weakref import ref

from fleet_books import Books
from fleet_callbacks import Callbacks
from fleet_control import Control
from fleet_process import Clock, Process
from fleet_reading import FanOutReading, ShardReading
from fleet_takers import Application
from producer_endpoint import BEGIN, STREAM
from tests.harness.coordinator import CoordinatorShell

from shardline.core.clock import NEVER
from shardline.core.consumer import consumer_events as told
from shardline.core.consumer.coordinator import Coordinator, ScanLeases
from shardline.core.consumer.handout import CancelHandler, HandOut, ReadingFailed, StopReading, WakeReader
from shardline.core.consumer.lifecycle import CallBack, CancelCallBack
from shardline.core.consumer.run_bounds import RunBounds
from shardline.core.consumer.stream_shares import StreamShares
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import CommitCheckpoint, FinishHandOver, ReleaseLease, RenewLease, TakeLease
from shardline.core.requests import ListShards
from shardline.model.position import LATEST, TRIM_HORIZON, at_timestamp
from shardline.model.stream import StreamRef

NO_ANSWER = Failure(FailureKind.TRANSIENT, "Timeout", "sim: no answer came in time")
_HOLDERS = (RenewLease, CommitCheckpoint, FinishHandOver, ReleaseLease)


class StreamPart(CoordinatorShell):
    """What a worker does in one stream: its coordinator, the requests of the coordinator, and the readers.

    A subclass has the attributes of the process, and ``world``: the stream's side of the world.
    """

    def begin_part(self, world, machine):
        CoordinatorShell.__init__(self, machine)
        self.world = world
        self.stream = machine.stream.name
        self._was_missing = False
        self.unread = set()  # leases that it gave back without having held them
        self._excused = set()  # shards whose rows may name us without our knowledge

    def has_records(self, shard):
        """Whether the user has records of the shard that are not known to be done."""
        return shard.is_in_hand or (self.is_manual and bool(self.users.unacknowledged.get(shard.grant)))

    def held_shard(self, shard_id):
        return self.hand_out.shards.get((self.stream, shard_id))

    @property
    def _has_seen_set_back(self):
        """Whether the store has lost, during our life, the release of one of our leases."""
        set_back_at = self.world.store.set_back_at
        return set_back_at is not None and self.began_at <= set_back_at

    def _check_released(self):
        """Check L5, also for leases that were only asked for. Leases that lapsed, or that came by a write whose answer
        was lost, need not be given back.
        """
        assert not any(key[0] == self.stream for key in self.hand_out.shards), (
            "the hand-out was told that every lease is gone"
        )
        rows = [row for row in self.world.store.rows.values() if not row.checkpoint.is_finished]
        # Of two processes with one name, the other one may keep leases after this one has seen the rows the last time.
        if self.config.keep_leases and (self.is_clean or self.world.fleet.has_twins):
            kept = [row.incarnation_of(self.name) for row in rows]  # perhaps asked for by another worker meanwhile
            rows = [row for row, by in zip(rows, kept, strict=True) if by is None or not by.is_kept]
        ours = [row for row in rows if not row.is_foreign_to(self.machine._duplicates.me)]
        held = {row.shard_id for row in ours if self.name in {row.owner, row.checkpoint_owner}}
        if (
            self.world.fleet.has_twins
        ):  # leases that the other worker asked for, or was handed but has not taken yet, have our name, too
            held = {row.shard_id for row in ours if row.incarnation_of(self.name) is not None} & held
        assert held <= self._excused, f"L5: {self.name} has ended, and still has, or asks for, {held - self._excused}"

    # ---- the store

    def operate(self, operation):
        now = self.now
        is_kept = isinstance(operation, TakeLease) and operation.incarnation.is_kept
        assert self.is_closing or not is_kept, "leases are kept on exit only"
        if isinstance(operation, _HOLDERS) or is_kept:
            self._check_may_write(operation, now)
            self.callbacks.check_write(self, operation)
        world = self.world
        if isinstance(operation, CommitCheckpoint) and self.rng.random() < world.fleet.commit_trouble_at(world.time):
            kind, length = self.rng.choice(["crash", "pause"]), 1.3 * self.config.lease_duration
            world.at(world.now, world.trouble, self.place, kind, length)
        flight = [operation, False]
        delay = self.rng.uniform(0, world.fleet.to_wire)
        world.at(world.now + delay, self.run, self._leave, flight)
        self.at_local(now + self.config.lease_duration / 2, self._give_up, flight)

    def _check_may_write(self, operation, now):
        holding = self.machine.held.holdings.get(operation.shard_id)
        if holding is not None:
            assert holding.grant.held_until > now, "L2: written after the lease lapsed"
        else:
            assert self.is_closing, "L4: written for a lease that is not held"
            assert isinstance(operation, ReleaseLease | FinishHandOver), "it is let go of, and nothing else"
            self.unread.add(operation)

    def _leave(self, flight):
        """Send the operation. From here on it does not need this worker."""
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
        # The Date header of the response.
        self.machine.handle_service_time(float(int(BEGIN + self.world.time)), self.now)
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
            case told.ShardSought(shard_id):
                if self.hand_out.can_go_on(self.stream, event):
                    reached.add("read again from a sought position")
                    self._start_reading(event, self.hand_out.shards[self.stream, shard_id].grant)
                else:
                    reached.add("sought, and released before it was read again")
            case told.HandOverAsked(shard_id) | told.LeaseSurplus(shard_id):
                self.hand_out.handle_hand_over_asked(self.stream, shard_id, self.now)
                assert self.hand_out.shards[self.stream, shard_id].is_stopping, "no more of it is handed out"
                if len(self.hand_out.shards[self.stream, shard_id].placed) > 1:
                    reached.add("a hand-over waited for several handlers")
            case told.HandOverOverdue(shard_id):
                reached.add("hand-over timed out")
                self.callbacks.see_gone((self.stream, shard_id))
                self.hand_out.handle_gone(self.stream, shard_id, self.now)
            case told.LeaseLost(shard_id, why):
                if self.was_paused and "no renewal" in why:
                    reached.add("paused past its lease, then stopped")
                if self.world.store.is_down:
                    reached.add("store outage past lease")
                self._excused.add(shard_id)
                shard = self.hand_out.shards.get((self.stream, shard_id))
                if shard is not None and self.has_records(shard):
                    reached.add("lease lost while the user had records")
                if shard is not None and len(shard.placed) > 1:
                    reached.add("lease lost while several handlers were at work")
                self.callbacks.see_gone((self.stream, shard_id))
                self.hand_out.handle_gone(self.stream, shard_id, self.now)
            case told.LeaseReleased(shard_id, finished):
                if self.is_closing and not finished:
                    reached.add("lease released on exit")
                if (self.stream, shard_id) in self.hand_out.shards:
                    self.world.truth.released.add(self.hand_out.shards[self.stream, shard_id].grant)
                self.hand_out.handle_gone(self.stream, shard_id, self.now, finished=finished)
            case told.StreamReplaced(why):
                assert self.world.truth.epoch, f"it is the same stream: {why}"
                halted = self.machine.topology.is_halted
                if self._was_missing:
                    reached.add("the stream was missing, and read from its start when it was back")
                reached.add(f"the stream was made anew: {'stopped' if halted else 'read from its start'}")
                if halted:
                    self.world.handle_stopped()
                    self.fail(why)
            case told.StreamMissing():
                assert self.config.if_recreated == "restart", "it was to stop"
                self._was_missing = True
            case told.WorkerIdShared(worker_id=name):
                assert self.world.fleet.has_twins, f"there is no other live process under the name {name}"
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
                assert self.world.truth.epoch or was_emptied, "the store has lost nothing"
                if was_emptied:
                    reached.add("the store came back empty: told")
            case told.RecordsTrimmed(shard_id):
                self.world.watch.see_trimmed(shard_id, is_closing=self.is_closing)
            case told.ShardTrimmed(shard_id):
                self.world.service.advance(self.world.time)
                known = self.world.truth.shards.get(shard_id)
                assert known is None or known.is_gone or self.world.truth.epoch, f"{shard_id} is there"
                reached.add("a whole shard trimmed")
                self.world.watch.alarms.add(shard_id)

    def _check_failed(self, failure):
        """A worker that has seen the stream waits for it, if it is configured to."""
        if failure.code == "ResourceNotFoundException":
            has_seen = self.machine.topology.graph.listings > 0
            assert not has_seen or self.config.if_recreated == "stop", "it was to wait"
            self.world.reached.add("the stream was missing: ended")

    def _start_reading(self, event, older=None):
        world, shard_id = self.world, event.shard_id
        world.service.advance(world.time)
        world.watch.check_gained(self, shard_id, event.checkpoint)
        kind = FanOutReading if self.plan.fan_out else ShardReading
        reading = self.readings[event.grant] = kind(self, event)
        self.callbacks.see_gained(event.grant)
        self.control.see_gained(event.grant, older)
        reading.shard = self.hand_out.handle_gained(self.stream, event, reading.reader, self.now)
        reading.go_on()


class Part(StreamPart):
    """A worker's part in another stream than the first."""

    def __init__(self, worker, side):
        self.worker = worker
        self.latest_at = worker.find_latest_at(side)
        self.begin_part(side, worker.make_machine(side.label, self.latest_at))

    def __getattr__(self, name):
        return getattr(self.worker, name)


class Worker(Process, StreamPart):
    """One process, from its start to its end."""

    def __init__(self, world, number, life, plan):
        fleet = world.fleet
        clock = Clock(world.now, 100.0 * number, plan.drift)
        Process.__init__(self, world, plan.name or f"worker-{number}.{life}", clock)
        self.began_at = world.now
        self.plan = plan
        self.place = number
        self.user_chance = Random(f"user {fleet.seed} {number} {life}")
        self.rng = Random(f"worker {fleet.seed} {number} {life}")
        config = self.config = world.config_of(plan)
        self.incarnation = f"{number}.{life}"
        self.latest_at = self.find_latest_at(world)
        self.shares = StreamShares()
        self.begin_part(world, self.make_machine(STREAM, self.latest_at))
        self.parts = [self, *(Part(self, side) for side in world.sides)]
        self.is_bounded = life == 0
        bounds = RunBounds(
            until_latest=self.until_latest,
            idle_timeout=plan.idle_timeout if self.is_bounded else None,
            max_leases=plan.max_leases,
        )
        interval = config.checkpoint_interval
        interval = fleet.store.checkpoint_interval if interval is None else interval
        self.callbacks = Callbacks(self, life)
        wanted = self.callbacks.wanted
        machines = {part.stream: part.machine for part in self.parts}
        self.hand_out = HandOut(
            machines,
            config,
            bounds,
            report_interval=interval,
            callbacks=wanted,
            names_streams=len(machines) > 1,
        )
        self.readings = {}  # by grant
        self.books = Books(self)
        self.control = Control(self, life)
        self.users = Application(self)
        self.is_closing = False
        self.is_clean = True
        self._mail = []
        self._wake_at = NEVER
        self._wants_pump = False

    def make_machine(self, stream, latest_at):
        fleet, here = self.world.fleet, ref(self)  # records refer to the clock, and are not garbage-collected
        return Coordinator(
            StreamRef(stream),
            self.name,
            self._start(),
            incarnation=self.incarnation,
            config=self.config,
            scan_interval=fleet.store.scan_interval,
            checkpoint_interval=fleet.store.checkpoint_interval,
            latest_at=latest_at,
            rng=self.rng,
            now=self.now,
            clock=lambda: here().now,
            shares=self.shares,
        )

    def part_of(self, stream):
        """Return the worker's part in this stream."""
        return next(part for part in self.parts if part.stream == stream)

    def _start(self):
        fleet = self.world.fleet
        if fleet.start == "AT_TIMESTAMP":
            return at_timestamp(BEGIN + fleet.start_back)
        return LATEST if fleet.start == "LATEST" else TRIM_HORIZON

    def find_latest_at(self, side):
        """Return the service's time, from the head of a response (in whole seconds). Without one, return our own wall
        clock.
        """
        answer, _ = side.service.describe(side.time)
        if isinstance(answer, Failure):
            return BEGIN + self.world.time + self.plan.wall_skew - 1.0
        return float(int(BEGIN + self.world.time)) - 1.0

    # ---- life

    @property
    def is_manual(self):
        return self.config.ack == "manual"

    @property
    def until_latest(self):
        """Whether this life ends at the newest record. Only the first life does, because the world has to come to rest."""
        return self.plan.until_latest and self.is_bounded

    def crash(self):
        self.note("crashes")
        if any(map(self.has_records, self.hand_out.shards.values())):
            self.world.reached.add("crash with records in hand")
        if any(isinstance(operation, CommitCheckpoint) for part in self.parts for operation in part.outbox):
            self.world.reached.add("crash with a commit under way")
        for part in self.parts:
            part.world.watch.excuse(part.machine.trims)
        self.is_dead = True

    def close(self, *, is_clean=True):
        """Hand out no more records, let the user finish those it has or leave its loop, then release all leases."""
        if self.is_dead or self.is_closing:
            self.is_clean = self.is_clean and is_clean  # the user's code fails during a clean close
            return
        self.note("closes", self.hand_out.failure or "asked to", "" if is_clean else "by an error")
        self.is_closing, self.is_clean = True, is_clean
        self.post(self.hand_out.close)
        if not is_clean or self.rng.random() < 0.3:
            self.users.leave(is_clean=is_clean)
        closing_time = self.world.fleet.user.closing_time
        self.at_local(self.now + closing_time, self._cancel_users)
        self.callbacks.wait_until(self.now + max(closing_time, 2.0))
        self.close_if_idle()

    def fail(self, why):
        """End the worker, because nothing more can be read."""
        self.hand_out.fail(why, self.now)
        self.close(is_clean=False)

    def _cancel_users(self):
        if not self.users.is_idle:
            self.is_clean = False
            self.world.reached.add("the time for closing was up before the user was done")
            self.users.leave(is_clean=False)

    def close_if_idle(self):
        if self.is_closing:
            self.post(self._close_if_idle)  # after the earlier reports of the user

    def _close_if_idle(self, now):
        hand_out = self.hand_out
        if self.users.is_idle and not self.machine._is_closing:
            if hand_out.current is not None:
                hand_out.settle(hand_out.current, now, done=self.is_clean)
            if not self.callbacks.is_settled:
                return  # it is called again when a callback has ended, or the time is up
            for part in self.parts:
                part.world.watch.excuse(part.machine.trims)
                part.machine.close(is_clean=self.is_clean)
            self.wake()

    def _end_if_closed(self):
        if all(part.machine.is_closed for part in self.parts) and not self.is_dead:
            self.note("has ended")
            self.world.reached.add("closed in good order")
            for part in self.parts:
                assert not part.outbox, "nothing is under way"
                if not part.world.store.is_down and not part._has_seen_set_back:
                    part._check_released()
            self.hand_out.end(self.now)
            self.drain()
            self.books.check_end()
            self.callbacks.check_end()
            self.is_dead = True
            self.world.handle_ended(self)

    # ---- the host

    def post(self, command):
        """Post a command of user code to the host."""
        self._mail.append(command)
        if len(self._mail) == 1:
            delay = self.rng.uniform(0, self.world.fleet.user.to_host)
            self.world.at(self.world.now + delay, self.run, self._serve)

    @property
    def has_mail(self):
        """Whether a message of user code has not reached the host yet."""
        return bool(self._mail)

    def _serve(self):
        mail, self._mail = self._mail, []
        for command in mail:
            command(self.now)
            self.drain()

    def wake(self):
        if not self._wants_pump:
            self._wants_pump = True
            self.world.at(self.world.now, self.run, self.pump)

    def pump(self):
        self._wants_pump = False
        self.hand_out.handle_time(self.now)
        self.books.look()
        self.drain()
        for part in self.parts:
            CoordinatorShell.pump(part)
        self.drain()
        self._end_if_closed()
        if not self.is_dead:
            deadlines = [part.machine.next_deadline() for part in self.parts]
            self._arm(min(*deadlines, self.hand_out.next_deadline()))

    def drain(self):
        """Carry out the outputs of the hand-out, and wake the takers that it answered."""
        hand_out = self.hand_out
        for stream, event in hand_out.take_stream_events():
            self.books.see_event(stream, event)
        for action in hand_out.take_actions():
            if isinstance(action, WakeReader):
                self.readings[action.shard.grant].go_on()
            elif isinstance(action, StopReading) and action.shard.grant in self.readings:
                self.readings[action.shard.grant].stop()
            elif isinstance(action, CancelHandler) and action.taker in self.users.handlers:
                self.users.handlers[action.taker].cancel()
            elif isinstance(action, CallBack):
                self.callbacks.begin(action)
            elif isinstance(action, CancelCallBack):
                self.callbacks.cancel(action.call)
        for taker in hand_out.take_answered():
            taker.wake()
        if hand_out.take_pump_due():
            self.wake()
        self.books.check_hand_out()
        self.control.check()
        if isinstance(hand_out.failure, ReadingFailed) or hand_out.failure == "a callback failed":
            self.close(is_clean=False)

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
