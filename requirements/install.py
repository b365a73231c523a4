"""Installs what a make target needs into a virtual environment, and nothing else.

``python3 requirements/install.py --into .venv demo`` creates ``.venv`` if it is missing, installs the set "demo" and
writes the stamp ``.venv/.demo``, by which make knows that the set is complete. Several sets are installed in one go.
A set whose stamp is newer than every file that decides its contents is skipped. A lock keeps two installations out of
the same environment, so that ``make --jobs`` can ask for two sets at once.

This file must run on any Python 3: an old one has to print a sentence here, not a syntax error.
"""

import argparse
import fcntl
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
DECIDES = [ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__).resolve()]
OLDEST_PYTHON = (3, 11)
OLDEST_PIP_WITH_GROUPS = (25, 1)

ALL_EXTRAS = ("local", "trio", "tls", "cli", "console", "redis", "postgres", "zstd", "prometheus", "health", "otel")

# name: (extras of the package, dependency groups, what a person would call the set). No extras at all means that the
# package itself is not needed.
SETS = {
    "demo": (("cli", "local"), (), "Shardline, its command line and the embedded Kinesis"),
    "test": (ALL_EXTRAS, ("test",), "Shardline and its tests"),
    "types": (ALL_EXTRAS, ("types",), "the type checkers"),
    "bench": (ALL_EXTRAS, ("bench",), "the benchmarks"),
    "lint": ((), ("lint",), "the linters"),
    "docs": ((), ("docs",), "the documentation builder"),
    "build": ((), ("build",), "the package builder"),
    "fuzz": ((), ("fuzz",), "the fuzzer"),
}


class InstallError(Exception):
    """Ends the program with this sentence."""


def refusal(version, has_venv, python):
    """Why this Python cannot create the environment, or None."""
    if version < OLDEST_PYTHON:
        needed = ".".join(map(str, OLDEST_PYTHON))
        return (
            f"{python} is Python {version[0]}.{version[1]}; Shardline needs {needed} or newer. "
            f"Choose another one: make PYTHON=/path/to/python{needed}"
        )
    if not has_venv:
        return (
            f"{python} cannot create virtual environments, because its venv module is missing. "
            f"On Debian or Ubuntu: apt-get install python{version[0]}.{version[1]}-venv"
        )
    return None


def can_create_environments():
    """Debian ships ``venv`` without the part that it needs, ``ensurepip``, unless python3-venv is installed."""
    try:
        import ensurepip  # noqa: F401, PLC0415
        import venv  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


def is_fresh(stamp):
    return stamp.exists() and stamp.stat().st_mtime > max(path.stat().st_mtime for path in DECIDES)


def requirements_of(names):
    """The arguments of pip for these sets together."""
    extras = sorted({extra for name in names for extra in SETS[name][0]})
    groups = sorted({group for name in names for group in SETS[name][1]})
    arguments = ["--editable", f".[{','.join(extras)}]"] if extras else []
    for group in groups:
        arguments += ["--group", group]
    # The demo must start within seconds anywhere: a package without a wheel for this machine is an error there.
    return arguments if groups else ["--only-binary", ":all:", *arguments]


def pip_is_older_than(wanted, environment):
    """Whether the environment's pip must be upgraded first. Its metadata tells; starting pip takes half a second."""
    names = [path.name for path in environment.glob("lib/python*/site-packages/pip-*.dist-info")]
    found = [re.match(r"pip-(\d+)\.(\d+)", name).groups() for name in names]
    return max(((int(major), int(minor)) for major, minor in found), default=(0, 0)) < wanted


def run(command):
    if subprocess.call(command, cwd=str(ROOT)):  # noqa: S603
        raise InstallError(f"this failed: {' '.join(map(shlex.quote, command))}")


def install(names, environment):
    """Create the environment if there is none, and install these sets into it."""
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    if not python.exists() or not (environment / "bin" / "pip").exists():  # a creation that was interrupted has no pip
        version = ".".join(map(str, sys.version_info[:3]))
        announce(f"Creating {shown(environment)} with Python {version} ({sys.executable})")
        run([sys.executable, "-m", "venv", str(environment)])
    arguments = requirements_of(names)
    if "--group" in arguments and pip_is_older_than(OLDEST_PIP_WITH_GROUPS, environment):
        announce("Upgrading pip, which is too old to read dependency groups")
        run([*pip, "--upgrade", "pip>=" + ".".join(map(str, OLDEST_PIP_WITH_GROUPS))])
    what = " and ".join(SETS[name][2] for name in names)
    announce(f"Installing {what} into {shown(environment)}; this takes a while on a slow network")
    run([*pip, "--constraint", str(CONSTRAINTS), *arguments])
    for name in names:
        (environment / f".{name}").touch()
    if "test" in names:  # whatever the demo needs, the tests need too
        (environment / ".demo").touch()


def shown(path):
    """A path below the current directory is shown relative to it."""
    return os.path.relpath(str(path)) if Path.cwd() in path.parents else str(path)


def announce(text):
    print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="the virtual environment")
    parser.add_argument("names", nargs="+", choices=sorted(SETS), metavar="SET", help=", ".join(sorted(SETS)))
    chosen = parser.parse_args()
    environment = chosen.into.absolute()
    refused = refusal(sys.version_info[:2], can_create_environments(), sys.executable)
    if refused:
        raise InstallError(refused)
    environment.mkdir(parents=True, exist_ok=True)
    with (environment / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        names = [name for name in chosen.names if not is_fresh(environment / f".{name}")]
        if names:
            began_at = time.monotonic()
            install(names, environment)
            announce(f"Installed in {time.monotonic() - began_at:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except InstallError as error:
        sys.exit(f"error: {error}")
