"""Drills in which Java KCL workers and ours are members of one group, on one lease table.

A drill with a KCL 3 leader first runs an all-Java fleet, under the same load and with the same failover time, and
compares the two. ``store`` is ignored: the table is in ministack's DynamoDB.
"""

import signal
import time
from collections import Counter

from fleet import require, running_fleet, wait_for
from java_worker import START_LIMIT, OldJavaWorker, SlowNewestJavaWorker, WheelJavaWorker
from verdict import finish, open_shards, require_parents_first

from shardline.core.error_codes import Failure

FLEET = {"lease_duration": 10.0, "checkpoint_interval": 1.0}
SHARDS = 6
RATE = 20  # records per second
ROUND = 30.0  # seconds: one assignment of the KCL's leader (20), and the discovery of it (10)
BALANCING = 60.0  # seconds between two rounds in which the KCL's leader balances
SHARE_LIMIT = 60.0
STEADY = 60.0
TAKE_OVER_LIMIT = 300.0


# ---- observations


def shares(fleet):
    """Return how many unfinished leases each worker owns; ``None`` stands for no worker."""
    return Counter(row.owner for row in fleet.leases().values() if not row.checkpoint.is_finished)


def shares_of_kcl_2(fleet, names):
    """Return how many leases each worker owns by the count of KCL 2, which includes the finished ones that live workers
    own.
    """
    finished = [row.owner for row in fleet.leases().values() if row.checkpoint.is_finished]
    return shares(fleet) + Counter(owner for owner in finished if owner in names)


def is_shared(counts, names):
    """Return whether only these workers own leases, and each is within one lease of its share."""
    share = counts.total() / len(names)
    return counts.keys() <= set(names) and all(abs(counts[name] - share) <= 1 for name in names)


def wait_shared(fleet, names, limit, what, *, by_kcl_2=False):
    """Wait until the leases are shared by these workers. Return how long that took, in seconds."""
    began_at = time.monotonic()
    seen = []

    def is_so():
        seen[:] = [shares_of_kcl_2(fleet, names) if by_kcl_2 else shares(fleet)]
        return is_shared(seen[0], names)

    try:
        return wait_for(is_so, limit, what, pause=1.0) - began_at
    except AssertionError as failure:
        failure.add_note(f"shares: {dict(seen[0])}")
        raise


def kcl_rows(fleet):
    fleet.leases()  # the rows among the leases are those of the last listing
    rows = fleet.portal.call(fleet._leases.read_kcl_rows)
    require(not isinstance(rows, Failure), f"the rows of the KCL cannot be read: {rows}")
    return rows


def leader(fleet):
    """Return the worker that holds the leader's lock."""
    row = kcl_rows(fleet).leader
    return None if row is None or row.is_released else row.worker


def reporting(fleet):
    """Return the workers with a metrics row: the leader assigns leases only to them."""
    return {row.worker for row in kcl_rows(fleet).metrics}


def moves_per_lease(fleet, seconds):
    """Return how often the lease that moved most often was gained in the next ``seconds``."""
    began_at = time.monotonic()
    time.sleep(seconds)
    return max(fleet.tally().gains(began_at).values(), default=0)


# ---- steps


def take_over_after_kill(fleet, name):
    """Kill a worker, and return after how many seconds other workers own all of its leases."""
    worker = fleet.workers[name]
    require(shares(fleet)[name], f"{name} has no lease: killing it shows nothing")
    worker.signal(signal.SIGKILL)
    worker.process.wait()
    killed_at = time.monotonic()
    are_taken = lambda: not {name, None} & shares(fleet).keys()  # noqa: E731
    return wait_for(are_taken, TAKE_OVER_LIMIT, f"the leases of {name} are taken", pause=1.0) - killed_at


def start_java(fleet, java, name):
    """Start a KCL worker, and wait until it owns a lease."""
    worker = java(fleet, name)
    worker.wait_for(lambda: shares(fleet)[name], START_LIMIT, f"{name} has a lease")
    return worker


def split_first(fleet):
    fleet.call("split_shard", "drill", open_shards(fleet)[0], wait=True)


def ended(fleet, load):
    tally = finish(fleet, load, limit=120.0)
    require_parents_first(fleet, tally)
    return tally


# ---- a KCL 3 fleet: a Java worker leads


def led_fleet(directory, java, third):
    """Run a fleet of two Java workers, one of which leads, and a third worker. Return what was seen."""
    facts = {}
    directory.mkdir()
    with running_fleet(directory, "ministack", shards=SHARDS, **FLEET) as fleet:
        load = fleet.load(RATE)
        javas = [java(fleet, "java-1"), java(fleet, "java-2")]
        have_all = lambda: shares(fleet) and None not in shares(fleet)  # noqa: E731
        javas[0].wait_for(have_all, START_LIMIT, "Java has all leases")
        names = ["java-1", "java-2", third]
        java(fleet, third) if third.startswith("java") else fleet.start_all(third)
        wait_for(lambda: reporting(fleet) >= set(names), START_LIMIT, "all workers report to the leader", pause=1.0)
        facts["balance"] = wait_shared(fleet, names, 400.0, f"{names} share the leases")
        facts["moves"] = moves_per_lease(fleet, STEADY)
        split_first(fleet)
        chief = leader(fleet)
        require(chief in names and chief.startswith("java"), f"the leader is {chief}")
        facts["leader"] = take_over_after_kill(fleet, chief)
        left = {*names} - {chief}
        wait_for(lambda: leader(fleet) in left, 200.0, "another worker leads", pause=1.0)
        wait_shared(fleet, sorted(left), 400.0, "the other two share the leases")
        [follower] = left - {leader(fleet)}
        facts["follower"] = take_over_after_kill(fleet, follower)
        facts["tally"] = ended(fleet, load)
    return facts


def java_leads_with(java, directory):
    alone = led_fleet(directory / "java", java, "java-3")
    mixed = led_fleet(directory / "mixed", java, "ours")
    limits = {"balance": BALANCING, "follower": ROUND, "leader": ROUND}
    facts = {"KCL": java.version()}
    for name, what in (
        ("balance", "balanced after"),
        ("follower", "killed follower"),
        ("leader", "killed leader"),
        ("moves", "most moves of a lease in a minute"),
    ):
        facts[f"{what}, all Java"], facts[f"{what}, mixed"] = alone[name], mixed[name]
    for name, slack in limits.items():
        problem = f"{name}: {mixed[name]:.1f} s, in an all-Java fleet {alone[name]:.1f} s"
        require(mixed[name] <= alone[name] + slack, f"slower by more than a round of the leader: {problem}")
    require(mixed["moves"] < 3, f"{mixed['moves']} moves of a lease in a minute")
    return facts | {"tally": mixed["tally"]}


def java_leads(directory, store, *, full):
    """Two KCL 3.1 workers and one of ours are compared with an all-Java fleet while the fleet is balanced, a shard is
    split, and the leader and a follower die.
    """
    return java_leads_with(WheelJavaWorker, directory)


def newest_java_leads(directory, store, *, full):
    """The same as `java-leads`, with the newest KCL, which keeps all its rows in the lease table."""
    return java_leads_with(SlowNewestJavaWorker, directory)


# ---- rolling


def rolling_with(java, directory):
    facts = {"KCL": java.version()}
    with running_fleet(directory, "ministack", shards=SHARDS, **FLEET) as fleet:
        load = fleet.load(RATE)
        fleet.start_all("a", "b", "c")
        facts["ours shared after"] = wait_shared(fleet, ["a", "b", "c"], SHARE_LIMIT, "three of ours share")
        began_at = time.monotonic()
        for number, ours in enumerate(("a", "b", "c"), 1):
            start_java(fleet, java, f"java-{number}")
            if number == 2:
                facts["taken over from ours"] = take_over_after_kill(fleet, ours)
            else:
                fleet.workers[ours].end(60.0)
            if number == 1:
                split_first(fleet)
        names = ["java-1", "java-2", "java-3"]
        wait_for(lambda: shares(fleet).keys() <= set(names), 200.0, "Java has all leases", pause=1.0)
        facts["rolled to Java after"] = time.monotonic() - began_at
        began_at = time.monotonic()
        last = leader(fleet)
        require(last in names, f"the leader is {last}")
        first, second = (name for name in names if name != last)
        for ours, name in zip(("d", "e", "f"), (first, second, last), strict=True):
            fleet.start_all(ours)
            wait_for(lambda ours=ours: shares(fleet)[ours], 200.0, f"{ours} has a lease", pause=1.0)
            if name == second:
                facts["taken over from Java"] = take_over_after_kill(fleet, name)
                split_first(fleet)
            else:
                fleet.workers[name].end()
        facts["ours shared again after"] = wait_shared(fleet, ["d", "e", "f"], SHARE_LIMIT, "three of ours share")
        facts["rolled back after"] = time.monotonic() - began_at
        facts["most moves of a lease in a minute"] = moves_per_lease(fleet, STEADY)
        tally = ended(fleet, load)
    require(facts["most moves of a lease in a minute"] < 3, f"a lease moved too often: {facts}")
    return facts | {"tally": tally}


def java_rolling(directory, store, *, full):
    """Three of our workers are replaced by KCL 3.1 workers one by one, and then the KCL workers by ours, with splits
    and two kills.
    """
    return rolling_with(WheelJavaWorker, directory)


def newest_java_rolling(directory, store, *, full):
    """The same as `java-rolling`, with the newest KCL."""
    return rolling_with(SlowNewestJavaWorker, directory)


# ---- KCL 2: nobody leads


def old_java(directory, store, *, full):
    """Two KCL 2 workers, which no worker leads, and two of ours share the leases, are replaced one by one, and are
    killed.
    """
    facts = {"KCL": OldJavaWorker.version()}
    with running_fleet(directory, "ministack", shards=SHARDS, **FLEET) as fleet:
        load = fleet.load(RATE)
        shared = lambda names, what: wait_shared(fleet, names, SHARE_LIMIT, what, by_kcl_2=True)  # noqa: E731
        start_java(fleet, OldJavaWorker, "java-1")
        start_java(fleet, OldJavaWorker, "java-2")
        fleet.start_all("a", "b")
        names = ["java-1", "java-2", "a", "b"]
        facts["shared after"] = shared(names, "two and two share")
        facts["most moves of a lease in a minute"] = moves_per_lease(fleet, STEADY)
        facts["taken over from ours"] = take_over_after_kill(fleet, "b")
        split_first(fleet)
        facts["shared after the kill"] = shared(["java-1", "java-2", "a"], "three share")
        facts["taken over from Java"] = take_over_after_kill(fleet, "java-2")
        fleet.start_all("c")
        facts["shared with another of ours after"] = shared(["java-1", "a", "c"], "c joins")
        fleet.workers["java-1"].end()
        facts["ours shared after"] = shared(["a", "c"], "two of ours share")
        start_java(fleet, OldJavaWorker, "java-3")
        facts["shared with Java again after"] = shared(["java-3", "a", "c"], "Java joins")
        tally = ended(fleet, load)
        facts["KCL workers that did not end within 60 s of SIGTERM"] = OldJavaWorker.did_not_end
    require(facts["most moves of a lease in a minute"] < 3, f"a lease moved too often: {facts}")
    return facts | {"tally": tally}
