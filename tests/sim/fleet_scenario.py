"""Draws one simulated world from its seed: producers, a stream, a lease store and workers.

Swarm testing: a seed leaves out most kinds of trouble, and uses few values of each setting, so that rare combinations
occur and no trouble hides another. Every world grows calm in the end: faults stop, dead workers are replaced, and then
everything has to come to rest.
"""

from dataclasses import dataclass, field, replace
from random import Random

from producer_scenario import POISON, Load, Scenario, draw_headers

from shardline.codec.aggregation import encode_aggregate
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.producer.producer_config import ProducerConfig


def passes(data: bytes) -> bool:
    """The user's filter, in worlds that have one."""
    return sum(data) % 3 > 0


UNHANDLED = b"<unhandled>"
"""The user's code fails on records that contain this."""

READ_FAULTS = {
    "throttled": ("ProvisionedThroughputExceededException", 400),
    "internal": ("InternalFailure", 500),
    "expired-token": ("ExpiredTokenException", 400),
    "expired-iterator": ("ExpiredIteratorException", 400),
    "refused": ("ConnectError", None),
    "timeout": ("ReadTimeout", None),
}
PUSH_FAULTS = ("end", "break", "in-use", "stall", "late")
STORE_FAULTS = ("lost", "unsent", "dropped", "late", "broken", "throttled", "contended")
LISTING_FAULTS = ("fails", "stale", "slow")
SUMMARY_FAULTS = ("fails", "denied")
_PUT_FAULTS = ("throttled", "internal", "expired-token", "lost-answer", "timeout", "entry-throttle", "entry-internal")


@dataclass(frozen=True)
class StoreKind:
    """How a lease store behaves. ``latency`` is the time of one direction."""

    name: str
    latency: tuple[float, float]
    scan_interval: float
    checkpoint_interval: float
    pages: int = 1
    """The number of rows per page of a listing. Rows may change between two pages."""
    has_clock: bool = False


MEMORY = StoreKind("memory", (0.0, 0.0), 0.5, 1.0)
SQLITE = StoreKind("sqlite", (0.0005, 0.02), 0.5, 1.0)
REDIS = StoreKind("redis", (0.0005, 0.005), 0.5, 1.0, has_clock=True)
DYNAMODB = StoreKind("dynamodb", (0.003, 0.03), 2.0, 10.0, pages=3)
STORES = (MEMORY, SQLITE, REDIS, DYNAMODB)


@dataclass
class WorkerPlan:
    """One worker of the fleet, and the trouble that it meets."""

    starts_at: float
    drift: float
    """By how much the worker's clock runs too fast."""
    wall_skew: float
    """By how much the worker's wall clock is off. Only the meaning of LATEST could depend on it, and must not."""
    max_leases: int | None
    name: str | None = None
    """The ``worker_id`` in all of the worker's lives. ``None``: a new one in each life."""
    lease_duration: float | None = None
    """The worker's own lease duration. ``None``: that of the fleet."""
    until_latest: bool = False
    """Whether the worker's first life ends at the newest record."""
    idle_timeout: float | None = None
    """After how many seconds without records the iterations and runs of the first life end."""
    fan_out: bool = False
    """Whether the worker reads with subscriptions."""
    trouble: list[tuple[float, str, float]] = field(default_factory=list)
    """The time, the kind (``crash``, ``close`` or ``pause``), and for how long the worker is gone."""


@dataclass
class SetBack:
    """The lease store fails over or is restored, and has lost its last writes."""

    at: float
    """When the writes are lost. The store is unreachable for a while after that."""
    until: float
    to: float | None
    """The time whose rows come back. ``None``: the store comes back empty."""


@dataclass
class UserPlan:
    """How the user's code handles records."""

    batch: int | None
    """The number of records per call; ``None``: one by one."""
    one_at_a_time: bool
    """Whether an iterator hands out one page of one shard at a time, instead of all shards side by side."""
    threaded: bool
    """Whether the code runs in a thread, which cannot be cancelled."""
    duration: tuple[float, float]
    slow_chance: float
    slow: tuple[float, float]
    fail_chance: float
    """How often a call fails for no reason."""
    policy: FailurePolicy
    sink_fail_chance: float
    """How often a dead letter cannot be written."""
    ack_delay: tuple[float, float]
    """After how long each record is acknowledged, in any order (``manual``)."""
    forget_chance: float
    """How often an acknowledgement comes very late."""
    through_chance: float = 0.0
    """How often an acknowledgement covers all earlier records."""
    mixes: bool = False
    """Whether iterations and runs alternate."""
    max_wait: float = 0.0
    """How long a batch waits for more records."""
    shield_chance: float = 0.0
    """How often a handler's task cannot be cancelled."""
    interrupt_chance: float = 0.0
    """How often the user is interrupted while it waits."""
    replace_chance: float = 0.0
    """How often the user leaves its loop with a record in hand, and begins another iteration."""
    to_host: float = 0.0
    """The longest time that a question waits in the host's mailbox."""
    closing_time: float = 0.0
    """How long a close waits for the user to finish."""
    callbacks: tuple[str, ...] = ()
    """The lifecycle callbacks that the user has."""
    callback_fail_chance: float = 0.0
    filters: bool = False
    """Whether the user has a filter."""
    control: tuple[str, ...] = ()
    """The calls with which the user controls its running consumer."""
    concurrency: int | None = None
    """How many handlers of a run may work at once; ``None``: one for each shard."""
    processes: float | None = None
    """Handlers of a run work in processes, which are killed after this many seconds with one record or batch. ``None``:
    they work in the worker itself.
    """
    die_chance: float = 0.0
    """How often a process dies while it handles a record or batch, or hangs."""
    limits: bool = False
    """Whether the user changes ``max_leases`` while its consumer runs."""
    order: str = "shard"
    """Which records of a run are handled one after the other: those of a shard, of a key, or none."""


@dataclass
class Fleet:
    """The settings of the consumers' side of a world."""

    seed: int
    producing: Scenario
    store: StoreKind
    store_faults: dict[str, float]
    store_windows: list[tuple[float, float]]
    outages: list[tuple[float, float]]
    config: ConsumerConfig
    start: str
    """``TRIM_HORIZON``, ``LATEST`` or ``AT_TIMESTAMP``."""
    start_back: float
    """For AT_TIMESTAMP: how long after the beginning of the world."""
    user: UserPlan
    workers: list[WorkerPlan]
    read_faults: dict[str, float]
    read_windows: list[tuple[float, float]]
    listing_faults: dict[str, float]
    summary_faults: dict[str, float]
    iterator_life: float
    empty_page_chance: float
    update_delay: float
    retention: float | None
    """The retention in seconds. ``None``: the service's day, in which nothing is trimmed."""
    retention_changes: list[tuple[float, float]]
    """When an operator changes the retention, and to which value."""
    recreated_at: float | None
    missing_for: float
    """How long the stream is missing between its deletion and its re-creation."""
    repaired_at: float
    """From when on the user's code can handle every record."""
    slice_records: int
    """The number of records after which a slice of a page is complete."""
    delete_after: int
    to_wire: float
    """How long an operation may wait inside the worker before it is sent."""
    shuffles: bool
    """Whether the operations that waited during a pause come in any order."""
    duration: float
    dies_beginning: float | None = None
    """At LATEST: for how long a worker is gone that dies after it has created the group's first row."""
    commit_trouble: float = 0.0
    """How often a worker dies, or is paused beyond its lease, while a commit is in flight."""
    set_back: SetBack | None = None
    store_clocks: tuple[float, float] = (0.0, 0.0)
    """By how much the clock of a store that has one is off: at first, and after the store was set back. It is never
    ahead.
    """
    calm_at: float = 0.0
    push_faults: dict[str, float] = field(default_factory=dict)
    """How often a subscription meets each of ``PUSH_FAULTS`` when an event is about to be pushed."""
    subscription_life: float = 300.0
    others: list["Fleet"] = field(default_factory=list)
    """The other streams that every worker reads: the same fleet, with other producers and reshards."""

    @property
    def has_twins(self):
        """Whether two processes of the fleet have the same name."""
        names = [plan.name for plan in self.workers if plan.name is not None]
        return len(names) > len(set(names))

    @property
    def longest_lease(self):
        return max([self.config.lease_duration, *(plan.lease_duration or 0.0 for plan in self.workers)])

    @property
    def largest_drift(self):
        """The seconds by which a worker's clock deviates in a second, for the worst worker."""
        return max(abs(plan.drift) for plan in self.workers)

    def store_faulty_at(self, time):
        return any(start <= time < end for start, end in self.store_windows)

    def is_store_down(self, time):
        return any(start <= time < end for start, end in self.outages)

    def commit_trouble_at(self, time):
        return self.commit_trouble if time < self.duration else 0.0

    def reads_faulty_at(self, time):
        return any(start <= time < end for start, end in self.read_windows)


def draw_fleet(seed: int, *, polls_only: bool = False) -> Fleet:
    """Return the world of a seed. ``polls_only``: without subscriptions and ``concurrency``, as older seeds expect."""
    rng = Random(f"fleet {seed}")
    duration = rng.choice([6.0, 12.0, 20.0])
    lease = rng.choice([1.0, 2.0, 4.0])
    store = rng.choice(STORES)
    retention = rng.choice([3.0, 8.0]) if rng.random() < 0.12 else None
    recreated_at = rng.uniform(0.3, 0.8) * duration if retention is None and rng.random() < 0.08 else None
    missing_for = Random(f"missing {seed}").choice([1.0, 3.0, 8.0])
    fleet = Fleet(
        seed=seed,
        producing=_draw_producing(rng, seed, duration, recreated_at, missing_for),
        store=store,
        store_faults=_some(rng, STORE_FAULTS, rng.choice([0, 0, 1, 2, 3]), (0.03, 0.15, 0.5)),
        store_windows=_windows(rng, duration),
        outages=_outages(rng, duration, lease),
        config=_draw_config(rng, store, lease, recreated_at),
        start=rng.choice(["TRIM_HORIZON"] * 4 + ["LATEST", "AT_TIMESTAMP"]),
        start_back=rng.choice([0.0, 1.0, duration / 2]),
        user=_draw_user(rng, lease),
        workers=_draw_workers(rng, duration, lease),
        read_faults=_some(rng, READ_FAULTS, rng.choice([0, 0, 1, 2]), (0.05, 0.3, 0.8)),
        read_windows=_windows(rng, duration),
        listing_faults=_some(rng, LISTING_FAULTS, rng.choice([0, 0, 0, 1, 2]), (0.2, 0.6)),
        summary_faults=_some(rng, SUMMARY_FAULTS, rng.choice([0, 0, 0, 1]), (0.3, 1.0)),
        iterator_life=rng.choice([300.0, 300.0, 1.5]),
        empty_page_chance=rng.choice([0.0, 0.0, 0.3]),
        update_delay=rng.choice([0.0, 0.0, 0.5]),
        retention=retention,
        retention_changes=_draw_retention_changes(Random(f"retention {seed}"), retention, duration),
        recreated_at=recreated_at,
        missing_for=missing_for,
        repaired_at=duration * rng.choice([0.0, 0.5, 1.0]),
        slice_records=Random(f"slice {seed}").choice([10_000, 1, 4]),
        delete_after=rng.choice([30, 30, 6]),
        to_wire=rng.choice([0.0, 0.0, 0.02]),
        shuffles=rng.random() < 0.5,
        duration=duration,
    )
    if fleet.start == "LATEST" and fleet.recreated_at is None:
        _stress_beginning(Random(f"beginning {seed}"), fleet)
        _die_beginning(Random(f"dies beginning {seed}"), fleet)
    _draw_identities(Random(f"identities {seed}"), fleet)
    _draw_durations(Random(f"durations {seed}"), fleet, lease)
    _draw_set_back(Random(f"set back {seed}"), fleet)
    _draw_takers(Random(f"takers {seed}"), fleet)
    _draw_callbacks(Random(f"callbacks {seed}"), fleet)
    _draw_control(Random(f"control {seed}"), fleet)
    if not polls_only:
        _draw_readers(Random(f"readers {seed}"), fleet)
        _draw_lanes(Random(f"lanes {seed}"), fleet)
        _draw_dedup(Random(f"dedup {seed}"), fleet)
        _draw_processes(Random(f"processes {seed}"), fleet)
        _draw_keeping(Random(f"keeping {seed}"), fleet)
        fleet.user.limits = Random(f"limits {seed}").random() < 0.15
        _draw_assignment(Random(f"assignment {seed}"), fleet)
        _draw_streams(Random(f"streams {seed}"), fleet)
    ends = [at + length for plan in fleet.workers for at, _, length in plan.trouble]
    ends += [plan.starts_at for plan in fleet.workers] + [end for _, end in fleet.outages]
    ends += [load.puts[-1][0] for one in (fleet, *fleet.others) for load in one.producing.loads]
    ends += [at for at, _ in fleet.retention_changes]
    fleet.calm_at = max(duration, fleet.repaired_at, *ends) + (
        1.5 * fleet.longest_lease if fleet.commit_trouble else 0.0
    )
    fleet.others = [replace(fleet, seed=one.seed, producing=one.producing) for one in fleet.others]
    return fleet


def _draw_streams(rng, fleet):
    """Let the workers read two or three streams, in worlds that share by number and keep all records."""
    is_plain = fleet.retention is None and fleet.recreated_at is None and fleet.config.assign_by == "count"
    if rng.random() > 0.2 or not is_plain:
        return
    for number in range(rng.choice([1, 1, 2])):
        seed = f"{fleet.seed} stream {number}"
        producing = _draw_producing(rng, seed, fleet.duration, None, 0.0)
        fleet.others.append(replace(fleet, seed=seed, producing=producing, others=[]))


def _stress_beginning(rng, fleet):
    """Reshard, and let the store fail, while the group begins. At LATEST, it matters which worker begins the group, and
    with which shards.
    """
    if rng.random() < 0.5:
        reshards = fleet.producing.reshards
        fleet.producing.reshards = sorted([*reshards, (rng.uniform(0.02, 3.0), "split")])
        fleet.store_faults = fleet.store_faults | {rng.choice(["broken", "lost", "unsent"]): 0.5}
        fleet.store_windows = [(0.0, 4.0)]


def _die_beginning(rng, fleet):
    """Let the worker that begins the group die after its first row, so that later workers create the rows of the other
    shards.
    """
    if rng.random() < 0.4 and fleet.producing.shards > 1:
        fleet.dies_beginning = rng.uniform(1.0, 4.0)
        fleet.to_wire = 0.02
        for plan in fleet.workers[1:]:
            plan.starts_at = max(plan.starts_at, rng.uniform(1.0, 4.0))


def _draw_readers(rng, fleet):
    """Let workers poll, subscribe, or do both in one group. Deleting the stream also deletes its registered consumers."""
    kind = rng.choice(["polling", "polling", "fan-out", "both"])
    if fleet.recreated_at is not None or kind == "polling":
        return
    for plan in fleet.workers:
        plan.fan_out = kind == "fan-out" or rng.random() < 0.5
    fleet.push_faults = _some(rng, PUSH_FAULTS, rng.choice([0, 1, 2, 3]), (0.02, 0.1, 0.3))
    fleet.subscription_life = rng.choice([300.0, 2.5, 6.0])


def _draw_retention_changes(rng, retention, duration):
    """Let an operator shorten the retention while readers lag, raise it, or both."""
    if retention is None or rng.random() < 0.3:
        return []
    moments = sorted(rng.uniform(0.1, 1.0) * duration for _ in range(rng.choice([1, 1, 2, 3])))
    return [(moment, rng.choice([1.5, 3.0, 8.0, 30.0])) for moment in moments]


def _draw_identities(rng, fleet):
    """Let workers keep their names when they are restarted, and let some share a name."""
    if rng.random() < 0.25:
        for number, plan in enumerate(fleet.workers):
            plan.name = f"worker-{number}"
        if len(fleet.workers) > 1 and rng.random() < 0.5:
            fleet.workers[1].name = fleet.workers[0].name


def _draw_keeping(rng, fleet):
    """Let workers that close cleanly keep their leases for their restart."""
    if rng.random() < (0.6 if fleet.workers[0].name is not None else 0.08):
        fleet.config = replace(fleet.config, keep_leases=True)
        for number, plan in enumerate(fleet.workers):
            plan.name = plan.name or f"worker-{number}"
            if rng.random() < 0.3:
                plan.trouble = sorted([*plan.trouble, (rng.uniform(plan.starts_at, fleet.duration), "close", 0.0)])


def _draw_assignment(rng, fleet):
    """Let the group share its shards by load. Slow handlers make the loads differ, and noisy."""
    if rng.random() < 0.25:
        fleet.config = replace(fleet.config, assign_by="load")
        if rng.random() < 0.5:
            fleet.user.duration = rng.choice([(0.0, 0.2), (0.01, 0.1)])


def _draw_durations(rng, fleet, lease):
    """Give workers different lease durations, as during a roll-out that changes the setting."""
    if rng.random() < 0.2:
        for plan in fleet.workers:
            plan.lease_duration = max(1.0, lease * rng.choice([0.5, 1.0, 3.0]))


def _draw_set_back(rng, fleet):
    """Set the store back, in worlds where nothing else makes rows disappear: no start at LATEST, no retention, no
    re-created stream.
    """
    if rng.random() > 0.15 or fleet.start == "LATEST" or fleet.retention or fleet.recreated_at is not None:
        return
    at = rng.uniform(0.3, 1.0) * fleet.duration
    to = rng.choice([None, max(0.1, at - rng.choice([0.5, 2.0, 5.0]))])
    fleet.set_back = SetBack(at, at + rng.uniform(1.5, 3.0), to)
    fleet.outages = [*fleet.outages, (at, fleet.set_back.until)]
    fleet.store_clocks = (rng.choice([0.0, -0.5]), rng.choice([0.0, -3_600.0]))


def _draw_callbacks(rng, fleet):
    """Draw which lifecycle callbacks the user has."""
    if rng.random() < 0.4:
        kinds = ("ASSIGNED", "SHARD_END", "REVOKED")
        some = tuple(kind for kind in kinds if rng.random() < 0.6)
        fleet.user.callbacks = rng.choice([kinds, some])
        fleet.user.callback_fail_chance = rng.choice([0.0, 0.0, 0.02])


def _draw_control(rng, fleet):
    """Draw how the user controls its consumer. Seeks are left out where they would blur what else is checked: which
    records retention removed, where a group at LATEST begins, and which lease a callback is for.
    """
    if rng.random() < 0.35:
        blurs = fleet.retention or fleet.recreated_at is not None or fleet.start == "LATEST" or fleet.user.callbacks
        kinds = ("commit", "pause", "resume", "resume") if blurs else ("commit", "pause", "resume", "resume", "seek")
        fleet.user.filters = rng.random() < 0.4
        fleet.user.control = rng.choice([kinds, ("commit",), ("pause", "resume"), kinds[-1:] + kinds[:1]])


def _draw_takers(rng, fleet):
    """Draw how the user's code gets its records, in addition to ``_draw_user``."""
    user = fleet.user
    user.mixes = rng.random() < 0.4
    user.one_at_a_time = user.one_at_a_time and rng.random() < 0.8
    user.max_wait = rng.choice([0.0, 0.05, 1.0])
    user.threaded = user.threaded or rng.random() < 0.3
    user.shield_chance = rng.choice([0.0, 0.5, 1.0])
    user.slow_chance = max(user.slow_chance, rng.choice([0.0, 0.0, 0.1]))
    user.slow = (user.slow[0], user.slow[1] * rng.choice([1.0, 1.0, 4.0]))
    user.fail_chance = max(user.fail_chance, rng.choice([0.0, 0.0, 0.3]))
    user.sink_fail_chance = max(user.sink_fail_chance, rng.choice([0.0, 0.0, 0.3]))
    user.interrupt_chance = rng.choice([0.0, 0.0, 0.02, 0.2])
    user.replace_chance = rng.choice([0.0, 0.0, 0.02, 0.2])
    user.through_chance = rng.choice([0.0, 0.2, 0.5])
    user.to_host = rng.choice([0.0, 0.0, 0.02])
    user.closing_time = rng.choice([0.0, 0.3, 2.0]) * fleet.config.lease_duration
    fleet.config = replace(fleet.config, max_unacknowledged=rng.choice([100_000, 100_000, 20]))
    for plan in fleet.workers:
        plan.until_latest = rng.random() < 0.1
        plan.idle_timeout = rng.choice([0.2, 2.0]) if rng.random() < 0.15 else None
    if rng.random() < 0.3 and fleet.start != "LATEST":
        fleet.commit_trouble = rng.choice([0.02, 0.1])
        fleet.to_wire = 0.02


def _draw_lanes(rng, fleet):
    """Let the handlers of a run work side by side, in order by key, or in no order."""
    user = fleet.user
    if rng.random() < 0.5:
        return
    user.concurrency = rng.choice([1, 2, 5, 64])
    user.order = rng.choice(["key", "key", "key", "none", "shard"])
    user.one_at_a_time = user.one_at_a_time and user.mixes
    if user.order != "shard":
        ahead = rng.choice([100_000, 100_000, 20, 3])
        fleet.config = replace(fleet.config, ack="auto", max_unacknowledged=ahead)
    if rng.random() < 0.6:
        user.duration = rng.choice([(0.01, 0.1), (0.0, 0.5)])


def _draw_dedup(rng, fleet):
    """Let producers stamp their records, and consumers drop copies. Lost answers make copies."""
    if rng.random() < 0.5:
        return
    fleet.config = replace(fleet.config, dedup=rng.random() < 0.85)
    for load in fleet.producing.loads:
        load.config = replace(load.config, dedup=load.config.aggregation is not False and rng.random() < 0.9)
    if rng.random() < 0.6:
        faults = fleet.producing.faults
        fleet.producing.faults = {"lost-answer": rng.choice([0.2, 0.5]), **faults}
        fleet.producing.fault_windows = [*fleet.producing.fault_windows, (0.0, rng.choice([2.0, fleet.duration]))]


def _draw_processes(rng, fleet):
    """Let the handlers of a run work in processes."""
    user = fleet.user
    if user.concurrency is not None and rng.random() < 0.35:
        user.processes = rng.choice([0.3, 2.0])
        user.die_chance = rng.choice([0.0, 0.02, 0.2])
        user.threaded = False
        fleet.config = replace(fleet.config, ack="auto")


def _some(rng, kinds, count, chances):
    return {kind: rng.choice(chances) for kind in rng.sample(sorted(kinds), count)}


def _windows(rng, duration):
    if rng.random() < 0.4:
        return [(0.0, duration)]
    starts = [rng.uniform(0, duration) for _ in range(2)]
    return [(start, min(duration, start + rng.uniform(0.3, duration / 2))) for start in starts]


def _outages(rng, duration, lease):
    if rng.random() < 0.75:
        return []
    start = rng.uniform(0.2, duration)
    return [(start, start + lease * rng.choice([0.3, 0.9, 1.5, 3.0]))]


# ---- the fleet


def _draw_config(rng, store, lease, recreated_at):
    return ConsumerConfig(
        lease_duration=lease,
        checkpoint_interval=rng.choice([None, 0.0, 0.3, 1.0]),
        scan_interval=rng.choice([None, None, 0.2]) if store.scan_interval < 1 else rng.choice([None, 0.5]),
        hand_over_timeout=rng.choice([0.0, 0.5, 3.0]),
        list_interval=rng.choice([3.0, 10.0, 60.0]),
        prefetch_max_bytes=rng.choice([64 * 1024, 1 << 26, 1 << 26]),
        page_max_records=rng.choice([3, 20, 10_000]),
        idle_poll_interval=rng.choice([0.5, 1.0]),
        ack="manual" if rng.random() < 0.3 else "auto",
        out_of_range="drop" if rng.random() < 0.3 else "deliver",
        if_recreated="stop" if recreated_at is None or rng.random() < 0.3 else "restart",
    )


def _draw_user(rng, lease):
    finally_ = "stop" if rng.random() < 0.3 else "dead-letter"
    return UserPlan(
        batch=rng.choice([None, None, 2, 7, 100]),
        one_at_a_time=rng.random() < 0.3,
        threaded=rng.random() < 0.3,
        duration=rng.choice([(0.0, 0.0), (0.0, 0.01), (0.01, 0.1)]),
        slow_chance=rng.choice([0.0, 0.0, 0.02, 0.1]),
        slow=(0.5 * lease, rng.choice([1.0, 2.5]) * lease),
        fail_chance=rng.choice([0.0, 0.0, 0.05]),
        policy=FailurePolicy(
            attempts=rng.choice([1, 2, 4]),
            backoff=0.05,
            backoff_max=rng.choice([0.1, 1.0]),
            bisect=rng.random() < 0.8,
            finally_=finally_,
        ),
        sink_fail_chance=rng.choice([0.0, 0.0, 0.3]),
        ack_delay=rng.choice([(0.0, 0.0), (0.0, 0.3), (0.0, 2.0)]),
        forget_chance=rng.choice([0.0, 0.0, 0.02]),
    )


def _draw_workers(rng, duration, lease):
    count = rng.choice([1, 2, 2, 3, 4, 5])
    together = rng.random() < 0.5
    drift = rng.choice([0.0, 0.0, 1e-5, 3e-4])
    plans = []
    for number in range(count):
        starts_at = 0.0 if together or number == 0 else rng.uniform(0, duration * 0.7)
        plan = WorkerPlan(
            starts_at=starts_at,
            drift=rng.choice([0.0, drift, -drift]),
            wall_skew=rng.choice([0.0, 0.0, 0.4, -3_600.0, 3_600.0]),
            max_leases=rng.choice([None] * 9 + [1, 3]),
        )
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            kind = rng.choice(["crash", "crash", "close", "pause", "pause"])
            length = lease * rng.choice([0.3, 0.9, 1.3, 2.5]) if kind == "pause" else rng.uniform(0.05, 2 * lease)
            plan.trouble.append((rng.uniform(starts_at, duration), kind, length))
        plan.trouble.sort()
        plans.append(plan)
    if all(plan.max_leases is not None for plan in plans):
        plans[0].max_leases = None  # a worker has to read the remaining records
    return plans


# ---- the producers


def _draw_producing(rng, seed, duration, recreated_at, missing_for):
    """Draw the producers' part of the world, in the form that ``producer_world.Shell`` and the producers' oracles
    expect.
    """
    moments = [rng.uniform(0, duration) for _ in range(rng.choice([0, 0, 1, 2, 4, 6]))]
    if recreated_at is not None:
        moments = [moment for moment in moments if moment < recreated_at - 1.0]
    kinds = ["split", "split", "merge", "merge", "double", "halve", "update"]
    scenario = Scenario(
        seed=seed,
        shards=rng.choice([1, 1, 2, 3, 5]),
        on_demand=False,
        auto_at_first=False,
        record_rate=rng.choice([20.0, 1000.0, 1000.0, 1000.0]),
        byte_rate=1024.0 * 1024,
        latency=rng.choice([(0.0, 0.0), (0.001, 0.01), (0.01, 0.1)]),
        slow_chance=rng.choice([0.0, 0.0, 0.02]),
        page_size=rng.choice([1000, 1000, 2]),
        duration=duration,
        faults=_some(rng, _PUT_FAULTS, rng.choice([0, 0, 1, 2]), (0.02, 0.2, 0.5)),
        listing_faults={},
        summary_faults={},
        fault_windows=_windows(rng, duration),
        reshards=sorted((moment, rng.choice(kinds)) for moment in moments),
        toggles=[],
    )
    lasts = [(0.0, duration)]
    if recreated_at is not None:
        back_at = recreated_at + missing_for + 1.0
        lasts = [(0.0, recreated_at - 0.5), (back_at, back_at + duration / 2)]
    elif rng.random() < 0.3:
        lasts = lasts * 2
    scenario.loads = [_draw_load(rng, number, *last) for number, last in enumerate(lasts)]
    if Random(f"headers {seed}").random() < 0.4:
        draw_headers(Random(f"which headers {seed}"), scenario)
    return scenario


def _draw_load(rng, number, begin, end):
    kind = rng.choice(["keyed", "keyed", "keyless", "ordered", "ordered"])
    count = rng.choice([5, 30, 80, 150])
    unhandled = rng.choice([0.0, 0.0, 0.0, 0.02, 0.1])
    poison = rng.choice([0.0, 0.0, 0.0, 0.02])
    framed = rng.choice([0.0, 0.0, 0.05])
    puts = []
    for place, moment in enumerate(_moments(rng, begin, end, count)):
        key = None
        if kind != "keyless":
            key = f"{number}-key-{rng.randint(0, rng.choice([2, 9]))}"
        data = b"%d.%d:" % (number, place) + bytes(rng.choice([0, 3, 40]))
        data += UNHANDLED if rng.random() < unhandled else b""
        data += POISON if rng.random() < poison else b""
        if rng.random() < framed:
            data = encode_aggregate(["inside"], [data], {})
        puts.append((moment, key, None, data))
    config = ProducerConfig(
        linger=rng.choice([0.0, 0.02, 0.1, 0.3]),
        record_ttl=rng.choice([2.0, 8.0, 8.0]),
        aggregation=rng.random() < 0.8,
        aggregate_max_bytes=rng.choice([200, 1_000, 51_200]),
        request_max_entries=rng.choice([2, 500, 500]),
        max_in_flight=rng.choice([1, 24]),
        ordered=kind == "ordered",
        retry_backoff=rng.choice([0.02, 0.1]),
        retry_backoff_max=1.0,
    )
    return Load(config, puts, flushes=[], spurious=[], abandoned_at=None, waits=True)


def _moments(rng, begin, end, count):
    """Draw the times of puts: evenly spread, or in bursts at equal times."""
    if rng.random() < 0.6:
        return sorted(rng.uniform(begin, end) for _ in range(count))
    bursts = [rng.uniform(begin, end) for _ in range(rng.randint(1, 5))]
    return sorted(rng.choice(bursts) for _ in range(count))
