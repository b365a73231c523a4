"""Tests of ``cli.local.traffic_display``."""

import json

from shardline.cli.local.traffic_display import LocalDisplay, traffic_line
from shardline.server.running_server import Traffic


def test_a_line_counts_one_and_many():
    assert traffic_line(1, Traffic(1, 1, 1)) == "     1 request   1 in all  1 stream  1 record"
    assert traffic_line(1_200, Traffic(12_000, 2, 0)) == " 1,200 requests  12,000 in all  2 streams  0 records"


def test_there_is_a_line_only_where_there_were_requests(capsys):
    display = LocalDisplay(is_json=False)
    for traffic in (Traffic(0, 1, 0), Traffic(2, 1, 2), Traffic(2, 1, 2), Traffic(1, 1, 2)):
        display.show_traffic(lambda traffic=traffic: traffic)
    assert capsys.readouterr().out.splitlines() == [
        "     2 requests  2 in all  1 stream  2 records",
        "     0 requests  1 in all  1 stream  2 records",  # the request log was cleared
    ]


def test_whatever_breaks_is_reported_once(capsys):
    display = LocalDisplay(is_json=False)

    def broken():
        raise KeyError("gone")

    display.show_start(broken, dict)
    for _ in range(3):
        display.show_traffic(broken)
    display.show_traffic(lambda: Traffic(1, 1, 1))
    display.show_end()
    shown = capsys.readouterr()
    assert shown.err == "Warning: the traffic cannot be shown (KeyError: 'gone'); the server keeps serving\n"
    assert shown.out.splitlines() == ["     1 request   1 in all  1 stream  1 record", "stopped"]


def test_json_has_an_object_a_line(capsys):
    display = LocalDisplay(is_json=True)
    display.show_start(lambda: "text", lambda: {"endpoint_url": "http://localhost:1"})
    display.show_traffic(lambda: Traffic(3, 2, 1))
    display.show_end()
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"event": "started", "endpoint_url": "http://localhost:1"},
        {"event": "traffic", "new_requests": 3, "requests": 3, "streams": 2, "records": 1},
        {"event": "stopped"},
    ]
