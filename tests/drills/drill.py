"""Run drills and tell what was seen.

    python tests/drills/drill.py [NAME ...] [--store sqlite] [--full] [--keep DIRECTORY] [--report PAGE --part PART]

Without names all are run but the long ones, on SQLite; ``--store all`` adds Redis, DynamoDB and, if it is installed,
PostgreSQL, where the store matters; ``--full`` has the real durations (leases of 10 s, a handler of 35 s); DRILL_SEED
chooses what chaos does, SOAK_SECONDS how long soak takes. Exits with 1 if one failed, with 2 if it cannot do what it was asked; SIGTERM ends it as Ctrl-C does, and
nothing is left behind.
"""

import argparse
import logging
import math
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fleet import BrokenPromiseError, DrillError
from report import Line, catalogue, has_part, results, split_at, write_part
from standstill import Standstill
from stores import STORES, has_postgres
from verdict import LEASE

from drills import DRILLS, LONG

ALL = DRILLS | LONG
LONGEST_STANDSTILL = LEASE / 2  # seconds; beyond this, a worker may lose its leases through no fault of ours
ATTEMPTS = 3


class Ended(KeyboardInterrupt):
    """The process received SIGTERM."""


def end_on_sigterm(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal would interrupt the clean-up
    raise Ended


def is_whole(word):
    return word.removeprefix("-").isdecimal()


def is_time(word):
    try:
        return 0.0 < float(word) < math.inf
    except ValueError:
        return False


SETTINGS = {"DRILL_SEED": (is_whole, "a whole number"), "SOAK_SECONDS": (is_time, "seconds, more than 0")}


def problems(options, environment):
    """Return why the request cannot be carried out. This is known before the first drill starts."""
    unknown = [name for name in options.names if name not in ALL]
    if unknown:
        yield f"no drill is named {', '.join(unknown)}; there are {', '.join(ALL)}"
    if options.store == "postgres" and not has_postgres():
        yield "PostgreSQL is missing: apt-get install postgresql"
    for name, (fits, what) in SETTINGS.items():
        if name in environment and not fits(environment[name]):
            yield f"{name} is {what}, not {environment[name]!r}"
    if options.report is not None:
        try:
            split_at(options.report, options.part)
        except (OSError, ValueError) as error:
            yield f"the results cannot be written: {error}"


def every_store():
    """Return all stores. PostgreSQL is left out if it is not installed, because it needs a package of the system."""
    return [store for store in STORES if store != "postgres" or has_postgres()]


def chosen(names, stores):
    """Return the drills to run, as (name, store): on the stores of each drill, or on the requested one."""
    for name in dict.fromkeys(names or DRILLS):
        _, places = ALL[name]
        wanted = [store for store in stores if store in places]
        for store in wanted or (places[:1] if names else ()):
            yield name, store


def interrupt_behind(failure):
    """Return the interrupt that caused this exception, if there was one: then the drill did not fail."""
    while failure is not None and not isinstance(failure, KeyboardInterrupt):
        failure = failure.__context__
    return failure


def run_once(name, store, directory, *, full):
    """Run a drill. Return its facts, and its failure (``None`` if it passed)."""
    try:
        directory.mkdir(parents=True)
        return ALL[name][0](directory, store, full=full), None
    except Exception as failure:  # noqa: BLE001 - whatever it is, the other drills are run, and it is told
        if interrupt := interrupt_behind(failure):
            raise interrupt from None
        return {}, failure


def is_excused(failure, standstill):
    """Whether the machine caused the failure. Only failures that depend on time are excused, never a broken guarantee."""
    is_of_time = isinstance(failure, DrillError) and not isinstance(failure, BrokenPromiseError)
    return is_of_time and standstill > LONGEST_STANDSTILL


def problem_of(failure):
    if failure is None:
        return None
    if isinstance(failure, DrillError | OSError):
        return str(failure) or repr(failure)
    traceback.print_exception(failure)  # a bug in the drill, or in the library
    return repr(failure)


def run_one(name, store, directory, *, full):
    """Run a drill, print its line when it ends, and return that line. A drill that the machine disturbed runs again."""
    for attempt in range(1, ATTEMPTS + 1):
        began_at = time.monotonic()
        with Standstill() as standstill:
            facts, failure = run_once(name, store, directory, full=full)
        line = Line(name, store, time.monotonic() - began_at, facts, problem_of(failure))
        is_again = attempt < ATTEMPTS and is_excused(failure, standstill.longest)
        again = f" [the machine stood still for {standstill.longest:.1f} s: the drill runs again]" if is_again else ""
        sys.stdout.write(f"{line}{again}\n")
        sys.stdout.flush()
        if not is_again:
            break
        directory = directory.with_name(f"{directory.name}-again-{attempt}")
    return line


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL))
    parser.add_argument("--store", choices=[*STORES, "all"], default="sqlite")
    parser.add_argument("--full", action="store_true", help="real durations")
    parser.add_argument("--keep", type=Path, help="leave the journals in this directory")
    parser.add_argument("--report", type=Path, help="write the results into this page")
    parser.add_argument("--part", default="drills", help="which table of the page they are")
    options = parser.parse_args(arguments)
    for problem in problems(options, os.environ):
        parser.error(problem)
    runs = list(chosen(options.names, every_store() if options.store == "all" else [options.store]))
    there = [path for name, store in runs if options.keep and (path := options.keep / f"{name}-{store}").exists()]
    if there:
        parser.error(f"{there[0]} is there already: name another directory, or remove it")
    with tempfile.TemporaryDirectory(prefix="drill-") as temporary:
        root = options.keep or Path(temporary)
        lines = [run_one(name, store, root / f"{name}-{store}", full=options.full) for name, store in runs]
    if options.report is not None:
        write_part(options.report, options.part, results(lines))
        if has_part(options.report, "catalogue"):
            write_part(options.report, "catalogue", catalogue(ALL))
    return 0 if lines and all(line.problem is None for line in lines) else 1


def command():
    """Run the command, and return its exit code."""
    signal.signal(signal.SIGTERM, end_on_sigterm)
    logging.getLogger("shardline").setLevel(logging.ERROR)  # failures of the load are not results
    try:
        return main()
    except KeyboardInterrupt as interrupt:
        number = signal.SIGTERM if isinstance(interrupt, Ended) else signal.SIGINT
        sys.stderr.write(f"Ended by {number.name}; no report is written.\n")
        return 128 + number


if __name__ == "__main__":
    sys.exit(command())
