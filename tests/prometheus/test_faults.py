"""Does a reader who knows Kafka see each of four faults of a fleet on the dashboard, within a minute?

A fleet of two workers and a producer is scraped by a real Prometheus. Four faults happen one after the other: a shard
gets hot, a record is dead-lettered, a worker is killed, and a handler gets slow. For each fault, exactly one number of
the dashboard's first row must leave the green range, and the panel that its description names must show the details.
The test prints the whole dashboard as text, which pytest shows with ``-s``. If the environment variable ``PICTURES`` names
a directory, the test also saves a picture of the dashboard there after each fault, which takes a Chromium.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.prometheus.dashboard_page import page, photograph
from tests.prometheus.dashboard_view import panels, picture, show
from tests.prometheus.real_prometheus import free_ports, prometheus

from shardline import ProducerConfig
from shardline.health import HealthServer
from shardline.sinks import PrometheusSink
from shardline.sync import Producer
from shardline.testing import LocalKinesis

WITHIN = 60
HEIGHT = 1080
SLOW, HOT, DEAD, LETTERS = (
    "Consumer lag of slow handlers", "Hot shards (partitions)", "Dead workers", "Dead-lettered records, last hour",
)  # fmt: skip

WORKER = """
import asyncio, sys
from shardline import Consumer, ConsumerConfig, Credentials, FailurePolicy
from shardline.health import HealthServer
from shardline.sinks import PrometheusSink

async def handle(record):
    if record.data == b"slow":
        await asyncio.sleep(0.5)
    if record.data == b"poison":
        raise ValueError("poison")

async def bury(letter):
    pass

async def main(url, access_key, secret_key, store, port):
    place = dict(endpoint_url=url, region="us-east-1", credentials=Credentials(access_key, secret_key))
    sink, config = PrometheusSink(by_shard=True), ConsumerConfig(lease_duration=5.0)
    async with Consumer("orders", group="billing", store=store, sinks=[sink], config=config, **place) as consumer:
        with HealthServer(consumer, port=int(port), host="127.0.0.1"):
            policy = FailurePolicy(attempts=2, backoff=0.1, backoff_max=0.1)
            await consumer.run(handle, policy=policy, dead_letter=bury)

asyncio.run(main(*sys.argv[1:]))
"""


class Fleet:
    """The fleet, and what the dashboard shows of it."""

    def __init__(self, found, producers, workers, began_at):
        self._found = found
        self._producers = producers
        self.workers = workers
        self._began_at = began_at

    def put(self, data, count=1):
        """Put records of one key with each of the producers."""
        for producer in self._producers:
            producer.put_many([("a", data)] * count)

    def put_one(self, data):
        self._producers[0].put(data, key="a")

    def show(self):
        return show(self._found, self._began_at)

    def colors(self):
        shown = self.show()
        return {title: shown[title].color for title in (SLOW, HOT, DEAD, LETTERS)}

    def picture(self):
        return picture(self._found, self._began_at)

    def photograph(self, name):
        """Save a picture of the dashboard, if pictures are wanted."""
        if directory := os.environ.get("PICTURES"):
            asyncio.run(photograph(page(self._found, self._began_at), Path(directory) / f"{name}.png", HEIGHT))

    def wait(self, is_seen, meanwhile=lambda: None):
        """Wait until a reader of the dashboard sees the fault. Return the colours of the numbers then."""
        deadline = time.monotonic() + WITHIN
        while not is_seen(colors := self.colors()):
            assert time.monotonic() < deadline, self.picture()
            meanwhile()
            time.sleep(0.3)
        return colors


@pytest.fixture
def fleet(tmp_path):
    first, began_at = free_ports(3), time.time()
    sink, config = PrometheusSink(by_shard=True), ProducerConfig(buffer_max_bytes=8 * 1024 * 1024)
    with LocalKinesis(stream="orders", shards=4) as kinesis, prometheus(range(first, first + 3), tmp_path) as found:
        keys = kinesis.credentials
        place = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": keys}
        arguments = [kinesis.endpoint_url, keys.access_key, keys.secret_key, f"sqlite:///{tmp_path}/leases.db"]
        workers = [
            subprocess.Popen([sys.executable, "-c", WORKER, *arguments, str(first + number)]) for number in (1, 2)
        ]
        try:
            # Two producers that do not know of each other send more than a shard takes.
            with (
                Producer("orders", sinks=[sink], config=config, **place) as one,
                Producer("orders", sinks=[sink], config=config, **place) as other,
                HealthServer(one, other, port=first, host="127.0.0.1", registry=sink.registry),
            ):
                yield Fleet(found, [one, other], workers, began_at)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def test_each_fault_turns_one_number_of_the_overview(fleet):
    # ---- nothing is wrong: wait until both workers have shards and are scraped
    def is_healthy(_):
        shown = fleet.show()
        return (
            len(shown["Shards (partitions) by worker"].last) == 2
            and min(shown["Shards (partitions) by worker"].last.values()) == 2
        )

    fleet.wait(is_healthy, lambda: fleet.put(b"fine"))
    healthy = dict.fromkeys((SLOW, HOT, DEAD, LETTERS), "green")
    assert fleet.wait(lambda colors: colors == healthy) == healthy

    fleet.photograph("healthy")

    # ---- a shard is hot
    seen = fleet.wait(lambda colors: colors[HOT] == "red", lambda: fleet.put(b"x" * 50_000, count=40))
    shown = fleet.show()
    assert seen | {HOT: "green"} == healthy, fleet.picture()
    assert shown[HOT].last == {"orders": 1}
    rates, backlogs = shown["Rate left by throttling"].last, shown["Backlog by shard (partition)"].last
    [hot] = [name for name in rates if rates[name] < 0.9 or backlogs[name] > 2]
    assert hot.startswith("orders shardId-")
    assert len(rates) == len(backlogs) == 4

    fleet.photograph("hot-shard")

    # ---- a record is dead-lettered
    fleet.put_one(b"poison")
    seen = fleet.wait(lambda colors: colors[LETTERS] == "red")
    assert (seen[SLOW], seen[DEAD]) == ("green", "green"), fleet.picture()
    assert round(fleet.show()[LETTERS].last["billing"]) == 1
    assert max(fleet.show()["Dead letters"].lines["dead-lettered billing"].values()) > 0

    fleet.photograph("dead-letter")

    # ---- a worker dies
    os.kill(fleet.workers[1].pid, signal.SIGKILL)
    seen = fleet.wait(lambda colors: colors[DEAD] == "red")
    assert seen[SLOW] == "green", fleet.picture()
    assert fleet.show()[DEAD].last == {"not answering": 1}
    assert sorted(fleet.show()["Processes that answer"].last.values()) == [0, 1, 1]

    fleet.photograph("dead-worker")

    # ---- a handler is slow
    fleet.put(b"slow", count=100)
    fleet.wait(lambda colors: colors[SLOW] != "green")
    shown = fleet.show()
    assert shown[SLOW].last["billing orders"] >= 10
    assert max(shown["Handler duration"].lines["p99 orders billing"].values()) > 0.2
    fleet.photograph("slow-handler")
    sys.stdout.write(fleet.picture())


def test_the_panels_that_a_description_of_the_overview_names_exist():
    titles = {panel["title"] for panel in panels()}
    numbers = {panel["title"]: panel["description"] for panel in panels() if panel["type"] == "stat"}
    assert set(numbers) == {SLOW, HOT, DEAD, LETTERS}
    assert panels()[0]["title"].startswith("Overview")
    named = {
        SLOW: {"Handler duration", "Handler retries"},
        HOT: {"Backlog by shard (partition)"},
        DEAD: {"Processes that answer", "Shards (partitions) by worker"},
        LETTERS: {"Dead letters"},
    }
    for title, wanted in named.items():
        for name in wanted:
            assert name in numbers[title]
            assert any(known.startswith(name) for known in titles)
