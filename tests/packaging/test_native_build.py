"""Is the C extension built where that is possible, and left out with one line where it is not?"""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[2]
build = run_path(str(ROOT / "build_native.py"), run_name="build_native")
REFUSED = "shardline: the C extension was not built, so the pure Python form is used: "

pytestmark = pytest.mark.timeout(900)  # a busy machine


def build_wheel(place, **environment):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("SHARDLINE_")} | environment
    return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)


def contents(place):
    [wheel] = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name).name for name in archive.namelist() if name.startswith("shardline/_speedups/")]
    return wheel.name, sorted(names)


NO_COMPILER = {"CC": "/nowhere/cc", "LDSHARED": "/nowhere/cc -shared"}
PYTHON_ALONE = ["__init__.py", "_native.pyi"]


def test_the_wheel_has_the_extension_of_this_python_and_no_source(tmp_path):
    done = build_wheel(tmp_path, SHARDLINE_BUILD="native")
    assert done.returncode == 0, done.stdout + done.stderr
    name, files = contents(tmp_path)
    assert "cp{}{}-cp".format(*sys.version_info[:2]) in name
    assert files == [*PYTHON_ALONE[:1], f"_native{sysconfig.get_config_var('EXT_SUFFIX')}", *PYTHON_ALONE[1:]]


def test_without_a_compiler_the_wheel_is_pure_and_one_line_says_so(tmp_path):
    done = build_wheel(tmp_path, **NO_COMPILER)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith(REFUSED)]
    assert "/nowhere/cc" in line
    name, files = contents(tmp_path)
    assert name.endswith("-py3-none-any.whl")
    assert files == PYTHON_ALONE


def test_a_build_that_must_be_native_fails_without_a_compiler(tmp_path):
    done = build_wheel(tmp_path, SHARDLINE_BUILD="native", **NO_COMPILER)
    assert done.returncode != 0
    assert not list(tmp_path.glob("*.whl"))


def test_a_pure_wheel_can_be_asked_for(tmp_path):
    done = build_wheel(tmp_path, SHARDLINE_BUILD="pure")
    assert done.returncode == 0, done.stdout + done.stderr
    assert REFUSED not in done.stdout
    assert contents(tmp_path)[0].endswith("-py3-none-any.whl")


def attempted(tmp_path, capsys):
    assert build["attempt"](ROOT, tmp_path) is None
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(REFUSED)
    return line.removeprefix(REFUSED)


def test_a_free_threaded_python_gets_no_extension(tmp_path, capsys, monkeypatch):
    known = sysconfig.get_config_var
    monkeypatch.delenv("SHARDLINE_BUILD", raising=False)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else known(name))
    assert attempted(tmp_path, capsys) == "it is not proved for free-threaded builds of Python"


def test_another_python_than_cpython_gets_no_extension(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SHARDLINE_BUILD", raising=False)
    monkeypatch.setattr("platform.python_implementation", lambda: "PyPy")
    assert attempted(tmp_path, capsys) == "it is written for CPython, and this is PyPy"


def test_a_python_without_headers_gets_no_extension(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SHARDLINE_BUILD", raising=False)
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: "/nowhere/include")
    assert attempted(tmp_path, capsys) == "the headers of Python are missing (/nowhere/include/Python.h)"


def test_the_extension_has_the_version_of_the_package():
    import shardline

    assert build["version_of"](ROOT) == shardline.__version__
