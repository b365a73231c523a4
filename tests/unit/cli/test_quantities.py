"""How do counts and sizes read?"""

import pytest

from shardline.cli.quantities import counted, in_units


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (1_234, "1,234 records")]
)
def test_counts(count, text):
    assert counted(count, "record") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (150 * 1024, "150 KiB"),
        (2.5 * 1024**2, "2.5 MiB"),
        (5000 * 1024**3, "5,000 GiB"),
    ],
)
def test_sizes(count, text):
    assert in_units(count) == text
