"""Keeps the assertions of the tests' own modules under ``python -O``.

``-O`` removes every ``assert``. pytest puts those of test modules and conftest files back, but not those of the modules
beside them, such as the oracles of the simulation, and ``simulate.py`` runs without pytest. Importing this module makes
Python compile every module below ``tests/`` with its assertions. It changes nothing for the code under test.
"""

import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


class AssertingLoader(SourceFileLoader):
    """Compiles with assertions, and never reads or writes cached bytecode: that of ``-O`` has no assertions."""

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        return compile(self.get_data(path), path, "exec", dont_inherit=True, optimize=0)


def _asserting_finder(path):
    if not Path(path).is_relative_to(TESTS) or not Path(path).is_dir():  # runpy looks for files
        raise ImportError(f"{path} holds none of the tests' modules")
    return FileFinder(path, (AssertingLoader, SOURCE_SUFFIXES))


def keep_assertions():
    """Install the loader. It affects only modules that are imported from now on. Calling this again has no effect."""
    if not any(getattr(hook, "__name__", "") == _asserting_finder.__name__ for hook in sys.path_hooks):
        sys.path_hooks.insert(0, _asserting_finder)
        sys.path_importer_cache.clear()


if not __debug__:
    keep_assertions()
