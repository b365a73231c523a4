"""Reads the pages: their code blocks, tables and links."""

import re
import sys
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def text_of(page):
    return (ROOT / page).read_text()


def blocks_of(page, language):
    """Return every block of a page in one language, in order."""
    return [body for tongue, body in FENCE.findall(text_of(page)) if tongue == language]


def pages_in(folder):
    """Return every page of a folder, as a path from the root."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.md"))


def blocks_in(folder, language):
    """Return every block of the pages of a folder in one language."""
    return [block for page in pages_in(folder) for block in blocks_of(page, language)]


def script(path):
    """Return the names of a script under ``docs/``. Its folder is on the path only while the script runs."""
    before = list(sys.path), set(sys.modules)
    try:
        return SimpleNamespace(**run_path(str(ROOT / path)))
    finally:
        sys.path[:] = before[0]
        for name in set(sys.modules) - before[1]:
            if str(ROOT / "docs") in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def block_with(blocks, text):
    """Return the only block that contains a text."""
    [found] = [block for block in blocks if text in block]
    return found


def run_block(blocks, text):
    """Run the only block that contains a text, and return its names."""
    names = {"__name__": "example"}
    exec(compile(block_with(blocks, text), text, "exec"), names)  # our own page
    return SimpleNamespace(**names)


def prose_of(page):
    """Return a page without its blocks."""
    return FENCE.sub("", text_of(page))


def languages_of(page):
    return {tongue for tongue, _ in FENCE.findall(text_of(page))}


def section_of(page, heading):
    """Return the text under a heading, up to the next heading of any level."""
    lines, within, fenced = [], False, False
    for line in text_of(page).splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if not fenced and re.match(r"#{1,6} ", line):
            within = line.rstrip() == heading
        elif within:
            lines.append(line)
    assert lines, heading
    return "".join(lines)


def table_of(page, first_head):
    """Return the rows of the table whose first column has this header, as lists of cells."""
    after = text_of(page).split(f"\n| {first_head} |", 1)[1]
    lines = after.split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines if line.startswith("|")]
