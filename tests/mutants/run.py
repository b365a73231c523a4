"""Do the tests find bugs? ``python tests/mutants/run.py`` makes every mutant, and sees which test notices.

Each mutant meets the test that is expected to kill it, then the machines and the simulation, then the unit tests; one that
is listed as equivalent meets the first alone. The table goes to ``docs/mutants.md`` with ``--write``. The exit code is 0 if
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
            return self.status == "survived"
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
                for names in find_tests(mutant.area, mutant.killer, quick=quick or bool(mutant.equivalent)):
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


def format_table(outcomes):
    rows = ["| mutant | in | what a user would suffer | found by |", "|---|---|---|---|"]
    for outcome in outcomes:
        mutant = outcome.mutant
        test = outcome.test.partition("[")[0]
        found = f"`{test}`" if outcome.status == "killed" else f"**{outcome.status}**"
        if mutant.equivalent:
            found = f"equivalent: {mutant.equivalent}"
        rows.append(f"| `{mutant.id}` | `{mutant.file}` | {mutant.suffers} | {found} |")
    return "\n".join(rows)


def count_up(outcomes):
    """The figures, as one sentence."""
    killed = [outcome for outcome in outcomes if outcome.status == "killed"]
    by = {suite: sum(outcome.suite == suite for outcome in killed) for suite in ("sim", "machines", "unit")}
    equivalent = sum(bool(outcome.mutant.equivalent) for outcome in outcomes)
    bad = [f"`{outcome.mutant.id}`" for outcome in outcomes if not outcome.is_fine]
    sentence = (
        f"{len(outcomes)} mutants: {by['sim']} found by the simulation, {by['machines']} by the machines, {by['unit']} "
        f"by unit tests alone, {equivalent} equivalent, {len(bad)} to be seen to"
    )
    return sentence + (f": {', '.join(bad)}" if bad else ".")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="only these mutants, or those of these files (a part of the name)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/mutants.md")
    parser.add_argument(
        "--quick", action="store_true", help="only the test that is expected to kill each; proves nothing"
    )
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in load_mutants()
        if not options.ids or any(part == mutant.id or part in mutant.file for part in options.ids)
    ]
    assert not (options.write and (options.ids or options.quick)), "the page holds all mutants, and the whole truth"
    with tempfile.TemporaryDirectory() as directory:
        outcomes = run_all(mutants, directory, quick=options.quick)
    say(count_up(outcomes))
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{count_up(outcomes)}\n\n{format_table(outcomes)}\n\n{END}{after}")
    return 0 if all(outcome.is_fine for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
