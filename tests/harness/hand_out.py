"""A hand-out on its own: its leases and trackers are real, and its readers return the pages that a test gives them."""

from random import Random
from types import SimpleNamespace

from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.duplicate_workers import DuplicateWorkers
from shardline.core.consumer.handler_task import Run
from shardline.core.consumer.handout import HandOut, Iteration
from shardline.core.consumer.held_leases import HeldLeases
from shardline.core.consumer.reader import Page, ReaderState
from shardline.core.consumer.record_filter import leave_out
from shardline.core.consumer.run_bounds import RunBounds
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.core.leases import TakeLease, apply
from shardline.model.lease import Incarnation, Lease
from shardline.model.record import Origin, Record


class FakeReader:
    """A reader whose state the test sets."""

    def __init__(self, key, budget):
        self.key, self.shard_id = key, key[1]
        self.state = ReaderState.READY
        self.failure = self.lag = None
        self.has_unopened = self.has_caught_up = self.is_stopped = False
        self.out_of_range, self.read_by = 0, "polling"
        self.age = None
        self._budget = budget

    def unread_age(self, now):  # noqa: ARG002 - the form of a reader
        return self.age

    def stop(self):
        self.is_stopped = True
        self._budget.forget(self.key)


class FakeGroup:
    """A coordinator without a store: it holds leases, and records the calls that it gets."""

    def __init__(self, stream, config, clock):
        self.me, self.is_ready, self.ended, self.unseen, self.limits = "me", True, [], [], []
        self.is_retiring = False
        self.view = SimpleNamespace(rows={})
        self.topology = SimpleNamespace(is_settled=True, graph=SimpleNamespace(covers=bool))
        self.stream = stream
        self.held = HeldLeases(
            DuplicateWorkers(Incarnation("me", "1", config.lease_duration)),
            ShardGraph(),
            config,
            checkpoint_interval=1.0,
            latest_at=0.0,
            clock=clock,
        )

    def end(self, shard_id, children, now):  # noqa: ARG002 - the form of a coordinator
        self.ended.append((shard_id, children))
        self.held.end(shard_id, 0)

    def limit_leases(self, max_leases, now):  # noqa: ARG002 - as above
        self.limits.append(max_leases)

    def retire(self, now):  # noqa: ARG002 - as above
        self.is_retiring = True

    def mark_missing(self, shard_id, now):  # noqa: ARG002 - as above
        self.unseen.append(shard_id)


class Desk:
    """The hand-out of a consumer of two streams, with a clock and a record of its outputs."""

    def __init__(self, *, until_latest=False, idle_timeout=None, max_leases=None, callbacks=(), **settings):
        self.now = 100.0
        self.config = ConsumerConfig(**settings)
        clock = lambda: self.now  # noqa: E731
        self.groups = {name: FakeGroup(name, self.config, clock) for name in ("s", "t")}
        bounds = RunBounds(until_latest=until_latest, idle_timeout=idle_timeout, max_leases=max_leases)
        self.hand_out = HandOut(self.groups, self.config, bounds, report_interval=1.0, callbacks=callbacks)
        self.shards = {}
        self.numbers = 0
        self.sequence = 0

    # ---- leases and pages

    def gain(self, name="a", stream="s", *, counter=0):
        """Gain a lease. ``counter`` is that of the row before; a lease that is gained again has a higher one."""
        held = self.groups[stream].held
        free = Lease(name, counter=counter)
        row = apply(free, TakeLease(name, "me", free.fence))
        held.handle_taken(row, self.now, self.now)
        (gained,) = held.take_events()
        reader = FakeReader((stream, name), self.hand_out.budget)
        self.shards[name] = self.hand_out.handle_gained(stream, gained, reader, self.now)
        return self.shards[name]

    def lose(self, name="a", stream="s"):
        self.groups[stream].held.lose(name, "test")
        self.groups[stream].held.take_events()
        self.hand_out.handle_gone(stream, name, self.now)

    def bring(self, count, name="a", *, keys="k", last=False, children=(), passed=None):
        """Give the reader a page with this many records. ``keys`` has one letter per key; ``-`` means no key."""
        shard = self.shards[name]
        origin = Origin(shard.grant)
        records = []
        for place in range(count):
            self.sequence += 1
            key = keys[place % len(keys)]
            records.append(
                Record(
                    b"x",
                    None if key == "-" else key,
                    sequence_number=str(self.sequence),
                    shard_id=name,
                    stream=shard.key[0],
                    origin=origin,
                    arrived_at=float(self.sequence),
                )
            )
        self.hand_out.budget.hold(shard.key, 100 * count)
        page = Page(name, records, 100 * count, 0.0, last, children)
        page = page if passed is None else leave_out(page, passed)
        self.hand_out.handle_pages(shard, [page], self.now)
        return records

    # ---- takers

    def iterate(self, **limits):
        self.numbers += 1
        taker = Iteration(self.hand_out, self.numbers, **limits)
        self.hand_out.begin(taker, self.now)
        return taker

    def run(self, policy, **limits):
        self.numbers += 1
        run = Run(self.hand_out, self.numbers, policy=policy, rng=Random(0), **limits)
        self.hand_out.begin(run, self.now)
        return run

    def start(self, policy, **limits):
        """Return a run, and the task of its only shard, which has records in hand."""
        run = self.run(policy, **limits)
        assert self.ask(run)
        (task,) = run.new_tasks
        assert self.ask(task)
        return run, task

    def ask(self, taker):
        """Ask, and return whether the answer came at once."""
        taker.asked += 1
        self.hand_out.ask(taker, taker.asked, self.now)
        return taker in self.hand_out.take_answered()

    def take(self, taker, count=None):
        """Ask for records, and take this many of the cursor, or all."""
        assert self.ask(taker)
        cursor = taker.cursor
        return [cursor.take(self.now) for _ in range(cursor.end if count is None else count)]

    def watermark(self, name="a", stream="s"):
        watermark = self.groups[stream].held.holdings[name].tracker.watermark
        return 0 if watermark is None else watermark.number

    def poll(self, seconds=0.0):
        """Let time pass, and poll as the host does."""
        self.now += seconds
        self.hand_out.handle_time(self.now)
        return self.hand_out.take_answered()

    def phase(self, name="a", stream="s"):
        return self.groups[stream].held.holdings[name].phase.name
