"""Do the events of producers and consumers reach Prometheus, also from several processes?"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.parser import text_string_to_metric_families
from tests.harness.event_examples import CONSUMER, CONSUMER_EXAMPLES, EXAMPLES, PRODUCER, PRODUCER_EXAMPLES

from shardline import events as ev
from shardline.adapters.sinks.metric_table import METRICS
from shardline.adapters.sinks.prometheus_sink import PrometheusSink, full_name, label_names
from shardline.errors import UsageError

ROOT = Path(__file__).parents[4]
ORDERS = {"stream": "orders"}
BILLING = {"stream": "orders", "group": "billing"}


def value(registry, name, **labels):
    return registry.get_sample_value(name, labels)


def test_every_event_is_counted():
    registry = CollectorRegistry()
    sink = PrometheusSink(registry)
    producer, consumer = sink.open(PRODUCER), sink.open(CONSUMER)
    for event in PRODUCER_EXAMPLES:
        producer(event)
    for event in CONSUMER_EXAMPLES:
        consumer(event)
    assert value(registry, "shardline_producer_delivered_records_total", **ORDERS) == 150
    assert value(registry, "shardline_producer_put_to_ack_seconds_sum", **ORDERS) == 0.12
    assert value(registry, "shardline_producer_request_seconds_count", **ORDERS) == 1
    assert value(registry, "shardline_producer_rate_ratio", **ORDERS) == 0.5
    assert value(registry, "shardline_producer_errors_total", code="Expired", **ORDERS) == 2
    assert value(registry, "shardline_producer_events_total", event="ChannelsFound", **ORDERS) == 1
    assert value(registry, "shardline_consumer_handling_lag_seconds", **BILLING) == 5.0
    assert value(registry, "shardline_consumer_dead_lettered_records_total", **BILLING) == 5
    assert value(registry, "shardline_consumer_handler_seconds_sum", **BILLING) == 0.4
    assert value(registry, "shardline_consumer_commit_seconds_count", **BILLING) == 1
    assert value(registry, "shardline_consumer_read_seconds_count", read_by="polling", **BILLING) == 1


def test_the_names_follow_prometheus_conventions():
    registry = CollectorRegistry()
    PrometheusSink(registry).open(CONSUMER)
    families = {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}
    assert generate_open_metrics(registry).endswith(b"# EOF\n")
    for metric in METRICS:
        name = full_name(metric)
        assert name.startswith("shardline_")
        assert name.endswith("_total") == (metric.kind == "counter")
        assert families[name.removesuffix("_total") if name not in families else name].documentation == metric.help
        assert not {"key", "partition_key", "worker_id"} & set(label_names(metric, by_shard=True))
        assert not name.endswith(("_ms_total", "_ms", "_milliseconds", "_kb"))


def test_counters_begin_at_zero_so_that_the_first_increase_is_seen():
    registry = CollectorRegistry()
    sink = PrometheusSink(registry)
    sink.open(PRODUCER)
    sink.open(CONSUMER)
    assert value(registry, "shardline_producer_failed_records_total", **ORDERS) == 0
    assert value(registry, "shardline_consumer_dead_lettered_records_total", **BILLING) == 0
    assert value(registry, "shardline_consumer_store_up", **BILLING) == 1


def test_shards_are_a_label_only_on_request():
    plain, split = CollectorRegistry(), CollectorRegistry()
    for registry, by_shard in ((plain, False), (split, True)):
        PrometheusSink(registry, by_shard=by_shard).open(PRODUCER)(EXAMPLES[ev.RecordsDelivered])
    assert b"shard_id" not in generate_latest(plain)
    assert value(split, "shardline_producer_delivered_records_total", shard_id="shard-1", **ORDERS) == 100
    assert value(split, "shardline_producer_put_to_ack_seconds_count", **ORDERS) == 1


def test_a_consumer_without_a_group():
    registry = CollectorRegistry()
    PrometheusSink(registry).open(CONSUMER._replace(group=None))(EXAMPLES[ev.PageRead])
    assert value(registry, "shardline_consumer_read_records_total", stream="orders", group="") == 100


def test_several_producers_of_one_stream_share_the_gauges():
    registry = CollectorRegistry()
    first, second = PrometheusSink(registry).open(PRODUCER), PrometheusSink(registry).open(PRODUCER)
    measured = EXAMPLES[ev.ProducerMeasured]
    first(measured)
    second(
        measured._replace(
            outstanding=5, oldest_waiting=9.0, lanes=(ev.LaneStats("shard-1", 0, 0, 0, 0.25, tripped=False),)
        )
    )
    assert value(registry, "shardline_producer_outstanding_records", **ORDERS) == 75
    assert value(registry, "shardline_producer_oldest_waiting_seconds", **ORDERS) == 9.0
    assert value(registry, "shardline_producer_rate_ratio", **ORDERS) == 0.25
    second.close()
    assert value(registry, "shardline_producer_outstanding_records", **ORDERS) == 70
    assert value(registry, "shardline_producer_rate_ratio", **ORDERS) == 0.5
    first.close()
    assert value(registry, "shardline_producer_outstanding_records", **ORDERS) == 0
    assert value(registry, "shardline_producer_rate_ratio", **ORDERS) == 1
    assert value(registry, "shardline_producer_requests_total", **ORDERS) == 0


def test_sinks_in_many_threads_lose_no_count():
    registry = CollectorRegistry()
    sink = PrometheusSink(registry)

    def work():
        opened = sink.open(PRODUCER)
        for _ in range(200):
            opened(EXAMPLES[ev.RecordsDelivered])
            opened(EXAMPLES[ev.ProducerMeasured])
        opened.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(registry, "shardline_producer_delivered_records_total", **ORDERS) == 4 * 200 * 150
    assert value(registry, "shardline_producer_outstanding_records", **ORDERS) == 0


def test_the_default_registry_is_that_of_prometheus_client():
    script = (
        "from prometheus_client import REGISTRY\n"
        "from shardline.adapters.sinks.prometheus_sink import PrometheusSink\n"
        "print(PrometheusSink().registry is REGISTRY)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run([sys.executable, "-c", script], check=True, env=environment, stdout=subprocess.PIPE, text=True)
    assert run.stdout == "True\n"


# ---- wrong uses


def test_sinks_of_one_registry_must_agree_on_shards():
    registry = CollectorRegistry()
    PrometheusSink(registry, by_shard=True)
    with pytest.raises(UsageError, match=r"a PrometheusSink with by_shard=True: use the same value, or another reg"):
        PrometheusSink(registry)


def test_a_foreign_metric_with_the_same_name_is_an_error_and_leaves_nothing_behind():
    registry = CollectorRegistry()
    foreign = Counter("shardline_consumer_stalls", "Mine.", registry=registry)
    with pytest.raises(
        UsageError, match=r"the registry has other metrics with these names: .*shardline_consumer_stalls"
    ):
        PrometheusSink(registry)
    registry.unregister(foreign)
    PrometheusSink(registry).open(CONSUMER)
    assert value(registry, "shardline_consumer_stalls_total", stream="orders", group="billing") == 0


def test_by_shard_is_a_boolean():
    with pytest.raises(UsageError, match="by_shard must be True or False, not 1"):
        PrometheusSink(CollectorRegistry(), by_shard=1)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"PrometheusSink needs an extra: pip install 'shardline\[prometheus\]'"):
        PrometheusSink()


# ---- several processes

WORKER = """
import os, sys
sys.path.insert(0, {root!r})
from tests.harness.event_examples import CONSUMER, EXAMPLES, PRODUCER
from shardline import events as ev
from shardline.adapters.sinks.prometheus_sink import PrometheusSink

sink = PrometheusSink()
producer, consumer = sink.open(PRODUCER), sink.open(CONSUMER)
producer(EXAMPLES[ev.RecordsDelivered])
producer(EXAMPLES[ev.ProducerMeasured])
consumer(ev.LagMeasured((ev.ShardLag("shard-1", 1.0, float(sys.argv[1]), 3, 1),)))
consumer(EXAMPLES[ev.LeaseGained])
consumer(EXAMPLES[ev.RecordsHandled])
print("ready", flush=True)
sys.stdin.read()
"""
SERVER = """
import sys
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
sys.stdout.write(generate_latest(registry).decode())
"""
MARK_DEAD = "import sys; from prometheus_client import multiprocess; multiprocess.mark_process_dead(int(sys.argv[1]))"
FORKING = """
import os, sys
sys.path.insert(0, {root!r})
from tests.harness.event_examples import EXAMPLES, PRODUCER
from shardline import events as ev
from shardline.adapters.sinks.prometheus_sink import PrometheusSink

sink = PrometheusSink()
sink.open(PRODUCER)(EXAMPLES[ev.ProducerMeasured])
child = os.fork()
if not child:
    sink.open(PRODUCER)(EXAMPLES[ev.ProducerMeasured])
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.fixture
def fleet(tmp_path):
    """Starts processes that share a directory, and reads their metrics together."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    started = []

    class Fleet:
        def start(self, lag):
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER.format(root=str(ROOT)), str(lag)],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            started.append(process)
            assert process.stdout.readline() == "ready\n"
            return process

        def run(self, script, *arguments):
            command = [sys.executable, "-c", script, *arguments]
            return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

        def samples(self):
            families = text_string_to_metric_families(self.run(SERVER))
            return {sample.name: sample.value for family in families for sample in family.samples}

    yield Fleet()
    for process in started:
        process.kill()
        process.communicate()


def test_several_processes_are_added_up(fleet):
    first, second = fleet.start(2.0), fleet.start(7.0)
    both = fleet.samples()
    assert both["shardline_producer_delivered_records_total"] == 300
    assert both["shardline_producer_put_to_ack_seconds_count"] == 2
    assert both["shardline_producer_outstanding_records"] == 140
    assert both["shardline_producer_rate_ratio"] == 0.5
    assert both["shardline_consumer_handling_lag_seconds"] == 7.0
    assert both["shardline_consumer_leases"] == 2
    second.kill()
    second.wait()
    fleet.run(MARK_DEAD, str(second.pid))
    left = fleet.samples()
    assert left["shardline_consumer_handling_lag_seconds"] == 2.0
    assert left["shardline_consumer_leases"] == 1
    assert left["shardline_producer_delivered_records_total"] == 300, "what a dead process counted stays counted"
    assert first.poll() is None


def test_a_forked_child_does_not_repeat_its_parent(fleet):
    fleet.run(FORKING.format(root=str(ROOT)))
    assert fleet.samples()["shardline_producer_outstanding_records"] == 140
