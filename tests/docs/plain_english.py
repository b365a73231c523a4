"""Checks the words of the pages and of the source: ``make lint`` runs ``python tests/docs/plain_english.py``.

It reports:

- words that the writing rules avoid (CONTRIBUTING.md), in pages, docstrings, comments and messages;
- sentences that begin with "Who" or "What" and are no questions;
- docstrings that are the number of an invariant and nothing else;
- modules of the package that share a name;
- pages of more than 1,500 words, and a median of more than 700.

Pages must be clean. The source may have findings in old lines: ``plain_english_allowance.txt`` has a fingerprint of each.
A line that is changed gets another fingerprint, so changed text must be clean, wherever its file is moved. ``--write``
removes the fingerprints of lines that are gone.
"""

import argparse
import ast
import hashlib
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "shardline"
ALLOWANCE = Path(__file__).with_name("plain_english_allowance.txt")
MAX_WORDS, MAX_MEDIAN = 1_500, 700
AVOIDED = {
    r"\btold\b": "name the message, the report or the argument",
    r"\banew\b": "again, re-create, reset",
    r"\bfor ever\b": "forever, permanently",
    r"\b(?:is|are|was|were) none\b": "invalid, missing, empty",
    r"\bso long\b(?! (?:as|that)\b)": "this long",
    r"\bthe way (?:from|to)\b": "migration from, path to, connection to",
    r"\b(?:anybody|nobody|somebody)\b": "name the caller, the worker, the client",
    r"\bin silence\b": "silently",
    r"\bas it was\b": "unchanged",
    r"\bwhat is so\b": "name the condition",
    r"\bwhose turn\b": "next",
}
WORDS = re.compile("|".join(f"(?:{pattern})" for pattern in AVOIDED), re.IGNORECASE)
HEADLESS = re.compile(
    r"(?:^|(?<=[.!?] )|(?<=\n\n)|(?<=[-*] ))(?:Who|Whom|What(?! happens)) [^.?!|\n]*(?:\n[^.?!|\n]+)*\.(?=\s|$)"
)
IDS_ALONE = re.compile(r"(?:[A-Z]{1,3}\d+[\s,.;:and]*)+")
FENCE = re.compile(r"^```.*?^```$|<!--.*?-->", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)")


class Finding(NamedTuple):
    """A mistake, and where it is."""

    file: str
    line: int
    text: str
    context: str = ""  # the line of text that contains it

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"

    @property
    def fingerprint(self) -> str:
        """A hash that stays the same until the line is changed, wherever the file is."""
        return hashlib.sha256(f"{self.text}\n{' '.join(self.context.split())}".encode()).hexdigest()[:12]


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def suggestion(word: str) -> str:
    return next(better for pattern, better in AVOIDED.items() if re.search(pattern, word, re.IGNORECASE))


def findings_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset of each avoided word and headless sentence in a text, with the mistake."""
    for match in WORDS.finditer(text):
        yield match.start(), f"avoid {match[0]!r}: {suggestion(match[0])}"
    for match in HEADLESS.finditer(text):
        opening = " ".join(match[0].split()[:6])
        yield match.start(), f"name the subject of {opening!r}"


def check_page(name: str, text: str) -> Iterator[Finding]:
    prose = CODE.sub(lambda code: "x" * len(code[0]), FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text))
    for offset, message in findings_in(prose):
        yield Finding(name, text.count("\n", 0, offset) + 1, message)
    words = len(text.split())
    if words > MAX_WORDS and name != "CHANGELOG.md":  # a changelog grows with every version
        yield Finding(name, 1, f"{words} words: split the page, at most {MAX_WORDS} are allowed")


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings, the other strings and the comments of a module, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.removeprefix("#").strip()


def check_source(name: str, source: str) -> Iterator[Finding]:
    for line, text in texts_of(source):
        for offset, message in findings_in(text):
            number = text.count("\n", 0, offset)
            yield Finding(name, line + number, message, text.splitlines()[number])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring and IDS_ALONE.fullmatch(docstring):
                yield Finding(name, getattr(node, "lineno", 1), f"the docstring is an id alone: {docstring}", docstring)


def check_names(paths: list[Path]) -> Iterator[Finding]:
    """Yield the modules of the package that share a name. Packages and their ``__init__`` do not count."""
    named = defaultdict(list)
    for path in paths:
        if not path.stem.startswith("__"):
            named[path.stem].append(path)
    for name, twins in named.items():
        for path in twins[1:]:
            yield Finding(str(path), 1, f"the module name {name!r} occurs {len(twins)} times")


def check_median(counts: list[int]) -> Iterator[Finding]:
    if counts and median(counts) > MAX_MEDIAN:
        yield Finding("docs", 1, f"the median page has {median(counts):g} words, at most {MAX_MEDIAN} are allowed")


def of_pages() -> list[Finding]:
    texts = {path: path.read_text() for path in pages()}
    found = [found for path, text in texts.items() for found in check_page(str(path.relative_to(ROOT)), text)]
    return [*found, *check_median([len(text.split()) for text in texts.values()])]


def of_source() -> list[Finding]:
    modules = sorted(SRC.rglob("*.py"))
    found = [finding for path in modules for finding in check_source(str(path.relative_to(ROOT)), path.read_text())]
    return [*found, *check_names([path.relative_to(ROOT) for path in modules])]


def not_allowed(found: list[Finding], allowed: list[str]) -> list[Finding]:
    """Return the findings whose fingerprints are not in the list, or are there fewer times."""
    left = Counter(allowed)
    reported = []
    for finding in found:
        if left[finding.fingerprint]:
            left[finding.fingerprint] -= 1
        else:
            reported.append(finding)
    return reported


def still_needed(found: list[Finding], allowed: list[str]) -> list[str]:
    return sorted((Counter(allowed) & Counter(finding.fingerprint for finding in found)).elements())


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the words of the pages and of the source.")
    parser.add_argument("--write", action="store_true", help="remove the fingerprints of lines that are gone")
    parser.add_argument("--accept", action="store_true", help="allow all present findings of the source")
    parser.add_argument("--all", action="store_true", help="print the allowed findings, too")
    options = parser.parse_args()
    allowed, source = ALLOWANCE.read_text().split(), of_source()
    if options.write or options.accept:
        fingerprints = [finding.fingerprint for finding in source]
        allowed = sorted(fingerprints) if options.accept else still_needed(source, allowed)
        ALLOWANCE.write_text("".join(f"{fingerprint}\n" for fingerprint in allowed))
    reported = [*of_pages(), *(source if options.all else not_allowed(source, allowed))]
    for finding in reported:
        sys.stdout.write(f"{finding}\n")
    sys.stdout.write(f"plain English: {len(reported)} to change; {len(allowed)} old lines of the source are allowed\n")
    return 1 if reported else 0


if __name__ == "__main__":
    sys.exit(main())
