"""Tests of ``throttle_counts``. ``tests/shell/test_console.py`` has those of the embedded server."""

from shardline.console.throttle_counts import HISTORY, ThrottleCounts


class Metrics:
    """Metrics whose total a test sets."""

    total = None

    def throttled_records(self, stream):
        assert stream == "orders"
        return self.total


def test_the_counts_are_the_growth_of_the_producers_total():
    metrics = Metrics()
    counts = ThrottleCounts("orders", metrics, None)
    assert counts.to_json(100.0) is None
    seen = []
    for now, metrics.total in ((101.0, 7.0), (103.0, 9.0), (105.0, 9.0), (107.5, 14.0)):
        seen = counts.to_json(now)["seconds"]
    assert seen == [[103, 2, 0], [107, 5, 0]]
    metrics.total = 0.0  # the producer was restarted
    assert counts.to_json(108.0)["seconds"] == seen
    assert counts.to_json(104.0 + HISTORY)["seconds"] == [[107, 5, 0]]
