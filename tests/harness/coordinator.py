"""The fake lease store, stream and shell of the ``Coordinator``, for unit tests, machines and the simulation alike.

``FakeStore`` and ``FakeStream`` answer at once, ``CoordinatorShell`` pumps one machine, and ``Group`` is a whole group of
workers in virtual time. The simulation puts faults, latency and clocks of its own around the same store and shell.
"""

from itertools import count
from random import Random

from shardline.codec.shapes import (
    HashKeyRangeShape,
    ListShardsResponse,
    SequenceNumberRangeShape,
    ShardShape,
    StreamSummary,
)
from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.consumer_events import (
    HandOverAsked,
    LeaseGained,
    LeaseLost,
    LeaseReleased,
    LeaseSurplus,
)
from shardline.core.consumer.coordinator import Coordinator, ScanLeases
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import Refused, apply_to
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.model.hashing import HASH_KEY_COUNT
from shardline.model.lease import Checkpoint
from shardline.model.position import TRIM_HORIZON, at_sequence_number
from shardline.model.record import Record
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import ChildShard, Shard
from shardline.model.stream import StreamRef

DOWN = Failure(FailureKind.TRANSIENT, "Down", "the store is down", maybe_received=False)
LOST = Failure(FailureKind.TRANSIENT, "Lost", "the answer was lost")
LATE = 1_000.0  # the time that LATEST stands for, as the first worker stores it


def names(*numbers):
    return [f"shardId-{number:012d}" for number in numbers]


A, B, C = names(0, 1, 2)


def at(number):
    return Checkpoint(at_sequence_number(SequenceNumber(number)))


def record(number, shard_id=None):
    return Record(b"x", "k", sequence_number=str(number), shard_id=shard_id)


def shape(shard):
    """A shard as ListShards returns it."""
    ending = shard.ending_sequence_number
    return ShardShape(
        shard.shard_id,
        HashKeyRangeShape(str(shard.hash_range.start), str(shard.hash_range.end)),
        SequenceNumberRangeShape(str(shard.starting_sequence_number), None if ending is None else str(ending)),
        shard.parent_id,
        shard.adjacent_parent_id,
    )


def shard(number, *parents, part=(0, 4), begin=1, end=None):
    """A shard that covers quarters of the ring, as ListShards returns it."""
    quarter = HASH_KEY_COUNT // 4
    low, high = part[0] * quarter, part[1] * quarter - 1
    numbers = SequenceNumberRangeShape(str(begin), None if end is None else str(end))
    return ShardShape(
        *names(number), HashKeyRangeShape(str(low), str(high)), numbers, *[*names(*parents), None, None][:2]
    )


HALVES = [shard(0, part=(0, 2)), shard(1, part=(2, 4))]
FOUR = [shard(number, part=(number, number + 1)) for number in range(4)]


class FakeStore:
    """The rows of a group, under the rules of ``core.leases``."""

    def __init__(self):
        self.rows = {}

    def answer(self, request):
        if isinstance(request, ScanLeases):
            return [self.rows[shard_id] for shard_id in sorted(self.rows)]
        return apply_to(self.rows, request)


class FakeStream:
    """A stream and its shards, as the service describes them."""

    def __init__(self, shards):
        self.shards = list(shards)  # each is a ``Shard``, or a shard as ListShards returns it
        self.created_at = 1.0
        self.retention_hours = 24
        self.missing = None  # the failure that requests get while the stream is missing
        self.listing_fails = None  # called for each ListShards; returns a failure to make the request fail
        self.open_then = None  # the shards that the service reports as open at a given time
        self.pages = None  # 2 if a listing has two pages

    def answer(self, request):
        if self.missing is not None:
            return self.missing
        if isinstance(request, DescribeStreamSummary):
            return self.summary()
        if self.listing_fails is not None and (failure := self.listing_fails(request)) is not None:
            return failure
        if request.shard_filter is not None and self.open_then is not None:
            return page_of(self.open_then)
        if self.pages is None:
            return page_of(self.shards)
        return page_of(self.pages[1]) if request.next_token else page_of(self.pages[0], "more")

    def summary(self):
        hours = self.retention_hours
        return StreamSummary(name="s", arn="a", status="ACTIVE", created_at=self.created_at, retention_hours=hours)


def page_of(shards, next_token=None):
    return ListShardsResponse([shape(one) if isinstance(one, Shard) else one for one in shards], next_token)


def coordinator(
    name="w",
    *,
    start=TRIM_HORIZON,
    incarnation="one",
    latest_at=LATE,
    clock,
    kcl_failover=None,
    follows_kcl=False,
    stream="s",
    shares=None,
    **config,
):
    """Return a machine with the settings that a test passes."""
    return Coordinator(
        StreamRef(stream),
        name,
        start,
        incarnation=incarnation,
        config=ConsumerConfig(**{"lease_duration": 10.0, "hand_over_timeout": 5.0, "list_interval": 20.0} | config),
        scan_interval=0.5,
        checkpoint_interval=1.0,
        latest_at=latest_at,
        rng=Random(name),
        now=clock(),
        clock=clock,
        kcl_failover=kcl_failover,
        follows_kcl=follows_kcl,
        shares=shares,
    )


class CoordinatorShell:
    """Pumps a machine. A subclass has a clock (``now``), sends requests (``operate``, ``ask``) and handles events
    (``follow``).
    """

    def __init__(self, machine):
        self.machine = machine
        self.outbox = []  # operations without an answer from the store

    def pump(self):
        machine, now = self.machine, self.now
        while (operation := machine.poll_operation(now)) is not None:
            assert subject_of(operation) not in map(subject_of, self.outbox), (
                "L1: one operation per lease, and one scan"
            )
            self.outbox.append(operation)
            self.operate(operation)
        while (request := machine.poll_request(now)) is not None:
            self.ask(request)
        for event in machine.take_events():
            self.follow(event)

    def handle_answer(self, request, answer):
        """Pass an answer to the machine's input for that request."""
        machine, now = self.machine, self.now
        if request in self.outbox:
            self.outbox.remove(request)
        match request, answer:
            case ScanLeases(), Failure():
                machine.handle_scan_failed(answer, now)
            case ScanLeases(), _:
                machine.handle_rows(answer, now)
            case ((DescribeStreamSummary() | ListShards()), Failure()):
                machine.handle_request_failed(answer, now)
            case DescribeStreamSummary(), _:
                machine.handle_summary(answer, now)
            case ListShards(), _:
                machine.handle_shards(answer, now)
            case _, Failure():
                machine.handle_operation_failed(request, answer, now)
            case _:
                machine.handle_applied(request, answer, now)


def subject_of(operation):
    return "scan" if isinstance(operation, ScanLeases) else operation.shard_id


class Worker(CoordinatorShell):
    """A worker of a ``Group``. Its Kinesis requests are answered at once, its store operations when the test says so."""

    def __init__(self, group, name, **settings):
        self.group = group
        self.name = name
        incarnation = f"life {next(group.lives)}"
        clock = lambda: group.now  # noqa: E731 - it is passed on
        super().__init__(coordinator(name, incarnation=incarnation, clock=clock, **group.settings | settings))
        self.mute = False  # whether the store gives no answers
        self.failing = None  # the failure that the store returns, if it fails
        self.drains = True  # whether the user finishes at once when another worker asks for a lease
        self.held = {}
        self.events = []
        self.sent = []
        self.listings = 0

    @property
    def now(self):
        return self.group.now

    @property
    def scans(self):
        return len(self.requests(ScanLeases))

    @property
    def numbers(self):
        """The numbers of the shards that the worker holds."""
        return {int(shard_id[-3:]) for shard_id in self.machine.held.holdings}

    def requests(self, kind):
        """The requests of one kind that the worker has sent."""
        return [request for request in self.sent if isinstance(request, kind)]

    def seen(self, kind):
        return [event for _, event in self.events if isinstance(event, kind)]

    # ---- the machine's outputs

    def operate(self, operation):
        self.sent.append(operation)

    def ask(self, request):
        self.sent.append(request)
        self.listings += isinstance(request, ListShards) or self.group.stream.missing is not None
        self.handle_answer(request, self.group.stream.answer(request))

    def follow(self, event):
        self.events.append((self.now, event))
        if isinstance(event, LeaseGained):
            self.held[event.shard_id] = event
        elif isinstance(event, (LeaseLost, LeaseReleased)):
            self.held.pop(event.shard_id, None)
        elif isinstance(event, HandOverAsked | LeaseSurplus) and self.drains:
            self.machine.held.leave(event.shard_id)

    def begin_listing(self):
        """Start a listing by hand, and leave it unanswered."""
        self.machine.topology.discovery.list_by(self.now)
        while isinstance(request := self.machine.poll_request(self.now), DescribeStreamSummary):
            self.handle_answer(request, self.group.stream.summary())
        return request

    # ---- the store's answers

    def waiting(self, *kinds):
        """The unanswered operations of these kinds."""
        return [operation for operation in self.outbox if isinstance(operation, kinds)]

    def wait_for(self, kind, step=None):
        """Run until the worker sends an operation of this kind. Everything else is answered at once, or, with ``step``,
        nothing is answered for that many seconds.
        """
        for _ in range(1_000):
            if found := self.waiting(kind):
                return found[0]
            if step is not None:
                self.group.run(step)
            elif not self.answer_all():
                break
        raise AssertionError(f"it sends no {kind.__name__}")

    def answer_all(self):
        return not self.mute and self.answer_some(self.outbox)

    def answer_but(self, *kinds):
        """Answer the pending operations that are not of these kinds, once."""
        return self.answer_some(operation for operation in self.outbox if not isinstance(operation, kinds))

    def answer_some(self, operations):
        operations = [*operations]
        for operation in operations:
            self.answer(operation)
        return bool(operations)

    def answer(self, operation, failure=None):
        self.settle(operation, failure)
        self.pump()

    def settle(self, operation, failure=None):
        """Answer one operation, and nothing that follows from it. A failed operation is applied if it may have been
        received.
        """
        failure = failure or self.failing
        is_lost = failure is not None and (not failure.maybe_received or isinstance(operation, ScanLeases))
        result = None if is_lost else self.group.apply(self.name, operation)
        self.handle_answer(operation, result if failure is None else failure)

    # ---- the user

    def read(self, shard_id, *numbers, ack=True):
        records = [record(number, shard_id) for number in numbers]
        self.machine.held.deliver(shard_id, records)
        if ack:
            assert self.machine.held.ack_through(shard_id, records[-1])
        self.pump()
        return records

    def end(self, shard_id, *children):
        shards = [one.to_shard() for one in children]
        named = [ChildShard(one.shard_id, one.parent_ids, one.hash_range) for one in shards]
        self.machine.end(shard_id, named, self.now)
        self.pump()

    def close(self):
        self.machine.close()
        self.pump()


class Group:
    """Workers on one store and one stream, which answer at once unless a test says otherwise."""

    def __init__(self, *shards, now=1_000.0, **settings):
        self.now = now
        self.store = FakeStore()
        self.stream = FakeStream(shards or FOUR)
        self.settings = settings
        self.workers = []
        self.lives = count()
        self.log = []  # (time, worker, operation, result)

    def worker(self, name=None, **settings):
        worker = self.sleeper(name, **settings)
        worker.pump()
        return worker

    def sleeper(self, name=None, **settings):
        """Return a worker that has not started."""
        worker = Worker(self, name or f"w{len(self.workers)}", **settings)
        self.workers.append(worker)
        return worker

    @property
    def rows(self):
        return self.store.rows

    @rows.setter
    def rows(self, rows):
        self.store.rows = rows

    def apply(self, who, operation):
        result = self.store.answer(operation)
        if not isinstance(operation, ScanLeases):
            self.log.append((self.now, who, operation, result))
        return result

    def run(self, seconds):
        end = self.now + seconds
        overdue = 0  # polls in a row with a deadline in the past that lead to nothing
        while overdue < 20:
            self.answer_everything()
            following = min((worker.machine.next_deadline() for worker in self.workers), default=NEVER)
            if following > end:
                self.now = end
                return
            overdue = 0 if following > self.now else overdue + 1
            self.now = max(self.now + 0.001 * (overdue > 0), following)
            for worker in self.workers:
                worker.pump()
        raise AssertionError("it wakes up again and again, for nothing")

    def answer_everything(self):
        """Run until no worker has another request at this moment."""
        for _ in range(200):
            if not sum(worker.answer_all() for worker in self.workers):
                return
        raise AssertionError("a storm: it asks again and again in one moment")

    def done(self, kind, since=0.0):
        """The accepted writes of one kind."""
        return [
            (who, operation)
            for when, who, operation, result in self.log
            if isinstance(operation, kind) and not isinstance(result, Refused) and when >= since
        ]

    def loads(self):
        return sorted(len(worker.held) for worker in self.workers)


def hold_one(name="me", shards=(), **settings):
    """Return a group, and its worker that has held the only shard for a while."""
    group = Group(*(shards or [shard(0)]), **settings)
    worker = group.worker(name)
    group.run(30.0)
    assert A in worker.held
    return group, worker
