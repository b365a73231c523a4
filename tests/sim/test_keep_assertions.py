"""Do the oracles still fail under ``python -O``?"""

import subprocess
import sys
from pathlib import Path

import pytest
from producer_oracles import check_end

HERE = Path(__file__).parent

# A producer that, by its own account, never finishes. Only an assertion of the oracles detects it.
BROKEN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from shardline.core.producer.intake import Intake
Intake.outstanding = property(lambda intake: 1)
import simulate
print("optimized" if not __debug__ else "not optimized")
sys.exit(simulate.main())
"""


class Unfinished:
    """A shell with a waiter in its queue."""

    machine = None
    queue = ("a waiter",)


def test_an_oracle_objects_in_this_run():
    with pytest.raises(AssertionError, match="P7"):
        check_end(Unfinished)


@pytest.mark.parametrize("world", ["producer", "fleet"])
def test_an_oracle_objects_outside_pytest_with_o(world):
    ended = subprocess.run(
        [sys.executable, "-O", "-c", BROKEN, str(HERE), "--world", world, "--seeds", "2"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout.startswith("optimized\n"), ended.stderr
    assert ended.stdout.count("P1") >= 2, ended.stdout
    assert ended.returncode == 1


def test_an_oracle_objects_in_pytest_with_o():
    ended = subprocess.run(
        [
            sys.executable,
            "-O",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"{__file__}::{test_an_oracle_objects_in_this_run.__name__}",
        ],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, "1 passed" in ended.stdout) == (0, True), ended.stdout + ended.stderr
