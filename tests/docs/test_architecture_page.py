"""Does the page on the architecture have a room for every module of the producer and the consumer, and name no room that is gone?"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "shardline"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FILE_MAP = PAGE.partition("## File map")[2].partition("## Non-obvious")[0]
NAMED = set(re.findall(r"`((?:\w+/)*\w+\.py)`", FILE_MAP))


def test_every_module_of_the_machines_and_their_shells_is_in_the_file_map():
    modules = {
        str(path.relative_to(SRC))
        for package in ("core/producer", "core/consumer", "adapters/leases", "aio", "sync")
        for path in (SRC / package).glob("*.py")
        if path.name != "__init__.py"
    }
    assert modules - NAMED == set()


def test_the_file_map_names_only_what_is_there():
    assert len(NAMED) > 50
    gone = {name for name in NAMED if not any((root / name).exists() for root in (SRC, ROOT / "tests", ROOT / "docs"))}
    assert {name for name in gone if "/" in name} == set()


def test_the_file_map_names_nothing_twice():
    rows = [row.split(" | ")[0] for row in FILE_MAP.splitlines() if row.startswith("| `")]
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", " ".join(rows))
    assert sorted(named) == sorted(set(named))
