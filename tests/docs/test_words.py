"""Is every word of the pages in a dictionary?

``docs/words.txt`` has correct words that no dictionary has. Code, in blocks or inline, does not count.
"""

import re
from pathlib import Path

import pytest
from spellchecker import SpellChecker

ROOT = Path(__file__).parents[2]
LIST = ROOT / "docs" / "words.txt"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NO_PROSE = [
    re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE),
    re.compile(r"`[^`]*`"),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"\]\([^)]*\)"),  # the target of a link
    re.compile(r"https?://\S+"),
    re.compile(r"[\w./-]+\.(?:md|py|json|toml|txt)\b"),  # files
    re.compile(r"\b\w*[_\d]\w*\b"),  # names, and numbers with a unit
    re.compile(r"\b[A-Z]{2,}\w*\b"),
    re.compile(r"\b\w*[a-z][A-Z]\w*\b"),  # AnyCase
]


@pytest.fixture(scope="module")
def speller():
    return SpellChecker()


def words_of(text):
    for pattern in NO_PROSE:
        text = pattern.sub(" ", text)
    found = re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)?", text)
    return {word.lower().removesuffix("'s") for word in found if len(word) > 1}


def listed():
    return LIST.read_text().split()


def test_there_is_something_to_read():
    assert len(PAGES) > 15
    assert len(words_of("".join(page.read_text() for page in PAGES))) > 1000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_word_is_known(page, speller):
    unknown = speller.unknown(words_of(page.read_text())) - set(listed())
    assert sorted(unknown) == [], f"misspelt, or to be added to {LIST.relative_to(ROOT)}"


def test_a_misspelling_is_seen(speller):
    assert speller.unknown(words_of("Every recrod is `dlivered` once. ```")) == {"recrod"}


def test_the_list_is_in_order_and_has_no_word_that_the_dictionary_knows(speller):
    words = listed()
    assert words == sorted(set(words))
    assert [word for word in words if not speller.unknown([word])] == []
