"""How often a worker scans depends on the number of rows."""

import pytest

from shardline.core.consumer.scan_pace import ROWS_PER_INTERVAL, ScanPace


@pytest.mark.parametrize(
    ("rows", "interval"),
    [(0, 0.5), (1, 0.5), (ROWS_PER_INTERVAL, 0.5), (2 * ROWS_PER_INTERVAL, 1.0), (1_000, 2.0), (10_000, 5.0)],
)
def test_a_large_group_is_scanned_less_often(rows, interval):
    assert ScanPace(0.5, longest=5.0).interval(rows) == interval


@pytest.mark.parametrize("rows", [0, 1_000, 100_000])
def test_an_interval_of_the_user_stays(rows):
    assert ScanPace(0.5, longest=0.0).interval(rows) == 0.5
