"""Runs a real Prometheus that scrapes ports of this machine (Debian's package ``prometheus``)."""

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import yaml

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
# What Grafana would replace in the queries of a dashboard
VARIABLES = {"$__rate_interval": "8s", "$stream": ".*", "$group": ".*"}

_candidates = iter(range(21_000, 30_000, 10))


def free_ports(count):
    """The first of up to ten free ports in a row, other ones each time."""
    for first in _candidates:
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


class Prometheus:
    def __init__(self, url):
        self._url = url

    def get(self, path, **parameters):
        with urllib.request.urlopen(
            f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20
        ) as answer:
            return json.load(answer)["data"]

    def all_series(self, expression, began_at, step=1):
        """The time series of a query from a time until now, as Grafana would draw them: labels, and values by time."""
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        found = self.get("query_range", query=expression, start=began_at, end=time.time(), step=step)["result"]
        return [
            (series["metric"], {at: float(value) for at, value in series["values"] if value != "NaN"})
            for series in found
        ]

    def points(self, expression, began_at):
        """All points of a query from a time until now."""
        return [value for _, values in self.all_series(expression, began_at) for value in values.values()]

    def series(self, expression, began_at):
        """The one time series of a query, by time."""
        [(_, values)] = self.all_series(expression, began_at)
        return values

    def is_ready(self):
        try:
            return bool(self.get("targets")["activeTargets"])
        except OSError:
            return False


@contextmanager
def prometheus(ports, directory):
    port = free_ports(1)
    rules = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)  # the test has no minutes to wait
    (directory / "alerts.yml").write_text(yaml.safe_dump(rules))
    config = yaml.safe_load((ALERTS.with_name("prometheus.yml")).read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{each}" for each in ports]}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    process = subprocess.Popen(
        [
            "prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + 60
        while not found.is_ready():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield found
    finally:
        process.terminate()
        process.wait()
