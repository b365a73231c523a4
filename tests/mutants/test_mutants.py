"""Is the list of mutants true, and does its runner tell one that is found from one that is not?"""

import subprocess
import sys

import pytest

from mutants import HERE, ROOT, DoesNotApply, Mutant, load_mutants, mutated

MUTANTS = load_mutants()
# Run in a process of its own: the runner must not have imported what it changes.
SELF_TEST = """
import sys, tempfile
sys.path.insert(0, sys.argv[1])
from mutants import Mutant
from run import run_all
file, killer = "core/backoff.py", "machines/test_producer_promises.py::test_max_attempts_is_how_often_a_record_is_sent"
right, wrong = "self.failures += 1", "self.failures += 'one'"
mutants = [
    Mutant("to-be-found", file, right, wrong, "all", killer),
    Mutant("the-same", file, right, "self.failures = self.failures + 1", "nothing", killer),
    Mutant("outgrown", file, "text that is not there", "", "nothing", killer),
]
with tempfile.TemporaryDirectory() as directory:
    outcomes = run_all(mutants, directory, quick=True)
assert "shardline" not in sys.modules
print([(one.status, one.suite, one.is_fine) for one in outcomes])
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


def test_the_page_tells_of_every_mutant_and_that_none_is_left():
    page = (ROOT / "docs" / "mutants.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[0].strip("`") for row in rows] == [mutant.id for mutant in MUTANTS]
    for mutant, (_, file, suffers, found) in zip(MUTANTS, rows, strict=True):
        assert (file, suffers) == (f"`{mutant.file}`", mutant.suffers), mutant.id
        reason = f"equivalent: {mutant.equivalent}"
        assert found == reason if mutant.equivalent else found.startswith(("`sim/", "`machines/")), mutant.id
    assert ", 0 to be seen to." in page


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
    *_, told = done.stdout.splitlines()
    assert told == "[('killed', 'machines', True), ('survived', '', False), ('error', '', False)]"


def test_a_name_that_no_mutant_has_is_an_error():
    line = [sys.executable, str(HERE / "run.py"), "--quick", MUTANTS[0].id, "no-such-mutant", "core/no_such_file.py"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no mutant is named no-such-mutant, core/no_such_file.py" in done.stderr
    assert done.stdout == ""


def test_the_tree_is_left_alone():
    """MU2: after all of that the code is as it was."""
    assert "self.failures += 1\n" in (ROOT / "src" / "shardline" / "core" / "backoff.py").read_text()
