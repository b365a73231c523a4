"""The rows of a KCL fleet are plain values: without rows, nothing is known."""

from shardline.core.kcl_requests import DeleteMetrics, KclRows, LeaderRow, MetricsPlace, MetricsRow, ReadKclRows


def test_a_fleet_without_rows():
    assert KclRows() == (None, (), None, None, False, False)


def test_rows_are_marked_only_if_they_say_so():
    assert not LeaderRow("java", "1").is_released
    assert not MetricsRow("java", 1).can_share_table
    assert MetricsRow("java", 1).shardline is None


def test_requests_are_compared_by_value():
    assert ReadKclRows() == ReadKclRows()
    assert DeleteMetrics("a", MetricsPlace.OWN_TABLE) != DeleteMetrics("a", MetricsPlace.LEASE_TABLE)
