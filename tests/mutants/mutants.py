"""Which mistakes would a tired engineer make, and how is the code made wrong by one of them?

The mutants stand in the ``*.toml`` files here: each is a piece of text of one file under ``src/shardline``, the wrong text
in its place, what a user would suffer, and the test that is expected to notice.

Invariants:

- MU1: the old text occurs exactly once in its file: a mutant that the code has outgrown is an error, not a survivor.
- MU2: the working tree is never touched: mutants are made in a copy.
"""

import shutil
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCE = ROOT / "src"
FIELDS = {"id", "file", "old", "new", "suffers", "killer", "equivalent"}


class Mutant(NamedTuple):
    id: str
    file: str
    """Below ``src/shardline``."""
    old: str
    new: str
    suffers: str
    """What a user would suffer."""
    killer: str
    """The test, or the file of tests, below ``tests``, that is expected to kill it; it is run first."""
    equivalent: str | None = None
    """Why no test can tell it from the original, if that is so."""

    @property
    def area(self) -> str:
        return next((area for area in ("producer", "consumer") if f"/{area}/" in self.file), "both")


class DoesNotApply(Exception):  # noqa: N818 - it says what it is
    """The old text is not there, or not once (MU1)."""


def load_mutants(*files):
    """All mutants, in the order of the files."""
    found = []
    for path in files or sorted(HERE.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            assert entry.keys() <= FIELDS, f"{path.name}: {entry.keys() - FIELDS}"
            found.append(Mutant(**entry))
    names = [mutant.id for mutant in found]
    assert len(names) == len(set(names)), "every mutant has a name of its own"
    return found


def mutated(mutant, source=SOURCE):
    """The text of its file, made wrong (MU1)."""
    path = source / "shardline" / mutant.file
    text = path.read_text() if path.exists() else ""
    if text.count(mutant.old) != 1:
        raise DoesNotApply(f"{mutant.id}: the old text occurs {text.count(mutant.old)} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


class Copy:
    """A copy of the code and of the tests, in which one file at a time is wrong (MU2)."""

    def __init__(self, directory):
        self.root = Path(directory) / "copy"
        self.source = self.root / "src"
        unwanted = shutil.ignore_patterns("__pycache__", ".hypothesis")
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, self.root / name, ignore=unwanted)
        shutil.copy(ROOT / "pyproject.toml", self.root)

    @contextmanager
    def made_wrong_by(self, mutant):
        path = self.source / "shardline" / mutant.file
        wrong = mutated(mutant, self.source)
        compile(wrong, mutant.file, "exec")
        right = path.read_text()
        try:
            _rewrite(path, wrong)
            yield
        finally:
            _rewrite(path, right)


def _rewrite(path, text):
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()  # two versions of a file may have one length and one second
