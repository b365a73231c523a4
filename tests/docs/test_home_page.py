"""Does the program of the home page run unchanged, does the page have the install command, and does it lead to all
others?
"""

import os
import re
import subprocess
import sys

from tests.docs import pages

PAGE = "docs/index.md"


def test_the_program(tmp_path):
    [program] = pages.blocks_of(PAGE, "python")
    assert len([line for line in program.splitlines() if line.strip()]) <= 20, "it is short"
    script = tmp_path / "example.py"
    script.write_text(program)
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    [records] = re.fullmatch(r"10000 orders in (\d+) Kinesis records\n", ended.stdout).groups()
    assert int(records) < 5_000, "they share Kinesis records"


def test_the_install_command_is_that_of_the_readme():
    [command] = pages.blocks_of(PAGE, "sh")
    assert command in pages.text_of("README.md")


def test_the_figures_are_those_of_the_readme():
    rows = pages.table_of(PAGE, "records")
    assert len(rows) == 3
    assert rows == pages.table_of("README.md", "records")


def test_the_page_leads_to_the_others():
    linked = set(re.findall(r"\]\(([\w/-]+)\.md", pages.text_of(PAGE)))
    guides = {f"guides/{name}/index" for name in ("producer", "consumer", "stores", "deploying", "testing")}
    first = {"tutorial", "migration/index", "reference/settings", "reference/cli/index", "reference/api/index"}
    then = {"guarantees", "architecture", "glossary", "tested/drills", "tested/benchmarks"}
    assert guides | first | then <= linked
