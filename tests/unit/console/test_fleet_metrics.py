"""Tests of ``fleet_metrics``. ``tests/shell/test_console.py`` reads them from a server."""

import pytest

from shardline.console.fleet_metrics import FleetMetrics, Sample, check_metrics_url, parse_metrics


def test_the_lines_of_a_page_are_parsed_and_foreign_ones_skipped():
    page = (
        "# TYPE shardline_consumer_leases gauge\n"
        'shardline_consumer_leases{stream="a\\"b\\\\n",group="g"} 2.0\n'
        "shardline_broken{} many\n"
        "process_cpu_seconds_total 7\n"
        "shardline_producer_requests_total 3\n"
    )
    assert list(parse_metrics(page)) == [
        Sample("consumer_leases", {"stream": 'a"b\\n', "group": "g"}, 2.0),
        Sample("producer_requests_total", {}, 3.0),
    ]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://worker:8080", "http://worker:8080/metrics"),
        ("http://worker:8080/", "http://worker:8080/metrics"),
        ("https://worker/own/path", "https://worker/own/path"),
    ],
)
def test_an_address_without_a_path_gets_one(url, expected):
    assert check_metrics_url(url) == expected


@pytest.mark.parametrize("url", ["worker:8080", "ftp://worker/metrics", "http://", ""])
def test_other_addresses_are_refused(url):
    with pytest.raises(ValueError, match="http://host:port/metrics"):
        FleetMetrics([url])


@pytest.mark.parametrize("url", ["http://someone:hunter2@worker:99999", "ftp://someone:hunter2@worker?key=hunter3"])
def test_a_refused_address_is_shown_without_its_password(url):
    with pytest.raises(ValueError, match=r"http://host:port/metrics|Port out of range") as caught:
        FleetMetrics([url])
    assert "hunter" not in str(caught.value)


def test_without_an_address_nothing_is_known():
    metrics = FleetMetrics([])
    assert not metrics.is_known
    assert metrics.throttled_records("orders") is None
    assert metrics.group_json("billing", "orders") == {
        "asked": 0,
        "reading_lag": {},
        "handling_lag": {},
        "dead_lettered": None,
        "dead_letter_failures": None,
        "problems": [],
    }
