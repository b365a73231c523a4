"""Do the tests exist that the page of differences cites, and is the page generated from its tables?"""

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


def test_the_pages_and_the_artefacts_are_made_of_the_tables():
    for path, text in differences.files().items():
        assert path.read_text() == text, "run: python tests/interop/differences.py"


def test_an_artefact_has_as_many_cells_in_every_row():
    for path, text in differences.files().items():
        if path.suffix == ".tsv":
            assert len({line.count("\t") for line in text.splitlines()}) == 1, path.name
