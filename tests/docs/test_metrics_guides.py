"""Do the examples of the pages on Prometheus, CloudWatch and health run, and are their tables those of the code?"""

import asyncio
import json
import re
import socket
import urllib.request
from pathlib import Path

import anyio
import pytest
import yaml
from prometheus_client import REGISTRY
from tests.docs import pages
from tests.harness.event_examples import CONSUMER, CONSUMER_EXAMPLES, EXAMPLES, FAILURE, PRODUCER, PRODUCER_EXAMPLES

from shardline import Producer, events
from shardline.adapters.sinks.cloudwatch_names import KclNames, KplNames
from shardline.sinks import CloudWatchSink, PrometheusSink

HERE = Path(__file__)
ROOT = pages.ROOT
PROMETHEUS, CLOUDWATCH, HEALTH = (
    "docs/guides/sinks/prometheus.md", "docs/guides/sinks/cloudwatch.md", "docs/guides/deploying/health.md",
)  # fmt: skip
BLOCKS = [block for page in (PROMETHEUS, CLOUDWATCH, HEALTH) for block in pages.blocks_of(page, "python")]
TABLES = pages.script("docs/tables.py")


def program(text):
    return pages.run_block(BLOCKS, text)


def test_every_example_runs_in_a_test():
    used = [
        *re.findall(r"""program\(["'](.+?)["']\)""", HERE.read_text()),
        "touch_while_healthy",
    ]  # test_deploying_guides.py
    assert [block for block in BLOCKS if not any(text in block for text in used)] == []


# ---- the examples


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


async def asked(app, path):
    """The status, the content type and the body that an ASGI application answers."""
    sent = []
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
        "http_version": "1.1", "scheme": "http", "server": ("test", 80), "client": ("test", 1), "root_path": "",
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], dict(sent[0]["headers"])[b"content-type"].decode(), body


def fetched(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return answer.read().decode()


def test_metrics_of_a_producer_and_a_consumer(kinesis, free_port, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kinesis.create_stream("invoices", shards=1)
    metrics = []

    async def main():
        async with Producer("orders") as producer:
            await producer.put_many([("a", b"1"), ("b", b"2")])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(program("async def forward").forward, free_port)
            with anyio.fail_after(30):
                while not any("shardline_producer_delivered_records_total" in text for text in metrics):
                    await anyio.sleep(0.02)
                    try:
                        metrics.append(await anyio.to_thread.run_sync(fetched, free_port, "/metrics"))
                    except OSError:
                        continue

    asyncio.run(main())
    assert REGISTRY.get_sample_value("shardline_producer_delivered_records_total", {"stream": "invoices"}) == 2
    handled = REGISTRY.get_sample_value(
        "shardline_consumer_handled_records_total", {"stream": "orders", "group": "billing"}
    )
    assert handled == 2


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("instrument(PrometheusSink())", [PrometheusSink]),
        ('instrument(CloudWatchSink(names="kpl")', [CloudWatchSink] * 2),
    ],
)
def test_sinks_for_everything(text, kinds, monkeypatch):
    instrumented = []
    monkeypatch.setattr(events, "instrument", lambda *sinks: instrumented.extend(sinks))
    assert [program("instrument(PrometheusSink())"), program('instrument(CloudWatchSink(names="kpl")')]
    del instrumented[:]
    pages.run_block(BLOCKS, text)
    assert [type(sink) for sink in instrumented] == kinds


def test_the_hook_of_gunicorn(monkeypatch):
    from prometheus_client import multiprocess

    dead = []
    monkeypatch.setattr(multiprocess, "mark_process_dead", dead.append)

    class Worker:
        pid = 7

    program("def child_exit").child_exit(None, Worker)
    assert dead == [7]


def test_lines_on_standard_output(kinesis, capsys):
    asyncio.run(program("async def put_orders").put_orders([("a", b"1"), ("b", b"2")]))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(line.get("ProducerDeliveredRecords", 0) for line in lines) == 2


def test_a_worker_with_probes(kinesis, free_port, monkeypatch):
    names = program("with HealthServer(consumer, port=port)")
    real = names.work.__globals__["Consumer"]
    monkeypatch.setitem(names.work.__globals__, "Consumer", lambda stream, **_: real(stream))
    reports = []

    async def main():
        task = asyncio.create_task(names.work(free_port))
        async with asyncio.timeout(30):
            while "ready" not in reports:
                await asyncio.sleep(0.05)
                try:
                    reports.append(json.loads(await asyncio.to_thread(fetched, free_port, "/readyz"))["status"])
                except OSError:
                    continue
        assert json.loads(await asyncio.to_thread(fetched, free_port, "/livez"))["status"] == "alive"
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())


def test_a_web_framework_serves_the_same(kinesis):
    names = program("app = FastAPI")

    async def main():
        async with names.app.router.lifespan_context(names.app):
            await names.producer.wait_ready()
            async with asyncio.timeout(30):
                while (await asked(names.app, "/readyz"))[0] != 200:  # noqa: ASYNC110 - a probe polls, too
                    await asyncio.sleep(0.05)
            status, kind, body = await asked(names.app, "/livez")
            assert (status, kind, json.loads(body)["status"]) == (200, "application/json", "alive")
            assert (await asked(names.app, "/metrics"))[1].startswith("text/plain")

    asyncio.run(main())


def test_the_probes_of_kubernetes_name_paths_that_exist():
    [text] = pages.blocks_of(HEALTH, "yaml")
    probes = yaml.safe_load(text)
    assert {probe["httpGet"]["path"] for probe in probes.values()} == {"/livez", "/readyz"}


# ---- the tables


def test_the_tables_have_every_name_of_the_kpl_and_the_kcl():
    kpl = KplNames(PRODUCER, by_shard=True)
    assert {sample.name for event in PRODUCER_EXAMPLES for sample in kpl.samples(event)} == set(TABLES.KPL_METRICS)
    kcl = KclNames(CONSUMER)
    expired = EXAMPLES[events.ReadFailed]._replace(failure=FAILURE._replace(code="ExpiredIteratorException"))
    found = {
        (
            sample.name,
            dict(sample.dimensions)["Operation"],
            *(name for name, _ in sample.dimensions if name != "Operation"),
        )
        for event in (*CONSUMER_EXAMPLES, expired)
        for sample in kcl.samples(event)
    }
    listed = {(name, operation, *([more] if more else [])) for name, operation, more, _ in TABLES.KCL_METRICS}
    assert found == listed


def test_the_page_names_the_files_and_panels_that_exist():
    text = pages.text_of(PROMETHEUS)
    for file in re.findall(r"`(deploy/[\w/.]+)`", text):
        assert (ROOT / file).is_file(), file
    titles = {panel["title"] for panel in json.loads((ROOT / "deploy/grafana/shardline.json").read_text())["panels"]}
    for name in re.findall(r'"([A-Z][^"]+)"', pages.section_of(PROMETHEUS, "## Dashboard and alerts")):
        assert any(title.startswith(name) for title in titles), name
