"""Does CI run its stages in order, with every Python, stop at the first failure, and name the failed stage?

The script runs here with a make that only notes its calls.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / ".ci" / "run"
STAGES = re.findall(r'^ *stage "([^"]+)"', RUN.read_text(), re.MULTILINE)
MAKE = """#!/bin/sh
echo "$@" >> "$NOTES"
for word in "$@"; do
    case $word in VENV=*) mkdir -p "${word#VENV=}" ;; esac
done
case " $* " in *" ${FAILS:-nothing fails} "*) exit 1 ;; esac
echo "lost 0"
"""


@pytest.fixture
def ci(tmp_path):
    """Run the script, with the call of make that should fail. Return its exit code, its output, and make's calls."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(RUN, tmp_path / ".ci" / "run")
    (tmp_path / ".ci" / "pythons.py").write_text("print('3.11.7 /first/python3')\nprint('3.13.0 /second/python3')\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("make", "node", "npm"):
        (tools / name).write_text(MAKE)
        (tools / name).chmod(0o755)
    notes = tmp_path / "notes"

    def run(fails=""):
        notes.write_text("")
        variables = {"PATH": f"{tools}:{os.environ['PATH']}", "NOTES": str(notes), "TMPDIR": str(tmp_path)}
        ended = subprocess.run(
            [str(tmp_path / ".ci" / "run")],
            env=os.environ | variables | ({"FAILS": fails} if fails else {}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return ended.returncode, ended.stdout, notes.read_text().splitlines()

    return run


def test_all_stages_and_all_pythons(ci):
    code, printed, calls = ci()
    assert code == 0
    rows = re.findall(r"^\| (.*) \| \d+ min \d\d s \|$", printed, re.MULTILINE)
    assert rows == [stage.replace("${entry%% *}", "3.13.0") for stage in STAGES]
    assert printed.endswith("Pythons: 3.11.7 3.13.0\n")
    demos = [call for call in calls if " demo " in call]
    assert sorted(re.findall(r"PYTHON=(\S+)", " ".join(demos))) == ["/first/python3", "/second/python3"]
    [quick] = [call for call in calls if " quick " in call]
    assert "PYTHON=/second/python3" in quick
    assert {"static", "test", "bench-guard"} <= set(calls)


@pytest.mark.parametrize(
    ("fails", "stage"),
    [
        ("setup", "install"),
        ("demo PYTHON=/second/python3", "demo, with each Python"),
        ("quick", "fast part of the tests, Python 3.13.0"),
        ("test", "all tests"),
        ("docs build", "documentation and package"),
    ],
)
def test_a_failure_ends_it_and_is_named(ci, tmp_path, fails, stage):
    code, printed, calls = ci(fails)
    assert code == 1
    assert f'FAILED in the stage "{stage}"\n' in printed
    assert printed.endswith("Pythons: 3.11.7 3.13.0\n")
    assert any(fails in call for call in calls)
    assert not any("bench-guard" in call for call in calls) or stage == STAGES[-1], "nothing runs after it"
    assert not list(tmp_path.glob("tmp.*")), "the temporary environments are removed"


def test_a_demo_that_installs_too_much_fails(ci, tmp_path):
    du = tmp_path / "tools" / "du"
    du.write_text("#!/bin/sh\nprintf '150\\t%s\\n' \"$2\"\n")
    du.chmod(0o755)
    code, printed, _ = ci()
    assert code == 1
    assert "its environment takes 150 MB" in printed
    assert 'FAILED in the stage "demo, with each Python"' in printed


def test_contributing_lists_the_stages():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.split("| stage | runs | time |\n|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
    listed = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()]
    assert listed == [stage.replace("Python ${entry%% *}", "per further Python") for stage in STAGES]
    assert len(listed) >= 9
