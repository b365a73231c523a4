"""How are the samples of a period added up and written?"""

import json
from collections import Counter

from shardline.adapters.sinks.cloudwatch_data import Accumulator, emf_lines, request_bodies, rounded, spread
from shardline.adapters.sinks.cloudwatch_names import Sample

NOW = 1_700_000_000.25
STREAM = (("StreamName", "orders"),)


def period(*samples, namespace="Test"):
    data = Accumulator()
    data.add(namespace, samples)
    return data.take()


def bodies(data, resolution=60.0):
    return [json.loads(body) for body in request_bodies(data, NOW, resolution=resolution)]


def test_sums_are_exact_and_values_are_counted():
    data = period(
        Sample("Put", "Count", 100_001, STREAM, is_sum=True),
        Sample("Put", "Count", 2, STREAM, times=3, is_sum=True),
        Sample("Time", "Milliseconds", 12.34, STREAM),
        Sample("Time", "Milliseconds", 11.9, STREAM, times=4),
        Sample("Time", "Milliseconds", 0.0, STREAM),
    )
    assert list(data.sums.values()) == [100_007]
    assert list(data.values.values()) == [{12.0: 5, 0.0: 1}]
    assert not data.is_empty
    assert period().is_empty


def test_a_period_is_taken_once():
    data = Accumulator()
    data.add("Test", [Sample("Put", "Count", 1, STREAM, is_sum=True)])
    assert not data.take().is_empty
    assert data.take().is_empty


def test_values_are_rounded_to_two_digits():
    assert [rounded(value) for value in (0, 0.001234, 1.26, 99.4, 12345)] == [0, 0.0012, 1.3, 99, 12000]


def test_numbers_that_cloudwatch_refuses_and_too_many_metrics_are_dropped():
    data = period(
        *(Sample(f"M{number}", "Count", 1, STREAM, is_sum=number % 2 == 0) for number in range(5_010)),
        Sample("M0", "Count", 1, STREAM, is_sum=True),
        Sample("M1", "Count", 1, STREAM),
        Sample("M1", "Count", float("nan"), STREAM),
        Sample("M1", "Count", float("inf"), STREAM),
    )
    assert data.dropped == 12
    assert len(data.sums) + len(data.values) == 5_000


def test_a_line_of_emf():
    data = period(Sample("Put", "Count", 7, STREAM, is_sum=True), Sample("Time", "Milliseconds", 3, STREAM, times=2))
    [line] = emf_lines(data, NOW)
    assert "\n" not in line
    assert json.loads(line) == {
        "_aws": {
            "Timestamp": 1_700_000_000_250,
            "CloudWatchMetrics": [
                {
                    "Namespace": "Test",
                    "Dimensions": [["StreamName"]],
                    "Metrics": [{"Name": "Put", "Unit": "Count"}, {"Name": "Time", "Unit": "Milliseconds"}],
                }
            ],
        },
        "StreamName": "orders",
        "Put": 7,
        "Time": [3, 3],
    }


def test_metrics_with_other_dimensions_get_a_line_of_their_own():
    data = period(Sample("Put", "Count", 7, STREAM, is_sum=True), Sample("Put", "Count", 7, (), is_sum=True))
    assert [json.loads(line)["_aws"]["CloudWatchMetrics"][0]["Dimensions"] for line in emf_lines(data, NOW)] == [
        [["StreamName"]],
        [[]],
    ]


def test_a_line_has_at_most_100_metrics():
    data = period(*(Sample(f"M{number}", "Count", 1, STREAM, is_sum=True) for number in range(250)))
    lines = [json.loads(line) for line in emf_lines(data, NOW)]
    assert [len(line["_aws"]["CloudWatchMetrics"][0]["Metrics"]) for line in lines] == [100, 100, 50]
    assert sum(line[name] for line in lines for name in line if name.startswith("M")) == 250


def test_more_than_100_values_keep_their_percentiles():
    assert spread(Counter({1.0: 2, 5.0: 1})) == [1, 1, 5]
    assert spread(Counter({3.0: 1})) == [3]
    many = spread(Counter({1.0: 900, 2.0: 90, 9.0: 10}))
    assert len(many) == 100
    assert (many[0], many[50], many[95], many[-1]) == (1, 1, 2, 9)
    assert spread(Counter({1.0: 10_000, 60.0: 1}))[-1] == 60, "the largest is always there"


def test_a_request():
    data = period(Sample("Put", "Count", 7, STREAM, is_sum=True), Sample("Time", "Milliseconds", 3, STREAM, times=2))
    assert bodies(data) == [
        {
            "Namespace": "Test",
            "MetricData": [
                {
                    "MetricName": "Put",
                    "Dimensions": [{"Name": "StreamName", "Value": "orders"}],
                    "Timestamp": NOW,
                    "Unit": "Count",
                    "Value": 7,
                },
                {
                    "MetricName": "Time",
                    "Dimensions": [{"Name": "StreamName", "Value": "orders"}],
                    "Timestamp": NOW,
                    "Unit": "Milliseconds",
                    "Values": [3],
                    "Counts": [2],
                },
            ],
        }
    ]
    assert bodies(data, resolution=10.0)[0]["MetricData"][0]["StorageResolution"] == 1
    assert bodies(period()) == []


def test_many_values_and_many_metrics_are_split():
    values = [Sample("Time", "Milliseconds", number, STREAM) for number in range(100)]
    values += [Sample("Time", "Milliseconds", number * 1e3, STREAM) for number in range(1, 100)]
    [body] = bodies(period(*values))
    assert [len(datum["Values"]) for datum in body["MetricData"]] == [150, 49]
    many = bodies(period(*(Sample(f"M{number}", "Count", 1, STREAM, is_sum=True) for number in range(1_200))))
    assert [len(body["MetricData"]) for body in many] == [500, 500, 200]


def test_a_request_stays_below_its_limit_in_bytes():
    wide = tuple((f"Dimension{number}", "x" * 250) for number in range(28))
    data = period(*(Sample(f"M{number}", "Count", 1, wide, is_sum=True) for number in range(200)))
    written = list(request_bodies(data, NOW, resolution=60.0))
    assert len(written) > 1
    assert max(len(body) for body in written) < 401_000
    assert sum(len(json.loads(body)["MetricData"]) for body in written) == 200


def test_each_namespace_has_its_own_request():
    data = Accumulator()
    for namespace in ("One", "Two"):
        data.add(namespace, [Sample("Put", "Count", 1, (), is_sum=True)])
    assert [body["Namespace"] for body in bodies(data.take())] == ["One", "Two"]
