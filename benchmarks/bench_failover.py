"""How long do the records of a shard wait when its worker dies, stops or is replaced?

The benchmark uses real processes (failover_fleet.py): two workers over one SQLite file, 8 shards of the embedded
server, 200 records per second. It measures, in turn, on the same fleet, several times each:

- kill -9 of a worker: from the kill until another worker has handled a record of each of its shards;
- a new worker joins: from the start of its consumer to its first record; the same from the start of its process, which
  is mostly the start of the interpreter; and the longest pause of any shard while the shards are rebalanced;
- SIGTERM: like kill -9, but the worker closes its consumer;
- SIGSTOP for longer than the lease: like kill -9; after SIGCONT the worker rejoins.

Times are wall-clock times, and mostly follow from the configuration. This is how long a dead worker's shard may wait:
the last renewal was before the kill. The others see that renewal at their next scan at the latest, and count the lease
duration from then. They notice at another scan that the lease has expired. The rest, a write for each lease, an
iterator and the first page, has one second:

    lease_duration + 2 x scan_interval + 1 s

A worker that gets SIGTERM releases its leases, and the others take them at their next scan. A worker that is asked for
a shard sees the request at its next scan and hands the shard over; the other worker sees that at its own next scan.
Neither waits until a lease expires, so both take under 2 s, whatever the lease duration. At the end, every record that
was put must be in a worker's journal. `--check` fails if a target is missed.

    python benchmarks/bench_failover.py [--quick] [--check]
"""

import argparse
import itertools
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from failover_fleet import RATE, SHARDS, Fleet, Handled, Load, running_fleet
from results import add_json_option, isolate_environment, verdict, write

from shardline import ConsumerConfig
from shardline.adapters.leases.sqlite import SqliteLeases

GRACE = 1.0  # for the lease writes, an iterator and the first page
MOVE_TARGET = 2.0  # for a shard that is released or handed over
DRAIN_LIMIT = 30.0  # for the last records, after the load has stopped
KILL, TERM, STOP, JOIN = "kill -9", "SIGTERM", "SIGSTOP", "a new worker joins"
WIDTH = 106  # of a row, up to its target
ORDERLY_ACTS = (TERM, JOIN)


@dataclass(frozen=True)
class Plan:
    repetitions: dict[float | None, int]  # by lease duration; None: all settings are the defaults


FULL = Plan({2.0: 3, None: 3})
QUICK = Plan({2.0: 1})


@dataclass
class Seen:
    """The figures of one fleet."""

    waits: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # of each shard, by act
    first_records: list[float] = field(default_factory=list)  # of new workers, since their consumers started
    first_of_process: list[float] = field(default_factory=list)  # of new workers, since their processes started
    pauses: list[float] = field(default_factory=list)  # the longest pause of a shard, for each new worker
    acts: list[tuple[float, str]] = field(default_factory=list)  # when each act began, and its name
    put: int = 0
    lost: int = 0
    twice: dict[str, int] = field(default_factory=dict)  # records that were handled twice, by act


def bound(config: ConsumerConfig) -> float:
    """Return how long a shard may wait after its worker has died silently."""
    scan_interval = min(config.scan_interval or SqliteLeases.scan_interval, config.lease_duration / 2)
    return config.lease_duration + 2 * scan_interval + GRACE


# ---- the acts


def lose(fleet: Fleet, act: str, seen: Seen, limit: float) -> None:
    """Stop one worker in the way of ``act``, and measure how long its shards wait for the other."""
    victim = next(iter(fleet.workers.values()))
    fleet.wait_settled()
    at = victim.signal({KILL: signal.SIGKILL, TERM: signal.SIGTERM, STOP: signal.SIGSTOP}[act])
    seen.acts.append((at, act))
    if act == KILL:
        victim.process.wait()
    if act != STOP:
        fleet.forget(victim)
    fleet.wait_for(lambda: fleet.first_by_others(victim.name, at), limit + 30, f"all shards are read again after {act}")
    seen.waits[act] += fleet.first_by_others(victim.name, at).values()
    if act == STOP:
        time.sleep(0.5)
        victim.signal(signal.SIGCONT)
        fleet.wait_settled()
    elif act == TERM:
        victim.wait()


def join(fleet: Fleet, seen: Seen) -> None:
    """Start a new worker, and measure how long it takes to get its shards."""
    worker = fleet.start()
    began_at = worker.started_at
    seen.acts.append((began_at, JOIN))
    settled_at = fleet.wait_settled()
    handled = fleet.handled()
    first_at = next(entry.at for entry in handled if entry.worker == worker.name)
    seen.first_records.append(first_at - worker.consumer_started_at)
    seen.first_of_process.append(first_at - began_at)
    seen.pauses.append(longest_pause(handled, began_at, settled_at))


def longest_pause(handled: list[Handled], since: float, until: float) -> float:
    """Return the longest time between two records of the same shard in this period."""
    times = defaultdict(list)
    for entry in handled:
        if since <= entry.at <= until:
            times[entry.shard].append(entry.at)
    return max(later - earlier for each in times.values() for earlier, later in itertools.pairwise([since, *each]))


def count(fleet: Fleet, load: Load, seen: Seen) -> None:
    """Count the records that were put, the lost ones, and those that were handled twice."""
    seen.put = load.stop()
    deadline = time.monotonic() + DRAIN_LIMIT
    while (
        missing := set(range(seen.put)) - {entry.number for entry in fleet.handled()}
    ) and time.monotonic() < deadline:
        time.sleep(0.2)
    seen.lost = len(missing)
    seen.twice = dict.fromkeys([KILL, TERM, STOP, JOIN], 0)
    known = set()
    for entry in fleet.handled():
        if entry.number in known:
            during = [act for at, act in seen.acts if at <= entry.at]
            seen.twice[during[-1] if during else JOIN] += 1
        known.add(entry.number)


def measure(config: ConsumerConfig, settings: dict[str, float], repetitions: int) -> Seen:
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder), settings) as (fleet, load):
        fleet.start()
        fleet.start()
        fleet.wait_settled()
        for _ in range(repetitions):
            for act in (KILL, TERM):
                lose(fleet, act, seen, bound(config))
                join(fleet, seen)
            lose(fleet, STOP, seen, bound(config))
        count(fleet, load, seen)
        for worker in fleet.workers.values():
            worker.end()
    return seen


# ---- the report


def spread(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, slowest {max(seconds):.2f} s of {len(seconds)}"


def report(title: str, config: ConsumerConfig, seen: Seen) -> list[bool]:
    print(f"\n{title}")
    met = []
    for act in (KILL, TERM, STOP):
        limit = MOVE_TARGET if act == TERM else bound(config)
        what = f"{title}, {act}: a shard waits {spread(seen.waits[act])}"
        met.append(verdict(what, f"under {limit:g} s", met=max(seen.waits[act]) < limit, width=WIDTH))
    print(
        f"  a new process has its first record after {spread(seen.first_of_process)}, interpreter and imports included"
    )
    what = f"{title}, {JOIN}: first record after {spread(seen.first_records)}"
    met.append(verdict(what, f"under {MOVE_TARGET:g} s", met=max(seen.first_records) < MOVE_TARGET, width=WIDTH))
    what = f"{title}, {JOIN}: a shard stands still for {spread(seen.pauses)}"
    met.append(verdict(what, f"under {MOVE_TARGET:g} s", met=max(seen.pauses) < MOVE_TARGET, width=WIDTH))
    what = f"{title}: {seen.put:,} records put, {seen.put - seen.lost:,} handled, {seen.lost:,} lost"
    met.append(verdict(what, "none lost", met=seen.lost == 0, width=WIDTH))
    twice = ", ".join(f"{act} {number}" for act, number in seen.twice.items())
    orderly = sum(seen.twice[act] for act in ORDERLY_ACTS)
    what = f"{title}: {sum(seen.twice.values())} handled twice ({twice})"
    met.append(verdict(what, f"none by {TERM} or joining", met=orderly == 0, width=WIDTH))
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how long a shard waits when its worker is gone.")
    parser.add_argument("--quick", action="store_true", help="only leases of 2 s, and each act once")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    add_json_option(parser)
    options = parser.parse_args()
    isolate_environment()
    plan = QUICK if options.quick else FULL
    began_at = time.monotonic()
    print(f"Seconds by the clock; {SHARDS} shards, {RATE} records a second, two workers over one SQLite file")
    met = []
    for lease_duration, repetitions in plan.repetitions.items():
        settings = {} if lease_duration is None else {"lease_duration": lease_duration}
        config = ConsumerConfig(**settings)
        title = f"lease of {config.lease_duration:g} s" + ("" if settings else " (default)")
        met += report(title, config, measure(config, settings, repetitions))
    print(
        f"\n{time.monotonic() - began_at:.0f} s; {sum(met)} of {len(met)} targets met{'' if all(met) else ': MISSED'}"
    )
    write(options.json)
    return 1 if options.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
