"""Lists every Python 3.11 or newer on this machine, one a line, with its version and its path.

Looks along the PATH first, then in the places of the system, then where pyenv and uv keep theirs, and keeps that order.
Of two installations of the same version only the first is listed. An interpreter that cannot create virtual
environments is named on stderr and left out, and so is a difference from the versions that pyproject.toml names.
Runs on any Python 3.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
NAME = re.compile(r"python3(\.\d+)?")
# An interpreter in a virtual environment answers for the one that it was created from.
QUESTION = """
import json, os, sys
try:
    import ensurepip, venv
except ImportError:
    venv = None
path = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
print(json.dumps([list(sys.version_info[:3]), sys.version_info.releaselevel, path, venv is not None]))
"""


def folders(environment):
    """Where Pythons may be, in the order of preference."""
    home = Path(environment.get("HOME", "/nonexistent"))
    pyenv = Path(environment.get("PYENV_ROOT", home / ".pyenv"))
    uv = Path(environment.get("UV_PYTHON_INSTALL_DIR", home / ".local" / "share" / "uv" / "python"))
    yield from (Path(folder) for folder in environment.get("PATH", "").split(os.pathsep) if folder)
    yield from (Path("/usr/bin"), Path("/usr/local/bin"))
    for root in (pyenv / "versions", uv):
        yield from sorted(root.glob("*/bin"))


def candidates(environment):
    for folder in folders(environment):
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        # "python3" before "python3.11": the first found is the one that a user gets without asking
        yield from (folder / name for name in sorted(names) if NAME.fullmatch(name))


def ask(path):
    """Its version, release level, real path, and whether it can create environments; None if it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603
            [str(path), "-c", QUESTION], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=True
        )
        return json.loads(answer.stdout.decode())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None  # a pyenv shim without a version, a file that is no program


def choose(answers):
    """Of these answers, the usable ones, each version once; and a sentence for each version that cannot be used."""
    chosen, complaints = {}, {}
    for version, level, path, has_venv in answers:
        if tuple(version) < OLDEST or level != "final":
            continue
        name = ".".join(map(str, version))
        if has_venv:
            chosen.setdefault(name, path)
        else:
            complaints.setdefault(name, f"left out: Python {name} ({path}) cannot create virtual environments")
    return chosen, [sentence for name, sentence in complaints.items() if name not in chosen]


def differences(versions, project):
    """A sentence for each minor version that is found and not named by pyproject.toml, or named and not found."""
    named = set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project))
    found = {version.rpartition(".")[0] for version in versions}
    return [
        *(f"not on this machine: Python {minor}, which pyproject.toml names" for minor in sorted(named - found)),
        *(f"not named by pyproject.toml: Python {minor}" for minor in sorted(found - named)),
    ]


def main():
    seen, answers = set(), []
    for path in candidates(os.environ):
        real = os.path.realpath(str(path))
        if real not in seen:
            seen.add(real)
            answers.append(ask(path))
    chosen, complaints = choose(answer for answer in answers if answer)
    for complaint in [*complaints, *differences(chosen, PROJECT.read_text())]:
        print(complaint, file=sys.stderr)
    for version, path in chosen.items():
        print(version, path)
    if not chosen:
        sys.exit("error: there is no Python 3.11 or newer on this machine")


if __name__ == "__main__":
    main()
