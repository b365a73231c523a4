"""Does the wheel install in a clean environment, with exactly the dependencies that each extra names?"""

import json
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

pytestmark = pytest.mark.timeout(900)  # a slow network


def run(*command, cwd=None):
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", place, cwd=ROOT)
    [built] = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The interpreter of an empty virtual environment."""
    place = tmp_path_factory.mktemp("clean")
    venv.create(place, with_pip=False)
    return place / "bin" / "python"


def install(python, *options):
    constraints = ROOT / "requirements" / "constraints.txt"
    fixed = ["--quiet", "--disable-pip-version-check", "--constraint", constraints]
    return run(sys.executable, "-m", "pip", "--python", python, "install", *fixed, *options)


def needed_by(requirements, metadata):
    """Return the names of all packages that these requirements lead to."""
    found, todo = set(), [(Requirement(text), "") for text in requirements]
    while todo:
        asked, extra = todo.pop()
        if asked.marker is not None and not asked.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(asked.name)
        for chosen in asked.extras | {""}:
            if (name, chosen) not in found:
                found.add((name, chosen))
                todo += [(Requirement(text), chosen) for text in metadata[name].get("requires_dist", ())]
    return {name for name, _ in found}


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_an_extra_brings_what_it_names_and_nothing_else(wheel, clean, extra):
    chosen = f"{wheel}[{extra}]" if extra else str(wheel)
    report = json.loads(install(clean, "--dry-run", "--ignore-installed", "--report", "-", chosen))
    metadata = {canonicalize_name(one["metadata"]["name"]): one["metadata"] for one in report["install"]}
    named = PROJECT["dependencies"] + EXTRAS.get(extra, [])
    assert metadata.keys() == needed_by(named, metadata) | {"shardline"}
    assert ("aiohttp" in metadata) == (extra in {"local", "console"})


def test_the_wheel_alone_is_a_client_and_names_the_extras_that_are_missing(wheel, clean):
    install(clean, str(wheel))
    use = "from shardline import Client, Consumer, Producer, deaggregate; import shardline.sync, shardline.testing"
    assert run(clean, "-I", "-c", use) == ""

    def said(code):
        done = subprocess.run([clean, "-I", "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        return done.stderr.splitlines()[-1]

    assert "pip install 'shardline[local]'" in said("from shardline.testing import LocalKinesis; LocalKinesis()")
    assert "pip install 'shardline[cli]'" in said("from shardline.cli.main import main; main()")
