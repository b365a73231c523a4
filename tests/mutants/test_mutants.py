"""Is the list of mutants up to date, and does the runner distinguish killed mutants from survivors?"""

import json
import subprocess
import sys
from types import SimpleNamespace

import footprints
import pytest
import run
from footprints import changed_lines, lines_of
from generated import MODULES, load_generated, make, read_equivalents
from run import (
    EQUIVALENT,
    PAGE,
    Outcome,
    count_up,
    generated_table,
    last_killers,
    part_of,
    read_generated_results,
    read_results,
)

from mutants import HERE, ROOT, DoesNotApply, Mutant, find_changes, load_mutants, mutated, read

MUTANTS = load_mutants()
TOY = """class Toy:
    def __init__(self):
        self.ready = 1 < 2

    def step(self, now):
        assert now != 3
        local = 0
        if self.ready and 0 < now <= self.end:
            self.at, local = now, 1
            self.go(local)
        while self.ready:
            local = 1 if now is None else 2
        self.go(local)
        return [each for each in self.all if each]
"""
# Run in a process of its own, because the mutants must not stay in the code of this one.
SELF_TEST = """
import json, sys, tempfile
sys.path.insert(0, sys.argv[1])
import run
from mutants import Mutant
run.CPU_SECONDS_FIRST = run.CPU_SECONDS = 3
file, killer = "core/backoff.py", "machines/test_producer_promises.py::test_max_attempts_is_how_often_a_record_is_sent"
right, wrong = "self.failures += 1", "self.failures += 'one'"
mutants = [
    Mutant("to-be-found", file, right, wrong, "all", killer),
    Mutant("the-same", file, right, "self.failures = self.failures + 1", "nothing", killer),
    Mutant("outgrown", file, "text that is not there", "", "nothing", killer),
    Mutant("not-in-a-function", file, '"_rng", "failures")', '"_rng")', "all", killer),
    Mutant("never-ends", file, right, right + chr(10) + "        while True: pass", "all", killer),
]
with tempfile.TemporaryDirectory() as directory:
    outcomes = run.run_all(mutants, directory, quick=True, jobs=2)
print(json.dumps({one.mutant.id: [one.status, one.is_fine] for one in outcomes}))
"""


def test_there_are_many_and_each_says_what_it_is():
    assert len(MUTANTS) >= 60
    for mutant in MUTANTS:
        assert all([mutant.id, mutant.file, mutant.old, mutant.suffers, mutant.killer]), mutant
        assert mutant.old != mutant.new


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_every_mutant_still_applies_and_is_python(mutant):
    compile(mutated(mutant), mutant.file, "exec")
    file, _, test = mutant.killer.partition("::")
    text = (ROOT / "tests" / file).read_text()
    assert not test or f"def {test}(" in text, f"{file} has no {test}"


def test_the_results_have_every_mutant_and_none_is_left():
    rows = read_results()
    assert [*rows] == [mutant.id for mutant in MUTANTS]
    for mutant in MUTANTS:
        _, file, suffers, found = rows[mutant.id]
        assert (file, suffers) == (mutant.file, mutant.suffers), mutant.id
        reason = f"equivalent: {mutant.equivalent}"
        assert found == reason if mutant.equivalent else found.startswith(("sim/", "machines/")), mutant.id
    assert count_up(rows) in PAGE.read_text()
    assert count_up(rows).endswith(", 0 left.")


def test_the_page_counts_the_generated_mutants():
    """After a change to one of these modules: ``python tests/mutants/run.py --count``, or ``--new --write`` to run them."""
    made, found = load_generated(), read_generated_results()
    assert len({mutant.id for mutant in made}) == len(made)
    assert sum(mutant.equivalent is None for mutant in made) >= 60
    for mutant in made:
        test = found.get(mutant.id, "machines/")
        assert test == EQUIVALENT if mutant.equivalent else test.startswith(("sim/", "machines/")), mutant.id
    assert part_of(PAGE.read_text(), "generated")[2:-1] == [*generated_table(made, found)], "run.py --count writes it"


def test_a_run_writes_what_it_found_and_keeps_the_rest(tmp_path, monkeypatch):
    for name in ("RESULTS", "GENERATED_RESULTS", "PAGE"):
        copy = tmp_path / getattr(run, name).name
        copy.write_text(getattr(run, name).read_text())
        monkeypatch.setattr(run, name, copy)
    first, second, *_ = [mutant for mutant in load_generated() if mutant.equivalent is None]
    before, listed = read_generated_results(), read_results()
    run.write_results([Outcome(first, "killed", "machines/x.py::test_y[1]"), Outcome(MUTANTS[0], "survived")])
    assert read_generated_results()[first.id] == "machines/x.py::test_y"
    assert last_killers()[first.id] == "machines/x.py::test_y"
    assert {**read_generated_results(), first.id: ""} == {**before, first.id: ""}
    assert read_results()[MUTANTS[0].id][-1] == "survived"
    assert [*read_results()] == [*listed]
    assert f"1 left: `{MUTANTS[0].id}`" in run.PAGE.read_text()
    assert run.unfinished([MUTANTS[0], first]) == [MUTANTS[0]]
    run.write_results([Outcome(second, "survived")])
    assert run.unfinished([first, second]) == [second]


class Item:
    """A test by its name."""

    def __init__(self, nodeid):
        self.nodeid = f"tests/{nodeid}"


def made_by(name):
    """Return a generated mutant as a trial, as the runner needs it."""
    [mutant] = [mutant for mutant in make("core/consumer/cursor.py") if mutant.id == name]
    return SimpleNamespace(mutant=mutant, changes=find_changes(mutant))


def test_the_test_that_killed_a_mutant_last_time_runs_first():
    trial = made_by("cursor.Cursor.take: self.place = place + 1 -> pass")
    [line] = changed_lines(trial.mutant)
    [(_, function, _)] = trial.changes
    other = max(lines_of(function) - {line})
    items = {
        Item(f"machines/test_{name}"): seconds_and_lines
        for name, seconds_and_lines in {
            "slow": (2.0, {"core/consumer/cursor.py": [line, other]}),
            "fast": (1.0, {"core/consumer/cursor.py": [line]}),
            "before": (0.5, {"core/consumer/cursor.py": [other]}),
            "elsewhere": (0.1, {"core/consumer/cursor.py": [1], "core/consumer/handout.py": [line]}),
            "unknown": (3.0, None),
            "server": (0.1, None),
            "producer": (0.1, None),
            "last": (9.0, {}),
        }.items()
    }
    known = {item.nodeid: found for item, found in items.items()}
    fit = [item for item in items if run.is_fit(item, "consumer")]
    rounds = run.tests_for(trial, fit, "machines/test_last", known)
    names = [[item.nodeid.removeprefix("tests/machines/test_") for item in items] for items in rounds]
    assert names == [["last"], ["fast", "slow", "unknown", "before"]]


def test_the_simulation_runs_as_a_whole_or_not_at_all():
    trial = made_by("cursor.Cursor.take: self.place = place + 1 -> pass")
    lines = {"core/consumer/cursor.py": [*changed_lines(trial.mutant)]}
    chunk, states = Item("sim/test_fleet.py::test_chunk"), Item("sim/test_fleet.py::test_states")
    reached = {chunk.nodeid: (9.0, lines), states.nodeid: (0.1, {})}
    assert run.tests_for(trial, [chunk, states], None, reached) == [[], [chunk, states]]
    not_reached = {chunk.nodeid: (9.0, {}), states.nodeid: (0.1, {})}
    assert run.tests_for(trial, [chunk, states], None, not_reached) == [[], []]


def test_without_footprints_the_tests_that_are_expected_to_find_a_mutant_run_first():
    mutant = Mutant("m", "core/consumer/x.py", "", "", "", "machines/test_b.py")
    items = [Item(name) for name in ("machines/test_a.py::test_1", "machines/test_b.py::test_2", "sim/test_c.py::x")]
    trial = SimpleNamespace(mutant=mutant, changes=None)
    assert run.tests_for(trial, items, None, None) == [[items[1]], [items[0], items[2]]]
    assert run.tests_for(trial, items, "sim/test_c.py::x", None) == [[items[2], items[1]], [items[0]]]


def test_the_lines_that_a_mutant_changes_are_those_of_the_original():
    text = read(Mutant("m", "core/backoff.py", "", "", "", ""))
    number = 1 + text[: text.index("self.failures += 1")].count("\n")
    for new in ("pass", "self.failures += 2\n        pass"):
        assert changed_lines(Mutant("m", "core/backoff.py", "self.failures += 1", new, "", "")) == {number}


def test_footprints_hold_until_a_test_or_what_it_uses_changes(tmp_path, monkeypatch):
    (tmp_path / "tests" / "machines").mkdir(parents=True)
    one, other = tmp_path / "tests" / "machines" / "test_one.py", tmp_path / "tests" / "machines" / "test_other.py"
    one.write_text("from tests.machines.test_other import x\n")
    other.write_text("x = 1\n")
    monkeypatch.setattr(footprints, "ROOT", tmp_path)

    def place(path):
        footprints.state_of.cache_clear()
        footprints.place_of.cache_clear()
        return footprints.place_of(path.relative_to(tmp_path).as_posix())

    before = place(one), place(other)
    assert (place(one), place(other)) == before
    one.write_text("from tests.machines.test_other import x, y\n")
    assert place(other) == before[1]
    changed = place(one)
    assert changed != before[0]
    other.write_text("x = 2\n")
    assert place(one) not in {before[0], changed}
    assert place(other) != before[1]


def test_every_equivalent_mutant_has_a_reason():
    for because in read_equivalents().values():
        assert len(because.split()) > 4


@pytest.mark.parametrize("name", MODULES)
def test_every_generated_mutant_changes_what_its_code_does(name):
    for mutant in make(f"core/consumer/{name}.py"):
        assert find_changes(mutant) != [], mutant.id


def test_every_comparison_condition_and_state_change_is_mutated(tmp_path):
    (tmp_path / "shardline").mkdir()
    (tmp_path / "shardline" / "toy.py").write_text(TOY)
    made = {mutant.id.removeprefix("toy.Toy."): mutant.new for mutant in make("toy.py", source=tmp_path)}
    assert [*made] == [
        "step: self.ready and 0 < now <= self.end -> 0 < now <= self.end",
        "step: self.ready and 0 < now <= self.end -> self.ready",
        "step: 0 < now <= self.end -> 0 <= now <= self.end",
        "step: 0 < now <= self.end -> 0 < now < self.end",
        "step: self.at, local = (now, 1) -> pass",
        "step: self.go(local) -> pass",
        "step: self.ready -> not self.ready",
        "step: now is None -> now is not None",
        "step: self.go(local) -> pass (2)",
        "step: each -> not each",
    ]
    assert made["step: now is None -> now is not None"] == TOY.replace("now is None", "(now is not None)")
    last = "    self.go(local)\n        return"
    assert made["step: self.go(local) -> pass (2)"] == TOY.replace(last, last.replace("self.go(local)", "pass"))


def test_a_mutant_that_the_code_has_outgrown_is_an_error():
    with pytest.raises(DoesNotApply, match="occurs 0 times"):
        mutated(Mutant("x", "core/backoff.py", "no such text", "", "", ""))
    with pytest.raises(DoesNotApply, match="occurs 0 times"):
        mutated(Mutant("x", "core/no_such_file.py", "text", "", "", ""))
    with pytest.raises(DoesNotApply, match=r"occurs \d+ times"):
        mutated(Mutant("x", "core/backoff.py", "self", "", "", ""))


@pytest.mark.timeout(300)
def test_the_runner_finds_what_is_wrong_and_tells_what_it_did_not_find():
    done = subprocess.run(
        [sys.executable, "-c", SELF_TEST, str(HERE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    killed = {name: ["killed", True] for name in ("to-be-found", "not-in-a-function", "never-ends")}
    assert json.loads(done.stdout.splitlines()[-1]) == killed | {
        "the-same": ["survived", False],
        "outgrown": ["error", False],
    }


def test_a_name_that_no_mutant_has_is_an_error():
    line = [sys.executable, str(HERE / "run.py"), "--quick", MUTANTS[0].id, "no-such-mutant", "core/no_such_file.py"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no mutant is named no-such-mutant, core/no_such_file.py" in done.stderr
    assert done.stdout == ""


def test_the_tree_is_left_alone():
    """After a run, the code is unchanged."""
    assert "self.failures += 1\n" in (ROOT / "src" / "shardline" / "core" / "backoff.py").read_text()
