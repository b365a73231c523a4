"""Run drills and tell what was seen.

    python tests/drills/drill.py [NAME ...] [--store sqlite] [--full] [--keep DIRECTORY]

Without names all are run, on SQLite; ``--store all`` adds Redis and DynamoDB where the store matters; ``--full`` has the
real durations (leases of 10 s, a handler of 35 s); DRILL_SEED chooses what chaos does. Exits with 1 if one failed.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fleet import DrillError
from stores import STORES

from drills import DRILLS

EVERYWHERE = ("kill-9", "sigterm", "balance", "reshard", "pause", "store-down", "chaos")  # the store matters


def chosen(names, stores):
    for name in names or DRILLS:
        for store in stores:
            if store == "sqlite" or name in EVERYWHERE or names:
                yield name, store


def run_one(name, store, directory, *, full):
    """Whether it went well; says so on a line."""
    directory.mkdir(parents=True)
    began_at = time.monotonic()
    try:
        facts = DRILLS[name](directory, store, full=full)
    except DrillError as failure:
        word, seen = "FAILED", str(failure)
    else:
        word = "ok"
        seen = ", ".join(
            str(value) if key == "tally" else f"{key} {value:.2f} s" if isinstance(value, float) else f"{key}: {value}"
            for key, value in facts.items()
        )
    sys.stdout.write(f"{name:<15} {store:<9} {word:<7} {time.monotonic() - began_at:5.1f} s  {seen}\n")
    sys.stdout.flush()
    return word == "ok"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(DRILLS))
    parser.add_argument("--store", choices=[*STORES, "all"], default="sqlite")
    parser.add_argument("--full", action="store_true", help="real durations")
    parser.add_argument("--keep", type=Path, help="leave the journals in this directory")
    options = parser.parse_args()
    wrong = [name for name in options.names if name not in DRILLS]
    if wrong:
        parser.error(f"no drill is named {', '.join(wrong)}; there are {', '.join(DRILLS)}")
    stores = list(STORES) if options.store == "all" else [options.store]
    with tempfile.TemporaryDirectory(prefix="drill-") as temporary:
        root = options.keep or Path(temporary)
        went_well = [
            run_one(name, store, root / f"{name}-{store}", full=options.full)
            for name, store in chosen(options.names, stores)
        ]
    return 0 if all(went_well) else 1


if __name__ == "__main__":
    sys.exit(main())
