"""Records which lines of the code each test executes, and so tells which tests can kill a mutant, and in which order.

The run of the unchanged code records the footprints. They are kept in ``build/mutants``, and hold until the code or the
tests change, so that the next run need not run all tests on the unchanged code again.

Invariants:

- A test that never enters a function that a mutant changes does the same with the mutant, because every test is
  deterministic. Only such tests are left out.
- The simulation is one test with many parts: the states that all worlds reach are checked at its end. If one of its
  tests enters a changed function, all of them run, in their order.
- A test that sets a trace function of its own (``interrupting.py``) hides lines from us, so it can kill any mutant.
"""

import hashlib
import json
import re
import time
from functools import cache
from pathlib import Path
from types import CodeType

from coverage import Coverage

from mutants import ROOT, SOURCE, mutated, read

KEPT = ROOT / "build" / "mutants"
SHARED = ("src", "tests/harness", "tests/sim")  # what every test may use
IMPORTED = re.compile(r"\btests\.machines\.(\w+)")


@cache
def state_of(*paths):
    """Return a hash of these files, and of the files below them."""
    found = hashlib.sha256()
    below = (path for part in paths for path in ([ROOT / part] if part.endswith(".py") else (ROOT / part).rglob("*")))
    for path in sorted(path for path in below if path.suffix in {".py", ".txt"}):
        found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


@cache
def place_of(file):
    """Return where the footprints of a file of tests are kept: they hold until it, or what it uses, changes."""
    files, new = set(), {file}
    while new:
        files |= new
        names = (name for one in new for name in IMPORTED.findall((ROOT / one).read_text()))
        new = {f"tests/machines/{name}.py" for name in names} - files
    return KEPT / f"{Path(file).stem}-{state_of(*SHARED)}-{state_of(*sorted(files))}.json"


def file_of(item):
    return item.nodeid.partition("::")[0]


def is_recorded(item):
    return place_of(file_of(item)).exists()


def remember(items):
    """Read the recorded footprints of these tests into this process, for the processes of all trials. From now on, the
    tests that run are those that were imported, and not those of a file that was changed meanwhile.
    """
    read_footprints([item for item in items if is_recorded(item)])


def read_footprints(items):
    """Return (seconds, lines by file) of each test by its name; the lines are ``None`` if they are not known."""
    files = dict.fromkeys(map(file_of, items))
    return {name: found for file in files for name, found in read_kept(place_of(file)).items()}


@cache
def read_kept(place):
    return json.loads(place.read_text())


class Recorder:
    """Runs the tests on the unchanged code, and writes their footprints, if all of them passed."""

    def __init__(self, directory):
        self._seconds, self._hidden = {}, set()
        self._coverage = Coverage(
            data_file=str(Path(directory) / "coverage"), include=[f"{SOURCE}/shardline/*"], config_file=False
        )
        # No test runs if the footprints of all of them are known.
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])

    def start(self):
        self._coverage.start()

    def run(self, item, run):
        """Run a test."""
        self._coverage.switch_context(item.nodeid)
        began = time.process_time()
        run()
        self._seconds[item.nodeid] = time.process_time() - began
        modules = (getattr(thing, "__module__", None) for thing in vars(item.module).values())
        if "interrupting" in modules:
            self._hidden.add(item.nodeid)

    def write(self):
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {name: {} for name in self._seconds}
        for file in data.measured_files():
            short = str(Path(file).relative_to(SOURCE / "shardline"))
            for line, names in data.contexts_by_lineno(file).items():
                for name in set(names) & lines.keys():
                    lines[name].setdefault(short, []).append(line)
        found = {}
        for name, seconds in self._seconds.items():
            executed = None if name in self._hidden else lines[name]
            found.setdefault(place_of(name.partition("::")[0]), {})[name] = (seconds, executed)
        KEPT.mkdir(parents=True, exist_ok=True)
        for path, tests in found.items():
            unfinished = path.with_suffix(".new")
            unfinished.write_text(json.dumps(tests))
            unfinished.rename(path)


def lines_of(code):
    """Return the lines of a function and of the functions in it, without the line that begins it."""
    inner = [lines_of(const) for const in code.co_consts if isinstance(const, CodeType)]
    own = {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}
    return own.union(*inner) or {code.co_firstlineno}


def changed_lines(mutant):
    """Return the lines of the original that a mutant changes."""
    was, becomes = read(mutant).splitlines(), mutated(mutant).splitlines()
    begin, longest = 0, min(len(was), len(becomes))
    while begin < longest and was[begin] == becomes[begin]:
        begin += 1
    end = 0
    while end < longest - begin and was[-1 - end] == becomes[-1 - end]:
        end += 1
    return set(range(begin + 1, max(len(was) - end, begin + 1) + 1))


def tests_that_can_kill(mutant, changes, items, footprints):
    """Return the tests that can tell a mutant from the original: the machines, the likeliest and fastest first, and then
    the simulation. ``changes`` are those of ``changed_functions``.
    """
    functions, changed = set().union(*(lines_of(was) for _, was, _ in changes)), changed_lines(mutant)

    def executes(item, lines):
        _, executed = footprints[item.nodeid]
        return executed is None or not lines.isdisjoint(executed.get(mutant.file, ()))

    sim = [item for item in items if item.nodeid.startswith("tests/sim/")]
    machines = [item for item in items if item not in sim and executes(item, functions)]
    machines.sort(key=lambda item: (not executes(item, changed), footprints[item.nodeid][0]))
    return machines + (sim if any(executes(item, functions) for item in sim) else [])
