"""What do the pages hold: their blocks of code, their tables, their links?"""

import re
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def text_of(page):
    return (ROOT / page).read_text()


def blocks_of(page, language):
    """Every block of a page in one language, in order."""
    return [body for tongue, body in FENCE.findall(text_of(page)) if tongue == language]


def block_with(blocks, text):
    """The one block that contains a text."""
    [found] = [block for block in blocks if text in block]
    return found


def run_block(blocks, text):
    """Run the one block that contains a text; give its names."""
    names = {"__name__": "example"}
    exec(compile(block_with(blocks, text), text, "exec"), names)  # our own page
    return SimpleNamespace(**names)


def prose_of(page):
    """A page without its blocks."""
    return FENCE.sub("", text_of(page))


def languages_of(page):
    return {tongue for tongue, _ in FENCE.findall(text_of(page))}


def section_of(page, heading):
    """What stands under a heading, up to the next heading of any rank."""
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
    """The rows of the table whose first column has this head, as lists of cells."""
    after = text_of(page).split(f"\n| {first_head} |", 1)[1]
    lines = after.split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines if line.startswith("|")]
