"""Does ``make conformance`` pass: are all differences between kinesis-local and the table listed?

These tests play a part of the table, to check that the list is used and that the exit code is right. The command plays
it all.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
PART = (
    "stream-life",
    "stream-missing",
    "validation-*",
    "put-record*",
    "tags*",
    "headers",
    "client-json",
    "consumer-life",
)


def run(*arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-m", "tests.conformance", *arguments],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_kinesis_local_differs_only_as_listed():
    ended = run("--on", "kinesis-local", *(word for name in PART for word in ("--only", name)))
    assert "DIFFERENT" not in ended.stdout, ended.stdout
    assert "VANISHED" not in ended.stdout, ended.stdout
    assert ended.returncode == 0, ended.stdout
    assert "more known" in ended.stdout


def test_a_scenario_that_does_not_exist_is_named():
    ended = run("--only", "no-such-*")
    assert (ended.returncode, ended.stdout) == (2, "no scenario is named 'no-such-*': --list shows them\n")


def test_the_list_has_every_scenario():
    ended = run("--list")
    assert ended.returncode == 0
    assert len(ended.stdout.splitlines()) > 45


@pytest.mark.parametrize("arguments", [("--resume",), ("--jobs", "0"), ("--aws", "--on", "embedded")])
def test_options_that_make_no_sense_are_refused(arguments):
    assert run(*arguments).returncode == 2
