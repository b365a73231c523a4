"""Do the tests exist that the page of differences rests on, and is the page made of its tables?"""

from pathlib import Path

import pytest
from tests.interop import differences

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("detail", differences.DETAILS, ids=lambda detail: detail.what)
def test_each_detail_names_tests_that_exist(detail):
    assert detail.tests
    for test in detail.tests:
        path, name = test.split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test


def test_the_page_is_made_of_its_tables():
    assert (ROOT / "docs/differences.md").read_text() == differences.page()
