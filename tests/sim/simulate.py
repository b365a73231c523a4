"""Simulates worlds: ``make sim SEED=7`` prints the trace of one, ``make sim SEEDS=500`` looks for failures in many, and
``make sim-soak HOURS=8`` runs new seeds for hours and writes a report. The worlds are those of fleets; with
``WORLD=producer`` they have producers only.
"""

import argparse
import math
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for tests.harness

import keep_assertions  # noqa: F401 - before the oracles
import producer
from fleet_reached import STATES, Reached
from fleet_world import FleetWorld

from shardline.core.consumer.grant import Grant
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import Position
from shardline.server.model.sequence_numbers import parse

REPORTS = Path(__file__).resolve().parents[2] / "build" / "soak"
SEEDS = 100  # unless another number is requested


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def tell(world):
    """Print the parameters of a world and its trace: when, who, what, why."""
    for name, value in vars(world.fleet).items():
        if name != "producing":
            yield f"{name}: {value}"
    for name, value in vars(world.scenario).items():
        if name != "loads":
            yield f"producing.{name}: {value}"
    for number, load in enumerate(world.scenario.loads):
        yield f"producer {number}: {len(load.puts)} puts, {load.config}"
    for moment, who, what, *why in world.trace:
        yield f"{moment:10.4f}  {who:<12} {what:<17} {' '.join(map(brief, why))}"


def brief(value):
    """Return a value of the trace as short text."""
    match value:
        case Lease():
            asked = "" if value.checkpoint_owner is None else f" -> {value.owner}"
            return f"#{value.counter} of {value.holder or 'nobody'}{asked} at {brief(value.checkpoint)}"
        case Checkpoint(position):
            return brief(position)
        case Position(kind, number) if number is not None:
            return f"{brief(str(number.number))}.{number.sub_sequence}" + (" after" if "AFTER" in kind else "")
        case str() if value.isdigit() and (parts := parse(value)) is not None and parts.version:
            return f"[{parts.shard_index}:{parts.number}]"
        case Grant():
            return f"until {value.held_until:.3f}"
        case str():
            return value.replace("shardId-00000000", "s-")
    return str(value)


def show(seed):
    world = FleetWorld(seed)
    try:
        world.run()
    finally:
        for line in tell(world):
            say(line)
    say(f"seed {seed}: {len(world.trace)} steps, every promise kept")
    return 0


def run_one(seed, reached):
    """Run one seed. Return the failure as (kind, message, world), or ``None``."""
    world = FleetWorld(seed, reached)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__} {error}"[:160]
        return f"{where.name}:{where.lineno} {words[:60]}", words, world
    return None


def survey(seeds):
    reached, kinds = Reached(), {}
    began = time.process_time()
    for seed in seeds:
        found = run_one(seed, reached)
        if found is not None:
            kinds.setdefault(found[0], []).append(seed)
            say("failed:", seed, found[1])
    spent = max(time.process_time() - began, 1e-9)  # the difference may be less than a tick
    for kind, failed in sorted(kinds.items(), key=lambda item: -len(item[1])):
        say(f"{len(failed):5} {kind}\n      {failed[:12]}\n      replay: make sim SEED={failed[0]}")
    failures = sum(map(len, kinds.values()))
    say(f"{len(seeds)} seeds, {failures} failed, {len(seeds) / spent:.1f} seeds a second of processor time")
    say(f"{len(reached.states)} of {len(STATES)} states reached; not reached: {reached.missing()}")
    return 1 if failures else 0


def soak(hours, first):
    """Run new seeds until the time is over. The report exists from the first minute on."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    began, reached, failures, counts = time.monotonic(), Reached(), [], Counter()
    first = int(time.time()) * 1000 if first is None else first
    seed, told_at = first, 0.0
    while (spent := time.monotonic() - began) < hours * 3600.0:
        found = run_one(seed, reached)
        counts["failed" if found else "kept every promise"] += 1
        if found:
            trace = REPORTS / f"seed-{seed}.txt"
            trace.write_text("\n".join([found[1], *tell(found[2])]) + "\n")
            failures.append(f"- seed {seed}: {found[1]} (trace: {trace.name}; replay: make sim SEED={seed})")
            say(failures[-1])
        seed += 1
        if spent - told_at > 60.0:
            told_at = spent
            write_report(first, seed, spent, counts, reached, failures)
    write_report(first, seed, time.monotonic() - began, counts, reached, failures)
    say(f"{seed - first} seeds from {first}, {counts['failed']} failed: {REPORTS / 'report.md'}")
    return 1 if failures else 0


def write_report(first, end, spent, counts, reached, failures):
    seeds = end - first
    lines = [
        "# Soak of the simulation",
        "",
        f"- seeds: {first} to {end - 1} ({seeds})",
        f"- time: {spent / 3600:.2f} h, {seeds / max(spent, 1e-9):.1f} seeds a second",
        f"- kept every promise: {counts['kept every promise']}, failed: {counts['failed']}",
        f"- states reached: {len(reached.states)} of {len(STATES)}; missing: {', '.join(reached.missing()) or 'none'}",
        "",
        "## Failures",
        "",
        *(failures or ["None."]),
        "",
        "## States, and the first seed that reached each",
        "",
        *(f"- {state}: {seed}" for state, seed in sorted(reached.states.items())),
    ]
    (REPORTS / "report.md").write_text("\n".join(lines) + "\n")


def some(word):
    """Parse a count for argparse: a whole number, 1 or more."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of seeds: it is a whole number, 1 or more")
    return int(word)


def some_hours(word):
    """Parse a duration for argparse: positive and finite."""
    try:
        hours = float(word)
    except ValueError:
        hours = math.nan
    if not 0.0 < hours < math.inf:
        raise argparse.ArgumentTypeError(f"{word!r} is no time: it is a number of hours above 0, and finite")
    return hours


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--world", choices=["fleet", "producer"], default="fleet", help="of a fleet, or a producer alone"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seed", type=int, help="one seed, with its story")
    what.add_argument("--seeds", type=some, help=f"so many, from --first on ({SEEDS})")
    what.add_argument("--hours", type=some_hours, help="go on for so long")
    parser.add_argument("--first", type=int, help="the first seed")
    options = parser.parse_args(arguments)
    if options.world == "producer" and options.hours is not None:
        parser.error("--hours goes with worlds of fleets")
    if options.seed is not None and options.first is not None:
        parser.error("--first goes with many seeds: --seed is the one and only")
    return options


def main(arguments=None):
    options = options_of(arguments)
    first = options.first or 0
    seeds = range(first, first + (options.seeds or SEEDS))
    if options.world == "producer":
        return producer.run(options.seed, seeds)
    if options.seed is not None:
        return show(options.seed)
    if options.hours is not None:
        return soak(options.hours, options.first)
    return survey(seeds)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader has closed the pipe, as in: make sim SEED=7 | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing may be left to write at exit
        sys.exit(141)  # the exit code of a process that SIGPIPE ended
