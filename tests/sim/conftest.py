"""The parts of the simulation are modules beside the tests: they import each other by name, as the script does."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def run_directory(request, tmp_path_factory):
    """One for all processes of this run of the tests: those of pytest-xdist have their own below it."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own
