"""Does a real Prometheus that scrapes a running fleet have data for every panel, and does it show what is wrong?"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_path

import pytest
from tests.prometheus.real_prometheus import free_ports, prometheus

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "shardline.json"
SECONDS = 40
EXPRESSIONS = {
    f"{panel['title']}: {target['legendFormat']}": target["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]
    for target in panel.get("targets", [])
}


def test_the_dashboard_is_what_its_program_writes():
    built = run_path(str(DASHBOARD.with_name("build.py")))["dashboard"]()
    assert json.loads(DASHBOARD.read_text()) == built
    panels = [panel for panel in built["panels"] if panel["type"] != "row"]
    assert len({panel["title"] for panel in panels}) == len(panels) >= 25
    assert len({panel["id"] for panel in built["panels"]}) == len(built["panels"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A Prometheus that has scraped a whole demo, and when that began."""
    first = free_ports(3)
    began_at = time.time()
    with prometheus(range(first, first + 3), tmp_path_factory.mktemp("demo")) as found:
        command = [
            sys.executable,
            "-m",
            "shardline",
            "demo",
            "--plain",
            "--seconds",
            str(SECONDS),
            "--metrics",
            str(first),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                printed, _ = process.communicate(timeout=240)
            finally:
                process.kill()
        assert process.returncode == 0, printed
        assert re.search(
            rf"metrics on http://127.0.0.1:{first}/metrics; of the workers on ports {first + 1} and", printed
        )
        yield found, began_at, first


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_panel_has_data(demo, name):
    found, began_at, _ = demo
    assert found.points(EXPRESSIONS[name], began_at)


def test_the_panels_show_what_the_demo_did(demo):
    found, began_at, first = demo

    def points(title):
        return [
            point
            for name, expression in EXPRESSIONS.items()
            if name.startswith(title)
            for point in found.points(expression, began_at)
        ]

    assert max(points("Errors and throttles by code")) > 0, "the flash sale was throttled"
    assert min(points("Rate left by throttling")) < 1, "the shard was hot"
    up = {port: found.series(f'up{{instance="127.0.0.1:{port}"}}', began_at) for port in (first + 1, first + 2)}
    answered_at = min(at for at, value in up[first + 2].items() if value == 1)
    assert any(value == 0 and at > answered_at and up[first + 1].get(at) == 1 for at, value in up[first + 2].items()), (
        "a worker died, and the other did not"
    )
    assert max(points("Shards (partitions) by worker")) >= 2
    assert max(points("Records in and out")) > 100
    assert max(points("Failed records")) == 0


# ---- what is wrong

TROUBLE = """
import asyncio, sys, time
from shardline import Consumer, FailurePolicy, Producer
from shardline.adapters.sinks.prometheus_sink import PrometheusSink
from shardline.health import HealthServer
from shardline.testing import LocalKinesis

async def main(port):
    sink = PrometheusSink(by_shard=True)
    with LocalKinesis(stream="orders", shards=2) as kinesis:
        place = dict(endpoint_url=kinesis.endpoint_url, region=kinesis.region, credentials=kinesis.credentials)
        async with Producer("orders", sinks=[sink], **place) as producer, Consumer(
            "orders", group="billing", store="memory:", sinks=[sink], **place
        ) as consumer:
            with HealthServer(producer, consumer, port=port, host="127.0.0.1"):
                await asyncio.sleep(4)  # the counters are scraped before they change
                await producer.put_many([("a", b"slow")] * 200 + [("a", b"poison")])

                async def handle(record):
                    await asyncio.sleep(0.3)
                    if record.data == b"poison" or time.monotonic() > poison_at:
                        raise ValueError("poison")

                async def bury(letter):
                    pass

                poison_at = time.monotonic() + 8
                policy = FailurePolicy(attempts=2, backoff=0.1, backoff_max=0.1)
                await consumer.run(handle, policy=policy, dead_letter=bury)

asyncio.run(main(int(sys.argv[1])))
"""


def test_slow_handlers_and_dead_letters_are_seen_within_a_minute(tmp_path):
    port = free_ports(1)
    began_at = time.time()
    with prometheus([port], tmp_path) as found:
        process = subprocess.Popen([sys.executable, "-c", TROUBLE, str(port)])
        try:
            deadline = time.monotonic() + 60
            alerts = set()
            while not alerts >= {"ShardlineDeadLetters", "ShardlineHandlerFailing"}:
                assert time.monotonic() < deadline, alerts
                assert process.poll() is None
                time.sleep(0.5)
                alerts = {alert["labels"]["alertname"] for alert in found.get("alerts")["alerts"]}
            lag = next(
                expression for name, expression in EXPRESSIONS.items() if name.startswith("Consumer lag by group")
            )
            reading = next(expression for name, expression in EXPRESSIONS.items() if name.startswith("Lag of reading"))
            assert max(found.points(lag, began_at)) > 3, "handling falls behind"
            assert max(found.points(reading, began_at)) < 3, "reading does not"
        finally:
            process.kill()
            process.wait()
