"""Run drills and tell what was seen.

    python tests/drills/drill.py [NAME ...] [--store sqlite] [--full] [--keep DIRECTORY] [--report PAGE --part PART]

Without names all are run but the long ones, on SQLite; ``--store all`` adds Redis and DynamoDB where the store matters;
``--full`` has the real durations (leases of 10 s, a handler of 35 s); DRILL_SEED chooses what chaos does, SOAK_SECONDS how
long soak takes. Exits with 1 if one failed.
"""

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fleet import DrillError
from report import Line, catalogue, results, write_part
from stores import STORES

from drills import DRILLS, LONG

ALL = DRILLS | LONG


def chosen(names, stores):
    """What is to run, as (name, store): where a drill belongs, or where it was asked for."""
    for name in names or DRILLS:
        _, places = ALL[name]
        wanted = [store for store in stores if store in places]
        for store in wanted or (places[:1] if names else ()):
            yield name, store


def run_one(name, store, directory, *, full):
    """Tell it on a line, as it ends; gives that line."""
    directory.mkdir(parents=True)
    began_at = time.monotonic()
    try:
        facts, problem = ALL[name][0](directory, store, full=full), None
    except (DrillError, OSError) as failure:
        facts, problem = {}, str(failure)
    line = Line(name, store, time.monotonic() - began_at, facts, problem)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL))
    parser.add_argument("--store", choices=[*STORES, "all"], default="sqlite")
    parser.add_argument("--full", action="store_true", help="real durations")
    parser.add_argument("--keep", type=Path, help="leave the journals in this directory")
    parser.add_argument("--report", type=Path, help="write the results into this page")
    parser.add_argument("--part", default="drills", help="which table of the page they are")
    options = parser.parse_args()
    wrong = [name for name in options.names if name not in ALL]
    if wrong:
        parser.error(f"no drill is named {', '.join(wrong)}; there are {', '.join(ALL)}")
    logging.getLogger("shardline").setLevel(logging.ERROR)  # what the load meets on its way is no result
    runs = list(chosen(options.names, list(STORES) if options.store == "all" else [options.store]))
    there = [path for name, store in runs if options.keep and (path := options.keep / f"{name}-{store}").exists()]
    if there:
        parser.error(f"{there[0]} is there already: name another directory, or remove it")
    with tempfile.TemporaryDirectory(prefix="drill-") as temporary:
        root = options.keep or Path(temporary)
        lines = [run_one(name, store, root / f"{name}-{store}", full=options.full) for name, store in runs]
    if options.report is not None:
        write_part(options.report, "catalogue", catalogue(ALL))
        write_part(options.report, options.part, results(lines))
    return 0 if lines and all(line.problem is None for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
