"""Runs a program of a page as a user would: in a separate Python process, pointed at the embedded server."""

import os
import subprocess
import sys


def run(code, kinesis, tmp_path):
    """Run a script, and return its output."""
    script = tmp_path / "example.py"
    script.write_text(code)
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | kinesis.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout
