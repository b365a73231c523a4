"""Draws one simulated world of a producer from its seed: parameters, load, faults, reshards.

Swarm testing: a seed leaves out most kinds of faults, and uses few values of each setting, so that rare combinations
occur and no fault hides the others.
"""

from dataclasses import dataclass, field, replace
from random import Random

from shardline.codec.aggregation import MAGIC, encode_aggregate
from shardline.core.clock import NEVER
from shardline.core.producer.producer_config import ProducerConfig
from shardline.model.hashing import HASH_KEY_MAX

POISON = b"<poison>"

# Responses to whole requests: code, HTTP status, and whether the service carried out the request before ("no", "yes",
# "either").
REQUEST_ERRORS = {
    "throttled": ("ProvisionedThroughputExceededException", 400, "no"),
    "slow-down": ("ThrottlingException", 400, "no"),
    "internal": ("InternalFailure", 500, "either"),
    "unavailable": ("ServiceUnavailable", 503, "either"),
    "expired-token": ("ExpiredTokenException", 400, "no"),
    "skew": ("RequestTimeTooSkewed", 403, "no"),
    "in-use": ("ResourceInUseException", 400, "no"),
    "limit": ("LimitExceededException", 400, "no"),
    "invalid": ("InvalidArgumentException", 400, "no"),
    "denied": ("AccessDeniedException", 400, "no"),
    "kms": ("KMSDisabledException", 400, "no"),
    "not-found": ("ResourceNotFoundException", 400, "no"),
}
TRANSPORT_ERRORS = {
    "refused": ("ConnectError", False, "no"),  # code, maybe received, whether the service carried out the request
    "reset": ("ConnectionReset", True, "no"),
    "lost-answer": ("ConnectionReset", True, "yes"),
    "timeout": ("ReadTimeout", True, "either"),
}
ENTRY_FAULTS = ("entry-throttle", "entry-internal", "entry-kms", "wrong-count")
DUPLICATING = {"internal", "unavailable", "lost-answer", "timeout", "reset", "wrong-count"}
"""Faults after which a request that was carried out is sent again."""
FATAL = {"denied", "kms", "not-found", "invalid", "entry-kms"}
LISTING_FAULTS = ("fails", "denied", "slow", "stale", "gap", "broken")
SUMMARY_FAULTS = ("fails", "denied", "slow", "stale")


@dataclass
class Load:
    """One producer: its settings and its records."""

    config: ProducerConfig
    puts: list[tuple[float, str | None, str | None, bytes]]
    """Time, key, explicit hash key and data of each put."""
    flushes: list[float]
    spurious: list[float]
    """When the shell wakes up for no reason."""
    abandoned_at: float | None
    waits: bool
    """Whether a caller waits for each record."""
    interrupts: float = 0.0
    """How often a put is interrupted half-way, as by Ctrl-C."""
    own_ttls: dict[bytes, float] = field(default_factory=dict)
    """The TTLs of the records that have their own, by their data."""
    changes: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """When the application changes settings of the running producer, and to which values."""
    headers: dict[bytes, dict[str, str]] = field(default_factory=dict)
    """The headers of the records that have any, by their data."""


@dataclass
class Blackout:
    """A time, or forever, in which no listing newer than the first map is available."""

    kind: str
    """``denied`` or ``fails``; or ``stale``: the listing does not change after the blackout begins."""
    start: float
    end: float


@dataclass
class Scenario:
    seed: int
    shards: int
    on_demand: bool
    auto_at_first: bool
    record_rate: float
    byte_rate: float
    latency: tuple[float, float]
    slow_chance: float
    page_size: int
    duration: float
    faults: dict[str, float]
    listing_faults: dict[str, float]
    summary_faults: dict[str, float]
    fault_windows: list[tuple[float, float]]
    reshards: list[tuple[float, str]]
    toggles: list[float]
    """When AUTO record distribution is switched on or off."""
    channels_at_first: int = 0
    channel_toggles: list[float] = field(default_factory=list)
    """When channels are created, or deleted if there are any."""
    wants_order: bool = False
    blackout: Blackout | None = None
    recreated: tuple[float, float, int] | None = None
    """When the stream is deleted, when it is created again, and with how many shards."""
    lists_closed: bool = False
    """Whether listings have the closed shards, too, as on servers that ignore the filter."""
    naming: str = "none"
    """Which invalid entries the service names: "none", "one", or "ten" at most."""
    packing: str | None = None
    """The format in which all producers pack."""
    steady_poison: float = 0.0
    """The share of invalid records, in a world without other trouble."""
    loads: list[Load] = field(default_factory=list)

    def faulty_at(self, time: float) -> bool:
        return any(start <= time < end for start, end in self.fault_windows)


def draw_scenario(seed: int) -> Scenario:
    rng = Random(f"scenario {seed}")
    on_demand = rng.random() < 0.25
    duration = rng.choice([1.0, 3.0, 8.0])
    windows = [(0.0, duration * 3)] if rng.random() < 0.3 else []
    if not windows:
        windows = [_window(rng, duration) for _ in range(rng.randint(1, 3))]
    kinds = [*REQUEST_ERRORS, *TRANSPORT_ERRORS, *ENTRY_FAULTS]
    faults = _some(rng, kinds, rng.choice([0, 0, 1, 2, 4]), (0.02, 0.1, 0.3, 0.9))
    for fatal in FATAL & faults.keys():
        faults[fatal] = min(faults[fatal], 0.1)
    scenario = Scenario(
        seed=seed,
        shards=rng.choice([1, 1, 2, 3, 5, 20]),
        on_demand=on_demand,
        auto_at_first=on_demand and rng.random() < 0.25,
        record_rate=rng.choice([3.0, 20.0, 1000.0, 1000.0]),
        byte_rate=rng.choice([2_000.0, 1024.0 * 1024, 1024.0 * 1024]),
        latency=rng.choice([(0.0, 0.0), (0.001, 0.01), (0.01, 0.2), (0.2, 1.0)]),
        slow_chance=rng.choice([0.0, 0.0, 0.05]),
        page_size=rng.choice([1000, 1000, 2]),
        duration=duration,
        faults=faults,
        listing_faults=_some(rng, LISTING_FAULTS, rng.choice([0, 0, 0, 1, 2]), (0.2, 0.6)),
        summary_faults=_some(rng, SUMMARY_FAULTS, rng.choice([0, 0, 0, 1, 2]), (0.3, 0.9)),
        fault_windows=windows,
        reshards=sorted(
            (rng.uniform(0, duration), rng.choice(["split", "split", "merge", "double", "halve"]))
            for _ in range(rng.choice([0, 0, 1, 2, 4]))
        ),
        toggles=sorted(rng.uniform(0, duration) for _ in range(rng.choice([0, 1, 2, 3]))) if on_demand else [],
    )
    if rng.random() < 0.3 and not on_demand:
        _stress_order(rng, scenario)
    scenario.loads = [_draw_load(rng, scenario, number) for number in range(rng.choice([1, 1, 1, 2]))]
    if Random(f"unhurried {seed}").random() < 0.15:
        _be_patient(scenario)
    _draw_listing_trouble(Random(f"blackout {seed}"), scenario)
    _draw_second_life(Random(f"second life {seed}"), scenario)
    if Random(f"interrupts {seed}").random() < 0.2:
        for load in scenario.loads:
            load.interrupts = Random(f"how often {seed}").choice([0.03, 0.3])
    scenario.naming = Random(f"naming {seed}").choice(["none", "none", "one", "ten"])
    if Random(f"packing {seed}").random() < 0.25:
        _pack(Random(f"which packing {seed}"), scenario)
    if Random(f"steady poison {seed}").random() < 0.04:
        _poison_steadily(Random(f"how much poison {seed}"), scenario)
    elif Random(f"own TTLs {seed}").random() < 0.3:
        _draw_own_ttls(Random(f"which TTLs {seed}"), scenario)
    if Random(f"headers {seed}").random() < 0.4:
        draw_headers(Random(f"which headers {seed}"), scenario)
    if not scenario.steady_poison and Random(f"changes {seed}").random() < 0.2:
        _draw_changes(Random(f"which changes {seed}"), scenario)
    if scenario.on_demand and Random(f"channels {seed}").random() < 0.4:
        _draw_channels(Random(f"which channels {seed}"), scenario)
    if Random(f"dedup {seed}").random() < 0.4:
        for load in scenario.loads:
            if load.config.headers_refusal is None:
                load.config = replace(load.config, dedup=True)
    return scenario


def draw_headers(rng, scenario):
    """Some records, or all, have headers; some of them the same ones."""
    share = rng.choice([0.1, 0.5, 1.0])
    sizes = rng.choice([(0, 20), (100, 140), (0, 2_100)])
    for load in scenario.loads:
        if not load.config.aggregation or load.config.packing is not None:
            continue
        common = {"traceparent": f"00-{rng.getrandbits(128):032x}"}
        for *_, data in load.puts:
            if rng.random() < share:
                own = {"name": "v" * rng.randint(*sizes), "empty": ""}
                load.headers[data] = rng.choice([common, own, common | own])


def _draw_channels(rng, scenario):
    scenario.channels_at_first = rng.choice([0, 1, 2])
    scenario.channel_toggles = sorted(rng.uniform(0, scenario.duration) for _ in range(rng.choice([0, 0, 1, 2])))
    for load in scenario.loads:
        if load.config.aggregation and rng.random() < 0.2:
            load.config = replace(load.config, aggregation="force")


def _pack(rng, scenario):
    """Let all producers pack, so that readers know the format. The payloads are not JSON."""
    scenario.packing = rng.choice(["netstrings", "length-prefixed"])
    for load in scenario.loads:
        load.config = replace(load.config, packing=scenario.packing, aggregation=True)


def _draw_own_ttls(rng, scenario):
    """Give some records, or all, a TTL of their own."""
    share = rng.choice([0.1, 0.5, 1.0])
    for load in scenario.loads:
        linger, record_ttl = load.config.linger, load.config.record_ttl
        ttls = [linger + 0.01, linger + 0.3, linger + 1.5, record_ttl + 0.5, record_ttl * 3]
        ttls = rng.sample(ttls, rng.randint(1, 3))
        load.own_ttls = {put[3]: rng.choice(ttls) for put in load.puts if rng.random() < share}


def _draw_changes(rng, scenario):
    """Let the application change settings: ``linger`` up to almost the shortest TTL, and rates that are far apart."""
    for load in scenario.loads:
        config = load.config
        longest = min([config.record_ttl, *load.own_ttls.values()])
        for _ in range(rng.randint(1, 4)):
            linger = rng.choice([0.0, 0.02, 0.3, 1.0]) * rng.choice([0.1, 1.0])
            kinds = {
                "linger": min(linger, 0.9 * longest),
                "records_per_second": config.records_per_second * rng.choice([0.5, 1.0, 3.0]),
                "bytes_per_second": config.bytes_per_second * rng.choice([0.5, 1.0, 3.0]),
            }
            names = rng.sample(sorted(kinds), rng.randint(1, 3))
            load.changes.append((rng.uniform(0, scenario.duration), {name: kinds[name] for name in names}))


def _poison_steadily(rng, scenario):
    """Draw a healthy world in which a share of the records is invalid: a small share all the time, or all of them."""
    scenario.shards, scenario.on_demand, scenario.auto_at_first = rng.choice([1, 3, 8]), False, False
    scenario.record_rate, scenario.byte_rate = 1000.0, 1024.0 * 1024
    scenario.latency, scenario.slow_chance, scenario.duration = (0.01, 0.03), 0.0, 2.0
    scenario.faults, scenario.listing_faults, scenario.summary_faults = {}, {}, {}
    scenario.reshards, scenario.toggles, scenario.wants_order = [], [], False
    scenario.blackout, scenario.lists_closed, scenario.recreated, scenario.packing = None, False, None, None
    share = scenario.steady_poison = rng.choice([0.005, 0.01, 0.02, 1.0])
    config = ProducerConfig(
        linger=rng.choice([0.0, 0.1]),
        record_ttl=rng.choice([2.0, 5.0]),
        aggregation=rng.random() < 0.5,
        request_max_entries=rng.choice([50, 500]),
        max_in_flight=rng.choice([24, 100]),
        isolation_calls_per_second=rng.choice([20, 100]) if share == 1.0 else 100,
        ordered=share < 0.01 and rng.random() < 0.3,
    )
    if (
        config.ordered
    ):  # one aggregate per shard and round trip: without larger batches this is too slow for 500 records a second
        config = replace(config, linger=0.1)
    count = rng.choice([200, 1_000])
    puts = []
    for place in range(count):
        data = b"%d:" % place + (POISON if rng.random() < share else b"")
        puts.append((scenario.duration * place / count, f"key {rng.getrandbits(32):x}", None, data))
    scenario.loads = [Load(config=config, puts=puts, flushes=[], spurious=[], abandoned_at=None, waits=True)]


def _be_patient(scenario):
    """Draw a world in which all trouble passes, and every record outlives it."""
    scenario.faults = {kind: chance for kind, chance in scenario.faults.items() if kind not in FATAL}
    scenario.listing_faults.pop("denied", None)
    for load in scenario.loads:
        load.config = replace(load.config, record_ttl=3_600.0, fail_if_throttled=False, max_attempts=None)
        load.abandoned_at, load.waits = None, True


def _draw_listing_trouble(rng, scenario):
    """Change the shards without showing it in the listing, or list more than was requested."""
    scenario.lists_closed = rng.random() < 0.15
    if rng.random() < 0.1:
        scenario.faults["odd-shard"] = rng.choice([0.02, 0.1, 0.4])
    if rng.random() >= 0.2 or scenario.on_demand:
        return
    duration = scenario.duration
    start = rng.uniform(0, duration / 2)
    end = rng.choice([NEVER, NEVER, start + rng.uniform(1.0, 3 * duration)])
    scenario.blackout = Blackout(rng.choice(["denied", "fails", "stale", "stale"]), start, end)
    moments = [rng.uniform(start, duration) for _ in range(rng.choice([1, 1, 2, 4]))]
    kinds = ["split", "split", "merge", "double", "halve"]
    scenario.reshards = sorted([*scenario.reshards, *((moment, rng.choice(kinds)) for moment in moments)])
    if rng.random() < 0.7:
        _be_patient(scenario)


def _draw_second_life(rng, scenario):
    """Delete the stream and re-create it with other shards, often so fast that no request is refused meanwhile."""
    if rng.random() >= 0.15 or scenario.on_demand or scenario.blackout is not None:
        return
    second = rng.randint(1, max(1, int(scenario.duration) - 1))
    deleted_at = second + rng.uniform(0.0, 0.9)
    # The starting number of a shard shows the second of its creation. No shard of the first life may be created in the
    # same second as those of the second life.
    scenario.reshards = [one for one in scenario.reshards if int(one[0]) != second]
    gap = rng.choice([0.0, 0.0, 0.1, 2.0])
    shards = rng.choice([count for count in (1, 2, 3, 5, 8) if count != scenario.shards])
    scenario.recreated = (deleted_at, deleted_at + gap, shards)
    scenario.listing_faults.pop("stale", None)
    scenario.summary_faults.pop("stale", None)


def _stress_order(rng, scenario):
    """Draw a world in which order is hard to keep: few hot keys, and all shards change while requests are in flight."""
    scenario.wants_order = True
    scenario.shards = rng.choice([2, 4])
    scenario.latency = rng.choice([(0.01, 0.2), (0.1, 0.6)])
    scenario.record_rate, scenario.byte_rate = 1000.0, 1024.0 * 1024
    moments = [rng.uniform(0, scenario.duration) for _ in range(rng.randint(1, 5))]
    scenario.reshards = sorted((moment, rng.choice(["double", "halve", "halve", "merge"])) for moment in moments)
    mild = ["internal", "lost-answer", "refused", "entry-throttle", "entry-internal", "wrong-count"]
    scenario.faults = _some(rng, mild, rng.choice([1, 2]), (0.1, 0.4))
    scenario.fault_windows = [(0.0, scenario.duration)]


def _some(rng, kinds, count, chances):
    return {kind: rng.choice(chances) for kind in rng.sample(sorted(kinds), count)}


def _window(rng, duration):
    start = rng.uniform(0, duration)
    return start, start + rng.uniform(0.1, duration)


def _draw_config(rng, scenario):
    aggregate_max_bytes = rng.choice([64, 200, 1_000, 51_200, 51_200])
    linger = rng.choice([0.0, 0.005, 0.1, 0.1, 0.45])
    backoff = rng.choice([0.02, 0.1, 0.1])
    if scenario.wants_order:
        return ProducerConfig(
            linger=rng.choice([0.0, 0.005, 0.1]),
            record_ttl=30.0,
            aggregation=rng.random() < 0.8,
            aggregate_max_bytes=rng.choice([64, 200, 1_000]),
            aggregate_max_count=rng.choice([None, None, 4]),
            request_max_entries=rng.choice([1, 5, 500]),
            max_in_flight=rng.choice([1, 2, 24]),
            retry_backoff=rng.choice([0.02, 0.3]),
            ordered=True,
        )
    return ProducerConfig(
        linger=linger,
        record_ttl=rng.choice([0.5, 2.0, 5.0, 30.0]),
        aggregation=rng.random() < 0.8,
        aggregate_max_bytes=aggregate_max_bytes,
        aggregate_max_count=rng.choice([None, None, 1, 3, 10]),
        request_max_entries=rng.choice([1, 2, 5, 500, 500]),
        request_max_bytes=max(aggregate_max_bytes, rng.choice([1_024, 4_096, 1 << 20, 1 << 20])),
        shard_burst_bytes=rng.choice([300, 256 * 1024, 256 * 1024]),
        records_per_second=rng.choice([2.0, 10.0, 1000.0, 1000.0, 1e6]),
        bytes_per_second=rng.choice([1_000.0, 1024.0 * 1024, 1024.0 * 1024, 1e9]),
        max_in_flight=rng.choice([1, 2, 24]),
        buffer_max_bytes=rng.choice([1_024, 10_000, 1 << 26, 1 << 26]),
        buffer_max_records=rng.choice([3, 30, 100_000, 100_000]),
        ordered=rng.random() < 0.35 and not scenario.on_demand,
        fail_if_throttled=rng.random() < 0.15,
        max_attempts=rng.choice([None, None, None, None, 1, 3, 10]),
        retry_backoff=backoff,
        retry_backoff_max=rng.choice([0.5, 5.0]),
        closed_shard_ttl=rng.choice([0.0, 1.0, 60.0]),
    )


def _draw_load(rng, scenario, number):
    config = _draw_config(rng, scenario)
    count = rng.choice([1, 10, 60, 150])
    moments = _moments(rng, scenario.duration, count)
    sizes = rng.choice([(0, 20), (0, 20), (50, 300), (0, 3_000)])
    mixture = rng.choices(["hot", "random", "hash", "keyless", "unicode"], k=rng.randint(1, 3))
    poison = rng.choice([0.0, 0.0, 0.0, 0.02, 0.3])
    if scenario.wants_order:
        count, mixture, sizes, poison = rng.choice([60, 150]), ["hot"], (0, 40), rng.choice([0.0, 0.05, 0.15])
        mixture += Random(f"beside order {scenario.seed}").choice([[], ["keyless"]])
        moments = _moments(rng, scenario.duration, count)
    framed = rng.choice([0.0, 0.0, 0.1])
    puts = []
    for place, moment in enumerate(moments):
        key, hash_key = _draw_key(rng, rng.choice(mixture), number)
        data = b"%d.%d:" % (number, place) + bytes(rng.randint(*sizes))
        if rng.random() < poison:
            data += POISON
        if rng.random() < framed:
            data = encode_aggregate(["inside"], [data], {}) if rng.random() < 0.7 else MAGIC + data
        puts.append((moment, key, hash_key, data))
    later = scenario.duration
    return Load(
        config=config,
        puts=puts,
        flushes=[rng.uniform(0, later) for _ in range(rng.choice([0, 0, 2]))],
        spurious=[rng.uniform(0, later) for _ in range(rng.choice([0, 0, 20]))],
        abandoned_at=rng.uniform(0, later * 1.5) if rng.random() < 0.12 else None,
        waits=rng.random() < 0.7,
    )


def _moments(rng, duration, count):
    """Draw the times of puts: evenly spread, or in bursts at equal times."""
    if rng.random() < 0.5:
        return sorted(rng.uniform(0, duration) for _ in range(count))
    bursts = [rng.uniform(0, duration) for _ in range(rng.randint(1, 4))]
    return sorted(rng.choice(bursts) for _ in range(count))


def _draw_key(rng, kind, number):
    match kind:
        case "hot":
            return f"{number}-hot-{rng.randint(0, 5)}", None
        case "random":
            return f"{number}-{rng.getrandbits(32):x}", None
        case "hash":
            edge = rng.choice([0, HASH_KEY_MAX, HASH_KEY_MAX // 2, HASH_KEY_MAX // 2 + 1, rng.getrandbits(128)])
            return f"{number}-hash", str(edge)
        case "unicode":
            return f"{number}-\u00fc\u20ac{rng.randint(0, 9)}", None
        case _:
            return None, None
