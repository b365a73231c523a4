"""Does each make target install only what it needs, and does an unsuitable Python give a clear message?"""

import ast
import fcntl
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from runpy import run_path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "requirements" / "install.py"
install = run_path(str(SCRIPT))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
RULES = re.findall(r"^([a-z-]+):([^#\n]*)(?:##.*)?\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)


def arguments_of(*names):
    return install["requirements_of"](names)


def test_the_demo_installs_what_it_needs_alone_and_compiles_nothing():
    assert arguments_of("demo") == ["--only-binary", ":all:", "--editable", ".[cli,local]"]


def test_sets_are_installed_together():
    assert arguments_of("demo", "docs") == ["--editable", ".[cli,local]", "--group", "docs"]
    assert arguments_of("lint", "build") == ["--group", "build", "--group", "lint"]


def test_every_set_names_extras_and_groups_that_exist():
    for extras, groups, _ in install["SETS"].values():
        assert set(extras) <= PROJECT["project"]["optional-dependencies"].keys()
        assert set(groups) <= PROJECT["dependency-groups"].keys()
    assert set(install["ALL_EXTRAS"]) == PROJECT["project"]["optional-dependencies"].keys()


def test_every_group_belongs_to_one_set():
    """The security tools have an environment of their own."""
    of_sets = [group for _, groups, _ in install["SETS"].values() for group in groups]
    assert sorted([*of_sets, "security"]) == sorted(PROJECT["dependency-groups"])


def imports_of(path):
    """Return the names of the packages that a script imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def test_the_benchmarks_have_what_they_import():
    scripts = list((ROOT / "benchmarks").glob("*.py"))
    peers = {"aiokpl", "kinesis", "uvloop"}  # in an environment of their own, .servers/clients
    ours = {script.stem for script in scripts} | {"shardline"}
    imported = {name for script in scripts for name in imports_of(script)} - sys.stdlib_module_names - peers - ours
    extras = [text for needed in PROJECT["project"]["optional-dependencies"].values() for text in needed]
    listed = PROJECT["project"]["dependencies"] + extras + PROJECT["dependency-groups"]["bench"]
    names = {Requirement(text).name.replace("-", "_") for text in listed}
    if "opentelemetry_sdk" in names:  # its API and its SDK share a package
        names.add("opentelemetry")
    assert {"boto3", "cbor2"} <= imported
    assert imported <= names


def test_make_knows_the_same_sets():
    [listed] = re.findall(r"^SETS := (.*)$", MAKEFILE, re.MULTILINE)
    assert set(listed.split()) == install["SETS"].keys()


# The commands of recipes, and the set that has each. A script of our own needs the package, or more.
TOOLS = {
    "shardline": {"DEMO", "TEST"},
    "ruff": {"LINT"},
    "mypy": {"TYPES"},
    "pyright": {"TYPES"},
    "lint-imports": {"TEST"},
    "codespell": {"DOCS"},
    "mkdocs": {"DOCS"},
    "python -m pytest": {"TEST"},
    "python -O -m pytest": {"TEST"},
    "python -O tests": {"TEST"},
    "python -m coverage": {"TEST"},
    "python -m tests.conformance": {"TEST"},
    "python -m hatchling": {"BUILD"},
    "python build_native.py": {"BUILD"},
    "python build/sanitize/build_native.py": {"TEST"},
    "python benchmarks": {"BENCH", "TEST"},
    "python tests": {"TEST"},
    "python docs": {"TEST"},
}


@pytest.mark.parametrize(("target", "needs", "recipe"), RULES, ids=[rule[0] for rule in RULES])
def test_a_target_needs_the_set_of_what_it_runs(target, needs, recipe):
    stamps = set(re.findall(r"\$\((\w+)\)", needs))
    expanded = recipe.replace("$(PYTEST)", "$(BIN)/python -m pytest").replace(
        "$(PYTEST_CLOCK)", "$(BIN)/python -m pytest"
    )
    for command in re.findall(r"\$\(BIN\)/([^\n]*)", expanded):
        [having] = [sets for tool, sets in TOOLS.items() if re.match(rf"{tool}\b", command)]
        assert stamps & having, f"make {target} runs {command}"


def test_make_demo_asks_for_nothing_else():
    [(_, needs, recipe)] = [rule for rule in RULES if rule[0] == "demo"]
    assert needs.split() == ["$(DEMO)"]
    assert recipe == "\t$(BIN)/shardline demo\n"


def test_the_rules_were_really_read():
    assert {"demo", "test", "check", "docs", "build", "bench-guard", "lint"} <= {target for target, _, _ in RULES}


def test_an_old_python_is_refused_with_what_to_do():
    told = install["refusal"]((3, 10), has_venv=True, python="/usr/bin/python3")
    assert told == (
        "/usr/bin/python3 is Python 3.10; Shardline needs 3.11 or newer. "
        "Choose another one: make PYTHON=/path/to/python3.11"
    )
    assert install["refusal"]((3, 11), has_venv=True, python="/usr/bin/python3") is None
    assert install["OLDEST_PYTHON"] == (3, 11)
    assert PROJECT["project"]["requires-python"] == ">=3.11"


def test_an_old_python_can_read_the_script():
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))


def test_a_python_without_venv_says_what_to_install(tmp_path):
    """This is the case on Debian without python3-venv, where the import of ensurepip fails."""
    (tmp_path / "ensurepip.py").write_text("raise ModuleNotFoundError(__name__)")
    ended = run_script(tmp_path / "environment", "demo", PYTHONPATH=str(tmp_path))
    version = "{}.{}".format(*sys.version_info[:2])
    assert ended.returncode == 1
    assert ended.stderr == (
        f"error: {sys.executable} cannot create virtual environments, because its venv module is missing. "
        f"On Debian or Ubuntu: apt-get install python{version}-venv\n"
    )
    assert not (tmp_path / "environment").exists()


def test_a_set_that_is_there_is_not_installed_again(tmp_path):
    (tmp_path / ".demo").touch()
    ended = run_script(tmp_path, "demo")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    stale = tmp_path / ".test"
    stale.touch()
    os.utime(stale, (0, 0))
    assert install["is_fresh"](tmp_path / ".demo")
    assert not install["is_fresh"](stale)
    assert not install["is_fresh"](tmp_path / ".lint")


def test_two_installations_take_turns(tmp_path):
    (tmp_path / ".demo").touch()
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(command(tmp_path, "demo")) as waiting:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(timeout=1)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert waiting.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("found", "older"),
    [
        ("pip-23.0.1.dist-info", True),
        ("pip-25.0.dist-info", True),
        ("pip-25.1.dist-info", False),
        ("pip-26.0b1.dist-info", False),
        (None, True),
    ],
)
def test_pip_is_upgraded_only_where_it_cannot_read_groups(tmp_path, found, older):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    if found:
        (packages / found).mkdir()
    assert install["pip_is_older_than"]((25, 1), tmp_path) is older


def command(environment, *names):
    return [sys.executable, str(SCRIPT), "--into", str(environment), *names]


def run_script(environment, *names, **variables):
    return subprocess.run(
        command(environment, *names),
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
