"""Tests of ``stream_watch``. ``tests/shell/test_console.py`` watches a real stream."""

from shardline.codec.raw_records import deaggregate
from shardline.codec.shapes import RawRecord
from shardline.console.record_views import RecordFilter
from shardline.console.stream_watch import SAMPLE_MAX, Viewer


def records(first, count):
    return deaggregate([RawRecord(b"x", str(number), f"user-{number}", 0.0) for number in range(first, first + count)])


def test_a_sample_has_records_of_every_shard_in_order_and_says_how_many_matched():
    viewer = Viewer(RecordFilter())
    for number in range(4):
        viewer.add(f"s{number}", records(1 + 1000 * number, 1000))
    update = viewer.take()
    assert (update["matched"], len(update["records"])) == (4000, SAMPLE_MAX)
    assert len({record["shard_id"] for record in update["records"]}) > 1  # once in 10**29 times, by chance, only one
    numbers = [int(record["sequence_number"]) for record in update["records"]]
    assert numbers == sorted(set(numbers))
    assert viewer.take() == {"records": [], "matched": 0}


def test_a_small_number_of_records_is_complete():
    viewer = Viewer(RecordFilter(key="user-7"), shard_id="s1")
    viewer.add("s0", records(1, 20))
    viewer.add("s1", records(1, 20))
    update = viewer.take()
    assert (update["matched"], [record["shard_id"] for record in update["records"]]) == (1, ["s1"])
