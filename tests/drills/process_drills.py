"""Drills in which processes are killed, stopped or replaced, or have wrong clocks."""

import signal
import time
from itertools import count

from fleet import STREAM, place_of, require, running_fleet, wait_for
from verdict import LEASE, finish

from shardline.model.hashing import hash_key_of

HELD = "1000000"  # the name of a record that the load never reaches


def kill_9(directory, store, *, full, fan_out=None):
    """A worker is killed (kill -9) under load: the survivor holds all shards within the lease duration plus 3 s
    (DynamoDB: plus 7 s).

    The victim has had a record in hand for longer than its commit interval: if it had committed the unhandled record,
    that record would be lost. Its other shard continues meanwhile, so that it dies in the middle of its work.
    """
    lease = 10.0 if full else LEASE
    with running_fleet(directory, store, shards=4, lease_duration=lease, fan_out=fan_out) as fleet:
        victim = fleet.start("a", mode="run", trace=True, slow={HELD: 120.0})
        fleet.start("b")
        for worker in fleet.workers.values():
            worker.wait_ready()
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        fleet.put([(key_in(fleet, shard_of(fleet, "a")), HELD.encode())])
        held_at = wait_for(lambda: hanging(fleet, "a", {HELD}), 10, "the victim has the record in hand")
        time.sleep(fleet.config["checkpoint_interval"] + 1.0)
        killed_at = victim.signal(signal.SIGKILL)
        victim.process.wait()
        committed = {shard: place_of(row.checkpoint) for shard, row in fleet.leases().items()}
        limit = lease + (7.0 if store == "dynamodb" else 3.0)
        took = fleet.wait_owned(["b"], limit + 5, "the survivor has everything") - killed_at
        time.sleep(0.5)
        tally = finish(fleet, load)
        old = tally.repeated_below(committed, since=killed_at)
        require(not old, f"duplicates of what was committed: {old[:3]}; {tally}")
        require(tally.first[HELD].worker == "b", f"the survivor handled what the victim had in hand; {tally}")
        require(took <= limit, f"the survivor had everything after {took:.2f} s, not {limit:.1f}")
        return {"all owned after": took, "limit": limit, "a record in hand for": killed_at - held_at, "tally": tally}


def shard_of(fleet, worker):
    """Return a shard that the worker holds."""
    return min(shard for shard, row in fleet.leases().items() if row.holder == worker)


def key_in(fleet, shard_id):
    """Return a key of this shard that the load does not use."""
    ranges = {shard.shard_id: shard.hash_range for shard in fleet.kinesis.streams[STREAM].shards}
    place = ranges[shard_id]
    return next(key for key in map("held-{}".format, count()) if place.start <= hash_key_of(key) <= place.end)


def sigterm(directory, store, *, full, fan_out=None):
    """A worker gets SIGTERM under load: the survivor holds all shards within 2 s, and no record is handled twice."""
    lease = 10.0 if full else LEASE
    with running_fleet(directory, store, shards=4, lease_duration=lease, fan_out=fan_out) as fleet:
        leaver, _ = fleet.start_all("a", "b")
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        time.sleep(1.0)
        asked_at = leaver.signal(signal.SIGTERM)
        limit = 6.0 if store == "dynamodb" else 2.0
        took = fleet.wait_owned(["b"], limit + 5, "the survivor has everything") - asked_at
        time.sleep(0.5)
        leaver.end()
        tally = finish(fleet, load, duplicates=0)
        require(took <= limit, f"the survivor had everything after {took:.2f} s, not {limit:.1f}")
        return {"all owned after": took, "limit": limit, "tally": tally}


def balance(directory, store, *, full):
    """Two workers start, a third joins, and one leaves: the leases are balanced, each shard moves at most once, and no
    record is handled twice.
    """
    shards = 24 if full else 9
    facts = {}
    with running_fleet(directory, store, shards=shards, lease_duration=LEASE + 1) as fleet:

        def settle(names, since, what):
            took = fleet.wait_owned(names, 25, what) - since
            time.sleep(3.0 if store == "dynamodb" else 1.5)  # time for unnecessary moves to show
            fleet.wait_owned(names, 0.5, f"{what}, and stays so")
            moves = fleet.tally().gains(since)
            twice = {shard: times for shard, times in moves.items() if times > 1}
            require(not twice, f"{what}: moved more than once: {twice}")
            facts[what] = f"{took:.2f} s, {len(moves)} moves"

        since = time.monotonic()
        load = fleet.load()
        fleet.start_all("a")
        fleet.wait_owned(["a"], 15, "one has all")
        time.sleep(0.5)  # the store shows a lease before its worker reports it, which must not count as a move
        since = time.monotonic()
        fleet.start_all("b")
        settle(["a", "b"], since, "a second joins")
        since = time.monotonic()
        fleet.start_all("c")
        settle(["a", "b", "c"], since, "a third joins")
        since = fleet.workers["a"].signal(signal.SIGTERM)
        settle(["b", "c"], since, "one leaves")
        fleet.workers["a"].end()
        facts["tally"] = finish(fleet, load, duplicates=0)
    return facts


def hot_shard(directory, store, *, full):
    """Sharing by load: one shard becomes heavy, then another one; its worker keeps few others, and no shard moves twice."""
    lease = 10.0 if full else LEASE
    heavy = directory / "heavy"
    heavy.write_text("none 0")
    facts = {}
    with running_fleet(directory, store, shards=8, lease_duration=lease, assign_by="load") as fleet:
        fleet.start_all("a", "b", mode="run", heavy=str(heavy))
        load = fleet.load(rate=40)

        def is_quiet():
            gained = [event.at for event in fleet.tally().told("LeaseGained")]
            return time.monotonic() > max(gained) + 10 * lease  # the averages follow a change within this time

        wait_for(lambda: is_quiet() and len(fleet.owners()) > 1, 60 * lease, "two workers share", pause=0.5)
        for worker in ("a", "b"):
            hot, since = shard_of(fleet, worker), time.monotonic()
            heavy.write_text(f"{hot} 0.15")

            def is_balanced(hot=hot):
                holders = {shard: row.holder for shard, row in fleet.leases().items()}
                return is_quiet() and list(holders.values()).count(holders[hot]) <= 3

            wait_for(is_balanced, 60 * lease, f"the worker with {hot} has at most two other shards", pause=0.5)
            moves = fleet.tally().gains(since)
            twice = {shard: times for shard, times in moves.items() if times > 1}
            require(not twice, f"moved more than once: {twice}")
            last = max((event.at for event in fleet.tally().told("LeaseGained", since=since)), default=since)
            facts[f"a shard of {worker} is heavy"] = f"{len(moves)} moves, the last after {last - since:.2f} s"
        facts["tally"] = finish(fleet, load, duplicates=0)
    return facts


def pause(directory, store, *, full):
    """A worker gets SIGSTOP for longer than the lease duration, and then SIGCONT: it commits nothing, and its handlers
    are cancelled.
    """
    lease = 10.0 if full else LEASE
    with running_fleet(directory, store, shards=4, lease_duration=lease) as fleet:
        # The first worker is stuck with a record of each of its shards when it is stopped.
        stuck = {str(number): 60.0 for number in range(200, 260)}
        sleeper = fleet.start("a", mode="run", trace=True, slow=stuck)
        fleet.start("b", mode="run")
        for worker in fleet.workers.values():
            worker.wait_ready()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        load = fleet.load(rate=150)
        wait_for(lambda: len(hanging(fleet, "a", stuck)) == 2, 10, "both handlers of the first are at work")
        time.sleep(0.6)  # the finished records are committed
        stopped_at = sleeper.signal(signal.SIGSTOP)
        fleet.wait_owned(["b"], lease + 8, "the other has everything")
        time.sleep(1.5)
        rows = fleet.leases()
        woken_at = sleeper.signal(signal.SIGCONT)
        wait_for(lambda: len(fleet.tally().told("LeaseLost", "a", woken_at)) == 2, 5, "it says what it lost")
        time.sleep(0.3)
        tally = fleet.tally()
        cancelled = {one[1]: one[0] - woken_at for one in tally.journals["a"].cancelled if one[0] >= woken_at}
        require(len(cancelled) == 2, f"its handlers were cancelled: {cancelled}")
        gained = {one.shard: one.at for one in reversed(tally.told("LeaseGained", "a", woken_at))}
        stale = [one for one in tally.journals["a"].handled if woken_at < one.at < gained.get(one.shard, float("inf"))]
        require(not stale, f"it went on with {len(stale)} records, the first {stale[:2]}")
        fleet.wait_owned(["a", "b"], 15, "they share again")
        back = [one for one, row in fleet.leases().items() if place_of(row.checkpoint) < place_of(rows[one].checkpoint)]
        require(not back, f"its commits were taken: {back}")
        tally = finish(fleet, load)
        old = [one for one in tally.repeated if one.at > woken_at or one.worker != "b"]
        require(not old, f"what came twice is what the first had: {old[:3]}")
        return {"paused for": woken_at - stopped_at, "cancelled after": max(cancelled.values()), "tally": tally}


def hanging(fleet, worker, names):
    """Return the shards in which a worker's handler is at work on one of these records."""
    return {cells[1] for cells in fleet.tally().journals[worker].begun if cells[3] in names}


def rolling_restart(directory, store, *, full):
    """Four workers are replaced one by one under load, each with SIGTERM: no record is handled twice."""
    lease = 10.0 if full else LEASE
    with running_fleet(directory, store, shards=8, lease_duration=lease) as fleet:
        names = ["a1", "b1", "c1", "d1"]
        fleet.start_all(*names)
        fleet.wait_owned(names, 25, "four workers share")
        load = fleet.load()
        time.sleep(1.0)
        longest = 0.0
        for place, old in enumerate(list(names)):
            asked_at = time.monotonic()
            fleet.workers[old].end(15)
            names[place] = old.replace("1", "2")
            fleet.start_all(names[place])
            longest = max(longest, fleet.wait_owned(names, 25, f"{names[place]} has its share") - asked_at)
        tally = finish(fleet, load, duplicates=0)
        require(not tally.told("LeaseLost"), "every lease was handed over")
        return {"longest replacement": longest, "tally": tally}


def clock_jumps(directory, store, *, full):
    """The wall clocks of two workers are an hour ahead and an hour behind, and then jump by two hours: this has no
    effect.

    The server checks signatures, which contain the time. The clock is that of the worker's Python (time.time).
    """
    settings = {"lease_duration": LEASE, "kinesis": {"verify_signatures": True}}
    with running_fleet(directory, store, shards=4, **settings) as fleet:
        fleet.start("a", clock=[3600.0, -7200.0])
        fleet.start("b", clock=[-3600.0, 7200.0])
        for worker in fleet.workers.values():
            worker.wait_ready()
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        time.sleep(1.5)
        jumped_at = [worker.signal(signal.SIGUSR1) for worker in fleet.workers.values()]
        time.sleep(10.0 if full else 3.0)
        jumps = {one.worker for one in fleet.tally().told("ClockJumped")}
        require(jumps == {"a", "b"}, f"both clocks jumped: {jumps}")
        after = {one.worker for one in fleet.tally().handled if one.at > max(jumped_at) + 1.0}
        require(after == {"a", "b"}, f"both go on: {after}")
        tally = finish(fleet, load, duplicates=0)
        require(not tally.told("LeaseLost"), "no lease was lost")
        return {"tally": tally}
