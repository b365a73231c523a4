"""Tests of ``cli.standard_streams``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from shardline.cli import standard_streams
standard_streams.guard()
for _ in range(3):
    print("x" * 100_000, "\\u20ac")
    print("to people", file=sys.stderr)
problem = standard_streams.take_problem()
again = standard_streams.take_problem()
sys.exit(10 if problem is None else 20 + (again is None))
"""


def run(script):
    command = f"{sys.executable} -c '{CODE}' {script}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)


def test_a_reader_that_has_gone_changes_nothing():
    ended = run("| true; exit ${PIPESTATUS[0]}")
    assert (ended.returncode, ended.stderr) == (10, "to people\n" * 3)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_what_stopped_the_output_is_given_once():
    ended = run("> /dev/full")
    assert (ended.returncode, ended.stderr) == (21, "to people\n" * 3)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_standard_error_may_be_lost():
    ended = run("2> /dev/full")
    assert (ended.returncode, ended.stdout) == (10, f"{'x' * 100_000} €\n" * 3)
    assert run("2>&-").returncode == 10
    assert run(">&-").returncode == 10


def test_a_terminal_that_cannot_show_a_character_shows_an_escape():
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=30, check=False, env=environment
    )
    assert ended.returncode == 10
    assert ended.stdout.splitlines()[0].endswith(" \\u20ac")


LOST = """
import sys
from shardline.cli import standard_streams
standard_streams.guard()
print("x")
sys.exit(standard_streams.is_lost())
"""


@pytest.mark.parametrize(("reader", "code"), [("cat > /dev/null", 0), ("true", 1)])
def test_lost_output_is_noticed(reader, code):
    command = f"(sleep 0.5; {sys.executable} -c '{LOST}') | {reader}; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (code, "")
