"""Does the health server answer, also while the event loop is blocked, and does it say what is wrong?"""

import gzip
import http.client
import json
import socket
import sys
import threading
import time

import anyio
import anyio.to_thread
import pytest
from prometheus_client import CollectorRegistry, Counter

import shardline.sync
from shardline import Client, Consumer, ConsumerConfig, Producer
from shardline.errors import UsageError
from shardline.health import HealthServer
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio


@pytest.fixture
def wire():
    """These tests need no transport of the client."""


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def event_loop_kind(request):
    return request.param


@pytest.fixture
def kinesis():
    with LocalKinesis(stream="orders", shards=2) as local:
        yield local


def arguments(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}


def get(port, path, method="GET", **headers):
    """Send a request; return the status, the headers and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def report(port, path):
    status, _, body = get(port, path)
    return status, json.loads(body)


async def ask(port, path):
    return await anyio.to_thread.run_sync(report, port, path)


async def until(port, path, wanted, limit=20.0):
    """Ask until the status is the wanted one; return the report."""
    with anyio.fail_after(limit):
        while (answer := await ask(port, path))[0] != wanted:  # noqa: ASYNC110 - another process would poll, too
            await anyio.sleep(0.05)
    return answer[1]


async def test_a_consumer_and_a_producer_that_work(kinesis):
    async with (
        Producer("orders", **arguments(kinesis)) as producer,
        Consumer("orders", **arguments(kinesis)) as consumer,
    ):
        with HealthServer(producer, consumer, port=0, host="127.0.0.1") as health:
            await producer.wait_ready()
            await consumer.wait_ready()
            ready = await until(health.port, "/readyz", 200)
            assert ready["status"] == "ready"
            assert [each["health"] for each in ready["watched"]] == ["ok", "ok"]
            assert (await ask(health.port, "/livez"))[1]["status"] == "alive"
            await consumer.close()
            closed = await until(health.port, "/readyz", 503)
            assert closed["problems"] == [f"{closed['watched'][1]['name']}: it is not ready (closed)"]
            assert (await ask(health.port, "/livez"))[0] == 200, "a closed consumer is no reason for a restart"
            await producer.close()
            with anyio.fail_after(20):
                while (await ask(health.port, "/readyz"))[1]["watched"][0]["health"] != "closed":  # noqa: ASYNC110 - the same
                    await anyio.sleep(0.05)


async def test_it_answers_while_the_event_loop_is_blocked_and_says_so(kinesis):
    answers = []

    def watch():
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            began = time.monotonic()
            status, body = report(health.port, "/livez")
            answers.append((status, body, time.monotonic() - began))
            if status == 503:
                break
            time.sleep(0.05)
        answers.append((*report(health.port, "/readyz"), 0.0))
        seen.set()

    seen = threading.Event()
    async with Consumer("orders", **arguments(kinesis)) as consumer:
        await consumer.wait_ready()
        with HealthServer(consumer, port=0, host="127.0.0.1", blocked_after=1.0) as health:
            await until(health.port, "/readyz", 200)
            thread = threading.Thread(target=watch)
            thread.start()
            assert seen.wait(30)  # this blocks the event loop
            thread.join()
            [*before, (status, body, _), (ready_status, _, _)] = answers
            assert (status, ready_status) == (503, 503)
            assert body["status"] == "not alive"
            assert "the event loop has been blocked for 1." in body["problems"][0]
            assert any(each[1]["watched"][0]["blocked_for"] > 0 for each in before), "it says so before it fails"
            assert max(took for _, _, took in before) < 1.0, "no answer waits for the event loop"
            assert (await until(health.port, "/livez", 200))["watched"][0]["blocked_for"] == 0


async def test_a_stuck_handler(kinesis):
    async with Producer("orders", **arguments(kinesis)) as producer:
        await producer.put_many([("a", b"1")])
    config = ConsumerConfig(stuck_after=0.3)
    release = anyio.Event()

    async def hang(record):
        await release.wait()

    async with Consumer("orders", config=config, **arguments(kinesis)) as consumer:
        with HealthServer(consumer, port=0, host="127.0.0.1") as health:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, hang)
                stuck = await until(health.port, "/livez", 503)
                assert "longer than stuck_after" in stuck["problems"][0]
                release.set()
                await until(health.port, "/livez", 200)
                await consumer.close()


async def test_a_failed_consumer(kinesis):
    async with Client(**arguments(kinesis)) as client, Consumer("orders", client=client) as consumer:
        await consumer.wait_ready()
        with HealthServer(consumer, port=0, host="127.0.0.1") as health:
            await client.call("DeleteStream", {"StreamName": "orders"})
            failed = await until(health.port, "/livez", 503, limit=60)
            assert "it has failed" in failed["problems"][0]


async def test_a_consumer_that_waits_for_its_stream_is_alive_and_not_ready(kinesis):
    async with Producer("missing", **arguments(kinesis)) as producer:
        with HealthServer(producer, port=0, host="127.0.0.1") as health:
            status, body = await ask(health.port, "/readyz")
            assert (status, body["watched"][0]["health"]) == (503, "starting")
            assert (await ask(health.port, "/livez"))[0] == 200


async def test_metrics_are_served_in_the_format_that_was_asked_for():
    registry = CollectorRegistry()
    Counter("apples", "Apples.", registry=registry).inc(3)
    with HealthServer(port=0, host="127.0.0.1", registry=registry) as health:
        status, headers, body = await anyio.to_thread.run_sync(lambda: get(health.port, "/metrics"))
        assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
        assert b"apples_total 3.0" in body
        _, headers, body = await anyio.to_thread.run_sync(
            lambda: get(health.port, "/metrics?x=1", Accept="application/openmetrics-text", Accept_Encoding="gzip")
        )
        assert headers["Content-Type"].startswith("application/openmetrics-text")
        assert gzip.decompress(body).endswith(b"# EOF\n")
        status, headers, body = await anyio.to_thread.run_sync(lambda: get(health.port, "/metrics", "HEAD"))
        assert (status, body) == (200, b"")
        assert int(headers["Content-Length"]) > 10


def test_without_the_extra_the_answer_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = HealthServer(port=None).respond("/metrics")
    assert answer.status == 404
    assert answer.body == b"metrics need an extra: pip install 'shardline[health]'\n"


def test_other_paths_and_a_server_that_is_not_started():
    health = HealthServer(port=None)
    assert health.respond("/").status == 404
    assert json.loads(health.respond("/livez").body)["problems"] == ["the HealthServer is not started"]
    assert health.port is None
    with health:
        assert health.respond("/livez/").status == 200
        assert json.loads(health.respond("/readyz").body) == {"status": "ready", "problems": [], "watched": []}


def test_blocking_producers_and_consumers(kinesis):
    with (
        shardline.sync.Producer("orders", **arguments(kinesis)) as producer,
        shardline.sync.Consumer("orders", **arguments(kinesis)) as consumer,
        HealthServer(producer, consumer, port=0, host="127.0.0.1") as health,
    ):
        producer.wait_ready()
        consumer.wait_ready()
        deadline = time.monotonic() + 20
        while report(health.port, "/readyz")[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        status, body = report(health.port, "/readyz")
        assert status == 200
        assert [each["health"] for each in body["watched"]] == ["ok", "ok"]


def test_a_blocked_network_thread_is_seen(kinesis):
    release = threading.Event()

    def block(event):
        release.wait(30)

    with shardline.sync.Producer("orders", on_failure=None, **arguments(kinesis)) as producer:
        producer.wait_ready()
        with HealthServer(producer, port=0, host="127.0.0.1", blocked_after=0.5) as health:
            producer.put(b"1", key="a", on_delivery=block)
            deadline = time.monotonic() + 20
            while (answer := report(health.port, "/livez"))[0] == 200 and time.monotonic() < deadline:
                time.sleep(0.05)
            release.set()
            assert answer[0] == 503
            assert "the event loop has been blocked" in answer[1]["problems"][0]


async def test_a_loop_that_has_ended(kinesis):
    """An event loop in another thread ends while its producer is watched."""
    started = threading.Event()
    kept = []

    async def run():
        producer = Producer("orders", **arguments(kinesis))
        await producer.start()
        health = HealthServer(producer, port=None)
        health.start()
        kept.append((producer, health))
        started.set()

    def thread():
        anyio.run(run)

    await anyio.to_thread.run_sync(thread)
    producer, health = kept[0]
    with anyio.fail_after(20):
        while health.respond("/livez").status != 503:  # noqa: ASYNC110 - the same
            await anyio.sleep(0.05)
    assert "its event loop has ended" in json.loads(health.respond("/livez").body)["problems"][0]
    health.close()
    producer._closed = True  # it cannot be closed any more


# ---- starting and closing


def test_an_async_consumer_is_watched_in_its_event_loop(kinesis):
    consumer = Consumer("orders", **arguments(kinesis))
    with pytest.raises(UsageError, match="start a HealthServer in the event loop of the producers and consumers"):
        HealthServer(consumer, port=0).start()


def test_a_port_that_is_in_use_is_a_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"the health server cannot listen on port {port} of 127.0.0.1: "):
            HealthServer(port=port, host="127.0.0.1").start()


def test_closing_is_quick_and_frees_the_port():
    health = HealthServer(port=0, host="127.0.0.1")
    health.start()
    health.start()
    port = health.port
    with socket.create_connection(("127.0.0.1", port)):  # a client that sends nothing
        began = time.monotonic()
        health.close()
        health.close()
        assert time.monotonic() - began < 2
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_ipv6():
    with HealthServer(port=0, host="::1") as health:
        connection = http.client.HTTPConnection("::1", health.port, timeout=20)
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"port": "80"}, "port must be a whole number from 0 to 65535, or None, not '80'"),
        ({"port": 70_000}, "port must be"),
        ({"port": True}, "port must be"),
        ({"port": 0, "blocked_after": 0}, "blocked_after must be a number of seconds above 0, not 0"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(UsageError, match=message):
        HealthServer(**arguments)


def test_only_producers_and_consumers_are_watched():
    with pytest.raises(UsageError, match="watches producers and consumers, not a str"):
        HealthServer("orders", port=0)
