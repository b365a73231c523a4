"""Does the page on guarantees state every guarantee, and does each test exist that the page of tests names?"""

import ast
import re
from pathlib import Path

import pytest
from tests.docs import pages

HERE = Path(__file__)
TESTS = HERE.parents[1]
PAGE = "docs/guarantees.md"
TEXT = pages.text_of("docs/tested/guarantees.md")
PROMISES = [*(f"P{n}" for n in range(1, 13)), *(f"C{n}" for n in range(1, 7)), *(f"L{n}" for n in range(1, 7))]
STATED = re.findall(r"^\| \*\*([PCL]\d+)\*\* \| (.+) \|$", pages.text_of(PAGE), re.MULTILINE)
ROWS = re.findall(r"^\| \*\*([PCL]\d+)\*\* \| (.+?) \| (.+) \|$", TEXT, re.MULTILINE)


def test_every_promise_has_its_row_in_order():
    assert [number for number, _ in STATED] == PROMISES
    assert [number for number, _, _ in ROWS] == PROMISES
    for number, words in STATED:
        assert len(words) > 20, number
    for number, _, tested in ROWS:
        assert re.search(r"`\w+/[\w/]+\.py", tested), number


def cited(cell):
    """Yield every (file, test or None) that a cell names; ``::test`` alone belongs to the file before it."""
    file = None
    for name, test in re.findall(r"`([\w/]+\.py)?(?:::(test_\w+))?`", cell):
        file = name or file
        assert file or not test, cell
        if file and (name or test):
            yield file, test or None


CITED = sorted({one for line in TEXT.splitlines() for one in cited(line)}, key=str)


def test_the_page_cites_many():
    assert len(CITED) > 50
    assert len({file for file, _ in CITED}) > 20


@pytest.mark.parametrize(("file", "test"), CITED)
def test_what_is_cited_exists(file, test):
    path = TESTS / file
    assert path.is_file()
    if test is not None:
        tree = ast.parse(path.read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
        assert test in names


def test_every_promise_is_cited_by_the_code_and_by_tests():
    """An invariant that neither the source nor a test cites is not kept by anything."""
    here = [path.read_text() for path in (TESTS.parent / "src").rglob("*.py")]
    there = [path.read_text() for path in TESTS.rglob("*.py") if path.parent != HERE.parent]
    for number in PROMISES:
        pattern = re.compile(rf"\b{number}\b|_{number.lower()}_")
        assert any(pattern.search(text) for text in here), number
        assert any(pattern.search(text) for text in there), number


def test_the_commands_exist():
    makefile = pages.text_of("Makefile")
    for target in re.findall(r"`make ([\w-]+)`", TEXT + pages.text_of("docs/tested/index.md")):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert (TESTS / "sim").is_dir()
