"""Simulated worlds of a producer alone: ``make sim WORLD=producer SEED=7`` prints the trace of one."""

import sys
import time
import traceback

from producer_reached import Reached
from producer_world import World


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def run(seed, seeds):
    """Run one seed with its trace, or many without. Return the exit code."""
    reached = Reached()
    with reached.watching():
        return survey(seeds, reached) if seed is None else show(seed, reached)


def show(seed, reached):
    world = World(seed, reached)
    say(world.scenario)
    try:
        world.run()
    finally:
        for moment, *what in world.trace:
            say(f"{moment:12.6f}", *what)
    say(f"seed {seed}: {len(world.trace)} steps, every promise kept")
    return 0


def survey(seeds, reached):
    began = time.process_time()
    failures = {}
    for seed in seeds:
        try:
            World(seed, reached).run()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__} {str(error)[:60]} ({where.name}:{where.lineno})"
            say("failed:", seed, why)
            failures.setdefault(why.partition(":")[0] + f" {where.name}:{where.lineno}", []).append((seed, why))
    spent = max(time.process_time() - began, 1e-9)  # the difference may be less than a tick
    for kind, found in sorted(failures.items(), key=lambda item: -len(item[1])):
        say(f"{len(found):5} {kind}\n      e.g. {found[0][1]}\n      {[seed for seed, _ in found[:12]]}")
        say(f"      replay: make sim WORLD=producer SEED={found[0][0]}")
    say(f"{len(seeds)} seeds, {sum(map(len, failures.values()))} failed, {len(seeds) / spent:.1f} seeds a second")
    say("not reached:", reached.missing())
    return 1 if failures else 0
