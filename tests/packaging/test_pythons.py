"""Does CI find every Python that it should run with?"""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from runpy import run_path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "pythons.py"
pythons = run_path(str(SCRIPT))
BASE = os.path.realpath(sys._base_executable)


def answer(version, *, path="/usr/bin/python3", level="final", has_venv=True):
    return [[int(part) for part in version.split(".")], level, path, has_venv]


def test_old_versions_and_previews_are_left_out_and_each_version_is_listed_once():
    answers = [
        answer("3.11.7", path="/a"),
        answer("3.11.2", path="/b"),
        answer("3.10.13"),
        answer("3.15.0", level="beta"),
        answer("3.11.2", path="/c"),
        answer("3.13.0", path="/d"),
    ]
    assert pythons["choose"](answers) == ({"3.11.7": "/a", "3.11.2": "/b", "3.13.0": "/d"}, [])


def test_a_python_without_venv_is_named():
    lame = answer("3.12.1", path="/lame", has_venv=False)
    assert pythons["choose"]([lame]) == ({}, ["left out: Python 3.12.1 (/lame) cannot create virtual environments"])
    assert pythons["choose"]([lame, answer("3.12.1", path="/whole")]) == ({"3.12.1": "/whole"}, []), (
        "another one has it"
    )


def test_differences_from_the_classifiers_are_named():
    project = '"Programming Language :: Python :: 3",\n"Programming Language :: Python :: 3.11",\n'
    assert pythons["differences"](["3.11.2", "3.11.7"], project) == []
    assert pythons["differences"](["3.14.1"], project) == [
        "not on this machine: Python 3.11, which pyproject.toml names",
        "not named by pyproject.toml: Python 3.14",
    ]


def test_this_python_is_found_through_its_environment_and_a_broken_shim_is_passed_over(tmp_path):
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    run = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    version = "{}.{}.{}".format(*sys.version_info)
    assert run.stdout.splitlines()[0] == f"{version} {BASE}"
    assert "3.99" not in run.stdout


def test_any_python_3_can_read_the_script():
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))


def test_the_first_minor_that_is_named_is_the_oldest_that_is_looked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if " :: 3." in line]
    assert named[0] == "{}.{}".format(*pythons["OLDEST"])
    assert named == sorted(set(named))
