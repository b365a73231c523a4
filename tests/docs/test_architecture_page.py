"""Does the map of the architecture have every folder, and do the pages name only modules that exist?"""

import re

import pytest
from tests.docs import pages

ROOT = pages.ROOT
SRC = ROOT / "src" / "shardline"
PAGE = "docs/architecture.md"
PATHS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "architecture").glob("*.md"))
ROWS = re.findall(r"^\| (`[^|]+`) \| .+ \|$", pages.text_of(PAGE).partition("## Map")[2], re.MULTILINE)
MAPPED = [name for row in ROWS for name in re.findall(r"`([^`]+)`", row)]


def packages():
    """Every folder of the package that has modules of its own."""
    return {path.parent for path in SRC.rglob("*.py") if path.name != "__init__.py"} - {SRC}


def test_the_map_is_short():
    assert 20 < len(ROWS) <= 40


def test_the_map_has_every_folder_of_the_package_and_of_the_tests():
    folders = {path.relative_to(ROOT).as_posix() for path in packages()}
    assert folders - set(MAPPED) == set()
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").iterdir() if any(path.glob("*.py"))}
    assert tests - set(MAPPED) == set()


def test_the_map_names_only_folders_that_exist_and_none_twice():
    assert [name for name in MAPPED if not (ROOT / name).is_dir()] == []
    assert len(MAPPED) == len(set(MAPPED))


@pytest.mark.parametrize("page", [PAGE, *PATHS])
def test_the_pages_name_only_modules_that_exist(page):
    modules = {path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py")}
    names = {path.rpartition("/")[2] for path in modules}
    cited = re.findall(r"`((?:\w+/)*\w+\.py)`", pages.text_of(page))
    assert [name for name in cited if name not in (modules if "/" in name else names)] == []


def test_the_first_page_leads_to_the_others():
    linked = re.findall(r"\]\((architecture/[\w-]+\.md)\)", pages.text_of(PAGE))
    assert sorted(f"docs/{name}" for name in linked) == PATHS
