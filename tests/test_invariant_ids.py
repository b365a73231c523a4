"""Are only guarantees numbered, and is every number that the code cites a guarantee?

P (producer), C (checkpoint) and L (lease) are numbered in ``docs/guarantees.md``. Every other invariant is a sentence
in the docstring of its module.
"""

import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
IDS = r"(?<![\w.%-])[A-Z]{1,3}\d{1,2}(?![\w.%-])"
NOT_IDS = {
    "MD5",
    "S3",
    "EC2",
    "UTF8",
    "AWS4",
    "H2",
    "F3",
    "C2",
    "A0",
    "D9",
    "ROT13",
    "AP8",
    "SP1",
    "SP2",
    "B0",
    "T2",
    "S2",
}


def defined():
    """Return the numbers of all guarantees, as often as the page defines them."""
    return re.findall(r"^(?:\| |- )\*\*([PCLS]\d+)\*\*", (ROOT / "docs" / "guarantees.md").read_text(), re.MULTILINE)


@cache
def prose_of(path):
    """Return the comments and docstrings of a file that contain a number, each with its line."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    prose = [token for token in tokens if token.type == tokenize.COMMENT or token.string.startswith('"""')]
    return [(token.start[0], token.string) for token in prose if re.search(IDS, token.string)]


def test_a_guarantee_has_one_number_and_is_defined_once():
    numbers = defined()
    assert len(numbers) == len(set(numbers))
    assert {"P1", "P12", "C1", "C5", "L1", "L6"} <= set(numbers)


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "examples"])
def test_every_number_that_is_cited_is_a_guarantee(folder):
    known = {*defined(), *NOT_IDS}
    cited = [
        f"{path.relative_to(ROOT)}:{line}: {number}"
        for path in FILES
        if path.is_relative_to(ROOT / folder) and path != Path(__file__)
        for line, prose in prose_of(path)
        for number in re.findall(IDS, prose)
        if number not in known
    ]
    assert cited == []


def test_no_docstring_is_a_number_alone():
    alone = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in FILES
        for line, prose in prose_of(path)
        if prose.startswith('"') and re.fullmatch(rf"(?:{IDS}(?:, | and | to )?)+\.?", prose.strip('"# '))
    ]
    assert alone == []


def test_a_test_that_is_named_for_a_number_tests_a_guarantee():
    """The defects of other libraries have names of their own, such as ``aiokpl_b7``."""
    numbers = {number.lower() for number in defined()}
    named = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for name in re.findall(r"def (test_[a-z]{1,2}\d{1,2}_\w+)", path.read_text())
        if name.split("_")[1] not in numbers | {"h2"}
    ]
    assert named == []
