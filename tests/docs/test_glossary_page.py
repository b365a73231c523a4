"""Are the words of the glossary the words of the code?

Each word occurs in the source: as an identifier or a part of one, in any form that Python allows ("fencing token" is
``fencing_token`` or ``FencingToken``), or as a word of a docstring, a comment or a message.
"""

import re

import pytest
from tests.docs import pages

SOURCE = "\n".join(path.read_text() for path in sorted((pages.ROOT / "src" / "shardline").rglob("*.py")))
TERMS = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", pages.text_of("docs/glossary.md"), re.MULTILINE)
IDENTIFIERS = {name.lower().replace("_", "") for name in re.findall(r"\b[A-Za-z_]\w*\b", SOURCE)}
PROSE = re.sub(r"[-_\s]+", " ", SOURCE.lower())


def forms_of(term):
    """A word, and its forms in the source: "acknowledge" is also "acknowledged", "hand-over" also "hand over"."""
    plain = re.sub(r"[- ]", " ", term)
    return plain, plain.replace(" ", "")


def is_a_word_of_the_code(term):
    spaced, joined = forms_of(term)
    return any(joined in name for name in IDENTIFIERS) or re.search(rf"\b{re.escape(spaced)}", PROSE) is not None


def test_the_glossary_has_its_words():
    assert len(TERMS) > 60
    assert len({term for term, _ in TERMS}) == len(TERMS)


@pytest.mark.parametrize("term", [term for term, _ in TERMS])
def test_a_word_of_the_glossary_is_a_word_of_the_code(term):
    assert is_a_word_of_the_code(term)


def test_a_word_that_the_code_does_not_use_is_seen():
    assert not is_a_word_of_the_code("custodian")
    assert not is_a_word_of_the_code("fencing number")


@pytest.mark.parametrize("name", re.findall(r"`([a-z]+\.[a-z_.]+)`", pages.text_of("docs/glossary.md")))
def test_the_attributes_of_the_glossary_exist(name):
    assert re.search(rf"\b{name.rpartition('.')[2]}\b", SOURCE), name
