"""Chooses between the compiled and the pure Python form of each performance-critical function.

The package is complete without the compiled extension. The extension, ``shardline._speedups._native``, contains a
compiled form, the *twin*, of each function that is worth compiling. ``twin`` chooses between the two forms when the
module of the pure function is imported, so the choice is made once for each process.

Invariants:

- ``SHARDLINE_PURE=1`` in the environment chooses the pure form.
- An extension that was built for another version of the package, or that cannot be loaded, is not used, and one warning
  is logged. If there is no extension at all, nothing is logged.
- A twin has the same name, the same arguments and the same results as its pure function.
"""

import os
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, Literal, TypeVar

from shardline import __version__

_NAME: Final = "shardline._speedups._native"
_Pure = TypeVar("_Pure")


def _load() -> tuple[ModuleType | None, str]:
    """Return the extension and an empty text, or ``None`` and the reason why the extension is not used."""
    if os.environ.get("SHARDLINE_PURE", "") not in {"", "0"}:
        return None, "SHARDLINE_PURE is set"
    if find_spec(_NAME) is None:
        return None, "the C extension is not installed"
    try:
        extension = import_module(_NAME)
    except ImportError as error:
        return None, _ignored(str(error))
    if extension.version != __version__:
        return None, _ignored(f"it was built for version {extension.version}, and this is version {__version__}")
    return extension, ""


def _ignored(reason: str) -> str:
    message = f"Shardline's C extension is not used: {reason}. Install the package again to build it."
    warnings.warn(message, RuntimeWarning, stacklevel=2)
    return message


native, reason = _load()
"""The extension, or ``None`` and the reason why the pure form is in use."""
implementation: Final[Literal["native", "pure"]] = "pure" if native is None else "native"
"""Which form is in use: "native" for the C extension, "pure" for Python alone."""

pure_twins: Final[dict[str, Any]] = {}
"""The pure form of each function that was passed to ``twin``. The tests compare it with the compiled form."""


def twin(pure: _Pure) -> _Pure:
    """Return the compiled form of a function or class, or the pure form if the extension is not in use."""
    name: str = getattr(pure, "__name__", "")
    pure_twins[name] = pure
    if native is None:
        return pure
    try:
        compiled: _Pure = getattr(native, name)
    except AttributeError:  # possible in a clone, whose version stays the same while its sources change
        raise ImportError(f"Shardline's C extension has no {name}: run `make native` to build it again") from None
    return compiled


def twin_method(name: str) -> Callable[[_Pure], _Pure]:
    """Return a decorator for a method whose common case is compiled under this name.

    The compiled form calls the pure method, its ``__wrapped__``, in all other cases.
    """

    def choose(pure: _Pure) -> _Pure:
        pure_twins[name] = pure
        if native is None:
            return pure
        try:
            compiled: _Pure = native.make_method(name, pure)
        except AttributeError:  # as in ``twin``
            raise ImportError(f"Shardline's C extension has no {name}: run `make native` to build it again") from None
        return compiled

    return choose
