"""Tests of ``cli.put.put_progress``."""

from shardline.cli.put.put_progress import PutCounts, Rate, progress_line


def test_the_first_line_has_a_rate():
    line = progress_line(PutCounts(1_000, 50, 0, 0, 2 * 1024 * 1024), Rate(100.0), 105.0)
    assert line == "1,000 put, 200/s, 50 in flight, 2.0 MiB"


def test_the_rate_is_that_of_the_last_seconds():
    rate = Rate(0.0)
    assert rate.per_second(0, 0.0) == 0
    assert rate.per_second(100, 1.0) == 100
    assert rate.per_second(200, 2.0) == 100
    assert rate.per_second(1_200, 4.0) == 1_100 / 3  # since the first second
    assert rate.per_second(1_200, 60.0) == 0


def test_retries_and_failures_are_shown_if_there_are_any():
    assert (
        progress_line(PutCounts(1, 0, 2, 3, 0), Rate(0.0), 1.0) == "1 put, 1/s, 0 in flight, 2 retried, 3 failed, 0 B"
    )
