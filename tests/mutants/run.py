"""Do the tests find bugs? ``python tests/mutants/run.py`` makes every mutant, and sees which test notices.

Each mutant meets the test that is expected to kill it, then the machines and the simulation, then the unit tests; one that
is listed as equivalent has to survive machines and simulation (a unit test may see in a part what no user ever sees of the
whole). The table goes to ``docs/mutants.md`` with ``--write``. The exit code is 0 if
every mutant was killed by the simulation or by the machines, or is listed as equivalent.

Invariants:

- MR1: the unchanged code passes everything first; otherwise nothing is proved.
- MR2: a hang is told by CPU time, not by the clock of a busy machine.
- MR3: it is the mutant that runs: the copy is seen to be imported. The runner itself never imports ``shardline``.
"""

import argparse
import os
import re
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import hypothesis.stateful  # noqa: F401 - imported once, for all children
import msgspec  # noqa: F401 - the same
import pytest

from mutants import HERE, ROOT, Copy, DoesNotApply, load_mutants

PAGE = ROOT / "docs" / "mutants.md"
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
CPU_SECONDS = 240  # for a suite; the longest takes 40 on a quick machine ...
CPU_SECONDS_ONE = 15  # ... and a single test 2
MEMORY_BYTES = 4 << 30
SUITES = {  # beside tests/machines and tests/sim, which are for all
    "producer": ["unit/core/producer", "unit/core", "properties/test_producer_properties.py"],
    "consumer": ["unit/core/consumer", "unit/core", "unit/model"],
    "both": ["unit/core", "unit/codec", "unit/model", "properties/test_aggregation_properties.py"],
}
OTHERS = {"producer": "consumer", "consumer": "producer"}
FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", re.MULTILINE)


class Outcome(NamedTuple):
    mutant: object
    status: str
    """``killed``, ``survived`` or ``error``."""
    suite: str = ""
    """``sim``, ``machines`` or ``unit``."""
    test: str = ""
    seconds: float = 0.0

    @property
    def is_fine(self):
        if self.mutant.equivalent:
            return self.status == "survived" or self.suite == "unit"
        return self.status == "killed" and self.suite in {"sim", "machines"}


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def find_tests(area, first=None, *, quick=False):
    """What to run, one after the other: the expected killer, the machines and the simulation, the unit tests."""
    assert first is None or (ROOT / "tests" / first.partition("::")[0]).exists(), f"there is no tests/{first}"
    other = OTHERS.get(area, "nobody")
    found = [f"machines/{path.name}" for path in sorted((ROOT / "tests" / "machines").glob("test_*.py"))]
    found += [f"sim/{path.name}" for path in sorted((ROOT / "tests" / "sim").glob("test_*.py"))]
    ours = [name for name in found if other not in name and "server" not in name and name != first]
    rounds = [[first]] if first else []
    return rounds if quick else [*rounds, ours, SUITES[area]]


def suite_of(test):
    name = test.partition("/")[0]
    return name if name in {"sim", "machines"} else "unit"


class Bench:
    """A copy of the code, and the tests that are run against it."""

    def __init__(self, directory):
        self.copy = Copy(directory)
        self.output = Path(directory) / "output"
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(Path(directory) / "hypothesis")

    def run_tests(self, *names):
        """The test that failed, or ``None``."""
        options = ["-x", "-q", "-p", "quick_hypothesis", "-p", "no:cacheprovider", "--timeout=0", "--tb=line"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # what the runner has imported
        child = os.fork()  # what is imported by now need not be imported again: that is most of a short run
        if child == 0:
            seconds = CPU_SECONDS_ONE if all("::" in name for name in names) else CPU_SECONDS
            self._run_here([*options, *(f"tests/{name}" for name in names)], seconds)
        _, status = os.waitpid(child, 0)
        told = self.output.read_text(errors="replace")
        code = os.waitstatus_to_exitcode(status)
        failed = FAILED.search(told)
        if code == 0 or failed is not None:
            return None if code == 0 else failed[1]
        if code < 0:
            return f"{names[0].partition('::')[0]} (did not end)"
        raise RuntimeError(f"pytest itself failed:\n{told[-3000:]}")

    def _run_here(self, arguments, seconds):
        """In the child: never returns."""
        code = 99
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))  # MR2
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            out = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.chdir(self.copy.root)
            sys.path[:0] = [str(self.copy.source), str(HERE)]
            import shardline

            assert Path(shardline.__file__).is_relative_to(self.copy.source), f"MR3: {shardline.__file__} is imported"
            code = int(pytest.main(arguments))
        except BaseException:  # noqa: BLE001 - whatever it is, the parent reads it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def try_mutant(self, mutant, *, quick=False):
        began = time.monotonic()
        try:
            with self.copy.made_wrong_by(mutant):
                for names in find_tests(mutant.area, mutant.killer, quick=quick):
                    test = self.run_tests(*names)
                    if test is not None:
                        return Outcome(mutant, "killed", suite_of(test), test, time.monotonic() - began)
        except (DoesNotApply, SyntaxError) as error:
            return Outcome(mutant, "error", test=str(error))
        return Outcome(mutant, "survived", seconds=time.monotonic() - began)


def run_all(mutants, directory, *, quick=False):
    bench = Bench(directory)
    if not quick:
        rounds = [names for mutant in mutants for names in find_tests(mutant.area, mutant.killer)]
        broken = bench.run_tests(*dict.fromkeys(name for names in rounds for name in names))
        assert broken is None, f"MR1: the unchanged code fails {broken}"
    outcomes = []
    for mutant in mutants:
        outcome = bench.try_mutant(mutant, quick=quick)
        mark = "ok " if outcome.is_fine else "BAD"
        say(f"{mark} {mutant.id:44} {outcome.status:9} {outcome.suite:9} {outcome.seconds:5.0f} s  {outcome.test}")
        outcomes.append(outcome)
    return outcomes


def row_of(outcome):
    mutant = outcome.mutant
    test = outcome.test.partition("[")[0]
    found = f"`{test}`" if outcome.status == "killed" else f"**{outcome.status}**"
    if mutant.equivalent and outcome.is_fine:
        found = f"equivalent: {mutant.equivalent}"
    return f"| `{mutant.id}` | `{mutant.file}` | {mutant.suffers} | {found} |"


def rows_of(page):
    """The rows of the table, by the name of the mutant."""
    _, _, rest = page.partition(BEGIN)
    table, _, _ = rest.partition(END)
    return {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}


def count_up(rows):
    """The figures of a table, as one sentence."""
    found = {name: row.rpartition(" | ")[2] for name, row in rows.items()}
    by = {suite: sum(one.startswith(f"`{suite}/") for one in found.values()) for suite in ("sim", "machines")}
    equivalent = sum(one.startswith("equivalent: ") for one in found.values())
    bad = [f"`{name}`" for name, one in found.items() if not one.startswith(("`sim/", "`machines/", "equivalent: "))]
    sentence = (
        f"{len(rows)} mutants: {by['sim']} found by the simulation, {by['machines']} by the machines, "
        f"{equivalent} equivalent, {len(bad)} to be seen to"
    )
    return sentence + (f": {', '.join(bad)}" if bad else ".")


def write_page(rows):
    """Put these rows into the page; the others stay as they were found before."""
    page = PAGE.read_text()
    known = rows_of(page) | rows
    every = [mutant.id for mutant in load_mutants()]
    unknown = [name for name in every if name not in known]
    assert not unknown, f"never run: {', '.join(unknown)}"
    table = {name: known[name] for name in every}
    head = "| mutant | in | what a user would suffer | found by |\n|---|---|---|---|"
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    content = "\n".join([head, *table.values()])
    PAGE.write_text(f"{before}{BEGIN}\n\n{count_up(table)}\n\n{content}\n\n{END}{after}")


def chosen(ids, every):
    """Those that were asked for, and the names that are nobody's."""

    def is_meant(part, mutant):
        return part == mutant.id or part in mutant.file

    found = [mutant for mutant in every if not ids or any(is_meant(part, mutant) for part in ids)]
    return found, [part for part in ids if not any(is_meant(part, mutant) for mutant in every)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="only these mutants, or those of these files (a part of the name)")
    parser.add_argument("--write", action="store_true", help="put what was found into the table of docs/mutants.md")
    parser.add_argument(
        "--quick", action="store_true", help="only the test that is expected to kill each; proves nothing"
    )
    options = parser.parse_args()
    mutants, unknown = chosen(options.ids, load_mutants())
    if unknown:
        parser.error(
            f"no mutant is named {', '.join(unknown)}, nor is one in such a file: "
            "tests/mutants/*.toml have the names, of which all is needed, and the files, of which a part is enough"
        )
    assert not (options.write and options.quick), "the page holds the whole truth"
    with tempfile.TemporaryDirectory() as directory:
        outcomes = run_all(mutants, directory, quick=options.quick)
    rows = {outcome.mutant.id: row_of(outcome) for outcome in outcomes}
    say(count_up(rows))
    if options.write:
        write_page(rows)
    return 0 if all(outcome.is_fine for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
