"""Does every pinned version run on every Python that we support, from the oldest patch release on?

``requires-python`` says 3.11, and Debian 12 has 3.11.2. A pin that needs 3.11.5 makes pip refuse the whole installation
there, although it works on the machine of the person who wrote the pin. So this reads what the installed packages say
about themselves, whichever Python runs the test. Where all sets are installed, as in CI, it covers all of them.
"""

import re
import sys
import tomllib
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
SERVERS = ROOT / "tests" / "interop" / "servers"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]
MINORS = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
PYTHONS = [f"{minor}.0" for minor in MINORS]


def pins_of(path):
    return {
        canonicalize_name(name): version
        for name, version in re.findall(r"^(\S+)==(\S+)$", path.read_text(), re.MULTILINE)
    }


def refused(pins, site_packages):
    """Return the pinned packages of an environment that refuse some Python, with their requirements."""
    found = {}
    for package in distributions(path=[str(path) for path in site_packages]):
        name = canonicalize_name(package.metadata["Name"])
        needs = SpecifierSet(package.metadata.get("Requires-Python", ""))
        if pins.get(name) == package.version and not all(needs.contains(python) for python in PYTHONS):
            found[f"{name}=={package.version}"] = str(needs)
    return found


def test_the_oldest_python_is_the_first_release_of_the_oldest_minor():
    assert PYTHONS[0] == "3.11.0"
    assert PROJECT["requires-python"] == ">=3.11"


def test_every_pin_supports_every_python():
    assert refused(pins_of(CONSTRAINTS), sys.path) == {}


@pytest.mark.interop
@pytest.mark.parametrize(
    ("listed", "environment"), [("requirements.txt", "python"), ("requirements-clients.txt", "clients")]
)
def test_the_servers_and_clients_of_the_tests_support_every_python(listed, environment):
    pins = pins_of(SERVERS / listed)
    site_packages = [str(path) for path in (ROOT / ".servers" / environment).glob("lib/python*/site-packages")]
    installed = {canonicalize_name(package.metadata["Name"]) for package in distributions(path=site_packages)}
    assert pins.keys() <= installed, "run make setup"
    assert refused(pins, site_packages) == {}


def test_what_the_demo_and_the_tests_install_was_really_read():
    pinned = {canonicalize_name(name) for name in pins_of(CONSTRAINTS)}
    installed = {canonicalize_name(package.metadata["Name"]) for package in distributions()}
    needed = {
        "aiohttp",
        "anyio",
        "botocore",
        "msgspec",
        "click",
        "rich",
        "pytest",
        "hypothesis",
        "uvloop",
        "trio",
        "redis",
    }
    assert needed <= pinned & installed


def needed_by(requirements):
    """Return everything that these requirements install with this Python, directly or indirectly."""
    needed, open_ones = {}, [Requirement(text) for text in requirements]
    while open_ones:
        asked = open_ones.pop()
        name, extras = canonicalize_name(asked.name), frozenset(asked.extras)
        if name in needed and extras <= needed[name]:
            continue
        needed[name] = extras | needed.get(name, frozenset())
        for text in distribution(name).requires or []:
            inner = Requirement(text)
            environments = [{"extra": extra} for extra in needed[name] or [""]]
            if inner.marker is None or any(inner.marker.evaluate(environment) for environment in environments):
                open_ones.append(inner)
    return needed.keys()


def test_everything_that_the_demo_and_the_tests_install_is_pinned():
    """This includes packages that only some Pythons need: redis needs async-timeout before 3.11.3."""
    extras = [text for needed in PROJECT["optional-dependencies"].values() for text in needed]
    needed = needed_by(PROJECT["dependencies"] + extras + GROUPS["test"])
    assert {"botocore", "urllib3", "click", "redis", "pytest", "iniconfig", "watchfiles"} <= needed
    assert sorted(needed - pins_of(CONSTRAINTS).keys()) == []


def test_a_pin_that_needs_a_later_patch_release_is_seen(tmp_path):
    """This case made the installation fail on Debian 12."""
    said = tmp_path / "pymdown_extensions-13.0.dist-info"
    said.mkdir()
    (said / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: pymdown-extensions\nVersion: 13.0\nRequires-Python: >=3.11.5\n"
    )
    assert refused({"pymdown-extensions": "13.0"}, [tmp_path]) == {"pymdown-extensions==13.0": ">=3.11.5"}
    assert refused({"pymdown-extensions": "12.3"}, [tmp_path]) == {}, "not what is pinned"
