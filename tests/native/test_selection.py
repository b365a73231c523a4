"""Which form is chosen at import, and what does the package say about it?"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import shardline
from shardline import _speedups

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
IS_PURE = os.environ.get("SHARDLINE_PURE", "") not in {"", "0"}


def run(code, *, path=SRC, **environment):
    """Return what a new process prints, on both streams."""
    settings = {name: value for name, value in os.environ.items() if name != "SHARDLINE_PURE"}
    settings |= {"PYTHONPATH": str(path), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr.strip()


@pytest.fixture
def copy(tmp_path):
    """The package without its extension."""
    shutil.copytree(SRC, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return tmp_path / "src"


def test_this_run_uses_the_form_that_it_should():
    """CI compiles the extension. A machine without a compiler or headers runs everything in the pure form."""
    can_compile = shutil.which("cc") is not None and (Path(sysconfig.get_path("include")) / "Python.h").exists()
    assert shardline.implementation == ("native" if can_compile and not IS_PURE else "pure")


@pytest.mark.parametrize("value", ["1", "true"])
def test_the_environment_forces_the_pure_form(value):
    code = "import shardline; from shardline._speedups import reason; print(shardline.implementation, reason)"
    assert run(code, SHARDLINE_PURE=value) == ("pure SHARDLINE_PURE is set", "")


def test_a_package_without_the_extension_is_pure_and_does_not_warn(copy):
    code = "import shardline; from shardline._speedups import reason; print(shardline.implementation, reason)"
    assert run(code, path=copy) == ("pure the C extension is not installed", "")


def extension_in(copy, text):
    (copy / "shardline" / "_speedups" / "_native.py").write_text(text)


def test_an_extension_of_another_version_is_ignored_with_one_warning(copy):
    extension_in(copy, 'version = "0.0.1"')
    out, err = run("import shardline; print(shardline.implementation); import shardline.sync", path=copy)
    assert out == "pure"
    [warning] = re.findall(r"RuntimeWarning: (.*)", err)
    assert warning == (
        "Shardline's C extension is not used: it was built for version 0.0.1, and this is version "
        f"{shardline.__version__}. Install the package again to build it."
    )


def test_an_extension_that_cannot_be_loaded_is_ignored_with_one_warning(copy):
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (copy / "shardline" / "_speedups" / f"_native{suffix}").write_bytes(b"not a library")
    out, err = run("import shardline; print(shardline.implementation)", path=copy)
    assert out == "pure"
    assert len(re.findall("RuntimeWarning: Shardline's C extension is not used: ", err)) == 1


def test_twin_returns_the_form_in_use():
    def md5_many(messages):
        return messages

    chosen = _speedups.twin(md5_many)
    assert _speedups.pure_twins.pop("md5_many") is md5_many
    assert chosen is (md5_many if _speedups.native is None else _speedups.native.md5_many)


@pytest.mark.skipif(_speedups.native is None, reason="the pure form has every function")
def test_an_extension_that_lacks_a_function_says_what_to_do():
    def no_such_function():
        """Is not compiled."""

    with pytest.raises(ImportError, match="C extension has no no_such_function: run `make native`"):
        _speedups.twin(no_such_function)
    assert _speedups.pure_twins.pop("no_such_function") is no_such_function
