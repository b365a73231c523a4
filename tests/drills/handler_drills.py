"""Drills in which the user's code is slow, late, failing or blocking."""

import signal
import time
from itertools import pairwise

from fleet import require, require_promise, running_fleet, wait_for
from process_drills import hanging
from verdict import LEASE, finish


def slow_handler(directory, store, *, full):
    """A handler takes 3.5 lease durations for one record (35 s, scaled down): no record is handled twice, and other
    shards continue.
    """
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
    """A handler has not finished when its shard must move: it is cancelled, and the next worker handles the record
    again.
    """
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
        # The handler of the other shard still hangs, and no worker waits for it.
        victim = fleet.workers["a"]
        victim.signal(signal.SIGKILL)
        victim.process.wait()
        return {"moved after": took, "tally": finish(fleet, load)}


def poison(directory, store, *, full):
    """Records that no handler can process are dead-lettered, and delay no other record."""
    bad = {str(number) for number in (50, 51, 333)}
    letters = directory / "dead.jsonl"
    with running_fleet(directory, store, shards=4, lease_duration=LEASE) as fleet:
        fleet.start_all("a", mode="run", poison=sorted(bad), dead_letter=str(letters))
        load = fleet.load()
        time.sleep(3.0)
        load.stop()
        wait_for(lambda: not set(fleet.tally().lost) - bad, 15, "all others are handled")
        fleet.workers["a"].end()
        tally = fleet.tally()
        require_promise(set(tally.lost) == bad, f"only the poison was not handled: {tally}")
        require(not tally.repeated, f"duplicates: {tally.repeated[:3]}")
        lines = letters.read_text().splitlines()
        require(len(lines) == len(bad), f"each is one dead letter, not {len(lines)}")
        tally.excuse(bad, "dead letters")
        return {"tally": tally}


def poison_stops(directory, store, *, full):
    """A handler cannot process a record, and there are no dead letters: the worker stops, nothing is skipped, and the
    next worker resumes at this record.
    """
    with running_fleet(directory, store, shards=2, lease_duration=LEASE) as fleet:
        fleet.put([(f"key-{number % 10}", b"%d" % number) for number in range(300)])
        worker = fleet.start("a", mode="run", poison=["150"])
        require(worker.process.wait(20) != 0, "the worker fails")
        require("HandlerFailed" in worker.errors, f"it says why: {worker.errors}")
        require("150" in fleet.tally().lost, "the poison was not handled")
        fleet.start_all("b", mode="run")
        return {"tally": finish(fleet, duplicates=0)}


def blocked_loop(directory, store, *, full):
    """A handler blocks the event loop: this is reported, and no lease is lost yet."""
    with running_fleet(directory, store, shards=2, lease_duration=LEASE + 1) as fleet:
        fleet.start_all("a", blocking={"200": 1.8})
        load = fleet.load()
        time.sleep(4.0)
        tally = finish(fleet, load, duplicates=0)
        stalls = tally.told("Stalled")
        require(stalls, "it is told")
        require(not tally.told("LeaseLost"), "no lease was lost")
        return {"reported after": float(stalls[0].shard), "tally": tally}
