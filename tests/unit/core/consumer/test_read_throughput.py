"""The throughput of a shard is a moving average, in KiB per second."""

from shardline.core.consumer.read_throughput import ReadThroughput


def test_each_measurement_counts_half():
    throughput = ReadThroughput(100.0)
    throughput.add(4 * 1_024)
    assert throughput.measure(102.0) == 2.0
    assert throughput.measure(104.0) == 1.0
    throughput.add(2 * 1_024)
    assert throughput.measure(105.0) == 1.5


def test_the_average_of_the_last_owner_is_continued():
    assert ReadThroughput(0.0, 8.0).measure(1.0) == 4.0


def test_a_measurement_of_no_time_changes_nothing():
    throughput = ReadThroughput(5.0)
    throughput.add(1_024)
    assert throughput.measure(5.0) == 0.0
    assert throughput.measure(6.0) == 1.0
