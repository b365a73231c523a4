"""Checks the types that users see, with mypy and pyright: ``python tests/typing/check_public_types.py``.

- The programs of the pages and the examples pass mypy --strict and pyright. Their functions may lack annotations.
- ``pyright --verifytypes`` finds a complete type for each public name, and for everything in our package that it
  refers to. pyright counts every module of a package as public, so it verifies a package of our public names instead.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PUBLIC = (
    "",
    ".sync",
    ".events",
    ".sinks",
    ".health",
    ".stores",
    ".testing",
    ".errors",
    ".deserializers",
    ".exactly_once",
    ".middleware",
)
FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OTHER_LIBRARIES = re.compile(r"^(import|from) (aiokpl|kinesis|aiobotocore|orders|dict_leases)\b", re.MULTILINE)
MYPY = """
[mypy]
strict = true
python_version = 3.11
disallow_untyped_defs = false
disallow_incomplete_defs = false
disallow_untyped_calls = false
[mypy-boto3.*,botocore.*]
ignore_missing_imports = true
"""
PYRIGHT = {"pythonVersion": "3.11", "typeCheckingMode": "standard", "extraPaths": [str(ROOT / "src")]}


def write_programs(folder: Path) -> int:
    """Write each program of the pages to a file, except those for other libraries, and copy the examples."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
        for number, block in enumerate(FENCE.findall(page.read_text())):
            if not OTHER_LIBRARIES.search(block):
                (folder / f"{name}_{number}.py").write_text(block)
    for example in (ROOT / "examples").glob("*.py"):
        (folder / example.name).write_bytes(example.read_bytes())
    return len(list(folder.glob("*.py")))


def check_programs() -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = write_programs(folder)
        (folder / "mypy.ini").write_text(MYPY)
        (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
        environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
        mypy = [str(BIN / "mypy"), "--python-executable", sys.executable, "--cache-dir", os.devnull, "."]
        pyright = [str(BIN / "pyright"), "--pythonpath", sys.executable, "--project", "."]
        codes = [
            subprocess.run(command, cwd=folder, env=environment, check=False).returncode for command in (mypy, pyright)
        ]
    sys.stdout.write(f"{count} programs of the pages and examples: {'correct' if not any(codes) else 'WRONG'}\n")
    return not any(codes)


def names_of(module: str) -> list[str]:
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None) or [
        name for name, value in vars(loaded).items() if getattr(value, "__module__", None) == module
    ]
    return [name for name in names if not name.startswith("_")]


def verify_public_names() -> bool:
    with tempfile.TemporaryDirectory() as name:
        package = Path(name) / "public_names"
        package.mkdir()
        (package / "py.typed").touch()
        for suffix in PUBLIC:
            module = f"shardline{suffix}"
            lines = [f"from {module} import {name} as {name}\n" for name in names_of(module)]
            (package / f"{suffix[1:] or '__init__'}.py").write_text("".join(lines))
        found = subprocess.run(
            [str(BIN / "pyright"), "--verifytypes", "public_names", "--outputjson"],
            cwd=name,
            # pyright asks the first python of the PATH where packages are
            env=os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": f"{name}:{ROOT / 'src'}"},
            capture_output=True,
            text=True,
            check=False,
        )
    symbols = json.loads(found.stdout)["typeCompleteness"]["symbols"]
    ours = [symbol for symbol in symbols if symbol["name"].partition(".")[0] in {"public_names", "shardline"}]
    # A type that is only "partially unknown" refers to another: to one of ours, which has a message of its own, or to one
    # of a library, such as a fixture of pytest.
    messages = [
        (symbol["name"], diagnostic["message"])
        for symbol in ours
        for diagnostic in symbol["diagnostics"]
        if diagnostic["severity"] == "error"
    ]
    incomplete = [(name, message) for name, message in messages if "partially unknown" not in message]
    for name, message in incomplete:
        sys.stdout.write(f"{name}: {message}\n")
    known = sum(symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"] for symbol in ours)
    sys.stdout.write(
        f"public names: {len(incomplete)} of {len(ours)} types are incomplete; "
        f"{len(ours) - known - len(incomplete)} complete ones refer to incomplete types of other libraries\n"
    )
    return len(ours) > 1000 and not incomplete


if __name__ == "__main__":
    sys.exit(0 if check_programs() & verify_public_names() else 1)
