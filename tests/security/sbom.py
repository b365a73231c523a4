"""What does a user install? ``make sbom`` writes it down, as a CycloneDX bill of materials.

cyclonedx-py makes it, but knows no version of ours: ``pyproject.toml`` leaves that to ``shardline/__init__.py``.

    python tests/security/sbom.py THE-USERS-PYTHON OUTPUT
"""

import json
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def our_version():
    (version,) = re.findall(
        r'^__version__ = "(.+)"$', (PROJECT / "src/shardline/__init__.py").read_text(), re.MULTILINE
    )
    return version


def with_version(bill, version):
    """Return the bill with the version of its subject."""
    subject = bill["metadata"]["component"]
    subject |= {"version": version, "purl": f"pkg:pypi/{subject['name']}@{version}"}
    unknown = [one["name"] for one in bill["components"] if not one.get("version")]
    assert not unknown, f"without a version: {unknown}"
    return bill


def main(python, output):
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", PROJECT / "pyproject.toml"]
    command += ["--output-reproducible", "--output-format", "JSON", "--output-file", "-", python]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    Path(output).write_text(json.dumps(with_version(json.loads(made), our_version()), indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
