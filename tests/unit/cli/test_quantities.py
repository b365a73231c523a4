"""How are counts and sizes formatted?"""

import pytest

from shardline.cli.quantities import counted, in_units, parse_size
from shardline.errors import UsageError


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


@pytest.mark.parametrize(
    ("text", "size"), [("5MiB", 5_242_880), ("1.5mib", 1_572_864), ("512 KiB", 524_288), ("7B", 7), ("1GiB", 2**30)]
)
def test_a_size_has_a_unit(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5", "MiB", "5MB", "-5MiB", "1.3B", "1e3MiB", "5MiB "])
def test_other_texts_are_no_sizes(text):
    with pytest.raises(UsageError, match=r"a size is written as 512KiB, 5MiB or 1\.5MiB, not "):
        parse_size(text)
