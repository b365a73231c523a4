"""Does every command of the page print what the page says?

A section of the page (``##``) is one test: its ``console`` blocks run from top to bottom, in a directory of their own,
against a Kinesis of their own that has an empty stream ``orders`` with two shards.

- A line that begins with ``$ `` is given to bash (a trailing backslash continues it); the exit code has to be 0. A
  command that is meant to fail says so: ``|| echo "exit code $?"``.
- What stands below it, up to the next ``$``, is what it has to print, standard error included; ``...`` is anything, also
  over lines; how many blanks there are between words makes no difference. If nothing stands there, nothing is compared.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardline.cli.commands import COMMANDS
from shardline.cli.record_formats import FIELDS

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands_of(text):
    """The commands of a text's blocks, each with what is to be printed."""
    found = []
    for _, block in BLOCK.findall(text):
        for line in block.replace("\\\n", "").splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return [(command, "\n".join(lines).strip()) for command, lines in found]


def words(text):
    return " ".join(text.split())


def as_written(expected, printed):
    """Whether it is what the page says."""
    parts = [re.escape(words(part)) for part in expected.split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), words(printed), re.DOTALL) is not None


@pytest.fixture
def kinesis(local_kinesis):
    return local_kinesis


def with_commands():
    return [title for title, text in SECTIONS.items() if BLOCK.search(text)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("title", with_commands())
def test_the_commands_print_what_the_page_says(title, kinesis, tmp_path):
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "COLUMNS": "80",
        "TZ": "UTC",
        "LANG": "C.UTF-8",
    }
    for command, expected in commands_of(SECTIONS[title]):
        ended = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=environment | kinesis.environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, f"$ {command}\n{ended.stdout}"
        if expected:
            assert as_written(expected, ended.stdout), f"$ {command}\n{ended.stdout}\nbut the page says\n{expected}"


def test_every_block_is_one_that_runs():
    assert {kind for kind, _ in BLOCK.findall(PAGE)} == {"console"}
    assert all(block.startswith("$ ") for _, block in BLOCK.findall(PAGE))


def test_every_command_has_a_section():
    assert {f"shardline {name}" for name in COMMANDS} <= set(SECTIONS)


def test_the_table_of_fields_is_that_of_the_code():
    shown = PAGE.partition("<!-- table: fields -->")[2].partition("<!-- end -->")[0]
    rows = [f"| `{{{name}}}` | {about} |" for name, (about, _) in FIELDS.items()]
    assert shown.split("\n")[3:-1] == rows


def test_what_is_printed_differently_is_seen():
    assert as_written("one ... four\n  five", "one two\nthree four five\n")
    assert not as_written("one ... four", "one two\nthree four five\n")
    assert not as_written("one two", "one two three")
