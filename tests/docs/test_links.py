"""Does every link of the pages lead somewhere?

mkdocs checks the links inside ``docs/``. This test checks all links, including those of the README and those to files
that are not pages: the file exists, and has the heading. An external address must be well formed; no request is sent.
"""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} (.+?)(?: \{.*\})?$", re.MULTILINE)


def links_of(page):
    return LINK.findall(CODE.sub(" ", page.read_text()))


def anchors_of(page):
    """Return the anchors of a page's headings. The second of two equal ones has a number."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = []
    for heading in HEADING.findall(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = slugify(words, "-")
        found.append(f"{slug}_{found.count(slug)}" if slug in found else slug)
    return set(found)


def wrong(page, link):
    """Return what is wrong with a link, or nothing."""
    parts = urlsplit(link)
    if parts.scheme:
        host = parts.hostname or ""
        fine = parts.scheme == "https" and re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", host) and " " not in link
        return None if fine else "no https address"
    target = (page.parent / parts.path).resolve() if parts.path else page
    if ROOT not in target.parents:
        return "outside of the repository"
    if not target.exists():
        return "no such file"
    if parts.fragment and target.suffix == ".md" and parts.fragment not in anchors_of(target):
        return "no such heading"
    return None


def test_there_are_links():
    assert sum(len(links_of(page)) for page in PAGES) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert {link: wrong(page, link) for link in links_of(page) if wrong(page, link)} == {}


@pytest.mark.parametrize(
    ("link", "what"),
    [
        ("docs/no-page.md", "no such file"),
        ("docs/guides/producer/index.md#no-heading", "no such heading"),
        ("#no-heading", "no such heading"),
        ("../elsewhere.md", "outside of the repository"),
        ("http://example.com", "no https address"),
        ("https://example", "no https address"),
        ("docs/guides/producer/retries.md#outages", None),
        ("https://keepachangelog.com/en/1.1.0/", None),
        ("LICENSE", None),
    ],
)
def test_what_is_wrong_is_seen(link, what):
    assert wrong(ROOT / "README.md", link) == what
