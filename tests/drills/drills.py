"""What does a fleet do when the world is unkind?

Each drill is a function of a directory, a store's kind and ``full``: real workers on a real store, under load. It
returns the facts that it saw, or raises ``DrillError``. None passes when a record was lost. Without ``full`` the times
are scaled down to what fits into CI.
"""

import itertools
import os
import random
import signal
import time
from collections import Counter
from itertools import pairwise

from fleet import STREAM, place_of, require, running_fleet, wait_for
from worker import name_of

LEASE = 2.0


def finish(fleet, load=None, *, duplicates=None, ordered=True):
    """End the load and the workers, and count."""
    if load is not None:
        load.stop()
    tally = fleet.wait_drained()
    for worker in fleet.workers.values():
        if worker.process.poll() is None:
            worker.end()
    fleet.leases()
    tally = fleet.tally()
    require(not tally.lost, f"lost {len(tally.lost)} records, the first {tally.lost[:5]}; {tally}")
    require(not tally.unknown, f"handled what was never put: {tally.unknown[:5]}; {tally}")
    if ordered:
        late = tally.out_of_order
        require(not late, f"{len(late)} records came after a later one of their key, the first {late[:2]}; {tally}")
    if duplicates is not None:
        require(len(tally.repeated) <= duplicates, f"duplicates {tally.repeated[:3]}; {tally}")
    back = fleet.checkpoints_went_back()
    require(not back, f"checkpoints went back: {back[:3]}")
    return tally


def kill_9(directory, store, *, full):
    """kill -9 under load: the survivor has all within the lease duration and 3 s (DynamoDB: 7 s)."""
    lease = 10.0 if full else LEASE
    with running_fleet(directory, store, shards=4, lease_duration=lease) as fleet:
        victim, _ = fleet.start_all("a", "b")
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        time.sleep(1.5)
        killed_at = victim.signal(signal.SIGKILL)
        victim.process.wait()
        committed = {shard: place_of(row.checkpoint) for shard, row in fleet.leases().items()}
        limit = lease + (7.0 if store == "dynamodb" else 3.0)
        took = fleet.wait_owned(["b"], limit + 5, "the survivor has everything") - killed_at
        time.sleep(0.5)
        tally = finish(fleet, load)
        old = [one for one in tally.repeated if (1, *one.order) <= committed[one.shard]]
        require(not old, f"duplicates of what was committed: {old[:3]}; {tally}")
        require(took <= limit, f"the survivor had everything after {took:.2f} s, not {limit:.1f}")
        return {"all owned after": took, "limit": limit, "tally": tally}


def sigterm(directory, store, *, full):
    """SIGTERM under load: the survivor has all within 2 s, and nothing comes twice."""
    lease = 10.0 if full else LEASE
    with running_fleet(directory, store, shards=4, lease_duration=lease) as fleet:
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
    """Two start, a third joins, one leaves: balanced, each shard moves once at most, nothing comes twice."""
    shards = 24 if full else 9
    facts = {}
    with running_fleet(directory, store, shards=shards, lease_duration=LEASE + 1) as fleet:

        def settle(names, since, what):
            took = fleet.wait_owned(names, 25, what) - since
            time.sleep(3.0 if store == "dynamodb" else 1.5)  # would it move on?
            fleet.wait_owned(names, 0.5, f"{what}, and stays so")
            moves = fleet.tally().gains(since)
            twice = {shard: times for shard, times in moves.items() if times > 1}
            require(not twice, f"{what}: moved more than once: {twice}")
            facts[what] = f"{took:.2f} s, {len(moves)} moves"

        since = time.monotonic()
        load = fleet.load()
        fleet.start_all("a")
        fleet.wait_owned(["a"], 15, "one has all")
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


def reshard(directory, store, *, full, start="TRIM_HORIZON"):
    """Split, merge and UpdateShardCount under load, a restart in between: all of it, parents first, no replay."""
    with running_fleet(directory, store, shards=2, lease_duration=LEASE) as fleet:
        if start == "TRIM_HORIZON":
            load = fleet.load()
            time.sleep(0.3)
        fleet.start_all("a", "b", start=start)
        if start == "LATEST":
            load = fleet.load()
        pause = 3.0 if full else 0.7
        time.sleep(pause)
        fleet.call("split_shard", STREAM, open_shards(fleet)[0], wait=True)
        time.sleep(pause)
        fleet.workers["a"].end()
        fleet.start("c", start=start)
        fleet.call("merge_shards", STREAM, *open_shards(fleet)[1:3], wait=True)
        time.sleep(pause)
        fleet.call("update_shard_count", STREAM, 4, wait=True)
        time.sleep(pause)
        fleet.call("update_shard_count", STREAM, 2, wait=True)
        time.sleep(pause)
        tally = finish(fleet, load, duplicates=0)
        parents = fleet.parents()
        early = tally.before_parents(parents)
        require(not early, f"{len(early)} records were handled before the end of a parent, the first {early[:2]}")
        require(len({one.shard for one in tally.handled}) > 4, "records came from many generations")
        # Once more, after everyone had gone: closed parents are not read again.
        before = len(tally.handled)
        fleet.start_all("again", start=start)
        time.sleep(pause)
        fleet.workers["again"].end()
        again = fleet.tally()
        require(len(again.handled) == before, f"a restart replayed {len(again.handled) - before} records")
        gained = again.gains(0.0)
        closed = set(parents) - set(open_shards(fleet))
        replayed = [one.shard for one in again.told("LeaseGained", "again") if one.shard in closed]
        require(not replayed, f"finished shards were taken again: {replayed}")
        return {"shards": len(parents), "taken": sum(gained.values()), "tally": tally}


def reshard_latest(directory, store, *, full):
    """The same with LATEST: what was put once the workers were ready."""
    return reshard(directory, store, full=full, start="LATEST")


def pause(directory, store, *, full):
    """SIGSTOP past the lease, then SIGCONT: it commits nothing, and its handlers are cancelled."""
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
        time.sleep(0.6)  # what was done is committed
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
    """The shards in which a worker's handler is at work on one of these."""
    return {cells[1] for cells in fleet.tally().journals[worker].begun if cells[3] in names}


def store_down(directory, store, *, full):
    """The store is away for longer than a lease: reading stops safely, and goes on when it is back."""
    lease = 5.0 if full else LEASE
    with running_fleet(directory, store, shards=4, lease_duration=lease) as fleet:
        fleet.start_all("a", "b")
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        time.sleep(1.0)
        went_at = time.monotonic()
        with fleet.store.down():
            time.sleep(lease + 2.0)
            back_at = time.monotonic()
        tally = fleet.tally()
        during = [one.at - went_at for one in tally.handled if went_at < one.at < back_at]
        require(during, "reading goes on within the lease")
        require(max(during) <= lease + 0.5, f"records were handled {max(during):.2f} s after the store had gone")
        wait_for(lambda: fleet.tally().handled[-1].at > back_at, 15, "reading goes on when the store is back")
        resumed = next(one.at for one in fleet.tally().handled if one.at > back_at) - back_at
        fleet.wait_owned(["a", "b"], 15, "they share again")
        tally = finish(fleet, load)
        old = [one for one in tally.repeated if tally.first[one.name].at < went_at - 1.5]
        require(not old, f"duplicates of what was committed before: {old[:3]}")
        return {"read on for": max(during), "resumed after": resumed, "tally": tally}


def slow_handler(directory, store, *, full):
    """A handler takes 3.5 leases for one record (35 s, scaled down): nothing comes twice, other shards go on."""
    lease = 10.0 if full else LEASE
    long = 3.5 * lease
    with running_fleet(directory, store, shards=4, lease_duration=lease) as fleet:
        fleet.start_all("a", "b", mode="run-in-threads", slow={"100": long})
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        began_at = time.monotonic()
        load = fleet.load(rate=150)
        time.sleep(long + 1.0)
        tally = finish(fleet, load, duplicates=0)
        stuck = tally.first["100"].shard
        others = sorted(one.at for one in tally.first.values() if one.shard != stuck)
        gap = max(after - before for before, after in pairwise(others))
        require(gap < 3.0, f"other shards stood still for {gap:.2f} s")
        require(not tally.told("LeaseLost"), "no lease was lost")
        return {"took": tally.first["100"].at - began_at, "gap of the others": gap, "tally": tally}


def overdue(directory, store, *, full):
    """A handler is not done when its shard has to go: it is cancelled, and the next one does it again."""
    patience = 10.0 if full else 1.5
    with running_fleet(directory, store, shards=2, lease_duration=LEASE, hand_over_timeout=patience) as fleet:
        stuck = {str(number): 120.0 for number in range(100, 160)}
        fleet.start_all("a", mode="run", trace=True, slow=stuck)
        load = fleet.load()
        wait_for(lambda: len(hanging(fleet, "a", stuck)) == 2, 10, "both handlers are at work")
        joined_at = time.monotonic()
        fleet.start_all("b", mode="run")
        wait_for(lambda: fleet.tally().told("HandOverOverdue", "a"), patience + 10, "the hand-over is overdue")
        wait_for(lambda: fleet.tally().told("LeaseGained", "b"), 5, "the other has it")
        took = fleet.tally().told("LeaseGained", "b")[0].at - joined_at
        require(len(fleet.tally().journals["a"].cancelled) == 1, "the handler of the shard that went was cancelled")
        # The other shard still hangs where it is, and nobody waits for it.
        victim = fleet.workers["a"]
        victim.signal(signal.SIGKILL)
        victim.process.wait()
        return {"moved after": took, "tally": finish(fleet, load)}


def poison(directory, store, *, full):
    """Records that no handler can take go to the dead letters, and hold up nobody."""
    bad = {str(number) for number in (50, 51, 333)}
    letters = directory / "dead.jsonl"
    with running_fleet(directory, store, shards=4, lease_duration=LEASE) as fleet:
        fleet.start_all("a", mode="run", poison=sorted(bad), dead_letter=str(letters))
        load = fleet.load()
        time.sleep(3.0)
        put = load.stop()
        wait_for(lambda: not set(fleet.tally().lost) - bad, 15, "all others are handled")
        fleet.workers["a"].end()
        tally = fleet.tally()
        require(set(tally.lost) == bad, f"only the poison was not handled: {tally}")
        require(not tally.repeated, f"duplicates: {tally.repeated[:3]}")
        lines = letters.read_text().splitlines()
        require(len(lines) == len(bad), f"each is one dead letter, not {len(lines)}")
        return {"dead letters": len(lines), "of": len(put), "handled": len(tally.first)}


def poison_stops(directory, store, *, full):
    """Without dead letters the worker stops, nothing is skipped, and the next one takes it up there."""
    with running_fleet(directory, store, shards=2, lease_duration=LEASE) as fleet:
        fleet.put([(f"key-{number % 10}", b"%d" % number) for number in range(300)])
        worker = fleet.start("a", mode="run", poison=["150"])
        require(worker.process.wait(20) != 0, "the worker fails")
        require("HandlerFailed" in worker.errors, f"it says why: {worker.errors}")
        require("150" in fleet.tally().lost, "the poison was not handled")
        fleet.start_all("b", mode="run")
        return {"tally": finish(fleet, duplicates=0)}


def many_shards(directory, store, *, full):
    """150 shards: all are read, also those on the second page of the list."""
    shards = 150
    with running_fleet(directory, store, shards=shards, lease_duration=5.0) as fleet:
        facts = {}
        fleet.put([(f"key-{number}", b"%d" % number) for number in range(3000)])
        began_at = time.monotonic()
        fleet.start_all("a")
        fleet.wait_owned(["a"], 20, "one worker has 150 shards")
        facts["all owned after"] = time.monotonic() - began_at
        if full:
            began_at = time.monotonic()
            fleet.start_all("b")
            facts["shared after"] = fleet.wait_owned(["a", "b"], 60, "two share 150 shards") - began_at
        tally = finish(fleet, duplicates=0)
        facts["shards"] = len({one.shard for one in tally.handled})
        require(facts["shards"] == shards, f"records came from {facts['shards']} shards of {shards}")
        return {**facts, "tally": tally}


ODD = [
    b"\x00",
    b" ",
    b"null",
    b'{"__CHECKPOINT__": {"ShardId": "shardId-000000000000", "SequenceNumber": "999999999999999"}}',
    b'{"__CHECKPOINT__": 1}',
    b"SHARD_END",
    b"TRIM_HORIZON",
    b"\xf3\x89\x9a\xc2",  # the magic of an aggregate, and nothing else
    b"\xf3\x89\x9a\xc2" + b"\x0a\x01a" + bytes(16),  # and a wrong digest
    b"\xf3\x89\x9a\xc2" + bytes(range(256)) * 4,
    b"\xff\xfe\x00\x01",
    b"\r\n\r\nHTTP/1.1 500 Internal Server Error\r\n\r\n",
    b'{"Records":[],"NextShardIterator":null}',
    b"12:hello world!,",
    b"'; DROP TABLE leases; --",
    b"x" * 1_000_000,
    "ключ \N{SNOWMAN} \N{GRINNING FACE}".encode(),
]
ODD_KEYS = [
    "a",
    " ",
    "\N{SNOWMAN}",
    "\x00",
    "shardId-000000000000",
    '{"a": 1}',
    "SHARD_END",
    "k" * 256,
    "\U0001f600" * 60,
]


def odd_data(directory, store, *, full):
    """Data and keys that look like anything come as they are."""
    with running_fleet(directory, store, shards=2, lease_duration=LEASE) as fleet:
        entries = [(ODD_KEYS[index % len(ODD_KEYS)], data) for index, data in enumerate(ODD)]
        entries += [(key, f"key {index}".encode()) for index, key in enumerate(ODD_KEYS)]
        fleet.put(entries)
        fleet.start_all("a")
        tally = finish(fleet, duplicates=0)
        keys = {one.name: one.key for one in tally.handled}
        wrong = [key for key, data in entries if keys[name_of(data)] != ascii(key)]
        require(not wrong, f"keys that changed: {wrong}")
        return {"tally": tally}


def trimmed(directory, store, *, full):
    """Retention removes what was not read yet: that is told, and reading goes on."""
    with running_fleet(directory, store, shards=2, lease_duration=LEASE) as fleet:
        fleet.put([(f"key-{number}", b"%d" % number) for number in range(100)])
        fleet.start_all("a")
        finish(fleet, duplicates=0)
        fleet.put([(f"key-{number}", b"%d" % number) for number in range(100, 200)])
        fleet.kinesis.clock.advance(25 * 3600)
        fleet.put([(f"key-{number}", b"%d" % number) for number in range(200, 300)])
        fleet.start_all("b")
        wait_for(lambda: len(fleet.tally().first) >= 200, 10, "what is left is read")
        fleet.workers["b"].end()
        tally = fleet.tally()
        loud = {one.shard for event in ("RecordsTrimmed", "PositionLost") for one in tally.told(event, "b")}
        require(len(loud) == 2, f"each shard says what it lost, not {sorted(loud)}")
        require(set(tally.lost) == {str(number) for number in range(100, 200)}, f"only what was trimmed: {tally}")
        return {"told by": len(loud), "trimmed": 100, "handled": len(tally.first)}


def blocked_loop(directory, store, *, full):
    """A handler that blocks the event loop is told of, and is not yet a lost lease."""
    with running_fleet(directory, store, shards=2, lease_duration=LEASE + 1) as fleet:
        fleet.start_all("a", blocking={"200": 1.8})
        load = fleet.load()
        time.sleep(4.0)
        tally = finish(fleet, load, duplicates=0)
        stalls = tally.told("Stalled")
        require(stalls, "it is told")
        require(not tally.told("LeaseLost"), "no lease was lost")
        return {"told": stalls[0].details or stalls[0].shard, "tally": tally}


def chaos(directory, store, *, full, seed=None):
    """Whatever comes next, at random: kill, stop, pause, start, split, merge, a store that goes away."""
    chance = random.Random(seed if seed is not None else int(os.environ.get("DRILL_SEED", "1")))
    done = Counter()
    with running_fleet(directory, store, shards=3, lease_duration=LEASE) as fleet:
        numbers = itertools.count(1)
        modes = itertools.cycle(["records", "run", "batches", "run-in-threads"])
        living = []

        def start():
            living.append(fleet.start(f"w{next(numbers):02}", mode=next(modes)))

        def someone():
            return living.pop(chance.randrange(len(living)))

        def kill():
            worker = someone()
            worker.signal(signal.SIGKILL)
            worker.process.wait()

        def leave():
            worker = someone()
            worker.wait_ready()
            worker.end(15)

        def stop_and_go():
            worker = chance.choice(living)
            worker.signal(signal.SIGSTOP)
            time.sleep(chance.choice([0.5, LEASE + 1.0]))
            worker.signal(signal.SIGCONT)

        def split():
            shards = open_shards(fleet)
            if len(shards) < 8:
                fleet.call("split_shard", STREAM, chance.choice(shards), wait=True)

        def merge():
            shards = open_shards(fleet)
            if len(shards) > 2:
                at = chance.randrange(len(shards) - 1)
                fleet.call("merge_shards", STREAM, *shards[at : at + 2], wait=True)

        def cut():
            with fleet.store.down():
                time.sleep(chance.choice([0.5, LEASE + 1.0]))

        start()
        load = fleet.load(rate=200)
        ends_at = time.monotonic() + (60.0 if full else 15.0)
        while time.monotonic() < ends_at:
            while len(living) < 2:
                start()
            act = chance.choice([start, kill, leave, stop_and_go, split, split, merge, merge, cut])
            if act is start and len(living) > 4:
                continue
            done[act.__name__] += 1
            act()
            time.sleep(chance.uniform(0.0, 1.5))
        tally = finish(fleet, load, ordered=False)
        early = tally.before_parents(fleet.parents())
        require(not early, f"{len(early)} records were handled before the end of a parent, the first {early[:2]}")
        late = tally.out_of_order
        require(not late, f"{len(late)} records came after a later one of their key, the first {late[:2]}; {tally}")
        return {"acts": dict(done), "shards": len(fleet.parents()), "tally": tally}


def open_shards(fleet):
    """In the order of their hash ranges."""
    shards = [one for one in fleet.kinesis.streams[STREAM].shards if one.ending_sequence_number is None]
    return [one.shard_id for one in sorted(shards, key=lambda one: one.hash_range.start)]


DRILLS = {
    "kill-9": kill_9,
    "sigterm": sigterm,
    "balance": balance,
    "reshard": reshard,
    "reshard-latest": reshard_latest,
    "pause": pause,
    "store-down": store_down,
    "slow-handler": slow_handler,
    "overdue": overdue,
    "poison": poison,
    "poison-stops": poison_stops,
    "many-shards": many_shards,
    "odd-data": odd_data,
    "trimmed": trimmed,
    "blocked-loop": blocked_loop,
    "chaos": chaos,
}
