"""Does the check of the words report each kind of mistake, and is every page clean?"""

import pytest
from tests.docs import plain_english
from tests.docs.plain_english import Finding


@pytest.mark.parametrize("page", plain_english.pages(), ids=lambda page: str(page.relative_to(plain_english.ROOT)))
def test_every_page_is_clean(page):
    assert [str(finding) for finding in plain_english.check_page(page.name, page.read_text())] == []


def test_half_of_the_pages_are_short():
    counts = [len(page.read_text().split()) for page in plain_english.pages()]
    assert list(plain_english.check_median(counts)) == []


@pytest.mark.parametrize(
    "text",
    [
        "The caller is told.",
        "It was made anew.",
        "It waits for ever.",
        "A name that is none.",
        "Wait so long.",
        "The way from boto3.",
        "Nobody knows.",
        "It fails in silence.",
        "What was read is kept.",
        "It stops. Who has no time waits.",
        "A first line.\n\nWhat follows spans\ntwo lines.",
    ],
)
def test_a_mistake_in_a_page_is_reported(text):
    [finding] = plain_english.check_page("page.md", f"# Title\n\n{text}\n")
    assert finding.file == "page.md"
    assert finding.line >= 3


@pytest.mark.parametrize(
    "text",
    [
        "`told` and `nobody` are code.",
        "```sh\necho nobody told\n```",
        "## What it prints",
        "What is a lease?",
        "It holds as long as the lease does, so long as it is renewed.",
        "| What | 1.5 |",
    ],
)
def test_plain_text_is_not_reported(text):
    assert list(plain_english.check_page("page.md", f"# Title\n\n{text}\n")) == []


def test_a_long_page_and_a_high_median_are_reported():
    [finding] = plain_english.check_page("page.md", "word " * 1_501)
    assert finding.text.startswith("1501 words")
    assert list(plain_english.check_page("page.md", "word " * 1_500)) == []
    assert len(list(plain_english.check_median([100, 701, 1_400]))) == 1
    assert list(plain_english.check_median([100, 700, 1_400])) == []


def test_comments_docstrings_and_messages_of_the_source_are_checked():
    source = '"""Fine."""\n\n# nobody\ndef f():\n    """P7."""\n    raise ValueError("told")\n'
    assert sorted(finding.line for finding in plain_english.check_source("a.py", source)) == [3, 4, 6]
    assert list(plain_english.check_source("a.py", '"""P7: every put resolves once."""\n')) == []


def test_a_name_of_two_modules_is_reported_once_for_each_further_one():
    paths = [plain_english.Path(name) for name in ("a/clock.py", "b/clock.py", "a/__init__.py", "b/__init__.py")]
    [finding] = plain_english.check_names(paths)
    assert finding.file == "b/clock.py"


def test_a_changed_line_is_no_longer_allowed():
    old = Finding("a.py", 3, "avoid 'told'", "it is told here")
    moved = old._replace(file="b.py", line=70)
    changed = old._replace(context="it is told there")
    allowed = [old.fingerprint]
    assert plain_english.not_allowed([moved], allowed) == []
    assert plain_english.not_allowed([changed], allowed) == [changed]
    assert plain_english.not_allowed([old, moved], allowed) == [moved], "one more of the same"
    assert plain_english.still_needed([changed], allowed) == []


def test_the_allowance_is_in_order():
    lines = plain_english.ALLOWANCE.read_text().split()
    assert lines == sorted(lines)
