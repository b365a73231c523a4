"""Do the examples do what they say? Each runs as a user would run it, pointed at the embedded server."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from runpy import run_path

import pytest

from shardline import deaggregate
from shardline.sync import Producer
from shardline.testing import LocalKinesis

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTED = {
    "produce.py",
    "produce_blocking.py",
    "backfill.py",
    "asgi_producer.py",
    "demo.py",
    "consume.py",
    "worker.py",
    "read_to_the_end.py",
    "replay.py",
}


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=2, stream="orders") as running:
        yield running


def run(name, *arguments, kinesis=None):
    """The exit code of an example and what it printed."""
    told = {} if kinesis is None else kinesis.environment
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONUNBUFFERED": "1"} | told,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


def stored(kinesis):
    return [record.data for record in deaggregate(kinesis.streams["orders"].records)]


def test_produce(kinesis):
    code, printed, errors = run("produce.py", "orders", kinesis=kinesis)
    assert (code, errors) == (0, "")
    assert re.fullmatch(r"1000 orders in \d+ Kinesis records\n", printed)
    assert sorted(json.loads(data)["order"] for data in stored(kinesis)) == list(range(1001))


def test_produce_tells_what_failed(kinesis):
    kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation="PutRecords")
    code, _, errors = run("produce.py", "orders", kinesis=kinesis)
    assert code == 1
    assert errors.count("Undelivered(code='AccessDeniedException', message='not allowed'") == 1001


def test_produce_from_threads(kinesis):
    code, printed, errors = run("produce_blocking.py", "orders", kinesis=kinesis)
    assert (code, errors) == (0, "")
    assert re.fullmatch(r"200 of 200 orders stored, in \d+ requests\n", printed)
    assert sorted(stored(kinesis)) == sorted(b'{"order": %d}' % number for number in range(200))


def test_a_backfill(kinesis, tmp_path):
    file = tmp_path / "orders.jsonl"
    lines = [json.dumps({"customer": f"customer-{number % 7}", "order": number}) for number in range(3000)]
    file.write_text("\n".join(lines) + "\n\n")
    kinesis.faults.throttle(operation="PutRecords", count=2)
    code, printed, _ = run("backfill.py", "orders", file, "customer", kinesis=kinesis)
    assert (code, printed) == (0, "3000 lines, 3000 delivered, 0 failed\n")
    assert Counter(stored(kinesis)) == Counter(line.encode() for line in lines)
    assert (tmp_path / "orders.jsonl.failed").read_text() == ""


def test_a_backfill_reports_what_failed(kinesis, tmp_path):
    file = tmp_path / "orders.jsonl"
    file.write_text('{"customer": "7"}\nno JSON\n{"no": "customer"}\n{"customer": ""}\n')
    code, printed, _ = run("backfill.py", "orders", file, "customer", kinesis=kinesis)
    assert code == 1
    assert printed.splitlines()[0] == "4 lines, 1 delivered, 3 failed"
    assert set(printed.splitlines()[1:]) == {"  JSONDecodeError: 1", "  KeyError: 1", "  UsageError: 1"}
    failed = [json.loads(line) for line in (tmp_path / "orders.jsonl.failed").read_text().splitlines()]
    assert [one["data"] for one in failed] == ["no JSON", '{"no": "customer"}', '{"customer": ""}']
    assert stored(kinesis) == [b'{"customer": "7"}']


def test_an_application(kinesis, monkeypatch):
    """What a server does with it: start, three requests, stop."""
    for name, value in (kinesis.environment | {"STREAM": "orders"}).items():
        monkeypatch.setenv(name, value)
    app = run_path(str(EXAMPLES / "asgi_producer.py"))["app"]

    async def post(state, *parts):
        events = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        events.append({"type": "http.request", "body": b"", "more_body": False})
        sent = []

        async def receive():
            return events.pop(0)

        async def send(event):
            sent.append(event)

        await app({"type": "http", "state": state}, receive, send)
        return sent[0]["status"]

    async def serve():
        asked, told, state = asyncio.Queue(), asyncio.Queue(), {}
        life = asyncio.create_task(app({"type": "lifespan", "state": state}, asked.get, told.put))
        await asked.put({"type": "lifespan.startup"})
        assert await told.get() == {"type": "lifespan.startup.complete"}
        statuses = [await post(state, b"one"), await post(state, b"t", b"wo"), await post(state, b"x" * (11 << 20))]
        await asked.put({"type": "lifespan.shutdown"})
        assert await told.get() == {"type": "lifespan.shutdown.complete"}
        await life
        return statuses

    assert asyncio.run(serve()) == [202, 202, 413]
    assert sorted(stored(kinesis)) == [b"one", b"two"]


# ---- consumers


@pytest.fixture
def put(kinesis, monkeypatch):
    """Put data with the keys ``customer-0``, ``customer-1``, ..."""
    for name, value in kinesis.environment.items():
        monkeypatch.setenv(name, value)

    def put(*data):
        with Producer("orders") as producer:
            producer.put_many((f"customer-{number}", one) for number, one in enumerate(data))

    return put


@pytest.fixture
def started(kinesis):
    """Starts an example, and ends it if the test did not."""
    running = []

    def start(name, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)],
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"} | kinesis.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_group_reads_until_it_is_interrupted_and_goes_on_there(put, started, tmp_path):
    arguments = ("orders", "g", f"sqlite:///{tmp_path}/leases.db")
    for orders in ([b"1", b"2", b"3"], [b"4", b"5"]):
        put(*orders)
        process = started("consume.py", *arguments)
        seen = [process.stdout.readline().split()[2].encode() for _ in orders]
        time.sleep(0.2)  # it asks for the next
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=10)
        assert (process.returncode, rest) == (130, "")
        assert re.fullmatch(r"\S+ reads orders for g\n", errors)
        assert sorted(seen) == orders, "these, and none again"


def test_a_worker_ends_well_on_sigterm(put, started, tmp_path):
    file = tmp_path / "dead.jsonl"
    arguments = ("orders", "g", f"sqlite:///{tmp_path}/leases.db", file)
    put(b'{"order": 1}', b"no JSON", b'{"order": 2}')
    process = started("worker.py", *arguments)
    lines = sorted(process.stdout.readline() for _ in range(2))
    while not file.exists() or not file.read_text().endswith("\n"):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    rest, errors = process.communicate(timeout=20)
    assert (process.returncode, rest) == (0, "stopped\n"), errors
    assert time.monotonic() - began < 5
    assert lines == ["customer-0: order 1\n", "customer-2: order 2\n"]
    [dead] = map(json.loads, file.read_text().splitlines())
    assert (b64decode(dead["data"]), dead["attempts"]) == (b"no JSON", 3)
    process = started("worker.py", *arguments)
    put(b'{"order": 3}')
    assert process.stdout.readline() == "customer-0: order 3\n", "nothing came again"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "stopped\n"


def test_reading_to_the_end(put, kinesis):
    assert run("read_to_the_end.py", "orders", kinesis=kinesis) == (0, "0 records, 0 bytes\n", "")
    put(*[b"x"] * 100)
    code, printed, errors = run("read_to_the_end.py", "orders", kinesis=kinesis)
    *shards, last = printed.splitlines()
    assert (code, errors, last) == (0, "", "100 records, 100 bytes")
    assert sum(int(line.split()[1]) for line in shards) == 100


def test_a_replay_from_a_time(put, kinesis):
    put(b"old")
    time.sleep(1.1)
    since = datetime.now(UTC)
    put(b"new", b"newer")
    code, printed, errors = run("replay.py", "orders", since.isoformat(), kinesis=kinesis)
    assert (code, errors) == (0, "")
    lines = [json.loads(line) for line in printed.splitlines()]
    assert sorted((line["key"], b64decode(line["data"])) for line in lines) == [
        ("customer-0", b"new"),
        ("customer-1", b"newer"),
    ]


def test_the_demonstration():
    code, printed, errors = run("demo.py")
    assert (code, errors) == (0, "")
    found = re.fullmatch(r"put (\d+)   delivered (\d+)   lost (\d+)   duplicates (\d+)", printed.splitlines()[-1])
    put, delivered, lost, duplicates = map(int, found.groups())
    assert (put, delivered, lost) == (30000, 30000, 0)
    assert 0 <= duplicates < put
