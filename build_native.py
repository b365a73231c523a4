"""Compiles the extension ``shardline._speedups._native``, if this machine can.

Hatchling calls the hook for every wheel and for every editable installation. ``python build_native.py`` compiles the
extension in place, for a clone that is already installed; ``make native`` does that when a C file has changed.

The extension is optional. Without a compiler, without the headers of Python, or on a Python for which the extension
is not proved, the package is built without it, and one line says so. ``SHARDLINE_BUILD`` decides otherwise:

- ``pure``: do not compile; the wheel is for every Python.
- ``native``: compile, and fail if that is not possible.
"""

import contextlib
import io
import os
import platform
import re
import shlex
import sys
import sysconfig
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
HERE = Path("src") / "shardline" / "_speedups"
NAME = "shardline._speedups._native"
WARNINGS = ("-Wall", "-Wextra", "-Werror=implicit-function-declaration", "-Wno-unused-parameter")
FLAGS = ("-O3", "-std=c11", "-fvisibility=hidden", "-fno-strict-aliasing", *WARNINGS)


class BuildError(Exception):
    """Why the extension cannot be compiled on this machine."""


class NativeExtension(BuildHookInterface):
    """Adds the compiled extension to a wheel, or puts it beside its sources for an editable installation."""

    def initialize(self, version: str, build_data: dict) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        if version == "editable":
            build_in_place(root)
            return
        self._scratch = tempfile.TemporaryDirectory()
        built = attempt(root, Path(self._scratch.name))
        if built is not None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"][str(built)] = f"shardline/_speedups/{built.name}"

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            scratch.cleanup()


def build_in_place(root: Path) -> None:
    """Compile the extension into the source tree, unless the one that is there is newer than its sources."""
    place = root / HERE
    present = place / extension_file()
    decides = [
        *sources_of(root),
        *place.glob("*.h"),
        root / "src" / "shardline" / "__init__.py",
        root / "build_native.py",
    ]
    if present.exists() and present.stat().st_mtime > max(path.stat().st_mtime for path in decides):
        return
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        built = attempt(root, Path(scratch))
        if built is not None:
            built.replace(present)  # a process that has loaded the old file keeps it
        else:
            present.unlink(missing_ok=True)  # an old extension is worse than none


def attempt(root: Path, place: Path) -> Path | None:
    """Compile the extension into ``place``. Returns ``None``, after printing one line, if that is not possible."""
    wanted = os.environ.get("SHARDLINE_BUILD", "")
    if wanted == "pure":
        return None
    try:
        return compile_into(root, place)
    except BuildError as error:
        if wanted == "native":
            raise
        print(f"shardline: the C extension was not built, so the pure Python form is used: {error}", flush=True)
        return None


def refusal() -> str | None:
    """Return why this Python gets no extension, or ``None``."""
    if platform.python_implementation() != "CPython":
        return f"it is written for CPython, and this is {platform.python_implementation()}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it is not proved for free-threaded builds of Python"
    return None


def compile_into(root: Path, place: Path) -> Path:
    """Compile the extension into ``place``, and return its file.

    Raises:
        BuildError: this machine cannot compile it.
    """
    reason = refusal()
    if reason is not None:
        raise BuildError(reason)
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise BuildError(f"the headers of Python are missing ({sysconfig.get_path('include')}/Python.h)")
    try:
        from setuptools import Distribution, Extension
    except ImportError as error:
        raise BuildError(f"setuptools is missing ({error})") from None
    if not sources_of(root):
        raise BuildError("its sources are missing")
    flags = [] if os.name == "nt" else [*FLAGS, *shlex.split(os.environ.get("SHARDLINE_CFLAGS", ""))]
    links = [] if os.name == "nt" else shlex.split(os.environ.get("SHARDLINE_LDFLAGS", ""))
    extension = Extension(
        NAME,
        sources=[str(path) for path in sources_of(root)],
        include_dirs=[str(root / HERE)],
        define_macros=[("SHARDLINE_VERSION", version_of(root))],  # without quotes, which some shells would remove
        extra_compile_args=flags,
        extra_link_args=links,
    )
    command = Distribution({"name": "shardline", "ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_lib = command.build_temp = str(place)
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            command.run()
    except Exception as error:  # the classes of setuptools' errors differ from version to version
        raise BuildError(" ".join(str(error).split()) or type(error).__name__) from error
    return place / "shardline" / "_speedups" / extension_file()


def sources_of(root: Path) -> list[Path]:
    return sorted((root / HERE).glob("*.c"))


def extension_file() -> str:
    return f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def version_of(root: Path) -> str:
    """Return the version of the package. The extension refuses to work with any other version."""
    text = (root / "src" / "shardline" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    try:
        build_in_place(ROOT)
    except BuildError as problem:
        sys.exit(f"error: the C extension cannot be built: {problem}")
