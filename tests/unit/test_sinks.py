"""The public names of the sinks: complete, and loaded only when they are used."""

import subprocess
import sys

import pytest

from shardline import sinks

PROBE = "import sys, shardline.sinks; print(sorted(name for name in sys.modules if 'adapters' in name))"


@pytest.mark.parametrize("name", sinks.__all__)
def test_every_name_can_be_had(name):
    vars(sinks).pop(name, None)  # as if never asked for
    assert getattr(sinks, name).__name__ == name
    assert name in vars(sinks)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'shardline.sinks' has no attribute 'LogSnik'$"):
        _ = sinks.LogSnik


def test_dir_lists_the_names():
    assert dir(sinks) == sorted(sinks.__all__) == sorted(sinks._HOMES)


def test_importing_the_module_loads_no_sink():
    run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "[]\n"
