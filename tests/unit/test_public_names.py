"""The public names: complete, sorted, and loaded only when they are used."""

import importlib
import json
import subprocess
import sys

import pytest

import shardline

PROBE = """
import json, sys
import shardline
loaded = sorted(name for name in sys.modules if "." not in name)
ours = sorted(name for name in sys.modules if name.startswith("shardline"))
shardline.Shard
after = sorted(name for name in sys.modules if "." not in name)
print(json.dumps({"loaded": loaded, "ours": ours, "after": after, "dir": dir(shardline)}))
"""
HEAVY = {"aiohttp", "anyio", "asyncio", "boto3", "botocore", "h2", "msgspec", "pybase64", "trio"}


def order(name):
    """Sort constants, then classes, then the rest, as isort and ruff do."""
    rank = 0 if name.isupper() and not name.startswith("_") else 1 if name[0].isupper() else 2
    return rank, name


@pytest.fixture(scope="module")
def fresh():
    """Return what a new interpreter sees."""
    run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    assert run.stderr == ""
    return json.loads(run.stdout)


def test_the_names_are_sorted_and_said_once():
    assert shardline.__all__ == sorted(shardline.__all__, key=order)
    assert len(shardline.__all__) == len(set(shardline.__all__))


@pytest.mark.parametrize("name", shardline.__all__)
def test_every_name_can_be_had(name):
    assert getattr(shardline, name) is not None


@pytest.mark.parametrize("name", sorted(shardline._HOMES))
def test_every_name_is_what_its_home_defines(name):
    home = importlib.import_module(f"shardline.{shardline._HOMES[name]}")
    vars(shardline).pop(name, None)  # as if it had never been used
    assert getattr(shardline, name) is getattr(home, name)
    assert vars(shardline)[name] is getattr(home, name)  # found at once from now on


def test_every_public_name_has_a_home_and_every_home_is_public():
    assert set(shardline.__all__) == {*shardline._HOMES, "__version__"}


def test_a_star_import_gives_exactly_the_public_names():
    namespace = {}
    exec("from shardline import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(shardline.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'shardline' has no attribute 'Produser'$"):
        _ = shardline.Produser
    with pytest.raises(ImportError):
        exec("from shardline import Produser", {})


def test_dir_lists_the_public_names(fresh):
    assert fresh["dir"] == sorted(shardline.__all__)
    assert dir(shardline) == sorted(shardline.__all__)


def test_importing_the_package_loads_nothing_heavy(fresh):
    assert HEAVY.isdisjoint(fresh["loaded"])
    assert fresh["ours"] == ["shardline"]


def test_using_a_value_loads_nothing_heavy_either(fresh):
    assert HEAVY.isdisjoint(fresh["after"])


def test_the_version_is_a_version():
    assert [part.isdigit() for part in shardline.__version__.split(".")] == [True, True, True]
