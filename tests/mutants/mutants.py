"""Reads the listed mutants, and applies a mutant to the code.

``consumer.toml``, ``producer.toml`` and ``shared.toml`` list mutants: each is a piece of text of one file under
``src/shardline``, the wrong text that replaces it, the harm to a user, and the test that is expected to fail.
``generated.py`` makes more mutants from the source.

A mutant is applied to loaded code by replacing the code objects of the functions that it changes. So the tests are
imported and collected once, and each mutant costs a fork and the tests that run on it. A mutant that changes anything
else (a constant, a default, the body of a class) cannot be applied like that: its text is imported instead of the file.

Invariants:

- The old text occurs exactly once in its file: a mutant that the code has outgrown is an error, not a survivor.
- The working tree is never touched.
- A function whose code is replaced has the code that the old text compiles to.
"""

import importlib.abc
import importlib.util
import inspect
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCE = ROOT / "src"
LISTS = ("consumer", "producer", "shared")
FIELDS = {"id", "file", "old", "new", "suffers", "killer", "equivalent"}


class Mutant(NamedTuple):
    id: str
    file: str
    """The path below ``src/shardline``."""
    old: str
    new: str
    suffers: str
    """The harm to a user."""
    killer: str
    """The test, or the file of tests, below ``tests``, that is expected to kill the mutant. It runs first."""
    equivalent: str | None = None
    """Why no test can distinguish the mutant from the original, if that is so."""
    is_generated: bool = False
    """Whether ``generated.py`` made the mutant."""

    @property
    def area(self) -> str:
        return next((area for area in ("producer", "consumer") if f"/{area}/" in self.file), "both")

    @property
    def module(self) -> str:
        return "shardline." + self.file.removesuffix(".py").replace("/", ".")


class DoesNotApply(Exception):  # noqa: N818 - it says what it is
    """The old text does not occur, or occurs more than once."""


def load_mutants():
    """Return all listed mutants, in the order of the files."""
    found = []
    for name in LISTS:
        for entry in tomllib.loads((HERE / f"{name}.toml").read_text())["mutant"]:
            assert entry.keys() <= FIELDS, f"{name}.toml: {entry.keys() - FIELDS}"
            found.append(Mutant(**entry))
    names = [mutant.id for mutant in found]
    assert len(names) == len(set(names)), "every mutant has a name of its own"
    return found


def read(mutant):
    """Return the text of a mutant's file."""
    path = SOURCE / "shardline" / mutant.file
    return path.read_text() if path.exists() else ""


def mutated(mutant):
    """Return the text of a mutant's file with the mutant applied."""
    text = read(mutant)
    if text.count(mutant.old) != 1:
        raise DoesNotApply(f"{mutant.id}: the old text occurs {text.count(mutant.old)} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


# ---- applying mutants to loaded code


def shape(code, *, of_all=True):
    """Return what code does, independent of its place. Without ``of_all``, leave out the functions and classes in it."""
    consts = [
        (shape(const) if of_all else None) if isinstance(const, CodeType) else f"{type(const)} {const!r}"
        for const in code.co_consts
    ]
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return names, code.co_code, code.co_flags, code.co_exceptiontable, consts


def changed_functions(old, new, path=()):
    """Return the functions that differ, as (path, old code, new code); ``None`` if something else differs, too."""
    if shape(old, of_all=False) != shape(new, of_all=False):
        return None
    found = []
    inner = ([const for const in code.co_consts if isinstance(const, CodeType)] for code in (old, new))
    for was, becomes in zip(*inner, strict=True):
        where = (*path, was.co_name)
        if was.co_flags & inspect.CO_OPTIMIZED == 0:  # the body of a class
            changed = changed_functions(was, becomes, where)
            if changed is None:
                return None
            found += changed
        elif shape(was) != shape(becomes):
            if was.co_freevars != becomes.co_freevars or "<" in was.co_name:
                return None
            found.append((where, was, becomes))
    return found


@cache
def compiled(text):
    return compile(text, "mutant", "exec", dont_inherit=True)


def find_changes(mutant):
    """Return the changes of a mutant, as ``changed_functions`` does."""
    return changed_functions(compiled(read(mutant)), compiled.__wrapped__(mutated(mutant)))


def put_into_loaded_code(mutant, changes):
    for path, was, becomes in changes:
        thing = sys.modules[mutant.module]
        for name in path:
            thing = vars(thing)[name]
        wrapped = (getattr(thing, name, None) for name in ("fget", "fset", "func", "__func__", "__wrapped__"))
        functions = [one for one in (thing, *wrapped) if isinstance(one, FunctionType)]
        (function,) = [one for one in functions if shape(one.__code__) == shape(was)]
        function.__code__ = becomes


class MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports the text of a mutant instead of its file."""

    def __init__(self, mutant):
        self._name, self._path, self._text = mutant.module, str(SOURCE / "shardline" / mutant.file), mutated(mutant)

    def find_spec(self, fullname, path, target=None):  # noqa: ARG002 - the form of a finder
        return importlib.util.spec_from_loader(fullname, self, origin=self._path) if fullname == self._name else None

    def get_filename(self, fullname):  # noqa: ARG002 - the form of a loader
        return self._path

    def get_data(self, path):  # noqa: ARG002 - as above
        return self._text.encode()
