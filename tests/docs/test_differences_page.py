"""Do the tests exist that the page of differences rests on, and is the page made of its tables?"""

from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[2]
TABLES = run_path(str(ROOT / "tests/interop/differences.py"))


@pytest.mark.parametrize("detail", TABLES["DETAILS"], ids=lambda detail: detail.what)
def test_each_detail_names_tests_that_exist(detail):
    assert detail.tests
    for test in detail.tests:
        path, name = test.split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test


def test_the_page_is_made_of_its_tables():
    assert (ROOT / "docs/differences.md").read_text() == TABLES["page"]()
