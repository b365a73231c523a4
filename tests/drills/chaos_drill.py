"""The drill in which everything happens at random."""

import itertools
import os
import random
import signal
import time
from collections import Counter

from fleet import STREAM, running_fleet
from verdict import LEASE, finish, open_shards, require_parents_first


def chaos(directory, store, *, full, seed=None):
    """At random, workers are killed, stopped, paused and started, shards are split and merged, and the store becomes
    unreachable.
    """
    rng = random.Random(seed if seed is not None else int(os.environ.get("DRILL_SEED", "1")))
    done = Counter()
    with running_fleet(directory, store, shards=3, lease_duration=LEASE) as fleet:
        numbers = itertools.count(1)
        modes = itertools.cycle(["records", "run", "batches", "run-in-threads"])
        living = []

        def start():
            living.append(fleet.start(f"w{next(numbers):02}", mode=next(modes)))

        def someone():
            return living.pop(rng.randrange(len(living)))

        def kill():
            worker = someone()
            worker.signal(signal.SIGKILL)
            worker.process.wait()

        def leave():
            worker = someone()
            worker.wait_ready()
            worker.end(15)

        def stop_and_go():
            worker = rng.choice(living)
            worker.signal(signal.SIGSTOP)
            time.sleep(rng.choice([0.5, LEASE + 1.0]))
            worker.signal(signal.SIGCONT)

        def split():
            shards = open_shards(fleet)
            if len(shards) < 8:
                fleet.call("split_shard", STREAM, rng.choice(shards), wait=True)

        def merge():
            shards = open_shards(fleet)
            if len(shards) > 2:
                at = rng.randrange(len(shards) - 1)
                fleet.call("merge_shards", STREAM, *shards[at : at + 2], wait=True)

        def cut():
            with fleet.store.down():
                time.sleep(rng.choice([0.5, LEASE + 1.0]))

        start()
        load = fleet.load(rate=200)
        ends_at = time.monotonic() + (60.0 if full else 15.0)
        while time.monotonic() < ends_at:
            while len(living) < 2:
                start()
            act = rng.choice([start, kill, leave, stop_and_go, split, split, merge, merge, cut])
            if act is start and len(living) > 4:
                continue
            done[act.__name__] += 1
            act()
            time.sleep(rng.uniform(0.0, 1.5))
        tally = finish(fleet, load)
        require_parents_first(fleet, tally)
        return {"acts": dict(done), "shards": len(fleet.parents()), "tally": tally}
