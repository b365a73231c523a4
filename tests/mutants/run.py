"""Runs the tests on every mutant, to see whether they find bugs: ``python tests/mutants/run.py``.

The test that killed a mutant last time runs first, then the machines, then the simulation, until one test fails. The
machines that execute the changed lines run first, the fastest of them before the others; a machine that does not enter a
changed function cannot tell the mutant from the original, and is left out. The run of the unchanged code shows which
test executes what (``footprints.py``). A mutant that is listed as equivalent has to survive them all; because this takes
minutes for each, these mutants are left out unless ``--whole`` or their names are given. ``--write`` puts the results
into ``results.tsv`` (listed mutants) and ``generated.tsv`` (generated mutants), while they come, and the figures into
``docs/tested/mutants.md``. The exit code is 0 if every mutant was killed by the simulation or by the machines, or is
equivalent.

Invariants:

- The unchanged code passes the tests first; otherwise nothing is proved.
- A hang is detected by CPU time, not by the clock of a busy machine: a test that takes much longer than it took on the
  unchanged code has found the mutant.
- Hypothesis draws the same cases for the same tests, and shrinks nothing, and the hashes of strings are the same in
  each run: a mutant that is found today is found tomorrow, and the first failing case is enough.
"""

import argparse
import gc
import os
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest
from footprints import Recorder, file_of, is_recorded, read_footprints, remember, tests_that_can_kill
from generated import load_generated
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mutants import ROOT, SOURCE, DoesNotApply, MutantFinder, find_changes, load_mutants, put_into_loaded_code

PAGE = ROOT / "docs" / "tested" / "mutants.md"
RESULTS = ROOT / "tests" / "mutants" / "results.tsv"
HEAD = "mutant\tfile\twhat a user would suffer\tfound by"
GENERATED_RESULTS = ROOT / "tests" / "mutants" / "generated.tsv"
GENERATED_HEAD = "mutant\tfound by"
EQUIVALENT = "equivalent"  # found by no test, in generated.tsv; equivalents.toml has the reason
WRITE_INTERVAL = 30.0  # seconds between two writes of the results, so that an interrupted run is not lost
CPU_SECONDS = 400  # seconds for all tests together; they take 100 on a fast machine ...
CPU_SECONDS_FIRST = 60  # ... and the expected killers at most 20 ...
CPU_SECONDS_UNCHANGED = 1_600  # ... and with the recorder they take three times as long
CPU_SECONDS_TEST = 10  # for one test, and five times as long as it took with the recorder
MEMORY_BYTES = 4 << 30
UNFIT = (
    "server",
    "test_keep_assertions",
    "test_simulate",
    "test_ledger",
)  # parts of the names of tests that find nothing
UNFIT_FOR = {"producer": ["consumer"], "consumer": ["producer"]}  # those that find nothing in an area
OPTIONS = ["-qq", "-s", "--no-summary", "--timeout=0", "-p", "no:cacheprovider"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # about modules that the runner has imported
PASSED = "passed"


class Outcome(NamedTuple):
    mutant: object
    status: str
    """``killed``, ``survived`` or ``error``."""
    test: str = ""
    seconds: float = 0.0

    @property
    def is_fine(self):
        return self.status == ("survived" if self.mutant.equivalent else "killed")


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def tests_for(trial, items, last, footprints):
    """Return the tests that run on a mutant, in rounds: the last killer, and then the others.

    Without footprints, the tests that are expected to kill the mutant come before the rest.
    """
    first = [item for item in items if last and item.nodeid.startswith(f"tests/{last}")]
    others = [item for item in items if item not in first]
    if footprints is not None:
        return [first, tests_that_can_kill(trial.mutant, trial.changes, others, footprints)]
    expected = [item for item in others if is_expected(item, trial.mutant)]
    return [[*first, *expected], [item for item in others if item not in expected]]


def is_expected(item, mutant):
    """Whether a test is expected to kill a mutant."""
    return item.nodeid.startswith(f"tests/{mutant.killer}")


def is_fit(item, area):
    """Whether a test is one of those that must find the mutants of an area."""
    return not any(word in item.nodeid for word in (*UNFIT, *UNFIT_FOR.get(area, ())))


def limit_cpu_seconds(seconds):
    """Let the kernel end this process once it has used so much more time of the processor."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, -1))


class Session:
    """A pytest plugin that collects all tests once, and then runs trials instead of the tests.

    A trial is a process: what is imported by now need not be imported again. Its file has a line for each test that it
    began; the last line is ``PASSED``, or empty if a test failed.
    """

    def __init__(self, trials, jobs, *, quick):
        self._trials, self._jobs, self._quick = trials, jobs, quick
        self._last = last_killers()
        self._has_failed = False
        self._file = -1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        import shardline

        assert Path(shardline.__file__).is_relative_to(SOURCE), f"{shardline.__file__} is imported"
        for item in session.items:
            item.add_marker(pytest.mark.timeout(0), append=False)  # comes before the limit that a test may have
        warm_up()
        remember(session.items)
        gc.freeze()
        waiting, running = deque(self._trials), {}
        while waiting or running:
            # The trials of mutants need the footprints of the unchanged code.
            while waiting and len(running) < self._jobs and not any(one.mutant is None for one in running.values()):
                trial = waiting.popleft()
                trial.began()
                child = os.fork()
                if child == 0:
                    self._run(session, trial)
                running[child] = trial
            child, status = os.wait()
            ended = running.pop(child)
            ended.ended(status)
            if ended.mutant is None:
                remember(session.items)
        return True

    def pytest_runtest_logstart(self, nodeid):
        os.write(self._file, f"{nodeid}\n".encode())

    def pytest_runtest_logreport(self, report):
        self._has_failed = self._has_failed or report.failed

    def _run(self, session, trial):
        """Run in the child. Never returns."""
        try:
            self._file = trial.open()
            if trial.changes is not None:
                put_into_loaded_code(trial.mutant, trial.changes)
            recorder = Recorder(trial.directory) if trial.mutant is None else None
            known = None
            if recorder is not None:
                rounds = [self._not_recorded(session.items)]
                recorder.start()
            else:
                items = self._fit(trial.mutant, session.items)
                known = None if trial.changes is None else read_footprints(items)
                rounds = tests_for(trial, items, self._last.get(trial.mutant.id), known)
            for number, chosen in enumerate(rounds):
                seconds = CPU_SECONDS_FIRST if number == 0 else CPU_SECONDS
                limit_cpu_seconds(CPU_SECONDS_UNCHANGED if trial.mutant is None else seconds)
                self._run_round(session, chosen, recorder, known)
            if recorder is not None and not self._has_failed:
                recorder.write()
            os.write(self._file, b"" if self._has_failed else PASSED.encode())
        except BaseException:  # noqa: BLE001 - whatever it is, the parent reads it
            os.write(self._file, f"error: {traceback.format_exc()}".encode())
        finally:
            os._exit(0)

    def _fit(self, mutant, items):
        """Return the tests that may run on a mutant."""
        if self._quick:
            return [item for item in items if is_expected(item, mutant)]
        return [item for item in items if is_fit(item, mutant.area)]

    def _not_recorded(self, items):
        """Return the tests that the unchanged code has to pass, and has not passed yet: all of a file, or none."""
        mutants = [trial.mutant for trial in self._trials if trial.changes is not None]
        kinds = {(mutant.area, mutant.killer): mutant for mutant in mutants}
        files = {file_of(item) for mutant in kinds.values() for item in self._fit(mutant, items)}
        return [item for item in items if file_of(item) in files and not is_recorded(item)]

    def _run_round(self, session, chosen, recorder, known):
        session.items = chosen
        for item, following in zip_longest(chosen, chosen[1:]):
            if self._has_failed:
                return
            if known is not None:
                limit_cpu_seconds(CPU_SECONDS_TEST + 5 * known[item.nodeid][0])
            run = partial(item.config.hook.pytest_runtest_protocol, item=item, nextitem=following)
            if recorder is None:
                run()
            else:
                recorder.run(item, run)


@settings(max_examples=1)
@given(st.integers())
def warm_up(number):
    """Let Hypothesis read the constants of all modules, once for all trials."""
    assert isinstance(number, int)


class Trial:
    """One mutant, or the unchanged code, and its tests."""

    def __init__(self, mutant, directory, name, tell):
        self.mutant, self._tell = mutant, tell
        self.directory = Path(directory) / str(name)
        self.directory.mkdir()
        self._began = 0.0
        self.changes = None if mutant is None else find_changes(mutant)
        """The changes to loaded code. ``None``: none, or the mutant's text is imported instead of its file."""
        self.outcome = None

    def began(self):
        self._began = time.monotonic()

    def open(self):
        """Hide the output and the files of the tests, in the child."""
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(self.directory)
        out = os.open(os.devnull, os.O_WRONLY)
        os.dup2(out, 1)
        os.dup2(out, 2)
        return os.open(self.directory / "tests", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def ended(self, status):
        self.outcome = self.read_outcome(hangs=os.waitstatus_to_exitcode(status) < 0)
        self._tell(self.outcome)

    def read_outcome(self, *, hangs=False):
        path = self.directory / "tests"
        tests, is_error, error = (path.read_text() if path.exists() else "error: no test was run").partition("error: ")
        *_, last = ["", *tests.splitlines()]
        seconds = time.monotonic() - self._began
        if is_error or last == PASSED:
            return Outcome(self.mutant, "error" if is_error else "survived", error, seconds)
        return Outcome(self.mutant, "killed", last.removeprefix("tests/") + " (did not end)" * hangs, seconds)


def collect_and_run(trials, jobs, suites, *, quick):
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    code = pytest.main([*OPTIONS, *suites], plugins=[Session(trials, jobs, quick=quick)])
    assert code in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}, f"pytest itself failed: {code!r}"


def import_and_run(trial, suites, *, quick):
    """Run a trial whose mutant cannot be applied to loaded code: everything is imported again."""
    trial.began()
    child = os.fork()
    if child == 0:
        try:
            sys.meta_path.insert(0, MutantFinder(trial.mutant))
            collect_and_run([trial], 1, suites, quick=quick)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    trial.outcome = trial.read_outcome()


def run_all(mutants, directory, *, quick=False, with_sim=True, jobs=1, note=None):
    """Return the outcome of each mutant. ``note``, if given, is called with each as soon as it is known."""
    os.environ["SHARDLINE_PURE"] = "1"  # a compiled function would hide a mutant of its pure twin
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(Path(directory) / "hypothesis")
    everything = {"derandomize": True, "database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}
    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], **everything)
    settings.load_profile("mutants")
    runner = os.getpid()

    def tell(outcome):
        if outcome.mutant is None:
            assert outcome.status == "survived", f"the unchanged code fails {outcome.test}"
            return
        mark = "ok " if outcome.is_fine else "BAD"
        say(f"{mark} {outcome.mutant.id:44} {outcome.status:9} {outcome.seconds:5.1f} s  {outcome.test}")
        if note is not None and os.getpid() == runner:
            note(outcome)

    outcomes, trials = [], []
    for place, mutant in enumerate(mutants):
        try:
            trials.append(Trial(mutant, directory, place, tell))
        except (DoesNotApply, SyntaxError) as error:
            outcomes.append(Outcome(mutant, "error", str(error)))
            tell(outcomes[-1])
    suites = ["tests/machines", "tests/sim"] if with_sim or quick else ["tests/machines"]
    for trial in trials:
        if trial.changes is None:
            import_and_run(trial, suites, quick=quick)  # the process of the trial prints the outcome
            if note is not None:
                note(trial.outcome)
    unchanged = [Trial(None, directory, "unchanged", tell)]
    loaded = [trial for trial in trials if trial.changes is not None]
    collect_and_run([*unchanged, *loaded], jobs, suites, quick=quick)
    return [*outcomes, *(trial.outcome for trial in trials)]


# ---- the page


def row_of(outcome):
    """Return the cells of a row of the results."""
    mutant = outcome.mutant
    found = outcome.test.partition("[")[0] if outcome.status == "killed" else outcome.status
    if mutant.equivalent and outcome.is_fine:
        found = f"equivalent: {mutant.equivalent}"
    return [mutant.id, mutant.file, mutant.suffers, found]


def read_results():
    """Return the rows of the last runs, by the name of the mutant."""
    head, *lines = RESULTS.read_text().splitlines()
    assert head == HEAD
    return {line.partition("\t")[0]: line.split("\t") for line in lines}


def read_generated_results():
    """Return what the last runs of the generated mutants found, by the name of the mutant."""
    head, *lines = GENERATED_RESULTS.read_text().splitlines()
    assert head == GENERATED_HEAD
    return dict(line.split("\t") for line in lines)


def last_killers():
    """Return the test that killed each mutant in the last run, by the name of the mutant."""
    found = {name: row[-1] for name, row in read_results().items()} | read_generated_results()
    killed = {name: test.partition(" ")[0] for name, test in found.items()}
    return {name: test for name, test in killed.items() if test.startswith(("sim/", "machines/"))}


def part_of(page, name):
    """Return the lines between the two marks of a name."""
    return page.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0].splitlines()


def count_up(rows):
    """Return the figures of the results as one sentence."""
    found = {name: row[-1] for name, row in rows.items()}
    by = {suite: sum(test.startswith(f"{suite}/") for test in found.values()) for suite in ("sim", "machines")}
    equivalent = sum(test.startswith("equivalent: ") for test in found.values())
    bad = [f"`{name}`" for name, test in found.items() if not test.startswith(("sim/", "machines/", "equivalent: "))]
    sentence = (
        f"{len(rows)} mutants: {by['sim']} found by the simulation, {by['machines']} by the machines, "
        f"{equivalent} equivalent, {len(bad)} left"
    )
    return sentence + (f": {', '.join(bad)}" if bad else ".")


def generated_table(made, found):
    """Return the lines of the table of generated mutants: what was found of those that the code has now."""
    yield "| module | mutants | found by the machines | by the simulation | equivalent | left | not run |"
    yield "|---|---|---|---|---|---|---|"
    for file in dict.fromkeys(mutant.file for mutant in made):
        ours = [found.get(mutant.id, "") for mutant in made if mutant.file == file]
        by = Counter(test.partition("/")[0] for test in ours)
        figures = [len(ours), by["machines"], by["sim"], by[EQUIVALENT], by["survived"] + by["error"], by[""]]
        yield f"| `{file}` | {' | '.join(map(str, figures))} |"


def with_part(page, name, lines):
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.partition(begin)
    return "\n".join([before + begin, "", *lines, "", end + rest.partition(end)[2]])


def write_results(outcomes):
    """Write these results to the files and the page. Those of other mutants stay, if the mutants still exist."""
    known = read_results() | {one.mutant.id: row_of(one) for one in outcomes if not one.mutant.is_generated}
    table = {mutant.id: known[mutant.id] for mutant in load_mutants() if mutant.id in known}
    write_table(RESULTS, [HEAD, *("\t".join(row) for row in table.values())])
    made, found = load_generated(), read_generated_results()
    for mutant in made:  # a reason may have been added or dropped since the last run
        if mutant.equivalent is not None:
            found[mutant.id] = EQUIVALENT
        elif found.get(mutant.id) == EQUIVALENT:
            del found[mutant.id]
    for outcome in outcomes:
        if outcome.mutant.is_generated:
            is_known = outcome.mutant.equivalent and outcome.is_fine
            found[outcome.mutant.id] = EQUIVALENT if is_known else row_of(outcome)[-1]
    kept = {mutant.id: found[mutant.id] for mutant in made if mutant.id in found}
    write_table(GENERATED_RESULTS, [GENERATED_HEAD, *map("\t".join, kept.items())])
    page = with_part(PAGE.read_text(), "mutants", [count_up(table)])
    PAGE.write_text(with_part(page, "generated", generated_table(made, kept)))


def write_table(path, lines):
    path.write_text("\n".join([*lines, ""]))


def chosen(ids, every):
    """Return the requested mutants, and the requested names that no mutant has."""

    def is_meant(part, mutant):
        return part == mutant.id or part in mutant.file

    found = [mutant for mutant in every if not ids or any(is_meant(part, mutant) for part in ids)]
    return found, [part for part in ids if not any(is_meant(part, mutant) for mutant in every)]


def unfinished(mutants):
    """Return the mutants that have no result, or whose result is not fine."""
    found = {name: row[-1] for name, row in read_results().items()} | read_generated_results()
    return [mutant for mutant in mutants if not found.get(mutant.id, "").startswith(("sim/", "machines/", EQUIVALENT))]


class Notebook:
    """Writes the results every half minute."""

    def __init__(self, *, with_survivors):
        self._outcomes, self._written_at = [], time.monotonic()
        self._with_survivors = with_survivors

    def note(self, outcome):
        if outcome.status == "killed" or self._with_survivors:
            self._outcomes.append(outcome)
        if time.monotonic() > self._written_at + WRITE_INTERVAL:
            self.write()

    def write(self):
        write_results(self._outcomes)
        self._outcomes, self._written_at = [], time.monotonic()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="only these mutants, or those of these files (a part of the name)")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="how many run at the same time")
    parser.add_argument("--write", action="store_true", help="put what was found into the results and the page")
    parser.add_argument("--whole", action="store_true", help="also run all tests on each equivalent mutant")
    parser.add_argument("--new", action="store_true", help="only mutants that were not run, or that survived")
    parser.add_argument("--count", action="store_true", help="run nothing; write the figures of earlier runs again")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only the tests that are expected to kill each; a mutant that is not found stays as it was",
    )
    parser.add_argument(
        "--machines", action="store_true", help="leave out the simulation; a mutant that is not found stays as it was"
    )
    options = parser.parse_args()
    mutants, unknown = chosen(options.ids, [*load_mutants(), *load_generated()])
    if unknown:
        parser.error(
            f"no mutant is named {', '.join(unknown)}, nor is one in such a file: tests/mutants/*.toml have the names, "
            "of which all is needed, and the files, of which a part is enough"
        )
    if options.new:
        mutants = unfinished(mutants)
    if not options.whole:
        mutants = [mutant for mutant in mutants if mutant.equivalent is None or mutant.id in options.ids]
    return options, mutants


def main():
    options, mutants = parse_options()
    if options.count:
        write_results([])
        return 0
    notebook = Notebook(with_survivors=not (options.machines or options.quick))
    note = notebook.note if options.write else None
    with tempfile.TemporaryDirectory() as directory:
        outcomes = run_all(
            mutants, directory, quick=options.quick, with_sim=not options.machines, jobs=options.jobs, note=note
        )
    say(Counter("fine" if outcome.is_fine else outcome.status for outcome in outcomes))
    if options.write:
        notebook.write()
    return 0 if all(outcome.is_fine for outcome in outcomes) else 1


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"  # is read when the interpreter starts
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main())
