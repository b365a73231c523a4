"""Does every command on the pages of the command line print what the page shows?

Each section of a page (``##``) is one test, and so is the text above the first section: its ``console`` blocks run from
top to bottom, in a separate directory, against a separate Kinesis that has an empty stream ``orders`` with two shards.

- A line that begins with ``$ `` is passed to bash (a trailing backslash continues it); the exit code has to be 0. A
  command that is expected to fail shows it: ``|| echo "exit code $?"``.
- The lines below it, up to the next ``$``, are its expected output, standard error included. ``...`` stands for any
  text, even over lines; the number of blanks between words does not matter. Without such lines, nothing is compared.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardline.cli.commands import COMMANDS
from shardline.cli.tail.record_formats import FIELDS

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "cli"
PAGES = {path.stem: path.read_text() for path in FOLDER.glob("*.md")}
SERVER = "local"  # tests/docs/test_local_page.py and test_testing_page.py test the page of the server
SECTION = re.compile(r"^##? (.+?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
SECTIONS = {
    f"{page}: {title}": text
    for page, whole in PAGES.items()
    if page != SERVER
    for title, text in SECTION.findall(whole)
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands_of(text):
    """Return the commands of a text's blocks, each with its expected output."""
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
    """Whether the output matches the page."""
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
    if "PYTHONPATH" in os.environ:  # the sources of this checkout, if another one is installed
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
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
    blocks = [block for text in SECTIONS.values() for block in BLOCK.findall(text)]
    assert len(blocks) > 12
    assert {kind for kind, _ in blocks} == {"console"}
    assert all(block.startswith("$ ") for _, block in blocks)


def test_every_command_has_a_page_that_the_index_links_to():
    assert {name for name in COMMANDS if PAGES.get(name, "").startswith(f"# shardline {name}\n")} == set(COMMANDS)
    linked = re.findall(r"^\| \[`shardline (\w+)`\]\((\w+)\.md\)", PAGES["index"], re.MULTILINE)
    assert linked == [(name, name) for name, _ in linked]
    assert {name for name, _ in linked} == set(COMMANDS)


def test_the_table_of_fields_is_that_of_the_code():
    shown = PAGES["tail"].partition("<!-- table: fields -->")[2].partition("<!-- end -->")[0]
    rows = [f"| `{{{name}}}` | {about} |" for name, (about, _) in FIELDS.items()]
    assert shown.split("\n")[3:-1] == rows


def test_what_is_printed_differently_is_seen():
    assert as_written("one ... four\n  five", "one two\nthree four five\n")
    assert not as_written("one ... four", "one two\nthree four five\n")
    assert not as_written("one two", "one two three")
