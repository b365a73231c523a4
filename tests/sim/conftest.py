"""Makes the modules of the simulation importable by name, as they are for the script."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def run_directory(request, tmp_path_factory):
    """Return the directory that all processes of this test run share. Each process of pytest-xdist has its own
    directory below it.
    """
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own
